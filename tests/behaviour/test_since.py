"""`--since GITREF`: the tasks that a change touches, in real repositories."""

from __future__ import annotations

import subprocess

import pytest
from mini_workspace import Mini

SEEDED = False


def git(mini: Mini, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false",
         *arguments],
        cwd=mini.root, env=mini.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def kept(mini: Mini) -> Mini:
    mini.without_causes()
    mini.write(".gitignore", ".gpuemu-cache/\nhome/\n")
    git(mini, "init", "-q", "-b", "main")
    git(mini, "add", "-A")
    git(mini, "commit", "-q", "-m", "first")
    return mini


def ops(mini: Mini, ref: str, *more: str) -> set[str]:
    return {result["op"] for result in mini.run("--since", ref, *more)["results"]}


def test_what_a_change_touches_is_what_runs(kept: Mini) -> None:
    """In a fresh clone, too: nothing is known of it but its files."""
    nothing = kept.command("run", "--since", "main")
    assert "there is nothing to do" in nothing.stdout
    kept.edit("scripts/relu.py", "import json", "import json  # not committed")
    assert ops(kept, "main") == {"relu"}
    git(kept, "checkout", "-q", "-b", "topic")
    git(kept, "commit", "-q", "-a", "-m", "relu")
    assert ops(kept, "main") == {"relu"}
    assert ops(kept, "HEAD") == set()
    kept.edit("scripts/common.py", "import numpy as np", "import numpy as np  # imported by two")
    assert ops(kept, "main") == {"relu", "scale", "total"}
    assert ops(kept, "HEAD", "scale") == {"scale"}


def test_what_happened_on_the_other_side_is_no_part_of_a_change(kept: Mini) -> None:
    git(kept, "checkout", "-q", "-b", "topic")
    kept.edit("scripts/relu.py", "import json", "import json  # ours")
    git(kept, "commit", "-q", "-a", "-m", "ours")
    git(kept, "checkout", "-q", "main")
    kept.write("scripts/scale.py", (kept.root / "scripts/scale.py").read_text() + "\n# theirs\n")
    git(kept, "commit", "-q", "-a", "-m", "theirs")
    git(kept, "checkout", "-q", "topic")
    assert ops(kept, "main") == {"relu"}


@pytest.mark.ci
def test_the_configuration_counts_by_its_parts(kept: Mini) -> None:
    kept.edit("gpuemu.toml", "M = [1, 3, 8]", "M = [1, 3, 9]")
    assert ops(kept, "main") == {"total"}
    kept.edit("gpuemu.toml", "M = [1, 3, 9]", "M = [1, 3, 8]")
    kept.edit("gpuemu.toml", '[project]\nname = "mini"', '[project]\nname = "other"')
    assert ops(kept, "main") == set()
    kept.edit("gpuemu.toml", "seed = 42", "seed = 43")
    assert ops(kept, "main") == {"scale", "total", "relu"}


def test_untracked_and_deleted_files_count(kept: Mini) -> None:
    kept.edit("gpuemu.toml", 'name = "relu"', 'name = "relu"\ndepends = ["data/*"]')
    kept.write("data/first.txt", "1")
    git(kept, "add", "-A")
    git(kept, "commit", "-q", "-m", "depends")
    kept.write("data/second.txt", "2")
    assert ops(kept, "main") == {"relu"}
    (kept.root / "data/second.txt").unlink()
    assert ops(kept, "main") == set()
    (kept.root / "data/first.txt").unlink()
    assert ops(kept, "main") == {"relu"}


def test_a_commit_may_lack_files_that_the_fence_names(kept: Mini) -> None:
    """Its copy has no folder that is not committed, and lies where nothing else is."""
    kept.write("submissions/a.txt", "1")
    kept.write(".gitignore", "submissions\n")
    sandbox = '[sandbox]\napart = ["submissions"]\nhidden = ["submissions/a.txt"]\n\n'
    kept.edit("gpuemu.toml", "[validation]", f"{sandbox}[validation]")
    git(kept, "add", "-A")
    git(kept, "commit", "-q", "-m", "fence")
    assert ops(kept, "HEAD") == set()
    kept.write("scripts/scale.py", (kept.root / "scripts/scale.py").read_text() + "\n# new\n")
    assert ops(kept, "HEAD") == {"scale"}


def test_without_a_configuration_then_everything_is_new(kept: Mini) -> None:
    kept.write("gpuemu.toml", (kept.root / "gpuemu.toml").read_text())
    text = (kept.root / "gpuemu.toml").read_text()
    kept.write("gpuemu.toml", "[[ops]]\nname = 3\n")
    git(kept, "commit", "-q", "-a", "-m", "broken")
    (kept.root / "gpuemu.toml").write_text(text)
    assert ops(kept, "HEAD") == {"scale", "total", "relu"}
    git(kept, "rm", "-q", "--cached", "gpuemu.toml")
    git(kept, "commit", "-q", "-m", "none")
    assert ops(kept, "HEAD", "scale") == {"scale"}


@pytest.mark.parametrize(
    ("ref", "slug"),
    [
        ("no-such", "bad-git-ref"),
        ("--output=x", "bad-git-ref"),
        ("", ""),
        ("HEAD:a", "bad-git-ref"),
    ],
)
def test_a_commit_that_is_not_there(kept: Mini, ref: str, slug: str) -> None:
    done = kept.command("run", f"--since={ref}", code=2 if slug else 0)
    assert slug in done.stderr
    assert not (kept.root / "x").exists()


def test_outside_of_a_repository_and_without_git(mini: Mini) -> None:
    mini.env["GIT_CEILING_DIRECTORIES"] = str(mini.root.parent)
    assert "not-a-repository" in mini.command("run", "--since", "main", code=2).stderr
    mini.env["PATH"] = ""
    mini.warm = False
    assert "git-missing" in mini.command("run", "--since", "main", code=2).stderr
