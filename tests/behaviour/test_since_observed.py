"""`--since GITREF` and what programs were seen to use: data, modules, folders, missing files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini

# This folder is no package; what both files need of git is in one of them.
from test_since import git, ops

SEEDED = False


SCALE = """
    import importlib
    import os

    from common import widen

    HERE = os.path.dirname(os.path.abspath(__file__))
    DATA = os.path.join(os.path.dirname(HERE), "data")

    def scale(x):
        with open(os.path.join(DATA, "factor.txt")) as file:
            factor = float(file.read())
        with open(os.path.join(DATA, "link", "more.txt")) as file:
            factor += float(file.read())
        name = "plug" + "in_one"
        factor *= importlib.import_module(name).ONE
        if os.path.exists(os.path.join(DATA, "negate")):
            factor = -factor
        factor += len(os.listdir(os.path.join(DATA, "parts"))) - 1
        return (widen(x) * factor).astype(x.dtype)
    """


@pytest.fixture
def seen(mini: Mini) -> Mini:
    """A repository whose op finds at run time most of what it uses, and was run once."""
    mini.without_causes()
    mini.write(".gitignore", ".gpuemu-cache/\nhome/\n__pycache__/\n")
    mini.write("scripts/scale.py", SCALE)
    mini.write("scripts/plugin_one.py", "ONE = 1\n")
    mini.write("data/factor.txt", "2")
    mini.write("real/more.txt", "1")
    mini.write("data/parts/one", "")
    (mini.root / "data" / "link").symlink_to("../real")
    git(mini, "init", "-q", "-b", "main")
    git(mini, "add", "-A")
    git(mini, "commit", "-q", "-m", "first")
    git(mini, "checkout", "-q", "-b", "topic")
    assert {result["verdict"] for result in mini.run()["results"]} == {"passed"}
    return mini


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file of data": lambda root: (root / "data/factor.txt").write_text("2.0"),
    "a file through a link": lambda root: (root / "real/more.txt").write_text("1.0"),
    "a module found at run time": lambda root: (root / "scripts/plugin_one.py").write_text("ONE=1"),
    "a file looked for in vain": lambda root: (root / "data/negate").write_text(""),
    "a folder that was listed": lambda root: (root / "data/parts/two").write_text(""),
    "a folder in it": lambda root: Mini(root).write("data/parts/sub/file", ""),
    "a file less in it": lambda root: (root / "data/parts/one").unlink(),
    "a file that is gone": lambda root: (root / "data/factor.txt").unlink(),
    "a link that leads elsewhere": lambda root: (
        (root / "data/link").unlink(),
        (root / "data/link").symlink_to("../data"),
    ),
}


def dry_run(mini: Mini) -> str:
    return mini.command("run", "--since", "main", "-n", "--format", "json").stdout


def test_what_a_program_was_seen_to_use_counts(seen: Mini) -> None:
    assert "op:" not in dry_run(seen)
    for name, change in CHANGES.items():
        change(seen.root)
        selected = dry_run(seen)
        assert "op:scale:float32" in selected, name
        assert "relu" not in selected and "total" not in selected, name
        git(seen, "checkout", "-q", "--", ".")
        git(seen, "clean", "-q", "-f", "-d")
    assert "op:" not in dry_run(seen)


@pytest.mark.parametrize("change", ["a file that is gone", "a file looked for in vain"])
def test_it_counts_after_a_run_too(change: str, seen: Mini) -> None:
    """The set of inputs is another then: a file that was missed is there, or the other way."""
    CHANGES[change](seen.root)
    git(seen, "add", "-A")
    git(seen, "commit", "-q", "-m", "change")
    seen.run("scale", code=None)
    report = seen.run("--since", "main", "-B", code=None)
    assert {result["op"] for result in report["results"]} == {"scale"}


def test_what_no_program_uses_touches_nothing(seen: Mini) -> None:
    seen.write("data/other.txt", "1")
    seen.write("docs/page.md", "1")
    (seen.root / "real/beside.txt").write_text("1")
    assert ops(seen, "main") == set()
    git(seen, "add", "-A")
    git(seen, "commit", "-q", "-m", "beside")
    assert ops(seen, "main") == set()


READS = """
    import os

    def scale(x):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "k.dat")) as file:
            return (x * int(file.read())).astype(x.dtype)
    """


@pytest.fixture
def apart(mini: Mini) -> Mini:
    """An op that reads a file which git ignores."""
    mini.without_causes()
    mini.write(".gitignore", ".gpuemu-cache/\nhome/\n__pycache__/\n*.dat\n")
    mini.write("scripts/scale.py", READS)
    mini.write("scripts/k.dat", "3")
    git(mini, "init", "-q", "-b", "main")
    git(mini, "add", "-A")
    git(mini, "commit", "-q", "-m", "first")
    return mini


def test_a_file_that_git_ignores_may_have_changed(apart: Mini) -> None:
    apart.run()
    apart.write("scripts/k.dat", "2")
    report = apart.run("--since", "main", code=1)
    assert [result["op"] for result in report["results"]] == ["scale"]


@pytest.mark.parametrize("other", ["\n# another version\n", "\ndef scale(x): return x * 3\n"])
def test_the_inputs_of_another_version_are_not_those_of_this_one(other: str, apart: Mini) -> None:
    """The last version read the file, or none; what the present one reads has changed."""
    apart.run()
    apart.write("scripts/scale.py", READS)
    path = apart.root / "scripts/scale.py"
    path.write_text(path.read_text() + other)
    apart.run()
    git(apart, "checkout", "-q", "scripts/scale.py")
    apart.write("scripts/k.dat", "2")
    assert "scale" in {r["op"] for r in apart.run("--since", "main", code=1)["results"]}


def test_a_file_that_nobody_names_touches_what_was_never_seen_to_run(apart: Mini) -> None:
    apart.run("total", "relu")
    assert ops(apart, "main") == set()
    apart.write("data/new.txt", "1")
    assert ops(apart, "main") == {"scale"}
    assert ops(apart, "main") == {"scale"}, "it reads a file that git ignores"
    apart.edit("scripts/relu.py", "import json", "import json  # other")
    assert ops(apart, "main", "relu", "total") == {"relu"}
