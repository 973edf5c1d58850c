"""The workspace's ops as plain functions, and inputs on which bugs show; needs numpy, not the tool.

What is checked with these does not depend on the tool's own generator, runners or comparison.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tomli
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]

# The function inside each file that ``gpuemu.toml`` names as a script.
SCRIPT_FUNCTIONS = {
    "scripts/bias_add_relu.py": "fused",
    "scripts/cumsum.py": "scan",
    "scripts/cumsum_ref.py": "cumsum",
    "scripts/gelu_tanh.py": "gelu",
    "scripts/logsumexp.py": "tree",
    "scripts/rmsnorm.py": "lanes",
    "scripts/rmsnorm_ref.py": "rmsnorm",
    "scripts/silu.py": "silu",
    "scripts/silu_ref.py": "silu",
    "scripts/softmax_ref.py": "reference",
}

Tensors = dict[str, NDArray]

# Sizes wished for: small tails, tails beyond one tile, and the maximum of every dim.
SIZES: tuple[tuple[int, ...], ...] = ((5, 3, 7), (40, 137, 70), (10_000,))
TRANSPOSED_SIZES: tuple[tuple[int, ...], ...] = ((33, 65), (64, 64))


@dataclass(frozen=True)
class Op:
    """One op of the workspace: ``(file, function)`` of both sides and what its schema says."""

    name: str
    op: tuple[str, str]
    reference: tuple[str, str]
    kwargs: dict[str, Any]
    dtypes: tuple[str, ...]
    dims: dict[str, Any]
    inputs: dict[str, Any]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Probe:
    """Inputs for one call, with a label for messages."""

    label: str
    values: str
    inputs: Tensors


def _target(value: str) -> tuple[str, str]:
    if value.endswith(".py"):
        return value, SCRIPT_FUNCTIONS[value]
    place, _, function = value.partition(":")
    return (place if place.endswith(".py") else place.replace(".", "/") + ".py"), function


def load_ops() -> dict[str, Op]:
    """The ops of ``gpuemu.toml`` by name."""
    config = tomli.loads((ROOT / "gpuemu.toml").read_text(encoding="utf-8"))
    ops = {}
    for row in config["ops"]:
        schema = row["schema"]
        ops[row["name"]] = Op(
            name=row["name"],
            op=_target(row["op"]),
            reference=_target(row["reference"]),
            kwargs=row.get("kwargs", {}),
            dtypes=tuple(row.get("dtypes", config["validation"]["dtypes"])),
            dims=schema["dims"],
            inputs=schema["inputs"],
            outputs=tuple(schema.get("outputs", {"out": []})),
        )
    return ops


OPS = load_ops()


@contextlib.contextmanager
def _imports_from(folder: Path) -> Iterator[None]:
    """Modules import as if started in `folder`; neither path nor its ``lib`` stay behind."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [m for m in sys.modules if m == "lib" or m.startswith("lib.")]:
            del sys.modules[name]


def function_from(source: str, name: str, file: str = "<probe>") -> Callable[..., Any]:
    """The function `name` of a script's text."""
    namespace: dict[str, Any] = {"__name__": "probe", "__file__": file}
    with _imports_from(ROOT / "scripts"):
        exec(compile(source, file, "exec"), namespace)
    function: Callable[..., Any] = namespace[name]
    return function


def function_of(target: tuple[str, str]) -> Callable[..., Any]:
    """The function of one side of an op."""
    file, name = target
    return function_from((ROOT / file).read_text(encoding="utf-8"), name, file)


def call(op: Op, function: Callable[..., Any], inputs: Tensors) -> Tensors:
    """The outputs by name, as copies: what a later call does cannot change them."""
    with np.errstate(all="ignore"):
        result = function(**inputs, **op.kwargs)
    if not isinstance(result, dict):
        values = result if isinstance(result, tuple) else (result,)
        result = dict(zip(op.outputs, values, strict=True))
    return {name: np.array(value) for name, value in result.items()}


def numpy_dtype(name: str) -> np.dtype:
    """numpy's dtype of a dtype name, ml_dtypes' included."""
    return np.dtype(getattr(ml_dtypes, name, name))


def as_float64(inputs: Tensors) -> Tensors:
    """Floating inputs widened, integers as they are."""
    return {n: a if a.dtype.kind in "iu" else a.astype(np.float64) for n, a in inputs.items()}


def sizes_near(op: Op, wishes: tuple[int, ...]) -> dict[str, int]:
    """Sizes of the dims: ranges take the wishes in turn, lists their maximum."""
    sizes = {}
    turn = itertools.cycle(wishes)
    for name, dim in op.dims.items():
        if isinstance(dim, list):
            sizes[name] = max(dim)
        else:
            sizes[name] = min(max(next(turn), dim["min"]), dim["max"])
    return sizes


def _special(rng: np.random.Generator, x: NDArray, value: float) -> NDArray:
    """One element of every third row, all of the last row but one: `value`."""
    rows = x.reshape(-1, x.shape[-1])
    picked = np.arange(0, rows.shape[0], 3)
    rows[picked, rng.integers(rows.shape[1], size=picked.size)] = value
    if rows.shape[0] > 2:
        rows[-2] = value
    return x


def _zeros(_: np.random.Generator, x: NDArray) -> NDArray:
    """Half zeros, and the first of several rows all zero."""
    x[np.abs(x) < 0.7] = 0
    rows = x.reshape(-1, x.shape[-1])
    if rows.shape[0] > 1:
        rows[0] = 0
    return x


VALUES: dict[str, Callable[[np.random.Generator, NDArray], NDArray]] = {
    "normal": lambda _, x: x,
    "wide": lambda _, x: 300 * x,
    "huge": lambda _, x: 1e6 * x,
    "small": lambda _, x: 1e-3 * x,
    "tiny": lambda _, x: 1e-5 * x,
    "negative": lambda _, x: -np.abs(x) - 40,
    "zeros": _zeros,
    "ties": lambda _, x: np.round(x),
    "offset": lambda _, x: 200 + x / 8,
    "nan": lambda rng, x: _special(rng, x, np.nan),
    "inf": lambda rng, x: _special(rng, x, np.inf),
    "minus_inf": lambda rng, x: _special(rng, x, -np.inf),
}


def draw(op: Op, sizes: dict[str, int], dtype: np.dtype, values: str, layout: str) -> Tensors:
    """Inputs of an op; values by a key of `VALUES`, ``contiguous`` or ``transposed`` memory."""
    rng = np.random.default_rng([*sizes.values(), len(values)])
    tensors = {}
    for name, spec in op.inputs.items():
        dims = spec["dims"] if isinstance(spec, dict) else spec
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in dims)
        if isinstance(spec, dict):
            low, high = spec["range"]
            array = rng.integers(low, high + 1, size=shape).astype(spec["dtype"])
            array[:8] = low + np.arange(min(8, array.size))  # the edges of the range
        else:
            with np.errstate(all="ignore"):
                array = VALUES[values](rng, rng.standard_normal(shape)).astype(dtype)
        if layout == "transposed" and array.ndim > 1:
            array = np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
        tensors[name] = array
    return tensors


def probes(op: Op, dtypes: tuple[str, ...] | None = None) -> Iterator[Probe]:
    """Shapes with and without tails, each with every kind of values; then other layouts."""
    for dtype_name in dtypes or op.dtypes:
        dtype = numpy_dtype(dtype_name)
        for wishes in SIZES:
            for values in VALUES:
                inputs = draw(op, sizes_near(op, wishes), dtype, values, "contiguous")
                yield Probe(f"{dtype_name} {values} {wishes}", values, inputs)
        for wishes in TRANSPOSED_SIZES:
            inputs = draw(op, sizes_near(op, wishes), dtype, "normal", "transposed")
            yield Probe(f"{dtype_name} transposed {wishes}", "normal", inputs)


def ulp(value: NDArray, dtype: np.dtype) -> NDArray:
    """Spacing of `dtype` at each finite |value|, float64; that of the largest beyond its range."""
    info = ml_dtypes.finfo(dtype)
    size = np.clip(np.nan_to_num(np.abs(value)), float(info.smallest_normal), float(info.max))
    spacing: NDArray = 2.0 ** (np.floor(np.log2(size)) - info.nmant)
    return spacing
