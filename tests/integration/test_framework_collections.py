"""Problems of three collections become workspaces; `score` tells right from wrong.

By default one problem of each with one wrong candidate; ``IMPORT_PROBLEMS=all`` tries all of them.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collection_problems import GpuMode
from collection_scores import MOST, chosen, scored
from gpumode_tasks import REFUSED, write_refused
from more_collection_problems import GPU_MODE_ALL, TRACES_ALL
from more_kernelbench_problems import KERNEL_BENCH_ALL

pytestmark = pytest.mark.ci

pytest.importorskip("torch", reason="no torch")
CASES = 12
"""The cases that `import` takes by itself; of 4 none may hold the value above 1 that bugs need."""


def test_problems_of_gpu_mode_are_scored(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="no PyYAML")
    names = chosen(GPU_MODE_ALL, "config", "mla-decode", "qr_py", "cross_entropy_py")
    for name in names:
        GPU_MODE_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    calls = (tmp_path / "theirs/mla-decode/right.py").read_text().replace("Config, K", "MLA, K")
    (tmp_path / "theirs/mla-decode/calls.py").write_text(calls)
    write_refused(tmp_path / "theirs")
    told = scored(tmp_path, "gpumode", problems=len(names), cases=CASES)
    left = re.findall("left out: theirs/([^:]+): (.*)", told)
    assert sorted(name for name, _ in left) == sorted([*REFUSED, "mla-decode/calls.py"])
    reasons = dict(left)
    assert "calls the reference" in reasons.pop("mla-decode/calls.py")
    assert all(REFUSED[name][2] in reason for name, reason in reasons.items()), left


def test_definitions_of_flashinfer_bench_are_scored(tmp_path: Path) -> None:
    names = chosen(TRACES_ALL, "ragged")
    for name in names:
        TRACES_ALL[name].write(tmp_path / "theirs", name, most=MOST)
    assert "left out" not in scored(tmp_path, "flashinfer-bench", problems=len(names), cases=CASES)


def test_problems_of_kernelbench_are_scored(tmp_path: Path) -> None:
    names = chosen(KERNEL_BENCH_ALL, "7_Max")
    for name in names:
        KERNEL_BENCH_ALL[name].write(tmp_path / "theirs" / name, name, most=MOST)
    assert "left out" not in scored(tmp_path, "kernelbench", problems=len(names), cases=CASES)


def test_so_many_problems_of_each_are_written() -> None:
    assert [len(one) for one in (KERNEL_BENCH_ALL, GPU_MODE_ALL, TRACES_ALL)] == [40, 50, 13]


HALF = """\
import torch
from bench_helper import Deterministic
from task import input_t, output_t
from utils import make_match_reference


def generate_input(size: int, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    make = lambda: torch.randn(size, size, device="cuda", dtype=torch.float16, generator=gen)
    return make(), make()


def ref_kernel(data: input_t) -> output_t:
    with Deterministic():
        return torch.softmax(data[0] @ data[1], -1)


check_implementation = make_match_reference(ref_kernel, rtol=1e-5, atol=1e-8)
"""
HELPER = """\
import torch


class Deterministic:
    def __enter__(self):
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)
"""


def test_a_tolerance_is_about_what_the_reference_returns(tmp_path: Path) -> None:
    """In half precision, with a helper module beside the task, and deterministic algorithms."""
    pytest.importorskip("yaml", reason="no PyYAML")
    product = "torch.softmax(data[0] @ data[1], -1)"
    wrong = tuple(product.replace("softmax", word) for word in ("softmin", "log_softmax")) * 2
    problem = GpuMode("size: int", ('"size": 64, "seed": 1',), "", "_", "", product, wrong)
    problem.write(tmp_path / "theirs", "half", most=MOST)
    (tmp_path / "theirs/half/reference.py").write_text(HALF)
    (tmp_path / "theirs/half/bench_helper.py").write_text(HELPER)
    assert "left out" not in scored(tmp_path, "gpumode")


FOUR_BITS = """\
import torch
from task import input_t, output_t
from utils import make_match_reference


def blocked(scales):
    tiles = scales.view(scales.shape[0] // 128, 128, scales.shape[1] // 4, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16).flatten()


def ref_kernel(data: input_t) -> output_t:
    a, b, scale_a, scale_b, c = data
    for i in range(c.shape[2]):
        scales = blocked(scale_a[:, :, i]).cuda(), blocked(scale_b[:, :, i]).cuda()
        c[:, :, i] = torch._scaled_mm(a[..., i], b[..., i].mT, *scales, out_dtype=torch.float16)
    return c


def drawn(batch, rows, k):
    bits = torch.randint(0, 256, (batch, rows, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(1, 4, (batch, rows, k // 16), dtype=torch.int8, device="cuda")
    bits = bits.permute(1, 2, 0).view(torch.float4_e2m1fn_x2)
    return bits, scales.to(torch.float8_e4m3fn).permute(1, 2, 0).cpu()


def generate_input(m: int, k: int, batch: int, seed: int) -> input_t:
    torch.manual_seed(seed)
    (a, scale_a), (b, scale_b) = drawn(batch, m, k), drawn(batch, 128, k)
    c = torch.randn((batch, m, 128), dtype=torch.float16, device="cuda").permute(1, 2, 0)
    return a, b, scale_a, scale_b, c


check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-3)
"""
DECODED = """\
import torch

ABOVE = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
VALUES = torch.tensor([*ABOVE, *(-x for x in ABOVE)])


def decoded(packed, scales):
    assert packed.stride(1) == 1
    bits = packed.view(torch.uint8).long()
    values = VALUES[torch.stack([bits & 15, bits >> 4], 2).flatten(1, 2)]
    return values * scales.float().repeat_interleave(16, 1)


def custom_kernel(data):
    a, b, scale_a, scale_b, c = data
    x, y = decoded(a, scale_a), decoded(b, scale_b)
    return c.copy_(torch.einsum("mkb,nkb->mnb", x, y))
"""


def test_tensors_of_four_bits_are_judged(tmp_path: Path) -> None:
    """They are laid out in memory as the problem does, and multiplied as by tensor cores."""
    pytest.importorskip("yaml", reason="no PyYAML")
    if not hasattr(pytest.importorskip("torch"), "float4_e2m1fn_x2"):
        pytest.skip("this torch has no 4-bit floats")
    tests = ('"m": 128, "k": 256, "batch": 1, "seed": 1', '"m": 128, "k": 128, "batch": 2')
    problem = GpuMode("", tests, "", "_", "", "_", ("_",) * 4)
    problem.write(tmp_path / "theirs", "nvfp4", most=MOST)
    (tmp_path / "theirs/nvfp4/reference.py").write_text(FOUR_BITS)
    changes = [("", ""), ("(16, 1)", "(16, 1).flip(1)"), ("* scales", "+ scales"), ("1.5", "1.75"),
               ("nkb->mnb", "nkb->nmb")]  # fmt: skip
    for at, (old, new) in enumerate(changes[: 1 + MOST]):
        name = f"wrong{at}" if at else "right"
        (tmp_path / f"theirs/nvfp4/{name}.py").write_text(
            DECODED.replace(old, new) if at else DECODED
        )
    assert "left out" not in scored(tmp_path, "gpumode")
