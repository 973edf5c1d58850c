"""Convert errors and verdicts to replies of the wire protocol."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuemu_flow.cases.protocol_v1 import LAYOUTS_V1, nominal_strides
from gpuemu_flow.model.errors import ConfigError, FlowError, Problem, UsageError
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    Json,
    Shape,
    Verdict,
    number_to_json,
)
from gpuemu_flow.model.verdicts import Elements
from gpuemu_flow.wire.tensors import c_strides

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
    """Return the reply for an error."""
    return {"type": "Error", "code": code, "message": message}


def flow_error_reply(error: FlowError) -> dict[str, Json]:
    """Return the reply for a `FlowError`."""
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
    """Return a verdict as ``ValidationResult``.

    Keys that the protocol does not have (``verdict``, ``notes``, ``unjudged``, ``compared``,
    ``nonfinite``) hold more than the protocol's keys can express. Other clients ignore them.
    """
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
        "tolerance_used": number_to_json(stats.tolerance_used),
        "unjudged": stats.unjudged,
        "compared": Elements.of(result).to_json(),
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
    """Tell whether a case passes for clients, which know only passed and failed.

    One whose outputs are rightly empty does: shapes and dtypes agree, and there is nothing else.
    """
    empty = result.uncounted and not result.stats.count and not result.failures
    return result.verdict is Verdict.PASSED or empty


def _reasons(result: CheckResult) -> Sequence[Failure]:
    """List the failures. If a case did not pass but has none, list one made from its notes."""
    if result.failures or _passes(result):
        return result.failures
    text = "; ".join(result.all_notes) or "no element has a verdict"
    return [Failure(FailureKind.TOLERANCE, f"{result.verdict.value}: {text}")]


def finite(value: float) -> float:
    """Return a value as JSON can hold it: infinity becomes the largest float of its sign.

    NaN becomes the largest float.
    """
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
    """Return a case's ``ReproductionInfo``."""
    return {
        "seed": case.seed,
        "fuzz_config": fuzz_config,
        "shape": list(shape),
        "strides": list(wire_strides(shape, case.layout)),
        "dtype": case.dtype,
        "layout": case.layout.capitalize(),
        "input_snapshot": None,
    }
