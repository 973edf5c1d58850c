"""Damaged PTX run by the compiled back end: it neither crashes nor gives other bits than numpy.

The suite runs a few mutations; ``PTX_COMPILED=1000`` in the environment is more.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from gpuemu_flow.emulator.decode import decode_program
from gpuemu_flow.emulator.launch import (
    Argument,
    BufferArgument,
    Kernel,
    ScalarArgument,
    choose_entry,
    read_entries,
)
from gpuemu_flow.emulator.native.compiler import find_compiler
from gpuemu_flow.model.errors import FlowError

sys.path.insert(0, str(Path(__file__).resolve().parent))
from test_ptx_execution import FILES, altered, kernels_of

EXECUTIONS = int(os.environ.get("PTX_COMPILED", "12"))
SEED = os.environ.get("PTX_EXECUTION_SEED", "")
BUDGET = 2_000_000
CHECKS = ("mem", "init", "race", "sync")


def launch(kernel: Kernel, backend: str, checks: tuple[str, ...]) -> tuple[str, list[bytes], int]:
    """Launch with small buffers; who ran it, what the buffers hold, how much was found."""
    arguments: list[Argument] = []
    for parameter in kernel.parameters:
        if parameter.size == 8:
            arguments.append(BufferArgument(np.ones(256, "f4"), name=parameter.name))
        else:
            number = (5).to_bytes(max(4, parameter.size), "little")
            arguments.append(ScalarArgument(number[: parameter.size]))
    threads = kernel.program.required_threads or 64
    result = kernel.launch(
        [2], [threads], arguments, shared=1024, budget=BUDGET, checks=checks, backend=backend
    )
    held = [b.tobytes() for b in result.buffers if b is not None]
    return result.backend, held, len(result.findings)


@pytest.mark.skipif(find_compiler(os.environ) is None, reason="no C compiler on PATH")
@pytest.mark.ci
def test_mutated_kernels_give_the_same_bits_or_none(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    rng = random.Random(f"compiled{SEED}")
    files = [path for path in FILES if path.stem != "clusters"]  # numpy alone runs these
    sources = [data for path in files for data in kernels_of(path)]
    compiled = 0
    for _ in range(EXECUTIONS):
        data = altered(rng.choice(sources), rng)
        try:
            entry = choose_entry(read_entries(data, "hostile.ptx"), "", "hostile.ptx")
            kernel = Kernel(decode_program(entry))
            by, held, _ = launch(kernel, "c", CHECKS)
        except FlowError as error:
            assert error.slug
            continue
        if by != "c":
            continue
        compiled += 1
        try:
            _, wanted, found = launch(kernel, "numpy", CHECKS)
        except FlowError:  # numpy charges more for threads that are alone
            continue
        assert not found, f"C passed over {found} findings in\n{data.decode('latin-1')}"
        assert held == wanted, data.decode("latin-1")
    assert compiled > EXECUTIONS // 8, f"{compiled} of {EXECUTIONS} ran compiled"
