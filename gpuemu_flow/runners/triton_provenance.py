"""Track the elements of an op's outputs that Triton kernels stored, and the origin of the others.

Each storage that a kernel stored to has flags, one per byte. Copies and conversions copy the flags,
and every other call of torch that writes to the memory clears them. Writes by anything else are
noticed because the bytes differ from those that the kernel stored.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Failure, FailureKind

_CARRIES = frozenset(
    ("_to_copy", "clone", "contiguous", "copy", "copy_", "_to_dense", "alias_copy")
)
_MAKES_ROOM = ("empty", "new_empty")
_PRODUCTS = frozenset(
    (
        "matmul", "mm", "bmm", "addmm", "addbmm", "baddbmm", "mv", "addmv", "dot", "vdot", "inner",
        "linear", "einsum", "tensordot", "chain_matmul", "multi_dot", "_int_mm", "_scaled_mm",
    )
)  # fmt: skip
_FAMILIES = (
    _PRODUCTS,
    frozenset(("softmax", "_softmax", "_safe_softmax", "log_softmax", "_log_softmax")),
    frozenset(("layer_norm", "native_layer_norm")),
    frozenset(("group_norm", "native_group_norm")),
    frozenset(("batch_norm", "native_batch_norm", "cudnn_batch_norm")),
    frozenset(("conv1d", "conv2d", "conv3d", "conv_transpose2d", "convolution", "_convolution",
               "mkldnn_convolution", "thnn_conv2d", "_slow_conv2d_forward")),
    frozenset(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu",
               "_scaled_dot_product_attention_math", "_scaled_dot_product_efficient_attention")),
)  # fmt: skip
"""Sets of names of the same computation; forbidding one name forbids the whole set."""
_MOST_NAMED = 5


def base_name(name: str) -> str:
    """Return the bare name of a function, such as ``matmul`` for ``torch.Tensor.__matmul__``."""
    last = name.rpartition("::")[2].rpartition(".")[2]
    plain = last[2:-2] if last.startswith("__") and last.endswith("__") else last
    plain = plain[1:] if plain in ("rmatmul", "imatmul") else plain
    return plain[:-1] if plain.endswith("_") and not plain.endswith("__") else plain


def meant_by(forbidden: Iterable[str]) -> frozenset[str]:
    """Return the base names of the forbidden functions, and of all functions related to them.

    Functions are related if they do the same kind of computation: if ``matmul`` is forbidden, so
    are ``mm`` and ``linear``.
    """
    names = {base_name(name) for name in forbidden}
    return frozenset(names.union(*(family for family in _FAMILIES if family & names)))


@dataclass
class _Memory:
    """One storage, with flags of the bytes that a kernel stored, and the stored values."""

    storage: Any  # kept alive: another at its address would inherit the flags
    stored: NDArray[np.bool_]
    content: NDArray[np.uint8]


@dataclass
class Provenance:
    """A record of what wrote to memory during one call of a host function."""

    torch: Any
    required: bool
    forbidden: frozenset[str]
    _memories: dict[int, _Memory] = field(default_factory=dict)
    _touched: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    _wrote: dict[int, dict[str, None]] = field(default_factory=dict)
    _called: dict[str, None] = field(default_factory=dict)
    _quiet: int = 0

    def begin(self) -> None:
        """Begin a new call of the host function; forget the last one."""
        for known in (self._memories, self._touched, self._wrote, self._called):
            known.clear()

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Do not record the calls of torch that are made inside the context.

        They are made by the runner or by the interpreter of a kernel, not by the host function.
        """
        self._quiet += 1
        try:
            yield
        finally:
            self._quiet -= 1

    def called(self, name: str) -> None:
        """Record that the host function called a torch function, if that function is forbidden."""
        if not self._quiet and base_name(name) in self.forbidden:
            self._called.setdefault(name)

    def stored(self, start: int, size: int, offsets: NDArray[np.intp], itemsize: int) -> None:
        """Record that a kernel stores elements in a storage."""
        touched = self._touched.get(start)
        if touched is None or len(touched) != size:
            touched = self._touched[start] = np.zeros(size, np.bool_)
        for byte in range(itemsize):
            touched[offsets + byte] = True

    def launched(self, storages: Iterable[Any]) -> None:
        """Flag the bytes that a kernel stored, and keep a copy of their values.

        Call it when the kernel's launch has ended. The bytes are those reported to `stored` since
        the last launch.
        """
        for storage in storages:
            touched = self._touched.pop(storage.data_ptr(), None)
            if touched is not None and len(touched) == storage.nbytes():
                memory = self._memory(storage)
                memory.stored |= touched
                content = self._bytes(storage)
                memory.content[touched] = content[touched]
        self._touched.clear()

    def dispatched(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any
    ) -> None:
        """Record a torch operator called by the host function, with its result `out`."""
        if self._quiet:
            return
        name = func._schema.name.rpartition("::")[2]
        if base_name(name) in self.forbidden:
            self._called.setdefault(f"torch.{name}")
        if name == "set_":
            return
        given = [*args, *kwargs.values()]
        sources = [t for value in given for t in self._tensors(value)]
        known = {t.untyped_storage().data_ptr() for t in sources}
        targets = [t for t in self._tensors(out) if t.untyped_storage().data_ptr() not in known]
        named = [a.name for a in func._schema.arguments]
        for index, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[index] if index < len(args) else kwargs.get(named[index])
                targets += self._tensors(value)
        if targets and not name.startswith(_MAKES_ROOM):
            carried = name in _CARRIES and self._carry(name, sources, targets[0])
            if not carried:
                for target in targets:
                    start = target.untyped_storage().data_ptr()
                    wrote = self._wrote.setdefault(start, {})
                    wrote.setdefault(f"torch.{name.rstrip('_') or name}")
                    self._clear(target)

    def failures(self, result: Any, names: Sequence[str]) -> list[Failure]:
        """List the failures of a host function that does work which kernels should do.

        These are calls of forbidden functions and, if `required`, outputs with elements that no
        kernel stored.
        """
        found = []
        if self._called:
            called = ", ".join(list(self._called)[:_MOST_NAMED])
            message = f"the op calls {called}, which `forbid` rules out"
            found.append(Failure(FailureKind.KERNEL_BYPASSED, message))
        if not self.required:
            return found
        for name, value in self._outputs(result, names):
            stored, count = self._share(value)
            if stored < count:
                wrote = ", ".join(self._writers(value)[:_MOST_NAMED])
                rest = (
                    f"the rest was written by {wrote}"
                    if wrote
                    else "nothing of torch wrote the rest"
                )
                message = (
                    f"kernels of the op stored {stored} of the {count} elements of output {name!r} "
                    f"({100 * stored / count:.0f} %); {rest}"
                )
                found.append(Failure(FailureKind.KERNEL_BYPASSED, message, name))
        return found

    def _outputs(self, result: Any, names: Sequence[str]) -> list[tuple[str, Any]]:
        if isinstance(result, Mapping):
            return [(str(name), value) for name, value in result.items()]
        values = list(result) if isinstance(result, (tuple, list)) else [result]
        return [(names[n] if n < len(names) else "result", value) for n, value in enumerate(values)]

    def _writers(self, value: Any) -> list[str]:
        """Name the functions that wrote to an output's memory.

        If no such function is known, name all functions that wrote to any memory.
        """
        if isinstance(value, self.torch.Tensor):
            with self.quietly():
                own = self._wrote.get(value.untyped_storage().data_ptr())
            if own:
                return list(own)
        return list(dict.fromkeys(name for names in self._wrote.values() for name in names))

    def _share(self, value: Any) -> tuple[int, int]:
        """Return two counts of an output's elements: those that a kernel stored, and all."""
        if not isinstance(value, self.torch.Tensor):
            return 0, int(np.size(value))
        count = int(value.numel())
        with self.quietly():
            memory = self._memories.get(value.untyped_storage().data_ptr())
            if memory is None:
                return 0, count
            same = memory.stored & (memory.content == self._bytes(memory.storage))
            return int(self._elements(value, same).all(axis=-1).sum()), count

    def _memory(self, storage: Any) -> _Memory:
        start, size = storage.data_ptr(), storage.nbytes()
        found = self._memories.get(start)
        if found is None or len(found.stored) != size:
            found = _Memory(storage, np.zeros(size, np.bool_), np.zeros(size, np.uint8))
            self._memories[start] = found
        return found

    def _bytes(self, storage: Any) -> NDArray[np.uint8]:
        """Return the bytes of a storage without a copy."""
        with self.quietly():
            whole = self.torch.empty(0, dtype=self.torch.uint8)
            whole.set_(storage, 0, (storage.nbytes(),), (1,))
            view: NDArray[np.uint8] = whole.numpy()
            return view

    def _elements(self, tensor: Any, flags: NDArray[Any]) -> NDArray[Any]:
        """Return a writable view of a storage's flags, in the shape of a tensor in the storage.

        There is one flag per byte. A last axis is added for the bytes of an element.
        """
        size = tensor.element_size()
        begin = tensor.storage_offset() * size
        strides = tuple(step * size for step in tensor.stride())
        return np.lib.stride_tricks.as_strided(
            flags[begin:], (*tensor.shape, size), (*strides, 1), writeable=True
        )

    def _carry(self, name: str, sources: Sequence[Any], target: Any) -> bool:
        """Flag those elements of a copy that were copied from elements that a kernel stored."""
        source = sources[1] if name == "copy_" and len(sources) > 1 else sources[0]
        if name == "copy_" and len(sources) < 2:
            return False
        if tuple(source.shape) != tuple(target.shape):
            return False
        memory = self._memories.get(source.untyped_storage().data_ptr())
        if memory is None or not memory.stored.any():
            return False
        with self.quietly():
            intact = memory.stored & (memory.content == self._bytes(memory.storage))
            if target.untyped_storage().data_ptr() == memory.storage.data_ptr():
                return False  # the copy may have overwritten the source
            flags: NDArray[np.bool_] = np.all(self._elements(source, intact), axis=-1)
            whole = self._memory(target.untyped_storage())
            content = self._bytes(target.untyped_storage())
            if target.numel():
                self._elements(target, whole.stored)[...] = np.expand_dims(flags, -1)
                self._elements(target, whole.content)[...] = self._elements(target, content)
        return True

    def _clear(self, tensor: Any) -> None:
        memory = self._memories.get(tensor.untyped_storage().data_ptr())
        if memory is not None and tensor.numel():
            self._elements(tensor, memory.stored)[...] = False

    def _tensors(self, value: Any) -> list[Any]:
        if isinstance(value, self.torch.Tensor):
            return [value] if value.layout == self.torch.strided else []
        if isinstance(value, (tuple, list)):
            return [tensor for member in value for tensor in self._tensors(member)]
        return []


def dispatch_mode(provenance: Provenance) -> Any:
    """Return a torch dispatch mode that reports every operator to `provenance`."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode

    class Mode(base):  # type: ignore[misc]
        """Torch dispatch mode that reports every operator, even if it is not called from Python."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            given = kwargs or {}
            out = func(*args, **given)
            provenance.dispatched(func, args, given, out)
            return out

    return Mode()
