"""Files: digests of a workspace's files and of our own code, globs, links, the machine's facts."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from gpuemu_flow.build.stamps import CACHE_NAME, look_of
from gpuemu_flow.config.paths import matches
from gpuemu_flow.store.keys import digest_bytes, digest_json
from gpuemu_flow.store.private_files import PrivateFolder

ABSENT = ""
_BLOCK = 1 << 20
_SETTLED_NS = 2_000_000_000
"""Age above which a file's stamp identifies its content: two changes may share a clock tick."""
_MOST_KNOWN = 1 << 13

Stamp = tuple[int, int, int, int]
"""(mtime_ns, ctime_ns, size, inode). ctime cannot be set back, so restored mtimes are noticed."""


_known: dict[tuple[int, Stamp], str] = {}
"""Digests that this process has made, by device and stamp: Python's library, which has two names
and fifty megabytes, is read once, however many workspaces are opened."""


def stamp_of(path: str | Path) -> Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - asked for every file of a workspace
    except (OSError, ValueError):
        return None
    return _stamp(status)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def is_settled(stamp: Stamp, now: int) -> bool:
    """Tell whether a stamp, seen at the time `now` in ns, will differ after any later change."""
    return now - max(stamp[:2]) > _SETTLED_NS


class FileTable:
    """Table of the stamp and sha256 of each path; reads a file again only if its stamp changed.
    `root` is the folder that relative paths start from. Digests in `entries` were made by earlier
    runs."""

    def __init__(self, root: Path, entries: Mapping[str, tuple[Stamp, str]] | None = None) -> None:
        self.root = root
        self._prefix = str(root)
        self._entries = dict(entries or {})
        self._fresh = False

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Mapping[str, tuple[Stamp, str]]:
        """Return the stamp and the digest of each path."""
        return self._entries

    def copy(self) -> FileTable:
        return FileTable(self.root, self._entries)

    def stamp(self, path: str) -> Stamp | None:
        """Return the stamp under which a path is listed; None if the path is not listed."""
        known = self._entries.get(path)
        return None if known is None else known[0]

    def known_digest(self, path: str) -> str:
        known = self._entries.get(path)
        return ABSENT if known is None else known[1]

    def digest(self, path: str) -> str:
        """Return the sha256 of a file's content, or `ABSENT` if it is no regular file."""
        known = self._entries.get(path)
        if self._fresh and known is not None:
            return known[1]
        full = path if path.startswith("/") else f"{self._prefix}/{path}"  # thousands of times
        stamp = stamp_of(full)
        if stamp is None:
            self._entries.pop(path, None)
            return ABSENT
        if known is not None and known[0] == stamp:
            return known[1]
        digest = _digest_file(full)
        if digest is None:
            self._entries.pop(path, None)
            return ABSENT
        self._entries[path] = stamp, digest
        return digest

    @contextmanager
    def as_refreshed(self) -> Iterator[None]:
        """Trust the table's digests during the context, without looking at the files. Use it only
        if all digests have just been checked; see `refresh`."""
        self._fresh = True
        try:
            yield
        finally:
            self._fresh = False

    def refresh(self) -> set[str]:
        """Look at all paths again, and return the paths whose content changed."""
        changed = set()
        for path in self.moved():
            before = self.known_digest(path)
            if self.digest(path) != before:
                changed.add(path)
        return changed

    def moved(self, paths: Iterable[str] | None = None) -> list[str]:
        """Return the paths that are missing, not in the table, or in it with another stamp. By
        default, all paths in the table are looked at."""
        entries, start = self._entries, f"{self._prefix}/"
        found = []
        for path in list(entries) if paths is None else paths:
            stamp = stamp_of(path if path.startswith("/") else start + path)
            if stamp is None or path not in entries or entries[path][0] != stamp:
                found.append(path)
        return found


def _digest_file(path: str) -> str | None:
    found = hashlib.sha256()
    try:
        # Opening a pipe must not block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
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


# The clock of the file system, which dates changes of files.


class FileClock:
    """Reads the clock that a file system uses for the times of changes to its files. Other clocks
    may show another time, so only this one can be compared with times of changes. One unlinked file
    is touched at each reading. A new file for each reading would be slow, since creating a file
    takes longer if many files were deleted in the last seconds."""

    def __init__(self, staging: Path) -> None:
        self._staging = staging
        self._lock = threading.Lock()
        self._probe = -1

    def now(self) -> int:
        """Return the present time in ns; no later change of a file is dated earlier. Raises
        StoreError."""
        with self._lock:
            if self._probe < 0:
                self._probe = self._make_probe()
        os.utime(self._probe)
        return os.fstat(self._probe).st_ctime_ns

    def _make_probe(self) -> int:
        files = PrivateFolder(self._staging.parent)
        path = self._staging / f"now-{os.getpid()}-{id(self)}"
        files.touch(path)
        probe = files.open(path, os.O_WRONLY)
        weakref.finalize(self, os.close, probe)
        files.remove(path)
        return probe


# Find files: what a glob matches, what a folder lists, links on a path, an interpreter's files.


def glob_files(root: Path, pattern: str) -> list[str]:
    """Return the sorted paths of the files that `pattern` matches. Paths below `root` are returned
    relative to it, and all others as absolute paths. Files in our own cache are left out, since
    they change with every run. A pattern that ends in a slash also matches entries that are no
    files, such as folders and broken links. A pattern may be absolute. ``**`` also stands for links
    to folders, which `pathlib` passes over."""
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
    """Yield all paths that are reached from `top` through links to folders. A link to a folder that
    contains the link is not followed, since that would never end."""
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
    """Return the names in a folder, each with its kind; None if there is no folder. Bytecode of
    sources and our own cache are left out: they come and go."""
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


def link_target(path: str) -> str:
    """Return where a link leads; empty for what is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - for every link of a workspace
    except OSError:
        return ""


SHOWN: dict[str, Callable[[str], object]] = {
    "links": link_target,
    "listed": entries_in,
    "looked": look_of,
}
"""Functions that look at a path, by the part of `Discovered` whose entries they check."""


# Find the symbolic links that the path of a file passes through.


_MOST_LINKS = 40


def has_link(path: str, known: dict[str, bool]) -> bool:
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


# Digest of the part of our code that can change verdicts: an upgrade makes old results stale.

_PACKAGE = Path(__file__).resolve().parent.parent
_FOLDERS = (
    "build",
    "cases",
    "cases/kinds",
    "config",
    "emulator",
    "emulator/effects",
    "emulator/host",
    "emulator/native",
    "emulator/semantics",
    "judge",
    "lint",
    "lint/ptx",
    "lint/rules",
    "model",
    "numerics",
    "store",
    "tasks",
    "wire",
    "workers",
    "workers/sandbox",
)
"""All code that can change a verdict."""
_LENGTH = 16


@cache
def _folders() -> dict[str, str]:
    """Map the absolute path of each folder of our code to its path relative to the package. If
    links lead to a folder, its path with the links and its path without them are both keys."""
    found = {}
    for name in _FOLDERS:
        folder = _PACKAGE / name
        found[str(folder)] = found[os.path.realpath(folder)] = name
    return found


def is_own_code(path: str) -> bool:
    """Tell whether `own_code_digest` covers a file."""
    return os.path.dirname(path) in _folders()  # noqa: PTH120 - hot


def own_code_paths() -> list[str]:
    """Return the files that `own_code_digest` covers, absolute and sorted."""
    found = set[str]()
    for folder, name in _folders().items():
        if folder == os.path.realpath(_PACKAGE / name):
            with os.scandir(folder) as entries:
                found.update(e.path for e in entries if e.name.endswith(".py"))
    return sorted(found)


def own_code_digest(files: FileTable) -> str:
    """Return a digest of all of our code that can change a verdict."""
    named = []
    for path in own_code_paths():
        folder, _, name = path.rpartition("/")
        known = _folders().get(folder, path.removeprefix(f"{_PACKAGE}/").rpartition("/")[0])
        named.append([f"{known}/{name}", files.digest(path)])
    return digest_json(sorted(named))[:_LENGTH]


# The part of the environment that results depend on: interpreter, packages, processor.


NUMERIC_PACKAGES = ("numpy", "ml_dtypes")
_METADATA = ".dist-info"


def package_version(name: str) -> str:
    """Return the version of a distribution; empty if none is installed under that name. The
    metadata folder of a wheel has the version in its name. Other distributions are looked up by the
    standard library, whose import takes as long as all other work of a short command."""
    begin = re.sub(r"[-_.]+", "_", name).lower() + "-"
    for folder in sys.path:
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - names alone
        except OSError:
            continue  # no folder, as an archive
        for entry in entries:
            if entry.endswith(_METADATA) and entry.lower().startswith(begin):
                return entry[len(begin) : -len(_METADATA)]
    from importlib import metadata  # noqa: PLC0415 - brings the parser of e-mail

    try:
        return metadata.version(name)
    except (metadata.PackageNotFoundError, ValueError):
        return ""


def cpu_features() -> str:
    """Return a digest of the processor's feature flags, which numpy's SIMD paths depend on. On
    Linux, these are the flags of the first core in ``/proc/cpuinfo``; elsewhere, the name of the
    processor is used."""
    try:
        with Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return digest_bytes(" ".join(sorted(value.split())).encode())[:16]
    except OSError:
        pass
    return os.uname().machine


def fingerprint() -> dict[str, str]:
    """Collect the facts about the machine that every action key of a program's run contains."""
    found = {
        "python": f"{sys.implementation.name} {sys.version.split()[0]}",
        "machine": f"{sys.platform} {os.uname().machine}",
        "cpu": cpu_features(),
    }
    found.update({name: package_version(name) for name in NUMERIC_PACKAGES})
    return found
