"""The present state of everything that a program used, as parts of cache keys."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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

    def parts(self, names: Discovered) -> dict[str, str]:
        """Map the name of each input to its present state."""
        return {
            f"{kind} {shown}": self.state(kind, members) for kind, shown, members in grouped(names)
        }

    def state(self, kind: str, members: Iterable[str]) -> str:
        """Return the present state of one input, which may have several members."""
        return ", ".join(self._state(kind, member) for member in members)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Cache the state of each input for the duration of the context."""
        self._memo = {}
        try:
            yield
        finally:
            self._memo = None

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
        now = _raw(self._environ)
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


def _listing(entries: frozenset[str] | None) -> str:
    return ABSENT if entries is None else digest_json(sorted(entries))


def _raw(variables: Mapping[str, str]) -> dict[Any, Any]:
    """Return a copy of an environment from which variables can be read quickly.

    The copy of `os.environ` has names and values as bytes, since `os.environ` itself decodes a
    variable each time it is read. Any other mapping is copied as it is.
    """
    return dict(getattr(variables, "_data", variables))
