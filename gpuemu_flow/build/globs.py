"""Find files: what a glob matches, what a folder lists, links on a path, an interpreter's files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from gpuemu_flow.build.plan import CACHE_NAME, look_of
from gpuemu_flow.config.paths import matches


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


# Find the symbolic links that the path of a file passes through.


_MOST_LINKS = 40


def has_link(path: str, known: dict[str, bool]) -> bool:
    """Tell whether a path passes through a symbolic link or ``..``; cache answers in `known`."""
    above = known.get(path.rpartition("/")[0])
    if above is not None and path not in known:
        known[path] = above or os.path.islink(path)  # noqa: PTH114 - hot
        return known[path] or "/../" in path
    folders: list[str] = []
    place, found = path, False
    while len(place) > 1:
        if place in known:
            found = known[place]
            break
        folders.append(place)
        if os.path.islink(place):  # noqa: PTH114 - hot
            found = True
            break
        folder = os.path.dirname(place)  # noqa: PTH120 - hot
        place = folder if folder != place else ""
    known.update(dict.fromkeys(folders, found))
    return found or "/../" in path


def links_of(path: str) -> Iterator[str]:
    """Yield the symbolic links that lead from a path to its file, in the order of following."""
    for _ in range(_MOST_LINKS):
        place, rest = "", path.strip("/").split("/")
        for n, part in enumerate(rest):
            if part == "..":
                place = os.path.dirname(place)  # noqa: PTH120
                continue
            if part in ("", "."):
                continue
            place = f"{place}/{part}"
            try:
                target = os.readlink(place)  # noqa: PTH115
            except OSError:
                continue
            yield place
            head = target if target.startswith("/") else f"{os.path.dirname(place)}/{target}"  # noqa: PTH120
            path = "/".join((head, *rest[n + 1 :]))
            break
        else:
            return


# The workspace's files that belong to the configured interpreter.


_LIBRARY = "/python3.*"
"""End of a pattern for everything in the libraries of one virtual environment."""


def interpreter_files(python: str, root: Path) -> list[str]:
    """Return the workspace's files that an interpreter opens, whatever program it runs."""
    folder = os.path.dirname(python)  # noqa: PTH120 - of the path as written, as Python itself does
    prefix = os.path.dirname(folder)  # noqa: PTH120
    found = {
        python,
        os.path.realpath(python),
        *links_of(python),
        f"{folder}/pyvenv.cfg",
        f"{prefix}/pyvenv.cfg",
        f"{prefix}/lib{_LIBRARY}",
        f"{prefix}/lib64{_LIBRARY}",
    }
    inside = f"{root}/"
    normal = map(os.path.normpath, found)
    return sorted(path.removeprefix(inside) for path in normal if path.startswith(inside))


def without_installed(names: Iterable[str], known: Collection[str]) -> set[str]:
    """Return the names that are not in `known` and match no pattern of `interpreter_files`."""
    beginnings = tuple(name[:-1] for name in known if f"/{name}".endswith(_LIBRARY))
    return {name for name in names if not name.startswith(beginnings)}.difference(known)
