"""Measure the kernels of an artifact, collect the findings of the lint rules, and judge them.

The registers and the memory of a kernel are read from the cubin. If it lacks the kernel, they are
estimated from the PTX. Violations are accepted, each for a stated reason, by the configuration or
by comments ``gpuemu: allow RULE reason`` in the source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.lint.analysis import KernelAnalysis
from gpuemu_flow.lint.cubin import Cubin, read_cubin
from gpuemu_flow.lint.kernel import (
    CUBIN,
    ESTIMATE,
    MAX_REGISTERS_PER_THREAD,
    REGISTERS_PER_SM,
    Finding,
    KernelMetrics,
    KernelPolicy,
    KernelRecord,
    KernelView,
    Occupancy,
    PtxLocation,
    UncheckedRule,
    Violation,
    count_families,
    limits_of,
    occupancy,
)
from gpuemu_flow.lint.ptx.flow import ControlFlowGraph, Dataflow
from gpuemu_flow.lint.ptx.model import Body, Function, LaunchBounds
from gpuemu_flow.lint.ptx.parser import read_ptx
from gpuemu_flow.lint.rules import RULES, RULES_BY_ID, Rule
from gpuemu_flow.lint.toolchain import MachineCode
from gpuemu_flow.model.errors import Problem, did_you_mean
from gpuemu_flow.model.verdicts import decide

# Violations are accepted, each for a stated reason, by the configuration or by comments
# ``gpuemu: allow RULE reason`` in the source.

LINT_VERSION = 1
"""Part of the cache key: raise it when a rule judges the same view differently."""

ReadSource = Callable[[str], bytes | None]
"""Callable that returns the bytes of a source file that PTX names; None if it is unreadable."""

_COMMENT = re.compile(rb"(?://|#)[ \t]*gpuemu:[ \t]*allow\b[ \t]*([\w-]*)[ \t]*([^\r\n]*)")
_COMMENT_LINE = re.compile(rb"\s*(?://|#|/\*|\*)")
MAX_COMMENTS = 10_000
"""Largest number of comments that are read per file."""


class Linter:
    """Checks kernels by one policy. `read_source` reads a source file, in which comments that allow
    violations are then searched; None to ignore such comments. Mistakes in such comments are added
    to `problems`."""

    def __init__(self, policy: KernelPolicy, read_source: ReadSource | None = None) -> None:
        self.policy = policy
        self._allowances = Allowances(read_source or _no_source, RULES_BY_ID)
        self.problems = self._allowances.problems

    def lint(self, view: KernelView) -> KernelRecord:
        """Check one kernel by all rules that the policy does not switch off."""
        violations: list[Violation] = []
        unchecked: list[UncheckedRule] = []
        looked = 0
        for rule in RULES:
            if self.policy.severities.get(rule.id) == "off":
                continue
            looked += 1
            reason = rule.why_unchecked(view, self.policy)
            if reason:
                unchecked.append(UncheckedRule(rule.id, reason))
            found = rule.findings(view, self.policy)
            violations += (self._violation(rule, each, view) for each in found)
        failed = any(v.severity == "error" and not v.allowed for v in violations)
        return KernelRecord(
            name=view.name,
            file=view.file,
            arch=view.arch,
            metric_source=view.metrics.metric_source,
            metrics=view.metrics.figures,
            violations=tuple(violations),
            unchecked=tuple(unchecked),
            verdict=decide(failed, looked - len(unchecked)),
        )

    def _violation(self, rule: Rule, found: Finding, view: KernelView) -> Violation:
        """Place a finding in the source if its line is known, else in the PTX."""
        place = found.place or view.place
        in_source = place.source_line > 0 and place.source_file != ""
        return Violation(
            rule.id,
            self.policy.severities.get(rule.id) or found.severity or rule.severity,
            found.message,
            place.source_file if in_source else view.file,
            place.source_line if in_source else place.line,
            found.actual,
            found.limit,
            self.policy.allow.get(rule.id) or self._allowances.reason_for(rule.id, place),
        )


def _no_source(_name: str) -> None:
    return None


class Allowance(Struct, frozen=True):
    """One comment ``gpuemu: allow RULE reason``: its line, and the line of code below it."""

    rule: str
    reason: str
    line: int
    covers: int


class Allowances(Struct):
    """The ``gpuemu: allow`` comments in the sources of violations; each file is read once."""

    read_source: ReadSource
    known_rules: Collection[str]
    problems: list[Problem] = field(default_factory=list)
    _by_file: dict[str, list[Allowance]] = field(default_factory=dict)

    def reason_for(self, rule: str, place: PtxLocation) -> str:
        """Return the reason why a violation at a location is accepted; empty if it is not. A
        comment covers its own line, and the first line of code below it. A comment at a call also
        covers the code that is inlined there."""
        for file, line in (
            (place.source_file, place.source_line),
            (place.call_file, place.call_line),
        ):
            if not file or not line:
                continue
            for allowance in self._comments(file):
                if allowance.rule == rule and line in (allowance.line, allowance.covers):
                    return allowance.reason
        return ""

    def _comments(self, file: str) -> list[Allowance]:
        if file not in self._by_file:
            data = self.read_source(file)
            found, problems = parse_allowances(data or b"", file, self.known_rules)
            self._by_file[file] = found
            self.problems.extend(problems)
        return self._by_file[file]


def parse_allowances(
    data: bytes, file: str, known_rules: Collection[str]
) -> tuple[list[Allowance], list[Problem]]:
    allowances: list[Allowance] = []
    problems: list[Problem] = []
    if b"gpuemu:" not in data:
        return allowances, problems
    lines = data.split(b"\n")
    for number, text in enumerate(lines, 1):
        match = _COMMENT.search(text)
        if match is None:
            continue
        rule = match.group(1).decode("utf-8", "replace")
        reason = match.group(2).decode("utf-8", "replace").strip(" \t:-*/")
        if rule not in known_rules:
            problems.append(_warning(file, number, f"unknown rule {rule!r}", known_rules, rule))
        elif not reason:
            problems.append(_warning(file, number, f"no reason given for {rule}"))
        else:
            allowances.append(Allowance(rule, reason, number, _next_code_line(lines, number)))
        if len(allowances) + len(problems) >= MAX_COMMENTS:
            break
    return allowances, problems


def _next_code_line(lines: list[bytes], number: int) -> int:
    """Return the number of the next line of code, or `number` if the next 40 lines hold none. Empty
    lines and comments are not code."""
    for following in range(number + 1, min(number + 40, len(lines)) + 1):
        text = lines[following - 1]
        if text.strip() and not _COMMENT_LINE.match(text):
            return following
    return number


def _warning(
    file: str, line: int, message: str, known: Collection[str] = (), rule: str = ""
) -> Problem:
    hint = did_you_mean(rule, sorted(known)) if known else "write: gpuemu: allow RULE reason"
    return Problem("lint-bad-allow", message, hint, file, line, warning=True)


# The registers and the memory of a kernel are read from the cubin. If it lacks the kernel, they are
# estimated from the PTX.

_ASSUMED_THREADS = 256


class KnownLaunch(Struct, frozen=True):
    """Facts about a kernel's launches that its PTX does not tell. ``threads`` per block is 0 to use
    the launch bounds. Without ``dynamic_shared_bytes``, occupancy is computed with static shared
    memory only."""

    threads: int = 0
    dynamic_shared_bytes: int | None = None


class Artifact(Struct, frozen=True):
    """The PTX and cubin compiled from one source for one architecture, and what tools told.
    ``file`` is a name for diagnostics. Without ``arch``, the cubin's architecture is taken or the
    target of the PTX. ``unmet_bounds`` are the messages of ptxas about launch bounds, by kernel;
    ``assembly`` is its error for each architecture for which it assembled the PTX, or empty."""

    file: str
    ptx: bytes | None = None
    cubin: bytes | None = None
    arch: str = ""
    sass: MachineCode | None = None
    unmet_bounds: Mapping[str, str] = field(default_factory=dict)
    assembly: Mapping[str, str] = field(default_factory=dict)


class Measurement(Struct):
    """The kernels of one artifact, and the problems found when it was read."""

    kernels: list[KernelView] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class _Facts(Struct):
    """Facts about a function that remain when its body is dropped."""

    function: Function
    declared_registers: int
    max_live: int | None
    predicated: int
    opcodes: dict[str, int]
    opcode_places: dict[str, PtxLocation]
    calls: dict[str, int]
    call_places: dict[str, PtxLocation]
    findings: dict[str, list[Finding]]
    local_bytes: int
    shared_bytes: int
    place: PtxLocation
    problems: list[Problem]


def measure(artifact: Artifact, launches: Mapping[str, KnownLaunch] | None = None) -> Measurement:
    """Measure every kernel of an artifact; invalid input gives problems, never an exception.
    `launches` are by kernel name; the entry ``""`` is for all other kernels. Intact kernels of a
    damaged file are included."""
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
    findings: dict[str, list[Finding]] = {}
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
    """Makes kernel views from the PTX and the cubin of one artifact."""

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
        opcodes, calls = _sum(f.opcodes for f in tree), _sum(f.calls for f in tree)
        live = [f.max_live for f in tree if f.max_live is not None]
        pressure = max(live) if len(live) == len(tree) else None
        registers = None
        if pressure is not None:
            registers = estimate_registers(pressure, bool(calls), function.bounds)
        module = function.module
        arch = artifact.arch or (self._cubin.arch if self._cubin else module.target)
        metrics = KernelMetrics(
            function.name,
            arch,
            ESTIMATE,
            ptx_target=module.target,
            registers=registers,
            local_bytes=sum(f.local_bytes for f in tree),
            shared_bytes=sum(f.shared_bytes for f in tree),
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
            metrics=self._completed(metrics, function.bounds.max_threads),
            bounds=function.bounds,
            place=entry.place,
            target_options=module.target_options,
            findings=_merge_findings(entry, called),
            opcode_places=_first(f.opcode_places for f in tree),
            call_places=_first(f.call_places for f in tree),
            unmet_bounds=artifact.unmet_bounds.get(function.name, ""),
            assembly=dict(sorted(artifact.assembly.items())),
            recursive=recursive,
        )

    def from_cubin(self, name: str) -> KernelView:
        """Make the view of a kernel that only the cubin contains."""
        cubin = self._cubin
        arch = self._artifact.arch or (cubin.arch if cubin else "")
        bound = cubin.kernels[name].max_threads if cubin else 0
        metrics = self._completed(KernelMetrics(name, arch, ESTIMATE), bound)
        return KernelView(name, self._artifact.file, arch, metrics, has_ptx=False)

    def _completed(self, metrics: KernelMetrics, max_threads: int) -> KernelMetrics:
        cubin, name = self._cubin, metrics.name
        if cubin is not None and name in cubin.kernels:
            kernel = cubin.kernels[name]
            metrics = replace(
                metrics,
                metric_source=CUBIN,
                tool_version=cubin.tool_version,
                registers=kernel.registers,
                spill_instructions=kernel.spill_instructions,
                spill_bytes=kernel.spill_bytes,
                stack_bytes=kernel.stack_bytes,
                shared_bytes=kernel.shared_bytes,
                barriers=kernel.barriers,
            )
        launch = self._launches.get(name, self._launches.get("", KnownLaunch()))
        sass = self._artifact.sass
        listed = None if sass is None else sass.functions.get(name)
        return replace(
            metrics,
            dynamic_shared_bytes=launch.dynamic_shared_bytes,
            occupancy=_occupancy(metrics, max_threads, launch),
            sass_tool="" if sass is None or listed is None else sass.tool,
            sass_opcodes=listed,
        )


def _occupancy(metrics: KernelMetrics, max_threads: int, launch: KnownLaunch) -> Occupancy | None:
    """Compute the occupancy; return None if the architecture or register count is unknown. The
    block size is taken from the launch. If the launch does not state it, it is taken from the
    launch bounds or, without launch bounds, is assumed to be 256 threads."""
    limits = limits_of(metrics.arch)
    if limits is None or metrics.registers is None:
        return None
    stated = launch.threads or max_threads
    return occupancy(
        limits,
        stated or _ASSUMED_THREADS,
        metrics.registers,
        (metrics.shared_bytes or 0) + (launch.dynamic_shared_bytes or 0),
        metrics.barriers or 0,
        assumed_threads=not stated,
    )


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


def _merge_findings(entry: _Facts, called: list[_Facts]) -> dict[str, tuple[Finding, ...]]:
    merged: dict[str, list[Finding]] = {rule: list(found) for rule, found in entry.findings.items()}
    for facts in called:
        for rule, found in facts.findings.items():
            merged.setdefault(rule, []).extend(
                replace(item, message=f"{item.message} (in device function {facts.function.name})")
                for item in found
            )
    return {rule: tuple(found) for rule, found in merged.items()}


MAX_TABLE_BITS = 1_000_000_000
"""Limit on the number of blocks times that of registers live between blocks (125 MB of bits).

Larger bodies get no estimate.
"""

_MIN_REGISTERS = 8
_MIN_REGISTERS_WITH_CALLS = 24


class Pressure(Struct, frozen=True):
    """The highest number of live 32-bit registers, and the instruction at which it is reached. From
    it, the registers that ptxas will allocate are estimated."""

    max_live: int
    instruction: int


def max_live(body: Body, graph: ControlFlowGraph, flow: Dataflow) -> Pressure | None:
    """Return the highest register pressure in a body; None if the body is too large to analyse.
    This is the classic backward liveness analysis of basic blocks, with bit sets of the registers
    that are live across a block boundary. A 64-bit register counts as two registers, a predicate as
    none. A definition with a guard does not end the life of the old value."""
    effects = [
        _block_effects(body, flow, range(start, end))
        for start, end in zip(graph.starts, graph.ends, strict=True)
    ]
    crossing: set[int] = set().union(*(reads for reads, _ in effects))
    if len(graph) * len(crossing) > MAX_TABLE_BITS:
        return None
    bits = {register: bit for bit, register in enumerate(sorted(crossing))}
    live_out = _solve(graph, effects, bits)
    masks: dict[int, int] = {}
    for register, bit in bits.items():
        width = flow.widths[register]
        masks[width] = masks.get(width, 0) | 1 << bit
    best, where = 0, 0
    for block in range(len(graph)):
        alive = live_out[block]
        pressure = sum((alive & mask).bit_count() * width for width, mask in masks.items())
        found, instruction = _pressure_in_block(
            body, flow, range(graph.starts[block], graph.ends[block]), alive, bits, pressure
        )
        if found > best:
            best, where = found, instruction
    return Pressure(best, where)


def _block_effects(body: Body, flow: Dataflow, block: range) -> tuple[set[int], set[int]]:
    """Return the registers that a block reads before it writes them, and those it always writes."""
    reads: set[int] = set()
    writes: set[int] = set()
    defs, uses, instructions = flow.defs, flow.uses, body.instructions
    for index in block:
        for register in uses[index]:
            if register not in writes:
                reads.add(register)
        if instructions[index].guard is None:
            writes.update(defs[index])
        else:
            reads.update(r for r in defs[index] if r not in writes)
    return reads, writes


def _solve(
    graph: ControlFlowGraph, effects: list[tuple[set[int], set[int]]], bits: dict[int, int]
) -> list[int]:
    """Return, for each block, the bit set of the registers that are live at its end."""
    used = [_bit_set(reads, bits) for reads, _ in effects]
    killed = [~_bit_set(writes, bits) for _, writes in effects]
    count = len(graph)
    live_in = [0] * count
    live_out = [0] * count
    waiting = list(range(count))
    queued = [True] * count
    while waiting:
        block = waiting.pop()
        queued[block] = False
        leaving = 0
        for successor in graph.successors[block]:
            leaving |= live_in[successor]
        live_out[block] = leaving
        entering = used[block] | (leaving & killed[block])
        if entering != live_in[block]:
            live_in[block] = entering
            for predecessor in graph.predecessors[block]:
                if not queued[predecessor]:
                    queued[predecessor] = True
                    waiting.append(predecessor)
    return live_out


def _bit_set(registers: set[int], bits: dict[int, int]) -> int:
    """Return a set of registers as an integer, with the bits that `bits` assigns to them. Registers
    that are not in `bits` are left out."""
    found = [bits[r] for r in registers if r in bits]
    if not found:
        return 0
    table = bytearray(max(found) // 8 + 1)
    for bit in found:
        table[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(table, "little")


def _pressure_in_block(
    body: Body,
    flow: Dataflow,
    block: range,
    alive_at_end: int,
    bits: dict[int, int],
    pressure: int,
) -> tuple[int, int]:
    """Walk a block backwards; return the highest pressure and the instruction that reaches it.
    `alive_at_end` is the bit set of the registers that are live at the block's end, and `pressure`
    their number, counted in units of 32 bits."""
    defs, uses, widths, instructions = flow.defs, flow.uses, flow.widths, body.instructions
    table = alive_at_end.to_bytes(alive_at_end.bit_length() // 8 + 1, "little")
    size = len(table) * 8
    alive: set[int] = set()
    seen: set[int] = set()
    best, where = pressure, block[-1]
    for index in reversed(block):
        for register in (*defs[index], *uses[index]):
            if register not in seen:
                seen.add(register)
                bit = bits.get(register, size)
                if bit < size and table[bit >> 3] >> (bit & 7) & 1:
                    alive.add(register)
        unconditional = instructions[index].guard is None
        at_definition = pressure
        for register in defs[index]:
            if register not in alive:
                at_definition += widths[register]  # a dead result still needs a place
            elif unconditional:
                alive.discard(register)
                pressure -= widths[register]
        for register in uses[index]:
            if register not in alive:
                alive.add(register)
                pressure += widths[register]
        if at_definition > best or pressure > best:
            best, where = max(at_definition, pressure), index
    return best, where


def estimate_registers(pressure: int, has_calls: bool, bounds: LaunchBounds) -> int:
    """Estimate the number of registers per thread that ptxas will use. The estimate is ``min(cap,
    max(8, pressure))``, with 24 in place of 8 for a kernel with calls; `register_cap` gives the
    cap. The estimate was compared with ptxas on 894 kernels of published packages that had not been
    used to fit it: the correlation (Pearson) is 0.93, and the mean error is 17 %."""
    floor = _MIN_REGISTERS_WITH_CALLS if has_calls else _MIN_REGISTERS
    return min(register_cap(bounds), max(floor, pressure))


def register_cap(bounds: LaunchBounds) -> int:
    cap = MAX_REGISTERS_PER_THREAD
    if bounds.max_registers:
        cap = min(cap, bounds.max_registers)
    if bounds.max_threads:
        warps = -(-bounds.max_threads // 32)
        blocks = max(bounds.min_blocks, 1)
        cap = min(cap, max(REGISTERS_PER_SM // (warps * 32 * blocks) // 8 * 8, _MIN_REGISTERS))
    return cap
