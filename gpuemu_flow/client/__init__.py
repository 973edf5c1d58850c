"""Python clients of the daemon. They need numpy, but no part of gpuemu-flow's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuemu_flow.client.api import AsyncClient, Client, GpuemuClient
    from gpuemu_flow.client.context import ValidationContext, validate_op
    from gpuemu_flow.client.results import (
        ClientError,
        ConnectionError,  # noqa: A004 - the documented name
        DaemonUnreachableError,
        FailureInfo,
        FuzzResults,
        MinimizeResult,
        NoOutputError,
        ReproduceResult,
        ReproductionInfo,
        RequestTimeoutError,
        TestCase,
        ValidationError,
        ValidationResult,
        VersionMismatchError,
    )

_PLACES = {
    "Client": "api",
    "GpuemuClient": "api",
    "AsyncClient": "api",
    "ValidationContext": "context",
    "validate_op": "context",
    **dict.fromkeys(
        (
            "ClientError", "ConnectionError", "DaemonUnreachableError", "FailureInfo",
            "FuzzResults", "MinimizeResult", "NoOutputError", "ReproduceResult",
            "ReproductionInfo", "RequestTimeoutError", "TestCase", "ValidationError",
            "ValidationResult", "VersionMismatchError",
        ),
        "results",
    ),
}  # fmt: skip

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ConnectionError",
    "DaemonUnreachableError",
    "FailureInfo",
    "FuzzResults",
    "GpuemuClient",
    "MinimizeResult",
    "NoOutputError",
    "ReproduceResult",
    "ReproductionInfo",
    "RequestTimeoutError",
    "TestCase",
    "ValidationContext",
    "ValidationError",
    "ValidationResult",
    "VersionMismatchError",
    "validate_op",
]


def __getattr__(name: str) -> object:
    """Return a public object by name; import its module, and therefore numpy, on first use."""
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"{__name__}.{place}", fromlist=[name]), name)
