"""CUDA programs with a main, run by ``gpuemu-flow exec``: right, and with a mistake. Needs nvcc.

Each mistake is one that the program's own check does not see. The programs are built once for all
cases of a file; the cache keeps them for the next run of the tests.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from whole import WHOLE

from gpuemu_flow.cli.main import cli
from gpuemu_flow.emulator.host import build
from gpuemu_flow.emulator.host.places import Places
from gpuemu_flow.lint.toolchain import Tool, find_tools
from gpuemu_flow.model.types import CodePlace

PROGRAMS = Path(__file__).parent / "programs"
CASES = {
    "kernels": {
        "reduction": "racecheck", "transpose": "memcheck", "matmul": "racecheck",
        "histogram": "racecheck", "stencil": "initcheck", "dynamic": "memcheck",
        "ballot": "synccheck", "text": "trap", "last": "racecheck",
    },
    "memory": {
        "symbols": "memcheck", "managed": "memcheck", "pitched": "initcheck",
        "streams": "memcheck", "questions": "memcheck", "errors": "memcheck",
        "unwritten": "initcheck", "padding": "initcheck", "holes": "initcheck",
        "pixels": "initcheck", "freed": "memcheck", "host": "memcheck",
    },
    "libraries": {
        "grid": "racecheck", "groups": "", "cub": "memcheck", "device": "memcheck", "thrust": "",
    },
    "features": dict.fromkeys((
        "half", "wmma", "structs", "atomic", "warp", "async", "math", "zero_copy", "timing",
        "variables", "volumes", "warp_sync",
    ), ""),
    "features2": dict.fromkeys((
        "barrier", "pipeline", "branches", "functors", "queues", "pairs", "launches",
        "pointers",
    ), "") | {"cublas": "memcheck"},
    "benchmarks": {
        "bfs": "memcheck", "hotspot": "racecheck", "lud": "racecheck", "nw": "racecheck",
        "srad": "initcheck", "backprop": "memcheck", "kmeans": "racecheck",
        "pathfinder": "racecheck", "sdk_reduction": "memcheck", "bitonic": "memcheck",
        "convolution": "initcheck", "scans": "initcheck",
    },
}  # fmt: skip
TRIED = [*CASES] if WHOLE else ["kernels", "memory"]  # which are compiled in some seconds
ALL = [(file, case) for file in TRIED for case in CASES[file]]
OUTSIDE = {
    "numba": ("numba_scale.py", "# line: numba"),
    "unwritten": ("common.h", "cudaMemcpy(x.data()"),
    "holes": ("common.h", "cudaMemcpy(x.data()"),
    "pixels": ("common.h", "cudaMemcpy(x.data()"),
    "srad": ("common.h", "cudaMemcpy(x.data()"),
}
"""Cases whose mistake shows elsewhere than at the marked line."""


@pytest.fixture(autouse=True)
def _needs_nvcc() -> None:
    if not isinstance(find_tools().first("nvcc"), Tool):
        pytest.skip("nvcc was not found")


def run(*arguments: str, tmp_path: Path) -> tuple[int, dict]:
    """Run the command in this process; return its exit code and its report."""
    report = tmp_path / "report.json"
    done = CliRunner().invoke(cli, ["exec", "--report", str(report), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, json.loads(report.read_text()) if report.exists() else {}


def marked(file: str, case: str) -> str:
    """Return FILE:LINE of the line that a case's mistake is found at."""
    name, text = OUTSIDE.get(case, (f"{file}.cu", f"// line: {case}"))
    for number, line in enumerate((PROGRAMS / name).read_text().splitlines(), 1):
        if text in line:
            return f"{name}:{number}"
    raise AssertionError(f"no line is marked for {case}")


@pytest.mark.parametrize(("file", "case"), ALL)
def test_a_right_program_passes_without_a_finding(
    file: str, case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, report = run(str(PROGRAMS / f"{file}.cu"), "--", case, tmp_path=tmp_path)
    said = capfd.readouterr()
    assert (code, report["findings"], report["problems"]) == (0, [], []), said
    assert said.out.splitlines()[-1] == "PASSED"


@pytest.mark.parametrize(("file", "case"), [(f, c) for f, c in ALL if CASES[f][c]])
def test_a_mistake_is_found_at_its_line_although_the_program_passes(
    file: str, case: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, report = run(str(PROGRAMS / f"{file}.cu"), "--", case, "bug", tmp_path=tmp_path)
    said = capfd.readouterr()
    assert ("PASSED" in said.out or case == "host") and code == 86, said
    where = f"{CASES[file][case]}: {marked(file, case)} "
    assert any(f["text"].startswith(where) for f in report["findings"]), report["findings"]


def test_findings_name_allocations_as_the_program_does(tmp_path: Path) -> None:
    _, report = run(str(PROGRAMS / "kernels.cu"), "--", "transpose", "bug", tmp_path=tmp_path)
    text = report["findings"][0]["text"]
    assert re.search(
        r"d_out\[1,850\], just past its 1,850 elements \(cudaMalloc at kernels.cu:\d+", text
    )


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("float* h = (float*)malloc(n); CHECK(cudaMalloc((void**)&d_x, n * 4));", "d_x"),
        ("cudaMalloc(&d_x, n); cudaMemset(d_x, 0, n);", "d_x"),
        ("cudaMalloc(&d_x, n); cudaMalloc(&d_y, n);", ""),
    ],
)
def test_an_allocation_never_bears_the_name_of_another(
    line: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "one.cu"
    source.write_text(line)
    monkeypatch.setattr(Places, "of", lambda *_: CodePlace(str(source), 1))
    assert Places(0).allocated(()).name == name


def test_device_code_of_several_files_is_linked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = PROGRAMS / "linked"
    flags = f"--nvcc=-rdc=true {folder / 'two.cu'}"
    code, report = run(flags, str(folder / "one.cu"), tmp_path=tmp_path)
    assert (code, report["findings"]) == (0, []) and "one\nPASSED" in capfd.readouterr().out
    code, report = run(flags, str(folder / "one.cu"), "--", "bug", tmp_path=tmp_path)
    assert code == 86 and "d_y[20]" in report["findings"][1]["text"]


def test_the_drivers_api_runs_modules_of_ptx(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = (sys.executable, str(PROGRAMS / "driver.py"))
    code, report = run(*command, tmp_path=tmp_path)
    assert (code, report["findings"]) == (0, []) and "PASSED" in capfd.readouterr().out
    code, report = run(*command, "bug", tmp_path=tmp_path)
    assert code == 86 and len(report["findings"]) == 2
    assert "byte 128 of the memory of cuMemAlloc" in report["findings"][0]["text"]


@pytest.mark.ci
def test_python_launches_by_numba_and_cuda_core(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numba_cuda")
    pytest.importorskip("cuda.core")
    command = (sys.executable, "-W", "ignore", str(PROGRAMS / "numba_scale.py"))
    code, report = run(*command, tmp_path=tmp_path)
    assert (code, report["findings"], report["problems"]) == (0, [], [])
    assert "PASSED" in capfd.readouterr().out
    code, report = run(*command, "bug", tmp_path=tmp_path)
    line = marked("numba_scale", "numba")
    assert code == 86 and all(line in finding["text"] for finding in report["findings"]), report


def test_what_was_found_is_kept_when_the_program_aborts(tmp_path: Path) -> None:
    source = tmp_path / "ends.cu"
    source.write_text(
        "#include <cstdlib>\nint main() { int* p; cudaMalloc(&p, 8); cudaMemset(p, 0, 9);\n"
        "cudaGraph_t g; cudaGraphCreate(&g, 0); abort(); }\n"
    )
    code, report = run(str(source), tmp_path=tmp_path)
    assert code == 86 and "ends.cu:2 cudaMemset of 9 bytes" in report["findings"][0]["text"]
    assert "ends.cu:3: cudaGraphCreate is not supported" in report["problems"][0]


def test_memory_that_is_never_freed_is_found_when_asked_for(tmp_path: Path) -> None:
    code, report = run("--leaks", str(PROGRAMS / "memory.cu"), "--", "freed", tmp_path=tmp_path)
    texts = [finding["text"] for finding in report["findings"]]
    assert code == 86 and len(texts) == 2
    assert "d_old: cudaMalloc of 128 bytes was never freed" in texts[0]


def test_equal_launches_are_run_once(tmp_path: Path) -> None:
    source = tmp_path / "again.cu"
    source.write_text(
        "#include <cstdio>\n__global__ void k(float* x) { x[threadIdx.x] = threadIdx.x; }\n"
        "int main() { float* x; cudaMallocManaged(&x, 128);\n"
        "for (int i = 0; i < 9; i++) { if (i == 5) x[3] = 7; k<<<1, 32>>>(x);"
        " cudaDeviceSynchronize(); }\n"
        'printf("%g\\n", x[3]); return 7; }\n'
    )
    code, report = run(str(source), tmp_path=tmp_path)
    assert code == 7 and report["program_exit_code"] == 7
    uses = report["kernels"]["k"]
    assert uses["launches"] == 9 and 0 < uses["repeated"] <= 6


def test_what_cannot_run_is_said_in_one_line(tmp_path: Path) -> None:
    source = tmp_path / "graph.cu"
    source.write_text(
        "__global__ void make(int** p) { *p = (int*)malloc(4); }\n"
        "__global__ void use(int** p) { **p = 1; }\n"
        "int main() { int **p, n; cudaGraph_t g; cudaMalloc(&p, 8);\n"
        "if (cudaGraphCreate(&g, 0) != cudaErrorNotSupported) return 1;\n"
        "make<<<1, 1>>>(p); use<<<1, 1>>>(p);\n"
        "return cudaMemcpy(&n, p, 4, cudaMemcpyDeviceToHost) == cudaErrorNotSupported ? 0 : 1; }\n"
    )
    code, report = run(str(source), tmp_path=tmp_path)
    assert (code, report["program_exit_code"]) == (4, 0)
    graph, malloc = report["problems"]
    assert "graph.cu:4: cudaGraphCreate is not supported" in graph
    assert "call of 'malloc'" in malloc
    assert report["findings"] == []  # of what a launch that could not be run should have written
    done = CliRunner().invoke(cli, ["exec", str(tmp_path / "absent.cu")])
    assert done.exit_code != 0 and "absent.cu does not exist" in str(done.exception)
    source.write_text("int main() { return missing; }\n")
    done = CliRunner().invoke(cli, ["exec", str(source)])
    assert 'identifier "missing" is undefined' in str(done.exception)


def test_programs_built_otherwise_are_refused_with_what_to_do(tmp_path: Path) -> None:
    source, nvcc = tmp_path / "one.cu", find_tools().first("nvcc")
    assert isinstance(nvcc, Tool)
    source.write_text(
        "__global__ void k() {}\nint main() { k<<<1, 1>>>(); return cudaDeviceSynchronize(); }\n"
    )
    static, machine = tmp_path / "static", tmp_path / "machine"
    subprocess.run([nvcc.path, "-cudart", "static", source, "-o", static], check=True)
    done = CliRunner().invoke(cli, ["exec", str(static)])
    assert "exec-static" in str(done.exception) and "-cudart shared" in str(done.exception)
    flags = ["-cudart", "shared", "-gencode", "arch=compute_80,code=sm_80"]
    subprocess.run([nvcc.path, *flags, source, "-o", machine], check=True)
    code, report = run(str(machine), tmp_path=tmp_path)
    assert code != 0
    assert "machine code for sm_80 only, no PTX" in report["problems"][0]
    assert "code=compute_" in report["problems"][0]
    stub, wants = tmp_path / "libnvidia-ml.so.1", tmp_path / "wants"
    shared = ["-shared", "-Xlinker", "-soname,libnvidia-ml.so.1", "-x", "cu", "/dev/null"]
    subprocess.run([nvcc.path, *shared, "-o", stub], check=True)
    flags = ["-cudart", "shared", "-Xlinker", f"--no-as-needed,{stub}"]
    subprocess.run([nvcc.path, *flags, source, "-o", wants], check=True)
    stub.unlink()
    done = CliRunner().invoke(cli, ["exec", str(wants)])
    assert "needs libnvidia-ml.so.1, which comes with NVIDIA's driver" in str(done.exception)


def test_what_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "one.cu"
    source.write_text("int main() { return 0; }\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "exec", str(source)], capture_output=True, text=True,
        check=False, env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
    )  # fmt: skip
    (line,) = done.stderr.splitlines()
    assert line.startswith("exec-no-compiler: ") and "install g++" in line
    toolkit = build.find_toolkit()
    monkeypatch.setattr(build, "find_toolkit", lambda: replace(toolkit, nvcc=""))
    done = CliRunner().invoke(cli, ["exec", str(source)])
    assert "exec-no-nvcc" in str(done.exception) and "install it" in str(done.exception)
