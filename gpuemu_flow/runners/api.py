"""Data types of the runners, without numpy: programs, requests and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, field

from gpuemu_flow.errors import FlowError
from gpuemu_flow.observed import ConfiguredEnv
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.sandbox.spec import Sandbox
from gpuemu_flow.types import (
    ELEMENT_TYPES,
    MAX_DIMS,
    Case,
    Failure,
    Json,
    Shape,
    failure_from_json,
    failure_to_json,
)

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
_TUPLES = (
    "input_names", "argv", "output_names", "mutates", "forbid", "forbidden", "read_only",
    "optional", "env_names",
)  # fmt: skip
_MAPPINGS = ("kwargs", "env", "masks", "scalars", "groups")


@dataclass(frozen=True)
class Gradients:
    """The gradients that a program returns besides its outputs."""

    inputs: tuple[str, ...]
    apart: tuple[str, ...] = ()
    masks: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    plain: bool = False

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return {**vars(self), "inputs": list(self.inputs), "apart": list(self.apart)}

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Gradients:
        """Rebuild from `to_json`'s result, or raise TypeError or KeyError."""
        return cls(**{**data, "inputs": tuple(data["inputs"]), "apart": tuple(data["apart"])})


@dataclass(frozen=True)
class Program:
    """One op or reference and the conditions under which it runs."""

    kind: str
    _: KW_ONLY
    root: str
    input_names: tuple[str, ...]
    path: str = ""
    module: str = ""
    function: str = ""
    argv: tuple[str, ...] = ()
    loads: str = ""
    output_names: tuple[str, ...] = ()
    kwargs: Mapping[str, Json] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    env_names: tuple[str, ...] = ()
    timeout: float = 60.0
    timeout_grows: bool = False
    memory_limit: int | None = None
    isolation: str = "fork"
    python: str = ""
    mutates: tuple[str, ...] = ()
    require_kernel: bool = False
    forbid: tuple[str, ...] = ()
    deterministic: bool = True
    masks: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    shadow: bool = False
    forbidden: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    scalars: Mapping[str, Json] = field(default_factory=dict)
    optional: tuple[str, ...] = ()
    groups: Mapping[str, Mapping[str, Json]] = field(default_factory=dict)
    framework: str = ""
    gradients: Gradients | None = None
    sandbox: Sandbox | None = None

    @property
    def given(self) -> ConfiguredEnv:
        """Return the part of the program's environment that the configuration sets."""
        return ConfiguredEnv(self.env, self.env_names)

    def patience(self, nbytes: int) -> float:
        """Return the time limit, in seconds, for a case with `nbytes` bytes of inputs."""
        return self.timeout + (nbytes / BYTES_PER_SECOND if self.timeout_grows else 0.0)

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse."""
        out = dict(vars(self))
        for name in _TUPLES:
            out[name] = list(out[name])
        for name in _MAPPINGS:
            out[name] = dict(out[name])
        if self.sandbox is not None:
            out["sandbox"] = dict(vars(self.sandbox))
        del out["gradients"]
        return {**out, "gradients": self.gradients.to_json()} if self.gradients else out

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> Program:
        """Rebuild from `to_json`'s result, or raise TypeError or KeyError."""
        tuples = {name: tuple(data[name]) for name in _TUPLES if name in data}
        fence, wanted = data.get("sandbox"), data.get("gradients")
        sandbox = None if fence is None else Sandbox.from_json(fence)
        gradients = None if wanted is None else Gradients.from_json(wanted)
        return cls(**{**data, **tuples, "sandbox": sandbox, "gradients": gradients})


@dataclass(frozen=True)
class Checks:
    """Checks that a case gets besides the comparison of its outputs."""

    inputs_unchanged: bool = True
    guards: bool = False
    decoy: bool = False
    repeat: bool = False

    def to_json(self) -> dict[str, bool]:
        """Return plain JSON: the constructor's arguments."""
        return dict(vars(self))


@dataclass(frozen=True)
class Request:
    """One case to run."""

    case: Case
    input_dtype: str | None = None


@dataclass(frozen=True)
class RunError:
    """The reason why a case has no outputs."""

    slug: str
    message: str
    hint: str = ""
    stderr_tail: str = ""
    file: str = ""
    line: int = 0
    exception: str = ""
    stdout_tail: str = ""


@dataclass(frozen=True)
class OutputInfo:
    """Name, shape and dtype of one output tensor."""

    name: str
    shape: Shape
    dtype: str


@dataclass(frozen=True)
class Outcome:
    """The outcome of one case."""

    index: int
    ok: bool
    blob: str = ""
    size: int = 0
    outputs: tuple[OutputInfo, ...] = ()
    error: RunError | None = None
    violations: tuple[Failure, ...] = ()
    duration_s: float = 0.0
    printed: str = ""

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON; `from_json` is its inverse. Non-finite floats stay floats."""
        record: dict[str, Json] = {
            "index": self.index,
            "ok": self.ok,
            "blob": self.blob,
            "size": self.size,
            "outputs": [
                {"name": o.name, "shape": list(o.shape), "dtype": o.dtype} for o in self.outputs
            ],
            "error": asdict(self.error) if self.error is not None else None,
            "violations": [failure_to_json(f) for f in self.violations],
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
            outputs=tuple(
                OutputInfo(str(o["name"]), tuple(int(d) for d in o["shape"]), str(o["dtype"]))
                for o in data["outputs"]
            ),
            error=error_from_json(data["error"]) if data["error"] is not None else None,
            violations=tuple(failure_from_json(f) for f in data["violations"]),
            duration_s=float(data["duration_s"]),
            printed=str(data.get("printed", ""))[:MOST_PRINTED],
        )


def error_from_json(data: Mapping[str, Json]) -> RunError:
    """Rebuild a RunError from its JSON, or raise KeyError, TypeError or ValueError."""
    texts = {k: str(data[k]) for k in ("slug", "message", "hint", "stderr_tail", "file")}
    # Results of older versions lack these fields.
    more = {name: str(data.get(name, "")) for name in ("exception", "stdout_tail")}
    return RunError(**texts, line=int(data["line"]), **more)


class OpError(Exception):
    """Raised in the worker when a program gave no usable outputs."""

    def __init__(self, error: RunError) -> None:
        super().__init__(error.message)
        self.error = error


def op_error(error: FlowError) -> OpError:
    """Convert an error of this package to an OpError, which is reported as the program's error."""
    problem = error.problems[0]
    return OpError(
        RunError(problem.slug, problem.message, problem.hint, file=problem.file, line=problem.line)
    )


# Positions of tensors in an arena, for processes that need not load numpy.


@dataclass(frozen=True)
class Slot:
    """Position of a tensor in an arena: offset of the first element, and strides, both in bytes."""

    offset: int
    shape: Shape
    strides: tuple[int, ...]
    dtype: str

    def to_json(self) -> list[Json]:
        """Return plain JSON; `from_json` is its inverse."""
        return [self.offset, list(self.shape), list(self.strides), self.dtype]

    @classmethod
    def from_json(cls, data: Json) -> Slot:
        """Rebuild from `to_json`'s result, or raise TypeError or ValueError."""
        offset, shape, strides, dtype = data
        slot = cls(int(offset), tuple(map(int, shape)), tuple(map(int, strides)), str(dtype))
        sizes_fit = len(slot.shape) == len(slot.strides) <= MAX_DIMS
        if slot.dtype not in ELEMENT_TYPES or not sizes_fit or min((0, *slot.shape)) < 0:
            raise ValueError("not a tensor's place")
        return slot

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
