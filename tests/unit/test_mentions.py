"""Command lines, and code in them, that name a file or import it."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from gpuemu_flow.runners.mentions import Mentions

ROOT = "/home/user/space"
PARTS = (
    "ref", "ref.py", "sub", "/", "./", "../", ".", "-", " ", ";", "\n", "import", "from", "as",
    "run_module", "(", "'", "x", ROOT, "/work", "__init__.py", "é", "_", "~",
)  # fmt: skip


@pytest.mark.parametrize(
    "word",
    [
        "/home/user/space/sub/ref.py",
        "sub/ref.py",
        "--file=sub/ref.py",
        "ref.py",
        "./ref.py",
        "cat ref.py",
        "import sub.ref",
        "x = 1; from sub import ref",
        "runpy.run_module('sub.ref')",
    ],
)
def test_a_word_that_names_the_file(word: str) -> None:
    assert Mentions(f"{ROOT}/sub/ref.py", ROOT).in_word(word)


@pytest.mark.parametrize(
    "word",
    [
        "",
        "sub/ref.python",
        "other/ref.py",
        "../ref.py",
        "my-ref.py",
        "ref",
        "preference",
        "import other; print(ref)",
        "import reference",
        "reimport\nref",
    ],
)
def test_a_word_that_names_another(word: str) -> None:
    assert not Mentions(f"{ROOT}/sub/ref.py", ROOT).in_word(word)


def test_a_file_that_is_no_module_is_not_imported() -> None:
    table = Mentions(f"{ROOT}/ref.bin", ROOT)
    assert table.in_word("cat ref.bin")
    assert not table.in_word("import ref")


def one_pattern(path: str, name: str, module: str) -> re.Pattern[str]:
    """Write the same rules as one regular expression, as they are easiest to check."""
    within = path.removeprefix(f"{ROOT}/")
    forms = [rf"(?<![\w.-])(?:{re.escape(path)}|{re.escape(within)})(?![\w-])"]
    if path.endswith(".py"):
        forms.append(rf"(?:(?<![\w./-])|(?<![\w.])\./){re.escape(name)}(?!\w)")
        forms.append(rf"(?:import|from|run_module)\b[^;\n]*\b{re.escape(module)}\b")
    return re.compile("|".join(forms))


@pytest.mark.parametrize(
    ("path", "name", "module"),
    [
        (f"{ROOT}/sub/ref.py", "ref.py", "ref"),
        (f"{ROOT}/sub/__init__.py", "__init__.py", "sub"),
        (f"{ROOT}/ref;x.py", "ref;x.py", "ref;x"),
        (f"{ROOT}/-ref.py", "-ref.py", "-ref"),
        (f"{ROOT}/sub", "sub", ""),
        ("/elsewhere/ref.bin", "ref.bin", ""),
    ],
)
def test_it_finds_what_one_regular_expression_finds(path: str, name: str, module: str) -> None:
    pattern, mentions = one_pattern(path, name, module), Mentions(path, ROOT)
    draw = random.Random(path)
    parts = (*PARTS, path, name, module, path.removeprefix(f"{ROOT}/"))
    words = ["".join(some) for some in itertools.product(parts, repeat=2)]
    words += ["".join(draw.choices(parts, k=draw.randint(3, 8))) for _ in range(20_000)]
    found = [word for word in words if pattern.search(word)]
    assert found
    assert [word for word in words if mentions.in_word(word)] == found
