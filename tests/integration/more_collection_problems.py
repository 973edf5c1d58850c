"""More problems of GPU MODE and of FlashInfer-Bench, written like those beside them."""

from __future__ import annotations

from collection_problems import GPU_MODE, TRACES, GpuMode, Trace
from gpumode_tasks import TASKS

_DRAWN = '{name} = torch.{draw}({shape}, device="cuda", generator=gen)\n'
_ROWS = "rows: int, cols: int"
_TESTS = ('"rows": 4, "cols": 33, "seed": 1', '"rows": 9, "cols": 16, "seed": 3')
_SIZES = ('"size": 33, "seed": 1', '"size": 256, "seed": 2')


def _drawn(name: str, shape: str, draw: str = "randn") -> str:
    return _DRAWN.format(name=name, shape=shape, draw=draw)


def _rows(right: str, other: str, wrong: tuple[str, str, str, str]) -> GpuMode:
    made = _drawn("x", "rows, cols") + "return (x,)"
    return GpuMode(_ROWS, _TESTS, made, "(x,)", right, other, wrong)


def _vectors(right: str, other: str, wrong: tuple[str, str, str, str]) -> GpuMode:
    made = _drawn("x", "size") + _drawn("y", "size", "rand") + "return x, y"
    return GpuMode("size: int", _SIZES, made, "x, y", right, other, wrong)


MORE_GPU_MODE = {
    "add": _vectors("x + y", "torch.add(y, x)", ("x - y", "x", "x + y.abs() * 1.1",
        "x.bfloat16() + y")),
    "dot": _vectors(
        "(x * y).sum()", "torch.dot(x, y)",
        ("(x * y).mean()", "torch.dot(x[1:], y[1:])", "torch.dot(x, y).abs() + 1",
         "x.sum() * y.sum()"),
    ),
    "saxpy": _vectors(
        "2.5 * x + y", "torch.add(y, x, alpha=2.5)",
        ("2.5 * (x + y)", "x + 2.5 * y", "2.5 * x", "2.5 * x + y + 0.01"),
    ),
    "reverse": _vectors(
        "x.flip(0) * y", "y * x[torch.arange(x.shape[0] - 1, -1, -1)]",
        ("x * y", "x * y.flip(0)", "x.roll(1) * y", "x.flip(0)"),
    ),
    "relu": _rows("torch.relu(x)", "x.clamp(min=0)", ("x", "x.abs()", "x.clamp(0, 1)",
        "-torch.relu(x)")),
    "row_sum": _rows(
        "x.sum(1)", "torch.einsum('ij->i', x)",
        ("x.sum(0)[:1].expand(x.shape[0])", "x[:, 1:].sum(1)", "x.mean(1)", "x.abs().sum(1)"),
    ),
    "transpose": _rows(
        "x.T.contiguous()", "torch.einsum('ij->ji', x).clone()",
        ("x.reshape(x.shape[1], x.shape[0])", "x.T.flip(0)", "x.T * 1.01", "x.T.abs()"),
    ),
    "log_sum_exp": _rows(
        "torch.logsumexp(x, 1)", "torch.log(torch.exp(x).sum(1))",
        ("x.amax(1)", "torch.log(torch.exp(x).sum())", "torch.logsumexp(x[:, 1:], 1)",
         "torch.logsumexp(x, 1) + 0.1"),
    ),
    "max_index": _rows(
        "x.argmax(1)", "x.max(1).indices",
        ("x.argmin(1)", "x.abs().argmax(1)", "x[:, 1:].argmax(1)", "x.argmax(1) + 1"),
    ),
    "scan_rows": _rows(
        "torch.cumsum(x, 1)", "x @ torch.ones(x.shape[1], x.shape[1], device=x.device).triu()",
        ("torch.cumsum(x, 0)", "torch.cumsum(x, 1) - x", "x", "x.flip(1).cumsum(1).flip(1)"),
    ),
    "silu": _rows(
        "torch.nn.functional.silu(x)", "x / (1 + torch.exp(-x))",
        ("torch.relu(x)", "torch.sigmoid(x)", "x * torch.sigmoid(1.702 * x)", "x"),
    ),
    "gemv": GpuMode(
        _ROWS, _TESTS,
        _drawn("a", "rows, cols") + _drawn("v", "cols") + "return a, v",
        "a, v", "a @ v", "(a * v).sum(1)",
        ("(a * v).sum(1).abs() + 0.1", "a[:, 1:] @ v[1:]", "a @ v.flip(0)", "a.abs() @ v"),
    ),
    "batched": GpuMode(
        "b: int, m: int, k: int",
        ('"b": 2, "m": 8, "k": 16, "seed": 1', '"b": 3, "m": 5, "k": 32, "seed": 2'),
        _drawn("x", "b, m, k") + _drawn("y", "b, k, m") + "return x, y",
        "x, y", "torch.bmm(x, y)", "torch.einsum('bmk,bkn->bmn', x, y)",
        ("torch.bmm(x, y).mT", "torch.bmm(x, y.flip(1))", "torch.bmm(x, y) + 0.1",
         "torch.bmm(x.flip(0), y) * 2"),
    ),
    "histogram": GpuMode(
        "size: int", _SIZES,
        "x = torch.randint(0, 16, (size,), device='cuda', generator=gen)\nreturn (x,)",
        "(x,)", "torch.bincount(x, minlength=16)",
        "(x[None] == torch.arange(16)[:, None]).sum(1)",
        ("torch.bincount(x, minlength=16) + 1", "(x[None] <= torch.arange(16)[:, None]).sum(1)",
         "torch.bincount(x[1:], minlength=16)", "torch.bincount(15 - x, minlength=16)"),
    ),
}  # fmt: skip
GPU_MODE_ALL = {**GPU_MODE, **MORE_GPU_MODE, **TASKS}

_MN = (("M", "N"), "float32")
_AXES: dict[str, int | None] = {"M": None, "N": 24}
_ONE: dict[str, tuple[tuple[str, ...] | None, str]] = {"x": _MN}
_PER_ROW = (("M",), "float32")


def _row_trace(
    right: str,
    other: str,
    wrong: tuple[str, str, str, str],
    output: tuple[tuple[str, ...], str] = _MN,
) -> Trace:
    return Trace(_AXES, _ONE, output, right, other, wrong)


MORE_TRACES = {
    "softmax": _row_trace(
        "torch.softmax(x, -1)", "torch.exp(x - torch.logsumexp(x, -1, keepdim=True))",
        ("torch.softmax(x / 2, -1)", "torch.softmax(x[:, 1:], -1).mean() + 0 * x",
         "torch.log_softmax(x, -1)",
         "torch.sigmoid(x)"),
    ),
    "bias": Trace(
        _AXES, {"x": _MN, "b": (("N",), "float32")}, _MN, "x + b", "torch.add(x, b[None])",
        ("x", "x - b", "x + b.flip(0)", "x * b"),
    ),
    "layernorm": Trace(
        _AXES, {"x": _MN, "w": (("N",), "float32"), "b": (("N",), "float32")}, _MN,
        "torch.nn.functional.layer_norm(x, x.shape[-1:], w, b)",
        "(x - x.mean(-1, keepdim=True)) * w"
        " * torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + 1e-5) + b",
        ("torch.nn.functional.layer_norm(x, x.shape[-1:], w)", "x * w + b",
         "torch.nn.functional.layer_norm(x, x.shape[-1:], None, b)",
         "torch.nn.functional.layer_norm(x, x.shape[-1:], w, b, 1.0)"),
    ),
    "gemv": Trace(
        _AXES, {"a": _MN, "v": (("N",), "float32")}, _PER_ROW, "a @ v", "(a * v).sum(-1)",
        ("a[:, 1:] @ v[1:]", "a @ v.flip(0)", "a.abs() @ v", "a @ v + 0.5"),
    ),
    "swiglu": Trace(
        _AXES, {"g": _MN, "u": _MN}, _MN, "torch.nn.functional.silu(g) * u",
            "u * g * torch.sigmoid(g)",
        ("torch.nn.functional.silu(u) * g", "torch.relu(g) * u", "torch.sigmoid(g) * u", "g * u"),
    ),
    "attention": Trace(
        {"B": None, "S": None, "D": 16},
        dict.fromkeys("qkv", (("B", "S", "D"), "float32")),
        (("B", "S", "D"), "float32"),
        "torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v",
        "torch.nn.functional.scaled_dot_product_attention(q, k, v)",
        ("torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=1.0)", "v",
         "torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
         "torch.nn.functional.scaled_dot_product_attention(k, q, v)"),
    ),
    "rope": Trace(
        {"M": None, "N": 16}, {"x": (("M", "N"), "float32"), "a": (("M",), "float32")}, (("M",
            "N"), "float32"),
        "torch.cat([x[:, :8] * torch.cos(a)[:, None] - x[:, 8:] * torch.sin(a)[:, None], "
        "x[:, 8:] * torch.cos(a)[:, None] + x[:, :8] * torch.sin(a)[:, None]], -1)",
        "x * torch.cos(a)[:, None] + torch.cat([-x[:, 8:], x[:, :8]], -1) * torch.sin(a)[:, None]",
        ("x * torch.cos(a)[:, None]",
         "x * torch.cos(a)[:, None] + torch.cat([x[:, 8:], x[:, :8]], -1) * torch.sin(a)[:, None]",
         "x * torch.cos(a)[:, None] + torch.cat([x[:, 8:], -x[:, :8]], -1) * torch.sin(a)[:, None]",
         "x * torch.sin(a)[:, None] - torch.cat([x[:, 8:], x[:, :8]], -1) * torch.cos(a)[:, None]"),
    ),
}  # fmt: skip
TRACES_ALL = {**TRACES, **MORE_TRACES}
