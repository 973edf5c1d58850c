"""An op of kind ``cuda`` while its ``.cu`` is edited: watch, the editor, the daemon, pytest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from daemon_workspace import Served
from kernel_workspace import (
    RACE_LINE,
    RIGHT,
    WRONG,
    KernelWorkspace,
    line_of,
    make_cuda_workspace,
)
from mini_workspace import Mini

from gpuemu_flow.client import ClientError
from gpuemu_flow.lint.toolchain import Tool, find_tools

pytestmark = pytest.mark.ci

SOURCE = "k/matrices.cu"


@pytest.fixture(autouse=True)
def _needs_nvcc() -> None:
    tool = find_tools().first("nvcc")
    if not isinstance(tool, Tool):
        pytest.skip(f"{tool.message}: {tool.hint}")


@pytest.fixture
def right(tmp_path: Path) -> KernelWorkspace:
    return make_cuda_workspace(tmp_path / "ws")


@pytest.fixture
def watched(right: KernelWorkspace) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuemu_flow", "watch"], cwd=right.root,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def until(process: subprocess.Popen[str], sign: str) -> str:
    """The lines up to the one that holds a sign; pytest's own limit ends a wait in vain."""
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if sign in line:
            return "".join(lines)
    raise AssertionError(f"it ended without {sign!r}: {''.join(lines)}")


@pytest.mark.ci
def test_watch_builds_and_runs_what_was_saved(
    right: KernelWorkspace, watched: subprocess.Popen[str]
) -> None:
    assert "softmax  float32  passed" in until(watched, "Ctrl-C ends it")
    text = right.edit(SOURCE, RIGHT, WRONG)
    said = until(watched, " saved: ") + until(watched, "Ctrl-C ends it")
    assert f"racecheck: matrices.cu:{line_of(text, RACE_LINE)} ld.shared" in said
    watched.send_signal(signal.SIGINT)
    watched.wait()


@pytest.mark.ci
def test_an_editor_shows_the_race_at_the_line_and_forgets_it(tmp_path: Path) -> None:
    pytest.importorskip("pygls", reason="the language server needs pygls (extra lsp)")
    from lsp_client import Editor

    made = make_cuda_workspace(tmp_path / "ws", right=False)
    source = made.source(SOURCE)
    with Editor(Mini(made.root)) as editor:
        editor.open()
        since = len(editor.told)
        asked = editor.execute("gpuemu-flow.run", editor.uri(), "softmax")
        assert "failed (0 of 3 cases passed)" in asked["message"]
        shown = editor.wait_told(
            "textDocument/publishDiagnostics",
            lambda p: p["uri"] == source.as_uri() and p["diagnostics"],
            since,
        )["diagnostics"]
        wanted = line_of(source.read_text(), RACE_LINE)
        (found,) = [d for d in shown if d["range"]["start"]["line"] == wanted - 1]
        assert (found["severity"], found["code"]) == (1, "DataRace")
        assert "softmax: racecheck: matrices.cu:" in found["message"]
        made.edit(SOURCE, WRONG, RIGHT)
        since = len(editor.told)
        assert "passed" in editor.execute("gpuemu-flow.run", editor.uri(), "softmax")["message"]
        editor.wait_told(
            "textDocument/publishDiagnostics",
            lambda p: p["uri"] == source.as_uri() and not p["diagnostics"],
            since,
        )


@pytest.mark.ci
def test_the_daemon_runs_the_kernel_as_it_is_now(unserved: Served) -> None:
    made = make_cuda_workspace(unserved.folder / "made")
    for name in ("gpuemu.toml", "ref.py", SOURCE):
        unserved.write(name, made.source(name).read_text())
    unserved.start()
    with unserved.client(timeout_ms=600_000) as client:
        case = client.get_test_case("softmax", seed=1, dtypes=["float32"])
        x = case.inputs["x"]
        e = np.exp(x - x.max(-1, keepdims=True))
        judged = client.submit_output(
            "softmax", case.inputs, e / e.sum(-1, keepdims=True), case.seed
        )
        assert judged.passed, "what a client computes is judged by the reference"
        found = client.fuzz_op("softmax", seed=1, iterations=3)
        assert (found.passed, found.failed) == (3, 0)
        source = unserved.root / SOURCE
        text = source.read_text()
        source.write_text(text.replace(RIGHT, WRONG))
        found = client.fuzz_op("softmax", seed=1, iterations=3)
        assert found.failed == 3
        kinds = {f.kind for result in client.list_failures() for f in result.failures}
        assert "DataRace" in kinds
        source.write_text(text.replace(RIGHT, RIGHT + ")"))
        with pytest.raises(ClientError) as caught:
            client.fuzz_op("softmax", seed=1, iterations=3)
        assert SOURCE in str(caught.value), "an error of the compiler, at its line"
        source.write_text("// mended\n" + text)
        assert client.fuzz_op("softmax", seed=1, iterations=3).passed == 3
        summary = client.run_ci()
        assert (summary.passed > 0, summary.failed) == (True, 0)


@pytest.mark.ci
def test_the_pytest_plugin_judges_by_the_ops_reference(right: KernelWorkspace) -> None:
    right.source("test_ops.py").write_text(
        "import numpy as np\nimport pytest\n\n"
        '@pytest.mark.gpuemu("softmax", cases=2)\n'
        "def test_softmax(gpuemu_case):\n"
        '    x = gpuemu_case["x"]\n'
        "    e = np.exp(x - x.max(-1, keepdims=True))\n"
        "    gpuemu_case.check(e / e.sum(-1, keepdims=True))\n"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "gpuemu_flow.pytest_plugin", "test_ops.py"],
        cwd=right.root, env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_documented_command_builds_the_documented_file(tmp_path: Path) -> None:
    repository = Path(__file__).resolve().parents[2]
    for name in ("softmax.cu", "softmax_ref.py", "gpuemu.toml"):
        text = (repository / "tests/data/docs/emulator" / name).read_text()
        (tmp_path / name).write_text(text)
    page = (repository / "docs/emulator.md").read_text()
    command = next(line for line in page.splitlines() if line.startswith("nvcc "))
    subprocess.run(command.split(), cwd=tmp_path, check=True)
    done = KernelWorkspace(tmp_path).flow("run")
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.ci
def test_a_comment_costs_one_build_and_no_command_runs_the_op_again(right: KernelWorkspace) -> None:
    assert right.flow("run").returncode == 0
    source = right.source(SOURCE)
    source.write_text("// a comment\n" + source.read_text())
    executed = right.json("run", "--format", "json")["executed"]
    assert "build:softmax:sm_80" in executed
    assert not [name for name in executed if name.startswith(("op:", "reference:", "compare:"))]
    source.write_bytes(source.read_bytes())  # saved anew, with the same text
    assert right.json("run", "--format", "json")["executed"] == []
