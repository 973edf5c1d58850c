"""NVIDIA's own tools as witnesses of our figures; each test skips, counted, without its tool."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuemu_flow.lint.cubin import Cubin, CubinKernel, read_cubin
from gpuemu_flow.lint.kernel import KernelPolicy, count_sass_families
from gpuemu_flow.lint.measure import Artifact, Linter, measure
from gpuemu_flow.lint.toolchain import (
    MachineCode,
    Tool,
    Toolchain,
    find_tools,
    parse_ptxas_output,
    run_tool,
)
from gpuemu_flow.tasks.compilers import assemble, disassemble

pytestmark = pytest.mark.ci

KERNELS = Path(__file__).resolve().parent.parent.parent / "scripts" / "kernels"
COMMITTED = sorted(KERNELS.glob("sm_*/*.cubin"))
RESERVED_SHARED = 1024
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    return find_tools()


def need(toolchain: Toolchain, name: str) -> str:
    tool = toolchain.first(name)
    if not isinstance(tool, Tool):
        pytest.skip(f"{tool.message}: {tool.hint}")
    return tool.path


def kernels(data: bytes) -> tuple[Cubin, dict[str, CubinKernel]]:
    cubin = read_cubin(data)
    assert isinstance(cubin, Cubin)
    return cubin, {name: k for name, k in cubin.kernels.items() if k.is_entry}


def resource_usage(listing: str) -> dict[str, dict[str, int]]:
    """Read what ``cuobjdump -res-usage`` prints of each function."""
    found = re.findall(r"^\s*Function (\S+):\s*\n(.*)$", listing, re.MULTILINE)
    return {
        name: {key: int(number) for key, number in re.findall(r"([A-Z]+):(\d+)", line)}
        for name, line in found
    }


def assert_equal_to_cuobjdump(cuobjdump: str, path: Path) -> int:
    """Compare registers, stack and shared memory; returns the number of kernels."""
    run = run_tool([cuobjdump, "-res-usage", str(path)])
    usage = resource_usage(run.stdout.decode())
    cubin, ours = kernels(path.read_bytes())
    assert set(ours) <= set(usage)
    reserved = RESERVED_SHARED if int(cubin.arch[3:].rstrip("af")) >= 90 else 0
    for name, kernel in ours.items():
        theirs = usage[name]
        static = max(theirs["SHARED"] - reserved, 0)
        assert (kernel.registers, kernel.stack_bytes, kernel.shared_bytes) == (
            theirs["REG"],
            theirs["STACK"],
            static,
        ), name
    return len(ours)


def assert_equal_to_nvdisasm(nvdisasm: str, path: Path) -> int:
    """Compare spill instructions with the annotated listing; returns their number."""
    run = run_tool([nvdisasm, "-json", "-annotate", str(path)])
    spilling = {
        function["function-name"]: sum(
            any(each["info"] == "SpillRefill" for each in item.get("annotations", ()))
            for item in function["sass-instructions"]
        )
        for function in json.loads(run.stdout)[1]
    }
    _, ours = kernels(path.read_bytes())
    for name, kernel in ours.items():
        assert kernel.spill_instructions == spilling.get(name, 0), name
    return sum(kernel.spill_instructions or 0 for kernel in ours.values())


def test_committed_cubins_equal_cuobjdump(toolchain: Toolchain) -> None:
    cuobjdump = need(toolchain, "cuobjdump")
    assert sum(assert_equal_to_cuobjdump(cuobjdump, path) for path in COMMITTED) >= 50


def test_committed_cubins_equal_nvdisasm(toolchain: Toolchain) -> None:
    nvdisasm = need(toolchain, "nvdisasm")
    if b"-annotate" not in run_tool([nvdisasm, "--help"]).stdout:
        pytest.skip("this nvdisasm has no -annotate (13.5 has)")
    assert sum(assert_equal_to_nvdisasm(nvdisasm, path) for path in COMMITTED) > 500


def test_the_listing_of_a_cubin_has_its_families(toolchain: Toolchain) -> None:
    need(toolchain, "nvdisasm")
    total = other = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("softmax", "forced_spills", "matmul_tensor", "histogram", "layernorm"):
            path = KERNELS / "sm_90" / f"{name}.cubin"
            data = path.read_bytes()
            tools = toolchain.tools["nvdisasm"]
            listed = disassemble(data, path.name, tools, Path(folder), threading.Event(), None)
            assert isinstance(listed, MachineCode)
            for view in measure(Artifact(path.name, cubin=data, sass=listed)).kernels:
                assert view.metrics.sass_tool.startswith("nvdisasm ")
                families = count_sass_families(view.metrics.sass_opcodes or {})
                assert families["local"] if view.metrics.spill_instructions else True
                assert sum(families.values()) == view.metrics.sass_instructions
                total += sum(families.values())
                other += families.get("other", 0)
    assert total > 1500
    assert other < 0.01 * total


def ptxas_usage(said: str) -> dict[str, tuple[int, ...]]:
    """By kernel: registers, stack, shared memory, bytes of spill stores and loads, barriers."""
    found = {}
    for part in said.split("Compiling entry function '")[1:]:
        name, _, rest = part.partition("'")
        own = rest.partition(f"Function properties for {name}\n")[2]
        frame, stores, loads = map(int, re.findall(r"(\d+) bytes", own)[:3])
        used = next(line for line in rest.splitlines() if "Used" in line)

        def number(pattern: str, line: str = used) -> int:
            match = re.search(pattern, line)
            return int(match.group(1)) if match else 0

        found[name] = (
            number(r"Used (\d+) registers"),
            max(frame, number(r"(\d+) bytes cumulative stack size")),
            number(r"(\d+)(?:\+\d+)? bytes smem"),
            stores,
            loads,
            number(r"used (\d+) barriers"),
        )
    return found


@pytest.fixture(scope="session")
def assembled(
    toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, str], tuple[Path, str]]:
    """The committed sm_80 PTX assembled for other targets, with what ptxas said."""
    ptxas = need(toolchain, "ptxas")
    folder = tmp_path_factory.mktemp("assembled")
    built = {}
    for target in TARGETS:
        for source in sorted((KERNELS / "sm_80").glob("*.ptx")):
            text = source.read_text(encoding="utf-8")
            if target == "sm_75":
                text = text.replace(".target sm_80", ".target sm_75")
            path = folder / f"{source.stem}.{target}.cubin"
            (folder / "in.ptx").write_text(text, encoding="utf-8")
            run = run_tool([ptxas, "-v", f"-arch={target}", "in.ptx", "-o", path.name], cwd=folder)
            assert run.ok, run.stderr.decode()
            built[source.stem, target] = (path, run.stderr.decode())
    return built


@pytest.mark.ci
def test_ptxas_and_cubin_agree_for_every_target(
    assembled: dict[tuple[str, str], tuple[Path, str]],
) -> None:
    compared = 0
    for path, said in assembled.values():
        _, ours = kernels(path.read_bytes())
        theirs = ptxas_usage(said)
        assert set(ours) == set(theirs)
        for name, kernel in ours.items():
            assert (
                kernel.registers,
                kernel.stack_bytes,
                kernel.shared_bytes,
                kernel.spill_store_bytes,
                kernel.spill_load_bytes,
                kernel.barriers,
            ) == theirs[name], (path.name, name)
            compared += 1
    assert compared >= 25 * len(TARGETS)


def test_cuobjdump_agrees_for_every_target(
    toolchain: Toolchain, assembled: dict[tuple[str, str], tuple[Path, str]]
) -> None:
    cuobjdump = need(toolchain, "cuobjdump")
    for (stem, _), (path, _) in assembled.items():
        if stem in ("forced_spills", "dynamic_shared", "printf_left_in", "several_kernels"):
            assert assert_equal_to_cuobjdump(cuobjdump, path) > 0


def test_ptxas_warning_and_computed_launch_bounds_agree(
    assembled: dict[tuple[str, str], tuple[Path, str]],
) -> None:
    for (stem, target), (_, said) in assembled.items():
        report = parse_ptxas_output(said)
        ptx = (KERNELS / "sm_80" / f"{stem}.ptx").read_bytes()
        for view in measure(Artifact(stem, ptx, arch=target)).kernels:
            found = {v.rule for v in Linter(KernelPolicy()).lint(view).violations}
            ignored = view.name in report.unmet_bounds
            assert ("unmet-launch-bounds" in found) == ignored, (target, view.name)


def test_ptxas_reports_errors_with_lines(toolchain: Toolchain, tmp_path: Path) -> None:
    ptxas = need(toolchain, "ptxas")
    (tmp_path / "bad.ptx").write_text(
        ".version 8.0\n.target sm_80\n.address_size 64\n.entry k(){\nadd.s32 %r1, %r2, 1;\n}\n",
        encoding="utf-8",
    )
    run = run_tool([ptxas, "-arch=sm_80", "bad.ptx", "-o", "out.cubin"], cwd=tmp_path)
    assert not run.ok
    problem = parse_ptxas_output(run.stderr.decode(), "src/bad.ptx").problems[0]
    assert (problem.slug, problem.file, problem.line) == ("ptxas-error", "src/bad.ptx", 5)


def test_ptx_that_calls_functions_of_other_files_is_assembled_all_the_same(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    need(toolchain, "ptxas")
    ptx = (
        b".version 8.0\n.target sm_80\n.address_size 64\n.extern .func elsewhere();\n"
        b".visible .entry k() { call.uni elsewhere; ret; }\n"
    )
    made = assemble(ptx, "k.ptx", "", toolchain.tools["ptxas"], tmp_path, threading.Event(), None)
    assert made is not None
    assert (made.error, made.problems) == ("", [])
    assert list(kernels(made.cubin or b"")[1]) == ["k"]


@pytest.mark.ci
def test_committed_artifacts_are_those_of_their_sources(toolchain: Toolchain) -> None:
    nvcc = toolchain.first("nvcc")
    if not isinstance(nvcc, Tool) or nvcc.release != (13, 0):
        pytest.skip("needs nvcc 13.0, with which the committed kernels were built")
    environment = {
        **os.environ,
        "PATH": f"{Path(nvcc.path).parent}{os.pathsep}{os.environ['PATH']}",
    }
    script = [sys.executable, str(KERNELS / "rebuild.py"), "--check", "softmax", "forced_spills"]
    run = run_tool(script, environment=environment)
    assert run.ok, (run.stdout + run.stderr).decode()


@pytest.fixture(scope="session")
def published(
    toolchain: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[tuple[Path, Path]]]:
    """(PTX, cubin) pairs of the CUDA kernels in the wheel of ``implicit`` 0.7.3 from PyPI."""
    cuobjdump = need(toolchain, "cuobjdump")
    folder = tmp_path_factory.mktemp("published")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    pip = [sys.executable, "-m", "pip", *arguments, "--python-version", "3.11"]
    platform = ["--platform", "manylinux2014_x86_64", "implicit==0.7.3"]
    download = run_tool([*pip, *platform], timeout=600)
    if not download.ok:
        pytest.skip("the wheel of implicit 0.7.3 cannot be had from PyPI here")
    (wheel,) = folder.glob("*.whl")
    shutil.unpack_archive(wheel, folder / "wheel", "zip")
    library = folder / "wheel" / "implicit" / "gpu" / "_cuda.so"
    for option in ("-xptx", "-xelf"):
        command = [cuobjdump, option, "all", str(library)]
        subprocess.run(command, cwd=folder, check=True, timeout=600)
    yield [(ptx, ptx.with_suffix(".cubin")) for ptx in sorted(folder.glob("*.ptx"))]
    shutil.rmtree(folder)


def test_no_error_on_the_kernels_of_a_published_package(published: list[tuple[Path, Path]]) -> None:
    linter = Linter(KernelPolicy())
    seen = 0
    for ptx, cubin in published:
        measured = measure(Artifact(ptx.name, ptx.read_bytes(), cubin.read_bytes()))
        assert measured.problems == []
        for view in measured.kernels:
            assert view.metrics.metric_source == "cubin"
            assert [v for v in linter.lint(view).violations if v.severity == "error"] == []
            seen += 1
    assert seen > 500


def test_a_published_package_equals_cuobjdump(
    toolchain: Toolchain, published: list[tuple[Path, Path]]
) -> None:
    cuobjdump = need(toolchain, "cuobjdump")
    assert sum(assert_equal_to_cuobjdump(cuobjdump, cubin) for _, cubin in published) > 500


def test_tools_of_installed_packages_are_found(toolchain: Toolchain) -> None:
    site = Path(sysconfig.get_paths()["purelib"])
    installed = [n for n in ("cuobjdump", "nvdisasm") if (site / "nvidia/cu13/bin" / n).is_file()]
    if not installed:
        pytest.skip("no NVIDIA wheel is installed: pip install nvidia-cuda-cuobjdump")
    for name in installed:
        assert "nvidia/cu13" in {tool.origin for tool in toolchain.tools[name]} or (
            toolchain.tools[name][0].origin == "PATH"
        )
