"""Problems in the form of KernelBench, each with a right candidate and four wrong ones.

Written after the format's public description; an expression stands for what `forward` returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = """\
import torch
import torch.nn as nn
import torch.nn.functional as F


class {name}(nn.Module):
    def __init__(self{init}):
        super().__init__()
{made}

    def forward(self, {inputs}):
        return {result}


{constants}


def get_inputs():
    return [{given}]


def get_init_inputs():
    return [{given_init}]
"""


@dataclass(frozen=True)
class Bench:
    """A problem of KernelBench, and what candidates return.

    Attributes
    ----------
    right, other : str
        What `Model` and the right candidate return.
    wrong : tuple of str
    constants : mapping of str to int
    inputs : mapping of str to str
        How each is made.
    init : str
        Parameters of the constructor; the constants of their names are given.
    made : str
        Statements of the constructor.
    """

    right: str
    other: str
    wrong: tuple[str, str, str, str]
    constants: dict[str, int]
    inputs: dict[str, str]
    init: str = ""
    made: str = "pass"

    def text(self, name: str, result: str) -> str:
        """Return the text of a file with a model."""
        return FILE.format(
            name=name,
            init=f", {self.init}" if self.init else "",
            made="\n".join(f"        {line}" for line in self.made.splitlines()),
            inputs=", ".join(self.inputs),
            result=result,
            constants="\n".join(f"{key} = {value}" for key, value in self.constants.items()),
            given=", ".join(self.inputs.values()),
            given_init=self.init,
        )

    def write(self, folder: Path, name: str, *, most: int = 4) -> None:
        """Write the problem and its candidates."""
        (folder / "candidates").mkdir(parents=True)
        (folder / f"{name}.py").write_text(self.text("Model", self.right))
        for at, result in enumerate((self.other, *self.wrong[:most])):
            candidate = "right" if at == 0 else f"wrong{at}"
            path = folder / "candidates" / f"{candidate}.py"
            path.write_text(self.text("ModelNew", result))


_ROWS = {"batch_size": 512, "dim": 4096}
_X = {"x": "torch.rand(batch_size, dim)"}
_SIGNED = {"x": "torch.randn(batch_size, dim)"}
_CONV = {"batch_size": 8, "in_channels": 16, "out_channels": 32, "size": 64}
_IMAGE = {"x": "torch.rand(batch_size, in_channels, size, size)"}
_CONV_INIT = "in_channels, out_channels"
_PAIR = {"a": "torch.rand(M, K)", "b": "torch.rand(K, N)"}
_SIZES = {"M": 1024, "K": 2048, "N": 512}


def _rows(
    right: str, other: str, wrong: tuple[str, str, str, str], inputs: dict[str, str] = _SIGNED
) -> Bench:
    return Bench(right, other, wrong, _ROWS, inputs)


KERNEL_BENCH = {
    "1_ReLU": _rows("torch.relu(x)", "x.clamp(min=0)",
                    ("x", "x.abs()", "F.leaky_relu(x, 0.1)", "x.clamp(0, 1)")),
    "2_Softmax": _rows(
        "torch.softmax(x, dim=1)", "torch.exp(x - torch.logsumexp(x, 1, keepdim=True))",
        ("torch.softmax(x, dim=0)", "torch.log_softmax(x, 1)", "torch.softmax(2 * x, 1)",
         "torch.exp(x) / 100"),
    ),
    "3_GELU": _rows(
        "F.gelu(x)", "0.5 * x * (1 + torch.erf(x * 0.7071067811865476))",
        ("torch.relu(x)", "x * torch.sigmoid(1.702 * x)", "F.gelu(x) + 1e-2", "F.silu(x)"),
    ),
    "4_Row_Mean": _rows(
        "x.mean(1)", "x.sum(1) / x.shape[1]",
        ("x.mean(0)", "x.sum(1)", "x[:, 1:].sum(1) / x.shape[1]", "x.mean(1, keepdim=True)"),
    ),
    "5_L2_Norm": _rows(
        "x / torch.norm(x, p=2, dim=1, keepdim=True)",
        "x * (x * x).sum(1, keepdim=True).rsqrt()",
        ("x / torch.norm(x, p=1, dim=1, keepdim=True)", "x / torch.norm(x)",
         "x / (x * x).sum(1, keepdim=True)", "x / torch.norm(x, dim=0, keepdim=True)"),
    ),
    "6_Cumsum": _rows(
        "torch.cumsum(x, 1)", "x.sum(1, keepdim=True) - x.flip(1).cumsum(1).flip(1) + x",
        ("torch.cumsum(x, 0)", "torch.cumsum(x, 1) - x", "x.flip(1).cumsum(1).flip(1)", "x"),
        _X,
    ),
    "7_Max": _rows(
        "torch.max(x, 1).values", "x.amax(1)",
        ("x[:, 1:].amax(1)", "x.abs().amax(1)", "x.amax(0)", "x.amin(1)"),
    ),
    "8_Argmax": _rows(
        "torch.argmax(x, 1)", "x.max(1).indices",
        ("torch.argmin(x, 1)", "torch.argmax(x, 0)", "torch.argmax(x.abs(), 1)",
         "torch.argmax(x, 1) + 1"),
    ),
    "9_LogSoftmax": _rows(
        "F.log_softmax(x, 1)", "x - torch.logsumexp(x, 1, keepdim=True)",
        ("F.softmax(x, 1)", "F.log_softmax(x, 0)", "x - x.max(1, keepdim=True).values",
         "x - torch.logsumexp(x, 1, keepdim=True) + 1e-2"),
    ),
    "10_Hardtanh": _rows(
        "F.hardtanh(x)", "x.clamp(-1, 1)",
        ("torch.tanh(x)", "x.clamp(0, 1)", "x.clamp(-1, 2)", "x.clamp(min=-1)"),
    ),
    "11_Matmul": Bench(
        "torch.matmul(a, b)", "(b.T @ a.T).T",
        ("a[:, 1:] @ b[1:]", "a @ b + 1", "(a @ b).flip(0)",
         "a.bfloat16().float() @ b.bfloat16().float() * 1.05"),
        _SIZES, _PAIR,
    ),
    "12_Matmul_Scale": Bench(
        "a @ b * 2 - 1",
        "torch.addmm(-torch.ones(1, device=a.device, dtype=a.dtype), a, b, alpha=2)",
        ("a @ b * 2", "a @ b - 1", "a @ (b * 2 - 1)", "(a @ b).abs() * 2 + 1"),
        _SIZES, _PAIR,
    ),
    "13_Outer": Bench(
        "a[:, None] * b", "torch.outer(a, b)",
        ("a[:, None] + b", "torch.outer(a, b.flip(0))", "torch.outer(a, b) + 0.1",
         "torch.outer(a, b * b)"),
        {"M": 1024, "N": 512}, {"a": "torch.rand(M)", "b": "torch.rand(N)"},
    ),
    "14_Linear": Bench(
        "self.linear(x)", "x @ self.linear.weight.T + self.linear.bias",
        ("x @ self.linear.weight.T", "self.linear(x).relu()", "self.linear(x) * 1.1",
         "self.linear(x - 0.1)"),
        {"batch_size": 128, "in_features": 1024, "out_features": 512},
        {"x": "torch.rand(batch_size, in_features)"},
        "in_features, out_features", "self.linear = nn.Linear(in_features, out_features)",
    ),
    "15_LayerNorm": Bench(
        "self.norm(x)",
        "(x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()",
        ("x", "x - x.mean(-1, keepdim=True)",
         "x / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()",
         "self.norm(x) + 0.1"),
        _ROWS, _SIGNED, "dim", "self.norm = nn.LayerNorm(dim)",
    ),
    "16_Embedding": Bench(
        "self.table(index)", "self.table.weight[index]",
        ("self.table(index.flip(0))", "self.table(index) * 1.1",
         "self.table((index - 1).clamp(min=0))",
         "self.table(index) + 0.1"),
        {"count": 256, "vocab": 1000, "dim": 128}, {"index": "torch.randint(0, vocab, (count,))"},
        "vocab, dim", "self.table = nn.Embedding(vocab, dim)",
    ),
    "17_Conv2d": Bench(
        "self.conv(x)", "F.conv2d(x, self.conv.weight, self.conv.bias, padding=1)",
        ("F.conv2d(x, self.conv.weight, None, padding=1)", "torch.relu(self.conv(x))",
         "self.conv(x.flip(2))", "self.conv(x) * 1.1"),
        _CONV, _IMAGE, _CONV_INIT,
        "self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)",
    ),
    "18_Conv_ReLU_Pool": Bench(
        "F.max_pool2d(torch.relu(self.conv(x)), 2)", "torch.relu(F.max_pool2d(self.conv(x), 2))",
        ("F.avg_pool2d(torch.relu(self.conv(x)), 2)", "F.max_pool2d(self.conv(x), 2)",
         "torch.relu(self.conv(x))[:, :, ::2, ::2]",
         "F.max_pool2d(torch.relu(self.conv(x)), 2) + 0.1"),
        _CONV, _IMAGE, _CONV_INIT,
        "self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)",
    ),
    "19_Attention": Bench(
        "torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, -1) @ v",
        "F.scaled_dot_product_attention(q, k, v)",
        ("F.scaled_dot_product_attention(q, k, v, scale=1.0)", "v",
         "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
         "F.scaled_dot_product_attention(k, q, v)"),
        {"batch_size": 4, "seq_len": 256, "dim": 64},
        dict.fromkeys("qkv", "torch.randn(batch_size, seq_len, dim)"),
    ),
    "20_MSE": Bench(
        "torch.mean((predictions - targets) ** 2)", "F.mse_loss(predictions, targets)",
        ("F.l1_loss(predictions, targets)", "((predictions - targets) ** 2).sum()",
         "F.mse_loss(predictions, targets).sqrt()",
         "F.mse_loss(predictions[1:], targets[1:], reduction='sum')"),
        _ROWS, {"predictions": "torch.randn(batch_size, dim)",
            "targets": "torch.randn(batch_size, dim)"},
    ),
}  # fmt: skip
