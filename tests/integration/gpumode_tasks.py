"""Problems as GPU MODE's tasks make them: each key names the task whose needs it has.

Written after what the tasks ask of an importer; nothing of theirs is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from collection_problems import TASK

UTILS = """\
import os
import random

import numpy
import torch


class DeterministicContext:
    def __enter__(self):
        self.before = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True)
        return self

    def __exit__(self, *_):
        torch.use_deterministic_algorithms(False)
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = self.before


def clear_l2_cache():
    torch.empty((32, 1024, 1024), dtype=torch.int64, device="cuda").fill_(42)


@torch.no_grad()
def verbose_allclose(received, expected, rtol=1e-05, atol=1e-08, max_print=5):
    if received.shape != expected.shape:
        return False, ["SIZE MISMATCH"]
    if received.device != expected.device:
        return False, ["DEVICE MISMATCH"]
    far = ~torch.isclose(received.double(), expected.double(), rtol=rtol, atol=atol)
    return not far.any(), [f"ERROR AT {tuple(at.tolist())}" for at in far.nonzero()[:max_print]]


@torch.no_grad()
def verbose_allequal(received, expected, max_print=5):
    if received.shape != expected.shape:
        return ["SIZE MISMATCH"]
    return [f"ERROR AT {at.tolist()}" for at in (received != expected).nonzero()[:max_print]]


def match_reference(data, output, reference, rtol=1e-05, atol=1e-08):
    good, reasons = verbose_allclose(output, reference(data), rtol=rtol, atol=atol)
    return good, "\\n".join(reasons)


def make_match_reference(reference, **kwargs):
    def wrapped(data, output):
        return match_reference(data, output, reference=reference, **kwargs)

    return wrapped
"""
TASK_PY = """\
from typing import TypedDict, TypeVar

import torch

input_t = TypeVar("input_t", bound=tuple)
output_t = TypeVar("output_t", bound=torch.Tensor)


class TestSpec(TypedDict):
    size: int
    seed: int
"""
REFERENCE = """\
import dataclasses
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from task import input_t, output_t
from torch import nn
from utils import (
    DeterministicContext,
    make_match_reference,
    match_reference,
    verbose_allclose,
    verbose_allequal,
)


def drawn(*shape, seed, dtype=torch.float32):
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    return torch.randn(*shape, device="cuda", generator=gen, dtype=dtype).contiguous()


"""
SUBMISSION = """\
#!POPCORN leaderboard {name}
from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from task import input_t, output_t


"""
CLOSE = "\n\ncheck_implementation = make_match_reference(ref_kernel, rtol={0}, atol={0})\n"


@dataclass(frozen=True)
class Whole:
    """A problem with the text of its reference, of a right submission, and its four mistakes."""

    tests: tuple[str, ...]
    reference: str
    right: str
    # What is replaced in the right submission, and by what.
    wrong: tuple[tuple[str, str], tuple[str, str], tuple[str, str], tuple[str, str]]
    # The tolerance of ``make_match_reference``; None where the reference has its own check.
    close: float | None = 1e-3

    def write(self, group: Path, name: str, *, most: int = 4) -> None:
        """Write its files below the folder of its group."""
        folder = group / name
        folder.mkdir(parents=True)
        (folder / "utils.py").write_text(UTILS)  # a group has one; here, groups stand together
        (folder / "task.py").write_text(TASK_PY)
        tests = "\n".join(f"  - {{{one}}}" for one in self.tests)
        text = TASK.format(name=name, tests=tests).replace("../utils.py", "utils.py")
        (folder / "task.yml").write_text(text)
        check = "" if self.close is None else CLOSE.format(self.close)
        (folder / "reference.py").write_text(REFERENCE + self.reference + check)
        head = SUBMISSION.format(name=name)
        (folder / "right.py").write_text(head + self.right)
        for at, (old, new) in enumerate(self.wrong[:most], 1):
            assert old in self.right, old
            (folder / f"wrong{at}.py").write_text(head + self.right.replace(old, new))


def _kernel(*lines: str) -> str:
    return "def custom_kernel(data: input_t) -> output_t:\n" + "".join(f"    {x}\n" for x in lines)


def _reference(*lines: str) -> str:
    return "\n\ndef ref_kernel(data: input_t) -> output_t:\n" + "".join(f"    {x}\n" for x in lines)


def _inputs(parameters: str, *lines: str) -> str:
    head = f"def generate_input({parameters}, seed: int) -> input_t:\n"
    return head + "".join(f"    {one}\n" for one in lines)


_SIZE = ('"size": 127, "seed": 4242', '"size": 128, "seed": 5236')
_WRITTEN = (
    "def check_implementation(data, output):\n"
    "    reasons = verbose_allequal(output, ref_kernel(data))\n"
)

PMPP = {
    "conv2d_py": Whole(
        ('"size": 32, "kernelsize": 4, "channels": 16, "batch": 1, "seed": 4242',
         '"size": 32, "kernelsize": 8, "channels": 2, "batch": 2, "seed": 5236'),
        _inputs("size: int, kernelsize: int, channels: int, batch: int",
                "x = drawn(batch, channels, size, size, seed=seed)",
                "w = drawn(channels, channels, kernelsize, kernelsize, seed=seed + 1)",
                "return x, w")
        + _reference("with DeterministicContext():", "    x, w = data",
                     "    return F.conv2d(x, w, stride=1, padding=0)"),
        _kernel("x, w = data", "columns = F.unfold(x, w.shape[2:])",
                "out = w.flatten(1) @ columns",
                "side = x.shape[-1] - w.shape[-1] + 1",
                "return out.view(x.shape[0], w.shape[0], side, side)"),
        (("w.flatten(1) @", "w.flip(2).flatten(1) @"), ("w.flatten(1) @", "w.mT.flatten(1) @"),
         ("w.flatten(1) @", "w.transpose(0, 1).flatten(1) @"), ("out.view", "(out + 0.1).view")),
    ),
    "conv2d_py_v2": Whole(
        ('"size": 32, "kernelsize": 4, "channels": 16, "batch": 1, "seed": 4242',),
        _inputs("size: int, kernelsize: int, channels: int, batch: int",
                "x = drawn(batch, channels, size, size, seed=seed)",
                "w = drawn(channels, channels, kernelsize, kernelsize, seed=seed + 1)",
                "side = size - kernelsize + 1",
                "return x, w, torch.empty(batch, channels, side, side, device='cuda')")
        + _reference("with DeterministicContext():", "    x, w, out = data",
                     "    out[...] = F.conv2d(x, w, stride=1, padding=0)", "    return out"),
        _kernel("x, w, out = data", "out.copy_(F.conv2d(x, w))", "return out"),
        (("return out", "return out.abs()"), ("(x, w))", "(x, w.flip(3)))"),
         ("out.copy_", ""), ("(x, w))", "(x[:, :, :, 1:], w[:, :, :, 1:]))")),
    ),
    "grayscale_py": Whole(
        _SIZE,
        _inputs("size: int", "gen = torch.Generator(device='cuda')", "gen.manual_seed(seed)",
                "return torch.rand(size, size, 3, device='cuda', generator=gen)")
        + _reference("weights = torch.tensor([0.2989, 0.5870, 0.1140], device=data.device)",
                     "return torch.sum(data * weights, dim=-1)"),
        _kernel("r, g, b = data.unbind(-1)", "return 0.2989 * r + 0.5870 * g + 0.1140 * b"),
        (("0.2989", "0.3989"), ("r, g, b", "b, g, r"), ("* b", "* b.T"), ("+ 0.1140 * b", "")),
    ),
    "histogram_py": Whole(
        ('"size": 5120, "contention": 10.5, "seed": 4242',
         '"size": 2560, "contention": 90, "seed": 5236'),
        _inputs("size: int, contention: float", "gen = torch.Generator(device='cuda')",
                "gen.manual_seed(seed)",
                "x = torch.randint(0, 256, (size,), device='cuda', generator=gen)",
                "same = torch.rand(size, device='cuda', generator=gen) < contention / 100",
                "evil = torch.randint(0, 256, (), device='cuda', generator=gen)",
                "return torch.where(same, evil, x).to(torch.uint8).contiguous()")
        + _reference("return torch.bincount(data.int(), minlength=256)") + "\n\n" + _WRITTEN
        + "    return reasons[0] if reasons else ''\n",
        _kernel("counts = torch.zeros(256, dtype=torch.int64, device=data.device)",
                "return counts.scatter_add_(0, data.long(), torch.ones_like(data.long()))"),
        (("torch.zeros", "torch.ones"), ("data.long(),", "data.long() // 2,"),
         ("return counts", "return counts[:128]"), ("data.long(),", "255 - data.long(),")),
        None,
    ),
    "histogram_py_v2": Whole(
        ('"size": 1024, "contention": 10, "seed": 4242',
         '"size": 2048, "contention": 90, "seed": 5236'),
        _inputs("size: int, contention: int", "torch.manual_seed(seed)",
                "x = torch.randint(0, 256, (size,), device='cuda', dtype=torch.uint8)",
                "x[: size * contention // 100] = 7",
                "return x, torch.empty(256, device='cuda', dtype=torch.int64).contiguous()")
        + _reference("x, out = data", "out[...] = torch.bincount(x, minlength=256)",
                     "return out") + "\n\n" + _WRITTEN
        + "    return len(reasons) == 0, ' '.join(reasons)\n",
        _kernel("x, out = data", "out.copy_(torch.histc(x.float(), 256, 0, 255))", "return out"),
        (("0, 255", "1, 255"), ("(x.float()", "(x[1:].float()"), ("return out", "return out + 1"),
         ("0, 255", "0, 300")),
        None,
    ),
    "matmul_py": Whole(
        ('"m": 64, "n": 64, "k": 64, "seed": 53124', '"m": 64, "n": 512, "k": 32, "seed": 1'),
        _inputs("m: int, n: int, k: int", "torch.manual_seed(seed)",
                "a = torch.empty(m, k, device='cuda', dtype=torch.float16).uniform_(0, 1)",
                "b = torch.empty(k, n, device='cuda', dtype=torch.float16).uniform_(0, 1)",
                "return a, b") + _reference("a, b = data", "return a @ b")
        + "\n\ndef check_implementation(data, output):\n"
        "    expected = ref_kernel(data)\n"
        "    good, reasons = verbose_allclose(output, expected, rtol=1e-2, atol=1e-2)\n"
        "    if not good:\n"
        "        return 'mismatch found! ' + reasons[0]\n\n"
        "    return ''\n",
        _kernel("a, b = data", "return (a.float() @ b.float()).half()"),
        (("@ b.float()", "@ b.float() * 1.05"), ("a.float()", "a[:, 1:].float()"),
         ("return", "return 1 +"), (".half()", ".half()[:-1]")),
        None,
    ),
    "matmul_py_v2": Whole(
        ('"m": 64, "n": 64, "k": 64, "seed": 53124', '"m": 128, "n": 64, "k": 32, "seed": 1'),
        _inputs("m: int, n: int, k: int", "a = drawn(m, k, seed=seed, dtype=torch.float16)",
                "b = drawn(k, n, seed=seed + 1, dtype=torch.float16)",
                "return a, b, torch.empty(m, n, device='cuda', dtype=torch.float16)")
        + _reference("with DeterministicContext():", "    a, b, c = data", "    c[...] = a @ b",
                     "    return c"),
        _kernel("a, b, c = data", "torch.matmul(a, b, out=c)", "return c"),
        (("(a, b,", "(a, b.flip(0),"), ("return c", "return c + 1"), ("(a, b,", "(a.abs(), b,"),
         ("(a, b,", "(a, b * 1.02,")),
    ),
    "prefixsum_py": Whole(
        ('"size": 1023, "seed": 4242', '"size": 1024, "seed": 5236'),
        _inputs("size: int", "return drawn(size, seed=seed)")
        + _reference("return torch.cumsum(data.to(torch.float64), dim=0).to(torch.float32)")
        + "\n\ndef check_implementation(data, output):\n"
        "    scale = data.numel() ** 0.5\n"
        "    return match_reference(data, output, reference=ref_kernel, rtol=1e-5 * scale,\n"
        "                           atol=1e-6 * scale)\n",
        _kernel("return torch.cumsum(data, 0)"),
        (("(data, 0)", "(data, 0) - data"), ("(data, 0)", "(data.half(), 0)"),
         ("(data, 0)", "(data.flip(0), 0)"), ("(data, 0)", "(data.abs(), 0)")),
        None,
    ),
    "prefixsum_py_v2": Whole(
        ('"size": 1023, "seed": 4242', '"size": 1024, "seed": 5236'),
        _inputs("size: int", "x = drawn(size, seed=seed)", "return x, torch.empty_like(x)")
        + _reference("with DeterministicContext():", "    x, out = data",
                     "    out[...] = torch.cumsum(x.double(), dim=0)", "    return out"),
        _kernel("x, out = data", "torch.cumsum(x, 0, out=out)", "return out"),
        (("return out", "return out - x"), ("(x, 0,", "(x.flip(0), 0,"),
         ("return out", "return out.flip(0)"), ("(x, 0,", "(x * 1.01, 0,")),
    ),
    "sort_py": Whole(
        ('"size": 1023, "seed": 4242', '"size": 1024, "seed": 5236'),
        _inputs("size: int", "return drawn(size, seed=seed) + 3")
        + _reference("return torch.sort(data)[0]")
        + "\n\ncheck_implementation = make_match_reference(ref_kernel)\n",
        _kernel("return data[data.argsort()]"),
        (("argsort()", "argsort(descending=True)"), ("data[", "data.flip(0)["),
         ("data.argsort", "data.abs().sqrt().flip(0).argsort"), ("return", "return 1.001 *")),
        None,
    ),
    "vectoradd_py": Whole(
        _SIZE,
        _inputs("size: int", "a = drawn(size, size, seed=seed, dtype=torch.float16)",
                "return a, drawn(size, size, seed=seed + 1, dtype=torch.float16)")
        + _reference("a, b = data", "return a + b")
        + "\n\ncheck_implementation = make_match_reference(ref_kernel)\n",
        _kernel("a, b = data", "return torch.add(b, a)"),
        (("(b, a)", "(b, b)"), ("(b, a)", "(b, a.T)"), ("(b, a)", "(b, a, alpha=1.01)"),
         ("(b, a)", "(b, a.roll(1))")),
        None,
    ),
    "sort_py_v2": Whole(
        ('"size": 1023, "seed": 4242', '"size": 1024, "seed": 5236'),
        _inputs("size: int", "rows = int(size**0.5)", "cols = (size + rows - 1) // rows",
                "x = torch.cat([drawn(1, cols, seed=seed + at) + at for at in range(rows)])",
                "x = x.flatten()[:size].contiguous()", "return x, torch.empty_like(x)")
        + _reference("with DeterministicContext():", "    x, out = data",
                     "    out[...] = torch.sort(x)[0]", "    return out")
        + "\n\ncheck_implementation = make_match_reference(ref_kernel)\n",
        _kernel("x, out = data", "torch.sort(x, out=(out, torch.empty_like(x, dtype=torch.int64)))",
                "return out"),
        (("return out", "return x"), ("sort(x,", "sort(-x,"), ("sort(x,", "sort(x, 0, True,"),
         ("return out", "return out[1:]")),
        None,
    ),
    "vectoradd_py_v2": Whole(
        _SIZE,
        _inputs("size: int", "a = drawn(size, size, seed=seed, dtype=torch.float16)",
                "b = drawn(size, size, seed=seed + 1, dtype=torch.float16)",
                "return a, b, torch.empty(size, size, device='cuda', dtype=torch.float16)")
        + _reference("with DeterministicContext():", "    a, b, c = data", "    c[...] = a + b",
                     "    return c")
        + "\n\ncheck_implementation = make_match_reference(ref_kernel)\n",
        "@dataclass\nclass Plan:\n    words: 'int' = 8\n\n\n"
        + _kernel("a, b, c = data", "Plan()", "c.copy_(a + b)", "return c"),
        (("a + b", "a - b"), ("a + b", "a.to(torch.float8_e5m2).half() + b"), ("a + b", "a"),
         ("return c", "return c.T")),
        None,
    ),
    "vectorsum_py": Whole(
        ('"size": 1023, "seed": 4242', '"size": 1024, "seed": 5236'),
        _inputs("size: int", "torch.manual_seed(seed)",
                "offset = torch.rand(1).item() * 200 - 100",
                "scale = torch.rand(1).item() * 9.9 + 0.1",
                "return (drawn(size, seed=seed) * scale + offset).contiguous()")
        + _reference("return data.to(torch.float64).sum().to(torch.float32)"),
        _kernel("return data.sum()"),
        (("data.sum", "data.mean"), ("data.sum", "data[1:].sum"), ("data.sum", "data.abs().sum"),
         ("data.sum()", "data.sum() * 1.01")),
    ),
    "vectorsum_py_v2": Whole(
        ('"size": 1023, "seed": 4242',),
        _inputs("size: int", "x = drawn(size, seed=seed) + 5",
                "return x, torch.empty(1, device='cuda')")
        + _reference("with DeterministicContext():", "    x, out = data",
                     "    out[0] = x.double().sum().float()", "    return out[0]"),
        _kernel("x, out = data", "out.fill_(x.sum())", "return out[0]"),
        (("x.sum", "x.mean"), ("x.sum", "x[:-1].sum"), ("return out[0]", "return out + x"),
         ("x.sum()", "x.sum() + 50")),
    ),
}  # fmt: skip

_MOE = """\
class Expert(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate = nn.Linear(config["d_hidden"], config["d_expert"], bias=False)
        self.up = nn.Linear(config["d_hidden"], config["d_expert"], bias=False)
        self.down = nn.Linear(config["d_expert"], config["d_hidden"], bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class MoE(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.top = config["n_experts_per_token"]
        self.router = nn.Linear(config["d_hidden"], config["n_routed_experts"], bias=False)
        self.experts = nn.ModuleList([Expert(config) for _ in range(config["n_routed_experts"])])

    def forward(self, x):
        share, index = torch.topk(self.router(x).softmax(-1), self.top, sorted=False)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            out += expert(x) * (share * (index == at)).sum(-1, keepdim=True)
        return out


def ref_kernel(data: input_t) -> output_t:
    x, weights, config = data
    moe = MoE(config).to("cuda")
    moe.router.weight = nn.Parameter(weights["router.weight"])
    for at, expert in enumerate(moe.experts):
        for name in ("gate", "up", "down"):
            getattr(expert, name).weight = nn.Parameter(weights[f"experts.{at}.{name}.weight"])
    return moe(x)


def generate_input(
    dhidden: int, dexpert: int, nroutedexperts: int, nexpertspertoken: int, bs: int, seqlen: int,
    seed: int,
) -> input_t:
    config = {"d_hidden": dhidden, "d_expert": dexpert, "n_routed_experts": nroutedexperts,
              "n_experts_per_token": nexpertspertoken, "batch_size": bs, "seq_len": seqlen}
    weights = {"router.weight": drawn(nroutedexperts, dhidden, seed=seed) / math.sqrt(dhidden)}
    for at in range(nroutedexperts):
        for name in ("gate", "up", "down"):
            shape = (dhidden, dexpert) if name == "down" else (dexpert, dhidden)
            made = drawn(*shape, seed=seed + 7 * at + len(name)) / math.sqrt(shape[1])
            weights[f"experts.{at}.{name}.weight"] = made
    return drawn(bs, seqlen, dhidden, seed=seed), weights, config
"""
_CACHE = """\
class KVCache(nn.Module):
    def __init__(self, shape: tuple, **kwargs) -> None:
        super().__init__(**kwargs)
        self.register_buffer("data", torch.zeros(shape, dtype=torch.bfloat16))
        self.seq_len = 0
        self.zero()

    def zero(self) -> None:
        self.data.zero_()

    def get_data(self) -> torch.Tensor:
        return self.data

    def forward(self, new: torch.Tensor) -> torch.Tensor:
        self.data[:, self.seq_len : self.seq_len + new.size(1), :] = new
        self.seq_len += new.size(1)
        return self.data[:, : self.seq_len], self.seq_len


@dataclasses.dataclass
class Config:
    batch_size: int
    dim: int
    max_seq_len: int
    Q_weight: torch.Tensor
    KV_weight: torch.Tensor


class MLA(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.query = nn.Linear(config.dim, 32, bias=False, dtype=torch.bfloat16)
        self.key = nn.Linear(config.dim, 32, bias=False, dtype=torch.bfloat16)
        self.query.weight = nn.Parameter(config.Q_weight)
        self.key.weight = nn.Parameter(config.KV_weight)

    def forward(self, x, cache):
        kept, _ = cache(self.key(x))
        q = self.query(x).float()
        return torch.softmax(q @ kept.float().mT / math.sqrt(32), -1) @ kept.float()


def ref_kernel(data: input_t) -> output_t:
    config, x, kv_cache = data
    return MLA(config).to("cuda")(x, kv_cache), kv_cache.get_data()


def generate_input(batchsize: int, dim: int, prefill: int, seed: int) -> input_t:
    half = {"dtype": torch.bfloat16}
    config = Config(batch_size=batchsize, dim=dim, max_seq_len=64,
                    Q_weight=drawn(32, dim, seed=seed, **half) / math.sqrt(dim),
                    KV_weight=drawn(32, dim, seed=seed + 1, **half) / math.sqrt(dim))
    cache = KVCache((batchsize, config.max_seq_len, 32)).to("cuda")
    cache(drawn(batchsize, prefill, 32, seed=seed + 2, **half))
    return config, drawn(batchsize, 1, dim, seed=seed + 3, **half), cache


def check_implementation(data, output):
    for got, expected in zip(output, ref_kernel(data)):
        good, reasons = verbose_allclose(got, expected, rtol=2e-2, atol=8e-3)
        if not good:
            return False, reasons[0]
    return True, ""
"""
_TRIMUL = """\
class TriMul(nn.Module):
    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.left = nn.Linear(dim, hidden_dim, bias=False)
        self.right = nn.Linear(dim, hidden_dim, bias=False)
        self.to_out = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x, mask):
        x = self.norm(x)
        left, right = self.left(x) * mask[..., None], self.right(x) * mask[..., None]
        return self.to_out(torch.einsum("bikd,bjkd->bijd", left, right))


def ref_kernel(data: input_t) -> output_t:
    x, mask, weights, config = data
    model = TriMul(dim=config["dim"], hidden_dim=config["hidden_dim"]).to(x.device)
    for name in ("norm", "left", "right", "to_out"):
        getattr(model, name).weight = nn.Parameter(weights[f"{name}.weight"])
    model.norm.bias = nn.Parameter(weights["norm.bias"])
    return model(x, mask)


def generate_input(
    seqlen: int, bs: int, dim: int, hiddendim: int, seed: int, nomask: bool, distribution: str
) -> input_t:
    config = {"hidden_dim": hiddendim, "dim": dim}
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
    x = torch.randn((bs, seqlen, seqlen, dim), device="cuda", generator=gen)
    if distribution == "cauchy":
        u = torch.empty_like(x).uniform_(0.0, 1.0, generator=gen)
        x = 2.0 * torch.tan(math.pi * (u - 0.5))
    if nomask:
        mask = torch.ones(bs, seqlen, seqlen, device="cuda")
    else:
        mask = torch.randint(0, 2, (bs, seqlen, seqlen), device="cuda", generator=gen).float()
    shapes = {"norm.weight": (dim,), "norm.bias": (dim,), "to_out.weight": (dim, hiddendim)}
    shapes |= {f"{side}.weight": (hiddendim, dim) for side in ("left", "right")}
    weights = {
        key: torch.randn(shape, device="cuda", generator=gen) / math.sqrt(shape[-1])
        for key, shape in shapes.items()
    }
    return x, mask, weights, config
"""
_BF16 = '"m": 64, "n": 128, "k": 256, "seed": 6635'

AMD = {
    "identity": Whole(
        _SIZE,
        _inputs("size: int", "x = drawn(size, seed=seed, dtype=torch.float16)",
                "return x, torch.empty_like(x)")
        + _reference("x, out = data", "out[...] = x", "return out")
        + "\n\ncheck_implementation = make_match_reference(ref_kernel)\n",
        _kernel("x, out = data", "out.copy_(x)", "return out"),
        (("(x)", "(-x)"), ("(x)", "(x.flip(0))"), ("return out", "return out * 1.01"),
         ("out.copy_(x)", "")),
        None,
    ),
    "fp8-mm": Whole(
        (_BF16, '"m": 128, "n": 1536, "k": 7168, "seed": 1'),
        _inputs("m: int, n: int, k: int", "blocks = (k + 127) // 128",
                "a = drawn(k, m, seed=seed, dtype=torch.bfloat16).to(torch.float8_e4m3fnuz)",
                "b = drawn(k, n, seed=seed + 1, dtype=torch.bfloat16).to(torch.float8_e4m3fnuz)",
                "a_scale = drawn(blocks, m, seed=seed + 2)",
                "b_scale = drawn(blocks, (n + 127) // 128, seed=seed + 3)",
                "c = torch.zeros((m, n), dtype=torch.bfloat16, device='cuda')",
                "return a.T, b.T, a_scale.T, b_scale.T, c")
        + _reference("a, b, a_scale, b_scale, c = data", "k, n = a.shape[1], b.shape[0]",
                     "wide = a_scale.unsqueeze(-1).repeat(1, 1, 128).flatten(1)[:, :k]",
                     "tall = b_scale.repeat_interleave(128, 0)[:n]",
                     "tall = tall.repeat_interleave(128, 1)[:, :k]",
                     "x = a.to(torch.float32) * wide", "y = b.to(torch.float32) * tall",
                     "c[...] = (x @ y.T).to(torch.bfloat16)", "return c"),
        _kernel("a, b, a_scale, b_scale, c = data", "c.zero_()", "total = c.float()",
                "columns = torch.arange(c.shape[1], device=c.device) // 128",
                "for at in range(a_scale.shape[1]):",
                "    part = slice(128 * at, 128 * at + 128)",
                "    product = a[:, part].float() @ b[:, part].float().T",
                "    total += product * a_scale[:, at, None] * b_scale[columns, at]",
                "return c.copy_(total)"),
        (("a_scale[:, at, None]", "a_scale[:, 0, None].abs()"), ("* b_scale", "+ b_scale"),
         ("product *", "product.abs() *"), ("(128 * at,", "(128 * at + 1,")),
        2e-2,
    ),
    "moe": Whole(
        ('"dhidden": 256, "dexpert": 64, "nroutedexperts": 4, "nexpertspertoken": 2, "bs": 1,'
         ' "seqlen": 32, "seed": 9371',
         '"dhidden": 7168, "dexpert": 64, "nroutedexperts": 8, "nexpertspertoken": 4, "bs": 2,'
         ' "seqlen": 512, "seed": 2291'),
        _MOE,
        _kernel("x, weights, config = data", "out = torch.zeros_like(x)",
                "share = F.softmax(x @ weights['router.weight'].T, -1)",
                "best, index = share.topk(config['n_experts_per_token'], -1)",
                "for at in range(config['n_routed_experts']):",
                "    gate, up, down = (weights[f'experts.{at}.{n}.weight']"
                " for n in ('gate', 'up', 'down'))",
                "    part = (best * (index == at)).sum(-1, keepdim=True)",
                "    out += part * ((F.silu(x @ gate.T) * (x @ up.T)) @ down.T)",
                "return out"),
        (("F.silu", "F.relu"), ("config['n_experts_per_token']", "1"), ("(best *", "(1.0 *"),
         ("return out", "return out + x / 50")),
        1e-2,
    ),
    "mla-decode": Whole(
        ('"batchsize": 2, "dim": 64, "prefill": 16, "seed": 5291',
         '"batchsize": 2, "dim": 128, "prefill": 32, "seed": 1'),
        _CACHE,
        "from reference import Config, KVCache\n\n\n"
        + _kernel("config, x, cache = data", "assert isinstance(config, Config)",
                  "assert isinstance(cache, KVCache) and config.batch_size == x.shape[0]",
                  "kept, count = cache(F.linear(x, config.KV_weight))", "kept = kept.float()",
                  "q = F.linear(x, config.Q_weight).float() / math.sqrt(32)",
                  "return torch.softmax(q @ kept.mT, -1) @ kept, cache.data"),
        (("math.sqrt(32)", "8"), ("kept = kept", "kept = kept[:, :-1]"),
         ("cache.data", "cache.data + 1"), ("cache.data", "cache.data.flip(1)")),
        None,
    ),
}  # fmt: skip
BIOML = {
    "trimul": Whole(
        ('"seqlen": 16, "bs": 1, "dim": 32, "hiddendim": 32, "nomask": True,'
         ' "distribution": "normal", "seed": 9371',
         '"seqlen": 16, "bs": 2, "dim": 32, "hiddendim": 32, "nomask": False,'
         ' "distribution": "cauchy", "seed": 12'),
        _TRIMUL,
        _kernel("x, mask, w, config = data",
                "x = F.layer_norm(x, (config['dim'],), w['norm.weight'], w['norm.bias'])",
                "left = x @ w['left.weight'].T * mask[..., None]",
                "right = x @ w['right.weight'].T * mask[..., None]",
                "out = torch.einsum('bikd,bjkd->bijd', left, right)",
                "return out @ w['to_out.weight'].T"),
        (("bijd'", "bjid'"), ("w['right.weight']", "w['left.weight']"),
         ("w['norm.bias'])", "None)"),
         ("T * mask[..., None]", "T")),
        2e-2,
    ),
}  # fmt: skip

_GROUPS = """\
def generate_input(m: tuple, n: tuple, k: tuple, g: int, seed: int) -> input_t:
    torch.manual_seed(seed)
    tensors, scales, problem_sizes = [], [], []
    for mi, ni, ki in zip(m, n, k):
        bits = [torch.randint(0, 256, (rows, ki // 2), dtype=torch.uint8, device="cuda")
                for rows in (mi, ni)]
        c = torch.empty((mi, ni, 1), dtype=torch.float16, device="cuda")
        tensors.append((*(one.view(torch.float4_e2m1fn_x2) for one in bits), c))
        scales.append(tuple(
            torch.randint(1, 4, (rows, ki // 16), device="cuda").to(torch.float8_e4m3fn)
            for rows in (mi, ni)
        ))
        problem_sizes.append((mi, ni, ki, 1))
    return tensors, scales, problem_sizes


def tiled(scales):
    rows, columns = scales.shape
    padded = F.pad(scales.float(), (0, -columns % 4, 0, -rows % 128)).to(scales.dtype)
    tiles = padded.view(padded.shape[0] // 128, 128, -1, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16).flatten()


def ref_kernel(data: input_t) -> output_t:
    tensors, scales, problem_sizes = data
    results = []
    for (a, b, c), (x, y), (m, n, k, _) in zip(tensors, scales, problem_sizes):
        c[:, :, 0] = torch._scaled_mm(
            a, b.transpose(0, 1), tiled(x), tiled(y), bias=None, out_dtype=torch.float16
        )
        results.append(c)
    return results


def check_implementation(data, output):
    for at, (got, expected) in enumerate(zip(output, ref_kernel(data))):
        good, reasons = verbose_allclose(got, expected, rtol=1e-3, atol=1e-3)
        if not good:
            return False, f"group {at}: {reasons[0]}"
    return True, ""
"""
_DECODE = """\
ABOVE = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
VALUES = torch.tensor([*ABOVE, *(-x for x in ABOVE)])


def decoded(packed, scales):
    bits = packed.view(torch.uint8).long()
    values = VALUES[torch.stack([bits & 15, bits >> 4], 2).flatten(1, 2)]
    return values * scales.float().repeat_interleave(16, 1)


"""
_ONE_GROUP = """\
def drawn_bits(rows, k, l, seed):
    torch.manual_seed(seed)
    bits = torch.randint(0, 256, (l, rows, k // 2), dtype=torch.uint8, device="cuda")
    scales = torch.randint(1, 4, (l, rows, k // 16), device="cuda").to(torch.float8_e4m3fn)
    return bits.permute(1, 2, 0).view(torch.float4_e2m1fn_x2), scales.permute(1, 2, 0)


def tiled(scales):
    rows, columns = scales.shape
    padded = F.pad(scales.float(), (0, -columns % 4, 0, -rows % 128)).to(scales.dtype)
    tiles = padded.view(padded.shape[0] // 128, 128, -1, 4).permute(0, 2, 1, 3)
    return tiles.reshape(-1, 4, 32, 4).transpose(1, 2).reshape(-1, 32, 16).flatten()


def product(a, b, x, y, at, dtype):
    scales = tiled(x[:, :, at]).cuda(), tiled(y[:, :, at]).cuda()
    return torch._scaled_mm(a[:, :, at], b[:, :, at].transpose(0, 1), *scales, bias=None,
                            out_dtype=dtype)


"""
_ONE = ('"m": 128, "k": 256, "l": 1, "seed": 1111', '"m": 128, "k": 512, "l": 2, "seed": 2')
_ONE_N = ('"m": 128, "n": 128, "k": 256, "l": 1, "seed": 1111',)
_SHARED_MISTAKES = (("y = decoded", "y = 1.1 * decoded"), ("1.5", "1.75"),
                    ("bits & 15, bits >> 4", "bits & 15, bits & 15"))  # fmt: skip

NVIDIA = {
    "nvfp4_gemv": Whole(
        _ONE,
        _ONE_GROUP
        + _inputs("m: int, k: int, l: int", "a, x = drawn_bits(m, k, l, seed)",
                  "b, y = drawn_bits(128, k, l, seed + 1)",
                  "c = torch.randn((l, m, 1), device='cuda', dtype=torch.float16)",
                  "return a, b, x.cpu(), y.cpu(), c.permute(1, 2, 0)")
        + _reference("a, b, x, y, c = data", "for at in range(c.shape[2]):",
                     "    c[:, 0, at] = product(a, b, x, y, at, torch.float16)[:, 0]",
                     "return c"),
        _DECODE + _kernel("a, b, x, y, c = data", "for at in range(c.shape[2]):",
                          "    x1 = decoded(a[..., at], x[..., at])",
                          "    y = decoded(b[..., at], data[3][..., at])",
                          "    c[:, 0, at] = x1 @ y[0]", "return c"),
        (*_SHARED_MISTAKES, ("y[0]", "y[1]")),
    ),
    "nvfp4_dual_gemm": Whole(
        _ONE_N,
        _ONE_GROUP
        + _inputs("m: int, n: int, k: int, l: int", "a, x = drawn_bits(m, k, l, seed)",
                  "b, y = drawn_bits(n, k, l, seed + 1)", "d, z = drawn_bits(n, k, l, seed + 2)",
                  "c = torch.randn((l, m, n), device='cuda', dtype=torch.float16)",
                  "return a, b, d, x, y, z, c.permute(1, 2, 0)")
        + _reference("a, b, d, x, y, z, c = data", "for at in range(c.shape[2]):",
                     "    one = product(a, b, x, y, at, torch.float32) / 1024",
                     "    two = product(a, d, x, z, at, torch.float32) / 1024",
                     "    c[:, :, at] = (F.silu(one) * two).to(torch.float16)", "return c"),
        _DECODE + _kernel("a, b, d, x, y, z, c = data", "for at in range(c.shape[2]):",
                          "    left = decoded(a[..., at], x[..., at]) / 1024",
                          "    y = decoded(b[..., at], data[4][..., at])",
                          "    right = decoded(d[..., at], z[..., at])",
                          "    c[:, :, at] = F.silu(left @ y.T) * (left @ right.T)", "return c"),
        (*_SHARED_MISTAKES, ("F.silu", "F.relu")),
    ),
    "nvfp4_group_gemm": Whole(
        ('"m": [16, 48], "n": [64, 32], "k": [128, 256], "g": 2, "seed": 1111',
         '"m": [32, 16], "n": [64, 32], "k": [128, 256], "g": 2, "seed": 2'),
        _GROUPS,
        _DECODE + _kernel("tensors, scales, sizes = data",
                          "assert sizes[0][0] == len(tensors[0][2])",
                          "for (a, b, c), (x, s) in zip(tensors, scales):",
                          "    y = decoded(b, s)", "    c[:, :, 0] = decoded(a, x) @ y.T",
                          "return [one[2] for one in tensors]"),
        (*_SHARED_MISTAKES, ("for one in tensors", "+ (len(one[2]) > 40) for one in tensors")),
        None,
    ),
}  # fmt: skip

_PAIRS = """\


def check_implementation(data, output):
    for got, expected in zip(output, ref_kernel(data)):
        good, reasons = verbose_allclose(got, expected, rtol=1e-2, atol=1e-2)
        if not good:
            return False, reasons[0]
    return True, ""
"""
_CHUNKS = ('"B": 1, "T": 64, "H": 2, "K": 32, "V": 32, "seed": 4242',
           '"B": 2, "T": 128, "H": 1, "K": 32, "V": 32, "seed": 1')  # fmt: skip
_DELTA = """\
def generate_input(B: int, T: int, H: int, K: int, V: int, seed: int) -> input_t:
    k = F.normalize(drawn(B, T, H, K, seed=seed), dim=-1)
    w = drawn(B, T, H, K, seed=seed + 1) / 8
    u = drawn(B, T, H, V, seed=seed + 2)
    g = -drawn(B, T // 16, 16, H, seed=seed + 3).abs().cumsum(2).flatten(1, 2) / 16
    return k, w, u, g


def ref_kernel(data: input_t) -> output_t:
    k, w, u, g = (x.transpose(1, 2).float() for x in data)
    state = torch.zeros(*k.shape[:2], k.shape[-1], u.shape[-1], device=k.device)
    states, values = [], []
    for at in range(0, k.shape[2], 16):
        part = slice(at, at + 16)
        states.append(state)
        new = u[:, :, part] - w[:, :, part] @ state
        values.append(new)
        last = g[:, :, at + 15, None]
        decay = torch.exp(last - g[:, :, part])[..., None]
        state = state * torch.exp(last)[..., None] + k[:, :, part].mT @ (new * decay)
    return torch.stack(states, 1), torch.cat(values, 2).transpose(1, 2).contiguous()
"""

HELION = {
    "causal_conv1d": Whole(
        ('"B": 1, "D": 64, "S": 64, "W": 4, "seed": 4242', '"B": 2, "D": 128, "S": 128, "W": 4'),
        _inputs("B: int, D: int, S: int, W: int",
                "return drawn(B, D, S, seed=seed), drawn(D, W, seed=seed + 1),"
                " drawn(D, seed=seed + 2)")
        + _reference("x, w, bias = data", "padded = F.pad(x, (w.shape[1] - 1, 0))",
                     "return F.conv1d(padded, w.unsqueeze(1), bias=bias, groups=x.shape[1])"),
        _kernel("x, w, bias = data", "width = w.shape[1]",
                "windows = F.pad(x, (width - 1, 0)).unfold(2, width, 1)",
                "return (windows * w[:, None]).sum(-1) + bias[:, None]"),
        (("(width - 1, 0)", "(0, width - 1)"), ("w[:, None]", "w.flip(1)[:, None]"),
         ("+ bias", "- bias"), ("w[:, None]", "w.abs()[:, None]")),
    ),
    "fp8_quant": Whole(
        ('"num_tokens": 4, "hidden_dim": 256, "group_size": 64, "seed": 4242',
         '"num_tokens": 16, "hidden_dim": 512, "group_size": 64, "seed": 1'),
        _inputs("num_tokens: int, hidden_dim: int, group_size: int",
                "x = drawn(num_tokens, hidden_dim, seed=seed)",
                "q = torch.empty_like(x)",
                "s = torch.empty(num_tokens, hidden_dim // group_size, device='cuda')",
                "return x, q, s")
        + _reference("x, q, s = data", "groups = x.view(*s.shape, -1)",
                     "s[...] = groups.abs().amax(-1).clamp(min=1e-10) / 448",
                     "q[...] = (groups / s[..., None]).clamp(-448, 448).flatten(1)",
                     "return q, s") + _PAIRS,
        _kernel("x, q, s = data", "groups = x.view(*s.shape, -1)",
                "largest = groups.abs().amax(-1, keepdim=True) / 448.0",
                "s.copy_(largest.squeeze(-1))", "q.copy_((groups / largest).view_as(q))",
                "return q, s"),
        (("448.0", "440.0"), ("amax(-1", "mean(-1"), ("return q, s", "return q, s + 1"),
         ("groups.abs()", "groups")),
        None,
    ),
    "gated_deltanet_chunk_fwd_h": Whole(
        _CHUNKS, _DELTA + _PAIRS,
        _kernel("k, w, u, g = (x.transpose(1, 2) for x in data)", "states, values = [], []",
                "state = u.new_zeros(*k.shape[:2], k.shape[-1], u.shape[-1])",
                "for at in range(k.shape[2] // 16):",
                "    kc, wc, uc, gc = (x.unflatten(2, (-1, 16))[:, :, at] for x in (k, w, u, g))",
                "    new = uc - wc @ state", "    states.append(state)", "    values.append(new)",
                "    end = gc[:, :, -1:]", "    kc = kc * torch.exp(end - gc)[..., None]",
                "    state = state * torch.exp(end)[..., None] + kc.mT @ new",
                "return torch.stack(states, 1), torch.cat(values, 2).transpose(1, 2)"),
        (("uc - wc @ state", "uc + wc @ state"), ("(end)", "(-end)"),
         ("return torch.stack(states, 1)", "return 0 * torch.stack(states, 1)"),
         ("torch.exp(end - gc)", "torch.exp(gc - end)")),
        None,
    ),
    "gated_deltanet_chunk_fwd_o": Whole(
        _CHUNKS,
        _inputs("B: int, T: int, H: int, K: int, V: int",
                "q, k = (drawn(B, T, H, K, seed=seed + at) / 4 for at in range(2))",
                "v = drawn(B, T, H, V, seed=seed + 2)",
                "h = drawn(B, T // 16, H, K, V, seed=seed + 3)",
                "g = -drawn(B, T // 16, 16, H, seed=seed + 4).abs().cumsum(2).flatten(1, 2) / 16",
                "return q, k, v, h, g")
        + _reference("q, k, v, g = (data[at].unflatten(1, (-1, 16)).transpose(2, 3)"
                     " for at in (0, 1, 2, 4))",
                     "decay = torch.exp(g[..., :, None] - g[..., None, :])",
                     "inside = ((q @ k.mT) * decay).tril() @ v",
                     "out = (q @ data[3]) * torch.exp(g)[..., None] + inside",
                     "return (out / k.shape[-1] ** 0.5).transpose(2, 3).flatten(1, 2)"),
        _kernel("q, k, v, h, g = data", "q, k, v = (x.unflatten(1, (-1, 16)) for x in (q, k, v))",
                "g = g.unflatten(1, (-1, 16))", "out = torch.einsum('bcthk,bchkv->bcthv', q, h)",
                "out = out * g.exp()[..., None]",
                "score = torch.einsum('bcthk,bcshk->bchts', q, k)",
                "gap = g.permute(0, 1, 3, 2)",
                "score = torch.tril(score * (gap[..., None] - gap[..., None, :]).exp())",
                "out = out + torch.einsum('bchts,bcshv->bcthv', score, v)",
                "return out.flatten(1, 2) / math.sqrt(k.shape[-1])"),
        (("torch.tril(", "("), ("/ math.sqrt", "* math.sqrt"), ("out * g", "out / g"),
         (", score, v)", ", score, v.abs())")),
        1e-2,
    ),
    "gated_deltanet_recompute_w_u": Whole(
        _CHUNKS,
        _inputs("B: int, T: int, H: int, K: int, V: int",
                "k, v = drawn(B, T, H, K, seed=seed), drawn(B, T, H, V, seed=seed + 1)",
                "beta = torch.sigmoid(drawn(B, T, H, seed=seed + 2))",
                "A = drawn(B, T, H, 16, seed=seed + 3) / 4",
                "g = -drawn(B, T, H, seed=seed + 4).abs()", "return k, v, beta, A, g")
        + _reference("k, v, beta, A, g = data",
                     "chunks = lambda x: x.unflatten(1, (-1, 16)).transpose(2, 3)",
                     "u = chunks(A) @ chunks(v * beta[..., None])",
                     "w = chunks(A) @ chunks(k * (beta * g.exp())[..., None])",
                     "return tuple(x.transpose(2, 3).flatten(1, 2) for x in (w, u))") + _PAIRS,
        _kernel("k, v, beta, A, g = data", "v, k = v * beta[..., None], k * beta[..., None]",
                "k = k * g.exp()[..., None]", "out = []", "for x in (k, v):",
                "    x, a = x.unflatten(1, (-1, 16)), A.unflatten(1, (-1, 16))",
                "    out.append(torch.einsum('bcths,bcshk->bcthk', a, x).flatten(1, 2))",
                "return out[0], out[1]"),
        (("out[0], out[1]", "out[1], out[0]"), ("g.exp()", "(-g).exp()"),
         ("v * beta[..., None]", "v"), ("'bcths", "'bcsht")),
        None,
    ),
}  # fmt: skip

_QR = """\
def generate_input(batch: int, n: int, cond: int, seed: int, case: str = "dense") -> input_t:
    a = drawn(batch, n, n, seed=seed)
    return a.triu() + cond * torch.eye(n, device="cuda") if case == "upper" else a


def ref_kernel(data: input_t) -> output_t:
    return tuple(torch.linalg.qr(data))


def check_implementation(data, output):
    q, r = output
    if q.shape != data.shape or r.shape != data.shape or q.dtype != data.dtype:
        return False, "another shape or dtype"
    if not torch.allclose(r, r.triu()):
        return False, "R is no upper triangle"
    one = torch.eye(q.shape[-1], device=q.device).expand_as(q)
    for name, got, expected in (("Q R", q @ r, data), ("Q' Q", q.mT @ q, one)):
        if not torch.allclose(got, expected, rtol=1e-3, atol=1e-3):
            return False, f"{name} differs"
    return True, ""
"""
_ENTROPY = """\
class Batch(NamedTuple):
    logits: torch.Tensor
    targets: torch.Tensor


def generate_input(batch: int, vocab: int, seed: int) -> input_t:
    targets = torch.randint(0, vocab, (batch,), generator=torch.Generator().manual_seed(seed))
    return Batch(drawn(batch, vocab, seed=seed) * 4, targets.cuda())


@torch.compile
def ref_kernel(data: input_t) -> output_t:
    return F.cross_entropy(data.logits, data.targets, reduction="none")


def check_implementation(data, output):
    assert ((output - ref_kernel(data)).abs() < 1e-3).all(), "too far"
    return ""
"""
OTHERS = {
    "cross_entropy_py": Whole(
        ('"batch": 8, "vocab": 33, "seed": 42', '"batch": 16, "vocab": 128, "seed": 1'),
        _ENTROPY,
        _kernel("x, at = data.logits, data.targets[:, None]",
                "return torch.logsumexp(x, 1) - x.gather(1, at)[:, 0]"),
        (("(x, 1)", "(x[:, 1:], 1)"), ("[:, 0]", "[1:, 0]"), ("torch.logsumexp", "torch.amax"),
         ("data.targets[:", "data.targets.flip(0)[:")),
        None,
    ),
    "qr_py": Whole(
        ('"batch": 2, "n": 16, "cond": 2, "seed": 43214',
         '"batch": 2, "n": 32, "cond": 2, "seed": 1',
         '"batch": 2, "n": 16, "cond": 4, "case": "upper"'),
        _QR,
        _kernel("q, r = torch.linalg.qr(data)",
                "sign = torch.where(r.diagonal(0, 1, 2) < 0, -1, 1)",
                "return q * sign[:, None], r * sign[..., None]"),
        (("r * sign", "r.mT * sign"), ("q * sign", "2 * q * sign"),
         ("q * sign[:, None], r * sign[..., None]", "q * sign[:, None]"),
         ("torch.linalg.qr(data)", "torch.linalg.qr(data.mT)")),
        None,
    ),
}  # fmt: skip
TASKS = {**PMPP, **AMD, **BIOML, **NVIDIA, **HELION, **OTHERS}
REFUSED = {
    "all2all": ("multi_gpu: true", "", "GPU-only code: it needs several devices"),
    "gemm-rs": ("num_gpus: 8", "", "GPU-only code: it needs several devices"),
    "identity_cuda": ("lang: cu", "", "GPU-only code: its language is 'cu'"),
    "mxfp4-mm": ("lang: py", "from aiter import QuantType\n", "No module named 'aiter'"),
}
"""The needs that no CPU has: a line of the task, of its reference, and the reason that is given."""


def write_refused(group: Path) -> None:
    """Write the tasks that are left out, each below the folder of its group."""
    for name, (line, head, _) in REFUSED.items():
        TASKS["vectoradd_py_v2"].write(group, name, most=0)
        task, reference = group / name / "task.yml", group / name / "reference.py"
        task.write_text(task.read_text().replace('lang: "py"', line))
        reference.write_text(head + reference.read_text())
