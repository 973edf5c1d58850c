"""Refuse an op that is its own reference, or that has to be able to read its reference's file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, shown
from gpuemu_flow.installed import is_installed

_SLUG = "config-op-is-reference"
_EMULATED = ("ptx", "cuda")


def refuse_one_program(
    op: ProgramRef,
    reference: ProgramRef,
    place: KeyPath,
    out: Reporter,
    *,
    root: Path,
    fenced: bool,
) -> None:
    """Report an op and a reference that are one program or, in the sandbox, in one file.

    A program has to read its own file, so that no sandbox can hide a reference that is in it. A
    compiled kernel reads no files.
    """
    if _identity(op) == _identity(reference):
        text = f"{shown(op.text)} is the op and its reference: it would pass whatever it does"
        out.add(_SLUG, place, text, "name a reference that is written independently")
        return
    ours, theirs = list(_files(op, root)), next(_files(reference, root), None)
    if not fenced or op.kind in _EMULATED or theirs is None:
        return
    name = os.path.relpath(theirs, os.path.realpath(root))
    hint = 'put the reference in a file of its own, or set mode = "off" in [sandbox]'
    if theirs in ours:
        text = f"the op and its reference are both in {name}: the sandbox cannot hide the reference"
        out.add(_SLUG, place, text, hint)
    elif theirs.name == "__init__.py" and any(f.is_relative_to(theirs.parent) for f in ours):
        text = f"importing the op runs its reference's file, {name}: the sandbox cannot hide it"
        out.add(_SLUG, place, text, hint)


def _identity(program: ProgramRef) -> tuple[str, ...]:
    """Return what tells a program from others: its file's real path, or its module, and more."""
    path = program.loads or program.path
    place = os.path.realpath(path) if path is not None else program.module
    if program.loads is not None:
        return (place,)
    # A flag in the arguments of a module may choose another computation.
    arguments = program.argv[1:] if program.kind == "torch" or not program.function else ()
    return (place, program.kernel, program.function, *arguments)


def _files(program: ProgramRef, root: Path) -> Iterator[Path]:
    """Yield the real paths of a program's files in the workspace, its main file first."""
    inside = Path(os.path.realpath(root))
    files = program.files if program.loads is None else (program.loads, *program.files)
    for path in map(Path, map(os.path.realpath, files)):
        if path.is_relative_to(inside) and not is_installed(str(path)):
            yield path
