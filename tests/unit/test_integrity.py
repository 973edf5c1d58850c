"""The seal on our functions in a program's process: what was replaced is named."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import numpy as np
import pytest

from gpuemu_flow.runners import buffers, integrity
from gpuemu_flow.runners.integrity import Seal

LATE = "gpuemu_flow.runners.loaded_late"


class CallsItselfEqual:
    """Stands in for a function, and claims to be it."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __call__(self) -> None:
        """Do nothing."""


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record this process's modules, as the fork server does."""
    monkeypatch.setattr(integrity, "_prepared", {})
    monkeypatch.setattr(integrity, "_prepared_whole", [])
    integrity.prepare()


@pytest.fixture
def late(prepared: None) -> Iterator[types.ModuleType]:
    """Load a module of the runners after the recording."""
    module = types.ModuleType(LATE)
    exec("def watch(): pass", vars(module))
    sys.modules[LATE] = module
    yield module
    del sys.modules[LATE]


@pytest.mark.usefixtures("prepared")
def test_nothing_was_replaced() -> None:
    assert Seal().broken() == ""


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("other", [lambda: None, CallsItselfEqual()])
def test_a_replaced_function_is_named(other: object, monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal()
    monkeypatch.setattr(buffers.InputBuffers, "__init__", other)
    assert seal.broken() == "gpuemu_flow.runners.buffers.InputBuffers.__init__"
    monkeypatch.undo()
    assert seal.broken() == ""


@pytest.mark.usefixtures("prepared")
def test_a_deleted_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal()
    monkeypatch.delattr(buffers, "InputBuffers")
    assert seal.broken() == "gpuemu_flow.runners.buffers.InputBuffers"


@pytest.mark.usefixtures("prepared")
def test_a_replaced_function_of_numpy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = Seal()
    monkeypatch.setattr(np, "array_equal", CallsItselfEqual())
    assert seal.broken() == "numpy.array_equal"


def test_a_module_that_was_loaded_since_the_recording_is_watched(late: types.ModuleType) -> None:
    seal = Seal()
    assert seal.broken() == ""
    vars(late)["watch"] = CallsItselfEqual()
    assert seal.broken() == f"{LATE}.watch"


@pytest.mark.usefixtures("prepared")
def test_seals_do_not_share_what_they_saw() -> None:
    def other() -> None:
        """Be recoded."""

    first, second = Seal(), Seal()
    first.on_setattr(buffers.InputBuffers.__init__, "__code__", other.__code__)
    assert first.broken().endswith("__init__")
    assert second.broken() == ""
