"""List the files that an op's process must not touch; this module is cheap to import."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypedDict

from gpuemu_flow.runners.imports import is_workspace_path


class Located(Protocol):
    """A program that the configuration names: its files, and the name of its function."""

    @property
    def path(self) -> Path | None:
        """Return the absolute path of the program's file; None if it has no file."""

    @property
    def function(self) -> str:
        """Return the name of a callable program's function; empty for other kinds of program."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the absolute paths of all files that are known to be part of the program."""


class OffLimits(TypedDict):
    """Files that a program must not use, or not change.

    Each key has the name, type and meaning of an attribute of `Program`.
    """

    forbidden: tuple[str, ...]
    read_only: tuple[str, ...]


NOTHING = OffLimits(forbidden=(), read_only=())


def off_limits(
    op: Located,
    reference: Located,
    sources: Iterable[Path],
    *,
    alone: Iterable[Path] = (),
    cache: Path,
    root: Path,
) -> OffLimits:
    """List the files that an op's process must not touch."""
    return OffLimits(
        forbidden=_forbidden(op.files, (*reference.files, *alone), cache, root),
        read_only=tuple(sorted(map(str, sources))),
    )


def off_limits_of(
    own: Iterable[Path], references: Sequence[Path], *, cache: Path, root: Path
) -> OffLimits:
    """List the files that a compiler must not touch while it compiles the sources `own`."""
    return OffLimits(forbidden=_forbidden(own, references, cache, root), read_only=())


def _is_around(package: Path, file: Path) -> bool:
    """Tell whether `package` is the ``__init__`` file of a package that contains `file`."""
    return package.name == "__init__.py" and file.is_relative_to(package.parent)


def _real(path: Path | None) -> Path:
    return Path(os.path.realpath(path or ""))


def _forbidden(
    op_files: Iterable[Path], reference_files: Sequence[Path], cache: Path, root: Path
) -> tuple[str, ...]:
    """Return the reference's own files and the cache folder.

    A file or package that also contains the op is left out. So is everything outside of the
    workspace, such as an interpreter that runs the reference.
    """
    own = set(map(_real, op_files))
    found = [
        path
        for path in map(_real, reference_files)
        if path not in own
        and is_workspace_path(str(path), str(root))
        and not any(_is_around(path, file) for file in own)
    ]
    if not root.is_relative_to(cache):
        found.append(cache)
    return tuple(str(path) for path in found)
