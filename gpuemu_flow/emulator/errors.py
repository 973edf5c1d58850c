"""Errors of the emulator: unsupported instructions, and impossible launches."""

from __future__ import annotations

from gpuemu_flow.errors import FlowError, Problem, UsageError


class UnsupportedError(FlowError):
    """Error for an instruction or declaration that cannot be run; raised before a launch."""


class LaunchError(UsageError):
    """Error for a grid, a block or arguments that do not fit the kernel."""


class BudgetError(FlowError):
    """Error for a kernel that exceeded its budget of instructions."""

    exit_code = 1


def unsupported(message: str, hint: str, file: str, line: int) -> UnsupportedError:
    """Make the error for an unsupported instruction or declaration."""
    return UnsupportedError(Problem("emulator-unsupported", message, hint, file, line))


def bad_launch(message: str, hint: str = "") -> LaunchError:
    """Make the error for an impossible launch."""
    return LaunchError(Problem("emulator-launch", message, hint))


def bad_argument(message: str, hint: str = "") -> LaunchError:
    """Make the error for a kernel argument that cannot be used."""
    return LaunchError(Problem("emulator-argument", message, hint))
