"""The memory of Triton kernels: what they may touch, what they wrote, and what nobody wrote."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.model.types import DTYPES, Failure, FailureKind
from gpuemu_flow.numerics.dtypes import FLOAT_LIMITS, dtype_name

ZONE = 1 << 16
"""Minimum number of free bytes on each side of a tensor. An access beyond the end of one tensor
must not fall into another tensor, where it would look valid."""

READ, WRITE = "reads", "writes"
_KINDS = {READ: FailureKind.OUT_OF_BOUNDS_READ, WRITE: FailureKind.OUT_OF_BOUNDS}


class OutOfBoundsError(Exception):
    """Raised to end a kernel after an out-of-bounds access that cannot be skipped. An access is out
    of bounds if it lies outside of every tensor. A compare-and-swap cannot be skipped, since it has
    no mask."""


class Region(Struct, frozen=True):
    """Memory of one tensor: the bytes from address `start` up to `stop`, exclusive."""

    name: str
    start: int
    stop: int

    def distance(self, address: int) -> int:
        """Return the distance in bytes from the region to an address outside of it."""
        return self.start - address if address < self.start else address - self.stop


class _Trespass(Struct):
    """The first out-of-bounds access at one line of a kernel, and the number of such accesses."""

    message: str
    kind: FailureKind
    argument: str
    count: int = 0


class Memory(Struct):
    """The tensors that kernels may reach during one call of a host function."""

    shared: list[Region] = field(default_factory=list)
    on_store: Callable[[int, int, NDArray[np.intp], int], None] | None = None
    origins: dict[int, int] = field(default_factory=dict)
    _kernel: str = ""
    _file: str = ""
    _regions: list[Region] = field(default_factory=list)
    _starts: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _stops: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    _found: dict[tuple[str, int, str, str], _Trespass] = field(default_factory=dict)

    def begin(self, kernel: str, file: str, regions: list[Region]) -> None:
        """Begin a launch: only `regions` and the regions in `shared` may be touched from now on."""
        self._kernel, self._file = kernel, file
        self._regions = sorted([*regions, *self.shared], key=lambda region: region.start)
        self._starts = np.array([r.start for r in self._regions], np.uint64)
        self._stops = np.array([r.stop for r in self._regions], np.uint64)

    def allowed(
        self, pointers: NDArray[np.uint64], mask: NDArray[np.bool_], itemsize: int, deed: str
    ) -> NDArray[np.bool_]:
        """Return the mask of those requested accesses that lie in tensors; record the others."""
        asked = np.broadcast_to(mask, pointers.shape)
        active = pointers[asked]
        if not active.size:
            return mask
        if self._all_in_one(active, itemsize):
            self._tell(active, itemsize, deed)
            return mask
        # Wild addresses may wrap in this unsigned sum; no process has memory near the wrap.
        place = np.searchsorted(self._starts, active, side="right").astype(np.intp) - 1
        inside = place >= 0
        last = active + np.uint64(itemsize - 1)
        inside[inside] = last[inside] < self._stops[place[inside]]
        self._tell(active[inside], itemsize, deed)
        if inside.all():
            return mask
        self._remember(active[~inside], itemsize, deed)
        kept: NDArray[np.bool_] = asked.copy()
        kept[asked] = inside
        return kept

    def _all_in_one(self, active: NDArray[np.uint64], itemsize: int) -> bool:
        low, high = int(active.min()), int(active.max()) + itemsize
        place = int(np.searchsorted(self._starts, np.uint64(low), side="right")) - 1
        return place >= 0 and high <= self._regions[place].stop

    def _tell(self, stored: NDArray[np.uint64], itemsize: int, deed: str) -> None:
        if self.on_store is None or deed != WRITE or not stored.size:
            return
        places = np.searchsorted(self._starts, stored, side="right").astype(np.intp) - 1
        for place in np.unique(places):
            region = self._regions[int(place)]
            offsets = (stored[places == place] - np.uint64(region.start)).astype(np.intp)
            begin = self.origins.get(region.start, region.start)
            self.on_store(begin, region.stop - region.start, offsets, itemsize)

    def _remember(self, wrong: NDArray[np.uint64], itemsize: int, deed: str) -> None:
        line = _line_in(self._file)
        address = int(wrong[0])
        near = min(self._regions, key=lambda r: r.distance(address), default=None)
        name = near.name if near is not None else ""
        key = (self._kernel, line, deed, name)
        trespass = self._found.get(key)
        if trespass is None:
            where = f"{self._kernel}, line {line}," if line else self._kernel
            message = f"{where} {deed} {_place(address, itemsize, near)}"
            trespass = self._found[key] = _Trespass(message, _KINDS[deed], name)
        trespass.count += len(wrong)

    def failures(self) -> list[Failure]:
        """List the accesses outside of all tensors since the last call of `forget`."""
        return [
            Failure(t.kind, f"{t.message}; {t.count} such accesses in all", t.argument)
            for t in self._found.values()
        ]

    def forget(self) -> None:
        """Clear the recorded accesses and `shared`, before a new call of the host function."""
        self._found.clear()
        self.shared.clear()


def _line_in(file: str) -> int:
    """Return the current line of the innermost stack frame in a file; 0 if there is no frame."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return int(frame.f_lineno)
        frame = frame.f_back
    return 0


def _place(address: int, itemsize: int, near: Region | None) -> str:
    if near is None:
        return f"address {address:#x}, and the launch has no tensor"
    if near.start <= address < near.stop:
        beyond = address + itemsize - near.stop
        return f"{beyond} bytes over the end of {near.name!r}"
    count = (near.stop - near.start) // itemsize
    element = (address - near.start) // itemsize
    return f"element {element} of {near.name!r}, whose memory has {count}"


# Fill new memory with recognisable values, and find outputs that were never written.


_FLOATS: dict[str, tuple[int, int]] = {
    "float64": (0x7FF5A5A5C3C35A5A, 0x7FF2965A3C3C9669),
    "float32": (0x7FA5C35A, 0x7F936C5A),
    "float16": (0x7D5A, 0x7CB6),
    "bfloat16": (0x7FA5, 0x7F96),
    "float8_e5m2": (0xFD, 0x7D),
    "float8_e4m3fn": (0xFF, 0x7F),
}
"""Words that fill new memory in the first and in the second run."""
_BYTES = (0xA5, 0x96)
_SURE_BYTES = 4
"""Minimum size in bytes of an element whose fill value alone, without a second run, shows that it
was never written."""
Outputs = Mapping[str, np.ndarray]


def fill_word(dtype: str, itemsize: int, run: int) -> int:
    """Return the integer whose bits fill each element of new memory; `run` is 0 or 1."""
    if dtype in _FLOATS:
        return _FLOATS[dtype][run]
    return int.from_bytes(bytes([_BYTES[run]]) * itemsize, "little")


def fill_uninitialised(torch: Any, tensor: Any, run: int = 0) -> None:
    """Fill new memory with values that are recognised later: NaN, or a rare integer. A first run
    (`run` is 0) and a second run (1) use different values. Booleans become True, which is not
    recognised later."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
        return
    dtype, size = tensor.dtype, tensor.element_size()
    if dtype.is_complex:
        dtype, size = dtype.to_real(), size // 2
    word = fill_word(str(dtype).removeprefix("torch."), size, run)
    signed = word - (1 << 8 * size) if word >> (8 * size - 1) else word
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=getattr(torch, f"int{8 * size}"))
    whole.set_(storage, 0, (storage.nbytes() // size,), (1,)).fill_(signed)


class _Suspects(Struct, frozen=True):
    places: NDArray[np.bool_]
    sure: bool


def _suspects(array: np.ndarray, run: int) -> _Suspects | None:
    """Return the elements that still hold the fill value of new memory; None if there are none.
    `run` is 0 for the fill value of a first run, and 1 for that of a second run."""
    dtype = dtype_name(array.dtype) or ""
    known = DTYPES.get(dtype)
    if known is None or known.kind == "bool" or not array.size:
        return None
    fill = fill_word(dtype, known.itemsize, run)
    words = np.ascontiguousarray(array).view(f"u{known.itemsize}").reshape(array.shape)
    places = words == fill
    signalling = dtype in FLOAT_LIMITS and known.itemsize > 1
    sure = signalling or known.itemsize >= _SURE_BYTES
    return _Suspects(places, sure) if places.any() else None


def suspicious(outputs: Outputs) -> bool:
    """Tell whether any output of a first run still holds the fill value of new memory."""
    return any(_suspects(array, 0) is not None for array in outputs.values())


def unwritten(first: Outputs, second: Outputs | None) -> list[Failure]:
    """Report elements of outputs that were never written."""
    found: list[Failure] = []
    for name, array in first.items():
        suspects = _suspects(array, 0)
        if suspects is None:
            continue
        places = suspects.places
        if second is None:
            places = places & suspects.sure
        elif name in second and second[name].shape == array.shape:
            again = _suspects(second[name], 1)
            places = places & again.places if again is not None else np.zeros_like(places)
        where = np.argwhere(places)
        if len(where):
            index = tuple(int(i) for i in where[0])
            message = f"{len(where)} of {array.size} elements of output {name!r} were never written"
            found.append(Failure(FailureKind.UNWRITTEN, message, name, index))
    return found


# Track the elements of an op's outputs that Triton kernels stored, and the origin of the
# others.


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
    are ``mm`` and ``linear``."""
    names = {base_name(name) for name in forbidden}
    return frozenset(names.union(*(family for family in _FAMILIES if family & names)))


class _Memory(Struct):
    """One storage, with flags of the bytes that a kernel stored, and the stored values."""

    storage: Any  # kept alive: another at its address would inherit the flags
    stored: NDArray[np.bool_]
    content: NDArray[np.uint8]


class Provenance(Struct):
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
        """Do not record the calls of torch that are made inside the context. They are made by the
        runner or by the interpreter of a kernel, not by the host function."""
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
        """Flag the bytes that a kernel stored, and keep a copy of their values. Call it when the
        kernel's launch has ended. The bytes are those reported to `stored` since the last
        launch."""
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
        """List the failures of a host function that does work which kernels should do. These are
        calls of forbidden functions and, if `required`, outputs with elements that no kernel
        stored."""
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
        """Name the functions that wrote to an output's memory. If no such function is known, name
        all functions that wrote to any memory."""
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
        There is one flag per byte. A last axis is added for the bytes of an element."""
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
