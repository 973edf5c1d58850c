"""A launch that the emulator refuses costs one answer for each case, and no process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernel_workspace import KERNELS
from runner_workspace import Workspace, make_case

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.types import Case

pytestmark = pytest.mark.ci

CASES = 6
LAUNCH = {
    "entry": "softmax_rows", "grid": ["B"], "block": [64], "args": ["x", "out", {"i32": "H"}],
    "outputs": {"out": ["B", "H"]},
}  # fmt: skip


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Kinds of programs that a worker was opened for."""
    seen: list[str] = []
    real = Pool._open

    def noted(self: Pool, program: Program, *rest: Any, **options: Any) -> Any:
        seen.append(program.kind)
        return real(self, program, *rest, **options)

    monkeypatch.setattr(Pool, "_open", noted)
    yield seen


def cases() -> list[Case]:
    return [make_case(index, (2 + index % 2, 40)) for index in range(CASES)]


@pytest.mark.parametrize(
    ("changed", "slug"),
    [
        ({"block": [4096]}, "emulator-launch"),
        ({"grid": ["Q"]}, "emulator-launch"),
        ({"shared": "B * 1000000"}, "emulator-launch"),
        ({"args": ["x", "out"]}, "emulator-argument"),
        ({"block": ["B * 600"]}, "emulator-launch"),
    ],
)
def test_a_launch_that_cannot_be(
    ws: Workspace, opened: list[str], changed: dict[str, Any], slug: str
) -> None:
    argv = (json.dumps({**LAUNCH, **changed}), json.dumps({"x": ["B", "H"]}))
    program = Program(
        "ptx",
        root=str(ws.folder),
        input_names=("x",),
        path=str(KERNELS / "matrices.ptx"),
        argv=argv,
    )
    outcomes = ws.run(program, cases())
    assert {o.error.slug if o.error else "" for o in outcomes} == {slug}
    assert opened == ["ptx"]


def test_an_instruction_that_is_declined(ws: Workspace, opened: list[str]) -> None:
    text = (KERNELS / "matrices.ptx").read_text()
    start = text.index("{", text.index(".entry softmax_rows(")) + 1
    declined = "\ntcgen05.fence::before_thread_sync;\n"
    path = ws.write("declined.ptx", "")
    Path(path).write_text(text[:start] + declined + text[start:])
    argv = (json.dumps(LAUNCH), json.dumps({"x": ["B", "H"]}))
    program = Program("ptx", root=str(ws.folder), input_names=("x",), path=str(path), argv=argv)
    outcomes = ws.run(program, cases())
    assert {o.error.slug if o.error else "" for o in outcomes} == {"emulator-unsupported"}
    assert opened == ["ptx"]


ADDRESS = """
import torch, triton
import triton.language as tl

@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    tl.store(out + cols, tl.load(x + cols, mask=cols < n), mask=cols < n)

def op(x):
    out = torch.empty_like(x)
    kernel[(1,)](x, out, x.data_ptr() % 64, BLOCK=64)
    return out
"""


def test_what_a_compiled_triton_launch_asks_for(ws: Workspace, opened: list[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    path = ws.write("host.py", ADDRESS)
    program = Program(
        "triton", root=str(ws.folder), input_names=("x",), path=str(path), function="op",
        argv=("compiled", "sm_90", "mem"),
    )  # fmt: skip
    outcomes = ws.run(program, cases())
    assert {o.error.slug if o.error else "" for o in outcomes} == {"triton-compiled"}
    assert opened in (["triton"], ["triton", "triton"]), "once more, to see that none before it did"
