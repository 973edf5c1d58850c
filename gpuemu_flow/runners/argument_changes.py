"""Detect changes that a call makes to its arguments, other than to the elements of tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gpuemu_flow.runners.api import Program
from gpuemu_flow.runners.grouping import argument_names, changed_arguments
from gpuemu_flow.types import Failure, FailureKind

Form = tuple[Any, ...]
_PARTS = ("shape", "dtype", "strides", "memory")
"""Names of the members of a `Form`."""
_PARTS_GONE = (None,) * len(_PARTS)


class ArgumentRecord:
    """A record of one call's arguments: members of containers, and each tensor's shape and memory.

    A program can change its caller's data without writing any element: it can transpose or resize a
    tensor in place, make the tensor refer to other memory, or take a member from a list.
    """

    def __init__(self, program: Program, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._mapping = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else None
        if self._mapping is not None:
            given = dict(self._mapping)
        else:
            given = {**dict(zip(argument_names(program), args, strict=False)), **kwargs}
        for name in (*changed_arguments(program), *program.kwargs):
            given.pop(name, None)
        self._given = given
        self._members = {n: list(v) for n, v in given.items() if isinstance(v, list)}
        self._forms = [(name, tensor, _form(tensor)) for name, tensor in self._tensors()]

    def _tensors(self) -> Iterable[tuple[str, Any]]:
        if not self._members:
            return self._given.items()
        return [
            (name, member)
            for name, value in self._given.items()
            for member in self._members.get(name, [value])
        ]

    def failures(self) -> list[Failure]:
        """Return the changes that the call made, at most one failure for each argument."""
        told = {**self._lost(), **self._other_members(), **self._other_forms()}
        return [
            Failure(FailureKind.INPUT_MODIFIED, f"the program {what}", name)
            for name, what in told.items()
        ]

    def _lost(self) -> dict[str, str]:
        if self._mapping is None:
            return {}
        return {
            name: f"removed or replaced input {name!r} in the mapping that it was given"
            for name, value in self._given.items()
            if self._mapping.get(name, self) is not value
        }

    def _other_members(self) -> dict[str, str]:
        told = {}
        for name, before in self._members.items():
            now = self._given[name]
            if len(now) != len(before):
                told[name] = f"changed the list {name!r} from {len(before)} to {len(now)} tensors"
            elif any(one is not other for one, other in zip(before, now, strict=True)):
                told[name] = f"put other tensors into the list {name!r}"
        return told

    def _other_forms(self) -> dict[str, str]:
        told = {}
        for name, tensor, form in self._forms:
            form_now = _form(tensor)
            if form_now == form:
                continue
            for part, old, new in zip(_PARTS, form, (*form_now, *_PARTS_GONE), strict=False):
                if new != old:
                    told[name] = f"changed the {part} of input {name!r}"
                    if part != "memory":
                        told[name] += f" from {_shown(old)} to {_shown(new)}"
                    break
        return told


def _form(tensor: Any) -> Form:
    """Return the shape, dtype, strides and address of a tensor of numpy or torch.

    The result is empty for any other object, and holds only the shape of a torch tensor without
    strides or memory. The dtype is not converted to text, which would take long.
    """
    if isinstance(tensor, np.ndarray):
        address = tensor.__array_interface__["data"][0]
        return tensor.shape, tensor.dtype, tensor.strides, address
    if not hasattr(tensor, "data_ptr"):
        return ()
    # A mode that watches the program would take these calls for the program's.
    with sys.modules["torch"]._C.DisableTorchFunction():
        try:
            return tensor.shape, tensor.dtype, tensor.stride(), tensor.data_ptr()
        except RuntimeError:  # it has no strides, or no memory, any more
            return (tensor.shape,)


def _shown(part: Any) -> str:
    return str(list(part)) if isinstance(part, Sequence) else str(part)
