"""Find the configuration file, and keep the paths and globs that it has inside the workspace."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct

from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shown
from gpuemu_flow.model.errors import Problem, UsageError, nearest

# Find the project's configuration file without importing the modules that read it.

FILE_NAME = "gpuemu.toml"


def exists(path: Path) -> bool:
    """Tell whether there is anything at `path`; return False if access is refused."""
    try:
        return path.exists()
    except OSError:  # a folder without permission, a name that is too long
        return False


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False


def find_config(start: Path, environ: Mapping[str, str]) -> Path:
    """Return the path of the project's configuration file. This is the file that ``GPUEMU_CONFIG``
    names, relative to `start`; else, the ``gpuemu.toml`` in `start` or in the nearest folder above.
    Raises UsageError: ``config-not-found``."""
    named = environ.get("GPUEMU_CONFIG", "")
    if named:
        path = start / named
        if not exists(path):
            text = f"GPUEMU_CONFIG names {named}, which does not exist"
            raise UsageError(Problem("config-not-found", text))
        return path
    folder = start.absolute()
    for place in (folder, *folder.parents):
        if is_file(place / FILE_NAME):
            return place / FILE_NAME
    raise UsageError(
        Problem(
            "config-not-found",
            f"there is no {FILE_NAME} in {start} or above it",
            "`gpuemu-flow init` writes one",
        )
    )


# Globs of files: the form in which the configuration may have them, and which names they match.


def matches(pattern: str, name: str) -> bool:
    """Tell whether a glob of ``inputs`` matches a path; the file need not exist yet."""
    return _match(PurePosixPath(pattern).parts, PurePosixPath(name).parts)


def _match(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    reachable = {0}
    for number, part in enumerate(pattern):
        if part == "**":
            last = number == len(pattern) - 1
            top = len(parts) if last else len(parts) - 1
            reachable = set(range(min(reachable), top + 1)) if reachable else set()
        else:
            reachable = {
                place + 1
                for place in reachable
                if place < len(parts) and fnmatchcase(parts[place], part)
            }
        if not reachable:
            return False
    return len(parts) in reachable


# Glob patterns of files, as they are written in the files of a workspace.


def plain_glob(written: str) -> tuple[PurePosixPath, str]:
    """Return a glob without ``.`` and ``..``, and the reason if it is not allowed."""
    path = PurePosixPath(os.path.normpath(written))
    if not written.isprintable():
        return path, "holds control characters"
    if path.is_absolute() or ".." in PurePosixPath(written).parts:
        return path, "leads out of the workspace"
    if not path.parts:
        return path, "is the workspace itself"
    if any("**" in part and part != "**" for part in path.parts):
        return path, "has a '**' that does not stand alone between slashes"
    return path, ""


MAX_SIBLINGS = 2000
UNREADABLE = "cannot be read"
UNREADABLE_HINT = "check the owner and the mode of the file and of its folders"
MAX_NAME, MAX_PATH = 255, 4095  # bytes: the limits of Linux, for names and paths


class WorkspacePaths(Struct):
    """Resolves the paths in one file, and checks that they are allowed."""

    # Absolute and resolved folder of the project's configuration file.
    root: Path
    # Absolute folder of the file that is being read; relative paths start here.
    base: Path
    # The folder that ``~`` stands for.
    home: Path = Path("/")
    # True if the file sets ``allow_outside = true`` and the user has granted it.
    allow_outside: bool = False
    # True if the file sets ``allow_outside = true`` and the user has not granted it.
    not_granted: bool = False
    # Files that do not exist, and whose creation would change the configuration.
    probed: set[Path] = set()
    # Files that rules make, which need not exist yet.
    made: frozenset[Path] = frozenset()

    def inside(self, path: Path) -> bool:
        """Tell whether a resolved path is in the workspace or in the folder of the file being read.
        A user's defaults file is allowed to name files in its own folder. The check prevents a
        downloaded project from using files outside of its folder."""
        return any(path.is_relative_to(home) for home in (self.root, self.base.resolve()))

    def relative(self, path: Path) -> str:
        """Return `path` relative to the root if it is inside, else only its name. The result is the
        same on all machines."""
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return path.name

    def resolve(
        self, text: str, where: KeyPath, out: Reporter, *, anywhere: bool = False
    ) -> Path | None:
        """Return the absolute path that `text` names; None if a problem was reported. Symbolic
        links in the path are not resolved, so that later changes of them are noticed. The path and
        the present targets of its links must lie inside the workspace."""
        written = Path(text)
        if anywhere and written.parts[:1] == ("~",):
            written = self.home.joinpath(*written.parts[1:])
        try:
            named = self.named(written)
            path = Path(os.path.realpath(named))
        except (OSError, ValueError, RuntimeError) as error:
            out.add("config-value", where, f"{dotted(where)} is not a usable path: {error}")
            return None
        if anywhere:
            return path
        if self.allow_outside or self.inside(path):
            return named
        if self.not_granted:
            out.add(
                "config-outside-not-granted",
                where,
                f"{dotted(where)} = {shown(text)} leads outside the workspace; its own file can "
                "ask for that, but only you can allow it",
                "give --allow-outside, set GPUEMU_ALLOW_OUTSIDE=1, or write "
                "`[project] allow_outside = true` into your own ~/.config/gpuemu/config.toml",
            )
            return None
        link = " through a link" if self.inside(Path(os.path.normpath(self.base / written))) else ""
        out.add(
            "config-path-outside",
            where,
            f"{dotted(where)} = {shown(text)} leads outside the workspace{link}",
            "move it inside, or set allow_outside = true under [project] and give --allow-outside",
        )
        return None

    def globs(self, patterns: Iterable[str], where: KeyPath, out: Reporter) -> dict[str, KeyPath]:
        """Map each glob, made relative to the workspace root, to its key path in the file. An
        invalid glob is reported and left out. So is a glob outside of the workspace, unless the
        user allows it; an allowed one is made absolute."""
        globs: dict[str, KeyPath] = {}
        for place, pattern in enumerate(patterns):
            here = (*where, place)
            parts = PurePosixPath(pattern).parts
            if any("**" in part and part != "**" for part in parts):
                text = f"{shown(pattern)}: '**' must stand alone between slashes"
                out.add("config-value", here, text)
                continue
            if len(pattern) > MAX_PATH or any(
                len(part.encode(errors="replace")) > MAX_NAME for part in parts
            ):
                text = f"{shown(pattern)}: a name is longer than any file's"
                out.add("config-value", here, text)
                continue
            fixed = []
            for part in parts:
                if any(c in part for c in "*?["):
                    break
                fixed.append(part)
            free = parts[len(fixed) :]
            if ".." in free:
                out.add("config-value", here, f"{shown(pattern)}: '..' after a wildcard")
                continue
            # A glob may be a plain file name; then its folder has to be inside.
            if self.resolve("/".join(fixed) or ".", here, out) is None:
                continue
            absolute = os.path.normpath(self.base.joinpath(pattern))
            relative = os.path.relpath(absolute, self.root)
            if relative == "." or absolute == "/":
                what = "the whole workspace" if relative == "." else "the root folder"
                text = f"{dotted(here)} = {shown(pattern)} is {what}"
                out.add("config-value", here, text, 'name files or folders in it: "data/*.json"')
                continue
            globs.setdefault(absolute if relative.startswith("..") else relative, here)
        return globs

    def named(self, written: Path) -> Path:
        """Make the path `written` in the file absolute; keep its links where possible. Links before
        a ``..`` are resolved, since ``..`` leads to the parent of a link's target. If the result is
        not below `root`, which is resolved, then the links of `base` are resolved."""
        path = self.base / written
        parts = path.parts
        if ".." in parts:
            last = len(parts) - parts[::-1].index("..")
            path = Path(os.path.realpath(Path(*parts[:last])), *parts[last:])
        if path.is_relative_to(self.root):
            return path
        base = Path(os.path.realpath(self.base))
        return base / path.relative_to(self.base) if path.is_relative_to(self.base) else path

    def existing_file(self, text: str, where: KeyPath, out: Reporter) -> Path | None:
        path = self.resolve(text, where, out)
        if path is None or path in self.made:
            return path
        fault = self.file_fault(path)
        if fault:
            within = f"name a file in it: {text.rstrip('/') + '/op.py'!r}"
            hint = within if os.path.isdir(path) else self.beside(path)  # noqa: PTH112 - never raises
            hint = UNREADABLE_HINT if fault.startswith(UNREADABLE) else hint
            out.add("config-path-missing", where, f"{dotted(where)} = {shown(text)} {fault}", hint)
            return None
        return path

    @staticmethod
    def file_fault(path: Path) -> str:
        try:
            if path.is_dir():
                return "is a folder"
            if not path.exists():
                return "does not exist"
            if not path.is_file():
                return "is not a regular file"
            return "" if os.access(path, os.R_OK) else f"{UNREADABLE}: {os.strerror(errno.EACCES)}"
        except OSError as error:
            return f"{UNREADABLE}: {error.strerror}"

    def beside(self, path: Path) -> str:
        """Return a hint with the file in the same folder whose name is most similar to `path`'s."""
        try:
            with os.scandir(path.parent) as entries:
                names = tuple(e.name for e in islice(entries, MAX_SIBLINGS))
        except OSError:
            return "relative paths start at the folder of the file that names them"
        best = nearest(path.name, names)
        return f"did you mean {self.relative(path.parent / best)!r}?" if best else ""
