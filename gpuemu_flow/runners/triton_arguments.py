"""Convert a launch's arguments to the parameters of a compiled Triton kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpuemu_flow.emulator.tensor_maps import TensorMap
from gpuemu_flow.errors import FlowError
from gpuemu_flow.quick_dataclass import dataclass

Refusal = Callable[[str, str], FlowError]

DESCRIPTOR = "tensordesc"
INTERPRETED = 'use mode = "interpreted"'


@dataclass(frozen=True)
class Leaf:
    """One parameter of the compiled kernel."""

    name: str
    value: Any
    kind: str
    tensor: TensorMap | None = None


class Unfolding:
    """Splits tuples and tensor descriptors into the parameters of one compiled kernel.

    The order of parameters is that of Triton's launcher (``triton/backends/nvidia/driver.py``,
    ``make_tensordesc_arg`` and ``decompose_descriptor``; Triton 3.4 and later).
    """

    def __init__(self, maps: Sequence[Mapping[str, Any]] | None, refused: Refusal) -> None:
        self._maps = iter(maps) if maps else None
        self._refused = refused

    def parts(self, name: str, value: Any, kind: Any) -> Iterator[Leaf]:
        """Yield the parameters made from one argument; a compile-time constant has none."""
        if kind == "constexpr":
            return
        if isinstance(kind, tuple):
            for part, part_kind in zip(value, kind, strict=True):
                yield from self.parts(name, part, part_kind)
        elif isinstance(kind, str) and kind.startswith(DESCRIPTOR):
            yield from self._descriptor(name, value, kind)
        else:
            yield Leaf(name, value, str(kind))

    def _descriptor(self, name: str, value: Any, kind: str) -> Iterator[Leaf]:
        element = kind.partition("<")[2].partition("[")[0]
        sizes, strides = list(value.shape), list(value.strides)
        if self._maps is not None:
            made = self._tensor(name, value, next(self._maps))
            yield Leaf(name, value.base, f"*{element}", made)
            yield from (Leaf(name, int(n), "i32") for n in sizes)
            yield from (Leaf(name, int(n), "i64") for n in strides)
            return
        yield Leaf(name, value.base, f"*{element}")
        yield from (Leaf(name, int(n), "i64") for n in (*sizes, *strides))
        yield Leaf(name, value.padding == "nan", "i1")
        yield Leaf(name, bool(getattr(value, "round_f32_to_tf32", False)), "i1")
        yield from (Leaf(name, int(n), "i32") for n in sizes)
        yield from (Leaf(name, int(n), "i64") for n in strides)

    def _tensor(self, name: str, value: Any, noted: Mapping[str, Any]) -> TensorMap:
        """Return the tensor map of a descriptor; its dimensions are in reverse order."""
        if noted.get("is_im2col") or noted.get("fp4_padded"):
            reason = "in im2col mode" if noted.get("is_im2col") else "of padded fp4 numbers"
            raise self._refused(f"the argument {name} is a descriptor {reason}", INTERPRETED)
        if getattr(value, "round_f32_to_tf32", False):
            raise self._refused(
                f"the argument {name} is a descriptor that rounds to TF32",
                f"round_f32_to_tf32 = False, or {INTERPRETED}",
            )
        item = int(noted["elem_size"])
        box = tuple(int(n) for n in reversed(noted["block_size"]))
        return TensorMap(
            address=0, kind=int(noted["elem_type"]), interleave=0, swizzle=int(noted["swizzle"]),
            fill=int(value.padding == "nan"), box=box,
            extents=tuple(int(n) for n in reversed(value.shape)),
            strides=(item, *(int(n) * item for n in reversed(value.strides[:-1]))),
            steps=(1,) * len(box),
        )  # fmt: skip
