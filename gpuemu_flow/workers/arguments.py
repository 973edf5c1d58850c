"""Convert inputs to a program's arguments, and detect changes that a call makes to them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from gpuemu_flow.model.types import Failure, FailureKind, Json
from gpuemu_flow.workers.api import Program

# Join inputs that form one argument for a call, and split them again after it.


_LIST = "list"


def argument_names(program: Program) -> tuple[str, ...]:
    """Return the names of a program's arguments in order; a group counts as one argument."""
    return _of_members(program, program.input_names)


def changed_arguments(program: Program) -> tuple[str, ...]:
    """Return the names of arguments that a program may change."""
    return _of_members(program, program.mutates)


def _of_members(program: Program, names: Sequence[str]) -> tuple[str, ...]:
    if not program.groups:
        return tuple(dict.fromkeys(names))
    group_of = {m: name for name, group in program.groups.items() for m in group["members"]}
    return tuple(dict.fromkeys(group_of.get(name, name) for name in names))


def joined(program: Program, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name, with the inputs of each group joined into one argument.
    Depending on the group, its inputs become a list or one complex array. Absent inputs are left
    out of a list."""
    if not program.groups:
        return dict(given)
    made: dict[str, Any] = {}
    for name in argument_names(program):
        group = program.groups.get(name)
        if group is None:
            made[name] = given[name]
        elif group["kind"] == _LIST:
            made[name] = [given[m] for m in group["members"] if given[m] is not None]
        else:
            made[name] = _complex(*(given[member] for member in group["members"]))
    return made


def take_apart(program: Program, given: Mapping[str, Any], inputs: Inputs) -> None:
    """Copy changes that a call made to joined complex arrays back to the inputs. Each such array
    was joined from two inputs: its real and its imaginary part."""
    for name, group in program.groups.items():
        if group["kind"] == _LIST or name not in given:
            continue
        for member, part in zip(group["members"], ("real", "imag"), strict=True):
            now, before = np.ascontiguousarray(getattr(given[name], part)), inputs[member]
            if now.tobytes() != before.tobytes() and before.flags.writeable:
                before[...] = now


def _complex(real: np.ndarray, imag: np.ndarray) -> np.ndarray:
    wide = real.dtype.itemsize > np.dtype(np.float32).itemsize
    made = np.empty_like(real, dtype=np.complex128 if wide else np.complex64)
    made.real, made.imag = real, imag
    return made


Inputs = Mapping[str, np.ndarray]


def arguments(program: Program, inputs: Inputs) -> dict[str, Any]:
    """Return the arguments of a call by name, in the order of the program's inputs."""
    return joined(program, given_values(program, inputs))


def given_values(program: Program, inputs: Inputs) -> dict[str, Any]:
    """Return the inputs as functions get them: scalars as values, None for an absent one."""
    if not (program.scalars or program.optional):
        return dict(inputs)
    return {name: _argument(program, name, array) for name, array in inputs.items()}


def split(program: Program, inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
    """Return the inputs that are passed as tensors, and the others as keyword arguments."""
    given = given_values(program, inputs)
    rest = {name: v for name, v in given.items() if v is not inputs[name]}
    return {name: array for name, array in inputs.items() if name not in rest}, rest


def for_protocol(program: Program, inputs: Inputs) -> tuple[dict[str, np.ndarray], dict[str, Json]]:
    """Split the inputs of a script as `split` does, but leave out absent inputs."""
    tensors, rest = split(program, inputs)
    return tensors, {name: value for name, value in rest.items() if value is not None}


def pinned(program: Program, inputs: Inputs) -> tuple[Program, dict[str, np.ndarray]]:
    """Return the program with a case's scalars as keyword arguments, and the case's tensors. Inputs
    that are absent become keyword arguments, too."""
    tensors, rest = split(program, inputs)
    if not rest:
        return program, tensors
    names = tuple(name for name in program.input_names if name not in rest)
    kwargs = {**program.kwargs, **rest}
    return replace(program, kwargs=kwargs, input_names=names, scalars={}, optional=()), tensors


def is_absent(array: np.ndarray) -> bool:
    """Tell whether an array stands for None: it has axes, all of size 0."""
    return array.ndim > 0 and not any(array.shape)


def _argument(program: Program, name: str, array: np.ndarray) -> Any:
    if name in program.scalars and array.size == 1:
        choices = program.scalars[name]
        value = array.reshape(-1)[0].item()
        return value if choices is None else choices[value % len(choices)]
    if name in program.optional and is_absent(array):
        return None
    return array


# The float dtype of the current call, for programs whose inputs do not show it.


_of_call = "float32"


def begin_call(dtype: str) -> None:
    """Record the float dtype of the next call, since its inputs may not show it."""
    global _of_call  # noqa: PLW0603 - one call at a time runs in a process
    _of_call = dtype


def float_of_call() -> str:
    """Return the dtype that `begin_call` recorded for this call."""
    return _of_call


# Detect changes that a call makes to its arguments, other than to the elements of tensors.


Form = tuple[Any, ...]
_PARTS = ("shape", "dtype", "strides", "memory")
"""Names of the members of a `Form`."""
_PARTS_GONE = (None,) * len(_PARTS)


class ArgumentRecord:
    """A record of one call's arguments: members of containers, and each tensor's shape and memory.
    A program can change its caller's data without writing any element: it can transpose or resize a
    tensor in place, make the tensor refer to other memory, or take a member from a list."""

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
    """Return the shape, dtype, strides and address of a tensor of numpy or torch. The result is
    empty for any other object, and holds only the shape of a torch tensor without strides or
    memory. The dtype is not converted to text, which would take long."""
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
