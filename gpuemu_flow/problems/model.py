"""Data classes for the import of a benchmark: problems found, imported and skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class CandidateProgram:
    """An implementation of a problem.

    Attributes
    ----------
    name : str
        Made of letters, digits, ``_``, ``.`` and ``-``.
    path : Path
        The file that it was read from.
    source : bytes
    triton : bool
        True if the program launches Triton kernels or asks for a GPU, and so runs in Triton's
        interpreter.
    gpu : bool
        True if the program asks for a GPU.
    """

    name: str
    path: Path
    source: bytes
    triton: bool = False
    gpu: bool = False


@dataclass(frozen=True)
class ProblemSource:
    """A problem as it was found, before anything of it ran.

    Attributes
    ----------
    name : str
        Made of the characters allowed in `CandidateProgram.name`.
    path : Path
    source : bytes
    constants : mapping of str to int
        Integers that the file assigns to names at its top level.
    candidates : tuple of CandidateProgram
    """

    name: str
    path: Path
    source: bytes
    constants: Mapping[str, int] = field(default_factory=dict)
    candidates: tuple[CandidateProgram, ...] = ()


@dataclass(frozen=True)
class Argument:
    """One argument of the reference: a tensor with a name, or a constant value.

    Attributes
    ----------
    name : str
        Empty for a value.
    shape : tuple of int
    dtype : str
    floating : bool
    low, high : float or None
        The least and the largest value seen; for integers drawn by ``randint``, the bounds of the
        draw.
    kind : str
        Kind of the values, as `docs/inputs.md` names it.
    part : str
        ``upper`` or ``lower``: the triangle that contains all non-zero values.
    value : JSON
    generate : str
        The function that gives the values; empty if this tool draws them.
    rules : mapping of str to JSON
        Further keys of the input in the configuration.
    """

    name: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = ""
    floating: bool = False
    low: float | None = None
    high: float | None = None
    kind: str = ""
    part: str = ""
    value: Json = None
    generate: str = ""
    rules: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceOutput:
    """An output of the reference.

    Attributes
    ----------
    rank : int
        Number of axes.
    floating : bool
        True if the output holds floats.
    finite : bool
        True if no element is NaN or infinite.
    name : str
        Empty if the output gets its name from its position, such as ``out0``.
    dims : tuple of (int or str)
        The axes of the output: sizes or expressions of dims. Empty if they are not known.
    rules : mapping of str to JSON
        Further keys of the output in the configuration.
    """

    rank: int
    floating: bool = True
    finite: bool = True
    name: str = ""
    dims: tuple[int | str, ...] = ()
    rules: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True)
class ProblemFacts:
    """Facts about a problem with given constants, as reported by the problem's own code.

    Attributes
    ----------
    init : tuple of JSON
        Arguments with which the model is constructed; empty if it is a function.
    arguments : tuple of Argument
    globals : mapping of str to JSON
        Globals whose values differ from those in the file because constants were changed.
    outputs : tuple of ReferenceOutput
        Empty unless the model was run.
    free : frozenset of str
        Float inputs for which trials with values of either sign gave finite outputs.
    """

    init: tuple[Json, ...]
    arguments: tuple[Argument, ...]
    globals: Mapping[str, Json] = field(default_factory=dict)
    outputs: tuple[ReferenceOutput, ...] = ()
    free: frozenset[str] = frozenset()

    @property
    def tensors(self) -> tuple[Argument, ...]:
        """Return the arguments that are tensors."""
        return tuple(one for one in self.arguments if one.name)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the tensors."""
        return tuple(one.shape for one in self.tensors)


@dataclass(frozen=True)
class ImportedProblem:
    """A problem as it is imported into the workspace.

    Attributes
    ----------
    source : ProblemSource
    about : ProblemFacts
        Facts about the problem with the sizes that the workspace begins with.
    dims : mapping of str to (tuple of int, or str)
        By the name of a dim: the sizes that it may have, or an expression that computes its size
        from other dims.
    axes : tuple of tuple of (int or str)
        Axes of each tensor: a size or an expression of dims.
    scaled : mapping of str to (int, int)
        Constants that were scaled, with their values before and after.
    weights : bytes
        Empty where the model has none.
    dtype : str
        Inputs that have this dtype in the problem get the dtype of the case; others keep theirs.
    schema : mapping of str to JSON
        Further keys of the schema.
    notes : tuple of str
        Remarks on the problem, to be printed.
    """

    source: ProblemSource
    about: ProblemFacts
    dims: Mapping[str, tuple[int, ...] | str] = field(default_factory=dict)
    axes: tuple[tuple[int | str, ...], ...] = ()
    scaled: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    weights: bytes = b""
    dtype: str = "float32"
    schema: Mapping[str, Json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SkippedProblem:
    """A problem or candidate that was not imported, and the reason."""

    what: str
    reason: str


@dataclass(frozen=True)
class ImportOutcome:
    """The outcome of an import.

    Attributes
    ----------
    files : mapping of str to bytes
        Contents by path in the workspace; the configuration last.
    taken : tuple of ImportedProblem
    left : tuple of SkippedProblem
    in_place : bool
        True if the programs are read where they are, not copied.
    """

    files: Mapping[str, bytes]
    taken: tuple[ImportedProblem, ...]
    left: tuple[SkippedProblem, ...] = ()
    in_place: bool = False
