"""Errors of the emulator: what cannot be run, and launches that make no sense."""

from __future__ import annotations

from gpuemu_flow.errors import FlowError, Problem, UsageError


class UnsupportedError(FlowError):
    """An instruction or declaration that the emulator cannot run; raised before a launch."""


class LaunchError(UsageError):
    """A grid, a block or arguments that the kernel cannot be launched with."""


class BudgetError(FlowError):
    """A kernel that did more work than it may."""

    exit_code = 1


def unsupported(message: str, hint: str, file: str, line: int) -> UnsupportedError:
    """Make the error for something that the emulator cannot run."""
    return UnsupportedError(Problem("emulator-unsupported", message, hint, file, line))


def bad_launch(message: str, hint: str = "") -> LaunchError:
    """Make the error for a launch that makes no sense."""
    return LaunchError(Problem("emulator-launch", message, hint))


def bad_argument(message: str, hint: str = "") -> LaunchError:
    """Make the error for a kernel argument that cannot be used."""
    return LaunchError(Problem("emulator-argument", message, hint))
