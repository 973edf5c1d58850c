"""Ops of frameworks through the commands: right ones pass, planted bugs are found, keys hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
CONFIG = """
[project]
name = "one"
{project}
[validation]
dtypes = {dtypes}
cases = 6
cause_budget = 0
strategies = ["core"]
[[ops]]
name = "it"
op = {op}
reference = {reference}
timeout = 600
schema = {{ dims = {{ M = [1, 3], N = [7, 16] }}, inputs = {{ x = ["M", "N"], w = ["N"] }} }}
"""


def make(
    folder: Path, op: str, reference: str, *, dtypes: str = '["float32"]', project: str = ""
) -> Mini:
    made = Mini(folder)
    made.write(
        "gpuemu.toml", CONFIG.format(op=op, reference=reference, dtypes=dtypes, project=project)
    )
    return made


def verdict(mini: Mini) -> str:
    (op,) = mini.run(code=None)["results"]
    return str(op["verdict"])


NUMPY_REFERENCE = "def f(x, w):\n    return x * w + x.sum(-1, keepdims=True)\n"
RIGHT = {
    "torch": "def f(x, w):\n    return (x * w).add_(x.sum(dim=-1, keepdim=True))\n",
    "jax": "def f(x, w):\n    return x * w + x.sum(axis=-1, keepdims=True)\n",
    "numpy": "def f(x, w):\n    return x * w + x.sum(-1, keepdims=True)\n",
}
BUGS = {
    "torch": "    out = x.new_empty(x.shape)\n    out[:, :7] = (x * w + x.sum(-1, True))[:, :7]\n",
    "jax": "    out = x * w + x[:, :16].at[0, -1].set(0).sum(-1, keepdims=True)\n",
    "numpy": "    out = x * w\n",
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("torch", marks=needs_torch),
        pytest.param("jax", marks=needs_jax),
        "numpy",
    ],
)
def test_a_right_op_passes_and_a_bug_is_found(kind: str, tmp_path: Path) -> None:
    mini = make(
        tmp_path / "ws",
        f'{{ kind = "{kind}", file = "op.py", function = "f" }}',
        '{ kind = "numpy", file = "ref.py", function = "f" }',
    )
    mini.write("ref.py", NUMPY_REFERENCE)
    mini.write("op.py", RIGHT[kind])
    assert verdict(mini) == "passed"
    mini.command("fuzz", "it", "--iterations", "10", "--seed", "5")
    mini.write("op.py", f"def f(x, w):\n{BUGS[kind]}    return out\n")
    assert verdict(mini) == "failed"
    mini.command("fuzz", "it", "--iterations", "10", "--seed", "5", code=1)


MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, shift=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.shift = shift

    def forward(self, x, w):
        return {body} + self.shift
"""
BODY = "self.norm(self.up(x) * w)"


@needs_torch
def test_modules_share_weights_and_their_making_is_in_the_key(tmp_path: Path) -> None:
    def program(file: str, more: str = "") -> str:
        init = f"init = {{ width = 7{more} }}"
        return f'{{ kind = "torch", file = "{file}", module_class = "Model", {init} }}'

    mini = make(tmp_path / "ws", program("op.py"), program("ref.py"))
    mini.edit("gpuemu.toml", "N = [7, 16]", "N = [7]")
    mini.write("ref.py", MODULE.format(body=BODY))
    mini.write("op.py", MODULE.format(body=f"({BODY})"))
    assert verdict(mini) == "passed"
    mini.edit("gpuemu.toml", program("op.py"), program("op.py", ", shift = 0.5"))
    assert verdict(mini) == "failed"
    mini.edit("gpuemu.toml", program("op.py", ", shift = 0.5"), program("op.py"))
    for bug in (
        "self.norm(x @ self.up.weight.T * w)",  # without the bias
        "nn.functional.layer_norm(self.up(x) * w, (7,))",
    ):  # without the norm's weights
        mini.write("op.py", MODULE.format(body=bug))
        assert verdict(mini) == "failed", bug


@needs_torch
def test_the_framework_of_the_project_gives_tensors(tmp_path: Path) -> None:
    mini = make(tmp_path / "ws", '"op.py:f"', '"ref.py:f"', project='framework = "pytorch"',
                dtypes='["bfloat16"]')  # fmt: skip
    mini.write("ref.py", NUMPY_REFERENCE)
    mini.write("op.py", "import torch\ndef f(x, w):\n    wide = x.float()\n"
               "    assert x.dtype is torch.bfloat16\n"
               "    return (wide * w.float() + wide.sum(-1, True)).to(x.dtype)\n")  # fmt: skip
    assert verdict(mini) == "passed"
