"""PyTorch ops and layers that change their inputs in place: the reference sees what they saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from daemon_workspace import CONFIG, Served

pytestmark = pytest.mark.ci

torch = pytest.importorskip("torch", reason="no torch")

from gpuemu_flow.client import ValidationError, ValidationResult  # noqa: E402
from gpuemu_flow.frameworks.pytorch import validate_model, validate_pytorch  # noqa: E402


def doubled(x: Any) -> Any:
    return x.mul_(2)


def zeroed(x: Any) -> Any:
    return x.zero_()


def reference(x: Any) -> Any:
    return x * 2


def random() -> Any:
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(0))


def by_functions(op: Callable[..., Any]) -> ValidationResult:
    return validate_pytorch(op, reference, {"x": random()})


def by_position(op: Callable[..., Any]) -> ValidationResult:
    return validate_pytorch(op, reference, [random()])


def by_context(op: Callable[..., Any]) -> ValidationResult:
    inputs = {"x": random()}
    with validate_pytorch("op", inputs, ref_fn=reference) as context:
        context.output = op(inputs["x"])
    return context.result


WAYS = [by_functions, by_position, by_context]


@pytest.mark.parametrize("way", WAYS)
def test_a_right_op_passes_with_a_note(way: Callable[..., ValidationResult]) -> None:
    result = way(doubled)
    assert result.verdict == "passed"
    assert "inputs-changed: the op changed 15 elements of input" in result.notes[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_wrong_op_fails(way: Callable[..., ValidationResult]) -> None:
    with pytest.raises(ValidationError, match="15 of 15 elements"):
        way(zeroed)


@pytest.mark.parametrize("mutates", ["", 'mutates = ["x"]\n'])
def test_the_daemon_judges_by_mutates(unserved: Served, mutates: str) -> None:
    op = '[[ops]]\nname = "twice"\nreference = "scripts/double.py:reference"\n'
    op += f'input_names = ["x"]\nexecution_mode = "client_side"\n{mutates}'
    unserved.write("gpuemu.toml", CONFIG + op)
    unserved.start()
    with unserved.client() as client:
        inputs = {"x": random()}
        with validate_pytorch(client, "twice", inputs, raise_on_failure=False) as context:
            context.output = doubled(inputs["x"])
    kinds = [failure.kind for failure in context.result.failures]
    assert kinds == ([] if mutates else ["InputModified"])


class Doubling(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return doubled(x)


@pytest.mark.parametrize(
    "layer",
    [
        torch.nn.LeakyReLU(0.1, inplace=True),
        torch.nn.SiLU(inplace=True),
        torch.nn.ELU(inplace=True),
        Doubling(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_in_place_pass(layer: Any) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), layer, layer, torch.nn.Linear(4, 2))
    with torch.no_grad(), validate_model(model) as context:
        model(torch.randn(3, 4))
    assert [result.verdict for _, result in context.results] == ["passed"] * 4
    assert "inputs-changed" in " ".join(context.results[1][1].notes)
    assert not context.results[0][1].notes
