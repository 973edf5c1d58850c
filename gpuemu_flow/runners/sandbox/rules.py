"""Convert "all but these" to a list of allowed paths, the only form that Landlock takes.

In every folder on the way from the root to an excluded path, all other entries are allowed by name.
So files that are created there later are excluded, too.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.plain_paths import real_paths
from gpuemu_flow.runners.sandbox.listings import Listings
from gpuemu_flow.runners.sandbox.private import copies_of, forget, private_paths
from gpuemu_flow.runners.sandbox.spec import SCRATCH, Sandbox

DEVICES = ("null", "zero", "full", "random", "urandom")
PROCESSORS = ("nvidia", "dri", "kfd", "dxg", "accel")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - semaphores and shared arrays lie there
_MOST_LOOKED = 200_000
_OF_TRUSTED = (SCRATCH, "torchinductor_", "gpuemu-flow-")
"""Prefixes of folders, in the folder of temporary files, that an op must not see."""


@dataclass(frozen=True)
class AccessRules:
    """Rights of a program, by path."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    opened: Mapping[str, int] = field(default_factory=dict)


def rules_for(
    sandbox: Sandbox,
    scratch: str,
    home: str,
    compiled: Iterable[str] = (),
    listings: Listings | None = None,
) -> AccessRules:
    """List the rights of a program for the files that exist now."""
    forget()
    listings = listings or Listings()
    listings.begin()
    scratches = frozenset(_others_scratch(scratch))
    private = (*private_paths(sandbox.root, home), "/dev", *compiled)
    whole = [sandbox.root] if sandbox.closed else []
    hidden = _Excluded(listings, [*_with_copies(sandbox), *private, *whole], scratches)
    read_only = _Excluded(listings, sandbox.read_only, hidden.paths)
    below = frozenset(path for path in hidden.paths if _is_in_memory(path))
    in_memory = _Excluded(listings, (), below)
    read = [*hidden.rest("/"), *in_memory.rest(_SHARED_MEMORY)]
    # With a closed workspace, the interpreter may be read, but not the folders on its path.
    for path in _needed(*(() if sandbox.closed else sys.path)):
        # The interpreter may be in a hidden home folder: another user's, or one that cannot be
        # listed.
        read += hidden.without_own(path)
    starts = map(os.path.realpath, outermost(sandbox.writable))
    read_only_in_memory = _Excluded(listings, sandbox.read_only, below)
    write = [
        path
        for start in starts
        for path in (read_only_in_memory if _is_in_memory(start) else read_only).rest(start)
    ]
    closed = _Excluded(listings, sandbox.read_only).paths
    opened = map(os.path.realpath, {*sandbox.shown}.intersection(sandbox.writable))
    write += [path for path in opened if path not in closed]
    # A workspace, or scratch folders, may lie there.
    owned = _Excluded(listings, (sandbox.root, *sandbox.read_only), below | scratches)
    return AccessRules(
        read=(*read, *map(os.path.realpath, sandbox.shown)),
        write=(scratch, *owned.rest(_SHARED_MEMORY), *write),
        devices=_devices(),
        opened=listings.opened,
    )


def _is_in_memory(path: str) -> bool:
    return path.startswith(f"{_SHARED_MEMORY}/")


def _others_scratch(scratch: str) -> list[str]:
    """Return the temporary folders to hide from an op, with links resolved.

    They hold the scratch folders of all workers, compiled references and, for a user without a home
    folder, the daemon's files. Folders that are created beside them later are hidden as well,
    since the sandbox permits only those entries of their parent folder that exist now.
    """
    folder, name = os.path.split(os.path.dirname(scratch))  # noqa: PTH120
    if not name.startswith(SCRATCH):
        return []
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if e.name.startswith(_OF_TRUSTED)]
    except OSError:
        return [os.path.realpath(f"{folder}/{name}")]
    return [os.path.realpath(e.path) if e.is_symlink() else e.path for e in found]


def outermost(paths: Iterable[str]) -> list[str]:
    """Leave out each path that lies below another of the paths, and return the rest, sorted.

    The rights to an outer folder include all that lies below it, so the inner paths are not needed.
    Nor can they be trusted: an op that may write to the outer folder could have replaced an inner
    path by a link to another file.
    """
    found = sorted({os.path.normpath(path) for path in paths})
    return [p for p in found if not any(above in found for above in _above(p))]


def _needed(*packages: str) -> list[str]:
    """Return the paths of the interpreter and of packages."""
    return sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, *packages) if p})


def _devices() -> tuple[str, ...]:
    """Return devices that anyone may use.

    Disks are left out, since they hold every file, and so are terminals, whose input could be
    forged.
    """
    try:
        names = sorted(os.listdir("/dev"))  # noqa: PTH208
    except OSError:
        names = []
    return tuple(f"/dev/{n}" for n in names if n in DEVICES or n.startswith(PROCESSORS))


def _with_copies(sandbox: Sandbox) -> Iterator[str]:
    """Yield hidden files, their copies and bytecode, and other hard links to them."""
    linked: set[tuple[int, int]] = set()
    yield from sandbox.hidden
    yield from copies_of(sandbox.hidden, sandbox.root)
    for folder in {os.path.dirname(path) for path in sandbox.hidden if path.endswith(".py")}:  # noqa: PTH120
        yield from (f"{folder}/__pycache__", _bytecode_folder(folder))
    for path in sandbox.hidden:
        found = _stat(path)
        if found is not None and found.st_nlink > 1 and not os.path.isdir(path):  # noqa: PTH112
            linked.add((found.st_dev, found.st_ino))
    if linked:
        yield from _other_names(sandbox.root, linked)


def _bytecode_folder(folder: str) -> str:
    """Return the folder below ``PYTHONPYCACHEPREFIX`` for the bytecode of a folder's modules."""
    try:
        return os.path.dirname(importlib.util.cache_from_source(f"{folder}/module.py"))  # noqa: PTH120
    except (NotImplementedError, ValueError):
        return f"{folder}/__pycache__"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _other_names(root: str, wanted: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the files in the workspace that are hard links to wanted files."""
    looked = 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = f"{folder}/{name}"
            found = _stat(path)
            if found is not None and (found.st_dev, found.st_ino) in wanted:
                yield path
        looked += len(names)
        if looked > _MOST_LOOKED:
            return


class _Excluded:
    """Paths that are excluded from the allowed ones."""

    def __init__(
        self, listings: Listings, paths: Iterable[str], resolved: frozenset[str] = frozenset()
    ) -> None:
        self._listings = listings
        self.paths = resolved.union(real_paths(paths))

    @cached_property
    def _above(self) -> set[str]:
        found = set[str]()
        for path in self.paths:
            for above in _above(path):
                if above in found:
                    break  # with all that lie above it
                found.add(above)
        return found

    def rest(self, start: str) -> list[str]:
        """Return the outermost paths, at or below `start`, that contain no excluded path."""
        found: list[str] = []
        if not any(path in self.paths for path in (start, *_above(start))):
            self._add_rest(start, found)
        return found

    def without_own(self, start: str) -> list[str]:
        """Return the allowed paths at or below a path `start` that lies in an excluded folder.

        The exclusion of that folder is ignored: the result holds the outermost paths that contain
        no excluded path. It is empty if `start` itself is excluded. It is also empty if `start`
        lies in no excluded folder, since `rest` returns the paths in that case.
        """
        found: list[str] = []
        if start not in self.paths and any(path in self.paths for path in _above(start)):
            self._add_rest(start, found)
        return found

    def _add_rest(self, start: str, found: list[str]) -> None:
        if start not in self._above:
            found.append(start)
            return
        excluded, above = self.paths, self._above
        try:
            below = self._listings.below(start)
        except OSError:
            return
        for path in below:  # usually plain files, sometimes thousands
            if path in excluded:
                continue
            if path in above:
                self._add_rest(path, found)
            else:
                found.append(path)


def _above(path: str) -> Iterator[str]:
    """Yield all folders above an absolute path, up to the root."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path
