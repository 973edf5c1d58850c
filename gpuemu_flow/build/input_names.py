"""Names of inputs: convert what a program was seen to use into members of `Discovered`."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import Struct, field

from gpuemu_flow.build import own_code
from gpuemu_flow.build.files import Stamp, is_settled, stamp_of
from gpuemu_flow.build.links import has_link, links_of
from gpuemu_flow.build.plan import ALL_VARIABLES
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.observed import ConfiguredEnv, Observation
from gpuemu_flow.store.discovered import Discovered

_STDLIB = re.compile(r"(.*/lib(?:64)?/python3\.\d+t?)(?:/(?!site-packages/|dist-packages/).*|$)")
_PYC = re.compile(r"(.*)/__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc")
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - files as any other
_TOP = re.compile(r".*/(?:site|dist)-packages/[^/]+")
_ASKED = re.compile(r"(/.*)/([^/-]+)\.dist-info")
"""Matches an entry for a distribution that a program requested by name; see `runners.observe`."""


class _Installed(Struct, frozen=True):
    """The entry in `Discovered` for an installed file; only one of the fields is set.

    The entry is the package that lists the file; without one, the Python installation whose
    standard library contains the file; without either, the file itself.
    """

    package: str = ""
    python: str = ""
    file: str = ""


class InputNames:
    """Names of the inputs of the programs of one workspace."""

    def __init__(self, root: Path, ignored: Iterable[Path]) -> None:
        self._root = str(root)
        self._inside = self._root.rstrip("/") + "/"
        self._ignored = tuple(f"{path}/" for path in ignored)
        self._distributions = Distributions()
        self._stdlibs: dict[str, bool] = {}
        self._tops: dict[str, tuple[Stamp | None, str]] = {}
        self._settled: SettledFacts[_Installed] = SettledFacts()
        self._lock = threading.Lock()
        self._prefixes = [(self._root + "/", "")]
        for token, prefix in (("<prefix>/", sys.prefix), ("<base>/", sys.base_prefix)):
            if len(prefix) > 1:
                self._prefixes.append((prefix + "/", token))

    def discover(self, seen: Observation, given: ConfiguredEnv) -> Discovered:
        """Return the names of all inputs that a program was seen to use."""
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
        """Return the packages to which some installed files belong; skip files of no package.

        A program saw that these files exist, but did not open them. The program depends on their
        packages, since a file disappears when its package is uninstalled.
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
        """Return those of `paths` whose input names are not cached; collect the cached names.

        Each cached name is added to `files`, `packages` or `pythons`, according to its kind.
        """
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
        """Cache the name under which an installed file is an input.

        Every worker loads the same installed files, so each name is needed many times. A file that
        belongs to neither a standard library nor a package is cached only under two conditions: it
        is outside of the workspace, and no folder above it holds installed packages.
        """
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
        """Return the names that `Discovered` gives to paths; skip those that are no inputs.

        This tool's files, devices, and the files of standard libraries are no inputs.
        """
        kept = (p for p in paths if not self._is_ours(p) and not self._stdlib_of(p))
        return frozenset(map(self._encode, kept))

    def path(self, member: str) -> str:
        """Convert a file's name in a `Discovered` to the file's absolute path."""
        key = self.key(member)
        return key if key.startswith("/") else self._inside + key

    def _encode(self, path: str) -> str:
        for prefix, token in self._prefixes:
            if path.startswith(prefix):
                return token + path[len(prefix) :]
        return "." if path == self._root else path

    def key(self, member: str) -> str:
        """Convert a file's name in a `Discovered` to the file's path in the file table."""
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


# A cache of facts about paths, each valid as long as no folder above its path changes.


T = TypeVar("T")
_FEWEST, _MOST_GROUPS = 32, 4


class _Group(Struct, Generic[T], frozen=True):
    """Facts about many paths, with everything that must be unchanged for all of them to hold."""

    paths: frozenset[str]
    facts: tuple[T, ...]
    stamps: tuple[tuple[str, Stamp], ...]

    def holds(self) -> bool:
        return all(stamp_of(path) == stamp for path, stamp in self.stamps)


class SettledFacts(Generic[T]):
    """A cache of facts that follow from the entries of the folders above a path.

    A folder's stamp changes when one of its entries is made, removed or replaced, for example by a
    link. If a folder changed a moment ago, its stamp may stay the same at the next change. Facts
    below such a folder are therefore not cached. Not thread-safe.
    """

    def __init__(self) -> None:
        self._facts: dict[str, tuple[T, tuple[str, ...]]] = {}
        self._stamps: dict[str, Stamp] = {}
        self._now = 0
        self._same: dict[str, bool] = {}
        self._ways: dict[str, bool] = {}
        self._groups: list[_Group[T]] = []

    def look_again(self) -> None:
        """Begin a scan of many paths, during which each folder is looked at only once."""
        self._same, self._ways = {}, {}
        self._now = time.time_ns()

    def known(self, paths: frozenset[str]) -> tuple[frozenset[str], tuple[T, ...]]:
        """Begin a scan as `look_again` does, and return all cached facts about some paths.

        Paths that were requested together before are checked as one group.
        """
        self.look_again()
        groups = [g for g in self._groups if g.paths <= paths and g.holds()]
        group = max(groups, key=lambda g: len(g.paths), default=_Group[T](frozenset(), (), ()))
        facts = dict.fromkeys(group.facts)
        found = []
        for path in paths - group.paths:
            fact = self.get(path)
            if fact is not None:
                found.append(path)
                facts[fact] = None
        if not found:
            return group.paths, tuple(facts)
        together = group.paths.union(found)
        if len(found) >= _FEWEST:
            self._group(together, tuple(facts))
        return together, tuple(facts)

    def _group(self, paths: frozenset[str], facts: tuple[T, ...]) -> None:
        """Cache the facts about some paths as a group, which is checked as a whole from now on."""
        if not all(path in self._facts for path in paths):
            return  # a folder has changed meanwhile, which ended them
        places = {file for path in paths for file in self._facts[path][1]}
        for path in paths:
            folder = path
            while folder and (folder := folder.rpartition("/")[0]) not in places:
                places.add(folder)
        stamps = {place or "/": self._stamps.get(place or "/") for place in places}
        known = tuple((place, stamp) for place, stamp in stamps.items() if stamp is not None)
        if len(known) == len(stamps):
            self._groups = [_Group(paths, facts, known), *self._groups][:_MOST_GROUPS]

    def get(self, path: str) -> T | None:
        """Return the cached fact about a path; None if it is missing or may be out of date."""
        cached = self._facts.get(path)
        if cached is None or not self._hold(path, cached[1]) or path not in self._facts:
            return None  # a change has ended all facts, even if the path is settled again
        return cached[0]

    def keep(self, path: str, fact: T, files: tuple[str, ...] = ()) -> None:
        """Cache a fact that was found after the last call of `look_again`."""
        plain = path.startswith("/") and "//" not in path
        if plain and self._hold(path, files):
            self._facts[path] = fact, files

    def _hold(self, path: str, files: tuple[str, ...]) -> bool:
        way = self._way_holds(path.rpartition("/")[0])
        return way and all(map(self._holds, files))

    def _way_holds(self, folder: str) -> bool:
        """Tell whether a folder and all folders above it are unchanged."""
        found = self._ways.get(folder)
        if found is None:
            above, _, name = folder.rpartition("/")
            found = (not name or self._way_holds(above)) and self._holds(folder or "/")
            self._ways[folder] = found
        return found

    def _holds(self, path: str) -> bool:
        """Tell whether facts that depend on this folder or file may be used or cached.

        When the path is first looked at, its last change must be long enough ago that any later
        change gives another stamp. After that, its stamp must stay the same.
        """
        found = self._same.get(path)
        if found is None:
            found = self._same[path] = self._look(path)
        return found

    def _look(self, path: str) -> bool:
        stamp, known = stamp_of(path), self._stamps.get(path)
        if stamp is not None and stamp == known:
            return True
        if known is not None:
            self._facts.clear()
            self._stamps = {p: s for p, s in self._stamps.items() if self._same.get(p)}
        if stamp is None or not is_settled(stamp, self._now):
            return False
        self._stamps[path] = stamp
        return True


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
    """The files that a RECORD file lists.

    To save time, the file is parsed only when its text contains a path that is looked up. Of the
    many RECORD files in a folder, usually only one contains a given path.
    """

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

    def has_no_site(self, path: str) -> bool:
        """Tell whether no folder above a file has distributions.

        Call it only after `Distributions.owner` for the same file.
        """
        folder, slash, _ = path.rpartition("/")
        while slash and folder:
            if self.sites.get(folder) != {}:
                return False
            folder, slash, _ = folder.rpartition("/")
        return True


class Distributions:
    """Finds distributions in any folder that holds ``*.dist-info/RECORD``.

    A folder is read again when its stamp has changed, so that a long-lived process sees new
    installations.
    """

    def __init__(self) -> None:
        self._sites: dict[str, tuple[Stamp | None, dict[str, list[str]]]] = {}
        self._records: dict[str, tuple[Stamp | None, _Record]] = {}

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

    def decisive(self, path: str, owner: tuple[str, str]) -> tuple[str, ...]:
        """Return the RECORD files on which the owner of a file depends.

        If the file's path suggests the name of its owner, only the owner's RECORD files are
        returned. Otherwise all RECORD files of the site folder are returned, since another
        distribution could become the owner.
        """
        site, name = owner
        if _top(path[len(site) + 1 :]) == name:
            return tuple(self.records(site, name))
        return tuple(record for records in self._site(site).values() for record in records)

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
