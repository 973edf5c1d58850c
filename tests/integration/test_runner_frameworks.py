"""Tensors of torch and jax come back as they are, with their own dtypes, from forked workers."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from runner_workspace import Workspace, make_case, slugs

from gpuemu_flow.cases.generate import materialise

pytestmark = pytest.mark.ci

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch")
needs_jax = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="no jax")


TORCH = {
    "plain": "t",
    "view": "t.T.contiguous().T",
    "strided": "torch.stack([t, t], -1)[..., 0]",
    "gradient": "t.clone().requires_grad_(True) * 1",
    "parameter": "torch.nn.Parameter(t)",
    "negative": "torch.complex(t, -t).conj().imag",
    "sparse": "t.to_sparse()",
    "tuple": "(t,)",
    "dict": "{'y': t}",
}


@needs_torch
@pytest.mark.parametrize("name", TORCH)
def test_torch_tensors(ws: Workspace, name: str) -> None:
    source = f"""
    import torch
    def op(x):
        t = torch.from_numpy(x)
        return {TORCH[name]}
    """
    case = make_case(0, (5, 7))
    (outcome,) = ws.run(ws.program("callable", source), [case])
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], materialise(case)["x"])


@needs_torch
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "bool"])
def test_torch_dtypes(ws: Workspace, dtype: str) -> None:
    source = f"""
    import torch
    def op(x):
        return torch.from_numpy(x).to(torch.{dtype}).T
    """
    case = make_case(0, (5, 7))
    (outcome,) = ws.run(ws.program("callable", source), [case])
    result = ws.outputs(outcome)["result"]
    expected = materialise(case)["x"].astype(result.dtype).T
    assert result.dtype.name == dtype
    np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))


@needs_torch
def test_torch_tensors_that_are_no_output(ws: Workspace) -> None:
    source = "import torch\ndef op(x):\n    return torch.empty(3, device='meta')"
    assert slugs(ws.run(ws.program("callable", source))) == ["op-exception"]


@needs_torch
def test_torch_complex_numbers(ws: Workspace) -> None:
    body = "t = torch.from_numpy(x); return torch.complex(t, -t).conj()"
    source = f"import torch\ndef op(x):\n    {body}"
    (outcome,) = ws.run(ws.program("callable", source))
    x = materialise(make_case(0))["x"]
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], x + 1j * x)


@needs_torch
def test_torch_works_with_several_threads_in_a_worker(ws: Workspace) -> None:
    source = """
    import torch
    torch.set_num_threads(2)
    def op(x):
        t = torch.from_numpy(x)
        return t @ t.T
    """
    program = ws.program("callable", source, timeout=600)
    assert slugs(ws.run(program, [make_case(i, (300, 300)) for i in range(3)])) == ["ok"] * 3


@needs_jax
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_jax_arrays(ws: Workspace, dtype: str) -> None:
    source = f"""
    import jax.numpy as jnp
    def op(x):
        return jnp.asarray(x).astype(jnp.{dtype}) * 2
    """
    program = ws.program("callable", source, env={"JAX_PLATFORMS": "cpu"}, timeout=600)
    (outcome,) = ws.run(program)
    result = ws.outputs(outcome)["result"]
    assert result.dtype.name == dtype
    expected = materialise(make_case(0))["x"].astype(result.dtype) * result.dtype.type(2)
    np.testing.assert_array_equal(result.astype(np.float32), expected.astype(np.float32))
