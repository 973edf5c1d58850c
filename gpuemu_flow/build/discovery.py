"""The present state of everything that a program used, as parts of cache keys."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.build.files import ABSENT, FileClock, FileTable
from gpuemu_flow.build.globs import entries_in
from gpuemu_flow.build.input_names import InputNames
from gpuemu_flow.build.plan import look_of, variable_digest
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json

KINDS = {
    "file": "files", "link": "links", "missing": "missed", "folder": "listed",
    "look": "looked", "package": "packages", "python": "pythons", "variable": "variables",
}  # fmt: skip
"""Kinds of inputs in parts of keys. Each is mapped to the field of `Discovered` with its names."""
_ORDER = {kind: place for place, kind in enumerate(KINDS)}


class Discovery(InputNames):
    """Looks up the present states of the inputs of one workspace's programs."""

    def __init__(
        self,
        files: FileTable,
        environ: Mapping[str, str] = os.environ,
        *,
        ignored: Iterable[Path] = (),
        staging: Path | None = None,
    ) -> None:
        super().__init__(files.root, ignored)
        self._files = files
        self._environ = environ
        self._digested: tuple[dict[Any, Any], dict[str, str]] = {}, {}
        self._clock = FileClock(staging) if staging is not None else None
        self._memo: dict[str, str] | None = None
        self._memo_of_sets: dict[Discovered, dict[str, str]] = {}
        self._looks = Looks()
        self._joined: dict[Discovered, tuple[list[Look], dict[str, str]]] = {}

    def parts(self, names: Discovered) -> dict[str, str]:
        """Map the name of each input to its present state."""
        if _is_listing(names):
            return self._parts(names)
        halves = halves_of(names)
        if self._memo is not None:
            return _joined(map(self._at_once, halves))
        return self._parts_of(names, [self._look_at(half) for half in halves])

    def _parts_of(self, names: Discovered, looks: list[Look]) -> dict[str, str]:
        """Map the name of each input in `names` to its state; the states are taken from `looks`.

        The function `halves_of` splits `names` into smaller sets. `looks` holds the latest `Look`
        at each of these sets.
        """
        known = self._joined.get(names)
        if known is None or known[0] != looks:
            if len(self._joined) >= MOST_LOOKS:
                self._joined.clear()
            known = self._joined[names] = looks, _joined(look.parts for look in looks)
        return dict(known[1])  # callers may change it

    def _look_at(self, names: Discovered) -> Look:
        """Return the present states of a set of inputs, from the cache if nothing has changed.

        To determine the states takes milliseconds. This is too slow to be done for each request and
        for each group of verdicts.
        """
        known = self._looks.get(names)
        if known is None or not known.unchanged.holds(self._environ):
            unchanged = self._state_of(names)  # first: what changes from here on must be noticed
            known = Look(unchanged, self._parts(names), {})
        self._looks.keep(names, known)
        return known

    def _state_of(self, names: Discovered) -> Unchanged:
        """Return the present state of all paths and variables that decide the inputs' states."""
        followed = [self.path(name) for name in names.files]
        for member in names.packages:
            followed.append(self.path(member.rpartition("|")[0]))
            followed += self.records(member)
        for member in names.pythons:
            folder = Path(self.path(member))
            executable = folder.parent.parent / "bin" / folder.name
            followed += [str(folder.parent), str(executable), *self.interpreters(member)]
        missed = [self.path(name) for name in names.missed]
        return Unchanged.now(
            followed=followed,
            links=[*map(self.path, names.links), *missed],
            modes=[*map(self.path, names.looked), *missed],
            variables=self._environ,
        )

    def _parts(self, names: Discovered) -> dict[str, str]:
        return {
            f"{kind} {shown}": self.state(kind, members) for kind, shown, members in grouped(names)
        }

    def state(self, kind: str, members: Iterable[str]) -> str:
        """Return the present state of one input, which may have several members."""
        return ", ".join(self._state(kind, member) for member in members)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Cache the state of each input for the duration of the context."""
        self._memo, self._memo_of_sets = {}, {}
        try:
            yield
        finally:
            self._memo = None

    def _at_once(self, names: Discovered) -> dict[str, str]:
        """Map the name of each input to its state, determined once in the context of `at_once`."""
        if names not in self._memo_of_sets:
            if len(self._memo_of_sets) >= MOST_LOOKS:
                self._memo_of_sets.clear()
            self._memo_of_sets[names] = self._parts(names)
        return self._memo_of_sets[names]

    def _state(self, kind: str, member: str) -> str:
        memo = self._memo
        if memo is None:
            return _STATES[kind](self, member)
        name = f"{kind} {member}"
        if name not in memo:
            memo[name] = _STATES[kind](self, member)
        return memo[name]

    def _file(self, member: str) -> str:
        path = self.key(member)
        digest = self._files.digest(path)
        if not digest and os.path.isdir(os.path.join(self._root, path)):  # noqa: PTH112, PTH118
            return "folder"
        return digest

    def _link(self, member: str) -> str:
        try:
            return os.readlink(self.path(member))  # noqa: PTH115 - hot
        except OSError:
            return ABSENT

    def _missing(self, member: str) -> str:
        path = self.path(member)
        if not os.path.lexists(path):
            return ABSENT  # as most are
        return "there" if os.path.exists(path) else "dangling"  # noqa: PTH110 - hot

    def _folder(self, member: str) -> str:
        return _listing(entries_in(self.path(member)))

    def _look(self, member: str) -> str:
        return look_of(self.path(member)) or ABSENT

    def _package(self, member: str) -> str:
        found = []
        for record in self.records(member):
            version = record.rsplit("/", 2)[1].removesuffix(".dist-info").rpartition("-")[2]
            found.append(f"{version} {self._files.digest(record)[:16]}")
        return ", ".join(found)

    def _python(self, member: str) -> str:
        return digest_json([self._files.digest(path) for path in self.interpreters(member)])

    def _variable(self, name: str) -> str:
        now = raw(self._environ)
        if now != self._digested[0]:
            self._digested = now, {}
        known = self._digested[1]
        if name not in known:
            known[name] = variable_digest(self._environ, name)
        return known[name]

    def records(self, member: str) -> list[str]:
        """Return the RECORD files of a member of `Discovered.packages`."""
        site, _, name = member.rpartition("|")
        return self._distributions.records(self.path(site), name)

    def interpreters(self, member: str) -> list[str]:
        """Return the executable and library of a member of `Discovered.pythons`."""
        above, _, version = self.path(member).rpartition("/")
        libraries: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(above)  # noqa: PTH208
            libraries = sorted(name for name in names if name.startswith(f"lib{version}.so"))
        prefix = above.rpartition("/")[0]
        found = [f"{prefix}/bin/{version}", *(f"{above}/{name}" for name in libraries)]
        return [path for path in found if os.path.isfile(path)]  # noqa: PTH113 - hot

    def moved(self, names: Discovered, since: int) -> list[str]:
        """Return the inputs that were written to since a time that `now` returned.

        Even a file that was written to and then restored is returned, since its time of change
        (ctime) cannot be set back.
        """
        if _is_listing(names):
            return self._moved(names, since)
        return self._moved_of(names, since, [self._look_at(half) for half in halves_of(names)])

    def parts_and_moved(self, names: Discovered, since: int) -> tuple[dict[str, str], list[str]]:
        """Return the results of `parts` and `moved`, from a single check of the inputs."""
        if _is_listing(names) or self._memo is not None:
            return self.parts(names), self.moved(names, since)
        looks = [self._look_at(half) for half in halves_of(names)]
        return self._parts_of(names, looks), self._moved_of(names, since, looks)

    def _moved_of(self, names: Discovered, since: int, looks: Iterable[Look]) -> list[str]:
        """Return the inputs in `names` that were written to since a time; see `moved`.

        The function `halves_of` splits `names` into smaller sets, so that results can be cached for
        each set. `looks` holds the latest `Look` at each of these sets, in the same order.
        """
        found: list[str] = []
        for half, look in zip(halves_of(names), looks, strict=True):
            known = look.moved
            if since not in known:
                if len(known) >= MOST_LOOKS:
                    known.clear()
                known[since] = self._moved_by(half, since, look.unchanged)
            found += known[since]
        return sorted(found)

    def _moved_by(self, names: Discovered, since: int, unchanged: Unchanged) -> list[str]:
        """Return the inputs that were written to since a time; `unchanged` is the present state."""
        times, link_times = unchanged.times(), unchanged.link_times()
        exist = unchanged.existing()
        found = [name for name in names.files if times.get(self.path(name), -1) >= since]
        found += [name for name in names.links if link_times.get(self.path(name), -1) >= since]
        found += [name for name in names.missed if self.path(name) in exist]
        found += [name for name in names.looked if self.path(name) not in exist]
        found += [
            member
            for member in names.packages
            for record in self.records(member)
            if times.get(record, -1) >= since
        ]
        return sorted(found)

    def _moved(self, names: Discovered, since: int) -> list[str]:
        found = []
        for name in names.files | names.listed:
            with contextlib.suppress(OSError):
                if os.stat(self.path(name)).st_ctime_ns >= since:  # noqa: PTH116 - hot
                    found.append(name)
        for name in names.links:
            with contextlib.suppress(OSError):
                if os.lstat(self.path(name)).st_ctime_ns >= since:
                    found.append(name)
        found += [name for name in names.missed if self._missing(name) == "there"]
        found += [name for name in names.looked if not self._look(name)]
        for member in names.packages:
            for record in self.records(member):
                with contextlib.suppress(OSError):
                    if os.stat(record).st_ctime_ns >= since:  # noqa: PTH116
                        found.append(member)
        return sorted(found)

    def now(self) -> int:
        """Return the file system's time in ns."""
        return 0 if self._clock is None else self._clock.now()


def _joined(halves: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge several mappings of input names to states into one, in the order of `grouped`."""
    found = {name: state for half in halves for name, state in half.items()}
    return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> tuple[int, str]:
    """Return a sort key that puts the names of inputs in the order of `grouped`."""
    kind, _, shown = name.partition(" ")
    return _ORDER[kind], shown


def grouped(names: Discovered) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the kind, the shown name and the members of each input in `names`.

    The kind and the shown name identify the input in a key, as in ``file lib/table.npy``. An input
    has several members only if it is a package that is installed in several places.
    """
    for kind, part in KINDS.items():
        members = sorted(getattr(names, part))
        if kind != "package":
            yield from ((kind, member, (member,)) for member in members)
            continue
        places: dict[str, list[str]] = {}
        for member in members:
            places.setdefault(member.rpartition("|")[2], []).append(member)
        yield from ((kind, shown, tuple(found)) for shown, found in places.items())


_STATES = {
    "file": Discovery._file,
    "link": Discovery._link,
    "missing": Discovery._missing,
    "folder": Discovery._folder,
    "look": Discovery._look,
    "package": Discovery._package,
    "python": Discovery._python,
    "variable": Discovery._variable,
}


def _is_listing(names: Discovered) -> bool:
    """Tell whether a set of inputs contains folders whose entries a program listed.

    The states of such a set are not cached, since an entry may change without a change of the
    folder's stamp.
    """
    return bool(names.listed)


def _listing(entries: frozenset[str] | None) -> str:
    return ABSENT if entries is None else digest_json(sorted(entries))


# Cache the states of sets of inputs, as they were when last determined.


MOST_LOOKS = 16
_PATHS = ("files", "links", "missed", "looked")
"""Parts of `Discovered` that hold paths, in sets without listings of folders."""


class Look(Struct, frozen=True):
    """The states that a set of inputs had at one time."""

    unchanged: Unchanged
    parts: dict[str, str]
    moved: dict[int, list[str]]


class Looks:
    """Cache of one `Look` per set of inputs, for the sets used most recently. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[Discovered, Look] = {}

    def get(self, names: Discovered) -> Look | None:
        """Return the cached `Look` of a set, which may be out of date; None if none is cached."""
        return self._looks.get(names)

    def keep(self, names: Discovered, look: Look) -> None:
        """Cache the `Look` of a set, and mark this set as the most recently used one.

        If the cache is full, drop the `Look` of the least recently used set.
        """
        with self._lock:
            self._looks.pop(names, None)
            self._looks[names] = look
            if len(self._looks) > MOST_LOOKS:
                del self._looks[next(iter(self._looks))]


@lru_cache(maxsize=MOST_LOOKS)
def halves_of(names: Discovered) -> tuple[Discovered, ...]:
    """Split a set of inputs into the paths in the workspace and all other inputs.

    Most inputs outside of the workspace are the same for all programs, so that their states need to
    be determined only once. The set must not include folders that a program listed. The results do
    not include the reasons in `Discovered.untracked`. An empty part is not returned.
    """
    own: dict[str, frozenset[str]] = {}
    shared: dict[str, frozenset[str]] = {"untracked": frozenset()}
    for part in _PATHS:
        paths: frozenset[str] = getattr(names, part)
        own[part] = frozenset(path for path in paths if path[:1] not in ("/", "<"))
        shared[part] = paths - own[part]
    halves = Discovered(**own), replace(names, **shared)
    return tuple(half for half in halves if half != Discovered())


# Tell cheaply whether files and variables are as they were at an earlier time.


_Look = tuple[int, int, int, int, int]


def _status(path: str) -> _Look | None:
    try:
        s = os.stat(path)  # noqa: PTH116 - hot
    except (OSError, ValueError):
        return None
    # Setting the time of modification also updates the time of change, which cannot be set back.
    return s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode, s.st_dev


def _link_status(path: str) -> _Look | None:
    try:
        s = os.lstat(path)
    except (OSError, ValueError):
        return None
    return s.st_ctime_ns, s.st_ino, s.st_size, s.st_mode, s.st_dev


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - hot
    except (OSError, ValueError):
        return -1


def raw(variables: Mapping[str, str]) -> dict[Any, Any]:
    """Return a copy of an environment from which variables can be read quickly.

    The copy of `os.environ` has names and values as bytes, since `os.environ` itself decodes a
    variable each time it is read. Any other mapping is copied as it is.
    """
    return dict(getattr(variables, "_data", variables))


class Unchanged(Struct, frozen=True):
    """The state of paths and variables at one time; made by `Unchanged.now`."""

    followed: tuple[tuple[str, _Look | None], ...]
    links: tuple[tuple[str, _Look | None], ...]
    modes: tuple[tuple[str, int], ...]
    variables: Mapping[Any, Any]

    @classmethod
    def now(
        cls,
        *,
        followed: Iterable[str],
        links: Iterable[str],
        modes: Iterable[str],
        variables: Mapping[str, str],
    ) -> Unchanged:
        """Return the present state of some paths and variables."""
        own = tuple((path, _link_status(path)) for path in dict.fromkeys(links))
        absent = {path for path, seen in own if seen is None}  # their modes cannot differ
        return cls(
            tuple((path, _status(path)) for path in dict.fromkeys(followed)),
            own,
            tuple((path, _mode(path)) for path in dict.fromkeys(modes) if path not in absent),
            raw(variables),
        )

    def times(self) -> dict[str, int]:
        """Return the time of change, in ns, of each file that was followed and exists."""
        return {path: seen[0] for path, seen in self.followed if seen is not None}

    def link_times(self) -> dict[str, int]:
        """Return the time of change, in ns, of each path in `links` that exists."""
        return {path: seen[0] for path, seen in self.links if seen is not None}

    def existing(self) -> set[str]:
        """Return the paths in `modes` at which something exists."""
        return {path for path, mode in self.modes if mode != -1}

    def holds(self, variables: Mapping[str, str]) -> bool:
        """Tell whether all paths, and all variables, are as they were."""
        for path, seen in self.followed:
            if _status(path) != seen:
                return False
        for path, seen in self.links:
            if _link_status(path) != seen:
                return False
        for path, mode in self.modes:
            if _mode(path) != mode:
                return False
        return raw(variables) == self.variables
