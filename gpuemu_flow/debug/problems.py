"""Errors of the debugger's commands."""

from __future__ import annotations

from gpuemu_flow.errors import Problem, UsageError, did_you_mean


def unknown_command(word: str, known: tuple[str, ...]) -> UsageError:
    """Make the error ``debug-unknown-command``."""
    hint = did_you_mean(word, known)
    return UsageError(Problem("debug-unknown-command", f"no command {word!r}", hint))


def bad_arguments(usage: str) -> UsageError:
    """Make the error ``debug-bad-arguments``."""
    return UsageError(Problem("debug-bad-arguments", f"it is used as: {usage}"))


def nothing_selected() -> UsageError:
    """Make the error ``debug-no-failure``."""
    hint = "`list` lists failures, `show SEED` selects one"
    return UsageError(Problem("debug-no-failure", "no failure is selected", hint))


def bad_slice(text: str, reason: str) -> UsageError:
    """Make the error ``debug-bad-slice``."""
    hint = "NAME[1, 0:4, ::2] with integers only"
    return UsageError(Problem("debug-bad-slice", f"{text!r}: {reason}", hint))


def unknown_tensor(name: str, known: tuple[str, ...]) -> UsageError:
    """Make the error ``debug-unknown-tensor``."""
    hint = did_you_mean(name, known)
    return UsageError(Problem("debug-unknown-tensor", f"no tensor {name!r}", hint))


def shapes_differ(first: object, second: object) -> UsageError:
    """Make the error ``debug-shapes-differ``."""
    message = f"tensors of the shapes {first} and {second} cannot be compared"
    return UsageError(Problem("debug-shapes-differ", message, "take slices of one shape"))
