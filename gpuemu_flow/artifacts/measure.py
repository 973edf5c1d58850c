"""Measure the kernels of an artifact, and collect the findings of the lint rules in them.

The registers and the memory of a kernel are read from the cubin, or else from the report of ptxas.
If neither has the kernel, they are estimated from the PTX.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from gpuemu_flow.artifacts.analysis import KernelAnalysis
from gpuemu_flow.artifacts.cubin import Cubin, read_cubin
from gpuemu_flow.artifacts.families import count_families
from gpuemu_flow.artifacts.findings import PtxLocation, RuleFinding
from gpuemu_flow.artifacts.liveness import estimate_registers, max_live
from gpuemu_flow.artifacts.metrics import (
    ESTIMATE,
    KernelMetrics,
    KnownLaunch,
    Resources,
    kernel_occupancy,
    resources_from_cubin,
    resources_from_ptxas,
)
from gpuemu_flow.artifacts.ptx import Function, read_ptx
from gpuemu_flow.artifacts.ptxas import PtxasReport, errors_of
from gpuemu_flow.artifacts.rules import RULES
from gpuemu_flow.artifacts.sass import MachineCode
from gpuemu_flow.artifacts.view import KernelView
from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class Artifact:
    """The PTX and cubin compiled from one source for one architecture, and the output of tools.

    Attributes
    ----------
    file : str
        Name for diagnostics: the PTX file, or the cubin if there is no PTX.
    ptx, cubin : bytes or None
    arch : str
        If empty, the cubin's architecture is taken or, without a cubin, the target of the PTX.
    ptxas : PtxasReport or None
        Output of ``ptxas -v`` when it assembled this PTX.
    tool_version : str
        Version of the tool whose output is in `ptxas`.
    sass : MachineCode or None
        Machine code that a disassembler found in the cubin.
    assembly : dict of str to PtxasReport
        For each architecture for which the kernel must build, the output of ptxas.
    """

    file: str
    ptx: bytes | None = None
    cubin: bytes | None = None
    arch: str = ""
    ptxas: PtxasReport | None = None
    tool_version: str = ""
    sass: MachineCode | None = None
    assembly: Mapping[str, PtxasReport] = field(default_factory=dict)


@dataclass
class Measurement:
    """The kernels of one artifact, and the problems found when it was read."""

    kernels: list[KernelView] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class _Facts:
    """Facts about a function that remain when its body is dropped."""

    function: Function
    declared_registers: int
    max_live: int | None
    predicated: int
    opcodes: dict[str, int]
    opcode_places: dict[str, PtxLocation]
    calls: dict[str, int]
    call_places: dict[str, PtxLocation]
    findings: dict[str, list[RuleFinding]]
    local_bytes: int
    shared_bytes: int
    place: PtxLocation
    problems: list[Problem]


def measure(artifact: Artifact, launches: Mapping[str, KnownLaunch] | None = None) -> Measurement:
    """Measure every kernel of an artifact.

    Parameters
    ----------
    artifact : Artifact
    launches : mapping of str to KnownLaunch, optional
        Block size and dynamic shared memory by kernel name; the entry ``""`` is for all other
        kernels.

    Returns
    -------
    Measurement
        Invalid input gives problems, never an exception. Intact kernels of a damaged file are
        included.
    """
    result = Measurement()
    cubin: Cubin | None = None
    if artifact.cubin is not None:
        read = read_cubin(artifact.cubin, artifact.file)
        if isinstance(read, Problem):
            result.problems.append(read)
        else:
            cubin = read
    builder = _Builder(artifact, cubin, launches or {})
    if artifact.ptx is not None:
        ptx = read_ptx(artifact.ptx, artifact.file)
        result.problems.extend(ptx.problems)
        for module in ptx.modules:
            facts = {f.name: _examine(f) for f in module.functions}
            result.problems.extend(p for fact in facts.values() for p in fact.problems)
            for function in module.entries():
                result.kernels.append(builder.from_ptx(facts[function.name], facts))
    if cubin is not None:
        named = {view.name for view in result.kernels}
        for kernel in cubin.kernels.values():
            if kernel.is_entry and kernel.name not in named:
                result.kernels.append(builder.from_cubin(kernel.name))
    if not result.kernels and not result.problems:
        result.problems.append(
            Problem("artifact-no-kernels", "the file holds no kernel", "", artifact.file)
        )
    return result


def _examine(function: Function) -> _Facts:
    analysis = KernelAnalysis(function)
    body = analysis.body
    pressure = max_live(body, analysis.graph, analysis.flow)
    findings: dict[str, list[RuleFinding]] = {}
    for rule in RULES:
        if rule.find is not None:
            found = list(rule.find(analysis))
            if found:
                findings[rule.id] = found
    opcodes = {opcode.text: len(indices) for opcode, indices in analysis.by_opcode.items()}
    return _Facts(
        function=function,
        declared_registers=body.declared_registers,
        max_live=None if pressure is None else pressure.max_live,
        predicated=sum(instruction.guard is not None for instruction in body.instructions),
        opcodes=opcodes,
        opcode_places={
            opcode.text: analysis.place(indices[0])
            for opcode, indices in analysis.by_opcode.items()
        },
        calls={name: len(indices) for name, indices in analysis.calls.items()},
        call_places={name: analysis.place(indices[0]) for name, indices in analysis.calls.items()},
        findings=findings,
        local_bytes=sum(v.size_bytes or 0 for v in body.variables if v.space == "local"),
        shared_bytes=_static_shared(function, analysis),
        place=analysis.kernel_place,
        problems=body.problems,
    )


def _static_shared(function: Function, analysis: KernelAnalysis) -> int:
    """Return the bytes of static shared memory that a function declares or uses."""
    inside = [v for v in analysis.body.variables if v.space == "shared"]
    declared = function.module.static_shared
    outside = [declared[name] for name in analysis.flow.mentioned_among(declared)]
    return sum(v.size_bytes or 0 for v in (*inside, *outside) if not v.external)


class _Builder:
    """Makes kernel views from the PTX, the cubin and the ptxas report of one artifact."""

    def __init__(
        self, artifact: Artifact, cubin: Cubin | None, launches: Mapping[str, KnownLaunch]
    ) -> None:
        self._artifact = artifact
        self._cubin = cubin
        self._launches = launches

    def from_ptx(self, entry: _Facts, facts: Mapping[str, _Facts]) -> KernelView:
        """Make the view of a kernel and the device functions that it calls, from the PTX."""
        artifact, function = self._artifact, entry.function
        called, recursive = _call_tree(entry, facts)
        tree = [entry, *called]
        opcodes = _sum(f.opcodes for f in tree)
        live = [f.max_live for f in tree if f.max_live is not None]
        pressure = max(live) if len(live) == len(tree) else None
        module = function.module
        arch = artifact.arch or (self._cubin.arch if self._cubin else module.target)
        calls = _sum(f.calls for f in tree)
        resources = self._resources(function.name)
        if resources is None:
            resources = _estimate(entry, tree, pressure, calls)
        metrics = self._metrics(function.name, arch, resources, function.bounds.max_threads)
        metrics = replace(
            metrics,
            ptx_target=module.target,
            local_bytes=sum(f.local_bytes for f in tree),
            declared_registers=sum(f.declared_registers for f in tree),
            max_live=pressure,
            instructions=sum(opcodes.values()),
            predicated_instructions=sum(f.predicated for f in tree),
            families=count_families(opcodes),
            opcodes=dict(sorted(opcodes.items())),
            calls=dict(sorted(calls.items())),
        )
        return KernelView(
            name=function.name,
            file=artifact.file,
            arch=arch,
            metrics=metrics,
            bounds=function.bounds,
            place=entry.place,
            target_options=module.target_options,
            findings=_merge_findings(entry, called),
            opcode_places=_first(f.opcode_places for f in tree),
            call_places=_first(f.call_places for f in tree),
            unmet_bounds=(
                artifact.ptxas.unmet_bounds.get(function.name, "") if artifact.ptxas else ""
            ),
            assembly=self._assembly(),
            recursive=recursive,
        )

    def from_cubin(self, name: str) -> KernelView:
        """Make the view of a kernel that only the cubin contains."""
        cubin = self._cubin
        arch = self._artifact.arch or (cubin.arch if cubin else "")
        resources = self._resources(name) or Resources(ESTIMATE)
        bound = cubin.kernels[name].max_threads if cubin else 0
        return KernelView(
            name=name,
            file=self._artifact.file,
            arch=arch,
            metrics=self._metrics(name, arch, resources, bound),
            has_ptx=False,
        )

    def _resources(self, name: str) -> Resources | None:
        if self._cubin is not None and name in self._cubin.kernels:
            return resources_from_cubin(self._cubin.kernels[name], self._cubin.tool_version)
        report = self._artifact.ptxas
        if report is not None and name in report.kernels:
            return resources_from_ptxas(report.kernels[name], self._artifact.tool_version)
        return None

    def _metrics(
        self, name: str, arch: str, resources: Resources, max_threads: int
    ) -> KernelMetrics:
        launch = self._launches.get(name, self._launches.get("", KnownLaunch()))
        sass = self._artifact.sass
        listed = None if sass is None else sass.functions.get(name)
        return KernelMetrics(
            name=name,
            arch=arch,
            metric_source=resources.source,
            **resources.figures(),
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            occupancy=kernel_occupancy(arch, resources, max_threads, launch),
            sass_tool="" if sass is None or listed is None else sass.tool,
            sass_opcodes=listed,
        )

    def _assembly(self) -> dict[str, str]:
        outcome = {}
        for arch, report in sorted(self._artifact.assembly.items()):
            errors = errors_of(report.problems)
            outcome[arch] = errors[0].message if errors else ""
        return outcome


def _estimate(
    entry: _Facts, tree: list[_Facts], pressure: int | None, calls: Mapping[str, int]
) -> Resources:
    registers = (
        None
        if pressure is None
        else estimate_registers(pressure, bool(calls), entry.function.bounds)
    )
    shared = sum(f.shared_bytes for f in tree)
    return Resources(ESTIMATE, registers=registers, shared_bytes=shared)


def _call_tree(entry: _Facts, facts: Mapping[str, _Facts]) -> tuple[list[_Facts], bool]:
    """Return the device functions in a kernel's call tree, and True if the tree has a cycle."""
    aliases = entry.function.module.aliases
    finished: dict[str, bool] = {}
    recursive = False
    order: list[_Facts] = []
    stack: list[tuple[_Facts, list[str]]] = [(entry, sorted(entry.calls))]
    finished[entry.function.name] = False
    while stack:
        current, pending = stack[-1]
        if not pending:
            finished[current.function.name] = True
            stack.pop()
            continue
        name = pending.pop()
        name = aliases.get(name, name)
        if name not in facts:
            continue
        if name not in finished:
            finished[name] = False
            order.append(facts[name])
            stack.append((facts[name], sorted(facts[name].calls)))
        elif not finished[name]:
            recursive = True
    return order, recursive


def _sum(histograms: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(total)


def _first(places: Iterable[Mapping[str, PtxLocation]]) -> dict[str, PtxLocation]:
    first: dict[str, PtxLocation] = {}
    for found in places:
        for key, place in found.items():
            first.setdefault(key, place)
    return first


def _merge_findings(entry: _Facts, called: list[_Facts]) -> dict[str, tuple[RuleFinding, ...]]:
    merged: dict[str, list[RuleFinding]] = {
        rule: list(found) for rule, found in entry.findings.items()
    }
    for facts in called:
        for rule, found in facts.findings.items():
            merged.setdefault(rule, []).extend(
                replace(item, message=f"{item.message} (in device function {facts.function.name})")
                for item in found
            )
    return {rule: tuple(found) for rule, found in merged.items()}
