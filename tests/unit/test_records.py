"""The quick `dataclass` makes what the standard library's makes, whatever a class asks for."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import KW_ONLY, FrozenInstanceError, field, fields, replace
from typing import Any, ClassVar

import pytest

from gpuemu_flow import records

NAN = float("nan")
Make = Callable[..., Any]


def plain(made: Make) -> Any:
    @made
    class Record:
        name: str
        sizes: list[int] = field(default_factory=list)

    return Record


def frozen(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        """Documented."""

        name: str
        size: float = 1.5
        more: dict[str, int] = field(default_factory=dict, compare=False)
        hidden: int = field(default=3, repr=False)
        kept: ClassVar[int] = 4

    return Record


def one_field(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        name: str

    return Record


def prepared(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        name: str
        doubled: str = field(init=False)
        found: list[int] = field(init=False, default_factory=list)
        fixed: int = field(init=False, default=5)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", self.name * 2)

    return Record


def by_name(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        name: str
        _: KW_ONLY
        size: int
        depth: int = 2

    return Record


def all_by_name(made: Make) -> Any:
    @made(frozen=True, kw_only=True)
    class Record:
        depth: int = 2
        name: str

    return Record


def no_comparison(made: Make) -> Any:
    @made(frozen=True, eq=False)
    class Record:
        name: str

    return Record


def own_methods(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        name: str

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    return Record


def derived(made: Make) -> Any:
    @made(frozen=True)
    class Base:
        name: str
        size: int = 1

    @made(frozen=True)
    class Record(Base):
        depth: int = 2

    return Record


def empty(made: Make) -> Any:
    @made(frozen=True)
    class Record:
        pass

    return Record


CALLS: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    (("a",), {}), (("a", 2), {}), (("a",), {"size": 3}), ((NAN,), {}), ((), {"name": "a"}),
    ((), {"name": "b", "depth": 4}), (("a", 2, 3), {}), ((), {}), (("a",), {"junk": 1}),
    (([1],), {}),
)  # fmt: skip
SHAPES = (
    plain, frozen, one_field, prepared, by_name, all_by_name, no_comparison, own_methods, derived,
    empty,
)  # fmt: skip


def outcome(act: Callable[[], Any]) -> Any:
    """What came of it; an exception by its type and words."""
    try:
        return act()
    except Exception as error:
        return type(error), str(error).replace("_self", "self")


def changed(one: Any, act: Callable[[Any], None]) -> Any:
    """What is left of a copy after a change, or the exception that it met with."""
    other = copy(one)
    return outcome(lambda: act(other) or repr(vars(other)))


def told(made: Any, built: list[Any]) -> list[Any]:
    """All that can be seen of the class and some objects of it."""
    seen: list[Any] = [
        [(f.name, f.type, f.init, f.repr, f.compare, f.kw_only) for f in fields(made)],
        made.__match_args__,
        [
            (p.name, p.kind, p.annotation, p.default is inspect.Parameter.empty)
            for p in inspect.signature(made).parameters.values()
        ],
        made.__hash__ is None,
    ]
    for one in built:
        if isinstance(one, tuple):
            seen.append(one)
            continue
        bare = type(one).__eq__ is object.__eq__
        seen += [
            "" if "0x" in repr(one) else repr(one),
            repr(dataclasses.asdict(one)),
            [one == other for other in built],
            [one != other for other in (3, None, "a")],
            outcome(lambda one=one: hash(one)) if not bare else None,
            changed(one, lambda one: setattr(one, "name", 1)),
            changed(one, lambda one: setattr(one, "new", 1)),
            changed(one, lambda one: delattr(one, "name")),
        ]
    return seen


@pytest.mark.parametrize("shape", SHAPES)
def test_it_makes_what_the_standard_library_makes(shape: Callable[[Make], Any]) -> None:
    ours, theirs = shape(records.dataclass), shape(dataclasses.dataclass)
    of_ours = [outcome(lambda a=a, k=k: ours(*a, **k)) for a, k in CALLS]
    of_theirs = [outcome(lambda a=a, k=k: theirs(*a, **k)) for a, k in CALLS]
    assert any(not isinstance(one, tuple) for one in of_ours)
    assert told(ours, of_ours) == told(theirs, of_theirs)


def test_each_object_has_a_default_of_its_own() -> None:
    made = frozen(records.dataclass)
    assert made("a").more is not made("b").more


def test_a_changed_copy_is_made_of_it() -> None:
    one = frozen(records.dataclass)("a", more={"x": 1})
    assert dataclasses.is_dataclass(one)
    assert replace(one, name="b").more is one.more
    with pytest.raises(FrozenInstanceError):
        one.name = "c"


def test_a_mutable_default_is_refused() -> None:
    with pytest.raises(ValueError, match="mutable default"):

        @records.dataclass(frozen=True)
        class Record:
            sizes: list[int] = []  # noqa: RUF012
