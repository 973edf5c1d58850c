"""Our `dataclass` gives a class what the standard library's gives it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, asdict, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar

import pytest

from gpuemu_flow import quick_dataclass
from gpuemu_flow.quick_dataclass import finish_all

Decorator = Callable[..., Any]

quick: Decorator = quick_dataclass.dataclass


def plain(dataclass: Decorator) -> type:
    @dataclass(frozen=True)
    class Sample:
        """One."""

        SHARED: ClassVar[int] = 3
        first: int
        second: str = "b"
        third: list[int] = field(default_factory=list)
        hidden: int = field(default=7, repr=False, compare=False)
        made: int = field(default=5, init=False)
        listed: list[int] = field(default_factory=lambda: [1], init=False, hash=False)

        @cached_property
        def twice(self) -> int:
            return 2 * self.first

    return Sample


def changeable(dataclass: Decorator) -> type:
    @dataclass
    class Sample:
        """Two."""

        first: int
        second: str = "b"

        def __post_init__(self) -> None:
            self.second += "!"

    return Sample


def by_name(dataclass: Decorator) -> type:
    @dataclass(frozen=True, kw_only=True)
    class Base:
        """Three."""

        last: int = 9

    @dataclass(frozen=True)
    class Sample(Base):
        """Four."""

        first: int
        _: KW_ONLY
        second: str

    return Sample


def own_methods(dataclass: Decorator) -> type:
    @dataclass(frozen=True)
    class Sample:
        """Five."""

        first: int
        second: str

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 11

        def __eq__(self, other: object) -> bool:
            return True

    return Sample


def by_identity(dataclass: Decorator) -> type:
    @dataclass(frozen=True, eq=False)
    class Sample:
        """Six."""

        first: int
        second: str

    return Sample


def slotted(dataclass: Decorator) -> type:
    @dataclass(frozen=True, slots=True)
    class Sample:
        """Seven."""

        first: int
        second: str

    return Sample


KINDS = (plain, changeable, by_name, own_methods, by_identity, slotted)


def told(call: Callable[[], object]) -> object:
    """Return the result of a call, or the type and words of what it raises."""
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("make", KINDS)
def test_objects_behave_as_those_of_the_standard_library(make: Callable[[Decorator], type]) -> None:
    ours, theirs = make(quick), make(dataclasses.dataclass)

    def properties(cls: Any) -> list[object]:
        one, same, other = cls(1, second="x"), cls(1, second="x"), cls(2, second="x")
        bare = object.__new__(cls)
        return [
            repr(one).rpartition(".")[2],
            (one == same, one == other, one != same, one == 1, one.__eq__(1)),
            told(lambda: hash(one) == hash(same)),
            told(lambda: {one: 1}[same] if one == same else None),
            (replace(one, first=5).first, asdict(one), [f.name for f in fields(cls)]),
            cls.__match_args__,
            (cls.__hash__ is None, cls.__doc__),
            told(lambda: setattr(one, "first", 8)),
            told(lambda: delattr(one, "first")),
            told(lambda: setattr(one, "another", 8)),
            told(lambda: setattr(bare, "first", 8)),
            told(cls),
            told(lambda: cls(1, second="x", unknown=2)),
            [str(p) for p in inspect.signature(cls).parameters],
            told(lambda: one.twice),
            told(lambda: cls(1, second="x").third is cls(1, second="x").third),
        ]

    for mine, reference in zip(properties(ours), properties(theirs), strict=True):
        assert mine == reference


def test_a_derived_class_may_add_attributes_to_a_frozen_one() -> None:
    class Derived(plain(quick)):  # type: ignore[misc]
        pass

    value = Derived(1)
    value.note = "kept"
    with pytest.raises(FrozenInstanceError):
        value.first = 2
    assert value.note == "kept"


def test_an_init_is_compiled_once_and_early_when_asked_for() -> None:
    late, early = plain(quick), plain(quick)
    before = vars(late)["__init__"]
    late(1)
    compiled = vars(late)["__init__"]
    assert compiled is not before
    late(2)
    assert vars(late)["__init__"] is compiled
    finish_all()
    assert list(inspect.signature(early).parameters) == ["first", "second", "third", "hidden"]
