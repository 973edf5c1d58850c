"""Action keys: the one place where content becomes identity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuemu_flow.types import Json

TRIGGERS = ("code", "params", "input", "env")
OBSERVED = "observed"
_OF_CODE = ("file", "link", "missing", "folder")


def trigger_of(change: str) -> str:
    """Return which of `TRIGGERS` a part named by `changed_parts` belongs to, or ``stage``.

    Observed files count as code, variables and packages as environment.
    """
    part, _, rest = change.partition(".")
    if part != OBSERVED:
        return part
    return "code" if rest.partition(" ")[0] in _OF_CODE else "env"


def canonical(value: Json) -> bytes:
    """The one byte string for a JSON value: sorted keys, no blanks, ASCII, NaN refused.

    Raises
    ------
    ValueError
        For NaN and infinities, which no key may hold.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_bytes(data: bytes) -> str:
    """sha256 of `data`, lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def digest_json(value: Json) -> str:
    """sha256 of the canonical form of a JSON value."""
    return digest_bytes(canonical(value))


@dataclass(frozen=True)
class KeyParts:
    """What decides whether a task must run, by the kind of thing that may change.

    Attributes
    ----------
    stage : str
        Stage name with its version, such as ``compare/1``.
    code : mapping of path to digest
        Scripts, the workspace's modules that they import, and ``depends`` files.
    params : JSON
        The op's own slice of the configuration.
    input : mapping of name to digest
        Manifests of the stages before this one, by role, not by path: a renamed op keeps its key.
    env : mapping of str to str
        Interpreter, package versions, CPU features.
    observed : mapping of str to str
        State of every input that the program was seen to use, by a name such as
        ``file lib/table.npy`` or ``variable SCALE``.
    """

    stage: str
    code: Mapping[str, str] = field(default_factory=dict)
    params: Json = None
    input: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    observed: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        """As kept in the task's state, so that ``explain`` can name what changed."""
        return {
            "stage": self.stage,
            "code": dict(self.code),
            "params": self.params,
            "input": dict(self.input),
            "env": dict(self.env),
            "observed": dict(self.observed),
        }

    def key(self) -> str:
        """The action key: sha256 over all the parts."""
        return digest_json(self.to_json())


def changed_parts(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[tuple[str, Json, Json]]:
    """Differences between two `KeyParts.to_json` values.

    Returns
    -------
    list of (str, JSON, JSON)
        Dotted name of the part (``code.scripts/softmax.py``), old value, new value; None stands
        for absent.
    """
    found: list[tuple[str, Json, Json]] = []
    for part in ("stage", *TRIGGERS, OBSERVED):
        _differences(part, old.get(part), new.get(part), found)
    return found


def _differences(
    name: str, old: Json, new: Json, found: list[tuple[str, Json, Json]], depth: int = 0
) -> None:
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and depth < 6:
        for key in sorted({*old, *new}):
            _differences(f"{name}.{key}", old.get(key), new.get(key), found, depth + 1)
    else:
        found.append((name, old, new))
