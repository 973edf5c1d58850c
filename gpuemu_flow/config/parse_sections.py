"""Make the structs of plain tables, kernels and targets from their checked keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.check import INVALID, decoded, values_of
from gpuemu_flow.config.fields import (
    BUILD,
    GROUPS,
    KERNEL_STAGES,
    OP_STAGES,
    STAGES,
    name_fault,
    one_policy,
    split_task,
)
from gpuemu_flow.config.model import Allow, KernelConfig, OpConfig, ProgramRef, TritonKernel
from gpuemu_flow.config.parse_rules import ExpectedFiles
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.programs import Programs
from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shown
from gpuemu_flow.config.tables import (
    Cache,
    Ci,
    Daemon,
    ExecutionConfig,
    Policies,
    Project,
    SandboxConfig,
    Storage,
    Validation,
)
from gpuemu_flow.config.tables_ops import ArtifactChecks, Build, KernelTable
from gpuemu_flow.model.types import INVARIANTS, Json, Shape, Tolerance
from gpuemu_flow.numerics.contract import PartialTolerance, resolve

MAX_ELEMENTS = 2**30  # the same bound as for the schema of an op
GROWTH_MEANING_UP_TO = 0.25  # of warn_threshold, which has two documented meanings

Table = Mapping[str, Json]


def unique_names(
    items: list[Json], key: str, out: Reporter, elsewhere: dict[str, str] | None = None
) -> None:
    """Report names of ops, kernels or rules that are used twice, or that `name_fault` rejects."""
    first: dict[str, int] = {}
    known = {} if elsewhere is None else elsewhere
    for place, item in enumerate(items):
        name = item.get("name") if item is not INVALID else None
        if name is None:
            continue
        where = (key, place, "name")
        fault = name_fault(name)
        if fault:
            out.add("config-reserved-name", where, f"the name {shown(name)} {fault}")
        if name in first:
            line = out.line((key, first[name], "name"))
            text = f"{key} has two entries named {shown(name)}; the first is in line {line}"
            out.add("config-duplicate-name", where, text, "rename one of them")
        elif name in known:
            text = f"{key} has two entries named {shown(name)}; the first is in {known[name]}"
            out.add("config-duplicate-name", where, text, "rename one of them")
        first.setdefault(name, place)
    for name, place in first.items():
        line = out.line((key, place, "name"))
        known.setdefault(name, f"line {line} of {out.file}")


def partial_tolerances(table: Table) -> dict[str, PartialTolerance]:
    """Convert a table of tolerances, which has already been checked. The keys of the table and of
    the result are canonical names of dtypes."""
    return {dtype: PartialTolerance(**given) for dtype, given in table.items()}


def explicit_tolerances(shared: Validation) -> dict[str, Tolerance]:
    """Return the tolerances of ``[validation]``, with the documented ones for missing members."""
    own = {dtype: PartialTolerance(at.atol, at.rtol) for dtype, at in shared.tolerances.items()}
    return {dtype: resolve(dtype, None, own) for dtype in own}


def policy_of(table: Table, kind: str) -> str | None:
    """Return a table's policy for `kind`, which is ``nan`` or ``inf``; None if it sets none. For
    ``nan``, the keys are ``nan_policy`` and ``check_nan``. If both are set, ``nan_policy``
    decides."""
    return one_policy(table.get(f"{kind}_policy"), table.get(f"check_{kind}"))


def report_policy_conflict(table: Table, kind: str, where: KeyPath, out: Reporter) -> None:
    """Warn of ``check_nan`` or ``check_inf`` if it contradicts the table's policy."""
    policy, check = table.get(f"{kind}_policy"), table.get(f"check_{kind}")
    if policy is None or check is None or policy == ("strict" if check else "match"):
        return
    text = f"check_{kind} = {str(check).lower()} and {kind}_policy = {policy!r} differ"
    hint = f"{kind}_policy decides; drop check_{kind}"
    out.add("config-conflict", (*where, f"check_{kind}"), text, hint, warning=True)


def project(table: Table, out: Reporter) -> Project:
    if "name" not in table and ("project", "name") not in out.positions.lines:
        text = "[project] lacks a name; it is called 'unnamed'"
        out.add("config-missing-key", ("project",), text, warning=True)
    return decoded(Project, table)


def too_large(shape: Shape, where: KeyPath, out: Reporter) -> None:
    count = 1
    for size in shape:
        count *= size
    if count > MAX_ELEMENTS:
        text = f"the shape {list(shape)} has {count} elements; at most {MAX_ELEMENTS} are possible"
        out.add("schema-too-large", where, text)


def validation(table: Table, out: Reporter) -> Validation:
    for kind in ("nan", "inf"):
        report_policy_conflict(table, kind, ("validation",), out)
    found = decoded(Validation, table)
    shapes = found.shapes
    if shapes is None:
        return found
    where = ("validation", "shapes")
    lists = shapes.batch_sizes, shapes.sequence_lengths, shapes.hidden_dims
    smallest = tuple(min(sizes) for sizes in lists if sizes)
    too_large(smallest, where, out)
    for case in shapes.edge_cases:
        too_large(case, (*where, "edge_cases"), out)
    return found if smallest or shapes.edge_cases else replace(found, shapes=None)


def policies(table: Table, ci_table: Table, out: Reporter) -> Policies:
    """Make ``[policies]``. The key ``warn_threshold`` has two documented meanings. A value above
    `GROWTH_MEANING_UP_TO` is a share of the tolerance. Any other value is a relative growth, and
    is used as the ``regression_threshold`` if none is set here or in `ci_table`, the table
    ``[ci]``."""
    found = decoded(Policies, table)
    warn = found.warn_threshold
    regression = table.get("regression_threshold", ci_table.get("regression_threshold"))
    if warn <= GROWTH_MEANING_UP_TO:
        text = f"warn_threshold = {warn:g} is read as relative growth (regression_threshold)"
        hint = "a share of the tolerance lies above 0.25; 0.8 is used"
        where = ("policies", "warn_threshold")
        out.add("config-warn-threshold", where, text, hint, warning=True)
        regression = warn if regression is None else regression
        warn = Policies().warn_threshold
    if regression is None:
        regression = found.regression_threshold
    return replace(found, warn_threshold=warn, regression_threshold=regression)


def ci(table: Table, out: Reporter) -> Ci:
    found = decoded(Ci, table)
    for shape in found.quick_shapes:
        too_large(shape, ("ci", "quick_shapes"), out)
    return found


def execution(table: Table, base: Path, home: Path) -> ExecutionConfig:
    found = decoded(ExecutionConfig, table)
    python = found.python_path
    return replace(
        found,
        python_path=None if python is None else program(python, base, home),
        timeout_grows="reference_timeout" not in table,
        tools={name: program(path, base, home) for name, path in found.tools.items()},
    )


def program(written: str, base: Path, home: Path) -> str:
    """Return the path by which a configured program can be called, or its name on ``PATH``."""
    if written.startswith("~/"):
        return str(home / written[2:])
    # Not resolved: a virtual environment's interpreter is a link that must be called as such.
    return str(base / written) if "/" in written else written


def sandbox(
    table: Table,
    workspace: WorkspacePaths,
    outs: Mapping[str, Reporter],
    presence: ExpectedFiles,
    project: Reporter,
) -> SandboxConfig:
    out, where = outs["writable"], ("sandbox", "writable")
    found = [workspace.resolve(path, where, out) for path in table.get("writable", ())]
    writable = tuple(path for path in found if path is not None)
    out, where = outs["apart"], ("sandbox", "apart")
    apart = workspace.globs(table.get("apart", ()), where, out)
    for pattern, place in apart.items():
        presence.check_apart(pattern, place, out, mild=out is not project)
    out, where = outs["hidden"], ("sandbox", "hidden")
    hidden = [
        (written, path)
        for written in table.get("hidden", ())
        if (path := workspace.resolve(written, where, out, anywhere=True)) is not None
    ]
    presence.check_hidden(hidden, writable, out, mild=out is not project)
    paths = tuple(path for _, path in hidden)
    return decoded(SandboxConfig, table, writable=writable, hidden=paths, apart=tuple(apart))


def cache(table: Table, workspace: WorkspacePaths, out: Reporter) -> Cache:
    found = _path(table, ("cache", "dir"), workspace, out)
    return decoded(Cache, table, dir=None if found is None else found.resolve())


def daemon(table: Table, workspace: WorkspacePaths, out: Reporter) -> Daemon:
    path = _path(table, ("daemon", "socket_path"), workspace, out, anywhere=True)
    return decoded(Daemon, table, socket_path=path)


def storage(table: Table, workspace: WorkspacePaths, out: Reporter) -> Storage:
    path = _path(table, ("storage", "db_path"), workspace, out, anywhere=True)
    return decoded(Storage, table, db_path=path)


def _path(
    table: Table,
    where: tuple[str, str],
    workspace: WorkspacePaths,
    out: Reporter,
    *,
    anywhere: bool = False,
) -> Path | None:
    written = table.get(where[1])
    return None if written is None else workspace.resolve(written, where, out, anywhere=anywhere)


# Parse ``[targets]``: check each name, and expand targets within targets.

MAX_SHOWN = 8
MAX_MEMBERS = 500_000  # total of all expanded targets


class TargetParser(Struct, dict=True):
    """Checks and expands the user's targets."""

    # The ops and kernels without errors.
    ops: Sequence[OpConfig]
    kernels: Sequence[KernelConfig]
    # Names of all ops, kernels and rules of the files, including those that have errors: a
    # target that names them causes no further error.
    names: frozenset[str]
    rules: Collection[str]
    # Maps a key path to the reporter of its file.
    out_of: Callable[[KeyPath], Reporter]
    expanded: dict[str, tuple[str, ...]] = {}
    total: int = 0

    def __post_init__(self) -> None:
        self.op_of = {op.name: op for op in self.ops}
        self.kernel_of = {kernel.name: kernel for kernel in self.kernels}

    def parse(self, tables: Mapping[str, Json]) -> dict[str, tuple[str, ...]]:
        """Map each target to the ops, tasks and groups that it contains, without duplicates."""
        given: dict[str, list[str]] = dict(tables)
        for name, members in given.items():
            where = ("targets", name)
            fault = name_fault(name)
            if name in self.names:
                fault = "is the name of an op, kernel or rule"
            if fault:
                text = f"the target {shown(name)} {fault}"
                self.out_of(where).add("config-reserved-name", where, text)
            for place, member in enumerate(members):
                if member not in given:
                    self.check(member, ("targets", name, place), given)
        inner = {name: [m for m in members if m in given] for name, members in given.items()}
        try:
            for name in TopologicalSorter(inner).static_order():
                found = (x for m in given[name] for x in self.expanded.get(m, (m,)))
                self.expanded[name] = tuple(dict.fromkeys(found))
                self.total += len(self.expanded[name])
                if self.total > MAX_MEMBERS:
                    text = f"targets within targets stand for over {MAX_MEMBERS} members"
                    self.out_of(("targets",)).add("config-too-large", ("targets",), text)
                    break
        except CycleError as error:
            self.report_circle(error.args[1][::-1])
        return self.expanded

    def check(self, member: str, where: KeyPath, targets: Iterable[str]) -> None:
        """Report a member that is neither an op, a kernel, a task, a group nor a stage."""
        if member in self.names or member in STAGES or member in GROUPS:
            return
        task = split_task(member)
        if task is None:
            out = self.out_of(where)
            hint = out.nearest(member, (*self.names, *targets, *STAGES, *GROUPS))
            text = f"{shown(member)} is no op, kernel, rule, task, group or target"
            out.add("config-target-unknown", where, text, hint)
            return
        stage, subject, last = task
        fault, hint = self.task_fault(stage, subject, last, self.out_of(where))
        if fault:
            text = f"there is no task {shown(member)}: {fault}"
            self.out_of(where).add("config-target-unknown", where, text, hint)

    def task_fault(self, stage: str, subject: str, last: str, out: Reporter) -> tuple[str, str]:
        """Return the reason why a task does not exist, and a hint; both are empty if it exists.
        They are also empty if the subject has errors of its own, which are reported anyway. `last`
        is the end of the task's name: a dtype, an architecture, or ''."""
        op, kernel = self.op_of.get(subject), self.kernel_of.get(subject)
        fault, hint = "", ""
        if stage == BUILD and subject in self.rules and not last:
            return "", ""
        if op is not None and stage in OP_STAGES:
            if last and last not in op.dtypes:
                fault = f"{subject} is not checked as {last}"
                hint = f"its dtypes: {', '.join(op.dtypes)}"
        elif kernel is not None and stage in KERNEL_STAGES:
            arches = kernel.build.arch
            if last and arches and last not in arches:
                fault = f"{subject} is not built for {last}"
                hint = f"its architectures: {', '.join(arches)}"
        elif op is not None or kernel is not None:
            fault = f"{subject} has no stage {stage}"
            hint = f"its stages: {', '.join(OP_STAGES if op is not None else KERNEL_STAGES)}"
        elif subject not in self.names:  # otherwise its own errors are reported
            fault = f"{shown(subject)} is no op, kernel or rule"
            hint = out.nearest(subject, self.names)
        return fault, hint

    def report_circle(self, circle: list[str]) -> None:
        where = ("targets", circle[-2])
        if len(circle) > MAX_SHOWN:
            circle = [*circle[: MAX_SHOWN // 2], "…", *circle[-MAX_SHOWN // 2 :]]
        text = f"targets lead in a circle: {' → '.join(circle)}"
        self.out_of(where).add("config-target-cycle", where, text, "remove one of them")


# Convert the checked keys of ``[[kernels]]``, and connect kernels with the ops that use them.

SOURCES = (".cu", ".ptx", ".cubin")


class KernelParser(Struct):
    """Parses the kernels that one file defines."""

    workspace: WorkspacePaths
    out: Reporter
    # The table ``[validation]``, which contains default tolerances.
    shared_table: Table
    # The location of each kernel in the files parsed so far, by the kernel's name.
    names: dict[str, str] = {}
    _globs: list[tuple[str, KeyPath]] = []

    def parse_all(self, items: list[Json]) -> list[KernelConfig]:
        """Return all kernels that have a name; report every problem found in them."""
        unique_names(items, "kernels", self.out, self.names)
        return [
            self.parse(table, ("kernels", place))
            for place, table in enumerate(items)
            if table is not INVALID and "name" in table
        ]

    def warn_of_unmatched(self, presence: ExpectedFiles) -> None:
        """Warn of globs of ``build.inputs`` that match no file. Call it after `parse_all`."""
        for pattern, place in self._globs:
            presence.warn_of_none(pattern, place, self.out)

    def parse(self, table: Table, where: KeyPath) -> KernelConfig:
        values = values_of(KernelTable, table)
        build = self.build(table, where)
        source = self.source(table, where)
        made = bool(source or build.command)
        ptx, cubin = (self.artifact(table, kind, where, made=made) for kind in ("ptx", "cubin"))
        triton = self.triton(table, where)
        requested = values["invariants"]
        if isinstance(requested, dict):
            requested = [name for name, wanted in requested.items() if wanted]
        named = any(key in table for key in ("source", "ptx", "cubin", "triton"))
        own = partial_tolerances(table.get("tolerances", {}))
        below = partial_tolerances(self.shared_table.get("tolerances", {}))
        limits = table.get("artifact_checks", {})
        return KernelConfig(
            name=table["name"],
            file=self.out.file,
            line=self.out.line(where),
            source=source,
            ptx=ptx,
            cubin=cubin,
            reference=values["reference"] or "",
            tolerances={dtype: resolve(dtype, None, below, kernel_tolerances=own) for dtype in own},
            invariants=tuple(name for name in INVARIANTS if name in requested),
            checks=decoded(ArtifactChecks, limits, given=frozenset(limits)),
            build=build,
            triton=triton,
            threads_per_block=values["threads_per_block"],
            dynamic_shared_memory=values["dynamic_shared_memory"],
            allow=self.allow(values["allow"], where),
            skip_reason="" if named else "the kernel names no source, ptx, cubin or triton kernel",
        )

    def source(self, table: Table, where: KeyPath) -> Path | None:
        if "source" not in table:
            return None
        here = (*where, "source")
        path = self.workspace.existing_file(table["source"], here, self.out)
        # The user's own build command may compile any type of file.
        free = "command" in table.get("build", {}) or "triton" in table
        if path is not None and path.suffix not in SOURCES and not free:
            text = f"{dotted(here)} = {shown(table['source'])} is no .cu, .ptx or .cubin file"
            self.out.add("config-value", here, text, "or give build.command")
        return path

    def artifact(self, table: Table, kind: str, where: KeyPath, *, made: bool) -> Path | None:
        if kind not in table:
            return None
        find = self.workspace.resolve if made else self.workspace.existing_file
        return find(table[kind], (*where, kind), self.out)

    def build(self, table: Table, where: KeyPath) -> Build:
        found = decoded(Build, table.get("build", {}))
        if found.command and not ("ptx" in table or "cubin" in table):
            text = "build.command needs ptx or cubin: the file that it makes"
            self.out.add("config-missing-key", (*where, "build", "command"), text)
        here = (*where, "build", "inputs")
        if found.inputs is not None and not found.command:
            text = f"{dotted(here)} has no effect"
            hint = "it says what build.command reads: compilers' inputs are found without it"
            self.out.add("config-unread-key", here, text, hint)
        globs = self.workspace.globs(found.inputs or (), here, self.out)
        self._globs += globs.items()
        arches = map(_architecture, (*found.arch, *table.get("arch", ())))
        return replace(
            found,
            arch=tuple(dict.fromkeys(arches)),
            inputs=None if found.inputs is None else tuple(globs),
        )

    def triton(self, table: Table, where: KeyPath) -> TritonKernel | None:
        if "triton" not in table:
            for name in ("signature", "constants", "num_warps", "num_stages"):
                if table.get(name):
                    place = (*where, name)
                    text = f"{dotted(place)} has no effect"
                    hint = "it applies to Triton kernels only: add `triton`, or remove it"
                    self.out.add("config-unread-key", place, text, hint)
            return None
        here = (*where, "triton")
        name, colon, kernel = table["triton"].rpartition(":")
        if not colon:
            text = f"{dotted(here)} = {shown(table['triton'])} names no kernel"
            self.out.add("config-value", here, text, "write path.py:kernel")
            return None
        programs = Programs(self.workspace, self.out)
        found = programs.function_of_file(name, kernel, here, table["triton"])
        if found is None or found.path is None:
            return None
        return TritonKernel(
            path=found.path,
            kernel=kernel,
            signature=table.get("signature", {}),
            constants=table.get("constants", {}),
            num_warps=table.get("num_warps"),
            num_stages=table.get("num_stages"),
        )

    def allow(self, given: Json, where: KeyPath) -> tuple[Allow, ...]:
        """Parse ``allow``, written as ``rule = "reason"`` or as a list of ``{ rule, reason }``."""
        if isinstance(given, dict):
            lines = (self.out.line((*where, "allow", rule)) for rule in given)
            return tuple(
                Allow(*pair, line) for pair, line in zip(given.items(), lines, strict=True)
            )
        return tuple(
            Allow(entry["rule"], entry["reason"], self.out.line((*where, "allow", place)))
            for place, entry in enumerate(given)
            if "rule" in entry and "reason" in entry
        )


def _architecture(name: str) -> str:
    return "sm_" + name.rpartition("_")[2]


# Connect ops of kind ``cuda`` with the kernels whose builds make their PTX.


CUDA = "cuda"


def join_kernels(
    ops: Sequence[OpConfig],
    kernels: Sequence[KernelConfig],
    reporters: Mapping[str, Reporter],
    out: Reporter,
) -> tuple[list[OpConfig], list[KernelConfig]]:
    """Assign to each op of kind ``cuda`` the kernel whose build makes its PTX. If an op names its
    ``.cu`` file itself, a kernel with the op's name is added. It is built and linted like the
    kernels of ``[[kernels]]``."""
    joiner = _Joiner({kernel.name: kernel for kernel in kernels})
    joined = []
    for op in ops:
        teller = reporters.get(op.file, out)
        program = None if op.op is None else joiner.join(op.op, op.name, teller)
        reference = joiner.join(op.reference, f"{op.name}.reference", teller)
        joined.append(replace(op, op=program, reference=reference))
    return joined, list(joiner.kernels.values())


class _Joiner:
    def __init__(self, kernels: dict[str, KernelConfig]) -> None:
        self.kernels = kernels

    def join(self, program: ProgramRef, name: str, out: Reporter) -> ProgramRef:
        if program.kind != CUDA:
            return program
        if program.kernel:
            self._named(program, out)
            kernel = self.kernels.get(program.kernel)
            path = None if kernel is None else kernel.source
            return replace(program, path=path, files=() if path is None else (path,))
        known = self.kernels.get(name)
        if known is None:
            self.kernels[name] = _own_kernel(program, name)
        elif not _alike(known, program):
            text = f"the op {shown(name)} and a kernel of that name are compiled differently"
            hint = f'write kernel = "{name}" in place of file, or rename one'
            out.problem_at("config-conflict", program.line, text, hint)
        return replace(program, kernel=name)

    def _named(self, program: ProgramRef, out: Reporter) -> None:
        kernel = self.kernels.get(program.kernel)
        if kernel is None:
            text = f"there is no kernel {shown(program.kernel)}"
            hint = out.nearest(program.kernel, tuple(self.kernels), or_all=True)
            out.problem_at("unknown-kernel", program.line, text, hint)
        elif kernel.skip_reason:
            text = f"the kernel {shown(program.kernel)} cannot be built: {kernel.skip_reason}"
            out.problem_at("config-conflict", program.line, text)
        elif program.arch and kernel.build.arch and program.arch not in kernel.build.arch:
            text = f"the kernel {shown(program.kernel)} is not built for {program.arch}"
            out.problem_at(
                "config-conflict", program.line, text, f"of {', '.join(kernel.build.arch)}"
            )


def _alike(kernel: KernelConfig, program: ProgramRef) -> bool:
    """Tell whether a kernel's build makes the PTX that the op describes."""
    return (
        kernel.source == program.path
        and kernel.build.flags == program.flags
        and not kernel.build.command
        and (not program.arch or not kernel.build.arch or program.arch in kernel.build.arch)
    )


def _own_kernel(program: ProgramRef, name: str) -> KernelConfig:
    return KernelConfig(
        name=name,
        file=program.file,
        line=program.line,
        source=program.path,
        ptx=None,
        cubin=None,
        reference="",
        tolerances={},
        invariants=(),
        checks=ArtifactChecks(),
        build=Build((program.arch,) if program.arch else (), program.flags, ()),
        triton=None,
        threads_per_block=None,
        dynamic_shared_memory=None,
        allow=(),
        skip_reason="",
    )
