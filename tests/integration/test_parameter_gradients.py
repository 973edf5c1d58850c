"""Gradients of a module's parameters: right modules pass, bugs that only they show are found."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from textwrap import dedent, indent

import pytest
from mini_workspace import Mini

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch"),
]

CONFIG = """
[project]
name = "parameters"
[validation]
dtypes = ["float32"]
cases = 3
cause_budget = 0
strategies = ["normal", "negative"]
"""
OP = """
[[ops]]
name = "{name}"
op = {{ kind = "torch", file = "ops.py", module = "{module}", init = {{ n = 6 }} }}
reference = {{ kind = "torch", file = "reference.py", module = "Model", init = {{ n = 6 }} }}
gradients = {gradients}
timeout = 600
schema = {{ dims = {{ M = [1, 5] }}, inputs = {{ x = ["M", 6] }}, output = ["M", 6] }}
"""
MODEL = """
import torch
import torch.nn.functional as F
from torch import nn


class {name}(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)
        self.scale = nn.Parameter(torch.ones(n))
        self.shift = nn.Parameter(torch.zeros(n))

    def forward(self, x):
{forward}
"""
PLAIN = "return F.gelu(self.linear(x)) * self.scale + self.shift"
SCALED = """
class Scaled{name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale, shift):
        ctx.save_for_backward(x, scale)
        return x * scale + shift

    @staticmethod
    def backward(ctx, dy):
        x, scale = ctx.saved_tensors
        return {backward}
"""
RIGHT = {
    "Unfused": "return F.gelu(x @ self.linear.weight.T + self.linear.bias) * self.scale"
    " + self.shift",
    "Hand": "return ScaledHand.apply(F.gelu(self.linear(x)), self.scale, self.shift)",
}
WRONG = {
    "Detached": PLAIN.replace("self.scale", "self.scale.detach()"),
    "Data": PLAIN.replace("self.shift", "self.shift.data"),
    "NoBias": "return F.gelu(x @ self.linear.weight.T + self.linear.bias.detach()) * self.scale"
    " + self.shift",
    "Mean": "return ScaledMean.apply(F.gelu(self.linear(x)), self.scale, self.shift)",
    "Row": "return ScaledRow.apply(F.gelu(self.linear(x)), self.scale, self.shift)",
    "Swapped": "return ScaledSwapped.apply(F.gelu(self.linear(x)), self.scale, self.shift)",
    "Frozen": "self.scale.requires_grad_(False)\n" + PLAIN,
}
BACKWARD = {
    "Hand": "dy * scale, (dy * x).sum(0), dy.sum(0)",
    "Mean": "dy * scale, (dy * x).mean(0), dy.sum(0)",
    "Row": "dy * scale, (dy * x).sum(0), dy[0]",
    "Swapped": "dy * scale, dy.sum(0), (dy * x).sum(0)",
}


def workspace(folder: Path, modules: dict[str, str], gradients: str = "true") -> Mini:
    mini = Mini(folder)
    whole = "import torch\n" + "".join(
        dedent(SCALED).format(name=name, backward=text) for name, text in BACKWARD.items()
    )
    config = CONFIG
    for name, forward in modules.items():
        whole += MODEL.format(name=name, forward=indent(dedent(forward), " " * 8))
        config += OP.format(name=name.lower(), module=name, gradients=gradients)
    mini.write("reference.py", MODEL.format(name="Model", forward=indent(PLAIN, " " * 8)))
    (mini.root / "ops.py").write_text(whole)
    mini.write("gpuemu.toml", config)
    return mini


def test_right_modules_pass_and_wrong_gradients_of_parameters_fail(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", {**RIGHT, **WRONG})
    found = mini.run(code=1)
    verdicts = {(each["op"], each["dtype"]): each["verdict"] for each in found["results"]}
    assert verdicts == {
        **{(name.lower(), dtype): "passed" for name in RIGHT for dtype in ("float32",)},
        **{(name.lower(), dtype): "failed" for name in WRONG for dtype in ("float32",)},
    }
    said = mini.command("run", code=1).stdout
    assert "no gradient arrives at 'self.scale'" in said
    assert "'d/dself.shift'" in said
    blamed: dict[str, set[str]] = {}
    for each in found["failures"]:
        named = re.findall(r"'d/d(self[a-z.]+)' exceed", " ".join(each["messages"]))
        blamed.setdefault(each["op"], set()).update(named)
    assert blamed["detached"] == blamed["frozen"] == {"self.scale"}
    assert blamed["nobias"] == {"self.linear.bias"}
    fuzzed = mini.command("fuzz", "swapped", "--iterations", "3", "--no-confirm", code=1).stdout
    assert "d/dself.shift" in fuzzed
    seed = next(each["seed_str"] for each in found["failures"] if each["op"] == "mean")
    again = mini.command("reproduce", seed, "--op", "mean", code=1).stdout
    assert "d/dself.scale" in again


def test_named_parameters_alone_are_compared(tmp_path: Path) -> None:
    modules = {"Detached": WRONG["Detached"], "Data": WRONG["Data"]}
    mini = workspace(tmp_path / "w", modules, '["self.scale"]')
    verdicts = {each["op"]: each["verdict"] for each in mini.run(code=1)["results"]}
    assert verdicts == {"detached": "failed", "data": "passed"}


def test_a_module_without_parameters_is_not_excused(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", {"Unfused": RIGHT["Unfused"]}, '["self"]')
    ops = (mini.root / "ops.py").read_text()
    (mini.root / "ops.py").write_text(
        ops.replace("return F.gelu", "self.requires_grad_(False)\n        return F.gelu")
    )
    assert {each["verdict"] for each in mini.run(code=3)["results"]} == {"error"}


def test_parameters_that_no_module_has_are_refused(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", {"Unfused": RIGHT["Unfused"]}, '["self.nothing"]')
    assert "gradient-no-parameter" in mini.command("run", "--dtype", "float32", code=None).stdout
    config = (mini.root / "gpuemu.toml").read_text()
    function = config.replace('"torch", file = "reference.py", module = "Model", init = { n = 6 }',
                              '"torch", file = "reference.py", function = "f"')  # fmt: skip
    assert function != config
    mini.write("gpuemu.toml", function.replace("self.nothing", "self"))
    said = mini.command("config", "check", code=2).stderr
    assert "parameters need an op and a reference that are modules of PyTorch" in said


HALF = """
import torch
from torch import nn

SEEN = {}


def of_the_call_before(new):
    old, SEEN[new.dtype] = SEEN.get(new.dtype, torch.zeros_like(new)), new
    return old


HOW = {
    "Right": lambda dw, db, dy: (dw, db),
    "Scaled": lambda dw, db, dy: (1.1 * dw, db),
    "Turned": lambda dw, db, dy: (dw.T, db),
    "Unsummed": lambda dw, db, dy: (dw, dy[0]),
    "Stale": lambda dw, db, dy: (of_the_call_before(dw), db),
}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, how):
        ctx.save_for_backward(x, weight)
        ctx.how = how
        return (x.float() @ weight.float().T + bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight = (saved.float() for saved in ctx.saved_tensors)
        wide = dy.float()
        found = HOW[ctx.how](wide.T @ x, wide.sum(0), wide)
        return (wide @ weight).to(dy.dtype), *(d.to(dy.dtype) for d in found), None


class Right(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        how = type(self).__name__
        return Product.apply(x, self.linear.weight, self.linear.bias, how)


class Scaled(Right): ...
class Turned(Right): ...
class Unsummed(Right): ...
class Stale(Right): ...


class Steps(Right):  # each step is rounded
    def forward(self, x):
        return x @ self.linear.weight.T + self.linear.bias
"""
LINEAR = """
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.linear = nn.Linear(n, n)

    def forward(self, x):
        return self.linear(x)
"""


@pytest.mark.ci
def test_gradients_of_parameters_in_half_precision(tmp_path: Path) -> None:
    mini = Mini(tmp_path / "w")
    mini.write("ops.py", HALF)
    mini.write("reference.py", LINEAR)
    modules = ("Right", "Scaled", "Turned", "Unsummed", "Stale", "Steps")
    text = CONFIG.replace('["float32"]', '["float16", "bfloat16"]')
    text += "".join(OP.format(name=m.lower(), module=m, gradients="true") for m in modules)
    steps = 'name = "steps"\n'
    mini.write("gpuemu.toml", text.replace(steps, steps + 'precision = "input"\n'))
    found = mini.run(code=1)
    halves = ("float16", "bfloat16")
    assert {(each["op"], each["dtype"]): each["verdict"] for each in found["results"]} == {
        (module.lower(), dtype): "passed" if module in ("Right", "Steps") else "failed"
        for module in modules
        for dtype in halves
    }
    blamed: dict[str, set[str]] = {}
    for each in found["failures"]:
        named = re.findall(r"'d/d(self[a-z.]+)' exceed", " ".join(each["messages"]))
        blamed.setdefault(each["op"], set()).update(named)
    weight, bias = {"self.linear.weight"}, {"self.linear.bias"}
    assert blamed == {"scaled": weight, "turned": weight, "unsummed": bias, "stale": weight}
    seed = next(each["seed_str"] for each in found["failures"] if each["op"] == "scaled")
    assert "d/dself.linear.weight" in mini.command("reproduce", seed, code=1).stdout
    fuzz = ("fuzz", "unsummed", "--iterations", "4", "--dtype", "bfloat16", "--no-confirm")
    assert "d/dself.linear.bias" in mini.command(*fuzz, code=1).stdout


EMBEDDING = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.table = nn.Embedding(n, 4)

    def forward(self, x):
        return self.table(x)


class Wide(Model):
    def forward(self, x):
        return self.table(x).float()


class Overwriting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, table):
        ctx.save_for_backward(x, table)
        return table[x]

    @staticmethod
    def backward(ctx, dy):
        x, table = ctx.saved_tensors
        found = torch.zeros_like(table)
        found[x] = dy  # and not added: wrong where an index comes twice
        return None, found


class Overwritten(Model):
    def forward(self, x):
        return Overwriting.apply(x, self.table.weight)
"""


@pytest.mark.ci
def test_a_module_of_integer_inputs_computes_in_the_dtype_of_the_case(tmp_path: Path) -> None:
    mini = Mini(tmp_path / "w")
    mini.write("ops.py", EMBEDDING)
    mini.write("reference.py", EMBEDDING)
    modules = {"Model": "passed", "Wide": "error", "Overwritten": "failed"}
    text = CONFIG.replace('["float32"]', '["float16", "bfloat16"]')
    text += "".join(OP.format(name=m.lower(), module=m, gradients="true") for m in modules)
    index = '{ x = { dims = ["M"], dtype = "int64", range = [0, 5] } }, output = ["M", 4]'
    mini.write("gpuemu.toml", text.replace('{ x = ["M", 6] }, output = ["M", 6]', index))
    found = mini.run(code=1)
    assert {(each["op"], each["dtype"]): each["verdict"] for each in found["results"]} == {
        (module.lower(), dtype): verdict
        for module, verdict in modules.items()
        for dtype in ("float16", "bfloat16")
    }
    said = " ".join(message for each in found["failures"] for message in each["messages"])
    assert "output 'output' has dtype float32, expected bfloat16" in said
    fuzz = ("fuzz", "model", "--iterations", "4", "--dtype", "bfloat16", "--no-confirm")
    mini.command(*fuzz)
