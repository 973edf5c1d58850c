"""Overrides of the configuration as JSON, for workers of a cluster."""

from __future__ import annotations

import json

from gpuemu_flow.build.overrides import Overrides


def test_all_of_it_survives() -> None:
    given = Overrides(
        seed=7, draw_seed=True, ci="quick", cases=3, profile="ci",
        settings=("validation.seed=1",), words=("nightly", "softmax"),
        given=frozenset({"jobs", "until"}),
    )  # fmt: skip
    assert all(
        getattr(given, name) != getattr(Overrides(), name) for name in given.__struct_fields__
    )
    assert Overrides.from_json(json.loads(json.dumps(given.to_json()))) == given
