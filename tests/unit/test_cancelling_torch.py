"""PyTorch's references whose terms cancel exactly: what an op may leave there, and what not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpuemu_flow.model.types import CheckResult, Verdict
from gpuemu_flow.numerics.cancelling import Operands, cancelling_torch
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.envelope import Envelope
from gpuemu_flow.numerics.perturb import widen
from gpuemu_flow.numerics.rng import SeededRng

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # several wait for one another in busy loops: see `one_thread`

pytestmark = pytest.mark.ci

Array = NDArray[Any]
UNIT = 2.0**-23


def attention(q: Any, k: Any, v: Any) -> Any:
    hidden = ~torch.ones(len(q), len(q), dtype=torch.bool).tril()
    return torch.softmax((q @ k.T).masked_fill(hidden, -torch.inf), -1) @ v


def gradient_of_q(inputs: Mapping[str, Array], *, shadow: bool = False) -> dict[str, Array]:
    """The gradient by q, as autograd computes it."""
    q, k, v, do = (torch.from_numpy(np.array(inputs[name])) for name in ("q", "k", "v", "do"))
    q.requires_grad_()
    attention(q, k, v).backward(do)
    return {"y": q.grad.numpy()}


def flash(inputs: Mapping[str, Array], less: float = 1.0) -> Array:
    """The gradient as FlashAttention computes it."""
    q, k, v, do = (torch.from_numpy(inputs[name]) for name in ("q", "k", "v", "do"))
    scores = (q @ k.T).masked_fill(~torch.ones(len(q), len(q), dtype=torch.bool).tril(), -torch.inf)
    p = torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))
    delta = (do * (p @ v)).sum(-1, keepdim=True)
    result: Array = ((p * (do @ v.T - less * delta)) @ k).numpy()
    return result


def weights(inputs: Mapping[str, Array], *, shadow: bool = False) -> dict[str, Array]:
    """Products less themselves, of which the upper half is masked."""
    q, k = (torch.from_numpy(np.array(inputs[name])) for name in ("q", "k"))
    product = q @ k.T
    result = (product - product * product.new_ones(1)).tril()
    result[:, 0] += product[:, 0]
    return {"y": result.numpy()}


def judged(evaluate: Callable[..., Any], inputs: dict[str, Array], actual: Array) -> CheckResult:
    expected = evaluate(widen(inputs))
    envelope = Envelope(
        inputs, expected, evaluate, dtype="float32", seed=3, exact_op=False, weak=False
    )
    return check_outputs(
        {"y": actual},
        expected,
        tolerance=envelope,
        policy=Policy(),
        expected_dtypes={"y": "float32"},
        inputs=inputs,
    )


def inputs_of(seed: int, rows: int = 9) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal((rows, 8)).astype(np.float32) for n in ("q", "k", "v", "do")}


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_the_backward_pass_of_a_flash_attention_is_right(rows: int) -> None:
    for seed in range(5):
        inputs = inputs_of(seed, rows)
        result = judged(gradient_of_q, inputs, flash(inputs))
        assert result.verdict is Verdict.PASSED, result.failures
        if rows > 1:
            assert judged(gradient_of_q, inputs, flash(inputs, 0.99)).verdict is Verdict.FAILED


def test_a_leak_into_masked_places_fails_beside_terms_that_cancel() -> None:
    inputs = inputs_of(0)
    right = weights(inputs)["y"]
    hidden = ~np.tri(*right.shape, dtype=bool)
    beside = np.tril(np.full(right.shape, 3e-8, np.float32), -1)
    assert judged(weights, inputs, right + beside).verdict is Verdict.PASSED
    leaking = judged(weights, inputs, right + np.float32(1e-8) * hidden)
    assert leaking.verdict is Verdict.FAILED
    assert leaking.stats.num_exceeding == hidden.sum()


@pytest.mark.parametrize(
    ("function", "moves"),
    [
        (lambda x: x - x, False),
        (lambda x: x * 0 - 0 * torch.exp(x), False),
        (lambda x: (2 * x - x) - x, False),
        (lambda x: torch.where(x > 99, torch.exp(x), 0), False),
        (lambda x: torch.exp(x) - torch.exp(x), True),
        (lambda x: x / 3 - (x / 3) * 1, True),
        (lambda x: torch.stack([torch.exp(x), -torch.exp(x)]).sum(0), True),
    ],
)
def test_rounded_terms_move_and_others_stay(function: Any, moves: bool) -> None:
    x = torch.linspace(-3, 3, 50)
    operands = Operands()
    found = []
    for number, unit in enumerate((0.0, UNIT, -UNIT)):
        with cancelling_torch(SeededRng(number), unit, operands):
            found.append(np.abs(function(x).numpy()))
    assert not found[0].any()
    moved = np.count_nonzero(found[1] + found[2])
    assert moved > 30 if moves else moved == 0
    assert max(map(np.max, found)) <= 100 * UNIT
