"""Write several files into a folder, either all or none; replace files only on request."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from gpuemu_flow.model.errors import Problem, StoreError, UsageError

PREFIX = ".gpuemu-init-"
_SHOWN = 20


def install(
    files: Mapping[str, bytes], target: Path, *, force: bool, added_to: Collection[str] = ()
) -> list[str]:
    """Write `files` below `target`, and return the paths of those that were written. Files that
    exist with the same content are left alone. The others are written to a temporary folder on the
    same file system, and moved from there in order. If anything fails, the files already moved are
    removed, and the files that they replaced are restored. If the process is killed between the
    moves, the files moved so far are complete and the others are missing. Another call then adds
    the missing ones. Raises UsageError: ``init-exists``, ``init-not-a-folder``; nothing was
    written. Raises StoreError: ``init-not-writable``; none of the files is left."""
    replaceable = set(files) if force else set(added_to)
    todo = _look(files, target, replaceable)
    if not todo:
        return []
    existing = next(p for p in (target, *target.absolute().parents) if p.is_dir())
    undo: list[Callable[[], object]] = []
    staging = ""
    try:
        staging = tempfile.mkdtemp(prefix=PREFIX, dir=existing)
        for number, path in enumerate(todo):
            made = Path(staging, str(number))
            made.write_bytes(files[path])
            made.chmod(0o644)
        old = Path(staging, "old")
        old.mkdir()
        for number, path in enumerate(todo):
            backup = old / str(number) if path in replaceable else None
            _move(Path(staging, str(number)), target / path, backup, undo)
    except BaseException as error:
        for step in reversed(undo):
            with contextlib.suppress(OSError):
                step()
        if isinstance(error, OSError):
            raise StoreError(_disk_problem(error, target)) from error
        raise
    finally:
        if staging:
            shutil.rmtree(staging, ignore_errors=True)
    return todo


def _disk_problem(error: OSError, target: Path) -> Problem:
    message = f"cannot write into {target}: {error.strerror or error}; nothing was changed"
    return Problem("init-not-writable", message, "check its owner, its mode and the free space")


def _look(files: Mapping[str, bytes], target: Path, replaceable: Collection[str]) -> list[str]:
    """Return the paths of the files to write. Files that exist with the same content are left out.
    Files that exist with other content must be in `replaceable`. If some cannot be written, raise
    UsageError with the first few reasons."""
    problems, todo = [], []
    root = Path(os.path.realpath(target))
    for path, content in files.items():
        place = target / path
        parent = Path(os.path.realpath(place.parent))
        blocked = next((p for p in (parent, *parent.parents) if os.path.lexists(p)), parent)
        if not blocked.is_dir():
            problems.append(
                Problem("init-not-a-folder", f"{blocked} is no folder", "move it away", file=path)
            )
        elif not parent.is_relative_to(root):
            problems.append(
                Problem("init-not-a-folder", f"{place.parent} leads out of {target}",
                        "it is a link; move it away", file=path)
            )  # fmt: skip
        elif place.is_dir() and not place.is_symlink():
            problems.append(
                Problem("init-not-a-folder", f"{place} is a folder", "move it away", file=path)
            )
        elif not os.path.lexists(place):
            todo.append(path)
        elif not _holds(place, content):
            todo.append(path)
            if path not in replaceable:
                hint = "--force replaces it; -t writes elsewhere"
                problems.append(Problem("init-exists", "the file exists already", hint, path))
    if problems:
        raise UsageError(*problems[:_SHOWN])
    return todo


def _holds(place: Path, content: bytes) -> bool:
    try:
        return place.is_file() and not place.is_symlink() and place.read_bytes() == content
    except OSError:
        return False


def _move(made: Path, place: Path, backup: Path | None, undo: list[Callable[[], object]]) -> None:
    for folder in reversed([p for p in place.parents if not p.exists()]):
        folder.mkdir()
        undo.append(folder.rmdir)
    if backup is not None and os.path.lexists(place):
        place.rename(backup)
        undo.append(functools.partial(backup.replace, place))
    try:
        # Unlike a rename, a link fails if another process has created the file meanwhile.
        os.link(made, place)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if os.path.lexists(place):
            raise
        made.rename(place)
    undo.append(place.unlink)
