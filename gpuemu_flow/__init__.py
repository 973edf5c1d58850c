"""gpuemu-flow: know that a GPU kernel is right, without a GPU."""

TYPE_CHECKING = False  # importing it from typing would cost every command
if TYPE_CHECKING:
    from gpuemu_flow.client import (
        AsyncClient,
        Client,
        ClientError,
        ValidationError,
        ValidationResult,
        validate_op,
    )

__version__ = "0.1.0"

_OF_CLIENT = frozenset(
    ("AsyncClient", "Client", "ClientError", "ValidationError", "ValidationResult", "validate_op")
)

__all__ = [
    "AsyncClient",
    "Client",
    "ClientError",
    "ValidationError",
    "ValidationResult",
    "__version__",
    "validate_op",
]


def __getattr__(name: str) -> object:
    """Return the client's names, whose modules load numpy only when one is asked for."""
    if name not in _OF_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"{__name__}.client", fromlist=[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
