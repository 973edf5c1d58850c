"""Parts of keys from observed inputs: the present state of everything that a program used."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuemu_flow.inputs import own_code
from gpuemu_flow.inputs.distributions import Distributions, Looked, normal_name
from gpuemu_flow.inputs.file_clock import FileClock
from gpuemu_flow.inputs.files import ABSENT, FileTable, Stamp, stamp_of
from gpuemu_flow.inputs.links import has_link, links_of
from gpuemu_flow.inputs.listings import entries_in, modules_in, sizes_in
from gpuemu_flow.inputs.looks import MOST_LOOKS, Look, Looks, halves_of
from gpuemu_flow.inputs.plan import ALL_VARIABLES, look_of, variable_digest
from gpuemu_flow.inputs.settled import SettledFacts
from gpuemu_flow.inputs.unchanged import Unchanged, raw
from gpuemu_flow.let_through import is_general, is_named
from gpuemu_flow.observed import ConfiguredEnv, Observation
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json

_STDLIB = re.compile(r"(.*/lib(?:64)?/python3\.\d+t?)(?:/(?!site-packages/|dist-packages/).*|$)")
_PYC = re.compile(r"(.*)/__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc")
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - files as any other
_INSTALLED = re.compile(r"(?:\A|/)(?:site|dist)-packages(?:/|\Z)")
_TOP = re.compile(r".*/(?:site|dist)-packages/[^/]+")
_ASKED = re.compile(r"(/.*)/([^/-]+)\.dist-info")
"""Matches an entry for a distribution that a program requested by name; see `runners.searches`."""

KINDS = {
    "file": "files", "link": "links", "missing": "missed", "folder": "listed",
    "modules": "modules", "sizes": "sized", "look": "looked", "package": "packages",
    "python": "pythons", "variable": "variables",
}  # fmt: skip
"""Kinds of inputs in parts of keys. Each is mapped to the field of `Discovered` with its names."""
_ORDER = {kind: place for place, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class _Installed:
    """The entry in `Discovered` for an installed file: its package, its Python, or the file."""

    package: str = ""
    python: str = ""
    file: str = ""


class Discovery:
    """Inputs of the programs of one workspace.

    Parameters
    ----------
    files : FileTable
    environ : mapping
        Variables that programs inherit.
    ignored : iterable of Path
        Folders whose files are no inputs: the cache of this tool.
    staging : Path, optional
        Folder for the file of a `FileClock`.
    """

    def __init__(
        self,
        files: FileTable,
        environ: Mapping[str, str] = os.environ,
        *,
        ignored: Iterable[Path] = (),
        staging: Path | None = None,
    ) -> None:
        self._files = files
        self._environ = environ
        self._root = str(files.root)
        self._inside = self._root.rstrip("/") + "/"
        self._digested: tuple[dict[Any, Any], dict[str, str]] = {}, {}
        self._ignored = tuple(f"{path}/" for path in ignored)
        self._clock = FileClock(staging) if staging is not None else None
        self._distributions = Distributions()
        self._stdlibs: dict[str, bool] = {}
        self._tops: dict[str, tuple[Stamp | None, str]] = {}
        self._settled: SettledFacts[_Installed] = SettledFacts()
        self._lock = threading.Lock()
        self._prefixes = [(self._root + "/", "")]
        for token, prefix in (("<prefix>/", sys.prefix), ("<base>/", sys.base_prefix)):
            if len(prefix) > 1:
                self._prefixes.append((prefix + "/", token))
        self._memo: dict[str, str] | None = None
        self._memo_of_sets: dict[Discovered, dict[str, str]] = {}
        self._looks = Looks()
        self._joined: dict[Discovered, tuple[list[Look], dict[str, str]]] = {}

    def discover(self, seen: Observation, given: ConfiguredEnv) -> Discovered:
        """Convert an observation into a set of names.

        Parameters
        ----------
        given : ConfiguredEnv
            The configuration's rules for the environment. Variables that it sets are already part
            of the key. Variables that it lets through are inputs even if unread, since reads by
            machine code are not seen.
        """
        files: set[str] = set()
        links: set[str] = set()
        packages: set[str] = set()
        pythons: set[str] = set()
        linked: dict[str, bool] = {}
        looked = Looked()
        with self._lock:
            for path in map(_source_of, self._unknown(seen.files, files, packages, pythons)):
                if self._is_ours(path):
                    continue
                linked_to = has_link(path, linked)
                if linked_to:
                    links.update(map(self._encode, links_of(path)))
                stdlib = self._stdlib_of(path)
                owner = None if stdlib else self._distributions.owner(path, looked)
                if stdlib:
                    pythons.add(self._encode(stdlib))
                elif owner is not None:
                    packages.add(f"{self._encode(owner[0])}|{owner[1]}")
                else:
                    files.add(self._encode(path))
                if not linked_to:
                    self._keep(path, stdlib, owner, looked)
            packages |= self._owners_of_looked(seen.looked, looked)
        asked = {path: match for path in seen.missed if (match := _ASKED.fullmatch(path))}
        packages.update(f"{self._encode(m[1])}|{normal_name(m[2])}" for m in asked.values())
        missed = seen.missed.difference(asked)
        for path in missed | seen.looked:
            if not self._is_ours(path) and has_link(path, linked):
                links.update(map(self._encode, links_of(path)))
        return Discovered(
            files=frozenset(files),
            links=frozenset(links),
            missed=self._others(missed) - files,
            listed=self._others(seen.listed),
            modules=self._others(seen.modules),
            sized=self._others(seen.sized),
            looked=frozenset(
                p for p in self._others(seen.looked) if p != "." and not _INSTALLED.search(p)
            ),
            packages=frozenset(packages),
            pythons=frozenset(pythons),
            variables=_variables(seen, given),
            untracked=seen.untracked,
        )

    def _owners_of_looked(self, paths: frozenset[str], looked: Looked) -> set[str]:
        """Return the packages of installed files that were found and not opened.

        Such a file goes when its package is uninstalled. Files that no package lists are left out.
        """
        tops = {match[0] for path in paths if (match := _TOP.match(path))}
        found = set()
        for top in tops:
            site = top.rpartition("/")[0]
            stamp, known = stamp_of(site), self._tops.get(top)
            if known is None or known[0] != stamp:
                inside = top if os.path.splitext(top)[1] else f"{top}/__init__.py"  # noqa: PTH122
                owner = self._distributions.owner(inside, looked)
                known = self._tops[top] = stamp, f"{self._encode(site)}|{owner[1]}" if owner else ""
            found.add(known[1])
        return found - {""}

    def _unknown(
        self, paths: frozenset[str], files: set[str], packages: set[str], pythons: set[str]
    ) -> frozenset[str]:
        """Add the known inputs of installed files to the sets, and return all other paths."""
        known, facts = self._settled.known(paths)
        for fact in facts:
            if fact.package:
                packages.add(fact.package)
            elif fact.python:
                pythons.add(fact.python)
            else:
                files.add(fact.file)
        return paths - known

    def _keep(self, path: str, stdlib: str, owner: tuple[str, str] | None, looked: Looked) -> None:
        """Cache the result for an installed file, which every worker loads again."""
        if stdlib:
            self._settled.keep(path, _Installed(python=self._encode(stdlib)))
        elif owner is not None:
            records = self._distributions.decisive(path, owner)
            if records:
                package = f"{self._encode(owner[0])}|{owner[1]}"
                self._settled.keep(path, _Installed(package), records)
        elif not path.startswith(self._inside) and looked.has_no_site(path):
            self._settled.keep(path, _Installed(file=self._encode(path)))

    def _others(self, paths: frozenset[str]) -> frozenset[str]:
        """Return the paths outside of this tool and of Python's library, as members of a set."""
        kept = (p for p in paths if not self._is_ours(p) and not self._stdlib_of(p))
        return frozenset(map(self._encode, kept))

    def parts(self, names: Discovered) -> dict[str, str]:
        """Return the present state of each input, by its name."""
        if _is_listing(names):
            return self._parts(names)
        halves = halves_of(names)
        if self._memo is not None:
            return _joined(map(self._at_once, halves))
        looks = [self._look_at(half) for half in halves]
        known = self._joined.get(names)
        if known is None or known[0] != looks:
            if len(self._joined) >= MOST_LOOKS:
                self._joined.clear()
            known = self._joined[names] = looks, _joined(look.parts for look in looks)
        return dict(known[1])  # callers may change it

    def _look_at(self, names: Discovered) -> Look:
        """Return the latest look at a set of inputs if nothing has changed since; else look again.

        A look costs milliseconds, and is needed at each request and each group of verdicts.
        """
        known = self._looks.get(names)
        if known is None or not known.unchanged.holds(self._environ):
            unchanged = self._state_of(names)  # first: what changes from here on must be noticed
            known = Look(unchanged, self._parts(names), {})
        self._looks.keep(names, known)
        return known

    def _state_of(self, names: Discovered) -> Unchanged:
        """Return the state of everything that `_parts` and `_moved` look at."""
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
        """Return the states of a set as they were first found in the context."""
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

    def _modules(self, member: str) -> str:
        return _listing(modules_in(self.path(member)))

    def _sizes(self, member: str) -> str:
        found = sizes_in(self.path(member))
        return ABSENT if found is None else digest_json(sorted(found.items()))

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

        A time of change cannot be set back, so that writing a file and restoring it is noticed.
        """
        if _is_listing(names):
            return self._moved(names, since)
        found: list[str] = []
        for half in halves_of(names):
            look = self._look_at(half)
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
        for name in names.files | names.listed | names.modules | names.sized:
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

    def path(self, member: str) -> str:
        """Return the absolute path of a member of a set."""
        key = self.key(member)
        return key if key.startswith("/") else self._inside + key

    def _encode(self, path: str) -> str:
        for prefix, token in self._prefixes:
            if path.startswith(prefix):
                return token + path[len(prefix) :]
        return "." if path == self._root else path

    def key(self, member: str) -> str:
        """Return the path under which the file table lists a member of a set."""
        if member.startswith("<"):
            for prefix, token in self._prefixes[1:]:
                if member.startswith(token):
                    return prefix + member[len(token) :]
        return member

    def _is_ours(self, path: str) -> bool:
        return (
            (path.startswith(_NO_FILES) and not path.startswith(_SHARED_MEMORY))
            or path.startswith(self._ignored)
            or f"{path}/" in self._ignored
            or own_code.covers(path)
        )

    def _stdlib_of(self, path: str) -> str:
        """Return the folder of a standard library that contains a path; empty if none does."""
        match = _STDLIB.fullmatch(path)
        if match is None:
            return ""
        folder = match[1]
        if folder not in self._stdlibs:
            self._stdlibs[folder] = os.path.isfile(f"{folder}/os.py")  # noqa: PTH113
        return folder if self._stdlibs[folder] else ""


def _joined(halves: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Merge the parts of a set's halves, in the order of `grouped`."""
    found = {name: state for half in halves for name, state in half.items()}
    return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> tuple[int, str]:
    """Return a sort key that orders parts of keys as `grouped` lists them."""
    kind, _, shown = name.partition(" ")
    return _ORDER[kind], shown


def grouped(names: Discovered) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the kind, the name and the members of each input of a set, as parts of keys.

    A name has several members only if one package is installed in several places.
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
    "modules": Discovery._modules,
    "sizes": Discovery._sizes,
    "look": Discovery._look,
    "package": Discovery._package,
    "python": Discovery._python,
    "variable": Discovery._variable,
}


def _variables(seen: Observation, given: ConfiguredEnv) -> frozenset[str]:
    """Return the variables that a program can see and depends on."""
    read = {
        name
        for name in seen.variables
        if name.endswith(ALL_VARIABLES) or is_general(name) or is_named(name, given.names)
    }
    named = {f"{n}{ALL_VARIABLES}" if n.endswith(ALL_VARIABLES) else n for n in given.names}
    return frozenset((read | named) - set(given.values))


def _is_listing(names: Discovered) -> bool:
    """Tell whether a set has listed folders: their stamps may not show a change of an entry."""
    return bool(names.listed or names.modules or names.sized)


def _listing(entries: frozenset[str] | None) -> str:
    return ABSENT if entries is None else digest_json(sorted(entries))


def _source_of(path: str) -> str:
    """Return the source of compiled code if it exists, else the path itself."""
    match = _PYC.fullmatch(path) if path.endswith(".pyc") else None
    if match is None:
        return path
    source = f"{match[1]}/{match[2]}.py"
    return source if os.path.exists(source) else path  # noqa: PTH110
