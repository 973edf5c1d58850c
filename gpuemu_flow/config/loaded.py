"""Read the keys ``loads``, ``triton_if`` and ``skip_if`` of a program that a loader makes.

A loader is a function that takes the path of a file, and returns the function to run. ``loads``
names the file. If the file contains a word of ``triton_if``, the program is of kind
``triton``. If the file contains a word of ``skip_if``, the program is skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.types import Json

KEYS = ("loads", "triton_if", "skip_if")
MOST_BYTES = 4 << 20


def with_loaded(
    ref: ProgramRef,
    table: Mapping[str, Json],
    where: KeyPath,
    workspace: WorkspacePaths,
    out: Reporter,
    looked_into: dict[Path, str],
) -> ProgramRef | None:
    """Add the file that ``loads`` names to a program; return None if a problem was reported.

    Without ``loads``, the program is returned unchanged.

    Parameters
    ----------
    ref : ProgramRef
        The program; with ``loads``, its function is called with the path of the file.
    table : mapping
        The program's table in the configuration.
    looked_into : dict
        Receives the file's digest if the file was searched for the words of ``triton_if`` or
        ``skip_if``.
    """
    if "loads" not in table:
        for key in KEYS[1:]:
            if key in table:
                place = (*where, key)
                text = f"{dotted(place)} has no effect without loads"
                out.add("config-unread-key", place, text, 'loads = "candidates/a.py"')
        return ref
    place = (*where, "loads")
    path = workspace.existing_file(table["loads"], place, out)
    if path is None:
        return None
    relative = workspace.relative(path)
    ref = replace(
        ref,
        loads=path,
        loads_relative=relative,
        text=f"{ref.text}({table['loads']})",
        files=(*ref.files, path),
    )
    wanted = {key: table.get(key, []) for key in KEYS[1:]}
    if not any(wanted.values()):
        return ref
    content = _content(path, place, out)
    if content is None:
        return None
    looked_into[path] = hashlib.sha256(content).hexdigest()
    found = {
        key: next((word for word in words if word.encode() in content), "")
        for key, words in wanted.items()
    }
    if found["skip_if"]:
        ref = replace(ref, skip=f"{relative} holds {shown(found['skip_if'])} (skip_if)")
    return replace(ref, kind="triton") if found["triton_if"] else ref


def _content(path: Path, place: KeyPath, out: Reporter) -> bytes | None:
    fault = ""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
    else:
        if len(content) <= MOST_BYTES:
            return content
        fault = f"has more than {MOST_BYTES >> 20} MiB"
    out.add("config-value", place, f"{dotted(place)} = {shown(path.name)} {fault}")
    return None
