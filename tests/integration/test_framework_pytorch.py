"""PyTorch: autograd and backward checks find planted bugs, with a daemon and without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from daemon_workspace import CONFIG, Served
from whole import WHOLE

pytestmark = pytest.mark.ci

torch = pytest.importorskip("torch", reason="no torch")
torch.set_num_threads(1)  # several wait for one another in busy loops: see `one_thread`

from gpuemu_flow import validate  # noqa: E402
from gpuemu_flow.client import ClientError, NoOutputError, ValidationError  # noqa: E402
from gpuemu_flow.frameworks import pytorch as adapters  # noqa: E402
from gpuemu_flow.frameworks.pytorch import validate_model  # noqa: E402
from gpuemu_flow.frameworks.shared import GradientChecker  # noqa: E402
from gpuemu_flow.model.errors import UsageError  # noqa: E402
from gpuemu_flow.numerics.dtypes import numpy_dtype  # noqa: E402

ADAPTER = adapters.PyTorchAdapter()


def softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def tensor(*shape: int, grad: bool = False, dtype: str = "float32") -> Any:
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(*shape, generator=generator).to(getattr(torch, dtype))
    return made.requires_grad_(grad)


class Square(torch.autograd.Function):  # type: ignore[misc]
    """x * x, with a gradient that can be wrong."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @classmethod
    def gradient(cls, ctx: Any, upstream: Any) -> Any:
        (x,) = ctx.saved_tensors
        return cls.factor * x * upstream

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        return Square.gradient(ctx, upstream)


class WrongSquare(Square):
    """Its gradient is 1.5 x."""

    @staticmethod
    def backward(ctx: Any, upstream: Any) -> Any:
        return 0.75 * Square.gradient(ctx, upstream)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int32", "bool",
                                   "float8_e5m2"])  # fmt: skip
def test_tensors_there_and_back(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(numpy_dtype(dtype)).T
    made = ADAPTER.from_numpy(array)
    assert ADAPTER.get_dtype_name(made) == dtype
    back = ADAPTER.to_numpy(made)
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.astype(np.float64), array.astype(np.float64))
    made[0, 0] = 1  # memory of its own
    assert float(array[0, 0]) == 0
    assert ADAPTER.from_numpy(np.ones(2), made).dtype == made.dtype
    assert ADAPTER.get_dtype_name(ADAPTER.from_numpy(np.ones(2), "bfloat16")) == "bfloat16"


def test_gradients_of_both_call_styles() -> None:
    x = tensor(3, grad=True)
    assert ADAPTER.requires_grad(x) and not ADAPTER.requires_grad(x.detach())
    assert ADAPTER.requires_grad(ADAPTER.requires_grad(x.detach(), True))
    by_output = ADAPTER.compute_gradient(x * x, {"x": x, "other": 3})
    assert torch.equal(by_output["x"], 2 * x) and list(by_output) == ["x"]
    weighted = ADAPTER.compute_gradient(x * x, {"x": x}, torch.full((3,), 0.5))
    assert torch.equal(weighted["x"], x)
    (second,) = ADAPTER.compute_gradient(lambda x: (x, x * x), [x], 1)
    assert torch.equal(second, 2 * x)


def test_autograd_checks() -> None:
    x = tensor(3, 4)
    assert adapters.check_autograd(softmax, {"x": x})
    assert adapters.check_autograd(torch.matmul, (tensor(3, 4), tensor(4, 2)))
    assert adapters.check_autograd(lambda inputs: inputs["x"].sin(), {"x": x})
    assert adapters.check_autograd(torch.relu, (x,)).details["kinks"] == 0
    assert adapters.check_autograd(Square.apply, (x.bfloat16(),))
    assert adapters.check_autograd(lambda x: (x * x, x.exp()), {"x": x})
    found = adapters.check_autograd(WrongSquare.apply, {"input": x})
    assert not found and "the gradient by 'input'" in found.message
    assert not adapters.check_autograd(lambda x: x.detach() * 2, {"x": x})
    assert GradientChecker(ADAPTER, epsilon=1e-5).check(softmax, {"x": x}).passed
    other = adapters.check_autograd(
        lambda x, y: x * y.detach(), {"x": x, "y": x}, check_inputs=["x"]
    )
    assert other.passed


def test_autograd_checks_without_a_verdict() -> None:
    x = tensor(3, 4)
    for op in (lambda x: x * torch.rand_like(x), lambda x: torch.nn.functional.dropout(x, 0.5)):
        found = adapters.check_autograd(op, {"x": x})
        assert not found and "different outputs" in found.message
    found = adapters.check_autograd(torch.sin, {"input": x[:0]})
    assert not found and "no element" in found.message
    found = adapters.validate_custom_autograd_function(WrongSquare, [x[:0]])
    assert not found and not found.details["backward_ok"]
    found = adapters.check_autograd(WrongSquare.apply, {"input": x})
    assert "the gradient by 'input'" in found.message


def test_custom_functions() -> None:
    x = tensor(4)
    assert adapters.validate_custom_autograd_function(Square, {"x": x}).details == {
        "forward_ok": True, "backward_ok": True,
    }  # fmt: skip
    found = adapters.validate_custom_autograd_function(WrongSquare, {"x": x})
    assert not found and found.details == {"forward_ok": True, "backward_ok": False}
    found = adapters.validate_custom_autograd_function(Square, [x], reference=lambda x: x * x * x)
    assert not found["details"]["forward_ok"]
    found = adapters.validate_custom_autograd_function(Square, [x, x])
    assert "TypeError" in found.message


def test_backward_against_a_reference() -> None:
    for dtype in ("float32", "float16", "bfloat16"):
        inputs = {"x": tensor(5, 6, dtype=dtype)}
        assert adapters.check_backward(softmax, inputs, softmax), dtype
        assert not adapters.check_backward(WrongSquare.apply, inputs, lambda x: x * x), dtype
    assert not adapters.check_backward(softmax, {"x": tensor(5, 6)}, softmax, atol=0, rtol=0)


def test_validation_without_a_daemon() -> None:
    x = tensor(3, 4, grad=True)
    result = adapters.validate_pytorch(softmax, softmax, {"x": x}, check_backward=True)
    assert result.passed and result.op_name == "softmax"
    with pytest.raises(ValidationError):
        adapters.validate_pytorch(lambda x: x, softmax, {"x": x})
    with pytest.raises(ValidationError, match="gradient by x"):
        adapters.validate_pytorch(WrongSquare.apply, lambda x: x * x, {"x": x}, check_backward=True)
    assert adapters.validate_pytorch(Square.apply, lambda x: x * x, {"x": x}, check_backward=True)
    with adapters.validate_pytorch("square", inputs={"x": x}, ref_fn=lambda x: x * x) as context:
        context["output"] = context["inputs"]["x"] ** 2
    assert context.result.passed
    with adapters.validate_pytorch(
        "square", {"x": x}, check_backward=True, ref_fn=lambda x: x * x, raise_on_failure=False
    ) as context:
        context.set_output(x * x)
        context["grad_inputs"] = {"x": 3 * x.detach()}
    assert not context["gradient_results"]["x"].passed
    low = x.detach().bfloat16()
    assert adapters.validate_pytorch(softmax, softmax, {"x": low}).max_diff > 1e-4
    with pytest.raises(ValidationError):
        adapters.validate_pytorch(softmax, softmax, {"x": low}, atol=1e-7, rtol=0)


def test_contexts_that_end_wrongly() -> None:
    x = tensor(3)
    with pytest.raises(NoOutputError), adapters.validate_pytorch("f", {"x": x}, ref_fn=softmax):
        pass
    with (
        pytest.raises(UsageError) as caught,
        adapters.validate_pytorch("f", {"x": x}, check_backward=True, ref_fn=softmax) as context,
    ):
        context.set_output(softmax(x))
    assert caught.value.slug == "gradient-missing"


GRADIENT_OP = """
[[ops]]
name = "square"
reference = "scripts/square.py:reference"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "square_grad_x"
reference = "scripts/square.py:gradient"
input_names = ["x"]
execution_mode = "client_side"
"""


def test_validation_by_the_daemon(unserved: Served) -> None:
    unserved.write("gpuemu.toml", CONFIG + GRADIENT_OP)
    unserved.write("scripts/square.py", "def reference(x):\n    return x * x\n\n\n"
                   "def gradient(x):\n    return x * 2\n")  # fmt: skip
    unserved.start()
    x = tensor(3, 4, grad=True)
    with unserved.client() as client:
        with adapters.validate_pytorch(client, "square", {"x": x}, check_backward=True) as context:
            context["output"] = x * x
        assert context.result.passed and context["gradient_results"]["x"].passed
        with (
            pytest.raises(ValidationError, match="square_grad_x"),
            adapters.validate_pytorch(client, "square", {"x": x}, True) as context,
        ):
            context.set_output(WrongSquare.apply(x))
        with adapters.validate_pytorch(client, "softmax", {"x": x}, atol=0.05) as context:
            context.set_output(softmax(x) + 0.01)
        with (
            pytest.raises(ClientError) as caught,
            adapters.validate_pytorch(client, "softmax", {"x": x}, check_backward=True) as context,
        ):
            context.set_output(softmax(x))
        assert caught.value.slug == "gradient-op-missing"

        options: dict[str, Any] = {"iterations": 6, "seed": 5}
        found = adapters.fuzz_pytorch_op(
            client, "softmax", lambda inputs: softmax(inputs["x"]), **options
        )
        assert (found.total, found.passed, found["backward_failures"]) == (6, 6, [])
        found = adapters.fuzz_pytorch_op(
            client, "softmax", op_fn=softmax, dtypes=["bfloat16"], device="cpu", **options
        )
        assert found.passed == 6
        found = adapters.fuzz_pytorch_op(client, "softmax", lambda x: x, fail_fast=True, **options)
        assert (found.total, found.failed, len(found.forward_failures)) == (1, 1, 1)


def test_an_op_that_changes_its_input(unserved: Served) -> None:
    unserved.start()
    with unserved.client() as client:
        options: dict[str, Any] = {"iterations": 3, "seed": 5, "dtypes": ["float32", "bfloat16"]}
        found = adapters.fuzz_pytorch_op(client, "double", lambda x: x.mul_(2), **options)
        assert (found.passed, found.failed) == (0, 3)
        kinds = [result.failures[0].kind for result in found.forward_failures]
        assert kinds == ["InputModified"] * 3
        assert adapters.fuzz_pytorch_op(client, "double", lambda x: x.mul(2), **options).passed == 3


def test_fuzzing_without_a_daemon() -> None:
    options: dict[str, Any] = {
        "ref_fn": lambda x: x * x, "iterations": 5, "seed": 3, "names": ["x"],
        "batch_sizes": [1, 2], "seq_lengths": [3], "hidden_dims": [4, 5], "max_elements": 4,
    }  # fmt: skip
    found = adapters.fuzz_pytorch_op(None, "f", Square.apply, check_backward=True, **options)
    assert found and found.total == found.passed == 5
    found = adapters.fuzz_pytorch_op(None, "f", WrongSquare.apply, check_backward=True, **options)
    assert found.failed == len(found.backward_failures) == 5 and not found.forward_failures
    assert all("gradient" in failure.message for failure in found.backward_failures)


def test_models_layer_by_layer() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    x = tensor(3, 4)
    with validate(model) as context:  # type: ignore[operator]
        model(x)
    assert [name for name, _ in context.results] == ["0", "1", "2"] and context.passed
    with validate(None, model, dtype="bfloat16") as context:  # type: ignore[operator]
        model(x.bfloat16())
    assert context.passed and model[0].weight.dtype == torch.float32
    assert max(result.max_diff for _, result in context.results) > 1e-4

    class Sloppy(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return x.half().to(x.dtype) if x.dtype == torch.float32 else x

    model.append(Sloppy())
    with pytest.raises(ValidationError, match="3 "), validate_model(model):
        model(x)
    with validate_model(model, raise_on_failure=False) as context:
        model(x)
    assert [name for name, _ in context.failures] == ["3"]
    with pytest.raises(UsageError, match="validate-nothing-ran"), validate_model(model):
        pass
    with pytest.raises(UsageError, match="validate-arguments"), validate_model(softmax):
        pass
    assert not any(layer._forward_hooks for layer in model)


class Scale(torch.nn.Module):  # type: ignore[misc]
    """A layer whose float32 goes another way than its other dtypes, as a fast kernel's does."""

    def __init__(self, fast: Any) -> None:
        super().__init__()
        self.fast, self.w = fast, torch.nn.Parameter(torch.randn(64))

    def forward(self, x: Any) -> Any:
        y = x * self.w
        return self.fast(y) if y.dtype == torch.float32 else y


class Product(Scale):
    """A product of matrices, in a dtype of its own where its inputs are float32."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(None)
        self.dtype, self.w = dtype, torch.nn.Parameter(torch.randn(64, 64))

    def forward(self, x: Any) -> Any:
        dtype = self.dtype if x.dtype == torch.float32 else x.dtype
        return (x.to(dtype) @ self.w.to(dtype)).to(x.dtype)


SLOPPY = {
    "x1.0003": lambda y: y * 1.0003,
    "x1.00003": lambda y: y * 1.00003,
    "half": lambda y: y.half().float(),
    "bfloat16": lambda y: y.bfloat16().float(),
    "steps of 1/1024": lambda y: (y * 1024).round() / 1024,
}


@pytest.mark.parametrize("seed", range(3 if WHOLE else 1))
@pytest.mark.parametrize("how", SLOPPY)
def test_a_layers_own_float32_makes_no_tolerance(how: str, seed: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(Scale(SLOPPY[how]))
    with validate_model(model, raise_on_failure=False) as context:
        model(torch.randn(5, 64))
    assert [name for name, _ in context.failures] == ["0"]


@pytest.mark.parametrize("seed", range(3))
def test_layers_that_compute_in_their_own_dtype(seed: int) -> None:
    torch.manual_seed(seed)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        model = Product(dtype)
        with validate_model(model, raise_on_failure=False) as context:
            model(torch.randn(5, 64))
        assert context.passed == (dtype == torch.float32), dtype
