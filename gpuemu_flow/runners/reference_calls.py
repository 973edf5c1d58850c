"""Notice each call of one function, whatever name, wrapper or container leads to it.

Interpreters that lack this package load this file by its path, so it imports nothing of the package
and runs under older versions of Python.
"""

from __future__ import annotations

import functools
import sys
import threading
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple  # noqa: UP035 - 3.8

REFUSED = 213
"""Exit code of `shim` if the program calls the forbidden function."""
_PLAIN = (bool, int, float, str, bytes, type(None))
_MOST_WRAPPERS = 16
_COMPILERS = (
    "jax.", "jaxlib.", "numba.", "torch.jit", "torch._C", "torch._dynamo", "tensorflow.", "triton.",
    "tvm.", "taichi.", "warp.", "cupy.", "mlx.",
)  # fmt: skip
"""Beginnings of the modules in which packages define the types of compiled functions."""


class WatchedCall(NamedTuple):
    """The code that a call executes, and the arguments that distinguish the call from others."""

    code: CodeType
    expected: Mapping[str, Any] = {}


class Given(NamedTuple):
    """The arguments in the tool's own call of a reference: input names, and keyword arguments."""

    inputs: Collection[str] = ()
    kwargs: Mapping[str, Any] = {}


def calls_of(
    found: Any, name: str, given: Given, is_own: Callable[[FunctionType], bool]
) -> list[WatchedCall]:
    """List the calls of a reference that compute the same as the tool's own call of the reference.

    In these calls, every parameter that is not an input has the same value as in the tool's call.
    The value is a default, a keyword argument that the tool passes, or a value that a partial or a
    method holds. A call with other values may compute something else.

    Each function gets its own copy of its code object. Otherwise, two functions made by the same
    ``def`` statement would share a code object, and their calls could not be distinguished.

    Parameters
    ----------
    found : object
        The reference: a function, or another object that can be called.
    name : str
        The name by which the reference is found in its module.
    given : Given
        The arguments in the tool's call.
    is_own : callable
        Tells whether a function may be watched. A library's function may not, since others use it.
    """
    last = name.rpartition(".")[2]
    calls = []
    for function, args, kwargs in _functions(found):
        is_inner = function is not found and found is not None and args is None
        if not is_own(function) or (is_inner and function.__code__.co_name != last):
            continue
        function.__code__ = function.__code__.replace()
        calls.append(WatchedCall(function.__code__, _expected(function, args or (), kwargs, given)))
    return calls


def _functions(
    found: Any,
) -> Iterator[tuple[FunctionType, tuple[Any, ...] | None, Mapping[str, Any]]]:
    """Yield the functions that a call of `found` leads to, each with its bound arguments.

    Bound arguments are those that a ``functools.partial``, a method or a callable object adds to
    the call: a tuple of positional arguments, and a mapping of keyword arguments. If a decorator
    wrapped the function, its bound arguments are not known: None and an empty mapping.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(found, functools.partial):
        args, kwargs, found = (*found.args, *args), {**found.keywords, **kwargs}, found.func
    if isinstance(found, MethodType):
        args, found = (found.__self__, *args), found.__func__
    elif not isinstance(found, (FunctionType, type)):
        called = getattr(type(found), "__call__", None)  # noqa: B004 - the function is wanted
        if isinstance(called, FunctionType):
            yield called, (found, *args), kwargs
    if isinstance(found, FunctionType):
        yield found, args, kwargs
    for _ in range(_MOST_WRAPPERS):
        found = getattr(found, "__wrapped__", None)
        if isinstance(found, FunctionType):
            yield found, None, {}


def _expected(
    function: FunctionType, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Given
) -> dict[str, Any]:
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    values = dict(zip(positional[len(positional) - len(defaults) :], defaults))  # noqa: B905 - 3.8
    values.update(function.__kwdefaults__ or {})
    values.update({k: v for k, v in given.kwargs.items() if k in names})
    values = {name: value for name, value in values.items() if name not in given.inputs}
    values.update(zip(positional, args))  # noqa: B905
    values.update({k: v for k, v in kwargs.items() if k in names})
    return values


def calls_in(code: CodeType, name: str) -> list[WatchedCall]:
    """Find a function in the code of a script; return its calls, with any arguments, for `watch`.

    Parameters
    ----------
    code : CodeType
        Code of the script, not executed yet.
    name : str
        Name of the function, with dots if it is nested.
    """
    found = [code]
    for part in name.split("."):
        inside = [constant for each in found for constant in each.co_consts]
        found = [c for c in inside if isinstance(c, CodeType) and c.co_name == part]
    return [WatchedCall(each) for each in found]


def resolved(owner: Any, names: Iterable[str]) -> Any:
    """Return the attribute that the names lead to, one after the other; None if there is none."""
    for name in names:
        owner = getattr(owner, name, None)
    return owner


def is_same(one: Any, other: Any) -> bool:
    """Tell whether two callables are known to compute the same.

    This holds if they are one object, if `one` is a subclass of `other` without methods of its own,
    or if they are two partials, methods or instances with the same arguments or attributes.
    """
    if one is other:
        return True
    if isinstance(one, type) and isinstance(other, type):
        return issubclass(one, other) and not any(map(callable, vars(one).values()))
    if type(one) is not type(other) or isinstance(one, (type, FunctionType)):
        return False
    if isinstance(one, functools.partial):
        ours, theirs = (one.func, *one.args), (other.func, *other.args)
        return _are_equal(dict(enumerate(ours)), dict(enumerate(theirs))) and _are_equal(
            one.keywords, other.keywords
        )
    if isinstance(one, MethodType):
        return one.__func__ is other.__func__ and one.__self__ is other.__self__
    states = [getattr(each, "__dict__", None) for each in (one, other)]
    return None not in states and _are_equal(*states)


def _are_equal(one: Any, other: Any) -> bool:
    return one.keys() == other.keys() and all(_is_equal(one[name], other[name]) for name in one)


def _is_equal(one: Any, other: Any) -> bool:
    plain = type(one) is type(other) and isinstance(one, _PLAIN)
    return one is other or (plain and bool(one == other))


def is_compiled(function: Any) -> bool:
    """Tell whether a compiler made a callable from another function, which may be the reference.

    The callable then has a type of an installed compiler, or the mark of ``torch.compile``. Other
    types of installed packages, such as ``numpy.vectorize``, call the function itself.
    """
    module = str(type(function).__module__)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    of_compiler = module.startswith(_COMPILERS) and "-packages" in file
    return of_compiler or hasattr(function, "_torchdynamo_orig_callable")


def watch(calls: list[WatchedCall], on_call: Callable[[], object]) -> None:
    """Call `on_call` at the beginning of each of the calls, in this thread and in later ones."""
    if not calls:
        return

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            code = frame.f_code
            for call in calls:
                if code is call.code and _has_arguments(frame, call.expected):
                    on_call()

    sys.setprofile(hook)
    threading.setprofile(hook)


def _has_arguments(frame: FrameType, expected: Mapping[str, Any]) -> bool:
    if not expected:
        return True
    values = frame.f_locals
    return all(name in values and _is_equal(values[name], expected[name]) for name in expected)
