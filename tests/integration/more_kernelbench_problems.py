"""Twenty problems more in the form of KernelBench's first level: the kinds that the others lack."""

from __future__ import annotations

from kernelbench_problems import KERNEL_BENCH, Bench

_IMAGE = {"batch_size": 8, "features": 16, "size": 64}
_X4 = {"x": "torch.rand(batch_size, features, size, size)"}
_SIGNAL = {"batch_size": 8, "features": 16, "length": 512}
_X3 = {"x": "torch.rand(batch_size, features, length)"}
_ROWS = {"batch_size": 512, "dim": 4096}
_SQUARE = {"N": 1024}
_CLASSES = {"batch_size": 4096, "num_classes": 10}


def _norm(made: str, other: str, wrong: tuple[str, str, str, str]) -> Bench:
    return Bench("self.norm(x)", other, wrong, _IMAGE, _X4, "features", made)


def _square(right: str, other: str, wrong: tuple[str, str, str, str], a: str, b: str) -> Bench:
    return Bench(right, other, wrong, _SQUARE, {"a": a, "b": b})


_RAND = "torch.rand(N, N)"
_MOMENTS = (
    "(x - x.mean({d}, keepdim=True)) / (x.var({d}, unbiased=False, keepdim=True) + {e}).sqrt()"
)
_BATCH, _EACH = (_MOMENTS.format(d=d, e="1e-5") for d in ("(0, 2, 3)", "(2, 3)"))
_GROUPS = (
    "((x.unflatten(1, (4, -1)) - x.unflatten(1, (4, -1)).mean((2, 3, 4), keepdim=True))"
    " / (x.unflatten(1, (4, -1)).var((2, 3, 4), unbiased=False, keepdim=True) + 1e-5).sqrt()"
    ").flatten(1, 2)"
)
MORE_KERNEL_BENCH = {
    "21_BatchNorm": _norm(
        "self.norm = nn.BatchNorm2d(features)", _BATCH,
        (_EACH, "x - x.mean((0, 2, 3), keepdim=True)", _BATCH + " + 0.1", "x"),
    ),
    "22_InstanceNorm": _norm(
        "self.norm = nn.InstanceNorm2d(features)", _EACH,
        (_BATCH, "x - x.mean((2, 3), keepdim=True)", _EACH + " * 1.1", "F.relu(" + _EACH + ")"),
    ),
    "23_GroupNorm": _norm(
        "self.norm = nn.GroupNorm(4, features)", _GROUPS,
        (_EACH, _BATCH, _GROUPS + " + 0.1", "F.group_norm(x, 2)"),
    ),
    "24_MaxPool1d": Bench(
        "F.max_pool1d(x, 4, 2, 1)", "F.max_pool2d(x[:, :, None], (1, 4), (1, 2), (0, 1))[:, :, 0]",
        ("F.max_pool1d(x, 4, 2, 0)", "F.avg_pool1d(x, 4, 2, 1)", "F.max_pool1d(x, 3, 2, 1)",
         "F.max_pool1d(x, 4, 2, 1) + 0.1"),
        _SIGNAL, _X3,
    ),
    "25_AvgPool3d": Bench(
        "self.pool(x)", "F.avg_pool3d(x, 3, 2, 1)",
        ("F.avg_pool3d(x, 3, 2, 1, count_include_pad=False)", "F.max_pool3d(x, 3, 2, 1)",
         "F.avg_pool3d(x, 3, 2, 0)", "F.avg_pool3d(x, 3, 2, 1) * 1.1"),
        {"batch_size": 4, "channels": 8, "size": 32},
        {"x": "torch.rand(batch_size, channels, size, size, size)"},
        made="self.pool = nn.AvgPool3d(kernel_size=3, stride=2, padding=1)",
    ),
    "26_ConvTranspose": Bench(
        "self.conv(x)", "F.conv_transpose1d(x, self.conv.weight, stride=2)",
        ("F.conv_transpose1d(x, self.conv.weight.flip(2), stride=2)", "self.conv(x).relu()",
         "F.conv_transpose1d(x, self.conv.weight, stride=1)", "self.conv(x) * 1.1"),
        _SIGNAL, _X3, "features",
        "self.conv = nn.ConvTranspose1d(features, 8, 3, stride=2, bias=False)",
    ),
    "27_Depthwise": Bench(
        "self.conv(x)", "F.conv2d(x, self.conv.weight, None, 1, 1, 2, x.shape[1])",
        ("F.conv2d(x, self.conv.weight, None, 1, 0, 2, x.shape[1])", "self.conv(x).abs() + 0.1",
         "F.conv2d(x, self.conv.weight, None, 1, 1, 1, x.shape[1])", "self.conv(x.flip(3))"),
        _IMAGE, _X4, "features",
        "self.conv = nn.Conv2d(features, features, 3, 1, 1, 2, features, bias=False)",
    ),
    "28_MaskedCumsum": Bench(
        "torch.cumsum(x * mask, 1)", "torch.cumsum(torch.where(mask, x, 0), 1)",
        ("torch.cumsum(x, 1) * mask", "torch.cumsum(x, 1)", "torch.cumsum(x * ~mask, 1)",
         "torch.cumsum(x * mask, 0)"),
        _ROWS, {"x": "torch.rand(batch_size, dim)",
                "mask": "torch.randint(0, 2, (batch_size, dim)).bool()"},
    ),
    "29_ExclusiveCumsum": Bench(
        "torch.cat([torch.zeros_like(x[:, :1]), x], 1)[:, :-1].cumsum(1)", "x.cumsum(1) - x",
        ("x.cumsum(1)", "x.cumsum(1).roll(1, 1)", "x.flip(1).cumsum(1).flip(1) - x", "x"),
        _ROWS, {"x": "torch.rand(batch_size, dim)"},
    ),
    "30_Cumprod": Bench(
        "torch.cumprod(x, 1)", "torch.cumprod(x.flip(1).flip(1), 1)",
        ("torch.cumprod(x, 0)", "torch.cumsum(x, 1)", "torch.cumprod(x, 1) * x", "x"),
        {"batch_size": 128, "dim": 64}, {"x": "torch.rand(batch_size, dim) + 0.5"},
    ),
    "31_Triangular": _square(
        "torch.triu(a @ b)", "torch.triu(torch.triu(a) @ torch.triu(b))",
        ("torch.tril(a @ b)", "torch.triu(a @ b, 1)", "a.T @ b", "torch.triu(a @ b) * 1.1"),
        "torch.triu(torch.rand(N, N))", "torch.triu(torch.rand(N, N))",
    ),
    "32_Diagonal": _square(
        "torch.diag(a) @ b", "a[:, None] * b",
        ("a[None] * b", "b @ torch.diag(a)", "torch.diag(a) * b", "a[:, None] + b"),
        "torch.rand(N)", _RAND,
    ),
    "33_Scalar": _square(
        "a * b", "torch.mul(a, b)", ("a + b", "a * (b + 0.01)", "a / b", "a"), _RAND, "3.14",
    ),
    "34_Transposed": _square(
        "a.T @ b.T", "(b @ a).T", ("a @ b", "b @ a", "a.T @ b", "a @ b.T"), _RAND, _RAND,
    ),
    "35_Tensor4D": Bench(
        "torch.einsum('bijl,lk->bijk', a, b)", "a @ b",
        ("a @ b.flip(0)", "a.flip(3) @ b * 1.1", "(a @ b).flip(1)", "(a @ b).relu() + 1"),
        {"batch": 8, "i": 64, "j": 32, "l": 128, "k": 96},
        {"a": "torch.rand(batch, i, j, l)", "b": "torch.rand(l, k)"},
    ),
    "36_CrossEntropy": Bench(
        "F.cross_entropy(x, y)", "F.nll_loss(F.log_softmax(x, 1), y)",
        ("F.cross_entropy(x, y, reduction='sum')", "F.nll_loss(x, y)",
         "F.cross_entropy(x * 2, y)", "F.cross_entropy(x, y, label_smoothing=0.1)"),
        _CLASSES, {"x": "torch.rand(batch_size, num_classes)",
                   "y": "torch.randint(0, num_classes, (batch_size,))"},
    ),
    "37_KLDiv": Bench(
        "F.kl_div(torch.log(x), y, reduction='batchmean')",
        "(y * (torch.log(y) - torch.log(x))).sum() / x.shape[0]",
        ("F.kl_div(torch.log(y), x, reduction='batchmean')", "F.kl_div(x, y, reduction='sum')",
         "F.kl_div(torch.log(x), y, reduction='mean')", "(y * torch.log(y / x)).sum()"),
        {"batch_size": 128, "dim": 512},
        dict.fromkeys("xy", "torch.rand(batch_size, dim).softmax(dim=-1)"),
    ),
    "38_Triplet": Bench(
        "F.triplet_margin_loss(a, p, n)",
        "torch.relu(F.pairwise_distance(a, p) - F.pairwise_distance(a, n) + 1).mean()",
        ("F.triplet_margin_loss(a, n, p)", "F.triplet_margin_loss(a, p, n, margin=0.5)",
         "F.triplet_margin_loss(a, p, n, reduction='sum')", "F.triplet_margin_loss(a, p, n, p=1)"),
        _ROWS, dict.fromkeys("apn", "torch.rand(batch_size, dim)"),
    ),
    "39_Hinge": Bench(
        "torch.mean(torch.clamp(1 - x * y, min=0))", "torch.relu(1 - x * y).mean()",
        ("torch.mean(torch.clamp(x * y, min=0))", "torch.mean(1 - x * y)",
         "torch.clamp(1 - x * y, min=0).sum()", "torch.mean(torch.clamp(2 - x * y, min=0))"),
        {"batch_size": 4096}, {"x": "torch.randn(batch_size)",
                               "y": "torch.randint(0, 2, (batch_size,)).float() * 2 - 1"},
    ),
    "40_MinOverDim": Bench(
        "torch.min(x, dim=self.over)[0]", "x.amin(self.over)",
        ("x.amin(2)", "x.amax(self.over)", "x.abs().amin(self.over) + 0.1", "x.mean(self.over)"),
        {"batch_size": 16, "dim1": 64, "dim2": 96},
        {"x": "torch.randn(batch_size, dim1, dim2)"}, made="self.over = 1",
    ),
}  # fmt: skip
KERNEL_BENCH_ALL = {**KERNEL_BENCH, **MORE_KERNEL_BENCH}
