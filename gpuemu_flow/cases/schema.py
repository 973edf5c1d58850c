"""Read an op's schema from the configuration: a built-in name, or a table of dims and tensors.

Errors are not raised. They are passed to a callback, with the path of the key inside the schema
value, so that one pass over a configuration file finds all errors. Problems whose slugs are in
`WARNING_SLUGS` are warnings: the schema can still be used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from gpuemu_flow.cases.op_schema import (
    BUILTIN_SCHEMAS,
    FEWEST_INPUTS,
    SAME_SHAPE_BUILTINS,
    SCHEMA_KEYS,
    WARNING_SLUGS,
    Dim,
    OpSchema,
    TensorDef,
    allowed_sizes,
    same_shape_schema,
)
from gpuemu_flow.cases.output_contracts import plain_dims
from gpuemu_flow.cases.schema_constraints import Constraints, demand_feasible, demand_rules
from gpuemu_flow.cases.schema_rules import (
    RULE_KEYS,
    Expressions,
    KeyPath,
    Report,
    RuleReader,
    demand_sizes,
    is_expression,
    read_scalars,
    rule_texts,
    shown,
    used_names,
    wants_range,
)
from gpuemu_flow.model.errors import did_you_mean
from gpuemu_flow.model.types import DTYPES, Unused, ValueRule, canonical_dtype, strategies_of

_UNUSED = re.compile(r"\s*([A-Za-z_]\w*)\s*>=\s*([A-Za-z_]\w*)(?:\s+in\s+([A-Za-z_]\w*))?\s*")
MAX_SIZE = 2**31 - 1
MAX_ELEMENTS = 2**30  # of the smallest tensor that a schema allows: no machine should try more
MAX_RANK = 32  # numpy 1.x's
MAX_NAMES = 64
MAX_CANDIDATES = 512


def parse_schema(value: object, input_names: Sequence[str], report: Report) -> OpSchema | None:
    """Return an op's schema from its value in the configuration."""
    failed = False

    def note(path: KeyPath, slug: str, message: str, hint: str) -> None:
        nonlocal failed
        failed = failed or slug not in WARNING_SLUGS
        report(path, slug, message, hint)

    schema: OpSchema | None = None
    if isinstance(value, str):
        schema = _builtin(value, input_names, note)
    elif isinstance(value, Mapping):
        schema = _SchemaTable(value, input_names, note, lambda: failed).parse()
    else:
        hint = f"a name ({', '.join(BUILTIN_SCHEMAS)}) or a table of dims, inputs and output"
        note((), "schema-type", f"a schema is a name or a table, not {shown(value)}", hint)
    return None if failed else schema


def _builtin(name: str, input_names: Sequence[str], report: Report) -> OpSchema | None:
    schema = BUILTIN_SCHEMAS.get(name.strip().lower())
    if schema is None:
        hint = did_you_mean(name.strip().lower(), tuple(BUILTIN_SCHEMAS))
        report((), "schema-unknown", f"there is no built-in schema {shown(name)}", hint)
        return None
    name = name.strip().lower()
    if name in SAME_SHAPE_BUILTINS:
        return same_shape_schema(schema, input_names)
    if not input_names:
        return schema
    by_name = {tensor.name: tensor for tensor in schema.inputs}
    if set(input_names) <= set(by_name):
        return _used_dims(replace(schema, inputs=tuple(by_name[n] for n in input_names)))
    fewest = FEWEST_INPUTS.get(name, len(by_name))
    if not fewest <= len(input_names) <= len(by_name):
        wanted = f"{fewest} to {len(by_name)}" if fewest < len(by_name) else str(fewest)
        message = f"schema {name!r} has {wanted} inputs ({', '.join(by_name)}), "
        message += f"the op {len(input_names)}"
        report((), "schema-inputs", message, "give a table of dims and inputs instead")
        return None
    renamed = zip(input_names, schema.inputs)  # noqa: B905 - the schema's last inputs may be absent
    return _used_dims(replace(schema, inputs=tuple(replace(t, name=n) for n, t in renamed)))


def _used_dims(schema: OpSchema) -> OpSchema:
    """Remove the dims that no input has, and the outputs with such a dim; return the schema."""
    used = {d for tensor in schema.inputs for d in tensor.dims}
    outputs = tuple(t for t in schema.outputs if used.issuperset(t.dims))
    return replace(schema, dims=tuple(d for d in schema.dims if d.name in used), outputs=outputs)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class _SchemaTable:
    """Parser of a schema's table; each method reports errors and returns the valid entries."""

    def __init__(
        self,
        table: Mapping[object, object],
        input_names: Sequence[str],
        report: Report,
        failed: Callable[[], bool],
    ) -> None:
        self.table, self.input_names = table, input_names
        self.report, self.failed = report, failed
        self.expressions = Expressions(report)

    def parse(self) -> OpSchema | None:
        self._unknown_keys((), self.table, SCHEMA_KEYS)
        dims = self._dims()
        inputs = self._inputs(dims)
        outputs = self._outputs(dims)
        derived = self.expressions.ordered(dims)
        constraints = Constraints(inputs, (*dims, *(d.name for d in derived)), self.report)
        constraints.read(self.table.get("constraints"))
        inputs = constraints.inputs
        texts: list[object] = [axis for tensor in (*inputs, *outputs) for axis in tensor.dims]
        texts += [text for tensor in inputs for text in rule_texts(tensor.rule)]
        texts += [side for left, _, right in constraints.limits for side in (left, right)]
        used = used_names(texts, derived)
        for name in dims:
            if name not in used:
                message = f"no tensor has the dim {name!r}"
                self.report(("dims", name), "schema-unused-dim", message, "use it or drop it")
        dims = {name: dim for name, dim in dims.items() if name in used}
        derived = tuple(dim for dim in derived if dim.name in used)
        limits = tuple(constraints.limits)
        schema = OpSchema(tuple(dims.values()), inputs, outputs, derived=derived, limits=limits)
        demand_rules(schema, self.report)
        if self.failed() or not demand_sizes(schema, self.report):
            return None
        demand_feasible(schema, self.report)
        self._check_size(schema)
        return schema

    def _unknown_keys(
        self, path: KeyPath, table: Mapping[object, object], known: tuple[str, ...]
    ) -> None:
        for key in table:
            if key not in known:
                hint = did_you_mean(str(key), known)
                message = f"unknown key {shown(key)}"
                self.report((*path, str(key)), "config-unknown-key", message, hint)

    def _named(self, key: str, what: str) -> list[tuple[KeyPath, str, object]]:
        """Return the entries under `key`, a table or a list of tables, as (path, name, value).

        `what` says what an entry is, for messages.
        """
        value = self.table.get(key)
        found: list[tuple[KeyPath, str, object]] = []
        if isinstance(value, Mapping):
            found = [((key, str(name)), str(name), entry) for name, entry in value.items()]
        elif isinstance(value, (list, tuple)):
            for i, entry in enumerate(value):
                if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
                    rest = {k: v for k, v in entry.items() if k != "name"}
                    found.append(((key, i), str(entry["name"]), rest))
                else:
                    message = f"{key}[{i}] is no table with a name: {shown(entry)}"
                    self.report(
                        (key, i), "schema-type", message, f'name = "…" and the {what}\'s keys'
                    )
        elif value is not None or key == "inputs":
            got = "missing" if value is None else f"not a table: {shown(value)}"
            hint = '{ a = ["M", "K"], b = ["K", "N"] }' if key != "dims" else "{ M = [1, 7, 128] }"
            path = () if value is None else (key,)
            self.report(path, "schema-type", f"{key} is {got}", f"for example {key} = {hint}")
        return self._distinct(found, key, what)

    def _distinct(
        self, found: list[tuple[KeyPath, str, object]], key: str, what: str
    ) -> list[tuple[KeyPath, str, object]]:
        seen: dict[str, tuple[KeyPath, str, object]] = {}
        for path, name, entry in found:
            if not name.strip():
                self.report(path, "schema-name", f"a {what} has an empty name", "")
            elif name in seen:
                message = f"there are two {what}s named {shown(name)}"
                self.report(path, "schema-duplicate", message, "rename one of them")
            else:
                seen[name] = (path, name, entry)
        if len(seen) > MAX_NAMES:
            message = f"{len(seen)} {what}s; at most {MAX_NAMES} are possible"
            self.report((key,), "schema-too-large", message, "")
            return []
        return list(seen.values())

    def _dims(self) -> dict[str, Dim]:
        dims: dict[str, Dim] = {}
        for path, name, value in self._named("dims", "dim"):
            if isinstance(value, str):
                self.expressions.add(path, name, value)
            else:
                dims[name] = self._dim(path, name, value)
        return dims

    def _dim(self, path: KeyPath, name: str, value: object) -> Dim:
        if _is_int(value):
            value = [value]
        if isinstance(value, Mapping) and "candidates" in value:
            self._unknown_keys(path, value, ("candidates",))
            path, value = (*path, "candidates"), value["candidates"]
        if isinstance(value, Mapping):
            return self._range_dim(path, name, value)
        if not isinstance(value, (list, tuple)):
            message = f"dim {name!r} is {shown(value)}"
            hint = "a list of sizes, or { min = 1, max = 512, multiple_of = 8 }"
            self.report(path, "schema-dim-type", message, hint)
            return Dim(name, (1,))
        if not value or len(value) > MAX_CANDIDATES:
            message = f"dim {name!r} has {len(value) or 'no'} candidates"
            self.report(path, "schema-dim-empty" if not value else "schema-too-large", message,
                        "list its sizes, or give { min, max }")  # fmt: skip
            return Dim(name, (1,))
        sizes = [self._size((*path, i), f"dim {name!r}", v) for i, v in enumerate(value)]
        return Dim(name, tuple(dict.fromkeys(sizes)))

    def _size(self, path: KeyPath, what: str, value: object, lowest: int = 0) -> int:
        if isinstance(value, int) and _is_int(value) and lowest <= value <= MAX_SIZE:
            return value
        message = f"{what}: {shown(value)} is no size"
        hint = f"a whole number from {lowest} to {MAX_SIZE}"
        self.report(path, "schema-dim-size", message, hint)
        return 1

    def _range_dim(self, path: KeyPath, name: str, table: Mapping[object, object]) -> Dim:
        self._unknown_keys(path, table, ("min", "max", "multiple_of"))
        what = f"dim {name!r}"
        if "max" not in table:
            self.report(path, "schema-dim-empty", f"{what} has neither candidates nor a max",
                        "a list of sizes, or { min = 1, max = 512 }")  # fmt: skip
            return Dim(name, (1,))
        low = self._size((*path, "min"), what, table.get("min", 0))
        high = self._size((*path, "max"), what, table["max"])
        step = self._size((*path, "multiple_of"), what, table.get("multiple_of", 1), lowest=1)
        dim = Dim(name, (), low, high, step)
        if low > high:
            message = f"{what}: min = {low} is above max = {high}"
            self.report(path, "schema-dim-range", message, "exchange them")
        elif dim.smallest > high:
            message = f"{what}: no multiple of {step} lies between {low} and {high}"
            self.report(path, "schema-dim-range", message, "")
        else:
            return dim
        return Dim(name, (1,))

    def _inputs(self, dims: Mapping[str, Dim]) -> tuple[TensorDef, ...]:
        entries = self._named("inputs", "input")
        tensors = {
            name: self._ruled(path, value, self._tensor(path, name, value, dims, RULE_KEYS), dims)
            for path, name, value in entries
        }
        scalars = self.table.get("scalars")
        scalar_names = list(scalars) if isinstance(scalars, Mapping) else []
        names = [n for n in self.input_names or tensors if n not in scalar_names or n in tensors]
        if not names:
            self.report(("inputs",), "schema-inputs", "a schema needs at least one input", "")
        if "inputs" in self.table:
            for path, name, _ in entries:
                if name not in names:
                    message = f"the op has no input {shown(name)}"
                    self.report(path, "schema-inputs", message, did_you_mean(name, names))
            for name in names:
                if name not in tensors:
                    message = f"the schema does not say the shape of input {name!r}"
                    hint = did_you_mean(name, tuple(tensors)) or "add it to inputs"
                    self.report(("inputs",), "schema-inputs", message, hint)
        for path, name, value in entries:
            if isinstance(value, Mapping) and "unused" in value:
                tensors[name] = self._with_unused((*path, "unused"), value["unused"], name, tensors)
            indexed = any(each.rule and each.rule.of == name for each in tensors.values())
            plain = isinstance(value, Mapping) and not {"range", "kind"} & value.keys()
            if plain and not indexed and wants_range(tensors[name]):
                text = f"{name!r} looks like an index and has no range"
                hint = 'range = [0, "V-1"], or kind = "indices" and of = the input that is read'
                self.report(path, "schema-index-without-range", text, hint)
        named = tuple(tensors[name] for name in names if name in tensors)
        scalars = self._scalars(dims)
        for scalar in scalars:
            if scalar.name in tensors:
                text = f"{scalar.name!r} is an input and a scalar"
                self.report(("scalars", scalar.name), "schema-duplicate", text, "rename one")
        return (*named, *(s for s in scalars if s.name not in tensors))

    def _scalars(self, dims: Mapping[str, Dim]) -> tuple[TensorDef, ...]:
        table = self.table.get("scalars")
        if table is None:
            return ()
        known = (*dims, *self.expressions.found)
        return read_scalars(table, known, self.report)

    def _outputs(self, dims: Mapping[str, Dim]) -> tuple[TensorDef, ...]:
        tensors = [
            self._output(path, name, plain_dims(value), dims)
            for path, name, value in self._named("outputs", "output")
        ]
        single = self.table.get("output")
        if single is not None and "outputs" in self.table:
            self.report(("output",), "schema-duplicate", "both output and outputs are given",
                        "keep outputs")  # fmt: skip
        elif single is not None:
            name = "output"
            if isinstance(single, Mapping) and isinstance(single.get("name"), str):
                name = str(single["name"])
                single = {k: v for k, v in single.items() if k != "name"}
            tensors.append(self._output(("output",), name, plain_dims(single), dims))
        return tuple(tensors)

    def _output(
        self, path: KeyPath, name: str, value: object, dims: Mapping[str, Dim]
    ) -> TensorDef:
        tensor = self._tensor(path, name, value, dims)
        if not isinstance(value, Mapping):
            return tensor
        low, high = RuleReader(path, name, value, (), self.report).plain_bounds()
        strategy = self._strategy(path, name, value.get("strategy"), None)
        return replace(tensor, low=low, high=high, strategy=strategy)

    def _ruled(
        self, path: KeyPath, value: object, tensor: TensorDef, dims: Mapping[str, Dim]
    ) -> TensorDef:
        """Return an input with the range, rule and strategy that the configuration gives it.

        `value` is the configuration's entry for the input, found at `path`. If it is not a table,
        `tensor` is returned unchanged. Rules can name the dims in `dims`.
        """
        if not isinstance(value, Mapping):
            return tensor
        known = (*dims, *self.expressions.found)
        reader = RuleReader(path, tensor.name, value, known, self.report)
        low, high, rule = reader.read()
        strategy = self._strategy(path, tensor.name, value.get("strategy"), rule)
        return replace(tensor, low=low, high=high, rule=rule, strategy=strategy)

    def _with_unused(
        self, path: KeyPath, value: object, name: str, tensors: Mapping[str, TensorDef]
    ) -> TensorDef:
        """Return an input with the elements that are unused, as ``"T >= lengths"`` says them.

        Of a pool of pages, ``"PAGE >= lengths in table"`` says them.
        """
        tensor = tensors[name]
        match = _UNUSED.fullmatch(value) if isinstance(value, str) else None
        others = [tensors.get(each) for each in match.groups()[1:] if each] if match else []
        known = [other for other in others if other is not None and other is not tensor]
        if match is None or len(known) < len(others):
            hint = 'unused = "T >= lengths", where lengths is an input of integers'
            self.report(path, "schema-unused", f"{shown(value)} says no elements", hint)
            return tensor
        dims, lengths = list(tensor.dims), known[0]
        if match[3]:
            fits = dims.index(match[1]) > 0 if dims.count(match[1]) == 1 else False
            fits &= len(known[1].dims) > 0 and known[1].dims[:-1] == lengths.dims
            needs = (
                f"its pages along its first dim, {match[3]!r} the dims of {match[2]!r} and pages"
            )
        else:
            fits = dims.count(match[1]) == 1 and all(dims.count(d) == 1 for d in lengths.dims)
            fits &= match[1] not in lengths.dims
            needs = f"the dims of {match[2]!r}, and {match[1]!r}"
        whole = [o.dtype is not None and DTYPES[o.dtype].kind in ("int", "uint") for o in known]
        if not fits or not all(whole):
            text = f"{shown(value)}: {name!r} needs {needs}"
            hint = f"give {' and '.join(o.name for o in known)} an integer dtype, too"
            self.report(path, "schema-unused", text, hint)
            return tensor
        if tensor.dtype is not None and DTYPES[tensor.dtype].kind != "float":
            text = f"{name!r} is of {tensor.dtype}, which holds no NaN"
            self.report(path, "schema-unused", text, "only floats can be poisoned")
            return tensor
        axes = () if match[3] else tuple(dims.index(dim) for dim in lengths.dims)
        unused = Unused(match[2], dims.index(match[1]), axes, match[3] or "")
        return replace(tensor, rule=replace(tensor.rule or ValueRule(), unused=unused))

    def _tensor(
        self,
        path: KeyPath,
        name: str,
        value: object,
        dims: Mapping[str, Dim],
        more: tuple[str, ...] = (),
    ) -> TensorDef:
        options: Mapping[object, object] = {}
        axes, axes_path = value, path
        if isinstance(value, Mapping):
            self._unknown_keys(path, value, ("dims", "dtype", "range", "strategy", *more))
            options, axes, axes_path = value, value.get("dims"), (*path, "dims")
        if not isinstance(axes, (list, tuple)):
            message = f"the dims of {name!r} are {'missing' if axes is None else shown(axes)}"
            hint = 'a list of dim names and sizes, such as ["M", 3]; [] for a scalar'
            self.report(axes_path if axes is not None else path, "schema-type", message, hint)
            axes = []
        if len(axes) > MAX_RANK:
            message = f"{name!r} has {len(axes)} dims; at most {MAX_RANK} are possible"
            self.report(axes_path, "schema-too-large", message, "")
            axes = []
        known = [self._axis((*axes_path, i), name, axis, dims) for i, axis in enumerate(axes)]
        dtype = self._dtype(path, name, options.get("dtype"))
        return TensorDef(name, tuple(known), dtype)

    def _as_dim(self, axis: str) -> str:
        """Return a hint if an axis has the name of a scalar, which cannot be a size; else empty."""
        scalars = self.table.get("scalars")
        if not isinstance(scalars, Mapping) or axis not in scalars:
            return ""
        return (
            f"a size follows no scalar, but a scalar a size: dims.{axis}_size = {{ min = 1, "
            f'max = 64 }}, scalars.{axis} = {{ range = ["{axis}_size", "{axis}_size"] }}'
        )

    def _axis(self, path: KeyPath, name: str, axis: object, dims: Mapping[str, Dim]) -> str | int:
        if not isinstance(axis, str):
            return self._size(path, f"a dim of {name!r}", axis)
        if axis in dims or axis in self.expressions.found:
            return axis
        if is_expression(axis):
            self.expressions.add(path, axis, axis)
            return axis if axis in self.expressions.found else 1
        hint = (
            self._as_dim(axis)
            or did_you_mean(axis, tuple(dims))
            or f"add it to dims: {shown(axis)} = {{ min = 1, max = 64 }}"
        )
        self.report(path, "schema-unknown-dim", f"{name!r} has an unknown dim {shown(axis)}", hint)
        return 1

    def _dtype(self, path: KeyPath, name: str, value: object) -> str | None:
        if value is None:
            return None
        dtype = canonical_dtype(value) if isinstance(value, str) else None
        if dtype is None:
            hint = did_you_mean(value if isinstance(value, str) else "", tuple(DTYPES))
            message = f"{name!r} has an unknown dtype {shown(value)}"
            self.report((*path, "dtype"), "schema-dtype", message, hint)
        return dtype

    def _strategy(
        self, path: KeyPath, name: str, value: object, rule: ValueRule | None
    ) -> str | None:
        if value is None:
            return None
        known = strategies_of(rule)
        if isinstance(value, str) and value in known:
            return value
        hint = did_you_mean(value if isinstance(value, str) else "", known)
        message = f"{name!r} has an unknown strategy {shown(value)}"
        self.report((*path, "strategy"), "schema-strategy", message, hint)
        return None

    def _check_size(self, schema: OpSchema) -> None:
        smallest = schema.all_sizes(allowed_sizes(schema) or {})
        for group, tensors in (("inputs", schema.inputs), ("outputs", schema.outputs)):
            for tensor in tensors:
                count = 1
                for axis in tensor.dims:
                    count *= smallest[axis] if isinstance(axis, str) else axis
                if count > MAX_ELEMENTS:
                    message = f"{tensor.name!r} never has fewer than {count} elements"
                    hint = f"at most {MAX_ELEMENTS} are possible"
                    self.report((group, tensor.name), "schema-too-large", message, hint)
