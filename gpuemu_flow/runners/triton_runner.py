"""Run host functions of Triton kernels on the CPU, by Triton's interpreter or the emulator."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.emulated import PtxFolder
from gpuemu_flow.runners.imports import load_function
from gpuemu_flow.runners.torch_runner import TorchHost, TorchRunner
from gpuemu_flow.runners.triton_interpreter import SWITCH, Interpreter


def plain_error(error: BaseException) -> BaseException:
    """Return the kernel's own exception, without the interpreter's exceptions around it."""
    while type(error).__name__ == "InterpreterError" and error.__cause__ is not None:
        error = error.__cause__
    return error


class TritonRunner(TorchRunner):
    """Calls a host function with torch tensors that share the memory of the inputs.

    Raises OpError: ``op-not-loadable``, ``triton-missing``, ``op-signature``.
    """

    def _make_host(self, program: Program) -> TorchHost:
        """Make the emulator if ``mode = "compiled"``, else the interpreter."""
        # This process is the program's, and has not imported triton yet.
        os.environ.pop(SWITCH, None)
        if not program.argv:
            return Interpreter(required=program.require_kernel, forbid=program.forbid)
        from gpuemu_flow.runners.triton_emulated import CompiledTriton  # noqa: PLC0415 - only for it

        _, arch, checks, *folder = program.argv
        exchange = PtxFolder(Path(folder[0]) if folder else None)
        return CompiledTriton(arch, tuple(filter(None, checks.split(","))), program.root, exchange)

    def _load(self, program: Program) -> Callable[..., Any]:
        host = load_function(program)

        @functools.wraps(host)
        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return host(*args, **kwargs)
            except Exception as error:
                raise plain_error(error) from None

        return run
