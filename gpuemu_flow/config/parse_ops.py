"""Convert the checked keys of ``[[ops]]`` to the model, with defaults from ``[validation]``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

import msgspec
from msgspec import Struct

from gpuemu_flow.cases.op_schema import (
    LIST,
    WARNING_SLUGS,
    ArgumentGroup,
    OpSchema,
    TensorDef,
    default_schema,
    plain_shapes_schema,
)
from gpuemu_flow.config.check import INVALID, values_of
from gpuemu_flow.config.model import OpConfig, ProgramRef
from gpuemu_flow.config.parse_rules import ExpectedFiles, RuleParser
from gpuemu_flow.config.parse_sections import (
    explicit_tolerances,
    partial_tolerances,
    policy_of,
    report_policy_conflict,
    unique_names,
)
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.programs import (
    FrameworkKinds,
    Modules,
    Programs,
    inputs_taken,
    is_module,
    refuse_one_program,
    with_shared_weights,
)
from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shown
from gpuemu_flow.config.tables import ExecutionConfig, Validation
from gpuemu_flow.config.tables_ops import OpTable
from gpuemu_flow.model.syntax import MOST_CONSTANTS, constants_of
from gpuemu_flow.model.types import DTYPES, IN_PROCESS, INVARIANTS, SCALAR, Json, Tolerance
from gpuemu_flow.numerics.contract import (
    GRADIENT_PREFIX,
    PARAMETERS,
    CompareRef,
    OutputContract,
    names_parameter,
    resolve,
)

Table = Mapping[str, Json]


class OpParser(Struct, dict=True):
    """Parses the ops that one file defines."""

    workspace: WorkspacePaths
    out: Reporter
    # The tables that contain the defaults.
    validation: Validation
    execution: ExecutionConfig
    # ``[validation]`` as written in the file, to distinguish defaults from written values.
    shared_table: Table
    # Parser of the rules that ops may need.
    rules: RuleParser
    # Lookup of the files that globs match.
    presence: ExpectedFiles
    # Names of the ops of other files, and their locations.
    names: dict[str, str] = {}
    # ``project.framework``; empty if it is not set.
    framework: str = ""
    # True if ops run in the sandbox.
    fenced: bool = True

    def __post_init__(self) -> None:
        self.programs = Programs(self.workspace, self.out)
        self.modules = Modules(self.programs)
        self.frameworks = FrameworkKinds(self.out, self.framework, self.modules.consulted)

    def parse_all(self, items: list[Json]) -> list[OpConfig]:
        """Return all ops that could be parsed; report the problems of the others."""
        unique_names(items, "ops", self.out, self.names)
        parsed = []
        for place, table in enumerate(items):
            if self.out.hopeless:
                break
            op = self.parse(table, ("ops", place)) if table is not INVALID else None
            if op is not None:
                parsed.append(op)
        return parsed

    def parse(self, table: Table, where: KeyPath) -> OpConfig | None:
        """Parse one op and report its problems; return None if it cannot be built."""
        reference = None
        if "reference" in table:
            reference = self.programs.parse(table["reference"], (*where, "reference"))
        mode, op, skip_reason = self.implementation(table, where)
        if reference is not None:
            op, reference = self.framed(table, where, op, reference)
        if op is not None and reference is not None and is_module(op) and is_module(reference):
            op, reference = with_shared_weights(op, reference, (*where, "reference"), self.out)
        if op is not None and reference is not None:
            place = (*where, "reference")
            refuse_one_program(
                op, reference, place, self.out, root=self.workspace.root, fenced=self.fenced
            )
        if op is not None and op.skip:
            skip_reason = op.skip
            op = None
        if reference is not None and reference.skip:
            place = (*where, "reference")
            text = f"{dotted(place)} cannot be skipped: {reference.skip}"
            self.out.add("config-unread-key", place, text, "remove skip_if from the reference")
        names, schema, groups = self.inputs(table, where)
        if op is not None and "input_names" not in table and "schema" not in table:
            self.refuse_unnamed(table, (op, reference), where)
        self.check_names(table, names, groups, op, where)
        self.check_kernel(table, op, where)
        depends, shared_files = (self.globs(table, key, where) for key in ("depends", "shared"))
        for kind in ("nan", "inf"):
            report_policy_conflict(table, kind, where, self.out)
        if "name" not in table or reference is None or schema is None:
            return None
        outputs, compares = self.outputs(table, schema, where)
        self.check_output_dtypes(op, schema, outputs, where)
        gradients = GradientsParser(self.out, where, schema, groups).parse(
            table.get("gradients"), op, reference, outputs
        )
        tolerance, tolerances = self.tolerances(table)
        self.warn_of_tolerances(table, outputs, where)
        invariants, shape_input = _invariants(table.get("invariants", []), names)
        values, shared = values_of(OpTable, table), self.validation
        env = values["env"]
        return OpConfig(
            name=table["name"],
            reference=reference,
            schema=msgspec.structs.replace(schema, constants=_constants(reference, op)),
            has_schema="schema" in table,
            says_dtypes=bool(values["dtypes"]),
            op=op,
            file=self.out.file,
            line=self.out.line(where),
            input_names=names,
            execution_mode=mode,
            kwargs=values["kwargs"],
            env=env if isinstance(env, dict) else {},
            env_names=tuple(sorted({*self.execution.env, *(env if isinstance(env, list) else ())})),
            depends=depends,
            shared=shared_files,
            timeout=float(values["timeout"] or self.execution.reference_timeout),
            timeout_grows=values["timeout"] is None and self.execution.timeout_grows,
            memory_limit=values["memory_limit"],
            isolation=values["isolation"],
            mutates=tuple(
                member
                for name in values["mutates"]
                for member in (groups[name].members if name in groups else (name,))
            ),
            # Identical calls of an op that draws random numbers may differ.
            deterministic=values["deterministic"] and not any(c.statistics for c in outputs),
            require_kernel=values["require_kernel"],
            forbid=tuple(values["forbid"]),
            dtypes=tuple(values["dtypes"] or shared.dtypes),
            layouts=tuple(values["layouts"] or shared.layouts),
            strategies=tuple(values["strategies"] or shared.strategies),
            cases=values["cases"] or shared.cases,
            fuzz_iterations=values["fuzz_iterations"] or shared.fuzz_iterations,
            tolerance=tolerance,
            tolerances=tolerances,
            precision=values["precision"] or shared.precision,
            accuracy=values["accuracy"],
            nan_policy=policy_of(table, "nan") or shared.nan_policy,
            inf_policy=policy_of(table, "inf") or shared.inf_policy,
            invariants=invariants,
            shape_preserved_input=shape_input,
            reference_dtype=values["reference_dtype"],
            outputs=outputs,
            compares=compares,
            generators=self.generators(schema, where),
            needs=self.needs(table, where),
            groups=groups,
            gradients=gradients,
            skip_reason=skip_reason,
        )

    def globs(self, table: Table, key: str, where: KeyPath) -> tuple[str, ...]:
        found = self.workspace.globs(table.get(key, ()), (*where, key), self.out)
        for pattern, place in found.items():
            self.presence.warn_of_none(pattern, place, self.out)
        return tuple(found)

    def framed(
        self, table: Table, where: KeyPath, op: ProgramRef | None, reference: ProgramRef
    ) -> tuple[ProgramRef | None, ProgramRef]:
        """Return op and reference after applying the settings that concern their frameworks."""
        kinds = self.frameworks
        written = next((table[key] for key in ("op", "op_script", "module") if key in table), None)
        op = kinds.apply(table, op, written)
        reference = kinds.apply(table, reference, table["reference"], op) or reference
        kinds.check(table, where, op, reference)
        return kinds.xla(table, where, op), reference

    def needs(self, table: Table, where: KeyPath) -> tuple[str, ...]:
        """Return the rules that an op needs: its own ``build`` first, then those of ``needs``."""
        own = [table["name"]] if "build" in table else []
        named = self.rules.named(table.get("needs", ()), (*where, "needs"), self.out)
        return tuple(dict.fromkeys((*own, *named)))

    def implementation(self, table: Table, where: KeyPath) -> tuple[str, ProgramRef | None, str]:
        """Return the execution mode, the op's program, and the reason if there is no program."""
        if "op" in table and "op_script" in table:
            text = "both op and op_script are given"
            self.out.add("config-conflict", (*where, "op_script"), text, "keep op")
        key = "op" if "op" in table else "op_script" if "op_script" in table else ""
        script = self.programs.parse(table[key], (*where, key)) if key else None
        module, reason = None, ""
        if "module" in table:
            module, reason = self.modules.callable_of(
                table["module"], table.get("name", ""), (*where, "module")
            )
        mode = table.get("execution_mode") or ("script_based" if key else "client_side")
        if mode == "script_based":
            op = script or module
            if op is None:
                text = "execution_mode is script_based, but there is no op or op_script"
                reason = f"{text}; {reason}" if reason else text
            return mode, op, "" if op else reason
        op = script if script is not None and script.kind in IN_PROCESS else module
        if op is None:
            text = (
                "no `op` is given, so a client runs it: "
                "`gpuemu-flow daemon start --background`, then run your client"
            )
            reason = f"{text}; {reason}" if reason else text
        return mode, op, "" if op else reason

    def inputs(
        self, table: Table, where: KeyPath
    ) -> tuple[tuple[str, ...], OpSchema | None, dict[str, ArgumentGroup]]:
        """Return the input names, the schema, and the arguments that consist of several inputs. If
        only the names or only the schema is given, the other is derived from it."""
        names = tuple(table.get("input_names", ()))
        repeated = {n for n in names if names.count(n) > 1}
        for name in sorted(repeated):
            place = (*where, "input_names")
            text = f"two inputs are named {shown(name)}"
            self.out.add("config-duplicate-name", place, text)
        names = tuple(dict.fromkeys(names))
        if "schema" in table:
            from gpuemu_flow.cases.grouped import spread  # noqa: PLC0415
            from gpuemu_flow.cases.schema import parse_schema  # noqa: PLC0415

            below = (*where, "schema")

            def report(path: KeyPath, slug: str, message: str, hint: str) -> None:
                warning = slug in WARNING_SLUGS
                self.out.add(slug, (*below, *path), message, hint, warning=warning)

            spread_schema, names, groups = spread(table["schema"], names, report)
            schema = parse_schema(spread_schema, names, report)
            if schema is not None:
                # First the inputs in `input_names`, in this order, then the schema's scalars.
                names = tuple(tensor.name for tensor in schema.inputs)
            return names or ("input",), schema, groups
        names = names or ("input",)
        plain = self.validation.shapes
        if plain is None:
            return names, default_schema(names), {}
        lists = plain.batch_sizes, plain.sequence_lengths, plain.hidden_dims
        return names, plain_shapes_schema(names, *lists, plain.edge_cases), {}

    def refuse_unnamed(
        self, table: Table, programs: tuple[ProgramRef | None, ...], where: KeyPath
    ) -> None:
        """Report an op of which nothing says the inputs, if its functions take others."""
        for ref in programs:
            if ref is None or ref.path is None or ref.kind not in IN_PROCESS:
                continue
            self.modules.consulted.add(ref.path)
            kwargs = table.get("kwargs", {})
            taken = [name for name in inputs_taken(ref.path, ref.function) if name not in kwargs]
            if taken:
                text = f"{shown(table.get('name', ''))} has no input_names and no schema"
                listed = ", ".join(json.dumps(name) for name in taken)
                hint = f"input_names = [{listed}], as {ref.text or ref.function} takes them"
                self.out.add("config-no-inputs", where, text, hint)
                return

    def check_output_dtypes(
        self, op: ProgramRef | None, schema: OpSchema, outputs: tuple[OutputContract, ...],
        where: KeyPath,
    ) -> None:  # fmt: skip
        """Report outputs of a compiled kernel whose dtype, by default, is not the schema's."""
        if op is None or op.kind not in ("ptx", "cuda") or not schema.inputs:
            return
        made = json.loads(op.argv[1])["outputs"]
        own = {tensor.name: tensor.dtype for tensor in schema.inputs}
        first = schema.inputs[0]
        for contract in outputs:
            name = next(iter(made)) if len(made) == len(outputs) == 1 else contract.name
            said = made.get(name)
            source = contract.dtype.removeprefix("same as ")
            if said is None or (isinstance(said, dict) and "dtype" in said):
                continue
            if source in ("", "promote") or own.get(source, source) == first.dtype:
                continue
            place = (*where, "op", "outputs")
            text = (
                f"{dotted(place)}: {name} has the dtype of the first input, {first.name} "
                f"({first.dtype or 'that of the case'}); the schema says {contract.dtype}"
            )
            hint = f'write {name} = {{ dims = [...], dtype = "..." }}'
            self.out.add("config-launch", place, text, hint)

    def outputs(
        self, table: Table, schema: OpSchema, where: KeyPath
    ) -> tuple[tuple[OutputContract, ...], tuple[ProgramRef, ...]]:
        """Return the contracts of outputs, and the user's functions that compare some of them."""
        if not isinstance(table.get("schema"), Mapping):
            return (), ()
        from gpuemu_flow.cases.output_contracts import parse_contracts  # noqa: PLC0415

        below = (*where, "schema")
        found: list[ProgramRef] = []

        def report(path: KeyPath, slug: str, message: str, hint: str) -> None:
            self.out.add(slug, (*below, *path), message, hint, warning=slug in WARNING_SLUGS)

        def function(value: Json, path: KeyPath) -> CompareRef | None:
            ref = self.programs.parse(value, (*below, *path)) if isinstance(value, str) else None
            if isinstance(value, str) and ref is None:
                return None
            if ref is None or ref.kind != "callable":
                hint = 'a function that compares, as "compare.py:function" or "pkg.mod:function"'
                fault = f"{dotted((*below, *path))}: {shown(value)} names no function"
                report(path, "schema-contract", fault, hint)
                return None
            found.append(ref)
            return CompareRef(ref.relative, ref.module, ref.function)

        contracts = parse_contracts(table["schema"], schema, function, report)
        return contracts, tuple(found)

    def generators(self, schema: OpSchema, where: KeyPath) -> dict[str, ProgramRef]:
        """Return the functions that the schema's ``generate`` keys name, by the keys' values."""
        found: dict[str, ProgramRef] = {}
        for tensor in schema.inputs:
            label = tensor.rule.generate if tensor.rule else ""
            if not label or label in found:
                continue
            below = (*where, "schema", "inputs", tensor.name, "generate")
            ref = self.programs.parse(label, below)
            if ref is not None and ref.kind == "callable":
                found[label] = ref
            elif ref is not None:
                text = f"{dotted(below)}: {shown(label)} names no function"
                self.out.add("config-value", below, text, "write it as path.py:function")
        return found

    def check_names(
        self,
        table: Table,
        names: tuple[str, ...],
        groups: Mapping[str, ArgumentGroup],
        op: ProgramRef | None,
        where: KeyPath,
    ) -> None:
        """Report names in ``kwargs`` that are inputs, and names in ``mutates`` that are not. Warn
        of inputs whose names cannot be keyword arguments of a callable."""
        members = {member for group in groups.values() for member in group.members}
        for name in table.get("kwargs", {}):
            if name in names or name in groups:
                text = f"kwargs has {shown(name)}, which is an input"
                self.out.add("config-conflict", (*where, "kwargs", name), text, "rename one")
        for name in table.get("mutates", ()):
            if name not in (*names, *groups):
                text = f"mutates names {shown(name)}, which is no input"
                hint = self.out.nearest(name, names, or_all=True)
                self.out.add("config-value", (*where, "mutates"), text, hint)
        for name in names:
            named = name in members or name.isidentifier()
            if op is not None and op.kind in IN_PROCESS and not named:
                text = f"input {shown(name)} is no identifier: the callable gets one dict of inputs"
                self.out.add("config-input-name", (*where, "input_names"), text, warning=True)

    def check_kernel(self, table: Table, op: ProgramRef | None, where: KeyPath) -> None:
        """Report ``require_kernel`` and ``forbid`` of an op whose kernels cannot be observed."""
        interpreted = op is not None and op.kind == "triton" and not op.argv
        compiled = op is not None and op.kind in ("ptx", "cuda")
        for key in ("require_kernel", "forbid"):
            if table.get(key) and op is not None and not interpreted and not compiled:
                text = f"{key} needs an op of which it is known what its kernels store"
                hint = 'kind = "triton" without mode = "compiled", "ptx" or "cuda"'
                self.out.add("config-no-kernel", (*where, key), text, hint)

    def tolerances(self, table: Table) -> tuple[str, dict[str, Tolerance]]:
        """Return the mode for dtypes without an explicit tolerance, and the explicit tolerances. An
        op that sets ``tolerance`` itself does not inherit explicit tolerances."""
        shared = self.validation
        own = partial_tolerances(table.get("tolerances", {}))
        below = partial_tolerances(self.shared_table.get("tolerances", {}))
        explicit = {dtype: resolve(dtype, own, below) for dtype in own}
        if "tolerance" in table:
            return table["tolerance"], explicit
        written = "tolerance" in self.shared_table or not own
        return shared.tolerance if written else "explicit", {
            **explicit_tolerances(shared),
            **explicit,
        }

    def warn_of_tolerances(
        self, table: Table, outputs: tuple[OutputContract, ...], where: KeyPath
    ) -> None:
        """Warn of the op's tolerances that are meant for outputs: they are for cases of a dtype."""
        cases = table.get("dtypes") or self.validation.dtypes
        declared = {contract.dtype for contract in outputs}
        for dtype in table.get("tolerances", {}):
            if dtype in cases or (DTYPES[dtype].kind == "float" and dtype not in declared):
                continue
            place = (*where, "tolerances", dtype)
            text = f"{dotted(place)} has no effect: the op has no cases in {dtype}"
            hint = "of an output in it, write in the schema: `tolerance = { atol = 1, rtol = 0 }`"
            self.out.add("config-unread-key", place, text, hint, warning=True)


def _invariants(given: Json, names: tuple[str, ...]) -> tuple[tuple[str, ...], str | None]:
    if isinstance(given, dict):
        requested = {name for name, wanted in given.items() if wanted}
        shape_input = names[0] if "shape_preserved" in requested else None
    else:
        requested, shape_input = set(given), None
    return tuple(name for name in INVARIANTS if name in requested), shape_input


# Parse ``gradients`` of an op: the inputs with respect to which gradients are compared.


KINDS = ("torch", "jax")
"""Kinds of programs whose framework can differentiate them."""
OP_KINDS = (*KINDS, "triton")
_HINT = (
    '{ kind = "torch", file = "x.py", function = "f" }, or "jax"; `framework = "pytorch"` of the '
    "op makes plain functions so"
)


class GradientsParser(Struct, frozen=True):
    """Parses ``gradients`` of one op."""

    out: Reporter
    # The path of the op's table.
    where: KeyPath
    schema: OpSchema
    groups: Mapping[str, ArgumentGroup]

    def parse(
        self,
        wanted: Json,
        op: ProgramRef | None,
        reference: ProgramRef,
        outputs: tuple[OutputContract, ...],
    ) -> tuple[str, ...]:
        """Return the inputs with respect to which gradients are wanted; empty if none are. `wanted`
        is the configured value: True for all possible inputs, or a list of names. An error is
        reported to `out` if a name is wrong, or if gradients are impossible with the programs `op`
        and `reference` or with the `outputs`."""
        if not wanted:
            return ()
        self._check_programs(op, reference)
        self._check_outputs(outputs)
        known = self._differentiable()
        if is_module(op) and is_module(reference):
            known.setdefault(PARAMETERS, (PARAMETERS,))
            named = [] if wanted is True else wanted
            known |= {name: (name,) for name in named if names_parameter(name)}
        if wanted is True:
            if not known:
                self._impossible(
                    "needs an input of a float dtype", "name one in `schema`, or remove it"
                )
            return tuple(dict.fromkeys(member for names in known.values() for member in names))
        for name in wanted:
            if name not in known:
                hint = self.out.nearest(name, list(known), or_all=True)
                text = f"gradients names {shown(name)}, which is no input of floats"
                if names_parameter(name):
                    text += "; parameters need an op and a reference that are modules of PyTorch"
                self.out.add("config-value", (*self.where, "gradients"), text, hint)
        return tuple(dict.fromkeys(m for name in wanted for m in known.get(name, ())))

    def _impossible(self, text: str, hint: str) -> None:
        place = (*self.where, "gradients")
        self.out.add("config-no-gradient", place, f"{dotted(place)} {text}", hint)

    def _check_programs(self, op: ProgramRef | None, reference: ProgramRef) -> None:
        for what, ref, kinds in (("op", op, OP_KINDS), ("reference", reference, KINDS)):
            if ref is not None and ref.kind not in kinds:
                kind = f"kind {ref.kind}, which nothing differentiates"
                self._impossible(f"needs another {what}: {shown(ref.text)} is of {kind}", _HINT)

    def _check_outputs(self, outputs: tuple[OutputContract, ...]) -> None:
        place = (*self.where, "gradients")
        for tensor in self.schema.outputs:
            if tensor.name.startswith(GRADIENT_PREFIX):
                text = (
                    f"gradients are outputs such as {GRADIENT_PREFIX}x; {shown(tensor.name)} is one"
                )
                self.out.add("config-conflict", place, text, "rename that output")
        left_out = {contract.name for contract in outputs if not contract.in_place}
        if self.schema.outputs and all(tensor.name in left_out for tensor in self.schema.outputs):
            text = "needs an output that is compared element by element with the reference's"
            self._impossible(text, "remove `gradients`")

    def _differentiable(self) -> dict[str, tuple[str, ...]]:
        """Map each argument made of floats to the names that the runner uses for its tensors. A
        list has one name for each member. Any other argument has only its own name."""
        tensors = {tensor.name: tensor for tensor in self.schema.inputs}
        found: dict[str, tuple[str, ...]] = {}
        inside = {member for group in self.groups.values() for member in group.members}
        for name, group in self.groups.items():
            if group.kind != LIST:
                found[name] = (name,)
            elif all(_is_float(tensors[member]) for member in group.members if member in tensors):
                found[name] = group.members
        for name, tensor in tensors.items():
            if name not in inside and _is_float(tensor):
                found[name] = (name,)
        return found


def _is_float(tensor: TensorDef) -> bool:
    if tensor.rule is not None and tensor.rule.kind == SCALAR:
        return False
    return tensor.dtype is None or DTYPES[tensor.dtype].kind == "float"


def _constants(*programs: ProgramRef | None) -> tuple[float, ...]:
    """Return the numbers that the programs' files compare values with, at most `MOST_CONSTANTS`."""
    found: dict[float, None] = {}
    for program in programs:
        if program is not None and program.path is not None:
            with suppress(OSError):
                source = program.path.read_bytes()
                found |= dict.fromkeys(constants_of(source, suffix=program.path.suffix))
    return tuple(found)[:MOST_CONSTANTS]
