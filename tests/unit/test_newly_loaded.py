"""The modules that were loaded since an earlier moment, whatever happened to ``sys.modules``."""

from __future__ import annotations

import sys
import types

import pytest

from gpuemu_flow.runners.newly_loaded import Moment

NAMES = ("newly_loaded_a", "newly_loaded_b", "newly_loaded_c")


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, types.ModuleType]:
    """Put a copy in place of ``sys.modules``, which tests may change."""
    copy = dict(sys.modules)
    monkeypatch.setattr(sys, "modules", copy)
    return copy


def load(modules: dict[str, types.ModuleType], *names: str) -> None:
    """Add empty modules."""
    modules.update({name: types.ModuleType(name) for name in names})


def test_nothing_was_loaded(modules: dict[str, types.ModuleType]) -> None:
    assert Moment.now().since() == []
    modules.clear()
    assert Moment.now().since() == []


def test_only_new_names_are_given(modules: dict[str, types.ModuleType]) -> None:
    before = Moment.now()
    load(modules, *NAMES)
    assert sorted(before.since()) == sorted(NAMES)
    assert Moment.now().since() == []


def test_a_replaced_module_is_not_new(modules: dict[str, types.ModuleType]) -> None:
    load(modules, *NAMES)
    before = Moment.now()
    load(modules, NAMES[0])
    assert before.since() == []


@pytest.mark.parametrize("removed", [NAMES[:1], NAMES[1:], NAMES])
@pytest.mark.parametrize("added", [0, 1, 2, 3, 4])
def test_no_new_name_is_missed_where_others_were_removed(
    modules: dict[str, types.ModuleType], removed: tuple[str, ...], added: int
) -> None:
    load(modules, *NAMES)
    before = Moment.now()
    for name in removed:
        del modules[name]
    new = [f"newly_loaded_later_{n}" for n in range(added)]
    load(modules, *new)
    assert set(new) <= set(before.since())
