"""Action keys: the same content gives the same key, and a difference is named."""

from __future__ import annotations

import pytest
from msgspec import Struct, to_builtins

from gpuemu_flow.store.keys import KeyParts, canonical, changed_parts, digest_json, encoded


def test_order_of_keys_does_not_matter() -> None:
    assert canonical({"b": 1, "a": [1, {"y": 2, "x": 3}]}) == b'{"a":[1,{"x":3,"y":2}],"b":1}'
    assert digest_json({"a": 1, "b": 2}) == digest_json({"b": 2, "a": 1})
    assert digest_json([1, 2]) != digest_json([2, 1])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        canonical(value)


class Named(Struct, frozen=True):
    name: str
    more: int = 1


def test_equal_values_are_encoded_alike_even_names_that_are_no_text() -> None:
    for value, text in (
        ({"b": 1, "a": [1.5, None]}, b'{"a":[1.5,null],"b":1}'),
        ({"b": 1, "a": "\udcff"}, b'{"a":"\\udcff","b":1}'),
        (Named("n"), b'{"more":1,"name":"n"}'),
        (Named("\udcff", 2), b'{"more":2,"name":"\\udcff"}'),
        (
            {"c": [{"case": Named("n"), "m": "\udcff"}]},
            b'{"c":[{"case":{"more":1,"name":"n"},"m":"\\udcff"}]}',
        ),
    ):
        assert encoded(value) == text


def test_each_part_counts_in_a_key() -> None:
    base = {"stage": "op/1", "code": {"a": "1"}, "params": {"k": 1}, "input": {"x": "2"},
            "env": {"e": "3"}, "observed": {"file f": "4"}}  # fmt: skip
    others = [KeyParts(**{**base, name: None}).key() for name in base if name != "stage"]
    others += [KeyParts(**{**base, "stage": "op/2"}).key(), KeyParts("op/1").key()]
    assert len({KeyParts(**base).key(), *others}) == len(others) + 1
    assert KeyParts(**base).key() == KeyParts(**dict(reversed(base.items()))).key()


def test_changes_are_named_with_old_and_new() -> None:
    old = KeyParts("op/1", {"a.py": "1", "b.py": "2"}, {"kwargs": {"eps": 1}}, {}, {"numpy": "2.3"})
    new = KeyParts("op/2", {"a.py": "1", "c.py": "3"}, {"kwargs": {"eps": 2}}, {}, {"numpy": "2.4"})
    found = changed_parts(to_builtins(old), to_builtins(new))
    assert [(reason.what, reason.old, reason.new) for reason in found] == [
        ("stage", "op/1", "op/2"),
        ("code.b.py", "2", None),
        ("code.c.py", None, "3"),
        ("params.kwargs.eps", 1, 2),
        ("env.numpy", "2.3", "2.4"),
    ]
    assert changed_parts(to_builtins(old), to_builtins(old)) == []
