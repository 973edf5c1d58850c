"""Errors between a client and its daemon, each with a hint on the fix."""

from __future__ import annotations

from typing import Any

from gpuemu_flow.errors import FlowError, Problem

_SLUGS = {
    "OpNotFound": "client-unknown-op",
    "ReferenceScriptFailed": "client-reference-failed",
    "NotFound": "client-not-found",
    "ConfigError": "client-config-error",
}


class ClientError(FlowError):
    """A call that gave no result.

    Attributes
    ----------
    code : str
        The daemon's own code, such as ``OpNotFound``; empty when it did not answer.
    """

    def __init__(self, problem: Problem, code: str = "") -> None:
        super().__init__(problem)
        self.code = code

    @property
    def message(self) -> str:
        """Return the error's message, without slug and hint."""
        return self.problems[0].message


class NoOutputError(ClientError, ValueError):
    """Error of a ``validate_op`` context that was left without an output."""


class ValidationError(AssertionError):
    """Error of an output that did not pass.

    Attributes
    ----------
    result : ValidationResult
    """

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result: Any = result


class DaemonUnreachableError(ClientError):
    """Error of a daemon that does not answer; ``ConnectionError`` is its documented name."""


ConnectionError = DaemonUnreachableError  # noqa: A001 - the documented name


class OtherWorkspaceError(DaemonUnreachableError):
    """Error of a daemon that serves another workspace than the client's."""


class VersionMismatchError(ClientError):
    """Error of a daemon that speaks another version of the protocol."""


class RequestTimeoutError(ClientError):
    """Error of a daemon that did not answer in time."""


class TransportError(Exception):
    """Error of a message that could not be exchanged; callers see a `ClientError` instead."""


class TransportTimeout(TransportError):  # noqa: N818 - an outcome of an exchange
    """Error of an exchange without an answer in time."""


class TransportUnreached(TransportError):  # noqa: N818
    """Error of a path at which nobody listens; nothing was sent."""


class TransportFull(TransportError):  # noqa: N818
    """Error of a daemon that lets no more connections in; nothing was sent."""


class TransportLost(TransportError):  # noqa: N818
    """Error of a connection that was closed, or on which the other side broke the protocol."""


class TransportEnded(TransportLost):
    """Error of a connection that the other side closed."""


class TransportClosed(TransportLost):
    """Error of connections that this side closed before anything was sent."""


def refused(code: str, message: str) -> ClientError:
    """Return the error for a daemon's ``Error`` reply."""
    return ClientError(Problem(_SLUGS.get(code, "client-refused"), message), code)
