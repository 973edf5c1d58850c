"""Problems of other collections, written after the formats' public descriptions; nothing copied.

Each has a right candidate and four wrong ones: an expression in place of the right result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

UTILS = """\
import torch


def match_reference(data, output, reference, rtol=1e-05, atol=1e-08):
    expected = reference(data)
    close = torch.allclose(output.double(), expected.double(), rtol=rtol, atol=atol)
    return close, "" if close else "mismatch"


def make_match_reference(reference, **kwargs):
    def check(data, output):
        return match_reference(data, output, reference, **kwargs)

    return check
"""
TASK = """\
files:
  - {{"name": "submission.py", "source": "@SUBMISSION@"}}
  - {{"name": "task.py", "source": "task.py"}}
  - {{"name": "utils.py", "source": "../utils.py"}}
  - {{"name": "reference.py", "source": "reference.py"}}
lang: "py"
description: |
  {name}: written for a test.
tests:
{tests}
benchmarks: []
ranking_by: "geom"
"""
REFERENCE = """\
import torch
from task import input_t, output_t
from utils import make_match_reference


def generate_input({parameters}, seed: int) -> input_t:
    gen = torch.Generator(device="cuda")
    gen.manual_seed(seed)
{inputs}


def ref_kernel(data: input_t) -> output_t:
    {names} = data
    return {right}


{check}
"""
SUBMISSION = """\
import torch
from task import input_t, output_t


def custom_kernel(data: input_t) -> output_t:
    {names} = data
    return {result}
"""


@dataclass(frozen=True)
class GpuMode:
    """A problem of GPU MODE: how its data are made, the result, and what candidates return."""

    parameters: str
    tests: tuple[str, ...]
    inputs: str
    names: str
    right: str
    other: str
    wrong: tuple[str, str, str, str]
    check: str = "check_implementation = make_match_reference(ref_kernel, rtol=1e-3, atol=1e-3)"

    def write(self, group: Path, name: str, *, most: int = 4) -> None:
        """Write its files below the folder of its group."""
        folder = group / name
        folder.mkdir(parents=True)
        (group / "utils.py").write_text(UTILS)
        (folder / "task.py").write_text("input_t = tuple\noutput_t = object\n")
        tests = "\n".join(f"  - {{{one}}}" for one in self.tests)
        (folder / "task.yml").write_text(TASK.format(name=name, tests=tests))
        (folder / "reference.py").write_text(
            REFERENCE.format(
                parameters=self.parameters,
                inputs="\n".join(f"    {line}" for line in self.inputs.splitlines()),
                names=self.names,
                right=self.right,
                check=self.check,
            )
        )
        for at, result in enumerate((self.other, *self.wrong[:most])):
            path = folder / ("right.py" if at == 0 else f"wrong{at}.py")
            path.write_text(SUBMISSION.format(names=self.names, result=result))


_X = 'x = torch.randn({shape}, device="cuda", dtype=torch.float32, generator=gen)\n'
CHECK_SORTED = """\
def check_implementation(data, output):
    expected = ref_kernel(data)
    if output.shape != expected.shape:
        return False, "another shape"
    return bool((output == expected).all()), "not sorted"
"""

GPU_MODE = {
    "prefix": GpuMode(
        "size: int",
        ('"size": 33, "seed": 1', '"size": 256, "seed": 2'),
        _X.format(shape="size") + "return (x,)",
        "(x,)",
        "torch.cumsum(x, 0)",
        "torch.stack([x[: i + 1].sum() for i in range(x.shape[0])])",
        ("torch.cumsum(x, 0) - x", "x.flip(0).cumsum(0).flip(0)", "torch.cumsum(x.half(), 0)",
         "torch.cat([torch.cumsum(x, 0)[:-1], x[-1:]])"),
    ),
    "matmul": GpuMode(
        "m: int, n: int, k: int",
        ('"m": 64, "n": 48, "k": 32, "seed": 1', '"m": 16, "n": 16, "k": 2048, "seed": 2'),
        _X.format(shape="m, k") + _X.format(shape="k, n").replace("x =", "y =") + "return x, y",
        "x, y",
        "x @ y",
        "(y.T @ x.T).T",
        ("(x @ y).abs()", "x[:, :-1] @ y[:-1]", "x @ y + x.mean()", "x @ y.flip(0)"),
    ),
    "gray": GpuMode(
        "size: int",
        ('"size": 32, "seed": 1', '"size": 64, "seed": 2'),
        _X.format(shape="size, size, 3") + "return x, torch.empty(size, size, device='cuda')",
        "x, out",
        "out.copy_(0.2989 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])",
        "x @ torch.tensor([0.2989, 0.587, 0.114], device=x.device)",
        ("x.mean(-1)", "out", "0.2989 * x[..., 2] + 0.587 * x[..., 1] + 0.114 * x[..., 0]",
         "(0.2989 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2]).T"),
    ),
    "softmax": GpuMode(
        "rows: int, cols: int",
        ('"rows": 4, "cols": 33, "seed": 1', '"rows": 9, "cols": 16, "seed": 3'),
        _X.format(shape="rows, cols") + "return (x * 40,)",
        "(x,)",
        "torch.softmax(x, -1)",
        "(x - x.max(-1, keepdim=True).values).exp() / "
        "(x - x.max(-1, keepdim=True).values).exp().sum(-1, keepdim=True)",
        ("x.exp() / x.exp().sum(-1, keepdim=True)", "torch.softmax(x, 0)",
         "torch.log_softmax(x, -1)", "torch.softmax(x / 2, -1)"),
    ),
    "sort": GpuMode(
        "size: int",
        ('"size": 17, "seed": 1', '"size": 128, "seed": 2'),
        _X.format(shape="size") + "return (x,)",
        "(x,)",
        "torch.sort(x).values",
        "x[torch.argsort(x)]",
        ("x", "torch.sort(x, descending=True).values", "torch.sort(x.abs()).values",
         "torch.sort(x).values[:-1]"),
        CHECK_SORTED,
    ),
    "config": GpuMode(
        "batch: int, dim: int",
        ('"batch": 8, "dim": 16, "seed": 1', '"batch": 3, "dim": 64, "seed": 2'),
        _X.format(shape="batch, dim")
        + "w = {'weight': torch.rand(dim, device='cuda', generator=gen), 'eps': 1e-5}\n"
        + "return x, w, {'dim': dim}",
        "x, w, config",
        "x / (x.square().mean(-1, keepdim=True) + w['eps']).sqrt() * w['weight']",
        "x * torch.rsqrt((x * x).sum(-1, keepdim=True) / config['dim'] + w['eps']) * w['weight']",
        ("x * w['weight']", "x / (x.square().mean(-1, keepdim=True) + w['eps']).sqrt()",
         "x / (x.square().mean() + w['eps']).sqrt() * w['weight']",
         "x / x.std(-1, keepdim=True) * w['weight']"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Trace:
    """A definition of FlashInfer-Bench, and what its solutions return."""

    axes: dict[str, int | None]
    inputs: dict[str, tuple[tuple[str, ...] | None, str]]
    output: tuple[tuple[str, ...], str]
    right: str
    other: str
    wrong: tuple[str, str, str, str]
    constraints: tuple[str, ...] = ()

    def write(self, root: Path, name: str, *, most: int = 4) -> None:
        """Write its definition and solutions below a folder."""
        (root / "definitions").mkdir(parents=True, exist_ok=True)
        (root / "solutions").mkdir(exist_ok=True)
        axes = {
            key: {"type": "var"} if size is None else {"type": "const", "value": size}
            for key, size in self.axes.items()
        }
        tensors = {
            key: {"shape": None if shape is None else list(shape), "dtype": dtype}
            for key, (shape, dtype) in self.inputs.items()
        }
        head = f"import torch\n\n\ndef run({', '.join(self.inputs)}{{more}}):\n    {{body}}\n"
        definition = {
            "name": name,
            "op_type": "test",
            "axes": axes,
            "constraints": list(self.constraints),
            "inputs": tensors,
            "outputs": {"out": {"shape": list(self.output[0]), "dtype": self.output[1]}},
            "reference": head.format(more="", body=f"return {self.right}"),
        }
        (root / "definitions" / f"{name}.json").write_text(json.dumps(definition))
        for at, result in enumerate((self.other, *self.wrong[:most])):
            passing = at % 2 == 0
            body = f"out.copy_({result})" if passing else f"return {result}"
            solution = {
                "name": f"{name}_" + ("right" if at == 0 else f"wrong{at}"),
                "definition": name,
                "spec": {
                    "language": "python",
                    "entry_point": "main.py::run",
                    "destination_passing_style": passing,
                },
                "sources": [
                    {
                        "path": "main.py",
                        "content": head.format(more=", out" if passing else "", body=body),
                    }
                ],
            }
            (root / "solutions" / f"{name}_{at}.json").write_text(json.dumps(solution))


_ROWS = (("M", "N"), "float32")
TRACES = {
    "gemm": Trace(
        {"M": None, "N": 24, "K": 16},
        {"a": (("M", "K"), "float16"), "b": (("N", "K"), "float16")},
        (("M", "N"), "float16"),
        "torch.matmul(a, b.T)",
        "(b @ a.T).T",
        ("(a @ b.T).float()", "a @ b.T + 1", "a[:, :-1] @ b[:, :-1].T", "(a @ b.T).flip(1)"),
    ),
    "rmsnorm": Trace(
        {"M": None, "N": 32},
        {"x": _ROWS, "w": (("N",), "float32"), "eps": (None, "float32")},
        _ROWS,
        "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w",
        "x / ((x * x).sum(-1, keepdim=True) / x.shape[-1] + eps).sqrt() * w",
        ("x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * w", "x * w",
         "x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps) * w",
         "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)"),
    ),
    "gather": Trace(
        {"P": None, "T": None, "D": 8},
        {"pages": (("P", "D"), "float32"), "index": (("T",), "int32")},
        (("T", "D"), "float32"),
        "pages[index.long()]",
        "torch.index_select(pages, 0, index)",
        ("pages[(index.long() - 1).clamp(min=0)]", "pages[index.long() % 2]",
         "pages[index.long().flip(0)]", "pages[index.long()] * 1.001"),
    ),
    "ragged": Trace(
        {"B": None, "E": None, "T": None},
        {"x": (("T",), "float32"), "indptr": (("E",), "int32")},
        (("B",), "float32"),
        "torch.stack([x[a:b].sum() for a, b in zip(indptr[:-1], indptr[1:])])",
        "torch.zeros(len(indptr) - 1).index_add_(0, torch.repeat_interleave("
        "torch.arange(len(indptr) - 1), (indptr[1:] - indptr[:-1]).long()), x)",
        ("torch.stack([x[a:b].mean() for a, b in zip(indptr[:-1], indptr[1:])])",
         "torch.stack([x[a:b].sum() for a, b in zip(indptr[:-1], indptr[1:] - 1)])",
         "torch.stack([x[a:].sum() for a in indptr[:-1]])",
         "x.sum().expand(len(indptr) - 1)"),
        ("E == B + 1", "T == indptr[-1].item()"),
    ),
    "silu": Trace(
        {"M": None, "N": 16, "H": 32},
        {"x": (("M", "H"), "bfloat16")},
        (("M", "N"), "bfloat16"),
        "torch.nn.functional.silu(x[:, :16].float()).to(x.dtype) * x[:, 16:]",
        "(x[:, :16] * torch.sigmoid(x[:, :16])) * x[:, 16:]",
        ("torch.relu(x[:, :16]) * x[:, 16:]", "torch.nn.functional.silu(x[:, 16:]) * x[:, :16]",
         "torch.sigmoid(x[:, :16]) * x[:, 16:]", "torch.nn.functional.silu(x[:, :16])"),
        ("H == 2 * N",),
    ),
    "masked": Trace(
        {"M": None, "N": None},
        {"x": _ROWS, "mask": (("M", "N"), "bool"), "scale": (None, "float32")},
        _ROWS,
        "torch.where(mask, x * scale, torch.zeros_like(x))",
        "x * mask.to(x.dtype) * scale",
        ("torch.where(mask, x, torch.zeros_like(x))", "torch.where(mask, x * scale, x)",
         "torch.where(~mask, x * scale, torch.zeros_like(x))", "x * scale"),
    ),
}  # fmt: skip
