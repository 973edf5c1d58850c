"""Test which modules each command imports: a budget for start-up that does not depend on a
clock."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from mini_workspace import Mini

ROOT = Path(__file__).resolve().parent.parent.parent

HEAVY = {"numpy", "doit", "jsonschema", "pynng", "rich", "dask", "distributed"}
_LINE = re.compile(r"^import time:\s+\d+ \|\s+\d+ \|\s+(\S+)$", re.MULTILINE)


def imported(mini: Mini, *arguments: str, code: int = 0) -> set[str]:
    """Every module that the real command imports, told by the interpreter as it goes."""
    return set(imported_in_order(mini, *arguments, code=code))


def imported_in_order(mini: Mini, *arguments: str, code: int = 0) -> list[str]:
    """The same, in the order in which they have been imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "gpuemu_flow", *arguments],
        cwd=mini.root,
        env=mini.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr[-2000:]
    found: list[str] = _LINE.findall(done.stderr)
    assert "gpuemu_flow.front" in found, "the interpreter's list was not understood"
    return found


def tops(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("run", "--help")])
def test_help_and_version_import_nothing_heavy(mini: Mini, arguments: tuple[str, ...]) -> None:
    found = imported(mini, *arguments)
    assert "click" in found
    assert not tops(found) & HEAVY
    assert not tops(found) & {"sqlite3", "diskcache", "ml_dtypes", "tomli"}


@pytest.mark.long
def test_the_answer_that_nothing_changed_imports_next_to_nothing(mini: Mini) -> None:
    first = imported(mini, "run")
    assert "doit" in tops(first), "a run that works is what the list must be able to show"
    again = imported(mini, "run")
    assert not tops(again) & (HEAVY | {"click", "sqlite3", "diskcache", "json", "hashlib"})
    own = {name for name in again if name.startswith("gpuemu_flow")}
    assert own == {"gpuemu_flow", "gpuemu_flow.front", "gpuemu_flow.inputs",
                   "gpuemu_flow.inputs.plan", "gpuemu_flow.let_through"}  # fmt: skip


def test_checking_a_configuration_needs_no_numbers_and_no_engine(mini: Mini) -> None:
    found = imported(mini, "config", "check")
    assert "gpuemu_flow.config.load" in found
    assert not tops(found) & {"numpy", "doit", "diskcache", "rich", "pynng"}


QUERIES = (
    ("run", "--format", "json"), ("status",), ("list",), ("explain", "op:scale:float32"), ("ci",),
)  # fmt: skip
ONLY_FOR_WORK = HEAVY | {
    "asyncio", "concurrent", "email", "http", "importlib.metadata", "jinja2", "logging",
    "ml_dtypes", "multiprocessing", "subprocess", "traceback", "unittest",
    "urllib.request",
}  # fmt: skip
PARTS_FOR_WORK = (
    "artifacts", "cases.generate", "daemon.control", "emulator", "engine.run", "fuzz.failures",
    "fuzz.subjects", "fuzz.wire_ops", "judging.case_evaluator", "judging.stored", "runners.attempt",
    "runners.pool", "runners.worker", "tasks.compare", "tasks.parts.execute",
)  # fmt: skip
COMPILING = ("config.load", "config.model", "config.tables", "graph.compile")


def loaded(found: set[str], parts: tuple[str, ...]) -> set[str]:
    """Modules of ours, among those imported, that are one of these parts or belong to it."""
    begins = tuple(f"gpuemu_flow.{part}" for part in parts)
    return {name for name in found if any(name == b or name.startswith(f"{b}.") for b in begins)}


@pytest.mark.long
def test_commands_with_nothing_to_do_load_nothing_that_works(mini: Mini) -> None:
    """No numbers, no engine of tasks, no workers, no other command; parsing only where it counts.

    `ci` asks for ``[ci]`` of the configuration, so it is parsed.
    """
    worked = imported(mini, "run")
    assert loaded(worked, ("engine.run", "judging.stored", "config.load", "config.tables"))
    for arguments in QUERIES:
        found = imported(mini, *arguments)
        heavy = {name for name in ONLY_FOR_WORK if name in found or name in tops(found)}
        assert heavy == set(), arguments
        assert loaded(found, PARTS_FOR_WORK) == set(), arguments
        assert arguments == ("ci",) or loaded(found, COMPILING) == set(), arguments
        commands = loaded(found, tuple(f"cli.{name}" for name in ("fuzz", "watch", "debug", "lsp")))
        assert commands == set(), arguments


@pytest.mark.parametrize("arguments", [QUERIES[0], *QUERIES[1:4]], ids="-".join)
def test_an_answer_given_twice_imports_next_to_nothing(
    mini: Mini, arguments: tuple[str, ...]
) -> None:
    mini.command("run")
    mini.warm = False
    first = mini.command(*arguments).stdout  # of the interpreter that the plan is to be of
    mini.command("run")
    mini.command(*arguments)
    found = imported(mini, *arguments)
    assert not tops(found) & (HEAVY | {"click", "sqlite3", "diskcache", "json", "hashlib"})
    assert loaded(found, ("cli", "store", "config")) == set()
    assert mini.command(*arguments).stdout.splitlines()[:6] == first.splitlines()[:6]


@pytest.mark.long
def test_a_plain_run_loads_no_terminal_library(mini: Mini) -> None:
    """Standard output is no terminal here."""
    assert "rich" not in tops(imported(mini, "run"))


def test_only_a_merge_of_reports_loads_the_checker_of_schemas(mini: Mini) -> None:
    assert "jsonschema" not in tops(imported(mini, "ci", "--shard", "1/1", "-o", "r.json"))
    assert "jsonschema" not in tops(imported(mini, "report"))
    assert "jsonschema" in tops(imported(mini, "report", "--merge", "r.json"))


KERNEL_STAGES = {
    "build_kernel", "diff_kernel", "lint", "parts.compilers",
}  # fmt: skip


def kernel_modules(found: set[str]) -> set[str]:
    """Modules that are of no use without a kernel."""
    stages = {f"gpuemu_flow.tasks.{name}" for name in KERNEL_STAGES}
    parts = ("gpuemu_flow.artifacts", "gpuemu_flow.emulator")
    return {name for name in found if name in stages or name.startswith(parts)}


@pytest.mark.long
def test_a_run_without_kernels_loads_nothing_of_them(mini: Mini) -> None:
    assert kernel_modules(imported(mini, "run")) == set()


@pytest.mark.long
def test_a_run_with_a_kernel_loads_its_stages_and_rules(mini: Mini) -> None:
    """Else the test above would look for names that no module has."""
    kernel = ROOT / "scripts" / "kernels" / "sm_80" / "several_kernels.ptx"
    mini.write("k/k.ptx", kernel.read_text())
    mini.edit(
        "gpuemu.toml", "\n[targets]\n", '\n[[kernels]]\nname = "k"\nptx = "k/k.ptx"\n[targets]\n'
    )
    found = kernel_modules(imported(mini, "run"))
    assert {f"gpuemu_flow.tasks.{name}" for name in KERNEL_STAGES} <= found
    assert len([name for name in found if ".artifacts.rules." in name]) > 20
