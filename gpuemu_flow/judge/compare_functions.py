"""Call the user's functions that compare an output; this is done only in the reference's process.

A compare function gets ``(actual, expected, inputs, tolerance)`` and returns its failures, as a
list of texts or of ``{"message": ..., "index": [...]}``. It may also return a mapping with
``failures`` and, optionally, ``compared``, the number of elements that were compared. None means
that nothing was compared.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpuemu_flow.model.types import Failure, FailureKind, Tolerance
from gpuemu_flow.numerics.contract import CompareRef
from gpuemu_flow.workers.api import OpError, Program
from gpuemu_flow.workers.arguments import given_values
from gpuemu_flow.workers.imports import load_function

Array = NDArray[Any]
Arrays = Mapping[str, Array]

MOST_FAILURES = 20
LONGEST = 500


class CompareError(Exception):
    """Raised if a compare function cannot be loaded, fails, or returns a malformed result."""

    def __init__(self, message: str, place: str = "", why: str = "compare-failed") -> None:
        super().__init__(message)
        self.failure = Failure(FailureKind.REFERENCE, message, why=why, place=place)


class FunctionAnswer(Struct, frozen=True):
    """The failures that a compare function returned, and the number of elements compared."""

    failures: tuple[Failure, ...]
    compared: int


class CompareFunctions:
    """The compare functions of an op, loaded when they are first needed."""

    def __init__(self, reference: Program) -> None:
        self._reference = reference
        self._root = reference.root
        self._loaded: dict[CompareRef, Any] = {}

    def ask(
        self,
        name: str,
        ref: CompareRef,
        actual: Array,
        expected: Array,
        inputs: Arrays,
        tolerance: Tolerance,
    ) -> FunctionAnswer:
        """Call a compare function on one output, and return its answer. Raises CompareError."""
        function = self._function(ref)
        # The function gets copies, since it may write to its arguments.
        copies = {key: array.copy() for key, array in inputs.items()}
        given = given_values(self._reference, copies)
        try:
            with np.errstate(all="ignore"):
                returned = function(actual.copy(), expected.copy(), given, tolerance)
        except Exception as error:
            text = f"{_label(ref)}: {type(error).__name__}: {error}"[:LONGEST]
            raise CompareError(text, self._place(error), type(error).__name__) from None
        return _answer(name, ref, returned, actual.size)

    def _function(self, ref: CompareRef) -> Any:
        if ref not in self._loaded:
            path = os.path.join(self._root, ref.path) if ref.path and not ref.module else ""  # noqa: PTH118
            program = Program(
                "callable",
                root=self._root,
                input_names=(),
                path=path,
                module=ref.module,
                function=ref.function,
            )
            try:
                self._loaded[ref] = load_function(program)
            except OpError as failed:
                raise CompareError(f"{_label(ref)}: {failed.error.message}") from None
            except Exception as error:
                text = f"{_label(ref)}: {type(error).__name__}: {error}"[:LONGEST]
                raise CompareError(text, self._place(error), type(error).__name__) from None
        return self._loaded[ref]

    def _place(self, error: Exception) -> str:
        """Return the location of the innermost workspace line in a traceback; '' if none."""
        below = self._root.rstrip(os.sep) + os.sep
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(below)]
        return f"{own[-1].filename.removeprefix(below)}:{own[-1].lineno}" if own else ""


def _label(ref: CompareRef) -> str:
    return f"compare = {ref.module or ref.path}:{ref.function}"


def _answer(name: str, ref: CompareRef, returned: Any, size: int) -> FunctionAnswer:
    compared = size
    if isinstance(returned, Mapping):
        compared = returned.get("compared", size)
        if set(returned) - {"failures", "compared"} or "failures" not in returned:
            _refuse(ref, "a mapping without failures, or with more than failures and compared")
        if type(compared) is not int or compared < 0:
            _refuse(ref, "a mapping whose `compared` is no number of elements")
        returned = returned["failures"]
    elif returned is None:
        return FunctionAnswer((), 0)
    if not isinstance(returned, (list, tuple)):
        _refuse(ref, f"a {type(returned).__name__}")
    failures = tuple(_failure(name, ref, item) for item in returned[:MOST_FAILURES])
    return FunctionAnswer(failures, min(compared, size))


def _failure(name: str, ref: CompareRef, item: Any) -> Failure:
    index = None
    if isinstance(item, Mapping):
        index = item.get("index")
        item = item.get("message")
    if index is not None:
        places = [index] if isinstance(index, (int, np.integer)) else index
        if not isinstance(places, (list, tuple)) or not all(
            isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in places
        ):
            _refuse(ref, "an index that is no list of numbers")
        index = tuple(int(i) for i in places)
    if not isinstance(item, str) or not item.strip():
        _refuse(ref, f"a failure that is a {type(item).__name__}")
    return Failure(FailureKind.TOLERANCE, f"{_label(ref)}: {item[:LONGEST]}", name, index)


def _refuse(ref: CompareRef, what: str) -> None:
    raise CompareError(f"{_label(ref)} returned {what}; a list of texts is wanted, [] for none")
