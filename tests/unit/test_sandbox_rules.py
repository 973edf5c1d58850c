"""From "all but these" to what is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.workers.sandbox import spec
from gpuemu_flow.workers.sandbox.rules import AccessRules, rules_for
from gpuemu_flow.workers.sandbox.spec import Sandbox


def made(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def rules(root: Path, *, home: str = "", **fields: tuple[str, ...]) -> AccessRules:
    absolute = {n: tuple(str(root / p) for p in paths) for n, paths in fields.items()}
    return rules_for(Sandbox("landlock 7", str(root), **absolute), "/scratch", home)


def reads(found: AccessRules, path: Path) -> bool:
    """Tell whether a rule on the path, or on a folder around it, allows to read it."""
    real = os.path.realpath(path)
    return any(real == rule or real.startswith(f"{rule}/") for rule in found.read)


def writes(found: AccessRules, path: Path) -> bool:
    real = os.path.realpath(path)
    return any(real == rule or real.startswith(f"{rule}/") for rule in found.write)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "workspace"
    made(root, "scripts/op.py", "scripts/ref.py", "scripts/deep/a.py", "cache/blob", "data/t.bin")
    return root


def test_all_but_what_is_hidden(root: Path) -> None:
    found = rules(root, hidden=("scripts/ref.py", "cache"))
    for name in ("scripts/op.py", "scripts/deep/a.py", "data/t.bin"):
        assert reads(found, root / name), name
    for name in ("scripts/ref.py", "cache/blob", "scripts", "."):
        assert not reads(found, root / name), name
    assert reads(found, Path("/usr/bin/env"))
    assert not any(writes(found, root / name) for name in ("scripts/op.py", "data/t.bin"))


def test_bytecode_of_a_hidden_file(root: Path) -> None:
    made(root, "scripts/__pycache__/ref.cpython-311.pyc")
    found = rules(root, hidden=("scripts/ref.py",))
    assert not reads(found, root / "scripts/__pycache__/ref.cpython-311.pyc")


def test_other_names_of_a_hidden_file(root: Path) -> None:
    os.link(root / "scripts/ref.py", root / "data/innocent.py")
    (root / "data/link.py").symlink_to(root / "scripts/ref.py")
    (root / "all").symlink_to(root / "cache")
    found = rules(root, hidden=("scripts/ref.py", "cache"))
    assert not reads(found, root / "data/innocent.py")
    assert not reads(found, root / "data/link.py")
    assert not reads(found, root / "all/blob")
    assert reads(found, root / "data/t.bin")


def test_a_file_that_is_shown_in_a_hidden_folder(root: Path) -> None:
    found = rules(root, hidden=("cache",), shown=("cache/blob",))
    assert reads(found, root / "cache/blob")
    assert not reads(found, root / "cache/other")


def test_what_is_writable_holds_nothing_that_decides_a_verdict(root: Path) -> None:
    found = rules(
        root, hidden=("scripts/ref.py",), read_only=("scripts/op.py",), writable=("scripts",)
    )
    assert writes(found, root / "scripts/deep/new.py")
    assert not writes(found, root / "scripts/ref.py")
    assert not writes(found, root / "scripts/op.py")
    assert not writes(found, root / "data/t.bin")


def test_credentials_and_version_control(root: Path, tmp_path: Path) -> None:
    made(root, ".git/config", ".git/objects/ab/cd")
    home = tmp_path / "home"
    made(home, ".ssh/id_rsa", ".aws/credentials", ".config/gh/hosts.yml", ".config/other", "plain")
    found = rules(root, home=str(home))
    for name in (".ssh/id_rsa", ".aws/credentials", ".config/gh/hosts.yml"):
        assert not reads(found, home / name), name
    assert reads(found, home / "plain")
    assert reads(found, home / ".config/other")
    assert not reads(found, root / ".git/objects/ab/cd")


def test_a_worktrees_history_lies_elsewhere(root: Path, tmp_path: Path) -> None:
    made(tmp_path, "main/.git/worktrees/w/HEAD", "main/.git/objects/ab/cd", "main/plain")
    (tmp_path / "main/.git/worktrees/w/commondir").write_text("../..\n")
    (root / ".git").write_text(f"gitdir: {tmp_path}/main/.git/worktrees/w\n")
    found = rules(root)
    assert not reads(found, tmp_path / "main/.git/objects/ab/cd")
    assert reads(found, tmp_path / "main/plain")


def test_devices_are_those_that_anyone_may_use(root: Path) -> None:
    found = rules(root)
    assert "/dev/null" in found.devices
    devices = [path for path in Path("/dev").iterdir() if not path.is_symlink()]
    assert not any(reads(found, path) for path in devices if path.name != "shm")
    assert "/" not in found.read


@pytest.mark.parametrize(
    ("level", "missing", "shown"),
    [
        ("landlock 7, seccomp", (), "landlock 7, seccomp"),
        ("landlock 1", ("seccomp",), "landlock 1; no seccomp"),
        ("seccomp", ("landlock",), "seccomp; no landlock"),
        ("none", ("landlock", "seccomp"), "none; no landlock, no seccomp"),
        ("off", (), "off"),
    ],
)
def test_levels(level: str, missing: tuple[str, ...], shown: str) -> None:
    assert spec.lacks(level) == missing
    assert spec.shown_level(level) == shown
    assert spec.level_of(spec.landlock_version(level), seccomp=spec.has_seccomp(level)) in (
        level,
        "none",
    )
