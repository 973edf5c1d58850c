"""Names of inputs: convert what a program was seen to use into members of `Discovered`."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.build import own_code
from gpuemu_flow.build.files import Stamp, stamp_of
from gpuemu_flow.build.globs import has_link, links_of
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


class Distributions:
    """Finds distributions in any folder that holds ``*.dist-info/RECORD``.

    A folder is read again when its stamp has changed, so that a long-lived process sees new
    installations.
    """

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
