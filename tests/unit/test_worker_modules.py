"""The workspace's modules are told from others, whatever changed since they were looked at."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuemu_flow.workers import jobs
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.channel import Watch
from gpuemu_flow.workers.jobs import Evaluator

NAME = "a_module_of_the_test"


@pytest.fixture
def evaluator(tmp_path: Path) -> Iterator[Evaluator]:
    program = Program("callable", root=str(tmp_path), input_names=("x",))
    yield Evaluator(program, lambda _: None, Watch())
    sys.modules.pop(NAME, None)


def put(path: Path | None) -> ModuleType:
    module = sys.modules[NAME] = ModuleType(NAME)
    if path is not None:
        module.__file__ = str(path)
    return module


def test_only_the_workspaces_modules_are_taken(evaluator: Evaluator, tmp_path: Path) -> None:
    before = dict(sys.modules)
    module = put(tmp_path / "m.py")
    assert evaluator._take_modules() == {NAME: module}
    assert sys.modules == before


def test_a_module_that_replaces_one_from_elsewhere_is_taken(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    put(Path("/elsewhere/m.py"))
    assert evaluator._take_modules() == evaluator._take_modules() == {}
    module = put(tmp_path / "m.py")
    assert evaluator._take_modules() == {NAME: module}


def test_a_module_that_is_given_its_file_later_is_taken(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    module = put(None)
    assert evaluator._take_modules() == {}
    module.__file__ = str(tmp_path / "m.py")
    assert evaluator._take_modules() == {NAME: module}


def test_what_was_loaded_before_workers_is_not_looked_at_again(
    evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it seems to lie in the workspace; a module that takes its place is another."""
    monkeypatch.setattr(jobs, "_never_taken", {})
    (tmp_path / "pyvenv.cfg").write_text("")
    put(tmp_path / "lib/python3.11/site-packages/m.py")
    jobs.prepare()
    assert jobs._never_taken[NAME] is sys.modules[NAME]
    assert jobs._never_taken["sys"] is sys
    assert jobs._never_taken["gpuemu_flow.workers.jobs"] is jobs
    assert evaluator._take_modules() == {}
    module = put(tmp_path / "m.py")
    assert evaluator._take_modules() == {NAME: module}
