"""Hide from an op the files that its reference was seen to use.

The files that a reference opens, or imports by computed names, are known only after it ran. So an
op waits for its reference if both have to run. An op that could read such a file is run again,
without access to it, before it is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuemu_flow.build.globs import without_installed
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import KeyParts
from gpuemu_flow.tasks import stages

_ROLE = "hidden "
_HIDDEN = "hidden"


def revealed(used: Discovered, known: Sequence[str], root: Path) -> list[str]:
    """Return the workspace files that a reference used and that are not in `known`, sorted."""
    inside = {name for name in used.files if not name.startswith(("/", "<", ".."))}
    return sorted(name for name in without_installed(inside, known) if (root / name).is_file())


def as_inputs(hidden: Sequence[str]) -> dict[str, str]:
    """Convert the names of hidden files to entries of `KeyParts.input`."""
    return {_ROLE + name: _HIDDEN for name in hidden}


def hidden_by(inputs: Mapping[str, str]) -> list[str]:
    """Return the names of the hidden files in `KeyParts.input`; the inverse of `as_inputs`."""
    return [role.removeprefix(_ROLE) for role in inputs if role.startswith(_ROLE)]


def without(settings: Json, hidden: Sequence[str], root: Path) -> Json:
    """Return a program's settings, with `hidden` added to the files that it must not read."""
    if not hidden:
        return settings
    paths = [str(root / name) for name in hidden]
    fence = settings.get("sandbox")
    if fence is None:
        return settings
    return {**settings, "sandbox": {**fence, "hidden": [*fence["hidden"], *paths]}}


def without_hidden(stage: str, settings: Json, parts: KeyParts, root: Path) -> Json:
    """Return a task's settings, changed so that the op cannot read the hidden files in `parts`."""
    hidden = hidden_by(parts.input)
    if stage == stages.OP:
        return without(settings, hidden, root)
    return {**settings, "op": without(settings["op"], hidden, root)} if hidden else settings
