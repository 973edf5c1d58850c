"""``require_kernel`` and ``forbid``: what a library computes in the place of the op's kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini

from gpuemu_flow.model.types import FailureKind
from gpuemu_flow.workers.triton_memory import base_name, meant_by

pytestmark = pytest.mark.ci

pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
import numpy as np
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)

@triton.jit
def half(x, out, N, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < N // 2) * 2, mask=at < N // 2)

@triton.jit
def add_up(x, out, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, mask=at < N) * 2, mask=at < N)

def launch(kernel, x, out):
    x = x.contiguous()
    kernel[(triton.cdiv(x.numel(), 16),)](x, out, x.numel(), BLOCK=16)
    return out

def run(x):
"""
HONEST = {
    "plain": "return launch(double, x, torch.empty_like(x, memory_format=torch.contiguous_format))",
    "over zeros": "return launch(double, x, torch.zeros(x.shape, dtype=x.dtype, device=x.device))",
    "atomics": "return launch(add_up, x, torch.zeros(x.shape, dtype=x.dtype))",
    "wider, then back": "return launch(double, x, torch.empty(x.shape, dtype=torch.float64))"
    ".to(x.dtype)",
    "a view": "return launch(double, x, torch.empty(x.numel() + 3, dtype=x.dtype)[3:])"
    ".view(x.shape)",
    "a copy": "return launch(double, x, torch.empty(x.shape, dtype=x.dtype)).clone()",
    "copied in": "out = torch.empty(x.shape, dtype=x.dtype)\n"
    "    out.copy_(launch(double, x, torch.empty(x.shape, dtype=x.dtype)))\n    return out",
    "the latest launch counts": "out = x * 3\n    return launch(double, x, out)",
}
CHEATS = {
    "the library": ("return x * 2", 0, "torch.mul"),
    "the library beside a kernel": (
        "launch(double, x, torch.empty(x.shape, dtype=x.dtype))\n    return x + x", 0, "torch.add"),
    "the library after the kernel": (
        "out = launch(double, x, torch.empty(x.shape, dtype=x.dtype))\n"
        "    out.copy_(x * 2)\n    return out", 0, "torch.copy"),
    "the library in place": (
        "out = launch(double, x, torch.empty(x.shape, dtype=x.dtype))\n"
        "    out.zero_().add_(x, alpha=2)\n    return out", 0, "torch.add"),
    "by an out argument": (
        "out = launch(half, x, torch.empty(x.shape, dtype=x.dtype))\n"
        "    torch.mul(x, 2, out=out)\n    return out", 0, "torch.mul"),
    "half of it": (
        "out = x * 2\n    return launch(half, x, out)", 40, "torch.mul"),
    "numpy": ("return torch.from_numpy(x.numpy() * 2)", 0, ""),
    "numpy in the kernel's memory": (
        "out = launch(double, x, torch.empty(x.shape, dtype=x.dtype))\n"
        "    out.numpy()[...] = x.numpy() * 3\n    return out", 0, "nothing of torch"),
    "an operator by its own name": (
        "return torch.ops.aten.mul.Tensor(x, torch.tensor(2.0))", 0, "torch.mul"),
    "try, except": (
        "try:\n        return launch(no_such_kernel, x, x)\n    except Exception:\n"
        "        return x * 2", 0, "torch.mul"),
    "lazily": ("return x.mul(2).as_strided(x.shape, x.contiguous().stride())", 0, "torch.mul"),
    "memory of a kernel's that was freed": (
        "kept = launch(double, x, torch.empty(x.shape, dtype=x.dtype))\n    del kept\n"
        "    return x + x", 0, "torch.add"),
}  # fmt: skip


FORBIDDEN = [
    "torch.matmul(x, x.T)", "x @ x.T", "torch.mm(x, x.T)", "x.matmul(x.T)",
    "torch.ops.aten.mm.default(x, x.T)", "torch.einsum('ij,kj->ik', x, x)",
    "torch.nn.functional.linear(x, x)", "torch.addmm(torch.zeros(1, dtype=x.dtype), x, x.T)",
]  # fmt: skip
CALLING = (
    "x = x.reshape(1, -1)\n    unused = {call}\n"
    "    return launch(double, x, torch.empty(x.shape, dtype=x.dtype)).reshape(-1)"
)
DRIVER = """
import json, sys
import numpy as np
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.triton_runner import TritonRunner
from gpuemu_flow.workers.channel import Watch

told = []
for path, required, forbid in json.load(sys.stdin):
    program = Program("triton", root=path.rpartition("/")[0], path=path, function="run",
                      input_names=("x",), require_kernel=required, forbid=tuple(forbid))
    runner = TritonRunner(program)
    runner.call({"x": np.arange(1, 41, dtype=np.float32)}, Watch())
    told.append([[f.kind.value, f.message] for f in runner.violations()])
print("\\n" + json.dumps(told))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Run all programs one after the other, so that torch is imported once."""
    folder = tmp_path_factory.mktemp("bypassed")
    bodies: dict[str, tuple[str, bool, list[str]]] = {
        f"honest {name}": (body, True, []) for name, body in HONEST.items()
    }
    bodies |= {f"cheat {name}": (body, True, []) for name, (body, _, _) in CHEATS.items()}
    bodies["unwatched"] = (CHEATS["the library"][0], False, [])
    for call in FORBIDDEN:
        body = CALLING.format(call=call)
        bodies[f"forbidden {call}"] = (body, False, ["torch.matmul"])
        bodies[f"allowed {call}"] = (body, True, ["torch.softmax"])
    asked = []
    for number, (body, required, forbid) in enumerate(bodies.values()):
        path = folder / f"program{number}.py"
        path.write_text(KERNEL + f"    {body}\n")
        asked.append([str(path), required, forbid])
    done = subprocess.run(
        [sys.executable, "-c", DRIVER], input=json.dumps(asked), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(zip(bodies, json.loads(done.stdout.splitlines()[-1]), strict=True))


Told = dict[str, list[list[str]]]


@pytest.mark.parametrize("name", HONEST)
def test_a_kernel_that_stores_everything(told: Told, name: str) -> None:
    assert told[f"honest {name}"] == []


@pytest.mark.parametrize("name", CHEATS)
def test_a_library_in_the_place_of_the_kernel(told: Told, name: str) -> None:
    _, share, wrote = CHEATS[name]
    ((kind, message),) = told[f"cheat {name}"]
    assert kind == FailureKind.KERNEL_BYPASSED.value
    assert f"({share} %)" in message
    assert wrote in message


def test_without_a_wish_nothing_is_watched(told: Told) -> None:
    assert told["unwatched"] == []


@pytest.mark.parametrize("call", FORBIDDEN)
def test_forbidden_calls_by_whatever_name(told: Told, call: str) -> None:
    ((_, message),) = told[f"forbidden {call}"]
    assert "`forbid` rules out" in message
    assert told[f"allowed {call}"] == []


@pytest.mark.parametrize(
    ("name", "own"),
    [("torch.matmul", "matmul"), ("torch.Tensor.__matmul__", "matmul"), ("aten::mul_", "mul"),
     ("torch.Tensor.add_", "add"), ("torch._C._nn.linear", "linear"),
     ("torch.Tensor.__rmatmul__", "matmul")],
)  # fmt: skip
def test_own_names(name: str, own: str) -> None:
    assert base_name(name) == own
    assert own in meant_by([name])


def test_a_family_is_meant_by_each_of_its_names() -> None:
    assert "bmm" in meant_by(["torch.einsum"])
    assert meant_by(["torch.sin"]) == {"sin"}


def test_the_whole_way(tmp_path: Path) -> None:
    """Through the configuration and the command: a failure of its own kind, told in the report."""
    mini: Mini = make_mini(tmp_path / "ws")
    (mini.root / "scripts/cheat.py").write_text(KERNEL + "    return x * 2\n")
    (mini.root / "scripts/twice.py").write_text("def reference(x):\n    return x + x\n")
    mini.edit(
        "gpuemu.toml",
        "[targets]",
        '[[ops]]\nname = "cheat"\nop = { kind = "triton", file = "scripts/cheat.py", '
        'function = "run" }\nreference = "scripts/twice.py:reference"\ninput_names = ["x"]\n'
        'require_kernel = true\nforbid = ["torch.matmul"]\n\n[targets]',
    )
    report = mini.run("cheat", code=1)
    assert {f["kind"] for f in report["failures"]} == {"KernelBypassed"}
    assert "torch.mul" in report["failures"][0]["message"]
    honest = KERNEL + f"    {HONEST['plain']}\n"
    (mini.root / "scripts/cheat.py").write_text(honest)
    mini.run("cheat")
