"""PyTorch's own operators on the emulated device: as on the CPU, forward and backward."""

import copy
import io

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it
from torch import nn

torch.manual_seed(0)


def randn(*size: int) -> torch.Tensor:
    """Draw a tensor on the device."""
    return torch.randn(*size, device="cuda")


def same(function, *args) -> None:
    """Compare a function of tensors with the CPU's."""
    got, want = function(*args), function(*(a.cpu() for a in args))
    for g, w in zip(*((v if isinstance(v, tuple) else (v,)) for v in (got, want)), strict=True):
        assert g.is_cuda
        torch.testing.assert_close(g.cpu(), w, rtol=1e-4, atol=1e-4)


MODULES = [
    (nn.Conv2d(3, 8, 3, padding=1), (2, 3, 9, 9)), (nn.Conv2d(4, 4, 3, groups=4), (1, 4, 9, 9)),
    (nn.Conv3d(3, 4, 3), (1, 3, 5, 5, 5)), (nn.ConvTranspose2d(3, 4, 3, stride=2), (1, 3, 5, 5)),
    (nn.ConvTranspose3d(3, 4, 3), (1, 3, 4, 4, 4)), (nn.BatchNorm2d(3), (4, 3, 5, 5)),
    (nn.GroupNorm(2, 4), (2, 4, 5, 5)), (nn.LayerNorm(16), (4, 16)), (nn.RMSNorm(16), (4, 16)),
    (nn.MaxPool2d(2), (1, 3, 8, 8)), (nn.AdaptiveAvgPool2d(1), (1, 3, 8, 8)), (nn.GELU(), (5, 7)),
    (nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True), (2, 5, 16)),
    (nn.LSTM(5, 6, 2), (4, 2, 5)), (nn.GRU(5, 6), (4, 2, 5)),
]  # fmt: skip
for module, size in MODULES:
    x = torch.randn(*size)
    want = module(x)
    x = x.cuda().requires_grad_()
    got = module.cuda()(x)
    want, got = (v[0] if isinstance(v, tuple) else v for v in (want, got))
    torch.testing.assert_close(got.detach().cpu(), want.detach(), rtol=1e-4, atol=1e-4)
    got.square().sum().backward()
    assert x.grad.is_cuda and all(p.grad.is_cuda for p in module.parameters())
index = torch.randint(0, 4, (5, 3), device="cuda")
same(torch.mv, randn(4, 5), randn(5))
same(torch.addmm, randn(6), randn(4, 5), randn(5, 6))
same(torch.bmm, randn(2, 4, 5), randn(2, 5, 6))
same(lambda x: tuple(torch.topk(x, 3)), randn(4, 9))
same(lambda x, i: x[i], randn(4, 5), index)
same(lambda x, i: x.scatter_add(0, i, x), randn(5, 5), index)
same(lambda x: x[x > 0], randn(4, 5))
same(lambda x: torch.view_as_real(torch.fft.rfft(x)), randn(4, 8))
same(F.scaled_dot_product_attention, randn(1, 2, 5, 8), randn(1, 2, 5, 8), randn(1, 2, 5, 8))
same(
    lambda a, b: F.kl_div(a.log_softmax(1), b.softmax(1), reduction="sum"), randn(4, 5), randn(4, 5)
)
same(torch.linalg.solve, torch.eye(4, device="cuda") * 2, randn(4, 2))

model = copy.deepcopy(nn.Linear(3, 3).cuda())
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
assert torch.load(file)["weight"].is_cuda
optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("cuda")
with torch.autocast("cuda"):
    loss = model(randn(2, 3)).sum()
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
randn(3, 4)[:, 1] = 5.0
assert torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).is_cuda
assert "2.]" in repr(torch.tensor([1.0, 2.0], device="cuda")) and torch.cuda.get_rng_state().numel()
print("PASSED")
