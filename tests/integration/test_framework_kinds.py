"""Programs of the kinds torch and jax get their framework's tensors, and return anybody's."""

from __future__ import annotations

import importlib.util
import json

import numpy as np
import pytest
from runner_workspace import NO_CHECKS, Workspace, make_case, slugs

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.model.types import LAYOUTS
from gpuemu_flow.workers.api import Outcome, Request
from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import Sandbox

pytestmark = pytest.mark.ci

FENCED = True
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")
DTYPES = (
    "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "float64", "int8", "int64",
    "uint8", "uint16", "uint32", "uint64", "bool",
)  # fmt: skip


def error_of(outcome: Outcome) -> str:
    assert outcome.error is not None
    return f"{outcome.error.slug}: {outcome.error.message}"


@needs_torch
def test_torch_gets_tensors_in_their_dtypes(ws: Workspace) -> None:
    source = """
    import torch
    def op(x):
        assert type(x) is torch.Tensor, type(x)
        return x.T
    """
    program = ws.program("torch", source, function="op")
    cases = [make_case(i, (5, 7), dtype=dtype) for i, dtype in enumerate(DTYPES)]
    for case, outcome in zip(cases, ws.run(program, cases), strict=True):
        result = ws.outputs(outcome)["result"]
        assert result.dtype.name == case.dtype
        np.testing.assert_array_equal(result.view("u1"), materialise(case)["x"].T.copy().view("u1"))


@needs_torch
def test_torch_gets_the_strides_of_the_layout(ws: Workspace) -> None:
    source = """
    import torch
    def op(x):
        return torch.tensor(x.stride())
    """
    program = ws.program("torch", source, function="op")
    cases = [make_case(i, (2, 5, 7), layout=layout) for i, layout in enumerate(LAYOUTS)]
    for case, outcome in zip(cases, ws.run(program, cases), strict=True):
        x = materialise(case)["x"]
        assert ws.outputs(outcome)["result"].tolist() == [s // x.itemsize for s in x.strides]


@needs_torch
def test_a_torch_reference_gets_float64(ws: Workspace) -> None:
    source = "def op(x):\n    assert str(x.dtype) == 'torch.float64'\n    return x * 2"
    program = ws.program("torch", source, function="op")
    case = make_case(0, dtype="bfloat16")
    (outcome,) = ws.pool.run(program, [Request(case, "float64")], checks=NO_CHECKS, keep=ws.keep)
    result = ws.outputs(outcome)["result"]
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, materialise(case)["x"].astype(np.float64) * 2)


@needs_torch
def test_torch_devices_are_the_cpu(ws: Workspace) -> None:
    source = """
    import torch
    SCALE = torch.full((), 3.0, device="cuda")
    def op(x):
        assert x.is_cuda and torch.cuda.is_available()
        y = x.cuda().to("cuda:0") * SCALE
        out = torch.empty(x.shape, device=x.device, dtype=x.dtype)
        with torch.cuda.stream(torch.cuda.Stream()):
            out.copy_(torch.compile(lambda t: t + torch.ones(t.shape, device="cuda"))(y))
        torch.cuda.synchronize()
        return out.cpu()
    """
    (outcome,) = ws.run(ws.program("torch", source, function="op"))
    x = materialise(make_case(0))["x"]
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], x * np.float32(3) + 1)


@needs_torch
def test_what_torch_leaves_unwritten_is_found(ws: Workspace) -> None:
    source = """
    import torch
    def op(x):
        out = torch.empty_like(x)
        out[:-1] = x[:-1]
        return out
    """
    (outcome,) = ws.run(ws.program("torch", source, function="op"))
    (found,) = outcome.violations
    assert found.message == "4 of 12 elements of output 'result' were never written"


@needs_torch
def test_an_op_in_place_writes_to_the_input(ws: Workspace) -> None:
    source = "def op(x):\n    x.mul_(2)"
    program = ws.program("torch", source, function="op", mutates=("x",))
    (outcome,) = ws.run(program)
    np.testing.assert_array_equal(
        ws.outputs(outcome)["result"], materialise(make_case(0))["x"] * np.float32(2)
    )


@needs_torch
def test_torch_draws_follow_from_the_case(ws: Workspace) -> None:
    source = "import torch\ndef op(x):\n    return torch.rand(x.shape, device='cuda')"
    program = ws.program("torch", source, function="op", isolation="warm")
    cases = [make_case(0), make_case(1), make_case(2, seed=1000)]
    one, two, three = (ws.outputs(o)["result"] for o in ws.run(program, cases))
    np.testing.assert_array_equal(one, three)
    assert not np.array_equal(one, two)


@needs_torch
def test_who_converts_arrays_is_told_that_there_are_none(ws: Workspace) -> None:
    source = "import torch\ndef op(x):\n    return torch.from_numpy(x)"
    (outcome,) = ws.run(ws.program("torch", source, function="op"))
    assert error_of(outcome).startswith("op-exception: TypeError")
    assert outcome.error.hint.startswith("it gets torch tensors")  # type: ignore[union-attr]


@needs_torch
def test_the_wall_holds_for_torch(ws: Workspace) -> None:
    secret = ws.write("ref.py", "SECRET = 1")
    source = f"def op(x):\n    open({str(secret)!r})\n    return x"
    fence = Sandbox(system_level(), str(ws.folder), hidden=(str(secret),))
    program = ws.program("torch", source, function="op", sandbox=fence)
    assert slugs(ws.run(program)) == ["op-reads-reference"]


@needs_jax
def test_jax_gets_arrays_in_their_dtypes(ws: Workspace) -> None:
    source = """
    import jax
    import jax.numpy as jnp
    def op(x):
        assert isinstance(x, jax.Array), type(x)
        wide = str(x.dtype) == "float64"
        assert jnp.ones(1).dtype == (jnp.float64 if wide else jnp.float32)
        return x.T
    """
    program = ws.program("jax", source, function="op", timeout=600)
    cases = [make_case(i, (5, 7), dtype=dtype) for i, dtype in enumerate(DTYPES)]
    for case, outcome in zip(cases, ws.run(program, cases), strict=True):
        result = ws.outputs(outcome)["result"]
        assert result.dtype.name == case.dtype
        np.testing.assert_array_equal(result.view("u1"), materialise(case)["x"].T.copy().view("u1"))


@needs_jax
def test_jax_compiled_by_xla(ws: Workspace) -> None:
    """A function that cannot be traced runs as it stands, and not where XLA has to compile it."""
    source = """
    def op(x, scale=2.0):
        return x * scale if float(x.sum()) < 1e30 else x
    """
    plain = ws.program("jax", source, function="op", timeout=600, kwargs={"scale": 3.0})
    assert slugs(ws.run(plain)) == ["ok"]
    compiled = ws.program("jax", source, function="op", timeout=600, argv=("compiled",))
    (outcome,) = ws.run(compiled)
    assert "ConcretizationTypeError" in error_of(outcome)
    source = """
    import jax
    @jax.jit
    def op(x):
        assert float(x.sum()) < 1e30
        return x
    """
    stepwise = ws.program("jax", source, function="op", timeout=600, argv=("stepwise",))
    assert slugs(ws.run(stepwise)) == ["ok"]


@needs_torch
@needs_jax
def test_results_of_another_framework(ws: Workspace) -> None:
    source = """
    import jax.numpy as jnp
    def op(x):
        return jnp.asarray(x.numpy()) + 1
    """
    (outcome,) = ws.run(ws.program("torch", source, function="op", timeout=600))
    x = materialise(make_case(0))["x"]
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], x + np.float32(1))


MODULE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, width, names=("a", "b")):
        super().__init__()
        for name in names:
            setattr(self, name, nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("table", torch.arange(width).float() / 3)

    def forward(self, x):
        return torch.cat([p.detach().double().flatten() for _, p in sorted(self.named_parameters())]
                         + [self.norm.running_var.double(), self.table.double()])
"""


def described(*, shared: bool = True, seed: int = 0, **init: object) -> str:
    return json.dumps({"init": {"width": 4, **init}, "seed": seed, "shared": shared})


def weights(ws: Workspace, argument: str, dtype: str = "float32") -> np.ndarray:
    program = ws.program("torch", MODULE, function="Model", argv=(argument,))
    (outcome,) = ws.run(program, [make_case(0, (3, 4), dtype=dtype)])
    result: np.ndarray = ws.outputs(outcome)["result"]
    return result


@needs_torch
def test_weights_follow_from_the_seed_and_the_names(ws: Workspace) -> None:
    one = weights(ws, described())
    np.testing.assert_array_equal(one, weights(ws, described()))
    np.testing.assert_array_equal(one, weights(ws, described(names=["b", "a"])))
    assert not np.array_equal(one, weights(ws, described(seed=1)))
    drawn, table = one[:-4], one[-4:]
    np.testing.assert_array_equal(table, np.arange(4, dtype=np.float32) / np.float32(3))
    for dtype in ("float16", "bfloat16", "float64"):
        np.testing.assert_array_equal(weights(ws, described(), dtype)[:-4], drawn)
    assert not np.isin(drawn, (0, 1)).all()
    alone = weights(ws, described(shared=False))
    assert np.isin(alone[-8:-4], 1).all()  # nobody to share with: as the class made it


@needs_torch
def test_a_module_begins_each_call_with_its_weights(ws: Workspace) -> None:
    source = """
    from torch import nn
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(__import__("torch").ones(1))
        def forward(self, x):
            out = x * self.scale
            self.scale.add_(1)
            return out
    """
    argument = '{"init": {}, "seed": 0, "shared": false}'
    program = ws.program("torch", source, function="Model", argv=(argument,), isolation="warm")
    for index, outcome in enumerate(ws.run(program, 3)):
        expected = materialise(make_case(index))["x"]
        np.testing.assert_array_equal(ws.outputs(outcome)["result"], expected)


@needs_torch
def test_a_class_of_something_else(ws: Workspace) -> None:
    argument = '{"init": [], "seed": 0, "shared": false}'
    program = ws.program("torch", "class Model: ...", function="Model", argv=(argument,))
    (outcome,) = ws.run(program)
    assert error_of(outcome) == "op-signature: Model makes a Model, which is no torch.nn.Module"


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_a_framework_that_cannot_be_imported(ws: Workspace, kind: str) -> None:
    ws.write(f"{kind}.py", "raise ImportError('none here')\n")
    (outcome,) = ws.run(ws.program(kind, "def op(x):\n    return x\n", function="op"))
    assert error_of(outcome).startswith("framework-missing: programs of kind")
    assert f"gpuemu-flow[{kind}]" in outcome.error.hint  # type: ignore[union-attr]
