"""Rules about what a kernel takes: registers, local and shared memory, threads, instructions."""

from __future__ import annotations

from gpuemu_flow.lint.analysis import Findings, KernelAnalysis, Rule, needs_exact_figures, needs_ptx
from gpuemu_flow.lint.kernel import (
    MAX_THREADS_PER_BLOCK,
    REGISTERS_PER_SM,
    STATIC_SHARED_LIMIT,
    WARP_THREADS,
    Finding,
    KernelPolicy,
    KernelView,
    PtxLocation,
    limits_of,
    occupancy,
)
from gpuemu_flow.model.plain_text import plural

ESTIMATE_TOLERANCE = 1.3
"""An estimate fails a kernel only above this multiple of the limit; its mean error is 17 %."""


def check_register_limit(view: KernelView, policy: KernelPolicy) -> Findings:
    yield from _registers(view, policy)
    reached = view.metrics.occupancy
    if policy.min_occupancy is not None and reached is not None:
        if reached.fraction >= policy.min_occupancy:
            return
        assumed = " (block size assumed)" if reached.assumed_threads else ""
        certain = view.metrics.is_exact and not reached.assumed_threads
        yield Finding(
            f"occupancy {reached.fraction:.0%} with {reached.threads} threads per block{assumed}, "
            f"limited by {' and '.join(reached.limited_by)}; wanted is {policy.min_occupancy:.0%}",
            actual=reached.fraction,
            limit=policy.min_occupancy,
            severity=policy.limit_severity("min_occupancy") if certain else "warning",
        )


def _registers(view: KernelView, policy: KernelPolicy) -> Findings:
    registers, limit = view.metrics.registers, policy.max_registers
    if registers is None:
        return
    exact = view.metrics.is_exact
    said = f"{registers} {'registers' if exact else 'registers (an estimate)'} per thread"
    certain = exact or registers > ESTIMATE_TOLERANCE * limit
    severity = policy.limit_severity("max_registers") if certain else "warning"
    yield from _held(said, registers, limit, policy.registers_warn_above, severity)


def _held(
    said: str,
    amount: int,
    limit: int,
    warn_above: int | None,
    severity: str,
    place: PtxLocation | None = None,
    more: str = "",
) -> Findings:
    """Yield a finding for an amount above its limit, or else above the lower one that warns."""
    if amount > limit:
        text = f"{said}, allowed are {limit}{more}"
        yield Finding(text, place, actual=amount, limit=limit, severity=severity)
    elif warn_above is not None and amount > warn_above:
        yield Finding(f"{said}, above {warn_above}", place, actual=amount, limit=warn_above)


def unchecked_register_limit(view: KernelView, policy: KernelPolicy) -> str:
    if view.metrics.registers is None:
        return "no figure: needs a cubin or the output of ptxas -v"
    return ""


REGISTER_LIMIT = Rule(
    id="register-limit",
    severity="warning",
    what="Registers per thread above `max_registers`, or occupancy below `min_occupancy`. Exact "
    "from the cubin or `ptxas -v`; from PTX alone an estimate, which warns, and fails only "
    "above 1.3 times the limit. Declared virtual registers are never used.",
    why="A multiprocessor has 65,536 registers. What each thread takes decides how many blocks "
    "are resident, and so how much memory latency is hidden.",
    example="artifact_checks = { max_registers = 64 }   # a kernel with 72 registers: 28 warps, "
    "not 32",
    instead="Shorten the lives of values, lower the unrolling, use `__launch_bounds__`, or raise "
    "the limit when fewer and larger blocks are what the kernel wants.",
    check=check_register_limit,
    unchecked=unchecked_register_limit,
)


_WIDEST_SPILL = 16


def check_real_spills(view: KernelView, policy: KernelPolicy) -> Findings:
    """Yield a violation for each exceeded limit on spill instructions or on spilled bytes. Nothing
    is yielded if the kernel's metrics are estimates, and not figures of the compiler."""
    metrics = view.metrics
    if not metrics.is_exact:
        return
    instructions, spilled = metrics.spill_instructions, metrics.spill_bytes
    amount = "an unknown number of" if instructions is None else str(instructions)
    size = "" if spilled is None else f" ({spilled} bytes)"
    if instructions is None and spilled:
        instructions = -(-spilled // _WIDEST_SPILL)
        amount = f"at least {instructions}"
    if instructions is not None:
        said, severity = f"{amount} spill instructions{size}", policy.limit_severity("max_spills")
        warn_above = policy.spills_warn_above
        yield from _held(said, instructions, policy.max_spills, warn_above, severity)
    if policy.max_spill_bytes is not None and (spilled or 0) > policy.max_spill_bytes:
        yield Finding(
            f"{spilled} bytes of spills, allowed are {policy.max_spill_bytes}",
            actual=spilled,
            limit=policy.max_spill_bytes,
            severity=policy.limit_severity("max_spill_bytes"),
        )


def unchecked_real_spills(view: KernelView, policy: KernelPolicy) -> str:
    reason = needs_exact_figures(view, policy)
    if reason:
        return reason
    if view.metrics.spill_instructions is None and view.metrics.spill_bytes is None:
        return "this cubin records no spills (made by ptxas before 12.6)"
    return ""


REAL_SPILLS = Rule(
    id="real-spills",
    severity="warning",
    what="The kernel holds more values than it has registers for: the compiler stores some in "
    "local memory and loads them back. Counted from the cubin's own record of spill "
    "instructions, or from `ptxas -v`.",
    why="Each spill is a trip through the L1 cache or to device memory in the middle of the "
    "arithmetic. `ld.local` in PTX is no measure of it: spills are made later, by ptxas.",
    example="__global__ void __launch_bounds__(1024, 2) k(...) { float a[64]; /* all live */ }",
    instead="Relax `__launch_bounds__` or `-maxrregcount`, split the kernel, keep fewer values "
    "live at once, or recompute cheap ones. `max_spills = 0` makes any spill an error, a larger "
    "number accepts some.",
    check=check_real_spills,
    unchecked=unchecked_real_spills,
)


def find_local_memory(analysis: KernelAnalysis) -> Findings:
    accesses = analysis.select("ld", "st", where=lambda opcode: opcode.space == "local")
    return analysis.group(
        accesses, lambda _, count: f"local memory is accessed {plural(count, 'time')}"
    )


def check_local_memory(view: KernelView, policy: KernelPolicy) -> Findings:
    """Compare a kernel's stack with its limits, and report recursion. If the size of the stack is
    unknown, the size of the local variables in the PTX is compared instead, and a violation has the
    severity ``info``."""
    metrics, limit = view.metrics, policy.max_local_memory_bytes
    found = view.findings.get("local-memory", ())
    place = found[0].place if found else None
    if view.recursive:
        yield Finding("recursion: the stack has no bound known at compile time")
    if not metrics.is_exact:
        if (metrics.local_bytes or 0) > limit:
            yield Finding(
                f"{metrics.local_bytes} bytes of local variables in PTX, of which the compiler "
                "may keep some in registers",
                place=place,
                actual=metrics.local_bytes,
                limit=limit,
                severity="info",
            )
        return
    stack = metrics.stack_bytes or 0
    said = f"{stack} bytes of stack per thread"
    severity = policy.limit_severity("max_local_memory_bytes")
    more = "; spilled registers are among them" if metrics.spill_bytes else ""
    warn_above = policy.local_memory_warn_above
    yield from _held(said, stack, limit, warn_above, severity, place, more)


LOCAL_MEMORY = Rule(
    id="local-memory",
    severity="warning",
    what="The kernel has a stack in local memory: an array indexed at run time, arguments of "
    "printf, a function that is not inlined, or spilled registers.",
    why="Local memory is device memory with a per-thread layout. An array that is indexed with "
    "a run-time value cannot live in registers, however small it is.",
    example="float a[32]; ... y = a[threadIdx.x * n & 31];   // dynamic index: 128 bytes of stack",
    instead="Unroll the loops so that all indices are constants, use shared memory for a real "
    "table, or allow the bytes with `max_local_memory_bytes`.",
    check=check_local_memory,
    find=find_local_memory,
    unchecked=needs_exact_figures,
)


def check_static_shared_memory(view: KernelView, policy: KernelPolicy) -> Findings:
    shared = view.metrics.shared_bytes
    if shared is not None and shared > STATIC_SHARED_LIMIT:
        yield Finding(
            f"{shared} bytes of static shared memory, a block has at most {STATIC_SHARED_LIMIT}",
            actual=shared,
            limit=STATIC_SHARED_LIMIT,
        )


STATIC_SHARED_MEMORY = Rule(
    id="static-shared-memory",
    severity="error",
    what="Static `__shared__` variables of more than 49,152 bytes in one kernel.",
    why="That is the limit on every architecture: ptxas refuses the kernel, or it fails when it "
    "is loaded. Only dynamic shared memory may be larger.",
    example="__shared__ float tile[128][128];      // 65,536 bytes",
    instead="Declare it `extern __shared__`, pass the size at launch, and raise "
    "`cudaFuncAttributeMaxDynamicSharedMemorySize`.",
    check=check_static_shared_memory,
)


def check_shared_memory_limit(view: KernelView, policy: KernelPolicy) -> Findings:
    static, dynamic = view.metrics.shared_bytes, view.metrics.dynamic_shared_bytes
    limit = policy.max_shared_memory
    if limit is None or static is None:
        return
    total = static + (dynamic or 0)
    if total > limit:
        parts = "static only" if dynamic is None else f"{static} static, {dynamic} dynamic"
        yield Finding(
            f"{total} bytes of shared memory per block ({parts}), allowed are {limit}",
            actual=total,
            limit=limit,
        )


def unchecked_shared_memory_limit(view: KernelView, policy: KernelPolicy) -> str:
    if policy.max_shared_memory is not None and view.metrics.shared_bytes is None:
        return "shared memory is unknown"
    return ""


SHARED_MEMORY_LIMIT = Rule(
    id="shared-memory-limit",
    severity="error",
    what="Static shared memory per block, plus dynamic if the configuration states it, above "
    "`max_shared_memory`.",
    why="The user has set the limit, usually to keep a number of blocks resident.",
    example="artifact_checks = { max_shared_memory = 32768 }",
    instead="Make the tiles smaller, or raise the limit.",
    check=check_shared_memory_limit,
    unchecked=unchecked_shared_memory_limit,
)


def find_unused_shared_memory(analysis: KernelAnalysis) -> Findings:
    source = analysis.function.module.source
    for variable in analysis.body.variables:
        if variable.space != "shared" or variable.external or not variable.size_bytes:
            continue
        if not analysis.flow.mentions(variable.name):
            yield Finding(
                f"shared variable {variable.name} ({variable.size_bytes} bytes) is never used",
                PtxLocation(source.line_of(variable.offset)),
                actual=1,
            )


UNUSED_SHARED_MEMORY = Rule(
    id="unused-shared-memory",
    severity="warning",
    what="A static `.shared` variable that the kernel never uses.",
    why="It takes shared memory from every resident block and lowers occupancy for nothing. "
    "Often the sign of a stage that was taken out, or of a wrong buffer being used.",
    example="__shared__ float partial[1024];      // left over, only `tile` is used",
    instead="Remove the variable.",
    find=find_unused_shared_memory,
)


_REGISTER_UNIT = 8


def check_no_full_block(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report a kernel that needs too many registers per thread for a block of 1,024 threads. A
    kernel whose block size is known is not reported."""
    metrics = view.metrics
    reached = metrics.occupancy
    size_is_known = reached is not None and not reached.assumed_threads
    if not metrics.is_exact or metrics.registers is None or size_is_known:
        return
    allocated = -(-metrics.registers // _REGISTER_UNIT) * _REGISTER_UNIT
    if allocated * MAX_THREADS_PER_BLOCK > REGISTERS_PER_SM:
        most = REGISTERS_PER_SM // allocated // 128 * 128
        yield Finding(
            f"{metrics.registers} registers per thread: a launch with more than {most} threads "
            "fails, and no launch bounds say so",
            actual=metrics.registers,
            limit=REGISTERS_PER_SM // MAX_THREADS_PER_BLOCK,
        )


NO_FULL_BLOCK = Rule(
    id="no-full-block",
    severity="info",
    what="A kernel without launch bounds needs so many registers that 1,024 threads of it do not "
    "fit on a multiprocessor.",
    why="Such a launch fails with `too many resources requested for launch`, at run time and "
    "only for large blocks.",
    example="65 registers: 65 → 72 × 1,024 > 65,536",
    instead="State the block size: `__launch_bounds__(256)`; or set `threads_per_block` of "
    "the kernel in the configuration.",
    check=check_no_full_block,
    unchecked=needs_exact_figures,
)


def check_unmet_launch_bounds(view: KernelView, policy: KernelPolicy) -> Findings:
    if view.unmet_bounds:
        yield Finding(f"ptxas: {view.unmet_bounds}")
        return
    excess = _beyond_limits(view) or _beyond_resources(view)
    if excess is not None:
        message, actual, limit = excess
        yield Finding(message, actual=actual, limit=limit)


def _beyond_limits(view: KernelView) -> tuple[str, int, int] | None:
    threads, blocks = view.bounds.max_threads, view.bounds.min_blocks
    limits = limits_of(view.arch)
    if threads > MAX_THREADS_PER_BLOCK:
        message = f"{threads} threads per block, a block has at most {MAX_THREADS_PER_BLOCK}"
        return message, threads, MAX_THREADS_PER_BLOCK
    if limits is None:
        return None
    if blocks > limits.max_blocks:
        message = f"{blocks} blocks per multiprocessor, {view.arch} has at most {limits.max_blocks}"
        return message, blocks, limits.max_blocks
    wanted = -(-threads // WARP_THREADS) * blocks
    if wanted > limits.max_warps:
        message = (
            f"{blocks} blocks of {threads} threads per multiprocessor, {view.arch} has "
            f"{limits.max_threads} threads: ptxas ignores .minnctapersm"
        )
        return message, wanted * WARP_THREADS, limits.max_threads
    return None


def _beyond_resources(view: KernelView) -> tuple[str, int, int] | None:
    bounds, metrics, limits = view.bounds, view.metrics, limits_of(view.arch)
    known = metrics.is_exact and metrics.registers is not None
    if limits is None or not known or not bounds.max_threads or not bounds.min_blocks:
        return None
    shared = (metrics.shared_bytes or 0) + (metrics.dynamic_shared_bytes or 0)
    reached = occupancy(
        limits, bounds.max_threads, metrics.registers or 0, shared, metrics.barriers or 0
    )
    if reached.blocks >= bounds.min_blocks:
        return None
    message = (
        f"the bounds ask for {bounds.min_blocks} blocks per multiprocessor, "
        f"{' and '.join(reached.limited_by)} allow {reached.blocks}"
    )
    return message, reached.blocks, bounds.min_blocks


UNMET_LAUNCH_BOUNDS = Rule(
    id="unmet-launch-bounds",
    severity="warning",
    what="`__launch_bounds__(threads, blocks)` asks for more than a multiprocessor of this "
    "architecture has. From ptxas's warning, or computed.",
    why="ptxas then ignores the second number and the registers are not limited: the kernel "
    "that was tuned for two resident blocks runs with one.",
    example="__global__ void __launch_bounds__(1024, 2) k();   // sm_86 has 1,536 threads",
    instead="Choose the bounds per architecture (`#if __CUDA_ARCH__ == 860`), or ask for fewer "
    "threads or blocks.",
    check=check_unmet_launch_bounds,
    unchecked=needs_ptx,
)


def check_instruction_limit(view: KernelView, policy: KernelPolicy) -> Findings:
    count, limit = view.metrics.instructions, policy.max_instructions
    if limit is not None and count is not None and count > limit:
        yield Finding(f"{count} PTX instructions, allowed are {limit}", actual=count, limit=limit)


def unchecked_instruction_limit(view: KernelView, policy: KernelPolicy) -> str:
    if policy.max_instructions is not None and view.metrics.instructions is None:
        return "needs the kernel's PTX"
    return ""


INSTRUCTION_LIMIT = Rule(
    id="instruction-limit",
    severity="error",
    what="More PTX instructions than `max_instructions`, device functions that it calls included.",
    why="The user has set the limit: unrolling that gets out of hand fills the instruction cache.",
    example="artifact_checks = { max_instructions = 2000 }",
    instead="Lower `#pragma unroll`, or raise the limit.",
    check=check_instruction_limit,
    unchecked=unchecked_instruction_limit,
)
