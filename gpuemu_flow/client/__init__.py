"""Python clients of the daemon. They need numpy, but no part of gpuemu-flow's engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuemu_flow.client.api import Client, GpuemuClient
    from gpuemu_flow.client.asynchronous import AsyncClient
    from gpuemu_flow.client.context import ValidationContext, validate_op
    from gpuemu_flow.client.errors import (
        ClientError,
        ConnectionError,  # noqa: A004 - the documented name
        DaemonUnreachableError,
        NoOutputError,
        RequestTimeoutError,
        ValidationError,
        VersionMismatchError,
    )
    from gpuemu_flow.client.results import (
        FailureInfo,
        FuzzResults,
        MinimizeResult,
        ReproduceResult,
        ReproductionInfo,
        TestCase,
        ValidationResult,
    )

_PLACES = {
    "Client": "api",
    "GpuemuClient": "api",
    "AsyncClient": "asynchronous",
    "ValidationContext": "context",
    "validate_op": "context",
    **dict.fromkeys(
        (
            "ClientError", "DaemonUnreachableError", "NoOutputError", "RequestTimeoutError",
            "ValidationError", "VersionMismatchError", "ConnectionError",
        ),
        "errors",
    ),
    **dict.fromkeys(
        (
            "FailureInfo", "FuzzResults", "MinimizeResult", "ReproduceResult", "ReproductionInfo",
            "TestCase", "ValidationResult",
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
