"""Outputs that an op left in the inputs that it may change."""

from __future__ import annotations

from typing import Any

from for_each import for_each

from gpuemu_flow.model.in_place import with_changed_inputs

GIVEN = {"x": "X", "w": "W", "v": "V"}
TAKEN: list[tuple[Any, tuple[str, ...], tuple[str, ...], Any]] = [
    # returned, names of outputs, inputs that may change, outputs
    (None, (), ("x",), {"x": "X"}),
    (None, ("y",), ("x",), {"y": "X"}),
    (None, ("y", "z"), ("x", "w"), {"y": "X", "z": "W"}),
    (None, ("w", "x"), ("x", "w"), {"w": "W", "x": "X"}),
    (None, ("w",), ("x", "w"), {"w": "W"}),
    ("Y", ("y", "w"), ("w",), {"y": "Y", "w": "W"}),
    (["Y"], ("y", "w"), ("w",), {"y": "Y", "w": "W"}),
    ({"other": "Y"}, ("y", "w"), ("w",), {"y": "Y", "w": "W"}),
    (("Y", "Z"), ("y", "w", "z"), ("w", "x"), {"y": "Y", "w": "W", "z": "Z"}),
    ({"z": "Z", "y": "Y"}, ("y", "w", "z"), ("w",), {"y": "Y", "w": "W", "z": "Z"}),
]
LEFT: list[tuple[Any, tuple[str, ...], tuple[str, ...]]] = [
    (None, ("y",), ()),
    (None, ("y",), ("x", "w")),
    (None, ("y", "z"), ("x",)),
    (None, ("y",), ("unknown",)),
    ("Y", ("y",), ("x",)),
    ("X", ("x",), ("x",)),
    (("Y", "W"), ("y", "w"), ("w",)),
    ({"y": "Y", "other": "Z"}, ("y", "w", "z"), ("w",)),
    ("Y", ("y", "w", "z"), ("w",)),
]


@for_each(("returned", "names", "changed", "outputs"), TAKEN)
def test_outputs_are_taken_from_inputs(
    returned: Any, names: tuple[str, ...], changed: tuple[str, ...], outputs: Any
) -> None:
    found = with_changed_inputs(returned, GIVEN, names, changed)
    assert found == outputs
    assert list(found) == list(outputs)


@for_each(("returned", "names", "changed"), LEFT)
def test_other_values_stay_as_they_are(
    returned: Any, names: tuple[str, ...], changed: tuple[str, ...]
) -> None:
    assert with_changed_inputs(returned, GIVEN, names, changed) is returned
