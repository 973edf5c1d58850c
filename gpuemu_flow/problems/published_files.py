"""Find the files that a workspace of the published gpuemu names, for use in place or as copies."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from gpuemu_flow.config.find import is_file
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.problems.found import LARGEST_FILE, MOST_FILES, SKIPPED
from gpuemu_flow.problems.model import SkippedProblem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json

MOST_COPIED = 64 << 20
_INTERPRETER = re.compile(r"python(?:3(?:\.\d+)?)?\s+(?=\S)")
_FUNCTION = re.compile(r"(.+\.py):([^:]*)", re.DOTALL)
_MODULE = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")


class PlaceError(Exception):
    """Raised if a program cannot be used in the new workspace; its text is the reason."""


@dataclass(frozen=True)
class Places:
    """Finds the files of a workspace of the published gpuemu, and gives their new paths.

    Attributes
    ----------
    root : Path
        Folder of the published workspace.
    into : Path
        Folder of the new workspace.
    """

    root: Path
    into: Path

    @property
    def in_place(self) -> bool:
        """Tell whether the files are used where they are instead of being copied."""
        return self.root.resolve().is_relative_to(self.into.resolve())

    @property
    def prefix(self) -> str:
        """Return the path from the new workspace to the published one, ending in ``/``.

        The path is empty if both workspaces are the same folder, or if the files are copied.
        """
        if not self.in_place:
            return ""
        below = self.root.resolve().relative_to(self.into.resolve()).as_posix()
        return "" if below == "." else f"{below}/"

    def program(self, value: Json, base: Path | None = None) -> Json:
        """Return the value that names a program in the new workspace's configuration.

        Parameters
        ----------
        value : JSON
            The value that names the program in the published configuration.
        base : Path, optional
            A folder below `root`; a relative path is looked for there first, then below `root`.

        Raises
        ------
        PlaceError
            There is no such file in the published workspace, or the program cannot be moved.
        """
        if not isinstance(value, str):
            if self.prefix:
                raise PlaceError("a program that is no text: import into its own folder")
            return value
        text = _INTERPRETER.sub("", value.strip(), count=1)
        function = _FUNCTION.fullmatch(text)
        if function:
            return f"{self.file(function[1], base)}:{function[2]}"
        module = _MODULE.fullmatch(text)
        if module and not text.endswith(".py"):
            return self._module(module[1], module[2])
        return self.file(text, base)

    def _module(self, name: str, function: str) -> str:
        if self.prefix:
            # A dotted name starts at the published workspace, which is not the present one.
            stem = name.replace(".", "/")
            for file in (f"{stem}.py", f"{stem}/__init__.py"):
                if is_file(self.root / file):
                    return f"{self.prefix}{file}:{function}"
        return f"{name}:{function}"

    def file(self, text: str, base: Path | None = None) -> str:
        """Convert a file's path in the published workspace to its path in the new workspace.

        An absolute path may come from another machine. The file is therefore also looked for by the
        last parts of its path.

        Parameters
        ----------
        text : str
            The path as the published workspace gives it.
        base : Path, optional
            A folder below `root`; a relative path is looked for there first, then below `root`.

        Raises
        ------
        PlaceError
            There is no such file in the published workspace.
        """
        root, path = self.root.resolve(), Path(text)
        starts = [folder for folder in (base, self.root) if folder is not None]
        tried = [start / path for start in starts]
        if path.is_absolute():
            parts = PurePosixPath(text).parts[1:]
            tried += [start.joinpath(*parts[at:]) for at in range(len(parts)) for start in starts]
        for place in tried:
            real = Path(os.path.realpath(place))
            if is_file(real) and real.is_relative_to(root):
                return self.prefix + real.relative_to(root).as_posix()
        if any(is_file(place) for place in tried):
            raise PlaceError(f"{text[:200]} lies outside of its workspace; move it there")
        raise PlaceError(f"there is no file {text[:200]}")

    def copies(self, left: list[SkippedProblem]) -> dict[str, bytes]:
        """Return the content of the files to be copied, by path; empty if none need copying.

        Files are not copied if they can be used in place. Files that are too large to copy are
        added to `left`.

        Raises
        ------
        UsageError
            ``import-too-many``.
        """
        if self.in_place:
            return {}
        found: dict[str, bytes] = {}
        total, seen, into = 0, 0, self.into.resolve()
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(
                name
                for name in folders
                if name not in SKIPPED
                and not name.startswith(".")
                and Path(folder, name).resolve() != into
            )
            for name in sorted(names):
                file = Path(folder, name)
                seen += 1
                if seen > MOST_FILES or total > MOST_COPIED:
                    text = f"{self.root} holds more than {MOST_FILES} files or 64 MiB"
                    hint = "import into that folder itself: its files are then read in place"
                    raise UsageError(Problem("import-too-many", text, hint))
                if name.startswith(".") or file.is_symlink() or not is_file(file):
                    continue
                if file.stat().st_size > LARGEST_FILE:
                    reason = f"more than {LARGEST_FILE} bytes: not copied; copy it if it is needed"
                    left.append(SkippedProblem(str(file), reason))
                    continue
                content = file.read_bytes()
                total += len(content)
                found[file.relative_to(self.root).as_posix()] = content
        return found
