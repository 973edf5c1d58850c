"""Copies of a reference, beside it and in version control: its op must not see them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.workers.sandbox import rules
from gpuemu_flow.workers.sandbox.fence import Fence
from gpuemu_flow.workers.sandbox.rules import copies_of

COPIES = (
    "ref.py~", "ref.py.bak", "ref.py.orig", ".ref.py.swp", "#ref.py#", "ref.pyc", ".#ref.py",
    ".ipynb_checkpoints/ref-checkpoint.py",
)  # fmt: skip
OTHERS = ("reference.py", "ref.pyi", "xref.py", "ref.txt", "other.pyc", "ref2.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rules.forget()
    return tmp_path / "repo"


def write(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_names_beside_it(root: Path) -> None:
    hidden = write(root / "refs/ref.py")
    for name in (*COPIES, *OTHERS):
        write(root / "refs" / name)
    built = [
        write(root / "build/lib.linux/refs/ref.py"), write(root / "build/lib/ref.py"),
        write(root / "dist/w.whl"), write(root / "dist/w.tar.gz"), write(root / "htmlcov/ref.html"),
    ]  # fmt: skip
    for name in ("build/lib/other.py", "build/tmp/ref.py", "dist/notes.txt"):
        write(root / name)
    wanted = {f"{root}/refs/{name}" for name in COPIES} | {*built[:4], f"{root}/htmlcov"}
    assert set(copies_of([hidden], str(root))) == wanted


def test_a_program_shares_its_own_files_and_the_packages_around_them(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    names = ("pkg/__init__.py", "pkg/ref.py", "pkg/in/__init__.py", "pkg2/__init__.py", "pk/r.py")
    references = frozenset(f"{root}/{name}" for name in names)
    fence = Fence("off", root, references=references)
    (root / "pkg").mkdir()
    (root / "pkg/link.py").symlink_to("ref.py")
    for own, shared in (
        ([], ()),
        (["pkg/op.py"], names[:1]),
        (["pkg/in/op.py"], (names[0], names[2])),
        (["pkg/ref.py"], names[:2]),
        (["pkg2.py", "p/op.py"], ()),
        (["pkg2/op.py", "pk/r.py"], (names[4], names[3])),
        (["pkg/link.py"], ()),
    ):
        found = fence.shared(f"{root}/{name}" for name in own)
        assert found == tuple(f"{root}/{name}" for name in shared), own


def test_checkouts_of_the_same_repository(root: Path, tmp_path: Path) -> None:
    """The workspace is a worktree, whose repository is a clone and has another worktree."""
    hidden = write(root / "ref.py")
    main, donor, lent = tmp_path / "main/.git", tmp_path / "donor/.git", tmp_path / "lent/objects"
    write(root / ".git", f"gitdir: {main}/worktrees/ours\n")
    write(main / "worktrees/ours/commondir", "../..\n")
    write(main / "worktrees/ours/gitdir", f"{root}/.git\n")
    write(main / "worktrees/more/gitdir", f"{tmp_path}/more/.git\n")
    write(main / "objects/info/alternates", f"{lent}\n")
    write(main / "config", f'[remote "origin"]\n\turl = {donor.parent}\n')
    write(donor / "objects/x")
    seen = [write(tmp_path / f"{tree}/ref.py") for tree in ("main", "donor", "more")]
    found = {str(Path(path).resolve()) for path in copies_of([hidden], str(root))}
    git = {f"{root}/.git", f"{main}/worktrees/ours", *map(str, (main, donor, lent.parent))}
    assert found == {*seen, *git}
    rules.forget()
    outside = write(tmp_path / "apart/ref.py")
    write(tmp_path / "apart/.hg/store")
    assert set(copies_of([outside], str(root))) == {f"{tmp_path}/apart/.hg"}
