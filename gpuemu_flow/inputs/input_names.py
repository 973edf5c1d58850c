"""Names of inputs: convert what a program was seen to use into members of `Discovered`."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from gpuemu_flow.inputs import own_code
from gpuemu_flow.inputs.distributions import Distributions, Looked, normal_name
from gpuemu_flow.inputs.files import Stamp, stamp_of
from gpuemu_flow.inputs.links import has_link, links_of
from gpuemu_flow.inputs.plan import ALL_VARIABLES
from gpuemu_flow.inputs.settled import SettledFacts
from gpuemu_flow.installed import is_installed
from gpuemu_flow.observed import ConfiguredEnv, Observation
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered

_STDLIB = re.compile(r"(.*/lib(?:64)?/python3\.\d+t?)(?:/(?!site-packages/|dist-packages/).*|$)")
_PYC = re.compile(r"(.*)/__pycache__/([^/]+?)\.[^/.]+(?:\.opt-\d)?\.pyc")
_NO_FILES = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108 - files as any other
_TOP = re.compile(r".*/(?:site|dist)-packages/[^/]+")
_ASKED = re.compile(r"(/.*)/([^/-]+)\.dist-info")
"""Matches an entry for a distribution that a program requested by name; see `runners.observe`."""


@dataclass(frozen=True)
class _Installed:
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
