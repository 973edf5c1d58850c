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


@pytest.mark.ci
def test_the_answer_that_nothing_changed_imports_next_to_nothing(mini: Mini) -> None:
    first = imported(mini, "run")
    assert "doit" in tops(first), "a run that works is what the list must be able to show"
    assert loaded(first, PARTS_FOR_OTHERS) == set()
    again = imported(mini, "run")
    assert not tops(again) & (HEAVY | {"click", "diskcache", "json", "hashlib"})
    own = {name for name in again if name.startswith("gpuemu_flow")}
    assert own == {"gpuemu_flow", "gpuemu_flow.front", "gpuemu_flow.build",
                   "gpuemu_flow.build.stamps",
                   "gpuemu_flow.model", "gpuemu_flow.model.let_through"}  # fmt: skip


def test_checking_a_configuration_needs_no_numbers_and_no_engine(mini: Mini) -> None:
    found = imported(mini, "config", "check")
    assert "gpuemu_flow.config.load" in found
    assert not tops(found) & {"numpy", "doit", "diskcache", "rich", "pynng"}


QUERIES = (
    ("run", "--format", "json"), ("list",), ("explain", "op:scale:float32"),
)  # fmt: skip
ONLY_FOR_WORK = HEAVY | {"jinja2", "ml_dtypes", "multiprocessing", "unittest"}
PARTS_FOR_WORK = (
    "build.run", "cases.generate", "emulator", "fuzz.failures", "fuzz.subjects",
    "judge.case_evaluator", "judge.judge_requests", "services.daemon.control", "tasks.compare",
    "tasks.programs",
)  # fmt: skip


PARTS_FOR_OTHERS = (
    "build.compile_kernels", "build.unordered", "cli.completion", "emulator", "fuzz", "lint",
    "report.json_writer", "report.submissions", "services", "wire",
)  # fmt: skip
"""What a run of ops that pass does without: kernels, rules, failures, clients."""


def loaded(found: set[str], parts: tuple[str, ...]) -> set[str]:
    """Modules of ours, among those imported, that are one of these parts or belong to it."""
    begins = tuple(f"gpuemu_flow.{part}" for part in parts)
    return {name for name in found if any(name == b or name.startswith(f"{b}.") for b in begins)}


@pytest.mark.ci
def test_commands_with_nothing_to_do_load_nothing_that_works(mini: Mini) -> None:
    """No numbers, no engine of tasks, no workers' work, no other command."""
    worked = imported(mini, "run")
    assert len(loaded(worked, ("build.run", "judge.judge_requests"))) == 2
    for arguments in QUERIES:
        found = imported(mini, *arguments)
        heavy = {name for name in ONLY_FOR_WORK if name in found or name in tops(found)}
        assert heavy == set(), arguments
        assert loaded(found, PARTS_FOR_WORK) == set(), arguments
        commands = loaded(found, tuple(f"cli.{name}" for name in ("fuzz", "watch", "debug", "lsp")))
        assert commands == set(), arguments
