"""Hostile files: whatever is done to a right one, the answer is a list of problems."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from config_workspace import DATA, ConfigWorkspace
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuemu_flow.config.load import check_config
from gpuemu_flow.config.read import read_source

FILES = sorted((DATA / "valid").glob("*.toml")) + sorted((DATA / "invalid").glob("*.toml"))
TEXTS = [path.read_text() for path in FILES]

# Values of every type, and words that mean something somewhere in the file.
VALUES = [
    "0", "-1", "1e400", "nan", "-inf", "true", '""', '"x"', "[]", "{}", "[[]]", "[{}]", "{ a = 1 }",
    "99999999999999999999999999", '"\\u0000"', '"\\u202e"', "1979-05-27", '["a", 1]', "[1, 2]",
    '"float32"', '"scripts"', '"/"', '"."', '".."', '"~"', '"a:b"', '":"', '"-"', '"python "',
    '"python x"', '{ kind = "script" }', '{ kind = 1 }', '["/bin/sh"]', '["./"]', "[[1]]",
    '"all"', '["all"]', '["t"]', '"compare:softmax:float32"', '"2GB"', '{ min = 1 }', '"x.py:"',
    "{ name = 1 }", '[{ name = "a" }]', '{ float32 = { atol = 1 } }', '{ "" = "" }', "0x7f", "1.5",
    "07:32:00", '"' + "n" * 300 + '.py"', '"' + "m" * 300 + ':f"', '"' + "d/" * 2000 + 'x"',
]  # fmt: skip
JUNK = ["[", "]", "{", "}", '"', "'", '"""', "=", "#", "\n", "\\", ",", ".", "[[", "\0", "\ufeff"]


def mutated(text: str, rng: random.Random) -> str:
    """`text` with some keys, values, lines or characters changed."""
    lines = text.split("\n")
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(lines))
        line = lines[place]
        what = rng.randrange(7)
        if what == 0 and "=" in line:
            lines[place] = line.split("=")[0] + "= " + rng.choice(VALUES)
        elif what == 1 and "=" in line:
            other = rng.choice(lines)
            lines[place] = other.split("=")[0] + "=" + line.split("=", 1)[1]
        elif what == 2:
            lines.insert(place, rng.choice(rng.choice(TEXTS).split("\n")))
        elif what == 3:
            del lines[place]
            lines = lines or [""]
        elif what == 4:
            at = rng.randrange(len(line) + 1)
            lines[place] = line[:at] + rng.choice(JUNK) + line[at:]
        elif what == 5 and line:
            at = rng.randrange(len(line))
            lines[place] = line[:at] + line[at + 1 :]
        else:
            lines[place] = line.replace("[[", "[").replace("]]", "]")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> ConfigWorkspace:
    """One for all examples: nothing but its gpuemu.toml is ever written."""
    return ConfigWorkspace(tmp_path_factory.mktemp("fuzz"))


@settings(max_examples=150, deadline=None)
@given(text=st.sampled_from(TEXTS), rng=st.randoms(use_true_random=False))
def test_mutated_files_give_problems_and_nothing_else(
    text: str, rng: random.Random, workspace: ConfigWorkspace
) -> None:
    changed = mutated(text, rng)
    (workspace.root / "gpuemu.toml").write_text(changed)
    problems = workspace.check()
    lines = changed.count("\n") + 1
    for problem in problems:
        assert 0 <= problem.line <= lines
        assert problem.slug.startswith(("config-", "schema-", "unknown-kernel"))
        assert str(problem).isprintable(), repr(str(problem))
        assert len(str(problem)) < 2000
    if all(problem.warning for problem in problems):
        assert list(workspace.load().warnings) == problems


@settings(max_examples=100, deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=300).map(str.encode)))
def test_any_bytes_at_all(data: bytes, workspace: ConfigWorkspace) -> None:
    (workspace.root / "gpuemu.toml").write_bytes(data)
    for problem in workspace.check():
        assert str(problem).isprintable()


@pytest.mark.ci
def test_large_hostile_files_are_answered(tmp_path: Path) -> None:
    """Each of these once took, or would take, time that grows faster than the file."""
    size = 1 << 18
    hostile = {
        "targets": "[targets]\na = [" + ", ".join(f'"x{i}"' for i in range(9000)) + "]\n",
        "circles": "[targets]\nt0 = []\n"
        + "".join(f't{i} = ["t{i - 1}", "t{i + 1}"]\n' for i in range(1, size // 32)),
        "targets of targets": "[targets]\n"
        + "".join(f't{i} = ["t{i + 1}", "x{i}"]\n' for i in range(4000))
        + "t4000 = []\n",
        "unknown keys": "".join(f"k{i} = 1\n" for i in range(size // 12)),
        "ops": "[[ops]]\n" * (size // 8),
        "unknown schema keys": '[[ops]]\nname = "a"\nreference = "x"\n[ops.schema]\n'
        + "".join(f"k{i} = 1\n" for i in range(9000)),
        "open brackets": "x = " + "[" * size,
        "open braces": "x = " + "{a=" * (size // 3),
        "quotes": 'x = """' + '"\\' * (size // 2),
        "dots": "a." * (size // 2),
        "digits": "x = " + "1" * size,
        "commas": "x = [" + "," * size,
    }
    for name, text in hostile.items():
        path = tmp_path / "gpuemu.toml"
        path.write_text(text)
        problems = check_config(path, environ={"HOME": str(tmp_path)})
        assert problems, name
        assert len(problems) < 500, name


def test_a_device_is_not_read(tmp_path: Path) -> None:
    source = read_source(Path("/dev/zero"), "zero")
    assert [p.slug for p in source.out.problems] == ["config-unreadable"]
