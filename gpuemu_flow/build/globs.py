"""Find the files that a glob matches, and the folders in which a new entry could match it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuemu_flow.build.plan import CACHE_NAME, look_of
from gpuemu_flow.config.globs import matches


def glob_files(root: Path, pattern: str) -> list[str]:
    """Return the sorted paths of the files that `pattern` matches.

    Paths below `root` are returned relative to it, and all others as absolute paths. Files in our
    own cache are left out, since they change with every run.

    A pattern that ends in a slash also matches entries that are no files, such as folders and
    broken links. A pattern may be absolute. ``**`` also stands for links to folders, which
    `pathlib` passes over.
    """
    anything = pattern.endswith("/")
    base = Path("/") if pattern.startswith("/") else root
    paths = set(base.glob(pattern.strip("/")))
    if "**" in pattern:
        paths.update(
            path
            for path in _behind_links(_fixed(root, pattern))
            if matches(pattern.strip("/"), path.relative_to(base).as_posix())
        )
    found = []
    for path in paths:
        name = path.relative_to(root) if path.is_relative_to(root) else path
        if (anything or path.is_file()) and CACHE_NAME not in name.parts:
            found.append(name.as_posix())
    return sorted(found)


def glob_folders(root: Path, pattern: str) -> set[Path]:
    """Return folders whose listing decides what `pattern` matches."""
    fixed = _fixed(root, pattern)
    folders = {fixed}
    if "**" in pattern or any(c in str(Path(pattern).parent) for c in "*?["):
        folders.update(
            path
            for path in (*fixed.rglob("*"), *_behind_links(fixed))
            if path.is_dir() and CACHE_NAME not in path.relative_to(fixed).parts
        )
    return folders


def _fixed(root: Path, pattern: str) -> Path:
    """Return the folder that a pattern names before its first wildcard."""
    fixed = root
    for part in Path(pattern).parts[:-1]:
        if any(c in part for c in "*?["):
            break
        fixed = fixed / part
    return fixed


def _behind_links(top: Path) -> Iterator[Path]:
    """Yield all paths that are reached from `top` through links to folders.

    A link to a folder that contains the link is not followed, since that would never end.
    """
    pending: list[tuple[Path, bool, tuple[str, ...]]] = [(top, False, (os.path.realpath(top),))]
    while pending:
        start, is_behind, above = pending.pop()
        for folder, inner, names in os.walk(start):
            place = Path(folder)
            if is_behind:
                yield from (place / name for name in (*inner, *names))
            for name in inner:
                link = place / name
                if not link.is_symlink():
                    continue
                target = os.path.realpath(link)
                around = (*above, os.path.realpath(place))
                if not any(f"{each}/".startswith(f"{target}/") for each in around):
                    pending.append((link, True, (*above, target)))


# List the entries of folders, except files that tools leave there.


_NOT_LISTED = re.compile(r"__pycache__|\.gpuemu-cache")


def entries_in(folder: str) -> frozenset[str] | None:
    """Return the names in a folder, each with its kind; None if there is no folder.

    Bytecode of sources and our own cache are left out: they come and go.
    """
    try:
        with os.scandir(folder) as entries:
            return frozenset(
                f"{entry.name}{_kind(entry)}" for entry in entries if is_listed(entry.name)
            )
    except OSError:
        return None


def is_listed(name: str) -> bool:
    """Tell whether entries with this name appear in the results of `entries_in`."""
    return not _NOT_LISTED.fullmatch(name)


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "@"
    return "" if entry.is_file() else "/" if entry.is_dir() else "|"


def _target(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115
    except OSError:
        return ""


SHOWN: dict[str, Callable[[str], object]] = {
    "links": _target,
    "listed": entries_in,
    "looked": look_of,
}
"""Functions that look at a path, by the part of `Discovered` whose entries they check."""
