"""Gradients of ops of PyTorch and JAX: right ones pass, planted bugs are found by each command."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")

CONFIG = """
[project]
name = "trained"
[validation]
dtypes = ["float32"]
cases = {cases}
cause_budget = 0
strategies = {strategies}
"""
OP = """
[[ops]]
name = "{name}"
op = {{ kind = "{kind}", file = "{name}.py", function = "f" }}
reference = {{ kind = "{by}", file = "{name}_reference.py", function = "f" }}
gradients = {gradients}
timeout = 600
schema = {schema}
"""


class Trained:
    """A workspace of ops that are differentiated; each output depends on the input of its name."""

    def __init__(self, folder: Path, cases: int = 3, strategies: str = '["normal"]') -> None:
        self.mini = Mini(folder)
        self._config = CONFIG.format(cases=cases, strategies=strategies)

    def add(self, name: str, schema: str, op: str, reference: str, **more: str) -> None:
        keys = {"kind": "torch", "by": "torch", "gradients": "true", **more}
        self._config += OP.format(name=name, schema=schema, **keys)
        self.mini.write(f"{name}.py", dedent(op))
        self.mini.write(f"{name}_reference.py", dedent(reference))
        self.mini.write("gpuemu.toml", self._config)

    def verdicts(self) -> dict[str, str]:
        return {r["op"]: r["verdict"] for r in self.mini.run(code=None)["results"]}

    def failures(self) -> list[dict[str, Any]]:
        return list(self.mini.run(code=None)["failures"])


MN = '["M", "N"]'
RIGHT = ("softmax", "layernorm", "matmul", "gelu", "custom", "library", "clamped", "pooled")
RIGHT_SCHEMA = (
    "{ dims = { M = [1, 4], N = [9] }, inputs = { "
    + ", ".join(f"{name} = {MN}" for name in RIGHT)
    + ', w = ["N"], k = ["N", 5] }, outputs = { '
    + ", ".join(f'{n} = {"[" + chr(34) + "M" + chr(34) + ", 5]" if n == "matmul" else MN}'
                for n in RIGHT if n != "pooled")
    + ', pooled = ["M"] } }'
)  # fmt: skip
RIGHT_REFERENCE = """
import torch
import torch.nn.functional as F

def f(softmax, layernorm, matmul, gelu, custom, library, clamped, pooled, w, k):
    return {
        "softmax": torch.softmax(softmax, -1),
        "layernorm": F.layer_norm(layernorm, layernorm.shape[-1:], w),
        "matmul": matmul @ k,
        "gelu": F.gelu(gelu),
        "custom": F.silu(custom),
        "library": library.sin(),
        "clamped": torch.relu(clamped),
        "pooled": pooled.amax(-1),
    }
"""
RIGHT_OP = """
import torch

class Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        out = torch.empty_like(x, device="cuda")
        return out.copy_(x * torch.sigmoid(x))

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return dy * s * (1 + x * (1 - s))

@torch.library.custom_op("trained::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x)

sine.register_autograd(
    lambda ctx, dy: dy * torch.cos(ctx.saved_tensors[0]),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)

def f(softmax, layernorm, matmul, gelu, custom, library, clamped, pooled, w, k):
    e = torch.exp(softmax - softmax.amax(-1, keepdim=True))
    centred = layernorm - layernorm.mean(-1, keepdim=True)
    return {
        "softmax": e / e.sum(-1, keepdim=True),
        "layernorm": centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * w,
        "matmul": torch.einsum("mn,nk->mk", matmul, k),
        "gelu": gelu * 0.5 * (1 + torch.erf(gelu / 2**0.5)),
        "custom": Silu.apply(custom),
        "library": torch.compile(sine)(library),
        "clamped": clamped.clamp(min=0),  # its derivative at 0 is 1, that of relu is 0
        "pooled": pooled.max(-1).values,  # of equal elements one gets all, with amax each a share
    }
"""


@needs_torch
def test_right_gradients_pass(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=4, strategies='["normal", "ties", "sparse"]')
    made.add("right", RIGHT_SCHEMA, RIGHT_OP, RIGHT_REFERENCE)
    report = made.mini.run(code=None)
    # Nobody can tell which of equal elements should get the gradient of a maximum.
    assert all(f["verdict"] == "inconclusive" for f in report["failures"]), report["failures"]
    assert report["results"][0]["passed"] >= 2


BUGS = (
    "absent",
    "factor",
    "square",
    "detached",
    "in_place",
    "masked",
    "half",
    "nan",
    "sign",
    "path",
)
PLANTED_SCHEMA = (
    "{ dims = { M = [4], N = [4] }, inputs = { "
    + ", ".join(f"{name} = {MN}" for name in BUGS)
    + ', reduced = ["N"], lengths = { dims = ["M"], dtype = "int32", range = [1, 3] } }, '
    + "outputs = { "
    + ", ".join(
        f'{n} = {{ dims = {MN}, only = "N < lengths" }}' if n == "masked" else f"{n} = {MN}"
        for n in BUGS
    )
    + f", reduced = {MN} }} }}"
)
PLANTED_REFERENCE = """
import torch

def f(absent, factor, square, detached, in_place, masked, half, nan, sign, path, reduced, lengths):
    rows = torch.arange(1, 5, dtype=square.dtype)
    return {
        "factor": factor * factor,
        "square": square @ torch.diag(rows),
        "detached": detached / detached.square().sum(-1, keepdim=True).add(1).sqrt(),
        "in_place": in_place * in_place,
        "absent": absent * 2,
        "masked": masked.cumsum(-1),
        "half": half * 1.001,
        "nan": (nan * nan + 1e-6).sqrt(),
        "sign": sign.sin(),
        "path": path * 3,
        "reduced": reduced * rows[:, None],
    }
"""
PLANTED = """
import torch

def function(forward, backward):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, dy):
            return backward(dy, *ctx.saved_tensors)

    return Function.apply

class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        saved = x.clone()
        ctx.save_for_backward(saved)
        saved.data.mul_(x)
        return saved.clone()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 2 * x * dy

def f(absent, factor, square, detached, in_place, masked, half, nan, sign, path, reduced, lengths):
    rows = torch.arange(1, 5, dtype=torch.float32)
    scale = torch.diag(rows)
    norm = detached.square().sum(-1, keepdim=True).add(1).sqrt()
    turned = function(lambda x: x * rows[:, None], lambda dy, _: (dy * rows[:, None]).mean(0))
    return {
        "factor": function(lambda x: x * x, lambda dy, x: dy * x)(factor),
        "square": function(lambda x: x @ scale, lambda dy, _: (dy @ scale).T)(square),
        "detached": detached / norm.detach(),
        "in_place": InPlace.apply(in_place),
        "absent": function(lambda x: x * 2, lambda dy, _: None)(absent),
        # As if all of the row counted.
        "masked": function(
            lambda x: x.cumsum(-1), lambda dy, _: dy.sum(-1, keepdim=True).expand(4, 4)
        )(masked),
        "half": function(
            lambda x: x * 1.001, lambda dy, _: (dy.half() * 1.001).float()
        )(half),
        "nan": function(
            lambda x: (x * x + 1e-6).sqrt(), lambda dy, x: dy * (x - x) / (x - x)
        )(nan),
        "sign": function(torch.sin, lambda dy, x: -dy * torch.cos(x))(sign),
        # Right without gradients only.
        "path": path * 3 if not path.requires_grad else path * 3 + 1,
        "reduced": turned(reduced),
    }
"""


@needs_torch
def test_planted_bugs_are_found_by_run_fuzz_and_reproduce(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=2)
    made.add("planted", PLANTED_SCHEMA, PLANTED, PLANTED_REFERENCE)
    wanted = {f"d/d{name}" for name in (*BUGS, "reduced")} - {"d/dpath"}
    run = json.dumps(made.failures())
    fuzzed = made.mini.command("fuzz", "planted", "-n", "2", "--no-confirm", "--format", "json",
                               code=1).stdout  # fmt: skip
    (one, *_) = json.loads(fuzzed)["failures"]
    again = made.mini.command("reproduce", one["id"], code=1).stdout
    for told in (run, fuzzed, again):
        assert [name for name in sorted(wanted) if name not in told] == [], told
        assert "no gradient arrives at 'absent'" in told
        assert "d/dpath" not in told


@needs_torch
def test_outputs_have_to_be_right_with_gradients_too(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=1)
    schema = f"{{ dims = {{ M = [2], N = [3] }}, inputs = {{ x = {MN}, i = [2] }} }}"
    # Its gradient is right, and its output if no gradient is asked for.
    op = "def f(x, i):\n    return x * 3 + (1 if x.requires_grad else 0)\n"
    made.add("path", schema, op, "def f(x, i):\n    return x * 3\n", gradients='["x"]')
    # The very same without gradients.
    made.add("plain", schema, op, "def f(x, i):\n    return x * 3\n", gradients="false")
    assert made.verdicts() == {"path": "failed", "plain": "passed"}


LOSSES = """
import torch
import torch.nn.functional as F


def right(x, y):
    return (x - y).square().sum() / x.numel()

def mean(x, y):
    return F.mse_loss(x, y, reduction="sum") / (x.numel() + 1)

def tail(x, y):
    d = (x - y).square().flatten()
    return d[:16].sum() / d.numel()

def nan(x, y):
    return F.mse_loss(x, y) + (x.sum() - x.sum()) / (y.sum() - y.sum())

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return F.mse_loss(x, y)

    @staticmethod
    def backward(ctx, sent):
        x, y = ctx.saved_tensors
        half = sent * (x - y) / x.numel()
        return half, -half

def half(x, y):
    return Product.apply(x, y)

def f(x, y):
    return {output}
"""
LOSS_REFERENCE = """
import torch.nn.functional as F

def f(x, y):
    return {output}
"""
LOSS_SCHEMA = (
    "{ dims = { M = [5], N = [9] }, inputs = { " + f"x = {MN}, y = {MN} }}, " + "output = %s }"
)


@needs_torch
def test_wrong_losses_without_dims_fail_as_those_with_one_do(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=2, strategies='["normal", "sparse"]')
    forms = {"none": ("[]", "{}"), "one": ("[1]", "{}.reshape(1)")}
    wanted = {}
    for name, form, gradients in (
        ("right", "none", "true"), ("right", "one", '["x"]'),
        ("mean", "none", "true"), ("tail", "none", '["x"]'), ("nan", "none", "true"),
        ("half", "none", '["x"]'), ("half", "one", "true"),
    ):  # fmt: skip
        dims, text = forms[form]
        op = dedent(LOSSES).replace("{output}", text.format(f"{name}(x, y)"))
        reference = LOSS_REFERENCE.replace("{output}", text.format("F.mse_loss(x, y)"))
        made.add(f"{name}_{form}", LOSS_SCHEMA % dims, op, reference, gradients=gradients)
        wanted[f"{name}_{form}"] = "passed" if name == "right" else "failed"
    assert made.verdicts() == wanted


RAISING = """
import torch

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        return x @ w

    @staticmethod
    def backward(ctx, dy):
        return dy, dy

def f(x, w):
    return Product.apply(x, w)
"""


@needs_torch
def test_a_backward_pass_that_raises_is_an_error_of_the_op(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=1)
    schema = "{ dims = { M = [2], N = [3] }, inputs = { x = " + MN + ', w = ["N", 5] } }'
    made.add("raising", schema, RAISING, "def f(x, w):\n    return x @ w\n")
    (failure,) = made.failures()
    told = json.dumps(failure)
    assert "ProductBackward returned an invalid gradient at index 0" in told
    assert "`gradients` asks for d/dx, d/dw" in told


JAX_RIGHT = """
import jax
import jax.numpy as jnp

@jax.custom_vjp
def softplus(x):
    return jnp.logaddexp(x, 0)

softplus.defvjp(lambda x: (softplus(x), x), lambda x, dy: (dy * jax.nn.sigmoid(x){factor},))

def f(x, w):
    return softplus(x) @ w
"""
TORCH_SOFTPLUS = """
import torch

def f(x, w):
    return torch.nn.functional.softplus(x, threshold=1e9) @ w
"""
JAX_SOFTPLUS = """
import jax

def f(x, w):
    return jax.nn.softplus(x) @ w
"""


@needs_torch
@needs_jax
def test_jax_and_torch_are_held_against_each_other(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=2)
    schema = "{ dims = { M = [2], N = [3] }, inputs = { x = " + MN + ', w = ["N", 5] } }'
    made.add("right", schema, JAX_RIGHT.format(factor=""), TORCH_SOFTPLUS, kind="jax")
    made.add("wrong", schema, JAX_RIGHT.format(factor=" * x"), JAX_SOFTPLUS, kind="jax",
             by="jax")  # fmt: skip
    assert made.verdicts() == {"right": "passed", "wrong": "failed"}


MANY = """
def f(x, z):
    a, b = x
    return a * b * b, z * (z.real**2 + z.imag**2)
"""
MANY_REFERENCE = """
import torch

def f(x, z):
    return x[0] * x[1].square(), z * z * torch.conj(z)
"""


@needs_torch
@needs_jax
def test_lists_and_complex_numbers_have_gradients(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=2)
    inputs = f'{{ x = {{ dims = {MN}, list = 2 }}, z = {{ dims = ["N"], dtype = "complex64" }} }}'
    outputs = f'{{ y = {MN}, u = {{ dims = ["N"], dtype = "complex64" }} }}'
    schema = f"{{ dims = {{ M = [2], N = [3] }}, inputs = {inputs}, outputs = {outputs} }}"
    made.add("many", schema, MANY, MANY_REFERENCE, kind="jax")
    assert made.verdicts() == {"many": "passed"}


@needs_torch
def test_a_reference_without_any_gradient_is_an_error(tmp_path: Path) -> None:
    """Else a detached op would be right: its gradients are 0, too."""
    made = Trained(tmp_path / "ws", cases=1)
    schema = f"{{ dims = {{ M = [2], N = [3] }}, inputs = {{ x = {MN} }} }}"
    detached = "def f(x):\n    return x.detach() * 3\n"
    made.add("detached", schema, detached, detached, gradients="true")
    report = made.mini.run(code=3)
    assert report["results"][0]["verdict"] == "error"
    assert "no gradient of the reference arrives at 'x'" in json.dumps(report)


@needs_torch
def test_gradients_are_part_of_the_key(tmp_path: Path) -> None:
    made = Trained(tmp_path / "ws", cases=1)
    schema = f"{{ dims = {{ M = [2], N = [3] }}, inputs = {{ x = {MN} }} }}"
    op = "def f(x):\n    return x.detach() * 3\n"
    made.add("detached", schema, op, "def f(x):\n    return x * 3\n", gradients="false")
    assert made.verdicts() == {"detached": "passed"}
    made.mini.edit("gpuemu.toml", "gradients = false", "gradients = true")
    assert made.verdicts() == {"detached": "failed"}
    made.mini.edit("gpuemu.toml", "gradients = true", "gradients = false")
    report = made.mini.run()
    assert report["results"][0]["verdict"] == "passed"


BACKWARD = """
import torch

saved = {{}}

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        saved["x"] = x.detach().clone()
        return torch.tanh(x) * w

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        {bug}
        t = torch.tanh(x)
        result = dy * w * (1 - t * t), (dy * t).sum(0)
        {after}
        return result

def f(x, w):
    return Scaled.apply(x, w)
"""
BACKWARD_BUGS = {
    "right": ("pass", "pass"),
    "in_other_memory": ("dy = dy.clone().mul_(1)", "dy.zero_()"),
    "strides": ("dy = torch.as_strided(dy, x.shape, (x.shape[1], 1))", "pass"),
    "last_stride": ("dy = dy if dy.stride(1) > 1 else dy.as_strided(x.shape, x[:1].shape[::-1])",
                    "pass"),
    "overwritten": ("pass", "dy.zero_()"),
    "elsewhere": ("x = saved['x']", "pass"),
}  # fmt: skip


@needs_torch
def test_a_backward_pass_that_only_the_usual_loop_bears_fails(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "w", cases=12)
    reference = "import torch\n\ndef f(x, w):\n    return torch.tanh(x) * w\n"
    schema = '{ dims = { M = [3, 5], N = [4, 7] }, inputs = { x = ["M", "N"], w = ["N"] } }'
    for name, (bug, after) in BACKWARD_BUGS.items():
        trained.add(name, schema, BACKWARD.format(bug=bug, after=after), reference)
    right = ("right", "in_other_memory")
    report = trained.mini.run(code=None)
    found = {result["op"]: result["verdict"] for result in report["results"]}
    assert found == {n: "passed" if n in right else "failed" for n in BACKWARD_BUGS}
    messages = {failure["op"]: json.dumps(failure) for failure in report["failures"]}
    assert "wrote to the gradient of" in messages["overwritten"]
