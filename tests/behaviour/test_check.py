"""`check` as a new user meets it: two functions, no workspace, a verdict that can be acted on."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mini_workspace import Mini

import gpuemu_flow
from gpuemu_flow.model.errors import UsageError

FILES = {
    "op.py": """
        import numpy as np

        def softmax(x):
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True)

        def hot(x):
            return softmax(x * 1.01)

        def narrow(x):
            if x.shape[-1] > 64:
                raise ValueError("too wide")
            return softmax(x)

        def product(p, q):
            return p @ q

        def less(p, q):
            return (p - 1) @ q

        def norm(x, weight, eps: float = 1e-6):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

        def times(x, factor: float):
            return x * factor

        def cheat(x):
            import ref
            return ref.softmax(x)

        def hang(x):
            import time
            time.sleep(600)

        def vector(v):
            (n,) = v.shape
            return v * 2

        def double(v):
            v *= 2

        def both(x):
            return x.sum(), x.max()

        def gather(x, index):
            return x[index]

        def bare(x):
            e = np.exp(x)
            return e / e.sum(axis=-1, keepdims=True)

        def tail(x):
            y = softmax(x)
            y[..., 2:] *= 1.5
            return y
    """,
    "ref.py": """
        import numpy as np

        def softmax(x):
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True)

        def product(a: "Float[Array, 'M K']", b: "Float[Array, 'K N']"):
            return a @ b

        def norm(x, weight, eps: float = 1e-6):
            return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

        def times(x, factor: float):
            return x * factor

        def vector(v):
            return v + v

        def both(x):
            return x.sum(), x.max()

        def gather(x, index):
            return x[index]
        """,
    "scale.cu": """
        extern "C" __global__ void scale(const float* __restrict__ x, float* y, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] = x[i] * 2.0f;
        }
        /* The host function
           launches its kernel. */
        extern "C" __global__ void beyond(const float* x, float* y, int n) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i <= n) y[i] = x[i] * 2.0f;
        }
        """,
    "host.cu": """
        __global__ void kernel(const float* x, float* y, int n, float by) {
          int i = blockIdx.x * blockDim.x + threadIdx.x;
          if (i < n) y[i] = x[i] * by;
        }
        extern "C" void run(const float* x, float* y, int count, float by) {
          float *dx, *dy;
          cudaMalloc(&dx, 4 * count);
          cudaMalloc(&dy, 4 * count);
          cudaMemcpy(dx, x, 4 * count, cudaMemcpyHostToDevice);
          kernel<<<(count + 63) / 64, 64>>>(dx, dy, count, by);
          cudaMemcpy(y, dy, 4 * count, cudaMemcpyDeviceToHost);
        }
        """,
    "twice.py": """
        twice = lambda x: x + x
        """,
    "classes.py": """
        class Twice:
            def __call__(self, x):
                return x + x
        """,
}


@pytest.fixture
def sources(tmp_path: Path) -> Mini:
    """A folder with sources and no workspace."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(dedent(text))
    return Mini(tmp_path)


def checked(sources: Mini, *words: str, code: int = 0) -> dict[str, Any]:
    """Return the object that the command prints, after looking that it left nothing behind."""
    done = sources.command("check", *words, "--format", "json", code=code)
    found: dict[str, Any] = json.loads(done.stdout)
    assert {path.name for path in sources.root.iterdir()} - {"__pycache__", "home"} == set(FILES)
    assert found["exit_code"] == code
    return found


def test_a_right_op_passes(sources: Mini) -> None:
    said = sources.command("check", "op.py:softmax", "ref.py:softmax").stdout.splitlines()
    assert said[0].startswith("passed  op.py:softmax against ref.py:softmax: 24 of 24 cases")
    assert said[-1] == "  inputs: x=float32[M,N]; --input says others"


def test_a_wrong_op_shows_inputs_and_values_then_place_then_command(
    sources: Mini, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sources.root)
    monkeypatch.setattr("gpuemu_flow.services.check.SHRINK_SECONDS", math.inf)  # on a busy machine
    found = gpuemu_flow.check("op.py:hot", "ref.py:softmax")
    first, at, command = str(found).splitlines()[2:5]
    assert first == "x = [[1., 0.]]  expected 0.268941421  got 0.266979843"
    assert at == "  at result[0, 1], op.py:8"
    assert command == "  reproduce: gpuemu-flow check op.py:hot ref.py:softmax"
    assert str(found).splitlines()[-2] == "  stopped at 8 failures after 8 of 24 cases"
    failure = found.to_json()["failures"][0]
    shown = failure["minimal"]
    assert shown["inputs"]["x"]["values"] == [[1.0, 0.0]]
    assert (shown["output"], shown["index"]) == ("result", [0, 1])
    assert shown["expected"] == pytest.approx(0.268941421)
    assert shown["actual"] == pytest.approx(0.266979843)
    assert shown["place"] == "op.py:8"
    assert shown["command"] == "gpuemu-flow check op.py:hot ref.py:softmax"
    told = gpuemu_flow.check("op.py:tail", "ref.py:softmax")
    failure = told.to_json()["failures"][0]
    text, notes = str(told).splitlines(), [f"  {note}" for note in failure["notes"]]
    start = text.index(f"  drawn as: {failure['drawn']}") + 1
    assert notes and text[start : start + len(notes)] == notes, "they are on the drawn case"


@pytest.mark.ci
def test_each_case_is_accounted_for(sources: Mini, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sources.root)
    found = gpuemu_flow.check("op.py:bare", "ref.py:softmax")
    told = sum(failure.cases for failure in found.failures)
    assert found.inconclusive and found.cases == found.passed + told + found.inconclusive
    counted = f"{found.passed} of 24 cases passed, no verdict on {found.inconclusive} in "
    assert counted in str(found).splitlines()[0]


def test_an_exception_names_its_line(sources: Mini) -> None:
    (failure,) = checked(sources, "op.py:narrow", "ref.py:softmax", code=3)["failures"]
    assert failure["minimal"]["says"] == "the op raises ValueError: too wide"
    assert failure["minimal"]["place"] == "op.py:13"
    assert failure["minimal"]["inputs"]["x"]["shape"][-1] > 64


@pytest.mark.ci
def test_an_op_with_parameters_of_other_names_is_the_place(sources: Mini) -> None:
    found = checked(sources, "op.py:less", "ref.py:product", code=1)
    line = FILES["op.py"].splitlines().index("        def less(p, q):") + 1
    assert found["failures"][0]["minimal"]["place"] == f"op.py:{line}"


@pytest.mark.ci
def test_an_op_that_hangs_is_given_up_within_its_time(sources: Mini) -> None:
    found = checked(sources, "op.py:hang", "ref.py:softmax", "--seconds", "4", code=3)
    (failure,) = found["failures"]
    assert failure["minimal"]["says"].startswith("the op: op-timeout: no result after 10 s")
    assert "raise --seconds" in " ".join(failure["notes"])
    assert found["cases"] == 1, "one timeout uses up the time"


def test_an_op_that_calls_its_reference_does_not_pass(sources: Mini) -> None:
    (failure,) = checked(sources, "op.py:cheat", "ref.py:softmax", code=3)["failures"]
    assert "hidden from it, ref.py" in failure["message"]


@pytest.mark.parametrize(
    ("words", "inputs"),
    [
        (("op.py:product", "ref.py:product"), ["a=float32[M,K]", "b=float32[K,N]"]),
        (
            ("op.py:norm", "ref.py:norm", "--input", "x=[M,2,N]"),
            ["x=float32[M,2,N]", "weight=float32[N]"],
        ),
        pytest.param(
            ("op.py:double", "ref.py:vector", "--mutates", "v"),
            ["v=float32[M,N]"],
            marks=pytest.mark.ci,
        ),
        (
            ("op.py:times", "ref.py:times", "--input", "factor=2.5", "--dtype", "float16"),
            ["x=float16[M,N]", "factor=2.5"],
        ),
        (("op.py:vector", "ref.py:vector"), ["v=float32[N]"]),
        (("op:both", "ref:both"), ["x=float32[M,N]"]),
        (
            ("op.py:gather", "ref.py:gather"),
            ["x=float32[M,N]", "index=int64[K] (places in x)"],
        ),
        pytest.param(
            ("op.py:softmax", "ref.py:softmax", "--input", "x=float64[M,2,N]"),
            ["x=float64[M,2,N]"],
            marks=pytest.mark.ci,
        ),
    ],
)
def test_inputs_come_from_signatures_or_are_said(
    sources: Mini, words: tuple[str, ...], inputs: list[str]
) -> None:
    """Also where the op's parameters have other names, or it takes tensors of one rank only."""
    assert checked(sources, *words)["inputs"] == inputs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("classes.py", "ref.py:softmax"), "check-class: classes.py:Twice is a class"),
        (("op.py", "ref.py:softmax"), "which function of op.py? It defines softmax, hot, "),
        (("gone.py", "ref.py"), "check-no-file: there is no gone.py\n"),
        (("opp.py", "ref.py"), "there is no opp.py; did you mean 'op.py'?"),
        (("op.py:softmaxx", "ref.py"), "defines no 'softmaxx'; did you mean 'softmax'?"),
        (("op.py:times", "ref.py:times"), "what is factor, of type float?; add --input factor="),
        (("op.py:norm", "ref.py:norm", "--input", "y=[3]"), "parameter 'y'"),
        (("op.py:norm", "ref.py:norm", "--input", "x"), "describes no input"),
        (("op.py:norm", "ref.py:norm", "--input", "x=float31[M]"), "no dtype 'float31'"),
        (("op.py:softmax", "op.py:softmax"), "both the op and the reference"),
        (("op.py:softmax", "ref.py:softmax", "--input", "x=[M,%]"), "%"),
    ],
)
def test_what_is_not_clear_is_asked_in_one_line(
    sources: Mini, words: tuple[str, ...], said: str
) -> None:
    done = sources.command("check", *words, code=2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    assert "gpuemu.toml" not in done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.ci
def test_a_kernel_needs_no_description(sources: Mini) -> None:
    assert checked(sources, "scale.cu:scale", "twice.py")["verdict"] == "passed"
    (failure,) = checked(sources, "scale.cu:beyond", "twice.py", code=1)["failures"]
    assert failure["kind"] in ("OutOfBoundsRead", "OutOfBoundsWrite")
    assert failure["minimal"]["place"] == "scale.cu:10"
    for by, verdict in ((2, "passed"), (3, "failed")):
        found = checked(
            sources, "host.cu", "twice.py", "--input", f"by={by}", code=int(verdict == "failed")
        )
        assert found["verdict"] == verdict
    done = sources.command("check", "scale.cu", "twice.py", code=2)
    assert "which kernel of scale.cu? It has scale, beyond" in done.stderr


SCRIPT = """
    import numpy as np
    import gpuemu_flow

    def clamp(x):
        return np.maximum(x, 0.1).astype(x.dtype)

    def relu(x):
        return np.maximum(x, 0)

    {guard}
        found = gpuemu_flow.check(clamp, relu)
        print(bool(found), found.failures[0].minimal.actual)
        print(gpuemu_flow.check(relu, "ref.py:softmax", inputs={{"x": "[3]"}}).inputs)
    """


@pytest.mark.ci
def test_functions_of_a_script_are_checked_from_python(sources: Mini) -> None:
    def run(guard: str) -> subprocess.CompletedProcess[str]:
        (sources.root / "mine.py").write_text(dedent(SCRIPT.format(guard=guard)))
        return subprocess.run(
            [sys.executable, "mine.py"],
            cwd=sources.root,
            env=sources.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    done = run('if __name__ == "__main__":')
    assert done.stdout.splitlines() == ["False 0.10000000149011612", "('x=float32[3]',)"]


def test_a_function_that_no_process_finds_is_refused(sources: Mini) -> None:
    with pytest.raises(UsageError, match=r"top level of a .py file"):
        gpuemu_flow.check(lambda x: x, f"{sources.root}/ref.py:softmax")
