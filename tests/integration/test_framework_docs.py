"""The snippets of docs/frameworks.md run as they stand, where their frameworks are installed."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from daemon_workspace import Served

from gpuemu_flow.services.daemon.control import running

pytestmark = pytest.mark.ci

PAGE = Path(__file__).resolve().parents[2] / "docs" / "frameworks.md"
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
BLOCKS = list(_BLOCK.finditer(PAGE.read_text(encoding="utf-8")))
MARKED = [b for b in BLOCKS if (b["mark"] or "").startswith("file: ")]
SNIPPETS = [b for b in BLOCKS if b["language"] == "python" and b not in MARKED]
FILES = {b["mark"].removeprefix("file: "): b["text"] for b in MARKED}


def need(text: str) -> None:
    for package in ("torch", "jax", "triton"):
        wanted = re.search(rf"^(?:import|from) {package}\b", text, re.MULTILINE)
        if wanted and importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package}")


def run(arguments: list[str], folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ,
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_the_page_has_its_snippets() -> None:
    assert len(SNIPPETS) == 6 and len(FILES) == 4


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda b: b["text"].splitlines()[1].split()[1])
def test_snippets_run(
    block: re.Match[str], at_home: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has loaded the frameworks for other tests already."""
    need(block["text"])
    exec(compile(block["text"], str(PAGE), "exec"), {"__name__": "snippet"})
    if block["mark"] == "needs: daemon":
        assert running(at_home.root, at_home.environ) is not None, "a daemon was started"
        cases = re.search(r"iterations=(\d+)", block["text"])
        assert cases is not None
        assert capsys.readouterr().out == f"{cases[1]} 0\n"


def test_the_triton_workspace(tmp_path: Path) -> None:
    need(FILES["kernels/softmax.py"])
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("GPUEMU")}
    assert "passed" in run(["-m", "gpuemu_flow", "run"], tmp_path, environ)
    assert "1 passed" in run(["-m", "pytest", "-q", "-p", "no:cacheprovider"], tmp_path, environ)
