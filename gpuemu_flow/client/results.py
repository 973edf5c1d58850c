"""Results of calls, which are objects with attributes and also read-only mappings."""

from __future__ import annotations

import functools
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.model.types import FailureKind, Json, Verdict
from gpuemu_flow.model.verdicts import Elements, Tally, decide
from gpuemu_flow.numerics.layouts import lay_out

_SLUGS = {
    "OpNotFound": "client-unknown-op",
    "ReferenceScriptFailed": "client-reference-failed",
    "NotFound": "client-not-found",
    "ConfigError": "client-config-error",
}


class ClientError(FlowError):
    """A call failed without a result.

    Attributes
    ----------
    code : str
        The daemon's error code, such as ``OpNotFound``; empty if the daemon did not answer.
    """

    def __init__(self, problem: Problem, code: str = "") -> None:
        super().__init__(problem)
        self.code = code

    @property
    def message(self) -> str:
        """Return the error's message, without slug and hint."""
        return self.problems[0].message


class NoOutputError(ClientError, ValueError):
    """The body of a ``validate_op`` context set no output."""


class ValidationError(AssertionError):
    """An output did not pass.

    Attributes
    ----------
    result : ValidationResult
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result: Any = result


class DaemonUnreachableError(ClientError):
    """The daemon does not answer. The documented name of this class is ``ConnectionError``."""


ConnectionError = DaemonUnreachableError  # noqa: A001 - the documented name


class OtherWorkspaceError(DaemonUnreachableError):
    """The daemon serves another workspace than the client's."""


class VersionMismatchError(ClientError):
    """The daemon uses another version of the protocol than the client."""


class RequestTimeoutError(ClientError):
    """The daemon did not answer in time."""


class TransportError(Exception):
    """A message could not be exchanged. Users of the client get a `ClientError` instead."""


class TransportTimeout(TransportError):  # noqa: N818 - an outcome of an exchange
    """An exchange got no answer in time."""


class TransportUnreached(TransportError):  # noqa: N818
    """No daemon listens at the socket's path; nothing was sent."""


class TransportFull(TransportError):  # noqa: N818
    """The daemon accepts no more connections; nothing was sent."""


class TransportLost(TransportError):  # noqa: N818
    """The connection was closed, or the other side violated the protocol."""


class TransportEnded(TransportLost):
    """The other side closed the connection."""


def refused(code: str, message: str) -> ClientError:
    """Return the error for a daemon's ``Error`` reply."""
    return ClientError(Problem(_SLUGS.get(code, "client-refused"), message), code)


MAX_TEXT = 200

REQUEST_ID: ContextVar[str] = ContextVar("gpuemu_request_id", default="")
"""Identifier for the next long request, set by callers that may want to cancel it."""


def new_id() -> str:
    """Return a new id for a request, to query its progress or to cancel it."""
    return REQUEST_ID.get() or secrets.token_hex(16)


def about_me(function: Callable[..., Any] | None = None) -> dict[str, Json]:
    """Describe this process, and the function whose outputs are submitted, if it is known."""
    about: dict[str, Json] = {
        "id": _command(),
        "name": _printable(Path(sys.argv[0] if sys.argv and sys.argv[0] else sys.executable).name)
        or "python",
        "pid": os.getpid(),
        "host": _printable(socket.gethostname()),
        "user": _printable(_user()),
    }
    while callable(wrapped := getattr(function, "func", None)):  # of `functools.partial`
        function = wrapped
    if function is not None:
        named = function if hasattr(function, "__qualname__") else type(function)
        line = getattr(getattr(function, "__code__", None), "co_firstlineno", "")
        about["origin"] = _printable(f"{named.__module__}.{named.__qualname__}:{line}")
    return about


@functools.lru_cache(maxsize=1)
def _command() -> str:
    """Return an id that all processes of one command have in common, and no later command.

    A command is a process group: what a shell runs for one line, or a whole script of CI. A forked
    child keeps its parent's id. Numbers of groups are used again, so the time at which the group's
    first process was started is a part of the id.
    """
    group = os.getpgrp()
    try:
        started = Path(f"/proc/{group}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError, ValueError):
        started = ""  # it has ended
    return _printable(f"{socket.gethostname()}:{group}:{started}")


def _user() -> str:
    # Not from the system's library, whose locks a fork meanwhile would not survive.
    return os.environ.get("LOGNAME") or os.environ.get("USER") or str(os.getuid())


def _printable(text: str) -> str:
    if text.isprintable():  # half a surrogate pair is not
        return text[-MAX_TEXT:]
    kept = "".join(c for c in text if c.isprintable() and not "\ud800" <= c <= "\udfff")
    return kept[-MAX_TEXT:]


R = TypeVar("R", bound="Record")


class Record(Struct, frozen=True, eq=False):
    """Base class of results, in which ``result.passed`` and ``result["passed"]`` are the same."""

    get, keys, items, values = Mapping.get, Mapping.keys, Mapping.items, Mapping.values
    __contains__, __eq__ = Mapping.__contains__, Mapping.__eq__

    def __getitem__(self, name: str) -> Any:
        if name in self.__struct_fields__:
            return getattr(self, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __len__(self) -> int:
        return len(self.__struct_fields__)

    @classmethod
    def from_dict(cls: type[R], data: Mapping[str, Json]) -> R:
        """Make a result from the fields of a reply; ignore fields that this class does not have."""
        return convert(_with_infinities(data), cls, strict=False)


def _with_infinities(data: Json) -> Json:
    if isinstance(data, list):
        return [_with_infinities(item) for item in data]
    if not isinstance(data, Mapping):
        return data
    found = {name: _with_infinities(value) for name, value in data.items()}
    texts = found.get("nonfinite", {})
    return {**found, **{name: text for name, text in texts.items() if name in found}}


Mapping.register(Record)


class FailureInfo(Record, frozen=True, eq=False):
    """One reason why a case failed; see `types.Failure`.

    Attributes
    ----------
    index : int or None
        Index of the element in the flattened output, in C order.
    expected, actual : float or None
        The expected and the actual value of the element. A value that is not finite is None here;
        `expected_text` or `actual_text` then holds it as text.
    """

    kind: str = ""
    message: str = ""
    index: int | None = None
    expected: float | None = None
    actual: float | None = None
    output: str = ""
    multi_index: list[int] | None = None
    expected_text: str = ""
    actual_text: str = ""


class ReproductionInfo(Record, frozen=True, eq=False):
    """The origin of a case: seed, shape, layout and so on."""

    seed: int = 0
    shape: list[int] = field(default_factory=list)
    strides: list[int] = field(default_factory=list)
    dtype: str = "float32"
    layout: str = "Contiguous"
    fuzz_config: dict[str, Json] | None = None
    input_snapshot: bytes | None = None


class ValidationResult(Record, frozen=True, eq=False):
    """The verdict on one case.

    Attributes
    ----------
    passed : bool
    seed : int
        The case's seed, by which ``get_result(seed)`` finds the result again.
    op_name : str
    max_diff, max_rel_diff : float
        Largest absolute and relative error. Infinite if an element is NaN or Inf where the
        reference's is not, or the other way round.
    failures : list of FailureInfo
    timestamp : int
        Unix time in seconds.
    duration_ms : int
    repro_info : ReproductionInfo or None
    error_stats : dict or None
    verdict : str
        A value of `types.Verdict`.
    notes : list of str
    tolerance_used : float
        Largest error as a multiple of the tolerance: up to 1 if the case passed.
    unjudged : float
        Fraction of the output elements that have no verdict.
    compared : dict of str
        Numbers of output elements: ``count`` of all, ``no_verdict`` of those without a verdict,
        ``finite`` of those whose expected value is finite. ``empty`` lists the names of outputs
        that have no elements.
    failure_id : str
        Id of the recorded failure for ``gpuemu-flow reproduce``. Empty if the case passed.
    """

    passed: bool = False
    seed: int = 0
    op_name: str = ""
    max_diff: float = 0.0
    max_rel_diff: float = 0.0
    failures: list[FailureInfo] = field(default_factory=list)
    timestamp: int = 0
    duration_ms: int = 0
    repro_info: ReproductionInfo | None = None
    error_stats: dict[str, Json] | None = None
    verdict: str = ""
    notes: list[str] = field(default_factory=list)
    tolerance_used: float = 0.0
    unjudged: float = 0.0
    compared: dict[str, Json] = field(default_factory=dict)
    failure_id: str = ""

    def __bool__(self) -> bool:
        return self.passed


class FuzzResults(Record, frozen=True, eq=False):
    """The result of fuzzing; ``bool(result)`` is True if enough was judged and nothing failed.

    Attributes
    ----------
    seed : int
        The seed from which the seeds of all cases follow.
    total, passed, failed : int
        Numbers of cases.
    failures : list of ValidationResult
    inconclusive : int
        Number of cases without a verdict.
    verdict : str
        The verdict on all cases together, a value of `types.Verdict`. Empty if the daemon is of an
        older version, which sends none.
    reason : str
        Reason why the verdict is inconclusive.
    unjudged : float
        Fraction of the output elements of all cases that have no verdict.
    """

    seed: int = 0
    total: int = 0
    passed: int = 0
    failed: int = 0
    failures: list[ValidationResult] = field(default_factory=list)
    inconclusive: int = 0
    verdict: str = ""
    reason: str = ""
    unjudged: float = 0.0

    def __bool__(self) -> bool:
        said = self.verdict in ("", Verdict.PASSED.value)
        return said and self.failed == 0 and self.passed > 0


def summed(seed: int, done: Sequence[ValidationResult]) -> FuzzResults:
    """Combine the results of the cases of one fuzzing run, given the run's seed."""
    undecided = Verdict.INCONCLUSIVE.value
    failures = [r for r in done if not r.passed and r.verdict != undecided]
    tally = Tally()
    for result in done:
        tally.count(_verdict(result), _elements(result))
    verdict, reason = tally.verdict()
    return FuzzResults(
        seed=seed,
        total=len(done),
        passed=sum(result.passed for result in done),
        failed=len(failures),
        failures=failures,
        inconclusive=sum(not r.passed and r.verdict == undecided for r in done),
        verdict=verdict.value,
        reason=reason,
        unjudged=tally.unjudged,
    )


def _verdict(result: ValidationResult) -> Verdict:
    """Return the verdict of a result; if an older daemon sent none, derive it from `passed`."""
    known = {verdict.value: verdict for verdict in Verdict}
    if result.verdict in known:
        return known[result.verdict]
    return decide(not result.passed, _elements(result).finite)


def _elements(result: ValidationResult) -> Elements:
    """Return the numbers of a result's elements: all, unjudged and finite ones.

    An older daemon does not send them. All elements then count as judged and finite.
    """
    try:
        return convert(result.compared, Elements)
    except (KeyError, TypeError, ValueError):
        count = int((result.error_stats or {}).get("count", 0))
        return Elements(count, 0, count)


class TestCase(Record, frozen=True, eq=False):
    """A case to run: its inputs by name, and the facts that identify it.

    Attributes
    ----------
    layouts : dict of str to str
        The memory layout of each input. Empty for cases of protocol v1, whose arrays are all
        contiguous. The attribute `layout` of such a case is only a label.
    mutates : list of str
        Names of the inputs that the op may change.
    outputs : list of str
        Names of the op's outputs. They are sent only for an op that may change inputs; for other
        ops, the list is empty.
    """

    __test__ = False  # pytest takes classes of this name for its own

    seed: int = 0
    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    shape: list[int] = field(default_factory=list)
    dtype: str = "float32"
    layout: str = "contiguous"
    layouts: dict[str, str] = field(default_factory=dict)
    mutates: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def fresh_inputs(self) -> dict[str, NDArray[Any]]:
        """Copy the inputs, with their memory layouts, so that an op may change the copies."""
        return {
            name: lay_out(array.copy(), self.layouts.get(name, "contiguous"))
            for name, array in self.inputs.items()
        }


class ReproduceResult(Record, frozen=True, eq=False):
    """A recorded failure.

    Attributes
    ----------
    result : ValidationResult
        The result as it was recorded.
    inputs : dict of str to ndarray
    still_fails : bool or None
        True if the op failed when it was run again just now, False if it passed. None if it was not
        run again. None, too, if it passed although neither code nor configuration has changed since
        the failure was recorded: then the failure is intermittent.
    current : ValidationResult or None
        The result of running the op again just now; None if it was not run again.
    """

    result: ValidationResult = field(default_factory=ValidationResult)
    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    still_fails: bool | None = None
    current: ValidationResult | None = None


class MinimizeResult(Record, frozen=True, eq=False):
    """The smallest case that was found to fail in the same way as the original case."""

    original_seed: int = 0
    minimized_seed: int = 0
    minimized_shape: list[int] = field(default_factory=list)
    result: ValidationResult = field(default_factory=ValidationResult)
    still_fails: bool = True
    steps: int = 0
    one_minimal: bool = False


class BaselineComparison(Record, frozen=True, eq=False):
    """The present results compared with the results in a baseline."""

    baseline_tag: str = ""
    comparisons: list[dict[str, Json]] = field(default_factory=list)
    has_regressions: bool = False


class CiSummary(Record, frozen=True, eq=False):
    """The result of a run of the whole workspace."""

    total_tests: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    inconclusive: int = 0
    duration_ms: int = 0
    timestamp: int = 0
    validation_results: list[ValidationResult] = field(default_factory=list)
    lint_results: list[dict[str, Json]] = field(default_factory=list)
    artifact_diffs: Json = None


def raised_result(
    op_name: str, seed: int, error: str, kind: FailureKind = FailureKind.EXECUTION
) -> ValidationResult:
    """Make the result of a case on which the op or its reference raised; no daemon takes part."""
    return ValidationResult(
        seed=seed,
        op_name=op_name,
        max_diff=float("inf"),
        max_rel_diff=float("inf"),
        failures=[FailureInfo(kind.value, error)],
        timestamp=int(time.time()),
        verdict=Verdict.ERROR.value,
    )
