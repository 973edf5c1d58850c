"""The installed distribution of a file, read from the RECORD files next to it."""

from __future__ import annotations

import os
import re
from dataclasses import field
from pathlib import Path

from gpuemu_flow.inputs.files import Stamp, stamp_of
from gpuemu_flow.quick_dataclass import dataclass

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


@dataclass
class Looked:
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
