"""NVIDIA's tools as programs: found in order, asked for their release, ended when they hang."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpuemu_flow.lint.toolchain import Tool, find_tools, run_tool

pytestmark = pytest.mark.ci


def program(path: Path, text: str) -> Path:
    """An executable script at a path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


def fake(path: Path, release: str) -> Path:
    return program(path, f"print('Cuda compilation tools, release {release}, V{release}.99')")


def test_search_order_configured_path_packages_triton(tmp_path: Path) -> None:
    site = tmp_path / "site"
    configured = fake(tmp_path / "mine" / "ptxas", "12.4")
    on_path = fake(tmp_path / "bin" / "ptxas", "11.8")
    packaged = fake(site / "nvidia" / "cu13" / "bin" / "ptxas", "13.0")
    older = fake(site / "nvidia" / "cuda_nvcc" / "bin" / "ptxas", "12.9")
    triton = fake(site / "triton" / "backends" / "nvidia" / "bin" / "ptxas", "12.8")
    newer = fake(triton.with_name("ptxas-blackwell"), "13.1")
    chain = find_tools({"ptxas": str(configured)}, {"PATH": str(on_path.parent)}, [site])
    assert [(t.path, t.release) for t in chain.tools["ptxas"]] == [
        (str(configured), (12, 4)),
        (str(on_path), (11, 8)),
        (str(packaged), (13, 0)),
        (str(older), (12, 9)),
        (str(triton), (12, 8)),
        (str(newer), (13, 1)),
    ]
    assert chain.problems == []


def test_a_configured_tool_that_does_not_work_is_named_and_the_search_goes_on(
    tmp_path: Path,
) -> None:
    broken = program(tmp_path / "ptxas", "import sys; sys.exit('no licence')")
    working = fake(tmp_path / "bin" / "ptxas", "13.0")
    chain = find_tools({"ptxas": str(broken)}, {"PATH": str(working.parent)}, [])
    assert [(p.slug, p.file) for p in chain.problems] == [("tool-unusable", str(broken))]
    assert "no licence" in chain.problems[0].message
    found = chain.first("ptxas")
    assert isinstance(found, Tool)
    assert found.path == str(working)


def test_a_program_is_run_and_its_output_kept() -> None:
    run = run_tool([sys.executable, "-c", "import sys; print('out'); sys.exit('err')"])
    assert (run.status, run.ok, run.stdout.strip(), run.stderr.strip()) == (
        1,
        False,
        b"out",
        b"err",
    )


def test_a_program_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    """Also with what has a process group of its own, as each compiler that ninja starts."""
    lock, started = tmp_path / "lock", threading.Event()
    child = (
        f"import fcntl, time; stream = open({str(lock)!r}, 'w');"
        "fcntl.flock(stream, fcntl.LOCK_EX); stream.write('held'); stream.flush(); time.sleep(600)"
    )
    text = (
        "import subprocess, sys;"
        f"subprocess.run([sys.executable, '-c', {child!r}], start_new_session=True)"
    )

    def wait() -> None:
        while not lock.exists() or not lock.read_text():
            time.sleep(0.01)
        started.set()

    threading.Thread(target=wait, daemon=True).start()
    run = run_tool([sys.executable, "-c", text], cancel=started)
    assert run.status is None and run.stopped
    with lock.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # free once the child is gone


def test_ctrl_c_ends_the_program_too(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    child = (
        f"import fcntl, time; stream = open({str(lock)!r}, 'w');"
        "fcntl.flock(stream, fcntl.LOCK_EX); stream.write('held'); stream.flush(); time.sleep(600)"
    )
    text = (
        "import signal, sys; from gpuemu_flow.lint.toolchain import run_tool;"
        # a shell that runs the tests in the background has them ignore it
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        f"run_tool([sys.executable, '-c', {child!r}])"
    )
    process = subprocess.Popen([sys.executable, "-c", text], stderr=subprocess.DEVNULL)
    while not lock.exists() or not lock.read_text():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.wait()
    with lock.open("r+") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)  # waits for the child to be gone


def test_a_program_that_prints_without_end_is_stopped() -> None:
    run = run_tool(
        [sys.executable, "-c", "while True: print('x' * 1000)"], timeout=600, max_output=100_000
    )
    assert run.status is None
    assert "100000 bytes" in run.stopped


@pytest.mark.parametrize("arguments", [["/no/such/program"], [os.devnull], ["a\0b"]])
def test_a_program_that_cannot_be_started(arguments: list[str]) -> None:
    run = run_tool(arguments)
    assert (run.status, run.ok) == (127, False)
    assert run.stderr
