"""PyTorch extensions of load_inline under ``gpuemu-flow exec``. Needs nvcc and a CPU torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.lint.toolchain import Tool, find_tools

EXTENSIONS = Path(__file__).parent / "extensions"
pytestmark = pytest.mark.ci  # they are compiled


@pytest.fixture(autouse=True)
def _needs_tools(cpu_torch: None) -> None:
    if not isinstance(find_tools().first("nvcc"), Tool):
        pytest.skip("nvcc was not found")


def run(script: str, *arguments: str, tmp_path: Path) -> tuple[int, str, list[str]]:
    """Run a script under the command; return its exit code, its output and the findings."""
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "exec", "--report", str(report), sys.executable,
         str(EXTENSIONS / script), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.exists(), done.stderr
    texts = [finding["text"] for finding in json.loads(report.read_text())["findings"]]
    return done.returncode, done.stdout + done.stderr, texts


def line_of(script: str, mark: str) -> str:
    """Return FILE:LINE of a marked line, whether it is Python or CUDA in a text."""
    lines = (EXTENSIONS / script).read_text().splitlines()
    return f"{script}:{next(n for n, line in enumerate(lines, 1) if f'line: {mark}' in line)}"


def test_an_extension_trains_without_a_gpu(tmp_path: Path) -> None:
    code, said, found = run("styles.py", tmp_path=tmp_path)
    assert (code, found) == (0, []) and "PASSED" in said, said


def test_a_grid_that_is_too_small_is_found_where_python_reads_the_tensor(tmp_path: Path) -> None:
    code, said, found = run("styles.py", "grid", tmp_path=tmp_path)
    assert code == 86 and "PASSED" in said, said
    (text,) = found
    assert text.startswith(f"initcheck: {line_of('styles.py', 'grid')} aten::sum reads 114 of 1650")


def test_a_race_is_found_at_the_line_inside_of_the_python_text(tmp_path: Path) -> None:
    code, said, found = run("styles.py", "race", tmp_path=tmp_path)
    assert code == 86, said
    assert found[0].startswith(f"racecheck: {line_of('styles.py', 'race')} ld.shared reads")


def test_pytorchs_own_operators_run_on_the_device(tmp_path: Path) -> None:
    code, said, found = run("operators.py", tmp_path=tmp_path)
    assert (code, found) == (0, []) and "PASSED" in said, said


def marks(script: str, name: str, mistake: str) -> list[str]:
    """Return FILE:LINE of the lines that are marked for a mistake; none if its values tell."""
    lines = (EXTENSIONS / script).read_text().splitlines()
    return [
        f"{script}:{number} "
        for number, line in enumerate(lines, 1)
        if f"{name} {mistake}" in line.partition("// line: ")[2].split(", ")
    ]


@pytest.mark.parametrize(("script", "count"), [("published.py", 19), ("published_more.py", 13)])
def test_published_styles_pass_and_each_of_their_mistakes_is_found(
    script: str, count: int, tmp_path: Path
) -> None:
    code, said, _ = run(script, tmp_path=tmp_path)
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert code == 0 and len(rows) == 4 * count, said
    missed = []
    for row in rows:
        found, places = row["found"], marks(script, row["name"], row["mistake"])
        if not row["mistake"]:
            good = row["right"] and not found
        elif places:
            good = any(place in text for place in places for text in found)
        else:
            good = bool(found) or not row["right"]
        if not good or row["problems"]:
            missed.append(row)
    assert not missed, missed
