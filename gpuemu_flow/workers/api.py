"""Data types of the runners, without numpy: programs, requests and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import (
    ELEMENT_TYPES,
    MAX_DIMS,
    Case,
    ConfiguredEnv,
    Failure,
    Json,
    Shape,
)
from gpuemu_flow.workers.sandbox.spec import Sandbox

EMULATED = ("ptx", "cuda")
"""Kinds of programs that are compiled kernels, which the emulator runs."""

REFUSALS = frozenset(
    {"emulator-unsupported", "emulator-launch", "emulator-argument", "triton-compiled"}
)
"""Slugs of errors of launches that the emulator refuses, and would refuse again."""

MOST_PRINTED = 4_000
"""Maximum number of characters of ``printf`` output that are kept for a case."""
MAX_OUTPUTS = 64

DEFAULT_OUTPUT = "result"
BYTES_PER_SECOND = 1_000_000
"""Minimum speed that is expected of a program whose timeout is not set."""


class Gradients(Struct, frozen=True, forbid_unknown_fields=True):
    """The gradients that a program returns besides its outputs."""

    inputs: tuple[str, ...]
    # Outputs without a gradient, since they are not compared element by element.
    apart: tuple[str, ...] = ()
    masks: Mapping[str, Mapping[str, Json]] = {}
    # Whether to call without gradients, too, and to take the outputs from that call.
    plain: bool = False


class Program(Struct, frozen=True, forbid_unknown_fields=True):
    """One op or reference and the conditions under which it runs."""

    # `script` and `command` speak a protocol on stdin and stdout, `callable` is a Python function,
    # `torch`, `jax` and `numpy` take this framework's tensors, `triton` launches Triton kernels,
    # `ptx` and `cuda` are compiled kernels, which the emulator runs.
    kind: str
    # The working directory, which is on `sys.path` after the folder of the program's file.
    root: str
    input_names: tuple[str, ...]
    path: str = ""
    module: str = ""
    function: str = ""
    # Also a compiled kernel's launches and dims, and how to make a class of PyTorch modules.
    argv: tuple[str, ...] = ()
    # A file for a loader: `function` is called once, with this path, and returns the function.
    loads: str = ""
    output_names: tuple[str, ...] = ()
    kwargs: Mapping[str, Json] = {}
    env: Mapping[str, str] = {}
    env_names: tuple[str, ...] = ()
    # Seconds per case from the call on; `timeout_grows` adds a second per megabyte of inputs.
    timeout: float = 60.0
    timeout_grows: bool = False
    # Bytes of address space: of a command in total, else on top of what the worker itself uses.
    memory_limit: int | None = None
    # `fork` (a process for some cases), `spawn` (an interpreter each) or `warm` (one for all).
    isolation: str = "fork"
    python: str = ""
    mutates: tuple[str, ...] = ()
    # Of these, the inputs whose content after the call is an output besides those it returns.
    leaves: tuple[str, ...] = ()
    require_kernel: bool = False
    forbid: tuple[str, ...] = ()
    deterministic: bool = True
    masks: Mapping[str, Mapping[str, Json]] = {}
    # The source runs with float64 replaced by float32; see `jobs`.
    shadow: bool = False
    # Inputs passed as Python numbers: None, or the list in which the element is an index.
    scalars: Mapping[str, Json] = {}
    # Inputs passed as None if their array has only axes of size 0.
    optional: tuple[str, ...] = ()
    # Arguments that consist of several inputs: their `kind` and their `members`.
    groups: Mapping[str, Mapping[str, Json]] = {}
    # An installed package that the fork server may import before it forks workers.
    framework: str = ""
    # Where what it builds is kept, of a program with CUDA host code: it gets the emulated GPU.
    gpu_folder: str = ""
    gradients: Gradients | None = None
    sandbox: Sandbox | None = None

    @property
    def given(self) -> ConfiguredEnv:
        """Return the part of the program's environment that the configuration sets."""
        return ConfiguredEnv(self.env, self.env_names)

    @property
    def can_stay(self) -> bool:
        """Tell whether a process of the program may serve another session, if it is trusted."""
        special = self.gpu_folder or self.python or self.kind == "command" or self.kind in EMULATED
        return not special and self.isolation == "fork" and self.memory_limit is None

    def patience(self, nbytes: int) -> float:
        """Return the time limit, in seconds, for a case with `nbytes` bytes of inputs."""
        return self.timeout + (nbytes / BYTES_PER_SECOND if self.timeout_grows else 0.0)


class Checks(Struct, frozen=True):
    """Checks that a case gets besides the comparison of its outputs."""

    inputs_unchanged: bool = True
    # Canary bytes around every input buffer.
    guards: bool = False
    # A call before the judged one, with other values in the same buffers.
    decoy: bool = False
    # The judged call again; both results must be equal bit by bit.
    repeat: bool = False


class Request(Struct, frozen=True):
    """One case to run."""

    case: Case
    input_dtype: str | None = None


class RunError(Struct, frozen=True):
    """The reason why a case has no outputs; `line` is 1-based, and 0 when unknown."""

    slug: str
    message: str
    hint: str = ""
    stderr_tail: str = ""
    file: str = ""
    line: int = 0
    exception: str = ""
    stdout_tail: str = ""


class OutputInfo(Struct, frozen=True):
    """Name, shape and dtype of one output tensor."""

    name: str
    shape: Shape
    dtype: str


class Outcome(Struct, frozen=True):
    """The outcome of one case."""

    index: int
    # Whether the outputs are well-formed, whatever their values; else `error` is set.
    ok: bool
    # The sha256 of the safetensors file that holds the outputs, and its bytes.
    blob: str = ""
    size: int = 0
    outputs: tuple[OutputInfo, ...] = ()
    error: RunError | None = None
    violations: tuple[Failure, ...] = ()
    # Seconds of the judged call alone.
    duration_s: float = 0.0
    printed: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse. Non-finite floats stay floats."""
        record: dict[str, Json] = {
            "index": self.index,
            "ok": self.ok,
            "blob": self.blob,
            "size": self.size,
            "outputs": msgspec.to_builtins(self.outputs),
            "error": msgspec.to_builtins(self.error),
            "violations": plain(self.violations),
            "duration_s": self.duration_s,
        }
        if self.printed:
            record["printed"] = self.printed
        return record

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Outcome:
        """Rebuild from `to_json`'s result, or raise KeyError, TypeError or ValueError."""
        return cls(
            index=int(data["index"]),
            ok=bool(data["ok"]),
            blob=str(data["blob"]),
            size=int(data["size"]),
            outputs=convert(data["outputs"], tuple[OutputInfo, ...]),
            error=convert(data["error"], RunError | None),
            violations=convert(data["violations"], tuple[Failure, ...], strict=False),
            duration_s=float(data["duration_s"]),
            printed=str(data.get("printed", ""))[:MOST_PRINTED],
        )


class OpError(Exception):
    """Raised in the worker when a program gave no usable outputs."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


def op_error(error: FlowError) -> OpError:
    """Convert an error of this package to an OpError, which is reported as the program's error."""
    problem = error.problems[0]
    return OpError(
        RunError(
            problem.slug, problem.message, str(problem.hint), file=problem.file, line=problem.line
        )
    )


# Positions of tensors in an arena, for processes that need not load numpy.


class Slot(Struct, frozen=True, array_like=True):
    """Position of a tensor in an arena: offset of the first element, and strides, both in bytes."""

    offset: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        sizes_fit = len(self.shape) == len(self.strides) <= MAX_DIMS
        if self.dtype not in ELEMENT_TYPES or not sizes_fit or min((0, *self.shape)) < 0:
            raise ValueError("not a tensor's place")

    def span(self) -> tuple[int, int]:
        """Return the offsets, in the arena, of the tensor's lowest byte and of its end.

        The end is the offset after the last byte.
        """
        if 0 in self.shape:
            return self.offset, self.offset
        low = high = self.offset
        for size, step in zip(self.shape, self.strides, strict=True):
            if step < 0:
                low += (size - 1) * step
            else:
                high += (size - 1) * step
        return low, high + ELEMENT_TYPES[self.dtype].itemsize


def end_of(slots: Mapping[str, Slot]) -> int:
    """Return the offset after the last byte that the tensors use; 0 without tensors."""
    return max((slot.span()[1] for slot in slots.values()), default=0)


# Stop running a program's cases after several timeouts in a row.


TIMEOUT = "op-timeout"
NOT_RUN_SLUG = "op-not-run"
MOST_TIMEOUTS = 3
"""Number of timeouts in a row after which to give up; a loaded machine may cause one or two."""


def gives_up(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether the last cases all timed out, so that no further case should be run."""
    last = outcomes[-MOST_TIMEOUTS:]
    slugs = {"" if outcome.error is None else outcome.error.slug for outcome in last}
    return len(last) == MOST_TIMEOUTS and slugs <= {TIMEOUT, NOT_RUN_SLUG}


def was_given_up(outcome: Outcome) -> bool:
    """Tell whether a case was not run because the cases before it timed out."""
    return outcome.error is not None and outcome.error.slug == NOT_RUN_SLUG


def not_run(index: int, seconds: float) -> Outcome:
    """Return the outcome of a case that is not run because earlier cases timed out."""
    message = f"not run: {MOST_TIMEOUTS} cases in a row had no result after {seconds:g} s each"
    hint = "fix what hangs, or raise `timeout` of the op if it really needs longer"
    return Outcome(index, ok=False, error=RunError(NOT_RUN_SLUG, message, hint))
