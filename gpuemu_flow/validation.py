"""The documented names with which users validate ops through the daemon."""

from __future__ import annotations

from gpuemu_flow.client.context import ValidationContext, validate_op
from gpuemu_flow.client.results import (
    FailureInfo,
    FuzzResults,
    MinimizeResult,
    NoOutputError,
    ReproduceResult,
    ReproductionInfo,
    ValidationError,
    ValidationResult,
)

__all__ = [
    "FailureInfo",
    "FuzzResults",
    "MinimizeResult",
    "NoOutputError",
    "ReproduceResult",
    "ReproductionInfo",
    "ValidationContext",
    "ValidationError",
    "ValidationResult",
    "validate_op",
]
