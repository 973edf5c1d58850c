"""Convert errors and verdicts to replies of the wire protocol."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import to_builtins
from numpy.typing import NDArray

from gpuemu_flow.cases.protocol_v1 import LAYOUTS_V1, SequenceConfig, nominal_strides
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import ConfigError, FlowError, Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    Json,
    Shape,
    Verdict,
)
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.wire import WireError
from gpuemu_flow.wire.tensors import Exchange, c_strides, decode_tensor, decode_tensors, json_type

LARGEST = 1.7976931348623157e308
"""Sent in place of infinity: all JSON parsers read it, and users' format strings accept it."""
MAX_U64 = (1 << 64) - 1

_CODES = {
    "unknown-op": "OpNotFound",
    "unknown-failure": "NotFound",
    "unknown-kernel": "KernelNotFound",
    "unknown-artifact": "ArtifactNotFound",
    "unknown-baseline": "BaselineNotFound",
    "reference-failed": "ReferenceScriptFailed",
    "ptx-syntax": "PtxParseError",
    "tool-not-found": "CuobjdumpNotAvailable",
}


class RequestError(Exception):
    """A request that the daemon refuses."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def error_reply(code: str, message: str) -> dict[str, Json]:
    return {"type": "Error", "code": code, "message": message}


def flow_error_reply(error: FlowError) -> dict[str, Json]:
    code = _CODES.get(error.slug)
    if code is None and isinstance(error, ConfigError):
        code = "ConfigError"
    elif code is None:
        code = "InvalidRequest" if isinstance(error, UsageError) else "InternalError"
    text = "\n".join(_sentence(problem) for problem in error.problems)
    return {**error_reply(code, text), "slug": error.slug}


def _sentence(problem: Problem) -> str:
    place = f"{problem.file}:{problem.line}: " if problem.line else ""
    return f"{place}{problem.message}{f'; {problem.hint}' if problem.hint else ''}"


def validation_result(
    op: str,
    seed: int,
    result: CheckResult,
    *,
    output_shapes: dict[str, Shape] | None = None,
    duration_s: float = 0.0,
    repro_info: Json = None,
    timestamp: int | None = None,
) -> dict[str, Json]:
    """Return a verdict as ``ValidationResult``. Keys that the protocol does not have (``verdict``,
    ``notes``, ``unjudged``, ``compared``, ``nonfinite``) hold more than the protocol's keys can
    express. Other clients ignore them."""
    stats = result.stats
    nonfinite: dict[str, str] = {}
    out: dict[str, Json] = {
        "passed": _passes(result),
        "seed": seed,
        "op_name": op,
        "max_diff": _finite("max_diff", stats.max_abs, nonfinite),
        "max_rel_diff": _finite("max_rel_diff", stats.max_rel, nonfinite),
        "failures": [_failure(f, output_shapes or {}) for f in _reasons(result)],
        "timestamp": int(time.time()) if timestamp is None else timestamp,
        "duration_ms": round(duration_s * 1000),
        "repro_info": repro_info,
        "error_stats": _error_stats(stats, nonfinite),
        "verdict": result.verdict.value,
        "tolerance_used": plain(stats.tolerance_used),
        "unjudged": stats.unjudged,
        "compared": to_builtins(Elements.of(result)),
        "notes": list(result.all_notes),
    }
    if nonfinite:
        out["nonfinite"] = nonfinite
    return out


STATISTICS = (
    "count", "num_exceeding", "max_abs", "mean_abs", "p50_abs", "p90_abs", "p99_abs", "max_rel",
    "mean_rel", "max_ulp", "mean_ulp",
)  # fmt: skip


def _error_stats(stats: ErrorStats, nonfinite: dict[str, str]) -> dict[str, Json]:
    return {name: _statistic(name, getattr(stats, name), nonfinite) for name in STATISTICS}


def _passes(result: CheckResult) -> bool:
    """Tell whether a case passes for clients, which know only passed and failed. One whose outputs
    are rightly empty does: shapes and dtypes agree, and there is nothing else."""
    empty = result.uncounted and not result.stats.count and not result.failures
    return result.verdict is Verdict.PASSED or empty


def _reasons(result: CheckResult) -> Sequence[Failure]:
    """List the failures. If a case did not pass but has none, list one made from its notes."""
    if result.failures or _passes(result):
        return result.failures
    text = "; ".join(result.all_notes) or "no element has a verdict"
    return [Failure(FailureKind.TOLERANCE, f"{result.verdict.value}: {text}")]


def finite(value: float) -> float:
    """Return a value as JSON can hold it: Inf and NaN become the largest float of their sign."""
    if math.isfinite(value):
        return float(value)
    return -LARGEST if value < 0 else LARGEST


def _finite(name: str, value: float, nonfinite: dict[str, str]) -> float:
    if math.isfinite(value):
        return float(value)
    nonfinite[name] = str(value)
    return finite(value)


def _statistic(name: str, value: Any, nonfinite: dict[str, str]) -> Json:
    if name in ("count", "num_exceeding"):
        return int(value)
    if name == "max_ulp":
        return min(round(value), MAX_U64) if math.isfinite(value) else MAX_U64
    return _finite(name, value, nonfinite)


def _failure(failure: Failure, shapes: dict[str, Shape]) -> dict[str, Json]:
    shape = shapes.get(failure.output)
    flat = None
    if failure.index is not None and shape is not None and len(failure.index) == len(shape):
        flat = int(np.ravel_multi_index(failure.index, shape)) if shape else 0
    out: dict[str, Json] = {
        "kind": failure.kind.value,
        "message": failure.message,
        "index": flat,
        "expected": _or_null(failure.expected),
        "actual": _or_null(failure.actual),
        "output": failure.output,
        "multi_index": None if failure.index is None else list(failure.index),
    }
    for name in ("expected", "actual"):
        value = getattr(failure, name)
        if value is not None and not math.isfinite(value):
            out[f"{name}_text"] = str(value)
    return out


def _or_null(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def wire_strides(shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return the strides that protocol v1 states for a layout; C strides for any other layout."""
    return nominal_strides(shape, layout) if layout in LAYOUTS_V1 else c_strides(shape)


def reproduction_info(case: Case, shape: Shape, fuzz_config: Json) -> dict[str, Json]:
    return {
        "seed": case.seed,
        "fuzz_config": fuzz_config,
        "shape": list(shape),
        "strides": list(wire_strides(shape, case.layout)),
        "dtype": case.dtype,
        "layout": case.layout.capitalize(),
        "input_snapshot": None,
    }


# Read the fields of a request with the types that protocol v1 requires.

MAX_NAME = 200  # characters of an op's, kernel's or baseline's name
MAX_KWARGS = 256
_MISSING: Json = object()
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


class ClientInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a client says of itself."""

    id: Text | None = None
    name: Text | None = None
    host: Text | None = None
    user: Text | None = None
    origin: Text | None = None
    pid: Annotated[int, msgspec.Meta(gt=0, lt=1 << 32)] | None = None


class Fields:
    """Typed access to the fields of one request. A method that reads a field raises RequestError
    ``InvalidRequest`` if the field violates the protocol."""

    def __init__(
        self, fields: dict[str, Json], exchange: Exchange | None = None, kind: str = ""
    ) -> None:
        self._exchange = exchange
        self._fields = fields
        payload = self._fields.get("payload")
        if isinstance(payload, dict):
            # The documentation nests the fields; the published client does not.
            self._fields = {**payload, **self._fields}
        self.type = kind or self.name("type")

    def _get(self, name: str, default: Json = _MISSING) -> Json:
        value = self._fields.get(name, default)
        if value is _MISSING:
            raise invalid(f"{self._fields.get('type', 'the request')} lacks {name!r}")
        return value

    def has(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def name(self, name: str) -> str:
        """Return a string field that holds a name: not empty, not too long, and printable."""
        value = self.string(name)
        if not value or len(value) > MAX_NAME or _CONTROL.search(value):
            raise invalid(f"{name} must be a name of 1 to {MAX_NAME} printable characters")
        return value

    def string(self, name: str) -> str:
        """Return a string field with any content."""
        value = self._get(name)
        if not isinstance(value, str):
            raise invalid(f"{name} must be a string, not {json_type(value)}")
        return value

    @property
    def reply_exchange(self) -> Exchange | None:
        return self._exchange if self.flag("exchange", default=False) else None

    def optional_name(self, name: str) -> str | None:
        return self.name(name) if self.has(name) else None

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self._get(name, _MISSING if default is None else default)
        if not isinstance(value, int) or isinstance(value, bool):
            raise invalid(f"{name} must be an integer, not {_shown(value)}")
        if not low <= value <= high:
            raise invalid(f"{name} must lie between {low} and {high}")
        return value

    def u64(self, name: str) -> int:
        return self.integer(name, 0, (1 << 64) - 1)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, _MISSING if default is None else default)
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false, not {json_type(value)}")
        return value

    def choice(self, name: str, known: tuple[str, ...]) -> str:
        """Return the word of `known` that equals a field, ignoring case."""
        value = self.string(name)
        for word in known:
            if value.lower() == word.lower():
                return word
        raise invalid(f"{name} {value[:60]!r} is unknown; {did_you_mean(value[:60], known)}")

    def tensor(self, name: str) -> NDArray[Any]:
        try:
            return decode_tensor(self._get(name), name, self._exchange)
        except WireError as error:
            raise invalid(str(error)) from None

    def tensors(self, name: str) -> dict[str, NDArray[Any]]:
        try:
            return decode_tensors(self._get(name), name, self._exchange)
        except WireError as error:
            raise invalid(str(error)) from None

    def kwargs(self) -> dict[str, Json]:
        """Return the op's keyword arguments: strings from clients of protocol v1, else JSON."""
        value = self._get("kwargs", {})
        if not isinstance(value, dict):
            raise invalid(f"kwargs must be an object, not {json_type(value)}")
        if len(value) > MAX_KWARGS:
            raise invalid(f"{len(value)} kwargs are more than {MAX_KWARGS}")
        for name, item in value.items():
            if isinstance(item, float) and not item - item == 0:
                raise invalid(f"kwargs.{name} must be finite")
        return dict(value)

    def counts(self, name: str, names: Collection[str]) -> dict[str, int]:
        """Return a field that maps some of `names` to positive integers; {} if it is missing."""
        value = self._get(name, None)
        if value is None:
            return {}
        fits = isinstance(value, dict) and all(
            type(count) is int and count > 0 and key in names for key, count in value.items()
        )
        if not fits:
            raise invalid(f"{name} must be an object of input names and positive integers")
        return dict(value)

    def client(self) -> dict[str, Json]:
        """Return the client's description of itself, an extension of protocol v1; {} if none."""
        if not self.has("client"):
            return {}
        try:
            found: dict[str, Json] = msgspec.to_builtins(convert(self.object("client"), ClientInfo))
        except msgspec.ValidationError as error:
            raise invalid(f"client: {error}") from None
        for name, text in found.items():
            if isinstance(text, str) and not text.isprintable():
                raise invalid(f"client.{name} must be printable")
        return found

    def objects(self, name: str, most: int) -> list[Fields]:
        """Return the JSON objects in an array of at most `most` items."""
        value = self._get(name)
        if not isinstance(value, list):
            raise invalid(f"{name} must be an array, not {json_type(value)}")
        if len(value) > most:
            raise invalid(f"{len(value)} {name} are more than {most}")
        for number, item in enumerate(value):
            if not isinstance(item, dict):
                raise invalid(f"{name}[{number}] must be an object, not {json_type(item)}")
        return [Fields(item, self._exchange, self.type) for item in value]

    def object(self, name: str) -> dict[str, Json]:
        value = self._get(name)
        if not isinstance(value, dict):
            raise invalid(f"{name} must be an object, not {json_type(value)}")
        return value

    def fuzz_config(self) -> SequenceConfig:
        try:
            return SequenceConfig.from_json(self._get("fuzz_config"))
        except UsageError as error:
            problem = error.problems[0]
            hint = f"; {problem.hint}" if problem.hint else ""
            raise invalid(f"{problem.message}{hint}") from None


def invalid(message: str) -> RequestError:
    return RequestError("InvalidRequest", message)


def _shown(value: Json) -> str:
    return str(value)[:40] if isinstance(value, float) else json_type(value)
