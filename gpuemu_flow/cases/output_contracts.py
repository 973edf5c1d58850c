"""The contracts of an op's outputs, read from its schema's ``outputs``; see `numerics.contract`.

As in `cases.schema`, errors are reported through a callback with the path of their key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeGuard

from msgspec import Struct

from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.schema_rules import KeyPath, Report, is_number, shown
from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.types import COMPLEX, DTYPES, canonical_dtype
from gpuemu_flow.numerics.contract import (
    PROMOTE,
    SAME_AS,
    UNKNOWN_SIZE,
    VIEWS,
    CompareRef,
    Mask,
    OutputContract,
    Statistics,
)

FindFunction = Callable[[object, KeyPath], CompareRef | None]

SLUG = "schema-contract"
OUTPUT_KEYS = (
    "dims", "dtype", "range", "tolerance", "ties", "of", "order", "up_to", "axis", "only",
    "compare", "statistics",
)  # fmt: skip
STATISTICS_KEYS = ("mean", "std", "zeros", "samples", "false_alarms")
KINDS = ("ties", "order", "up_to", "compare", "statistics")
MOST_SAMPLES = 2**30
LEAST_SAMPLES = 100
"""Fewest elements for which the tests of a distribution keep the stated rate of false alarms."""

_TRUTH = re.compile(r"(not\s+)?([A-Za-z_]\w*)")
_EQUAL = re.compile(r"([A-Za-z_]\w*)\s*(==|!=)\s*(-?\d{1,18}(?:\.\d{1,18})?)")
_BELOW = re.compile(r"([A-Za-z_]\w*)\s*<\s*([A-Za-z_]\w*)")
_ONLY_FORMS = '"mask", "not mask", "labels != -100" or "T < lengths"'


def plain_dims(value: object) -> object:
    """Return the dims that a schema gives for an output, without axes of unknown size. `value` is
    the output's entry in the schema: a list of dims, or a table with such a list under ``dims``. If
    there is something else in the place of the list, it is returned unchanged."""
    dims = value.get("dims", []) if isinstance(value, Mapping) else value
    if not isinstance(dims, (list, tuple)):
        return dims
    return [axis for axis in dims if axis != UNKNOWN_SIZE]


def parse_contracts(
    table: Mapping[object, object], schema: OpSchema, find: FindFunction, report: Report
) -> tuple[OutputContract, ...]:
    """Return the contracts of a schema's outputs, in their order."""
    entries = _entries(table)
    known = {tensor.name for tensor in schema.outputs}
    entries = [each for each in entries if each[1] in known]
    contracts = tuple(
        _Contract(path, name, entry, schema, find, report).parse() for path, name, entry in entries
    )
    _warn_of_separate_orders([path for path, _, _ in entries], contracts, report)
    return contracts


def _warn_of_separate_orders(
    paths: Sequence[KeyPath], contracts: Sequence[OutputContract], report: Report
) -> None:
    """Report two outputs of the same length that may each be in any order. The order of each output
    is ignored separately. The comparison therefore does not notice if elements that belong
    together, such as values and their counts, have different positions."""
    first: dict[str | int, str] = {}
    for path, contract in zip(paths, contracts, strict=True):
        if not contract.order or contract.dims is None or contract.axis is None:
            continue
        if not -len(contract.dims) <= contract.axis < len(contract.dims):
            continue
        length = contract.dims[contract.axis]
        other = first.setdefault(length, contract.name)
        if other != contract.name:
            text = (
                f"{other!r} and {contract.name!r} may each have an order of its own: values that "
                "belong to others, such as counts to other elements, pass"
            )
            hint = "return them as columns of one output, or sorted; or give `compare`"
            report((*path, "order"), "schema-separate-orders", text, hint)


def _entries(table: Mapping[object, object]) -> list[tuple[KeyPath, str, Mapping[object, object]]]:
    """Return the outputs in a schema as (path of the key, name, the output's table). Malformed
    outputs are left out; they have been reported already."""
    found: list[tuple[KeyPath, str, object]] = []
    outputs, single = table.get("outputs"), table.get("output")
    if isinstance(outputs, Mapping):
        found = [(("outputs", str(name)), str(name), entry) for name, entry in outputs.items()]
    elif isinstance(outputs, (list, tuple)):
        found = [
            (("outputs", i), str(entry.get("name")), entry)
            for i, entry in enumerate(outputs)
            if isinstance(entry, Mapping)
        ]
    elif single is not None:
        named = isinstance(single, Mapping) and isinstance(single.get("name"), str)
        name = str(single["name"]) if named and isinstance(single, Mapping) else "output"
        found = [(("output",), name, single)]
    return [
        (path, name, {k: v for k, v in entry.items() if k != "name"})
        if isinstance(entry, Mapping)
        else (path, name, {"dims": entry})
        for path, name, entry in found
    ]


class _Contract(Struct):
    """Parser of one output's contract, which reports faulty parts and leaves them out."""

    path: KeyPath
    name: str
    table: Mapping[object, object]
    schema: OpSchema
    find: FindFunction
    report: Report

    def parse(self) -> OutputContract:
        for key in self.table:
            if key not in OUTPUT_KEYS:
                hint = did_you_mean(str(key), OUTPUT_KEYS)
                message = f"unknown key {shown(key)}"
                self.report((*self.path, str(key)), "config-unknown-key", message, hint)
        kinds = [kind for kind in KINDS if kind in self.table]
        if len(kinds) > 1 and kinds != ["ties", "order"]:
            first, second = kinds[:2]
            text = f"{first} and {second} are two ways to compare one output"
            self.fault(second, text, "keep one of them")
        dims = self.dims()
        low, high = self.bounds()
        atol, rtol = self.tolerance()
        ties, order = self.ties(), self.order()
        up_to = self.up_to()
        return OutputContract(
            self.name,
            dims=dims,
            dtype=self.dtype(),
            low=low,
            high=high,
            atol=atol,
            rtol=rtol,
            ties=ties,
            order=order,
            up_to=up_to,
            axis=self.axis(dims, ties, needed=any(kind in self.table for kind in KINDS[:3])),
            only=self.only(dims),
            compare=self.find(self.table["compare"], (*self.path, "compare"))
            if "compare" in self.table
            else None,
            statistics=self.statistics(),
        )

    def fault(self, key: str, message: str, hint: str) -> None:
        self.report((*self.path, key), SLUG, f"output {self.name!r}: {message}", hint)

    def dims(self) -> tuple[str | int, ...] | None:
        dims = self.table.get("dims")
        if not isinstance(dims, (list, tuple)):
            return None
        return tuple(axis for axis in dims if isinstance(axis, (str, int)))

    def dtype(self) -> str:
        value = self.table.get("dtype")
        if value is None:
            return ""
        names = [tensor.name for tensor in self.schema.inputs]
        if isinstance(value, str):
            text = " ".join(value.split())
            if text == PROMOTE:
                return text
            if text.startswith(SAME_AS):
                if text.removeprefix(SAME_AS) in names:
                    return text
                hint = f"one of the inputs: {', '.join(names)}"
                self.fault("dtype", f"{shown(value)} names no input", hint)
                return ""
            if text in COMPLEX or canonical_dtype(text) is not None:
                return canonical_dtype(text) or text
        known = (*DTYPES, *COMPLEX, PROMOTE, *(f"{SAME_AS}{name}" for name in names))
        hint = did_you_mean(value if isinstance(value, str) else "", known)
        message = f"{self.name!r} has an unknown dtype {shown(value)}"
        self.report((*self.path, "dtype"), "schema-dtype", message, hint)
        return ""

    def bounds(self) -> tuple[float | None, float | None]:
        value = self.table.get("range")
        if value is None:
            return None, None
        bounds = list(value) if isinstance(value, (list, tuple)) else []
        if len(bounds) == 2 and all(map(is_number, bounds)) and not any(map(math.isnan, bounds)):
            low, high = float(bounds[0]), float(bounds[1])
            if low <= high and low != math.inf and high != -math.inf:
                return (None if math.isinf(low) else low), (None if math.isinf(high) else high)
        hint = "range = [lowest, highest]: the values that the output may have, both included"
        text = f"{self.name!r} has no usable range: {shown(value)}"
        self.report((*self.path, "range"), "schema-range", text, hint)
        return None, None

    def tolerance(self) -> tuple[float | None, float | None]:
        value = self.table.get("tolerance")
        if value is None:
            return None, None
        hint = "tolerance = 1e-3, or tolerance = { atol = 1e-3, rtol = 1e-2 }"
        if "ties" in self.table or "statistics" in self.table:
            text = "a tolerance has no meaning beside ties and statistics"
            self.fault("tolerance", text, "remove it")
            return None, None
        given = value if isinstance(value, Mapping) else {"atol": value}
        members = {str(key): float(str(v)) for key, v in given.items() if _is_size(v)}
        if not members or {*members} != {*given} or not {*members} <= {"atol", "rtol"}:
            self.fault("tolerance", f"{shown(value)} is no tolerance", hint)
            return None, None
        return members.get("atol", 0.0), members.get("rtol", 0.0)

    def ties(self) -> str:
        if "ties" not in self.table:
            if "of" in self.table:
                self.fault("of", "of has no meaning without ties", 'add ties = "any", or remove it')
            return ""
        if self.table["ties"] != "any":
            self.fault("ties", f"{shown(self.table['ties'])} is none", 'ties = "any"')
            return ""
        names = [tensor.name for tensor in self.schema.inputs]
        of = self.table.get("of", names[0] if len(names) == 1 else None)
        if of not in names:
            what = "of is missing" if of is None else f"of = {shown(of)} names no input"
            hint = f"of: the input that it gives the indices of, one of {', '.join(names)}"
            self.fault("of" if of is not None else "ties", what, hint)
            return ""
        return str(of)

    def order(self) -> bool:
        if "order" not in self.table:
            return False
        if self.table["order"] != "any":
            self.fault("order", f"{shown(self.table['order'])} is none", 'order = "any"')
        return True

    def up_to(self) -> str:
        value = self.table.get("up_to")
        if value is None or value in VIEWS:
            return value if isinstance(value, str) else ""
        self.fault("up_to", f"{shown(value)} is none", f"one of {', '.join(VIEWS)}")
        return ""

    def axis(  # noqa: PLR0911 - one for each way to say it
        self, dims: Sequence[str | int] | None, ties: str, *, needed: bool
    ) -> int | None:
        value = self.table.get("axis")
        of = next((t for t in self.schema.inputs if t.name == ties), None)
        rank = len(of.dims) if of is not None else None if dims is None else len(dims)
        if value is None:
            if rank == 1 or self.table.get("up_to") == "permutation":
                return None if rank != 1 else 0
            if needed:
                hint = "axis = -1 is the last; a name of its dims is one, too"
                self.fault(self.kind(), f"{self.kind()} needs the axis that it is about", hint)
            return None
        if not needed:
            hint = "remove it, or add ties, order or up_to"
            self.fault("axis", "axis has no meaning here", hint)
            return None
        named = of.dims if of is not None else dims or ()
        if isinstance(value, str) and list(named).count(value) == 1:
            return list(named).index(value)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and isinstance(value, int) and -32 <= value < 32:
            if rank is None or -rank <= value < rank:
                return value
            text = f"there is no axis {value} in {rank} dims"
            self.fault("axis", text, f"a number from {-rank} to {rank - 1}")
            return None
        self.fault("axis", f"{shown(value)} is no axis", "a number, or the name of one dim")
        return None

    def kind(self) -> str:
        return next((kind for kind in KINDS if kind in self.table), "axis")

    def only(self, dims: Sequence[str | int] | None) -> Mask | None:  # noqa: PLR0911
        value = self.table.get("only")
        if value is None:
            return None
        for key in ("order", "compare"):
            if key in self.table:
                self.fault("only", f"only and {key} do not go together", "keep one of them")
                return None
        if dims is None or UNKNOWN_SIZE in dims:
            self.fault("only", "only needs the dims of the output", 'dims = ["B", "T"]')
            return None
        text = value.strip() if isinstance(value, str) else ""
        if (found := _BELOW.fullmatch(text)) is not None:
            if list(dims).count(found[1]) != 1:
                self.fault("only", f"the output has no dim {found[1]!r}", f"write {_ONLY_FORMS}")
                return None
            axes = self.aligned(found[2], dims)
            along = list(dims).index(found[1])
            return None if axes is None else Mask(found[2], axes, "<", along=along)
        if (found := _EQUAL.fullmatch(text)) is not None:
            axes = self.aligned(found[1], dims)
            return None if axes is None else Mask(found[1], axes, found[2], float(found[3]))
        if (found := _TRUTH.fullmatch(text)) is not None:
            axes = self.aligned(found[2], dims)
            return None if axes is None else Mask(found[2], axes, "false" if found[1] else "true")
        self.fault("only", f"{shown(value)} says no elements", f"write {_ONLY_FORMS}")
        return None

    def aligned(self, name: str, dims: Sequence[str | int]) -> tuple[int, ...] | None:
        """Return, for each axis of the input `name`, the axis of the output that has the same dim.
        `dims` are the dims of the output. Return None, and report the fault, if there is no such
        input or axis."""
        tensor = next((t for t in self.schema.inputs if t.name == name), None)
        if tensor is None:
            names = [t.name for t in self.schema.inputs]
            self.fault("only", f"there is no input {name!r}", did_you_mean(name, names))
            return None
        axes: list[int] = []
        for axis in tensor.dims:
            free = [i for i, dim in enumerate(dims) if dim == axis and i not in axes]
            if not free:
                hint = f"each dim of {name!r} has to be one of the output's"
                self.fault("only", f"the output has no dim {axis!r}, which {name!r} has", hint)
                return None
            axes.append(free[0])
        return tuple(axes)

    def statistics(self) -> Statistics | None:
        value = self.table.get("statistics")
        if value is None:
            return None
        if not isinstance(value, Mapping):
            hint = "statistics = { mean = 0.5, samples = 1000 }"
            self.fault("statistics", f"{shown(value)} is no table", hint)
            return None
        below = (*self.path, "statistics")
        for key in value:
            if key not in STATISTICS_KEYS:
                text = f"unknown key {shown(key)}"
                hint = did_you_mean(str(key), STATISTICS_KEYS)
                self.report((*below, str(key)), "config-unknown-key", text, hint)
        said = {key: value[key] for key in STATISTICS_KEYS if key in value}
        names = [tensor.name for tensor in self.schema.inputs]
        tests: dict[str, tuple[Callable[[object], bool], str]] = {
            "mean": (
                lambda v: _is_finite(v) or v in names,
                "a number, or the input that holds the means",
            ),
            "std": (_is_size, "a number from 0"),
            "zeros": (lambda v: _is_finite(v) and 0 <= v <= 1, "a share from 0 to 1"),
            "samples": (
                lambda v: type(v) is int and LEAST_SAMPLES <= v <= MOST_SAMPLES,
                f"a whole number from {LEAST_SAMPLES}",
            ),
            "false_alarms": (
                lambda v: _is_finite(v) and 1e-15 <= v <= 0.01,
                "a share from 1e-15 to 0.01",
            ),
        }
        for key in list(said):
            test, hint = tests[key]
            if not test(said[key]):
                text = f"output {self.name!r}: {key} = {shown(said[key])}"
                self.report((*below, key), SLUG, text, hint)
                del said[key]
        for key in ("mean", "std", "zeros", "false_alarms"):
            if is_number(said.get(key)):
                said[key] = float(said[key])
        return Statistics(**said)


def _is_finite(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)


def _is_size(value: object) -> bool:
    return _is_finite(value) and value >= 0
