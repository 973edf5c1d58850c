"""Report globs and paths that match nothing, since misspelt ones would weaken the sandbox."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import takewhile

# ruff: noqa: PTH110, PTH112, PTH113 - pathlib's functions raise OSError for long names
from os.path import exists, isdir, isfile
from pathlib import Path, PurePosixPath

from msgspec import Struct

from gpuemu_flow.config.globs import matches
from gpuemu_flow.config.parse_rules import OWN_FOLDERS
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, is_misspelt, shown

SLUG = "config-no-match"
_WILDCARDS = frozenset("*?[")


class ExpectedFiles(Struct):
    """Looks up the files that a configuration expects, and records where it looked."""

    # The workspace.
    root: Path
    # True if this is a copy of the workspace that may lack files. All problems are then
    # warnings.
    mild: bool = False
    # Globs of the files that the configuration includes, and of the files whose names give
    # templates their values. Files and folders that match these globs may be created later.
    listings: tuple[str, ...] = ()
    # Files that rules and builds will make.
    made: frozenset[Path] = frozenset()
    # Files of the ops' programs.
    programs: set[Path] = set()
    # Paths whose appearance or disappearance may change the problems.
    looked_at: set[Path] = set()
    # Patterns that match nothing yet. As soon as one matches, a warning or error of
    # `check_apart` may be obsolete. Each pattern ends with a slash, so that it matches files
    # and folders.
    awaited: set[str] = set()
    _found: dict[str, bool] = {}

    def warn_of_none(self, pattern: str, where: KeyPath, out: Reporter) -> None:
        """Warn of a glob of ``depends``, ``shared`` or ``build.inputs`` that matches no file."""
        if pattern not in self._found:
            base = self._base(pattern)
            self._found[pattern] = any(
                isfile(path) and path.relative_to(base).parts[0] not in OWN_FOLDERS
                for path in self._matched(pattern)
            )
        if self._found[pattern] or self._comes(pattern):
            return
        folder = self._base(pattern) / pattern
        hint = self._nearest(pattern)
        if not _WILDCARDS & {*pattern} and isdir(folder):
            hint = f"it is a folder: write {f'{pattern}/**/*'!r}"
        text = f"{dotted(where)}: {shown(pattern)} matches no file"
        out.add(SLUG, where, text, hint, warning=True)

    def tell_of_none(self, pattern: str, where: KeyPath, out: Reporter) -> None:
        """Report a glob of ``include`` that matches no file.

        If a part of the glob seems misspelt, an error is reported, else a warning. Nothing is
        reported if the folder exists and is empty.
        """
        plain = takewhile(lambda part: not _WILDCARDS & {*part}, PurePosixPath(pattern).parts)
        folder = self._base(pattern).joinpath(*plain)
        if isdir(folder) and all(name.startswith(".") for name in _names(folder)):
            return
        hint = self._nearest(pattern)
        text = f"{dotted(where)} = {shown(pattern)} matches no file"
        out.add(SLUG, where, text, hint or "correct it, or remove it", warning=not hint)

    def check_apart(
        self, pattern: str, where: KeyPath, out: Reporter, *, mild: bool = False
    ) -> None:
        """Report a glob of ``apart`` that matches nothing, which is probably a mistake.

        A glob is not reported if its folder is empty, or if it matches files that will be made or
        that a template looks for.
        """
        first = next(self._matched(pattern), None)
        if first is not None:
            self.looked_at.add(first)
            return
        if self._comes(pattern):
            return
        parts = PurePosixPath(pattern).parts
        # A part is missing if its parent folders exist but do not contain it.
        number = next(n for n in range(1, len(parts) + 1) if not self._folders(parts[:n]))
        folders = self._folders(parts[: number - 1])
        missing = parts[number - 1]
        text = f"{dotted(where)}: {shown(pattern)} matches nothing, so that nothing is kept apart"
        if not _WILDCARDS & {*missing}:
            hint = self._nearest_in(folders, missing) or "correct it, or make the folder"
            out.add(SLUG, where, text, hint, warning=mild or self.mild)
        elif any(not name.startswith(".") for folder in folders for name in _names(folder)):
            # The folder of candidates may contain other files, such as notes.
            self.awaited.add(f"{pattern}/")
            found = any(path.is_relative_to(folder) for folder in folders for path in self.programs)
            lost = found and not (mild or self.mild)
            out.add(SLUG, where, text, "do the names end so?", warning=not lost)
        else:
            self.looked_at.update(folders)
            self.awaited.add(f"{'/'.join((*parts[: number - 1], '*'))}/")

    def check_hidden(
        self,
        paths: Iterable[tuple[str, Path]],
        writable: Iterable[Path],
        out: Reporter,
        *,
        mild: bool = False,
    ) -> None:
        """Report paths of ``hidden`` that do not exist.

        A path outside of the workspace is no error if its parent folder does not exist either, and
        neither seems misspelt: the workspace may have been imported from such folders, and then
        copied to another machine. A single warning reports all of these paths.
        """
        where = ("sandbox", "hidden")
        later = (self.root / ".gpuemu-cache", *writable)
        gone: list[str] = []
        for written, path in paths:
            if exists(path):
                self.looked_at.add(path)
                continue
            if any(each.is_relative_to(path) for each in self.made):
                continue
            if any(path.is_relative_to(folder) for folder in later):
                continue
            above = next(folder for folder in path.parents if exists(folder))
            lost = path.relative_to(above).parts[0]
            self.looked_at.add(above / lost)
            near = [name for name in _names(above) if is_misspelt(lost, [name])]
            inside = path.is_relative_to(self.root)
            if not (inside or near or above == path.parent):
                gone.append(written)
                continue
            hint = self._nearest_in([above], lost) or "correct it, or remove it"
            if _WILDCARDS & {*written}:
                hint = "these are paths, not globs: name the folder"
            text = f"{dotted(where)}: {shown(written)} does not exist, so that nothing is hidden"
            out.add(SLUG, where, text, hint, warning=mild or self.mild)
        if gone:
            more = f" and {len(gone) - 1} more" if len(gone) > 1 else ""
            text = f"{dotted(where)}: {shown(gone[0])}{more} do not exist, nor do their folders"
            hint = "take them out, if this machine has no copies of them"
            out.add(SLUG, where, text, hint, warning=True)

    def _base(self, pattern: str) -> Path:
        return Path("/") if pattern.startswith("/") else self.root

    def _matched(self, pattern: str) -> Iterator[Path]:
        """Yield the files and folders that a glob matches."""
        if not pattern.strip("/"):
            yield self._base(pattern)
            return
        try:
            yield from self._base(pattern).glob(pattern.strip("/"))
        except (OSError, ValueError, NotImplementedError):  # errors of pathlib for odd patterns
            return

    def _folders(self, parts: tuple[str, ...]) -> list[Path]:
        return [path for path in self._matched("/".join(parts)) if isdir(path)]

    def _comes(self, pattern: str) -> bool:
        """Tell whether a glob matches files or folders that will be made later."""
        later = [os.path.relpath(path, self.root) for path in self.made]
        later += [listing.rstrip("/") for listing in self.listings]
        return any(
            matches(pattern, str(part))
            for name in later
            for part in (PurePosixPath(name), *PurePosixPath(name).parents)
        )

    def _nearest(self, pattern: str) -> str:
        """Return a hint for a glob of which a part may be misspelt; empty if there is none.

        The first part that does not exist is compared with the names in its folder, and the hint
        gives the most similar name. Parts from the first wildcard on are not compared.
        """
        path = self._base(pattern)
        for part in PurePosixPath(pattern.strip("/")).parts:
            if _WILDCARDS & {*part}:
                return ""
            if not exists(path / part):
                return self._nearest_in([path], part)
            path /= part
        return ""

    def _nearest_in(self, folders: Iterable[Path], name: str) -> str:
        out = Reporter("")
        names = {name: None for folder in folders for name in _names(folder)}
        return out.nearest(name, tuple(names))


def _names(folder: Path, most: int = 2000) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []
