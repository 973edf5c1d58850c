"""Errors of a client's calls, each with a hint on how to fix it."""

from __future__ import annotations

from typing import Any

from gpuemu_flow.model.errors import FlowError, Problem

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
