"""Triton kernels whose PTX stands beside this file; run it to compile them (no GPU is needed)."""

from __future__ import annotations

import re
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + i, mask=i < n, other=-float("inf"))
    v = v - tl.max(v, 0)
    e = tl.exp(v)
    tl.store(out + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :], mask=(k + rk)[None, :] < K, other=0.0)
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :], mask=(k + rk)[:, None] < K, other=0.0)
        acc += tl.dot(x, y)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


@triton.jit
def boxes_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[BM, N], strides=[N, 1], block_shape=[BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.atomic_add([0, col], source.load([row, col]))


@triton.jit
def specialised_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    left = tl.make_tensor_descriptor(a, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    right = tl.make_tensor_descriptor(b, shape=[K, N], strides=[N, 1], block_shape=[BK, BN])
    out = tl.make_tensor_descriptor(c, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    total = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, warp_specialize=True):
        total += tl.dot(left.load([row, k]), right.load([k, col]))
    out.store([row, col], total.to(tl.float16))


def compiled(
    function, types: dict[str, str], constants: dict[str, int], capability: int, blocks: int = 1
) -> str:
    """Compile for an architecture, with some blocks to a program, without this machine's paths."""
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=function, signature=signature, constexprs=constants)
    target = GPUTarget("cuda", capability, 32)
    options = {"num_warps": 4, "num_stages": 3, "num_ctas": blocks}
    made = triton.compile(source, target=target, options=options)
    text = re.sub(r'(\.file\s+\d+\s+)"[^"]*/([^"/]+)"', r'\1"\2"', made.asm["ptx"])
    text = re.sub(r"^\s*\.section\s+\.debug_\w+\s*\{.*?^\s*\}\n", "", text, flags=re.M | re.S)
    return re.sub(r"^\s*//.*\n|\s*//[^\n]*$", "", text, flags=re.MULTILINE)


def main() -> None:
    """Write all PTX files."""
    folder = Path(__file__).resolve().parent
    for capability in (80, 90):
        softmax = {"x": "*fp32", "out": "*fp32", "n": "i32"}
        text = compiled(softmax_kernel, softmax, {"BLOCK": 1024}, capability)
        (folder / f"triton_softmax_sm_{capability}.ptx").write_text(text)
        for kind in ("fp16", "fp32"):
            types = {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32"}
            types |= dict.fromkeys("MNK", "i32")
            sizes = {"BM": 32, "BN": 32, "BK": 32}
            text = compiled(matmul_kernel, types, sizes, capability)
            (folder / f"triton_matmul_{kind}_sm_{capability}.ptx").write_text(text)
    softmax = {"x": "*fp32", "out": "*fp32", "n": "i32"}
    text = compiled(softmax_kernel, softmax, {"BLOCK": 1024}, 90, 4)
    (folder / "triton_softmax_of_4_blocks_sm_90.ptx").write_text(text)
    types = dict.fromkeys("ab", "*fp16") | {"c": "*fp32", **dict.fromkeys("MNK", "i32")}
    text = compiled(matmul_kernel, types, {"BM": 64, "BN": 64, "BK": 32}, 90, 2)
    (folder / "triton_matmul_of_2_blocks_sm_90.ptx").write_text(text)
    for kind in ("fp16", "fp32", "fp8e4nv"):  # large enough for products of warp groups
        types = {"a": f"*{kind}", "b": f"*{kind}", "c": "*fp32", **dict.fromkeys("MNK", "i32")}
        text = compiled(matmul_kernel, types, {"BM": 64, "BN": 64, "BK": 32}, 90)
        (folder / f"triton_wgmma_{kind}_sm_90.ptx").write_text(text)
    types = {"x": "*fp32", "out": "*fp32", "M": "i32", "N": "i32"}
    text = compiled(boxes_kernel, types, {"BM": 8, "BN": 32}, 90)
    (folder / "triton_boxes_sm_90.ptx").write_text(text)
    types = dict.fromkeys("abc", "*fp16") | dict.fromkeys("MNK", "i32")
    text = compiled(specialised_kernel, types, {"BM": 128, "BN": 64, "BK": 64}, 90)
    (folder / "triton_specialised_sm_90.ptx").write_text(text)


if __name__ == "__main__":
    main()
