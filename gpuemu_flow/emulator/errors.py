"""Errors of the emulator: unsupported instructions, and impossible launches."""

from __future__ import annotations

from gpuemu_flow.lint.ptx.model import Opcode
from gpuemu_flow.model.errors import FlowError, Problem, UsageError


class UnsupportedError(FlowError):
    """Error for an instruction or declaration that cannot be run; raised before a launch."""


class LaunchError(UsageError):
    """Error for a grid, a block or arguments that do not fit the kernel."""


class BudgetError(FlowError):
    """Error for a kernel that exceeded its budget of instructions."""

    exit_code = 1


def unsupported(message: str, hint: str, file: str, line: int) -> UnsupportedError:
    return UnsupportedError(Problem("emulator-unsupported", message, hint, file, line))


def bad_launch(message: str, hint: str = "") -> LaunchError:
    return LaunchError(Problem("emulator-launch", message, hint))


def bad_argument(message: str, hint: str = "") -> LaunchError:
    return LaunchError(Problem("emulator-argument", message, hint))


# Advice for instructions that the emulator cannot run.


OLDER = "compile for an older architecture (sm_80), or see `gpuemu-flow emulate --coverage`"

_FIXES: tuple[tuple[tuple[str, ...], str], ...] = (
    (("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep"),
     "textures and surfaces cannot be run: read plain memory with ld.global"),
    (("cp.async.bulk.tensor", "cp.reduce.async.bulk", "cp.async.bulk.prefetch", "tensormap"),
     "tiled copies by tensor maps (TMA) can be run: see docs/emulator.md for the forms"),
    (("tcgen05",), "compile for sm_90 or older"),
    (("mma.sp", "mma.sp::ordered_metadata"),
     "see docs/emulator.md for the shapes and selectors of sparse products that can be run"),
    (("wgmma.mma_async.sp", "mma.sync.aligned.kind"),
     "sparse products of warp groups and scaled products cannot be run: use the dense form"),
    (("multimem", "clusterlaunchcontrol"),
     "several GPUs and clusters that the kernel itself asks for cannot be run"),
    (("bar", "barrier"), "put the barrier outside of the branch, without a predicate"),
)  # fmt: skip
"""Beginnings of opcodes that cannot be run, and the advice for each group of beginnings."""


def fix_of(opcode: Opcode) -> str:
    """Return the advice for an instruction that the emulator cannot run."""
    for beginnings, fix in _FIXES:
        if any(opcode.text == b or opcode.text.startswith(f"{b}.") for b in beginnings):
            return fix
    return OLDER
