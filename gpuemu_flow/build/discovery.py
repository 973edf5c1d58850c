"""The present state of everything that a program used, as parts of cache keys."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct, field

from gpuemu_flow.build.files import (
    ABSENT,
    FileClock,
    FileTable,
    Stamp,
    entries_in,
    has_link,
    is_own_code,
    links_of,
    stamp_of,
)
from gpuemu_flow.build.stamps import ALL_VARIABLES, look_of, variable_digest
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.types import ConfiguredEnv, Observation
from gpuemu_flow.store.keys import Discovered, digest_json

# Names of inputs: convert what a program was seen to use into members of `Discovered`.

_STDLIB = re.compile(r"(.*/lib(?:64)?/python3\.\d+t?)(?:/(?!site-packages/|dist-packages/).*|$)")
_PYC = re.compile(r"(.*)/__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc")
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - files as any other
_TOP = re.compile(r".*/(?:site|dist)-packages/[^/]+")
_ASKED = re.compile(r"(/.*)/([^/-]+)\.dist-info")
"""Matches an entry for a distribution that a program requested by name; see `runners.observe`."""


class InputNames:
    """Names of the inputs of the programs of one workspace."""

    def __init__(self, root: Path, ignored: Iterable[Path]) -> None:
        self._root = str(root)
        self._inside = self._root.rstrip("/") + "/"
        self._ignored = tuple(f"{path}/" for path in ignored)
        self._distributions = Distributions()
        self._stdlibs: dict[str, bool] = {}
        self._tops: dict[str, tuple[Stamp | None, str]] = {}
        self._named: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        self._prefixes = [(self._root + "/", "")]
        for token, prefix in (("<prefix>/", sys.prefix), ("<base>/", sys.base_prefix)):
            if len(prefix) > 1:
                self._prefixes.append((prefix + "/", token))

    def discover(self, seen: Observation, given: ConfiguredEnv) -> Discovered:
        """Return the names of all inputs that a program was seen to use."""
        found: dict[str, set[str]] = {"files": set(), "packages": set(), "pythons": set()}
        links: set[str] = set()
        linked: dict[str, bool] = {}
        looked = Looked()
        with self._lock:
            if not self._named.keys().isdisjoint(seen.files) and self._distributions.have_changed():
                self._named.clear()
            for path in seen.files:
                known = self._named.get(path)
                if known is not None:
                    found[known[0]].add(known[1])
                elif not self._is_ours(file := _source_of(path)):
                    is_linked = has_link(file, linked)
                    if is_linked:
                        links.update(map(self._encode, links_of(file)))
                    what = self._named_as(file, looked)
                    found[what[0]].add(what[1])
                    if what[0] != "files" and not is_linked:
                        self._named[path] = what  # each worker loads the same installed files
            files, packages, pythons = found.values()
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
            looked=frozenset(filter(self._may_vanish, self._others(seen.looked))),
            packages=frozenset(packages),
            pythons=frozenset(pythons),
            variables=_variables(given),
            untracked=seen.untracked,
        )

    def _may_vanish(self, name: str) -> bool:
        """Tell whether a path that exists counts: not in a package, nor around the workspace."""
        path = self.path(name)
        around = name == "." or self._inside.startswith(f"{path.rstrip('/')}/")
        return not around and not is_installed(path)

    def _owners_of_looked(self, paths: frozenset[str], looked: Looked) -> set[str]:
        """Return the packages to which some installed files belong; skip files of no package. A
        program saw that these files exist, but did not open them. The program depends on their
        packages, since a file disappears when its package is uninstalled."""
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

    def _named_as(self, path: str, looked: Looked) -> tuple[str, str]:
        """Return the part of `Discovered` to which a file belongs, and its name there."""
        stdlib = self._stdlib_of(path)
        if stdlib:
            return "pythons", self._encode(stdlib)
        owner = self._distributions.owner(path, looked)
        if owner is not None:
            return "packages", f"{self._encode(owner[0])}|{owner[1]}"
        return "files", self._encode(path)

    def _others(self, paths: frozenset[str]) -> frozenset[str]:
        """Return the names that `Discovered` gives to paths; skip those that are no inputs. This
        tool's files, devices, and the files of standard libraries are no inputs."""
        kept = (p for p in paths if not self._is_ours(p) and not self._stdlib_of(p))
        return frozenset(map(self._encode, kept))

    def path(self, member: str) -> str:
        key = self.key(member)
        return key if key.startswith("/") else self._inside + key

    def _encode(self, path: str) -> str:
        for prefix, token in self._prefixes:
            if path.startswith(prefix):
                return token + path[len(prefix) :]
        return "." if path == self._root else path

    def key(self, member: str) -> str:
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
            or is_own_code(path)
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


def _variables(given: ConfiguredEnv) -> frozenset[str]:
    """Return patterns of all variables that a program receives from the user's environment."""
    named = {f"{n}{ALL_VARIABLES}" if n.endswith(ALL_VARIABLES) else n for n in given.names}
    return frozenset({ALL_VARIABLES, *named} - set(given.values))


def _source_of(path: str) -> str:
    """Return the source of compiled code if it exists, else the path itself."""
    match = _PYC.fullmatch(path) if path.endswith(".pyc") else None
    if match is None:
        return path
    source = f"{match[1]}/{match[2]}.py"
    return source if os.path.exists(source) else path  # noqa: PTH110


# The installed distribution of a file, read from the RECORD files next to it.


_SUFFIX = ".dist-info"
_SEPARATORS = re.compile(r"[-_.]+")


def normal_name(name: str) -> str:
    """Return the normalised name of a distribution, equal for all its spellings."""
    return _SEPARATORS.sub("-", name).lower()


def _top(relative: str) -> str:
    """Guess the name of the distribution that owns a file, from its path in the site folder."""
    return normal_name(relative.partition("/")[0].partition(".")[0])


class _Record:
    """The files that a RECORD file lists. To save time, the file is parsed only when its text
    contains a path that is looked up. Of the many RECORD files in a folder, usually only one
    contains a given path."""

    def __init__(self, path: str) -> None:
        try:
            self._text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            self._text = ""
        self._files: frozenset[str] | None = None

    def lists(self, relative: str) -> bool:
        """Tell whether a file is listed, given its path below the folder of the distributions."""
        if self._files is None:
            if relative not in self._text:
                return False
            self._files = frozenset(
                line.rpartition(",")[0].rpartition(",")[0].strip('"')
                for line in self._text.splitlines()
            )
            self._text = ""
        return relative in self._files


class Looked(Struct):
    """A cache for one scan of many files, so that no folder is read twice."""

    sites: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    records: dict[str, _Record] = field(default_factory=dict)


class Distributions:
    """Finds distributions in any folder that holds ``*.dist-info/RECORD``. A folder is read again
    when its stamp has changed, so that a long-lived process sees new installations."""

    def __init__(self) -> None:
        self._sites: dict[str, tuple[Stamp | None, dict[str, list[str]]]] = {}
        self._records: dict[str, tuple[Stamp | None, _Record]] = {}

    def have_changed(self) -> bool:
        """Tell whether something was installed or removed since the folders were read."""
        stamps = {folder: stamp for folder, (stamp, names) in self._sites.items() if names}
        stamps |= {record: stamp for record, (stamp, _) in self._records.items()}
        return any(stamp_of(path) != stamp for path, stamp in stamps.items())

    def owner(self, path: str, looked: Looked | None = None) -> tuple[str, str] | None:
        """Return the site folder and normalised name of the distribution that lists a file."""
        looked = Looked() if looked is None else looked
        folder, slash, _ = path.rpartition("/")
        while slash and folder:
            names = looked.sites.get(folder)
            if names is None:
                names = looked.sites[folder] = self._site(folder)
            if names:
                relative = path[len(folder) + 1 :]
                top = _top(relative)
                # Most distributions have the name of what they install; the others are searched.
                if top in names and self._lists(names[top], relative, looked):
                    return folder, top
                for name, records in names.items():
                    if name != top and self._lists(records, relative, looked):
                        return folder, name
                return None
            folder, slash, _ = folder.rpartition("/")
        return None

    def _lists(self, records: list[str], relative: str, looked: Looked) -> bool:
        for record in records:
            found = looked.records.get(record)
            if found is None:
                found = looked.records[record] = self._record(record)
            if found.lists(relative):
                return True
        return False

    def records(self, site: str, name: str) -> list[str]:
        """Return the RECORD files of a distribution in a site folder; none if it is gone."""
        return self._site(site).get(name, [])

    def _site(self, folder: str) -> dict[str, list[str]]:
        stamp = stamp_of(folder)
        known = self._sites.get(folder)
        if known is None or known[0] != stamp:
            found: dict[str, list[str]] = {}
            try:
                entries = sorted(os.listdir(folder))  # noqa: PTH208
            except OSError:
                entries = []
            for entry in entries:
                if entry.endswith(_SUFFIX):
                    record = f"{folder}/{entry}/RECORD"
                    if os.path.isfile(record):  # noqa: PTH113
                        name = entry[: -len(_SUFFIX)].rpartition("-")[0]
                        found.setdefault(normal_name(name), []).append(record)
            known = self._sites[folder] = stamp, found
        return known[1]

    def _record(self, path: str) -> _Record:
        stamp = stamp_of(path)
        known = self._records.get(path)
        if known is None or known[0] != stamp:
            known = self._records[path] = stamp, _Record(path)
        return known[1]


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
        return {
            f"{kind} {shown}": self.state(kind, members) for kind, shown, members in grouped(names)
        }

    def state(self, kind: str, members: Sequence[str]) -> str:
        """Return the present state of one input, which may have several members."""
        if len(members) == 1:
            return self._state(kind, members[0])
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
        site, _, name = member.rpartition("|")
        return self._distributions.records(self.path(site), name)

    def interpreters(self, member: str) -> list[str]:
        above, _, version = self.path(member).rpartition("/")
        libraries: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(above)  # noqa: PTH208
            libraries = sorted(name for name in names if name.startswith(f"lib{version}.so"))
        prefix = above.rpartition("/")[0]
        found = [f"{prefix}/bin/{version}", *(f"{above}/{name}" for name in libraries)]
        return [path for path in found if os.path.isfile(path)]  # noqa: PTH113 - hot

    def moved(self, names: Discovered, since: int) -> list[str]:
        """Return the inputs that were written to since a time that `now` returned. Even a file that
        was written to and then restored is returned, since its time of change (ctime) cannot be set
        back."""
        used = names.files | names.listed
        found = [n for n in used if _changed(os.stat, self.path(n)) >= since]
        found += [n for n in names.links if _changed(os.lstat, self.path(n)) >= since]
        found += [n for n in names.missed if self._missing(n) == "there"]
        found += [n for n in names.looked if not self._look(n)]
        for member in names.packages:
            records = self.records(member)
            found += [member for path in records if _changed(os.stat, path) >= since]
        return sorted(found)

    def now(self) -> int:
        return 0 if self._clock is None else self._clock.now()


def _changed(look: Callable[[str], os.stat_result], path: str) -> int:
    """Return the time of change (ctime) of what `look` finds at a path; -1 if it finds nothing."""
    try:
        return look(path).st_ctime_ns
    except OSError:
        return -1


def grouped(names: Discovered) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the kind, the shown name and the members of each input in `names`. The kind and the
    shown name identify the input in a key, as in ``file lib/table.npy``. An input has several
    members only if it is a package that is installed in several places."""
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
    """Return a copy of an environment from which variables can be read quickly. The copy of
    `os.environ` has names and values as bytes, since `os.environ` itself decodes a variable each
    time it is read. Any other mapping is copied as it is."""
    return dict(getattr(variables, "_data", variables))


# The inputs that tasks were seen to use, stored once for all tasks.

MOST_NAMES = 8
"""Maximum number of missing names in a folder that are watched one by one. If there are more, the
folder itself is watched."""


class Needed(Struct):
    """The states that must be unchanged for tasks to be up to date, besides contents of files."""

    absent: list[str] = field(default_factory=list)
    folders: dict[str, Stamp] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    looks: dict[str, str] = field(default_factory=dict)


_Numbers = tuple[int, ...]


class _Fact(NamedTuple):
    """One input of a kind in `KINDS`, and the state that it had when it was recorded. `members`
    holds the input's name, such as a path. A package has one member for each place in which it is
    installed."""

    kind: str
    members: tuple[str, ...]
    state: str


_UNKNOWN = _Fact("", (), "")
"""Marks a set whose states do not belong to its names, so that it counts as changed."""


class StoredSets(Struct, frozen=True):
    """The facts, and which of them each set has, by number; see `ObservedSets`."""

    facts: tuple[_Fact, ...] = ()
    sets: dict[str, _Numbers] = {}
    untracked: dict[str, tuple[str, ...]] = {}
    tasks: dict[str, str] = {}  # the key of each task's set


class ObservedSets:
    """The inputs that each task was seen to use, and their states when the task was up to date.
    Thousands of programs share most of their inputs. So each pair of input and state (a fact) is
    kept and checked once. A set holds the inputs of a task, and is stored as the numbers of its
    facts."""

    def __init__(self) -> None:
        self.task_sets: dict[str, str] = {}
        self._facts: dict[_Fact, int] = {}
        self._members: dict[str, _Numbers] = {}
        self._untracked: dict[str, frozenset[str]] = {}

    @property
    def sets(self) -> dict[str, tuple[Discovered, dict[str, str]]]:
        """Map the key of each set to the set's inputs and to their recorded states. The key is a
        digest of the inputs and the states."""
        return {key: (self._names([key]), self._parts(key)) for key in self._members}

    def record(self, task: str, names: Discovered, parts: Mapping[str, str]) -> None:
        """Record the inputs of a task, with the states that its key contains."""
        key = digest_json([names.stored, dict(parts)])
        self.task_sets[task] = key
        if key in self._members:
            return
        states = dict(parts)
        facts = [
            _Fact(kind, members, states.pop(f"{kind} {shown}"))
            if f"{kind} {shown}" in states
            else _UNKNOWN
            for kind, shown, members in grouped(names)
        ]
        if states:
            facts.append(_UNKNOWN)
        numbers = (self._facts.setdefault(fact, len(self._facts)) for fact in facts)
        self._members[key] = tuple(sorted(numbers))
        if names.untracked:
            self._untracked[key] = names.untracked

    def of(self, tasks: Container[str]) -> ObservedSets:
        """Return the sets of the tasks with these names."""
        found = ObservedSets()
        found._facts = dict(self._facts)
        found.task_sets = {task: key for task, key in self.task_sets.items() if task in tasks}
        for key in set(found.task_sets.values()):
            found._members[key] = self._members[key]
            if key in self._untracked:
                found._untracked[key] = self._untracked[key]
        return found

    def names(self, tasks: Iterable[str]) -> Discovered:
        return self._names({self.task_sets[task] for task in tasks if task in self.task_sets})

    def untracked(self, task: str) -> frozenset[str]:
        """Return the reasons why a task may have used more than was seen."""
        return self._untracked.get(self.task_sets.get(task, ""), frozenset())

    def _names(self, keys: Collection[str]) -> Discovered:
        facts = list(self._facts)
        kinds: dict[str, set[str]] = {}
        for number in self._used(keys):
            fact = facts[number]
            if fact is not _UNKNOWN and fact.kind:
                kinds.setdefault(KINDS[fact.kind], set()).update(fact.members)
        untracked = frozenset[str]().union(*(self._untracked.get(key, ()) for key in keys))
        found = {kind: frozenset(members) for kind, members in kinds.items()}
        return Discovered(**found, untracked=untracked)

    def _parts(self, key: str) -> dict[str, str]:
        facts, numbers = list(self._facts), self._used([key])
        states = {(f.kind, f.members): f.state for f in map(facts.__getitem__, numbers)}
        return {
            f"{kind} {shown}": states[kind, members]
            for kind, shown, members in grouped(self._names([key]))
        }

    def changed(self, lookup: Discovery, *, but: Container[str] = ()) -> set[str]:
        """Return the tasks with an input whose state differs from the recorded one."""
        used = self._used(self._members)
        with lookup.at_once():
            moved = {
                number
                for number, fact in enumerate(self._facts)
                if number in used
                and fact.kind not in but
                and (not fact.kind or lookup.state(fact.kind, fact.members) != fact.state)
            }
        if not moved:
            return set()
        hit = {key for key, numbers in self._members.items() if not moved.isdisjoint(numbers)}
        return {task for task, key in self.task_sets.items() if key in hit}

    def moved(self, lookup: Discovery, kind: str) -> set[str]:
        """Return the inputs of one kind whose state differs from a recorded one; see `KINDS`."""
        used = self._used(self._members)
        with lookup.at_once():
            return {
                member
                for number, fact in enumerate(self._facts)
                if fact.kind == kind and number in used
                for member in fact.members
                if lookup.state(kind, (member,)) != fact.state
            }

    def _used(self, keys: Iterable[str]) -> set[int]:
        return set().union(*map(self._members.__getitem__, keys))

    def needed(self, lookup: Discovery) -> Needed:
        """Collect what must be unchanged for the tasks to be up to date, besides contents of files.
        This includes absent paths, listed folders, links and environment variables."""
        found = Needed()
        names = self.names(self.task_sets)
        missing = {_first_missing(lookup.path(member)) for member in names.missed}
        # If a link dangles, the path that it leads to may appear.
        dangling = [path for path in missing if os.path.islink(path)]  # noqa: PTH114 - often
        missing |= {_first_missing(os.path.realpath(path)) for path in dangling}
        beside = Counter(os.path.dirname(path) for path in missing)  # noqa: PTH120
        # A folder is watched as a whole where much was looked for in it, but not for a few names:
        # in a home, or in the folder of temporary files, others make files all the time.
        crowded = {folder for folder, count in beside.items() if count > MOST_NAMES}
        crowded.update(map(os.path.dirname, dangling))
        found.absent += [p for p in missing if os.path.dirname(p) not in crowded]  # noqa: PTH120
        # Where a package that was asked for in vain would be installed.
        sites = {
            member.rpartition("|")[0] for member in names.packages if not lookup.records(member)
        }
        listed = names.listed | sites
        for folder in {*crowded, *map(lookup.path, listed)}:
            stamp = stamp_of(folder)
            if stamp is None:
                found.absent.append(folder)
            else:
                found.folders[folder] = stamp
        for member in names.links:
            path = lookup.path(member)
            try:
                found.links[path] = os.readlink(path)  # noqa: PTH115
            except OSError:
                found.absent.append(path)
        for path in map(lookup.path, names.looked - names.files):
            _look(found, path, look_of(path))
        with lookup.at_once():
            states = lookup.parts(Discovered(variables=names.variables))
        found.variables = {name.partition(" ")[2]: state for name, state in states.items()}
        return found

    @property
    def stored(self) -> StoredSets:
        """Return the sets as they are stored, without facts that no set has."""
        facts = list(self._facts)
        places = {number: place for place, number in enumerate(sorted(self._used(self._members)))}
        return StoredSets(
            tuple(facts[number] for number in places),
            {key: tuple(places[n] for n in numbers) for key, numbers in self._members.items()},
            {key: tuple(sorted(reasons)) for key, reasons in self._untracked.items()},
            self.task_sets,
        )

    @classmethod
    def of_stored(cls, stored: StoredSets) -> ObservedSets:
        """Undo `stored`. Raises KeyError, ValueError: A set or a fact is missing."""
        found = cls()
        found._facts = {fact: number for number, fact in enumerate(stored.facts)}
        found._members = stored.sets
        found._untracked = {key: frozenset(why) for key, why in stored.untracked.items()}
        found.task_sets = stored.tasks
        known = found._used(found.task_sets.values()) | found._used(found._members)
        if not known <= set(range(len(found._facts))):
            raise ValueError("a fact is missing")
        return found


def _look(found: Needed, path: str, seen: str) -> None:
    if not seen:
        found.absent.append(path)
    else:
        found.looks[path] = seen


def _first_missing(path: str) -> str:
    """Return the shortest leading part of a path at which nothing exists."""
    while len(path) > 1:
        folder = os.path.dirname(path)  # noqa: PTH120
        if os.path.isdir(folder):  # noqa: PTH112
            break
        path = folder
    return path
