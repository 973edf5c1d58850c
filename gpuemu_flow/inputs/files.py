"""Digests of workspace files, each cached under the file's stamp: its times, size and inode."""

from __future__ import annotations

import hashlib
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuemu_flow.inputs.sights import Sights
from gpuemu_flow.store.private_files import LARGEST, PrivateFolder
from gpuemu_flow.types import Json

ABSENT = ""
NO_TARGETS = "\0"  # no path begins so
_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age above which a file's stamp identifies its content: two changes may share a clock tick."""
_MOST_KNOWN = 1 << 13

_Entry = tuple[str, str]  # stamp and digest
Stamp = tuple[int, int, int, int]
"""(mtime_ns, ctime_ns, size, inode). ctime cannot be set back, so restored mtimes are noticed."""


_known: dict[tuple[int, Stamp], str] = {}
"""Digests that this process has made, by device and stamp: Python's library, which has two names
and fifty megabytes, is read once, however many workspaces are opened."""


def stamp_of(path: str | Path) -> Stamp | None:
    """Return the stamp of a regular file, or None when there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for every file of a workspace
    except (OSError, ValueError):
        return None
    return _stamp(status)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _stamp_text(path: str) -> str:
    """Return a file's stamp as `plan.look_into` writes it; empty when there is none."""
    stamp = stamp_of(path)
    return "" if stamp is None else ",".join(map(str, stamp))


def _numbers(stamp: str) -> Stamp:
    """Convert a stamp from text to numbers."""
    mtime_ns, ctime_ns, size, inode = map(int, stamp.split(","))
    return mtime_ns, ctime_ns, size, inode


def is_settled(stamp: Stamp, now: int) -> bool:
    """Tell whether a stamp, seen at the time `now` in ns, will differ after any later change."""
    return now - max(stamp[:2]) > _SETTLED_NS


class FileTable:
    """Table of the stamp and sha256 of each path; reads a file again only if its stamp changed.

    Parameters
    ----------
    root : Path
        Folder that relative paths start from.

    Attributes
    ----------
    root : Path
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = str(root)
        # By folder, as the snapshot stores them: a path up to its last slash, and the rest of it.
        self._folders: dict[str, dict[str, _Entry]] = {}
        self._targets = NO_TARGETS
        self._checked: set[Path] = set()
        self._fresh = False

    def __len__(self) -> int:
        return sum(map(len, self._folders.values()))

    def copy(self) -> FileTable:
        """Return another table with the same entries."""
        found = FileTable(self.root)
        found._folders = {folder: dict(inside) for folder, inside in self._folders.items()}
        return found

    def folders(self) -> dict[str, list[str]]:
        """Map each folder, with a slash at its end, to its paths in the table; '' is `root`."""
        return {
            folder: [folder + name for name in inside] for folder, inside in self._folders.items()
        }

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp under which a path is listed; None if the path is not listed."""
        known = self._known(path)
        return None if known is None else _numbers(known[0])

    def known_digest(self, path: str) -> str:
        """Return the table's digest for a path, even if the file changed; `ABSENT` if unlisted."""
        known = self._known(path)
        return ABSENT if known is None else known[1]

    def expect_targets(self, prefix: str) -> None:
        """Treat paths with this prefix as targets, which are files that tasks wrote into the cache.

        A target that is a link, or larger than `LARGEST`, counts as absent.
        """
        self._targets = prefix

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content, or `ABSENT` if it is no regular file.

        Raises
        ------
        StoreError
            ``cache-unsafe-entry`` where a folder of the cache is a link.
        """
        known = self._known(path)
        if self._fresh and known is not None:
            return known[1]
        full = os.path.join(self._prefix, path)  # noqa: PTH118 - thousands of times per look
        stamp = _stamp_text(full)
        if not stamp:
            self._drop(path)
            return ABSENT
        if known is not None and known[0] == stamp:
            return known[1]
        if path.startswith(self._targets):
            self._check_folder(Path(full).parent)
            digest = _digest_file(full, os.O_NOFOLLOW, LARGEST)
        else:
            digest = _digest_file(full)
        if digest is None:
            self._drop(path)
            return ABSENT
        self._set(path, (stamp, digest))
        return digest

    def _known(self, path: str) -> _Entry | None:
        end = path.rfind("/") + 1
        inside = self._folders.get(path[:end])
        return None if inside is None else inside.get(path[end:])

    def _set(self, path: str, entry: _Entry) -> None:
        end = path.rfind("/") + 1
        self._folders.setdefault(path[:end], {})[path[end:]] = entry

    def _drop(self, path: str) -> None:
        end = path.rfind("/") + 1
        self._folders.get(path[:end], {}).pop(path[end:], None)

    def _check_folder(self, folder: Path) -> None:
        if folder not in self._checked:
            PrivateFolder(folder.parents[1]).check(folder)  # a target lies at tasks/STAGE/NAME
            self._checked.add(folder)

    def record(self, path: str, digest: str) -> None:
        """Store a digest that the writer of the file computed."""
        stamp = _stamp_text(os.path.join(self._prefix, path))  # noqa: PTH118 - for each task
        if stamp:
            self._set(path, (stamp, digest))

    @contextmanager
    def as_refreshed(self) -> Iterator[None]:
        """Trust the table's digests during the context, without looking at the files.

        Use it only if all digests have just been checked; see `refresh`.
        """
        self._fresh = True
        try:
            yield
        finally:
            self._fresh = False

    def targets(self) -> set[str]:
        """Return the listed files that tasks wrote into the cache; see `expect_targets`."""
        return {
            folder + name
            for folder, inside in self._folders.items()
            if folder.startswith(self._targets)
            for name in inside
        }

    def refresh(
        self,
        sights: Sights | None = None,
        paths: Iterable[str] | None = None,
        *,
        targets: bool = True,
    ) -> set[str]:
        """Look at paths again, and return the paths whose content changed.

        Parameters
        ----------
        sights : Sights, optional
            Stamps of files (times, size and inode), of which some may have been read earlier. By
            default, all are read now.
        paths : iterable of str, optional
            By default, all paths in the table.
        targets : bool
            False to leave out files that tasks wrote into the cache. If `paths` are given, all of
            them are looked at nevertheless.
        """
        changed = set()
        for path in self.moved(paths, sights, targets=targets):
            before = self.known_digest(path)
            if self.digest(path) != before:
                changed.add(path)
        return changed

    def moved(
        self,
        paths: Iterable[str] | None = None,
        sights: Sights | None = None,
        *,
        targets: bool = True,
    ) -> list[str]:
        """Return the paths that are missing, not in the table, or in it with another stamp.

        Parameters
        ----------
        paths : iterable of str, optional
            Paths to look at; by default, all paths in the table.
        sights : Sights, optional
            Stamps of files (times, size and inode), of which some may have been read earlier. By
            default, all are read now.
        targets : bool
            False to leave out files that tasks wrote into the cache. If `paths` are given, all of
            them are looked at nevertheless.
        """
        sights = sights or Sights()
        by_folder: dict[str, list[str]] = {}
        if paths is None:
            by_folder = {
                folder: list(inside)
                for folder, inside in self._folders.items()
                if targets or not folder.startswith(self._targets)
            }
        else:
            for path in paths:
                end = path.rfind("/") + 1
                by_folder.setdefault(path[:end], []).append(path[end:])
        found = []
        for folder, names in by_folder.items():
            known = self._folders.get(folder, {})
            place = os.path.join(self._prefix, folder)  # noqa: PTH118
            now = sights.stamps(place.rstrip("/"), names)
            found += [
                folder + name
                for name, stamp in zip(names, now, strict=True)
                if not stamp or name not in known or known[name][0] != stamp
            ]
        return found

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON: for each folder, one text of all names, one of all stamps, and so on.

        One long text is parsed many times faster than a list of short texts.
        """
        found = {}
        for folder, inside in self._folders.items():
            if inside:
                stamps, digests = zip(*inside.values(), strict=True)
                found[folder] = ["/".join(inside), " ".join(stamps), " ".join(digests)]
        return found

    @classmethod
    def from_json(cls, root: Path, data: Mapping[str, Json]) -> FileTable:
        """Rebuild from the result of `to_json`.

        Raises
        ------
        AttributeError, TypeError, ValueError
            The data have another form.
        """
        found = cls(root)
        for folder, (names, stamps, digests) in data.items():
            entries = zip(stamps.split(" "), digests.split(" "), strict=True)
            found._folders[folder] = dict(zip(names.split("/"), entries, strict=True))
        return found


def _digest_file(path: str, flags: int = 0, limit: float = math.inf) -> str | None:
    """Return the sha256 of a regular file of at most `limit` bytes; else None."""
    found = hashlib.sha256()
    try:
        # Opening a pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            key = status.st_dev, _stamp(status)
            known = _known.get(key)
            if known is not None:
                return known
            while block := file.read(_BLOCK):
                found.update(block)
            digest = found.hexdigest()
            settled = is_settled(key[1], time.time_ns())
            if settled and _stamp(os.fstat(descriptor)) == key[1]:
                if len(_known) >= _MOST_KNOWN:
                    _known.clear()
                _known[key] = digest
    except OSError:
        return None
    return digest
