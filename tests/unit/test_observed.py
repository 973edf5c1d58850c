"""Observed inputs survive storage, and a damaged record is refused."""

from __future__ import annotations

import pytest

from gpuemu_flow.model.types import Observation

SEEN = Observation(frozenset({"/w/a.py"}), frozenset({"/w/b.py"}), frozenset({"/w"}))


def test_survives_storage() -> None:
    assert Observation.from_json(SEEN.to_json()) == SEEN


def test_joins_both_sides() -> None:
    joined = SEEN | Observation(files=frozenset({"/w/c.py"}))
    assert joined.files == {"/w/a.py", "/w/c.py"}
    assert joined.listed == {"/w"}


@pytest.mark.parametrize("damage", [{"files": "abc"}, {"files": [1]}, {"missed": None}])
def test_refuses_damage(damage: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(damage))):
        Observation.from_json({**SEEN.to_json(), **damage})
