"""Compiled Triton kernels run from their PTX: verdicts as those of Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import erf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from whole import sample

from gpuemu_flow.workers.api import OpError, Program
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.triton_runner import TritonRunner

pytest.importorskip("torch")

pytestmark = pytest.mark.ci
pytest.importorskip("triton")

SOURCES = [*(Path(__file__).resolve().parent.parent / "triton_kernels").glob("*.py")]
CHECKS = "mem,init,race,sync"
ARCHITECTURES = ("sm_80", "sm_90")
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Example:
    """One kernel: inputs, what is right, an edit that makes it wrong, and what can run it."""

    name: str
    inputs: Callable[[np.random.Generator], dict[str, np.ndarray]]
    right: Callable[..., np.ndarray]
    old: str
    new: str
    atol: float = 1e-5
    modes: tuple[str, ...] = ("interpreted", *ARCHITECTURES)


def source_of(name: str) -> Path:
    """Return the file that defines the host function `name`."""
    (found,) = (path for path in SOURCES if f"\ndef {name}(" in path.read_text())
    return found


def normal(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda rng: {n: rng.standard_normal(s).astype("f4") for n, s in shapes.items()}


def half(**shapes: tuple[int, ...]) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda rng: {n: rng.standard_normal(s).astype("f2") for n, s in shapes.items()}


def wide(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """The same in float64."""
    return lambda *a: np.asarray(
        function(*(x.astype("f8") if x.dtype.kind == "f" else x for x in a))
    )


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def layernorm(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    c = x - x.mean(1, keepdims=True)
    return np.asarray(c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5) * w + b)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.asarray(softmax(q @ k.transpose(0, 2, 1) * q.shape[2] ** -0.5) @ v)


def gelu(x: np.ndarray) -> np.ndarray:
    return np.asarray(0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2))))


def scatter(x: np.ndarray, index: np.ndarray) -> np.ndarray:
    out = np.zeros(8)
    np.add.at(out, index, x)
    return out


def rope(x: np.ndarray) -> np.ndarray:
    d = x.shape[1]
    angle = np.arange(len(x))[:, None] * 10000.0 ** (-np.arange(d // 2) * 2 / d)
    a, b = x[:, : d // 2], x[:, d // 2 :]
    c, s = np.cos(angle), np.sin(angle)
    return np.concatenate([a * c - b * s, a * s + b * c], 1)


def quantise(x: np.ndarray) -> np.ndarray:
    scale = np.abs(x).max(1, keepdims=True) / 127
    return np.asarray(np.floor(x / scale + 0.5) * scale)


def convolve(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape)
    return np.asarray((windows * w).sum((2, 3)))


def philox(x: np.ndarray) -> np.ndarray:
    """Dropout of ones: which elements stay is Triton's own; the interpreter's says which."""
    ran = run("dropout", {"x": x}, source_of("dropout"), "interpreted")
    assert isinstance(ran, np.ndarray)
    return ran


def added(x: np.ndarray) -> np.ndarray:
    rows = np.zeros((-(-len(x) // 8) * 8, x.shape[1]))
    rows[: len(x)] = x
    return rows.reshape(-1, 8, x.shape[1]).sum(0)


def with_index(
    shape: tuple[int, ...], many: int, count: tuple[int, ...], name: str = "index", first: str = "x"
) -> Callable[[np.random.Generator], dict[str, np.ndarray]]:
    return lambda rng: {
        first: rng.standard_normal(shape).astype("f4"),
        name: rng.integers(0, many, count).astype("i4"),
    }


ROWS = normal(x=(3, 37))
EXAMPLES = [
    Example("softmax", ROWS, wide(softmax),
            "tl.store(out + row * n + cols, e / tl.sum(e, 0), mask=cols < n)",
            "tl.store(out + row * n + cols, e / tl.sum(e, 0), mask=cols <= n)"),
    Example("layernorm", normal(x=(3, 37), w=(37,), b=(37,)), wide(layernorm),
            "tl.where(mask, v - mean, 0.0)", "v - mean"),
    Example("rmsnorm", normal(x=(3, 70), w=(70,)),
            wide(lambda x, w: x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6) * w),
            "total += v * v", "total += v"),
    Example("matmul", half(a=(40, 24), b=(24, 33)), wide(lambda a, b: a @ b),
            "a + rows[:, None] * K", "a + rows[:, None] * M", 2e-2),
    Example("attention", half(q=(2, 20, 16), k=(2, 20, 16), v=(2, 20, 16)), wide(attention),
            "score = tl.where(cols[None, :] < n, score, -float(\"inf\"))", "score = score", 5e-3),
    Example("total", normal(x=(300,)), wide(lambda x: x.sum(keepdims=True)),
            "mask=at < n, other=0.0), 0)", "mask=at < n - 1, other=0.0), 0)", 1e-4),
    Example("argmax", ROWS, lambda x: x.argmax(1), "tl.argmax(v, 0)", "tl.argmin(v, 0)"),
    Example("cumsum", ROWS, wide(lambda x: x.cumsum(1)),
            "tl.cumsum(v, 0)", "tl.cumsum(v, 0, reverse=True)"),
    Example("dropout", normal(x=(300,)), philox, "tl.rand(seed, at)", "tl.rand(seed, at + 1)"),
    Example("gelu", normal(x=(300,)), wide(gelu), "0.7071067811865476", "0.7171067811865476"),
    Example("masked_copy", ROWS, lambda x: x[:, 18:],
            "v = tl.load(x + r[:, None] * stride + c[None, :], mask=mask, other=0)",
            "v = tl.load(x + r[:, None] * cols + c[None, :], mask=mask, other=0)"),
    Example("scatter_add", with_index((150,), 8, (150,)), wide(scatter),
            "out = torch.zeros(8)", "out = torch.empty(8)", 1e-4),
    Example("histogram", lambda rng: {"x": rng.integers(0, 16, 300).astype("i4")},
            lambda x: np.bincount(x, minlength=16), "other=15", "other=14"),
    Example("transpose", normal(x=(20, 35)), lambda x: x.T,
            "tl.store(out + c[:, None] * rows", "tl.store(out + c[:, None] * cols"),
    Example("gather", lambda rng: {"x": rng.standard_normal((3, 40)).astype("f4"),
                                   "index": rng.integers(0, 40, (3, 9)).astype("i4")},
            lambda x, index: np.take_along_axis(x, index.astype("i8"), 1),
            "tl.load(x + row * n + place, mask=at < m)",
            "tl.load(x + row * m + place, mask=at < m)"),
    Example("embedding", with_index((11, 16), 11, (7,), first="table"), lambda t, i: t[i],
            "tl.load(table + row * D + d)", "tl.load(table + (row + 11) * D + d)"),
    Example("cross_entropy", with_index((4, 30), 30, (4,), "target"),
            wide(lambda x, t: np.log(np.exp(x).sum(1)) - x[np.arange(len(t)), t]),
            "tl.exp(v - top), 0)) + top", "tl.exp(v - top), 0)) + top * 1.01"),
    Example("rope", normal(x=(9, 32)), wide(rope),
            "a * tl.sin(angle) + b", "a * tl.sin(angle) - b"),
    Example("quantise", ROWS, wide(quantise), "/ scale + 0.5", "/ scale", 1e-3),
    Example("bmm", normal(a=(2, 20, 18), b=(2, 18, 17)), wide(lambda a, b: a @ b),
            "b + batch * K * N", "b + batch * K * M", 1e-4),
    Example("conv", normal(x=(9, 21), w=(3, 3)), wide(convolve),
            "(row + i) * W", "(row + i) * width", 1e-4),
    Example("tuned", half(a=(40, 24), b=(24, 33)), wide(lambda a, b: a @ b),
            "total.to(tl.float16)", "(total * 1.1).to(tl.float16)", 2e-2),
    Example("boxes", normal(x=(20, 40)), lambda x: x * 2 + 1,
            "target.store([row, col], source", "target.store([row, col + 4], source"),
    Example("described", half(a=(130, 72), b=(72, 80)), wide(lambda a, b: a @ b),
            "right.load([k, col])", "right.load([k, row])", 3e-2),
    Example("specialised", half(a=(130, 136), b=(136, 80)), wide(lambda a, b: a @ b),
            "left.load([row, k])", "left.load([row, 0])", 3e-2),
    Example("handed", half(a=(72, 96), b=(96, 80)), wide(lambda a, b: a @ b),
            "second.load([k, col])", "second.load([k, row])", 3e-2),
    Example("paired", normal(x=(300,), y=(300,)), lambda x, y: x + 2 * y,
            "x + y * pair[1][1]", "x * pair[1][1] + y", 1e-5),
    Example("added", normal(x=(21, 40)), added,
            "target.atomic_add([0, col]", "target.atomic_add([1, col]", 1e-5, ARCHITECTURES),
]  # fmt: skip


def run(name: str, inputs: Arrays, source: Path, mode: str) -> np.ndarray | str:
    """The output, or the kind of what went wrong; `mode` is ``interpreted`` or an architecture."""
    argv = () if mode == "interpreted" else ("compiled", mode, CHECKS)
    program = Program(
        "triton", root=str(source.parent), path=str(source), function=name, argv=argv,
        input_names=tuple(inputs),
    )  # fmt: skip
    status = os.memfd_create("status")
    os.ftruncate(status, 1 << 16)
    try:
        runner = TritonRunner(program)
        outputs = runner.call({n: a.copy() for n, a in inputs.items()}, Watch(status))
    except OpError as error:
        return f"{error.error.slug}: {error.error.message}"
    finally:
        os.close(status)
    found = list(runner.violations())
    return found[0].message if found else next(iter(outputs.values()))


def verdict(example: Example, source: Path, mode: str) -> tuple[bool, str]:
    inputs = example.inputs(np.random.default_rng(7))
    out = run(example.name, inputs, source, mode)
    if isinstance(out, str):
        return False, out
    wanted = example.right(*inputs.values())
    right = out.shape == wanted.shape and np.allclose(out, wanted, example.atol, example.atol)
    return bool(right), f"off by {np.abs(out - wanted).max() if right else 'much'}"


@pytest.mark.parametrize("example", sample(EXAMPLES, 3), ids=lambda e: e.name)
def test_a_right_kernel_passes_in_both_modes(example: Example) -> None:
    for mode in example.modes:
        right, why = verdict(example, source_of(example.name), mode)
        assert right, f"{mode}: {why}"


@pytest.mark.parametrize("example", sample(EXAMPLES, 3), ids=lambda e: e.name)
def test_a_planted_bug_fails_in_both_modes(example: Example, tmp_path: Path) -> None:
    text = source_of(example.name).read_text()
    assert text.count(example.old) == 1, "the edit is not of one place"
    source = tmp_path / "kernels.py"
    source.write_text(text.replace(example.old, example.new))
    for mode in example.modes:
        right, why = verdict(example, source, mode)
        assert not right, f"{mode}: {why}"
        assert "triton-compiled" not in why and "emulator-unsupported" not in why, why


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("softmax", "    softmax_kernel[", "    out.data_ptr()\n    softmax_kernel[",
         "takes the address"),
        ("handed", "from_tensor(a, [64, 32])", "from_tensor(a, [64, 32], round_f32_to_tf32=True)",
         "the argument first is a descriptor that rounds to TF32"),
    ],
)  # fmt: skip
def test_what_cannot_be_emulated_is_refused_not_judged(
    name: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = source_of(name).read_text()
    assert text.count(old) == 1
    source = tmp_path / "kernels.py"
    source.write_text(text.replace(old, new))
    inputs = {"x": np.ones((2, 5), "f4")}
    if name == "handed":
        inputs = {"a": np.ones((64, 32), "f4"), "b": np.ones((32, 64), "f4")}
    found = run(name, inputs, source, "sm_90")
    assert isinstance(found, str) and found.startswith("triton-compiled: ") and said in found
