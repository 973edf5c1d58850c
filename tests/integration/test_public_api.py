"""Test the names that ``from gpuemu_flow import …`` gives: the documented snippets run as they
stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, normal, softmax
from numpy.typing import NDArray

import gpuemu_flow
from gpuemu_flow import Client, ValidationError, validate_op
from gpuemu_flow.client import NoOutputError
from gpuemu_flow.services.daemon.control import running

PAGE = Path(__file__).resolve().parents[2] / "docs" / "daemon.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def my_matmul(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(a @ b)


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda text: text.splitlines()[0])
def test_documented_snippets(
    at_home: Served, capsys: pytest.CaptureFixture[str], snippet: str
) -> None:
    names = {"x": normal(3, 4), "my_softmax": softmax, "my_matmul": my_matmul}
    exec(compile(snippet.replace("iterations=200", "iterations=8"), str(PAGE), "exec"), names)
    assert running(at_home.root, at_home.environ) is not None, "a daemon was started"
    printed = capsys.readouterr().out
    assert "8 0" in printed or float(printed) < 1e-5
    with Client() as client:
        stored = client.list_results()
    assert stored and all(result.passed for result in stored)


def test_all_snippets_were_found() -> None:
    assert len(SNIPPETS) == 2


def test_a_context_judges_what_was_set(daemon: Served) -> None:
    x = normal(3, 4)
    with daemon.client() as client:
        with validate_op(client, "softmax", inputs={"x": x}) as context:
            context["output"] = softmax(context["inputs"]["x"])
        assert context.result is context["result"]
        assert context.result is not None and context.result.passed

        with (
            pytest.raises(ValidationError, match=r"softmax \(seed \d+\)") as caught,
            validate_op(client, "softmax", {"x": x}) as context,
        ):
            context.set_output(x)
        assert caught.value.result.verdict == "failed"
        assert isinstance(caught.value, AssertionError)

        with validate_op(client, "softmax", {"x": x}, raise_on_failure=False) as context:
            context.set_output(x)
        assert context.result is not None and not context.result.passed
        with validate_op(client, "softmax", {"x": x}, atol=0.05) as context:
            context.set_output(softmax(x) + np.float32(0.01))
        with (
            pytest.raises(ValidationError, match="inconclusive: loose-tolerance"),
            validate_op(client, "softmax", {"x": x}, atol=1e9) as context,
        ):
            context.set_output(x)


def test_a_context_without_an_output(daemon: Served) -> None:
    with daemon.client() as client:
        with (
            pytest.raises(NoOutputError, match="client-no-output"),
            validate_op(client, "softmax", {}),
        ):
            pass
        with pytest.raises(ZeroDivisionError), validate_op(client, "softmax", {}):
            1 / 0  # noqa: B018 - what goes wrong inside is what is seen
        with validate_op(client, "softmax", {"x": normal(2)}, raise_on_failure=False) as context:
            with pytest.raises(KeyError, match="outputs"):
                context["outputs"] = 1
            context.set_output(normal(2))


def test_names_are_loaded_when_they_are_asked_for() -> None:
    script = (
        "import sys, gpuemu_flow\n"
        "assert not {'numpy', 'typing', 'gpuemu_flow.client'} & set(sys.modules)\n"
        "assert 'Client' in dir(gpuemu_flow)\n"
        "assert gpuemu_flow.Client.__name__ == 'Client'\n"
        "assert 'pynng' not in sys.modules\n"
    )
    # Without site, whose .pth files import what they like.
    places = [str(Path(gpuemu_flow.__file__).parents[1]), *sys.path]
    subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path += {places!r}\n{script}"],
        check=True,
        timeout=600,
    )
    assert {gpuemu_flow.Client, gpuemu_flow.AsyncClient, gpuemu_flow.ClientError}
    with pytest.raises(AttributeError, match="Klient"):
        gpuemu_flow.Klient  # noqa: B018


@pytest.mark.ci
def test_type_checkers_see_the_names(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is installed for development only")
    program = tmp_path / "typed.py"
    program.write_text(
        "from gpuemu_flow import Client, validate_op\n"
        "reveal_type(Client().list_results())\n"
        "with validate_op('softmax') as context:\n"
        "    reveal_type(context)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), str(program)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=Path(gpuemu_flow.__file__).parents[1],
    )
    assert "list[gpuemu_flow.client.results.ValidationResult]" in done.stdout, done.stdout
    assert "gpuemu_flow.client.context.ValidationContext" in done.stdout
