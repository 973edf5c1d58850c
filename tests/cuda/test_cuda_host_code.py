"""Ops with CUDA host code: C functions of a .cu file, and extensions of PyTorch. Needs nvcc."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuemu_flow.lint.toolchain import Tool, find_tools

OPS = Path(__file__).parent / "ops"
REFERENCE = """\
import numpy as np


def blur(x):
    wide = np.pad(x, 1, mode="edge")
    return (wide[:-2] + wide[1:-1] + wide[2:]) / 3
"""
SCHEMA = 'schema = { inputs = { x = ["N"] }, dims = { N = [1, 100] } }'
FUNCTIONS = ("right", "bounds", "grid", "race", "dies", "hangs", "leaves", "graph", "hidden")
CONFIG = """\
[project]
name = "host"

[validation]
dtypes = ["float32"]
cases = 3
layouts = ["contiguous"]
strategies = ["normal"]
"""
OP = """
[[ops]]
name = "{name}"
op = {program}
reference = "{reference}"
timeout = 20
{more}
{schema}
"""


@pytest.fixture(autouse=True)
def _needs_nvcc() -> None:
    if not isinstance(find_tools().first("nvcc"), Tool):
        pytest.skip("nvcc was not found")


def host(function: str, more: str = "") -> str:
    return f'{{ kind = "cuda", file = "ops/blur.cu", function = "{function}"{more} }}'


def workspace(folder: Path, *ops: str) -> Path:
    shutil.copytree(OPS, folder / "ops")
    (folder / "reference.py").write_text(REFERENCE)
    (folder / "gpuemu.toml").write_text(CONFIG + "".join(ops))
    return folder


def run(folder: Path, *words: str) -> dict[str, dict[str, Any]]:
    """Run the workspace; return the results by the ops' names."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", *(words or ("run",)), "--format", "json"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    found = {one["op"]: {**one, "said": ""} for one in report["results"]}
    for failure in report["failures"]:
        found[failure["op"]]["said"] += json.dumps(failure)
    return found


def line_of(mark: str, file: str = "blur.cu") -> str:
    lines = (OPS / file).read_text().splitlines()
    return f"{file}:{next(n for n, text in enumerate(lines, 1) if f'line: {mark}' in text)}"


@pytest.mark.ci
def test_host_functions_are_judged_and_what_they_do_wrong_is_found(tmp_path: Path) -> None:
    plain = [
        OP.format(name=f, program=host(f), reference="reference.py:blur", more="", schema=SCHEMA)
        for f in FUNCTIONS
    ]
    hangs = FUNCTIONS.index("hangs")  # which is busy all that time, in each case
    plain[hangs] = plain[hangs].replace("timeout = 20", "timeout = 2")
    described = OP.format(
        name="in_place", program=host("in_place", ', args = ["x", { i64 = "N" }]'),
        reference="reference.py:blur", more='mutates = ["x"]', schema=SCHEMA,
    )  # fmt: skip
    results = run(workspace(tmp_path, *plain, described))
    verdicts = {name: result["verdict"] for name, result in results.items()}
    assert verdicts == {
        "right": "passed", "bounds": "failed", "grid": "failed", "race": "failed",
        "dies": "error", "hangs": "error", "leaves": "error", "graph": "error",
        "hidden": "error", "in_place": "passed",
    }, results  # fmt: skip
    assert f"memcheck: {line_of('bounds')} ld.global reads" in results["bounds"]["said"]
    assert f"initcheck: {line_of('grid')} cudaMemcpy" in results["grid"]["said"]
    assert f"racecheck: {line_of('race')} ld.shared reads" in results["race"]["said"]
    assert "op-crashed" in results["dies"]["said"]
    assert "op-timeout" in results["hangs"]["said"]
    assert "op-crashed" in results["leaves"]["said"]
    assert f"{line_of('graph')}: cudaGraphCreate is not supported" in results["graph"]["said"]
    assert "that C can call" in results["hidden"]["said"]
    # a header is an input
    (tmp_path / "ops" / "blur.cuh").write_text("#pragma once\n#define WEIGHT 4\n")
    assert run(tmp_path, "run", "right")["right"]["verdict"] == "failed"
    (tmp_path / "ops" / "blur.cuh").write_text("#pragma once\n#define WEIGHT 3\n")
    assert run(tmp_path, "run", "right")["right"]["verdict"] == "passed"


def test_the_runtime_is_built_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "kept"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    op = OP.format(
        name="one", program=host("right"), reference="reference.py:blur", more="", schema=SCHEMA
    )
    assert run(workspace(tmp_path, op))["one"]["verdict"] == "passed"
    assert {path.name for path in (tmp_path / "kept" / "gpuemu-flow").glob("*")} >= {"cuda"}
    assert not (tmp_path / "home").exists()


def test_a_host_function_takes_no_launch(tmp_path: Path) -> None:
    program = host("right", ", grid = [1]")
    folder = workspace(tmp_path, OP.format(
        name="both", program=program, reference="reference.py:blur", more="", schema=SCHEMA,
    ))  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run"], cwd=folder, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 2 and "has both function and grid" in done.stdout + done.stderr


def test_init_shows_a_host_function_that_passes(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpuemu_flow", "init", "--framework", "cuda"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    file = tmp_path / "gpuemu.toml"
    lines = file.read_text().splitlines()
    shown = next(line for line in lines if "softmax_rows" in line).removeprefix("# ")
    at = next(n for n, line in enumerate(lines) if line.startswith('op = { kind = "cuda"'))
    lines[at] = shown
    file.write_text("\n".join(lines) + "\n")
    assert run(tmp_path, "run", "compare:softmax:float32")["softmax"]["verdict"] == "passed"


def test_what_a_host_function_needs_is_said_in_one_line(tmp_path: Path) -> None:
    folder = workspace(tmp_path, OP.format(
        name="right", program=host("right"), reference="reference.py:blur", more="",
        schema=SCHEMA,
    ))  # fmt: skip
    empty = tmp_path / "empty"
    empty.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"], cwd=folder,
        capture_output=True, text=True, check=False,
        env={"PATH": str(empty), "HOME": str(tmp_path), "CUDA_HOME": str(empty)},
    )  # fmt: skip
    text = json.dumps(json.loads(done.stdout)["failures"])
    assert "exec-no-compiler" in text and "install g++" in text


def mutated(folder: Path, op: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "mutate", op, "--format", "json"], cwd=folder,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return json.loads(done.stdout)


def planted(folder: Path, op: str) -> str:
    """Plant bugs in the kernels that an op launches; return the names of those that are found."""
    return " ".join(one["name"] for one in mutated(folder, op)["kernel"]["killed"])


@pytest.mark.ci
def test_bugs_are_planted_in_the_kernels_of_a_host_function(tmp_path: Path) -> None:
    folder = workspace(tmp_path, OP.format(
        name="right", program=host("right"), reference="reference.py:blur", more="", schema=SCHEMA,
    ))  # fmt: skip
    found = planted(folder, "right")
    assert "mask-off-by-one at blur.cu:" in found and "barrier-removed at blur.cu:" in found


@pytest.mark.ci
def test_no_bugs_are_planted_in_an_op_that_cannot_run_and_one_case_shows_it(tmp_path: Path) -> None:
    folder = workspace(tmp_path, OP.format(
        name="dies", program=host("dies"), reference="reference.py:blur", more="", schema=SCHEMA,
    ))  # fmt: skip
    config = folder / "gpuemu.toml"
    config.write_text(config.read_text() + '[sandbox]\nmode = "off"\n')
    source = folder / "ops" / "blur.cu"
    counting = f'FILE* f = fopen("{folder}/calls", "a"); fputc(120, f); fclose(f); abort();'
    source.write_text(source.read_text().replace("abort();", counting, 1))
    found = mutated(folder, "dies")
    assert "kernel" not in found and found["kernel_untold"] == 3
    assert len((folder / "calls").read_text()) < 3


@pytest.mark.ci
def test_an_extension_is_an_op(cpu_torch: None, tmp_path: Path) -> None:
    ops = [
        OP.format(
            name=name, program=f'"ops/twice_ext.py:{name}"', reference="torch_reference.py:twice",
            more="", schema=SCHEMA,
        )
        for name in ("right", "wrong")
    ]  # fmt: skip
    folder = workspace(tmp_path, *ops)
    (folder / "torch_reference.py").write_text("import torch\n\ndef twice(x):\n    return x * 2\n")
    results = run(folder)
    assert [results[name]["verdict"] for name in ("right", "wrong")] == ["passed", "failed"]
    place = line_of("extension", "twice.cu")
    assert f"memcheck: {place} st.global writes" in results["wrong"]["said"]
    assert "mask-off-by-one at twice.cu:" in planted(folder, "right")
    (folder / "ops" / "twice.h").write_text("#define FACTOR 3\n")  # a header is an input
    assert run(folder, "run", "right")["right"]["verdict"] == "failed"


@pytest.mark.ci
def test_a_failure_of_an_extension_is_minimised_and_reproduced(
    cpu_torch: None, tmp_path: Path
) -> None:
    folder = workspace(tmp_path, OP.format(
        name="wrong", program='"ops/twice_ext.py:wrong"', reference="torch_reference.py:twice",
        more="", schema=SCHEMA,
    ))  # fmt: skip
    (folder / "torch_reference.py").write_text("import torch\n\ndef twice(x):\n    return x * 2\n")

    def command(*words: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", *words], cwd=folder, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    code, said = command("fuzz", "wrong", "-n", "6")
    assert code == 1 and "failed OutOfBoundsRead in 6 cases" in said, said
    large = next(line for line in said.splitlines() if "x[100]" in line or "x[1]" in line)
    name = large.split()[0]
    place = line_of("extension", "twice.cu")
    code, said = command("minimize", name)
    assert code == 0 and f"memcheck: {place} ld.global reads" in said and "x[1]" in said, said
    code, said = command("reproduce", name)
    assert code == 1 and f"{name} still fails" in said, said
    source = folder / "ops" / "twice.cu"
    source.write_text(source.read_text().replace("n + bug", "n"))
    code, said = command("reproduce", name)
    assert code == 0, said
