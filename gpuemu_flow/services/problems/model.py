"""Options of an import, and its data: problems found, imported and skipped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from gpuemu_flow.model.types import Json

SEED = 42


class Options(msgspec.Struct, frozen=True):
    """Options of an import."""

    # Further files or folders with candidates.
    candidates: tuple[Path, ...] = ()
    # True to scale sizes down.
    small: bool = False
    # True to try other sizes than those of the problem.
    varied: bool = True
    # Number of cases per op.
    cases: int = 12
    # Folder of the workspace.
    into: Path = Path()
    # Dtype of the cases.
    dtype: str = "float32"


def halved(value: Json, cap: int) -> Json:
    """Halve a size until it is at most `cap` (0: no cap); return other values unchanged."""
    while cap and type(value) is int and value > cap:
        value //= 2
    return value


class CandidateProgram(msgspec.Struct, frozen=True):
    """An implementation of a problem."""

    # Made of letters, digits, ``_``, ``.`` and ``-``.
    name: str
    # The file that it was read from.
    path: Path
    source: bytes


class ProblemSource(msgspec.Struct, frozen=True):
    """A problem as it was found, before anything of it ran."""

    # Made of the characters allowed in `CandidateProgram.name`.
    name: str
    path: Path
    source: bytes
    # Integers that the file assigns to names at its top level.
    constants: Mapping[str, int] = {}
    candidates: tuple[CandidateProgram, ...] = ()


class Argument(msgspec.Struct, frozen=True):
    """One argument of the reference: a tensor with a name, or a constant value."""

    # Empty for a value.
    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    floating: bool = False
    # The least and the largest value seen; for integers drawn by ``randint``, the bounds of the
    # draw.
    low: float | None = None
    high: float | None = None
    # Kind of the values, as `docs/inputs.md` names it.
    kind: str = ""
    # ``upper`` or ``lower``: the triangle that contains all non-zero values.
    part: str = ""
    value: Json = None
    # The function that gives the values; empty if this tool draws them.
    generate: str = ""
    # Further keys of the input in the configuration.
    rules: Mapping[str, Json] = {}


class ReferenceOutput(msgspec.Struct, frozen=True):
    """An output of the reference."""

    # Number of axes.
    rank: int
    # True if the output holds floats.
    floating: bool = True
    # True if no element is NaN or infinite.
    finite: bool = True
    # Empty if the output gets its name from its position, such as ``out0``.
    name: str = ""
    # The axes of the output: sizes or expressions of dims. Empty if they are not known.
    dims: tuple[int | str, ...] = ()
    # Further keys of the output in the configuration.
    rules: Mapping[str, Json] = {}


class ProblemFacts(msgspec.Struct, frozen=True):
    """Facts about a problem with given constants, as reported by the problem's own code."""

    # Arguments with which the model is constructed; empty if it is a function.
    init: tuple[Json, ...]
    arguments: tuple[Argument, ...]
    # Globals whose values differ from those in the file because constants were changed.
    globals: Mapping[str, Json] = {}
    # Empty unless the model was run.
    outputs: tuple[ReferenceOutput, ...] = ()
    # Float inputs for which trials with values of either sign gave finite outputs.
    free: frozenset[str] = frozenset()

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """Return the arguments that are tensors."""
        return tuple(one for one in self.arguments if one.name)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the tensors."""
        return tuple(one.shape for one in self.tensors)


class ImportedProblem(msgspec.Struct, frozen=True):
    """A problem as it is imported into the workspace."""

    source: ProblemSource
    # Facts about the problem with the sizes that the workspace begins with.
    about: ProblemFacts
    # By the name of a dim: the sizes that it may have, or an expression that computes its size
    # from other dims.
    dims: Mapping[str, tuple[int, ...] | str] = {}
    # Axes of each tensor: a size or an expression of dims.
    axes: tuple[tuple[int | str, ...], ...] = ()
    # Constants that were scaled, with their values before and after.
    scaled: Mapping[str, tuple[int, int]] = {}
    # Empty where the model has none.
    weights: bytes = b""
    # Inputs that have this dtype in the problem get the dtype of the case; others keep theirs.
    dtype: str = "float32"
    # Further keys of the schema.
    schema: Mapping[str, Json] = {}
    # Remarks on the problem, to be printed.
    notes: tuple[str, ...] = ()


class SkippedProblem(msgspec.Struct, frozen=True):
    """A problem or candidate that was not imported, and the reason."""

    what: str
    reason: str


class ImportOutcome(msgspec.Struct, frozen=True):
    """The outcome of an import."""

    # Contents by path in the workspace; the configuration last.
    files: Mapping[str, bytes]
    taken: tuple[ImportedProblem, ...]
    left: tuple[SkippedProblem, ...] = ()
    # True if the programs are read where they are, not copied.
    in_place: bool = False
