"""Bugs planted in PTX, which a kernel's own checks and reference ought to find."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from gpuemu_flow.emulator.errors import UnsupportedError
from gpuemu_flow.emulator.launch import choose_entry, read_entries
from gpuemu_flow.lint.ptx.model import Body, Function, Instruction
from gpuemu_flow.lint.ptx.parser import read_body

MAX_SITES = 4
"""Largest number of places where one kind of bug is planted; they are spread over the kernel."""

_COMPARED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_INTEGERS = frozenset({"s16", "u16", "s32", "u32", "s64", "u64"})
_FLUSHED = frozenset({"add", "sub", "mul", "fma", "min", "max"})
_CONSTANT = re.compile(r"\d+\Z", re.ASCII)

Change = Callable[[Instruction, Body], "str | None"]
"""Callable that returns the replacement of an instruction, without its guard; None where the bug
does not apply."""


class MutantKind(Struct, frozen=True):
    """One kind of bug."""

    name: str
    kind: str
    why: str
    change: Change
    partner: Callable[[Instruction], bool] | None = None


class PtxMutant(Struct, frozen=True):
    """One bug, planted at one location of a PTX file."""

    name: str
    kind: str
    why: str
    data: bytes


def _with_opcode(instruction: Instruction, opcode: str) -> str:
    return f"{opcode} {instruction.text}"


def _mask_off_by_one(instruction: Instruction, _body: Body) -> str | None:
    opcode = instruction.opcode
    words = list(opcode.segments)
    if opcode.base != "setp" or opcode.type not in _INTEGERS or words[1] not in _COMPARED:
        return None
    words[1] = _COMPARED[words[1]]
    return _with_opcode(instruction, ".".join(words))


def _barrier_removed(instruction: Instruction, _body: Body) -> str | None:
    opcode = instruction.opcode
    waits = opcode.base in ("bar", "barrier") and "sync" in opcode.segments
    return "" if waits and "warp" not in opcode.segments else None


def _flush_added(instruction: Instruction, _body: Body) -> str | None:
    opcode = instruction.opcode
    fits = opcode.base in _FLUSHED and opcode.type == "f32" and "ftz" not in opcode.segments
    if not fits or len(opcode.types) != 1:
        return None
    return _with_opcode(instruction, opcode.text.removesuffix(".f32") + ".ftz.f32")


def _stride_changed(instruction: Instruction, _body: Body) -> str | None:
    opcode, operands = instruction.opcode, list(instruction.operands)
    scales = opcode.base == "mul" and ("wide" in opcode.segments or "lo" in opcode.segments)
    if not (scales or opcode.base == "shl") or len(operands) != 3:
        return None
    last = operands[2].strip()
    if opcode.type[:1] == "f" or not _CONSTANT.match(last) or len(last) > 6 or int(last) == 0:
        return None
    operands[2] = str(int(last) + 1 if opcode.base == "shl" else 2 * int(last))
    return f"{opcode.text} {', '.join(operands)}"


def _sum_for_maximum(instruction: Instruction, _body: Body) -> str | None:
    opcode = instruction.opcode
    if opcode.base != "max" or opcode.type not in _INTEGERS | {"f16", "f32", "f64"}:
        return None
    kept = [w for w in opcode.segments[1:] if w not in ("NaN", "relu")]
    return _with_opcode(instruction, ".".join(["add", *kept]))


def _wait_removed(instruction: Instruction, _body: Body) -> str | None:
    text = instruction.opcode.text
    waits = text.startswith(("cp.async.wait", "cp.async.bulk.wait"))
    return "" if waits else None


def _is_of_cluster(instruction: Instruction, what: str) -> bool:
    words = instruction.opcode.segments
    return words[:2] == ("barrier", "cluster") and what in words


def _cluster_barrier_removed(instruction: Instruction, _body: Body) -> str | None:
    return "" if _is_of_cluster(instruction, "arrive") else None


def _is_zero(operand: str, body: Body) -> bool:
    made = [i for i in body.instructions if i.operands and i.operands[0].strip() == operand]
    return operand == "0" or (
        bool(made) and all(i.opcode.base == "mov" and i.operands[-1].strip() == "0" for i in made)
    )


def _rank_changed(instruction: Instruction, body: Body) -> str | None:
    opcode, operands = instruction.opcode, list(instruction.operands)
    if opcode.base != "mapa" or len(operands) != 3:
        return None
    operands[2] = "1" if _is_zero(operands[2].strip(), body) else "0"
    return f"{opcode.text} {', '.join(operands)}"


MUTANT_KINDS: tuple[MutantKind, ...] = (
    MutantKind("mask-off-by-one", "off-by-one", "a comparison is < for <=, or the other way round",
               _mask_off_by_one),
    MutantKind("barrier-removed", "missing-barrier", "a barrier of the block is left out",
               _barrier_removed),
    MutantKind("cluster-barrier-removed", "missing-barrier",
               "a barrier of the cluster is left out, its wait included",
               _cluster_barrier_removed, partial(_is_of_cluster, what="wait")),
    MutantKind("rank-changed", "wrong-rank",
               "memory of the cluster's first block, or of its second, for that of another",
               _rank_changed),
    MutantKind("flush-added", "flush-to-zero", "subnormals are flushed to zero", _flush_added),
    MutantKind("stride-changed", "wrong-stride", "an index is scaled by twice as much",
               _stride_changed),
    MutantKind("sum-for-maximum", "wrong-operation", "a sum for a maximum", _sum_for_maximum),
    MutantKind("wait-removed", "missing-wait", "an asynchronous copy is not waited for",
               _wait_removed),
)  # fmt: skip


def plant_in_ptx(data: bytes, entry: str = "", file: str = "") -> Iterator[PtxMutant]:
    """Plant each kind of bug at some locations of a kernel; each mutant has a single bug. Raises
    UnsupportedError, LaunchError: The file is not PTX, or it has no kernel with this name."""
    function = choose_entry(read_entries(data, file), entry, file)
    text = function.module.source.text
    body = read_body(function)
    for kind in MUTANT_KINDS:
        changed = [
            (i, new)
            for i in body.instructions
            if (new := kind.change(i, body)) is not None and (new or i.guard is None)
        ]
        step = max(1, -(-len(changed) // MAX_SITES))
        for instruction, new in changed[::step]:
            where = _where(function, body, instruction)
            with_it = _partner(kind, body, instruction)
            if with_it is not None and with_it.guard is not None:
                continue  # its guard would be left without an instruction
            mutant = _replaced(text, instruction, new, with_it)
            yield PtxMutant(f"{kind.name} at {where}", kind.kind, kind.why, mutant)


def _where(function: Function, body: Body, instruction: Instruction) -> str:
    module = function.module
    line = module.source.line_of(instruction.offset)
    location = body.location_of(instruction)
    if location is None or not location.line:
        return f"PTX line {line}"
    file = module.files.get(location.file, "").rpartition("/")[2]
    return f"{file}:{location.line} (PTX line {line})"


def _partner(kind: MutantKind, body: Body, changed: Instruction) -> Instruction | None:
    later = (i for i in body.instructions if i.offset > changed.offset)
    return next((i for i in later if kind.partner is not None and kind.partner(i)), None)


def _replaced(
    text: str, instruction: Instruction, new: str, partner: Instruction | None = None
) -> bytes:
    # The guard stays, because it is before the offset. In the text, each byte is one character and
    # comments are replaced by spaces.
    if partner is not None:
        end = _end_of(text, partner)
        text = f"{text[: partner.offset]}{text[end:]}"
    end = _end_of(text, instruction)
    return f"{text[: instruction.offset]}{new}{text[end:]}".encode("latin-1")


def _end_of(text: str, instruction: Instruction) -> int:
    end = text.find(";", instruction.offset)
    if end < 0:
        raise UnsupportedError
    return end


RECORD = "record"
"""Name of the folder that receives the PTX of all launched kernels."""
_ENTRY = "// the kernel "


def kernel_alone(function: Function) -> bytes:
    """Return the PTX of a kernel's module after the name of the kernel, which `entry_of` reads."""
    return f"{_ENTRY}{function.name}\n{function.module.source.text}".encode("latin-1")


def entry_of(ptx: bytes) -> str:
    first = ptx.partition(b"\n")[0].decode("latin-1")
    return first.removeprefix(_ENTRY) if first.startswith(_ENTRY) else ""


class PtxFolder:
    """A folder of PTX files, each named by the digest of the PTX that it replaces."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder

    def exchanged(self, ptx: bytes) -> bytes:
        """Return the replacement for a PTX text; the text itself if there is none."""
        if self._folder is None:
            return ptx
        try:
            return (self._folder / _name(ptx)).read_bytes()
        except FileNotFoundError:
            return ptx

    def launched(self, ptx: bytes) -> None:
        """Store the PTX of a launched kernel in the subfolder `RECORD`, if that exists."""
        if self._folder is None or not (self._folder / RECORD).is_dir():
            return
        kept = self._folder / RECORD / _name(ptx)
        if not kept.exists():
            kept.write_bytes(ptx)


def _name(ptx: bytes) -> str:
    return f"{hashlib.sha256(ptx).hexdigest()}.ptx"
