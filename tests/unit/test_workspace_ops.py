"""The repository's own ops against their references, by direct calls: no part of the tool runs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"


def _load_probes() -> ModuleType:
    """The plain-function view of the workspace that the quality tests use too."""
    spec = importlib.util.spec_from_file_location(
        "workspace_probes", ROOT / "tests" / "quality" / "probes.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


probes = _load_probes()

OP_DTYPES = [(name, dtype) for name, op in probes.OPS.items() for dtype in op.dtypes]
SCRIPT_FILES = sorted(probes.SCRIPT_FUNCTIONS)

# How far a correct kernel may be from the formula in float64, in float32 spacings of the result at
# the magnitude that its inputs suggest; each op's own figure is far below.
SPACINGS = 512 * 2.0**-23


def _narrow(name: str) -> Any:
    """The op's reference with its own text's float64 replaced by float32."""
    file, function = probes.OPS[name].reference
    text = (ROOT / file).read_text(encoding="utf-8")
    return probes.function_from(text.replace("float64", "float32"), function, f"{name} narrow")


def _singles(wide: dict[str, NDArray]) -> dict[str, NDArray]:
    return {n: a if a.dtype.kind in "iu" else a.astype(np.float32) for n, a in wide.items()}


def _largest_error(in_float32: NDArray, truth: NDArray) -> float:
    """Measure how far float32 itself is from the formula, with this machine's order of additions.

    Scores of 13,000 make the weights of an attention uncertain by a hundredth; one kernel of
    OpenBLAS is nearer to the formula there than another, and no constant fits them all.
    """
    with np.errstate(all="ignore"):
        error = np.abs(in_float32.astype(np.float64) - truth)
    return float(error[np.isfinite(error)].max(initial=0.0))


def _same_special(got: NDArray, exact: NDArray) -> bool:
    """NaN and each Inf at the same places."""
    kept = [np.where(np.isfinite(array), 0, array) for array in (got, exact)]
    return np.array_equal(kept[0], kept[1], equal_nan=True)


@pytest.mark.parametrize(("name", "dtype"), OP_DTYPES)
def test_agrees_with_its_reference(name: str, dtype: str) -> None:
    op = probes.OPS[name]
    function, reference = probes.function_of(op.op), probes.function_of(op.reference)
    in_float32 = _narrow(name)
    for probe in probes.probes(op, (dtype,)):
        if probe.values in ("wide", "huge", "tiny", "offset"):
            continue  # float32 itself is far from the formula there
        before = {key: array.tobytes() for key, array in probe.inputs.items()}
        got = probes.call(op, function, probe.inputs)
        again = probes.call(op, function, probe.inputs)
        wide = probes.as_float64(probe.inputs)
        exact = probes.call(op, reference, wide)
        rounded = probes.call(op, reference, probe.inputs)
        scale = probes.call(
            op, reference, {k: a if a.dtype.kind in "iu" else np.abs(a) for k, a in wide.items()}
        )
        assert {k: a.tobytes() for k, a in probe.inputs.items()} == before, probe.label
        assert list(got) == list(op.outputs)
        for key in op.outputs:
            where = f"{probe.label} {key}"
            assert got[key].dtype == rounded[key].dtype, where
            assert got[key].shape == rounded[key].shape, where
            assert got[key].tobytes() == again[key].tobytes(), where
            if got[key].dtype.kind in "iu":
                np.testing.assert_array_equal(got[key], exact[key], where)
                continue
            value, truth = got[key].astype(np.float64), exact[key]
            assert _same_special(value, rounded[key].astype(np.float64)), where
            if probe.values in ("nan", "inf", "minus_inf"):
                continue
            size = np.fmax(np.abs(truth), np.abs(scale[key]))
            bound = SPACINGS * size + probes.ulp(truth, got[key].dtype)
            bound += 2 * _largest_error(probes.call(op, in_float32, _singles(wide))[key], truth)
            assert np.all((np.abs(value - truth) <= bound)[np.isfinite(value)]), where


@pytest.mark.parametrize("name", probes.OPS)
def test_layouts_give_the_same_numbers(name: str) -> None:
    op = probes.OPS[name]
    function = probes.function_of(op.op)
    dtype = probes.numpy_dtype("float32")
    plain = probes.draw(op, probes.sizes_near(op, (33, 65, 40)), dtype, "normal", "contiguous")
    gaps = {}
    for key, array in plain.items():
        memory = np.full([2 * n + 1 for n in array.shape], -7).astype(array.dtype)
        view = memory[tuple(slice(1, None, 2) for _ in array.shape)]
        view[...] = array
        gaps[key] = view
    expected = probes.call(op, function, plain)
    got = probes.call(op, function, gaps)
    for key, array in expected.items():
        np.testing.assert_allclose(got[key], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", probes.OPS)
def test_reference_keeps_the_dtype_it_is_given(name: str) -> None:
    op = probes.OPS[name]
    reference = probes.function_of(op.reference)
    for dtype_name in (*op.dtypes, "float64"):
        dtype = probes.numpy_dtype(dtype_name)
        inputs = probes.draw(op, probes.sizes_near(op, (5, 6)), dtype, "normal", "contiguous")
        for array in probes.call(op, reference, inputs).values():
            assert array.dtype in (dtype, np.int32)


@pytest.mark.parametrize("name", probes.OPS)
def test_reference_computes_in_float64_from_its_own_text(name: str) -> None:
    """The text names the wide dtype itself, so that it can be loaded again with a narrower one."""
    op = probes.OPS[name]
    text = (ROOT / op.reference[0]).read_text(encoding="utf-8")
    if name in ("argmax", "transpose_copy"):  # nothing is computed
        return
    names = [node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    assert "float64" in names
    function = _narrow(name)
    dtype = probes.numpy_dtype("float32")
    inputs = probes.draw(op, probes.sizes_near(op, (40, 137, 70)), dtype, "normal", "contiguous")
    exact = probes.call(op, probes.function_of(op.reference), probes.as_float64(inputs))
    shadow = probes.call(op, function, inputs)
    for key, truth in exact.items():
        assert not np.array_equal(shadow[key], truth) or key == "max", key
        np.testing.assert_allclose(shadow[key], truth, rtol=1e-3, atol=1e-4)


def test_softmax_of_a_row_with_nan_or_only_minus_infinity_is_nan() -> None:
    op = probes.OPS["softmax"]
    x = np.zeros((1, 4, 200), np.float32)
    x[0, 0, 150] = np.nan
    x[0, 1] = -np.inf
    x[0, 2, :130] = -np.inf
    y = probes.call(op, probes.function_of(op.op), {"x": x})["out"][0]
    assert np.isnan(y[:2]).all()
    np.testing.assert_allclose(y[2], np.where(np.arange(200) < 130, 0, 1 / 70), rtol=1e-6)
    np.testing.assert_allclose(y[3], 1 / 200, rtol=1e-6)


def test_half_inputs_are_summed_in_float32() -> None:
    op = probes.OPS["cumsum"]
    x = np.ones((1, 264), np.float16)
    x[0, 0] = 2048  # in half, 2048 + 1 is 2048
    y = probes.call(op, probes.function_of(op.op), {"x": x})["y"]
    np.testing.assert_array_equal(y[0], (2048.0 + np.arange(264)).astype(np.float16))


def test_ignored_labels_cost_nothing() -> None:
    op = probes.OPS["cross_entropy"]
    logits = np.full((4, 3), np.nan, np.float32)
    logits[1:] = 0
    labels = np.array([-1, 3, 2, 100], np.int32)
    loss = probes.call(op, probes.function_of(op.op), {"logits": logits, "labels": labels})["out"]
    np.testing.assert_allclose(loss, [0, 0, np.log(3), 0], rtol=1e-6)


# The script protocol


def test_both_output_forms_are_in_use() -> None:
    forms = set()
    for file in SCRIPT_FILES:
        text = (ROOT / file).read_text(encoding="utf-8")
        forms |= {name for name in ("write_output(", "write_outputs(") if name in text}
    assert forms == {"write_output(", "write_outputs("}
    assert len(probes.OPS["logsumexp"].outputs) > 1


def test_the_bare_reference_has_no_protocol() -> None:
    text = (SCRIPTS / "softmax_ref.py").read_text(encoding="utf-8")
    assert "stdin" not in text
    assert "protocol" not in text
    function = probes.function_of(("scripts/softmax_ref.py", "reference"))
    assert list(inspect.signature(function).parameters) == ["x"]


# What the workspace is made of


def test_there_are_enough_ops_and_each_file_is_used() -> None:
    assert len(probes.OPS) >= 14
    tools = {"scripts/record_golden.py"}  # of the repository's tests, no part of the workspace
    used = {target[0] for op in probes.OPS.values() for target in (op.op, op.reference)}
    assert used == {str(p.relative_to(ROOT)) for p in SCRIPTS.glob("*.py")} - tools
    assert len(used) == 2 * len(probes.OPS)


def test_the_largest_tensor_is_small() -> None:
    for op in probes.OPS.values():
        sizes = probes.sizes_near(op, (1 << 30,))
        inputs = probes.draw(op, sizes, np.dtype(np.float32), "normal", "contiguous")
        assert max(array.size for array in inputs.values()) <= 512 * 1024, op.name


def _importers(module: str) -> set[str]:
    return {
        path.name
        for path in SCRIPTS.glob("*.py")
        if f"from lib.{module} import" in path.read_text(encoding="utf-8")
    }


def test_helpers_are_shared_and_references_compute_alone() -> None:
    assert len(_importers("tiles")) >= 2
    assert _importers("sigmoid") == {"gelu_tanh.py", "silu.py"}
    for path in SCRIPTS.glob("*_ref.py"):
        text = path.read_text(encoding="utf-8")
        imported = {
            node.module for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)
        }
        ours = {module for module in imported if module and module.startswith("lib")}
        assert ours <= {"lib.protocol"}, path.name
