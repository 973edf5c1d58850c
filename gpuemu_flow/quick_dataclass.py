"""A `dataclass` decorator like the standard library's, at a twentieth of its cost per class.

A command builds some 200 of these classes when its modules are imported. The standard library
compiles up to six methods for each, which was a third of the cost of a command. Here a class
compiles its ``__init__`` when the first of its objects is made, and the other methods are shared
functions. `dataclasses.fields`, `replace` and `asdict` take these classes as they take all others.

Packages that are imported into users' processes have few classes, and use the standard library's
decorator.
"""

from __future__ import annotations

import dataclasses
from dataclasses import MISSING, Field, FrozenInstanceError, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["dataclass", "finish_all"]


def _quick_dataclass(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    eq: bool = True,
    kw_only: bool = False,
    slots: bool = False,
) -> Any:
    """Give a class the same methods as `dataclasses.dataclass` does.

    Parameters
    ----------
    cls : type, optional
        The class; None if the decorator is called with options.
    frozen, eq, kw_only : bool
    slots : bool
        True to let the standard library do the work, which then makes a new class with slots.

    Returns
    -------
    type or callable
        The class; if `cls` is None, a decorator.
    """
    if cls is None:
        return lambda cls: _quick_dataclass(cls, frozen=frozen, eq=eq, kw_only=kw_only, slots=slots)
    if slots:
        return dataclasses.dataclass(frozen=frozen, eq=eq, kw_only=kw_only, slots=True)(cls)
    explicit_hash = cls.__dict__.get("__hash__") is not None
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    methods: dict[str, Any] = {"__repr__": _repr}
    if "__init__" not in cls.__dict__:
        methods["__init__"] = _first_init(cls, frozen)
    if eq:
        methods["__eq__"] = _equality(cls)
    if frozen:
        methods["__setattr__"], methods["__delattr__"] = _refusals(cls)
    for name, method in methods.items():
        if name not in cls.__dict__:
            setattr(cls, name, method)
    if eq and not explicit_hash:
        setattr(cls, "__hash__", _hash(cls) if frozen else None)  # noqa: B010 - type checkers object
    return cls


_frozen_by_class: dict[type, bool] = {}
"""Classes whose ``__init__`` is not compiled yet, and whether each is frozen."""


def _first_init(cls: type, frozen: bool) -> Callable[..., None]:
    """Return an ``__init__`` that at its first call replaces itself by the compiled method."""

    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        _finish(cls)
        cls.__init__(self, *args, **kwargs)  # type: ignore[misc]  # of this very instance

    _frozen_by_class[cls] = frozen
    return __init__


def _finish(cls: type) -> None:
    """Compile the ``__init__`` of a class, unless another thread has just done so."""
    frozen = _frozen_by_class.get(cls)
    if frozen is not None:
        setattr(cls, "__init__", _compile_init(cls, frozen))  # noqa: B010 - for type checkers
        _frozen_by_class.pop(cls, None)


def finish_all() -> None:
    """Compile every ``__init__`` that is not compiled yet, to save each fork this work."""
    for cls in list(_frozen_by_class):
        _finish(cls)


def _compile_init(cls: type, frozen: bool) -> Callable[..., None]:
    """Compile the ``__init__`` that the standard library would have made."""
    known: dict[str, Any] = {"_missing": MISSING, "_set": object.__setattr__}
    positional, named, body = ["self"], list[str](), list[str]()
    for number, field in enumerate(fields(cls)):
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not MISSING:
            known[f"_make{number}"] = field.default_factory
            value = f"_make{number}()"
            if field.init:
                parameter += "=_missing"
                value = f"{value} if {name} is _missing else {name}"
        elif not field.init:
            continue  # its default is an attribute of the class
        elif field.default is not MISSING:
            known[f"_default{number}"] = field.default
            parameter += f"=_default{number}"
        if field.init:
            (named if field.kw_only else positional).append(parameter)
        body.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    source = "\n".join([f"def __init__({parameters}):", *(body or [" pass"])])
    exec(source, known)  # noqa: S102 - names of our own fields, as in the standard library
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__module__ = cls.__module__
    return made


def _repr(self: object) -> str:
    """Return the call that makes the object, as text."""
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in _fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _fields(value: Any) -> tuple[Field[Any], ...]:
    return fields(value)


def _values_of(names: list[str]) -> Callable[[Any], Any]:
    """Return a function that returns the values of an object's attributes `names`."""
    return attrgetter(*names) if names else lambda _: ()


def _equality(cls: type) -> Callable[[Any, Any], bool]:
    values = _values_of([f.name for f in _fields(cls) if f.compare])

    def __eq__(self: Any, other: Any) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return bool(values(self) == values(other))

    return __eq__


def _hash(cls: type) -> Callable[[Any], int]:
    counted = [f for f in _fields(cls) if (f.compare if f.hash is None else f.hash)]
    values = _values_of([f.name for f in counted])

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    return __hash__


def _refusals(cls: Any) -> tuple[Callable[[Any, str, Any], None], Callable[[Any, str], None]]:
    """Return `__setattr__` and `__delattr__` for a frozen class, which refuse to change fields."""
    names = frozenset(f.name for f in _fields(cls))

    def refuse(verb: str, name: str) -> NoReturn:
        raise FrozenInstanceError(f"cannot {verb} field {name!r}")

    def __setattr__(self: Any, name: str, value: Any) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            refuse("assign to", name)
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in names:
            refuse("delete", name)
        super(cls, self).__delattr__(name)

    return __setattr__, __delattr__


if TYPE_CHECKING:
    from dataclasses import dataclass  # checkers know what it does to a class
else:
    dataclass = _quick_dataclass
