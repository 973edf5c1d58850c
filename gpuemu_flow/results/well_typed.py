"""Tell whether data read from a file have the types that their dataclasses promise."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Union

MAX_DEPTH = 24


def well_typed(value: Any, hint: Any, depth: int = 0) -> bool:
    """Tell whether a value, with all that it holds, is of a type.

    An integer counts as a float. Dataclasses are checked field by field; types that cannot be
    checked, such as ``Any``, accept anything.
    """
    if depth > MAX_DEPTH:
        return False
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return _plain(value, hint, depth)
    if origin in (Union, types.UnionType):
        return any(well_typed(value, one, depth + 1) for one in arguments)
    if origin is tuple:
        return isinstance(value, tuple) and _items(value, arguments, depth)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            well_typed(k, arguments[0], depth + 1) and well_typed(v, arguments[1], depth + 1)
            for k, v in value.items()
        )
    return True


def _plain(value: Any, hint: Any, depth: int) -> bool:
    if hint is Any or not isinstance(hint, type):  # from Python 3.11 on, Any is a class
        return True
    if hint in (int, float):
        fits = (int, float) if hint is float else int
        return isinstance(value, fits) and not isinstance(value, bool)
    if not isinstance(value, hint):
        return False
    if is_dataclass(hint) and not issubclass(hint, Enum):
        hints = _hints(hint)
        return all(well_typed(getattr(value, name), hints[name], depth + 1) for name in hints)
    return True


def _items(value: tuple[Any, ...], arguments: tuple[Any, ...], depth: int) -> bool:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return all(well_typed(item, arguments[0], depth + 1) for item in value)
    return len(value) == len(arguments) and all(
        well_typed(item, one, depth + 1) for item, one in zip(value, arguments, strict=True)
    )


@lru_cache
def _hints(kind: type) -> dict[str, Any]:
    from gpuemu_flow.artifacts.kernel_record import KernelRecord  # noqa: PLC0415 - named in hints

    return typing.get_type_hints(kind, localns={"KernelRecord": KernelRecord})
