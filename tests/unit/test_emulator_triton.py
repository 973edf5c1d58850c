"""PTX that Triton's compiler made, sm_80 and sm_90: right values and no finding."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulated_kernels import FOLDER, as_argument, out

from gpuemu_flow.emulator.launch import Kernel, LaunchResult, load_kernel

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
SCRATCH = bytes(8)
"""Triton adds pointers to scratch memory, which these kernels do not use."""


def load(name: str) -> Kernel:
    return load_kernel((FOLDER / name).read_bytes(), name)


def launch(kernel: Kernel, grid: list[int], values: list[object], shared: int) -> LaunchResult:
    given = [as_argument(v) for v in values]
    given += [as_argument(SCRATCH)] * (len(kernel.parameters) - len(given))
    return kernel.launch(grid, [128], given, shared=shared)


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("n", [1, 777, 1024])
def test_softmax(n: int, capability: int) -> None:
    x = np.random.default_rng(n).standard_normal((4, n)).astype("f4")
    kernel = load(f"triton_softmax_sm_{capability}.ptx")
    result = launch(kernel, [4], [x, out((4, n)), np.int32(n)], 64)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(result.buffers[1], e / e.sum(1, keepdims=True), 1e-5, 1e-7)
    assert [str(f) for f in result.findings] == []


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("kind", "dtype", "atol"), [("fp16", "f2", 1e-4), ("fp32", "f4", 0.1)])
def test_matmul_on_tensor_cores(kind: str, dtype: str, atol: float, capability: int) -> None:
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((64, 96), (96, 64)))
    kernel = load(f"triton_matmul_{kind}_sm_{capability}.ptx")
    sizes = [np.int32(64), np.int32(64), np.int32(96)]
    result = launch(kernel, [2, 2], [a, b, out((64, 64)), *sizes], 65536)
    wanted = a.astype("f8") @ b.astype("f8")  # fp32 goes through tf32
    np.testing.assert_allclose(result.buffers[2], wanted, 0, atol)
    assert [str(f) for f in result.findings] == []


WGMMA = {"fp16": ("f2", 1e-4), "fp32": ("f4", 0.1), "fp8e4nv": (FP8, 1e-6)}
"""By Triton's name of the type: what numpy calls it, and the error allowed."""


@pytest.mark.parametrize("kind", WGMMA)
def test_products_of_warp_groups(kind: str) -> None:
    dtype, atol = WGMMA[kind]
    rng = np.random.default_rng(7)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((128, 96), (96, 64)))
    kernel = load(f"triton_wgmma_{kind}_sm_90.ptx")
    assert any(step.opcode.base == "wgmma" for step in kernel.program.steps)
    sizes = [np.int32(128), np.int32(64), np.int32(96)]
    result = launch(kernel, [2, 1], [a, b, out((128, 64)), *sizes], 65536)
    wanted = a.astype("f8") @ b.astype("f8")
    np.testing.assert_allclose(result.buffers[2], wanted, 0, atol)
    assert [str(f) for f in result.findings] == []


def by_maps(name: str, grid: list[int], threads: int, values: list[object], shared: int,
            scratch: int) -> LaunchResult:  # fmt: skip
    """Launch a kernel that makes its tensor maps in scratch memory."""
    kernel = load(name)
    room = out(scratch * int(np.prod(grid)), "u1")
    given = [as_argument(v) for v in (*values, room, SCRATCH)]
    return kernel.launch(grid, [threads], given, shared=shared)


def test_boxes_added_by_tensor_maps() -> None:
    x = np.random.default_rng(3).integers(-9, 9, (20, 40)).astype("f4")
    sizes = [np.int32(20), np.int32(40)]
    result = by_maps("triton_boxes_sm_90.ptx", [3, 2], 128, [x, np.zeros((8, 40), "f4"), *sizes],
                     4096, 256)  # fmt: skip
    rows = np.vstack([x, np.zeros((4, 40), "f4")]).reshape(3, 8, 40)
    assert [str(f) for f in result.findings] == []
    np.testing.assert_array_equal(result.buffers[1], rows.sum(0))


@pytest.mark.parametrize("n", [1, 777, 1024])
def test_a_row_by_the_blocks_of_a_cluster(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype("f4")
    kernel = load("triton_softmax_of_4_blocks_sm_90.ptx")
    assert any(step.opcode.base == "mapa" for step in kernel.program.steps)
    result = launch(kernel, [4 * 3], [x, out((3, n)), np.int32(n)], 64)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    np.testing.assert_allclose(result.buffers[1], e / e.sum(1, keepdims=True), 1e-5, 1e-7)
    assert [str(f) for f in result.findings] == []


def test_a_matrix_product_by_the_blocks_of_a_cluster() -> None:
    rng = np.random.default_rng(9)
    a, b = (rng.standard_normal(s).astype("f2") for s in ((128, 96), (96, 128)))
    kernel = load("triton_matmul_of_2_blocks_sm_90.ptx")
    sizes = [np.int32(128), np.int32(128), np.int32(96)]
    result = launch(kernel, [2 * 2, 2], [a, b, out((128, 128)), *sizes], 8192)
    np.testing.assert_allclose(result.buffers[2], a.astype("f8") @ b.astype("f8"), 0, 1e-4)
    assert [str(f) for f in result.findings] == []


def test_a_missing_barrier_of_the_cluster_shows() -> None:
    name = "triton_softmax_of_4_blocks_sm_90.ptx"
    text = (FOLDER / name).read_text()
    kernel = load_kernel(text.replace("barrier.cluster", "// barrier.cluster").encode(), name)
    x = np.ones((2, 900), "f4")
    result = launch(kernel, [4 * 2], [x, out((2, 900)), np.int32(900)], 64)
    assert "race" in {f.check for f in result.findings}


@pytest.mark.ci
def test_warps_that_load_and_warps_that_multiply() -> None:
    name = "triton_specialised_sm_90.ptx"
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-4, 5, s).astype("f2") for s in ((130, 392), (392, 72)))
    kernel = load(name)
    values = [a, b, out((130, 72), "f2"), np.int32(130), np.int32(72), np.int32(392)]
    given = [as_argument(v) for v in (*values, out(2048 * 4, "u1"), SCRATCH)]
    result = kernel.launch([2, 2], [kernel.program.required_threads], given, shared=200_000)
    assert [str(f) for f in result.findings] == []
    wanted = (a.astype("f8") @ b.astype("f8")).astype("f2")
    np.testing.assert_array_equal(result.buffers[2], wanted)


def test_a_missing_barrier_shows() -> None:
    name = "triton_matmul_fp16_sm_80.ptx"
    text = (FOLDER / name).read_text()
    assert "bar.sync" in text
    kernel = load_kernel(text.replace("bar.sync", "// bar.sync").encode(), name)
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype("f2") for s in ((64, 96), (96, 64)))
    sizes = [np.int32(64), np.int32(64), np.int32(96)]
    result = launch(kernel, [2, 2], [a, b, out((64, 64)), *sizes], 65536)
    assert "race" in {f.check for f in result.findings}
    assert all(f.place.file == "triton_kernels.py" and f.place.line for f in result.findings)
