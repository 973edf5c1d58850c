"""The cache's files: what lies in their place is refused, replaced or removed, never followed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest
from for_each import for_each

from gpuemu_flow.model.errors import CancelledRunError, StoreError
from gpuemu_flow.store.private_files import PrivateFolder, disk_errors, output_locks, write_atomic

OUTSIDE = b"of somebody else"
TAKEN = "cache-not-writable: cannot write {path}: there is no {} in its place"
LINK, PIPE, SOCKET, TWIN = (
    f"cache-unsafe-entry: cannot use an entry of the cache: {what}"
    for what in (
        "a link lies there", "a pipe lies there", "a socket lies there",
        "a file that has another name elsewhere",
    )
)  # fmt: skip
NO_FILE, NO_FOLDER = TAKEN.replace("{}", "file"), TAKEN.replace("{}", "folder")
IS_FOLDER = "cache-not-writable: cannot write {path}: Is a directory"
KINDS = ("file", "folder", "link", "dangling", "pipe", "socket", "twin", "absent")
OPENED = (b"ab", NO_FILE, LINK, LINK, PIPE, SOCKET)
ACTS: dict[str, tuple[Callable[[PrivateFolder, Path], object], tuple[object, ...]]] = {
    "read": (lambda files, path: files.read(path), (*OPENED, OUTSIDE, FileNotFoundError)),
    "append": (
        lambda files, path: (files.append(path, b"b"), path.read_bytes())[1],
        (b"abb", *OPENED[1:], TWIN, b"b"),
    ),
    "touch": (
        lambda files, path: (files.touch(path) == path.stat().st_mtime_ns, path.read_bytes())[1],
        (b"", *OPENED[1:], TWIN, b""),
    ),
    "write": (
        lambda files, path: (files.write(path, b"new"), path.read_bytes())[1],
        (b"new", IS_FOLDER, *[b"new"] * 6),
    ),
    "check_file": (
        lambda files, path: files.check_file(path),
        (None, NO_FILE, LINK, LINK, PIPE, SOCKET, TWIN, None),
    ),
    "check": (
        lambda files, path: files.check(path),
        (NO_FOLDER, None, LINK, LINK, PIPE, SOCKET, NO_FOLDER, None),
    ),
    "make": (
        lambda files, path: (files.make(path), path.is_dir())[1],
        (NO_FOLDER, True, LINK, LINK, PIPE, SOCKET, NO_FOLDER, True),
    ),
    "remove": (
        lambda files, path: (files.remove(path), os.path.lexists(path))[1],
        (False, IS_FOLDER, *[False] * 6),
    ),
    "remove_tree": (
        lambda files, path: (files.remove_tree(path), os.path.lexists(path))[1],
        (False,) * 8,
    ),
    "list_files": (
        lambda files, path: [found.name for found in files.list_files(path.parent, "y")],
        (["entry"], [], [], [], [], [], ["entry"], []),
    ),
}  # fmt: skip


def place(kind: str, path: Path, outside: Path) -> None:
    if kind == "file":
        path.write_bytes(b"ab")
    elif kind == "folder":
        path.mkdir()
        (path / "inner").write_bytes(b"")
    elif kind in ("link", "dangling"):
        path.symlink_to(outside if kind == "link" else "nowhere")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        os.mknod(path, 0o140600)
    elif kind == "twin":
        os.link(outside, path)


@for_each("act", ACTS)
def test_what_lies_in_the_place_of_an_entry(tmp_path: Path, act: str) -> None:
    files, (call, wanted) = PrivateFolder(tmp_path / act), ACTS[act]
    for kind, expected in zip(KINDS, wanted, strict=True):
        outside = tmp_path / "outside"
        outside.write_bytes(OUTSIDE)
        path = files.root / kind / "entry"
        files.make(path.parent)
        place(kind, path, outside)
        try:
            found = call(files, path)
        except StoreError as error:
            problem = error.problems[0]
            found = f"{problem.slug}: {problem.message}"
        except FileNotFoundError as error:
            found = type(error)
        said = expected.format(path=path) if isinstance(expected, str) else expected
        assert found == said, (act, kind)
        assert outside.read_bytes() == OUTSIDE, (act, kind)


@for_each("act", ACTS)
def test_nothing_is_reached_through_a_link(tmp_path: Path, act: str) -> None:
    """Neither a folder below the cache, nor the cache itself unless the environment allows it."""
    (tmp_path / "elsewhere").mkdir(exist_ok=True)
    (tmp_path / act).mkdir()
    (tmp_path / act / "sub").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{act}-link").symlink_to(tmp_path / "elsewhere")
    for root, path in ((act, "sub/entry"), (act, "sub/a/entry"), (f"{act}-link", "entry")):
        with pytest.raises(StoreError, match="cache-unsafe-entry"):
            ACTS[act][0](PrivateFolder(tmp_path / root), tmp_path / root / path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@for_each(("value", "allowed"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_a_cache_that_is_a_link_may_be_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, allowed: bool
) -> None:
    (tmp_path / "real").mkdir(exist_ok=True)
    root = tmp_path / f"link {value}"
    root.symlink_to(tmp_path / "real")
    monkeypatch.setenv("GPUEMU_CACHE_LINK", value)
    if allowed:
        PrivateFolder(root).write(root / "entry", b"")
        return
    with pytest.raises(StoreError, match="the cache folder is a link"):
        PrivateFolder(root).write(root / "entry", b"")


def test_only_this_user_reads_what_is_made(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        files = PrivateFolder(tmp_path / "new" / "cache")
        files.write(files.root / "a" / "written", b"abc")
        files.append(files.root / "a" / "appended", b"de")
        files.touch(files.root / "a" / "touched")
        with files.temporary(files.root / "a", "t") as temporary:
            assert temporary.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)
    assert not temporary.exists()
    for path in (files.root, *files.root.rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert files.read(files.root / "a" / "written", 3) == b"abc"
    with pytest.raises(StoreError, match="a file of more than 0 MiB"):
        files.read(files.root / "a" / "written", 2)
    (files.root / "a" / "link").symlink_to(files.root / "a" / "written")
    names = [path.name for path in files.list_files(files.root, "ed", depth=1)]
    assert sorted(names) == ["appended", "touched"]
    assert list(files.list_files(files.root, "")) == []
    assert list(files.list_files(files.root / "none", "")) == []
    assert files.volume(files.root, "", depth=1) == files.volume(files.root / "a", "") == 5


def test_who_makes_the_same_file_waits_and_is_told_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    (tmp_path / "link").symlink_to(tmp_path)
    told: list[str] = []
    cancel = Event()

    def tell(holder: str) -> None:
        told.append(holder)
        cancel.set()

    with output_locks([tmp_path / "b", tmp_path / "a"], Event(), told.append):
        with pytest.raises(CancelledRunError), output_locks([tmp_path / "link/b"], cancel, tell):
            pass
        with output_locks([tmp_path / "c"], cancel, tell):
            pass
    with output_locks([tmp_path / "a", tmp_path / "b"], cancel, tell):
        pass
    assert told == [f"process {os.getpid()}, which makes {tmp_path}/b"]
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with output_locks([tmp_path / "a"], cancel, tell), output_locks([tmp_path / "a"], cancel, tell):
        pass


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    for data in (b"one", b"two"):
        write_atomic(path, data)
        assert path.read_bytes() == data
    path.parent.joinpath("taken").mkdir()
    with pytest.raises(StoreError, match="cache-not-writable"):
        write_atomic(path.parent / "taken", b"three")
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["file", "taken"]


@for_each(
    ("number", "slug"),
    [
        *((n, "cache-disk-full") for n in (errno.ENOSPC, errno.EDQUOT)),
        *((n, "cache-io-error") for n in (errno.EIO, errno.ESTALE)),
        *((n, "cache-not-writable") for n in (errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG)),
        (errno.ENOENT, ""),
        (errno.EMFILE, ""),
    ],
)
def test_errors_of_the_disk(number: int, slug: str) -> None:
    with pytest.raises((StoreError, OSError)) as caught, disk_errors("there"):
        raise OSError(number, os.strerror(number))
    assert getattr(caught.value, "slug", "") == slug
