"""Rules about the instructions and calls of a kernel."""

from __future__ import annotations

import re
from collections import Counter

from gpuemu_flow.lint.analysis import Findings, KernelAnalysis, Rule, needs_ptx
from gpuemu_flow.lint.kernel import (
    SPILL,
    Finding,
    KernelPolicy,
    KernelView,
    arch_number,
    count_sass_families,
    is_sass_pattern,
    matching_opcodes,
    matching_symbols,
)
from gpuemu_flow.lint.ptx.model import Function, Opcode
from gpuemu_flow.model.plain_text import plural


def check_debug_build(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report a kernel whose ``.target`` has the word ``debug``. Line information alone is not
    reported."""
    if "debug" in view.target_options:
        yield Finding("built for debugging (.target says debug)")


DEBUG_BUILD = Rule(
    id="debug-build",
    severity="error",
    what="The PTX's `.target` has the word `debug`: it was compiled with `-G`.",
    why="Device debugging turns all optimisation off: every variable lives in local memory. "
    "Figures of such a kernel mean nothing.",
    example="nvcc -G -ptx kernel.cu      // .target sm_80, debug",
    instead="Compile without `-G`. `-lineinfo` keeps source lines at no cost.",
    check=check_debug_build,
    unchecked=needs_ptx,
)


DEBUG_CALLS: dict[str, str] = {
    "vprintf": "printf",
    "__assertfail": "assert",
    "__assert_fail": "assert",
    "malloc": "malloc",
    "free": "free",
}
"""The call that a programmer wrote, by the runtime function that PTX calls."""


def find_debug_call(analysis: KernelAnalysis) -> Findings:
    calls = {
        index: written
        for callee, written in DEBUG_CALLS.items()
        for index in analysis.calls.get(callee, ())
    }
    return analysis.group(
        sorted(calls), lambda first, count: f"{plural(count, 'call')} of {calls[first]}"
    )


DEBUG_CALL = Rule(
    id="debug-call",
    severity="warning",
    what="Calls of `vprintf`, `__assertfail`, `malloc` or `free` in device code.",
    why="A call keeps at least 24 registers busy, puts arguments on the stack and keeps the "
    "compiler from moving code across it. Device malloc is slow and limited to a small heap.",
    example='if (i == 0) printf("%f\\n", x);      // left in after debugging',
    instead="Remove it, or compile asserts out with `-DNDEBUG`. Give the kernel its scratch "
    "memory as an argument.",
    find=find_debug_call,
)


_ARITHMETIC = frozenset(
    {"add", "sub", "mul", "fma", "mad", "div", "rcp", "sqrt", "rsqrt"}
    | {"min", "max", "neg", "abs", "setp"}
)
_NARROW = frozenset({"f32", "f16", "bf16"})
_WIDE_DATA = frozenset({"f64", "b64"})


def find_accidental_f64(analysis: KernelAnalysis) -> Findings:
    arithmetic = analysis.select(*_ARITHMETIC, where=lambda opcode: opcode.type == "f64")
    if not arithmetic:
        return ()
    promotions = analysis.select("cvt", where=_is_promotion)
    if not promotions:
        return ()
    defs, uses = analysis.flow.defs, analysis.flow.uses
    promoted = {register for index in promotions for register in defs[index]}
    wide = set(promoted)
    for index in arithmetic:
        wide.update(r for r in (*defs[index], *uses[index]) if analysis.flow.widths[r] > 1)
    moved = analysis.select(
        "ld", "ldu", "st", "atom", "red", where=lambda opcode: opcode.type in _WIDE_DATA
    )
    if any(not wide.isdisjoint((*defs[index], *uses[index])) for index in moved):
        return ()
    return analysis.group(
        promotions,
        lambda _, count: (
            f"{plural(count, 'value')} widened to f64; the kernel has "
            f"{plural(len(arithmetic), 'f64 operation')} and reads and writes no f64 data"
        ),
    )


def _is_promotion(opcode: Opcode) -> bool:
    types = opcode.types
    return len(types) == 2 and types[0] == "f64" and types[1] in _NARROW


ACCIDENTAL_F64 = Rule(
    id="accidental-f64",
    severity="warning",
    what="f64 arithmetic on values that were widened from f32, in a kernel that neither loads nor "
    "stores f64.",
    why="Most GPUs run f64 at 1/32 or 1/64 of the f32 rate. One literal without `f` makes the "
    "whole expression double.",
    example="y[i] = x[i] * 0.5 + 1.0;      // two doubles: cvt.f64.f32, fma.rn.f64, cvt.rn.f32.f64",
    instead="Write the literals as `0.5f`, and call `sqrtf`, `expf`, `fabsf`. Where the wider "
    "arithmetic is meant, say so with an `allow` and the reason.",
    find=find_accidental_f64,
)


def check_missing_tensor_cores(view: KernelView, policy: KernelPolicy) -> Findings:
    if not policy.expect_tensor_cores or unchecked_missing_tensor_cores(view, policy):
        return
    in_ptx = view.metrics.families.get("tensor", 0)
    in_sass = count_sass_families(view.metrics.sass_opcodes or {}).get("tensor", 0)
    if not in_ptx and not in_sass:
        yield Finding("no tensor-core instruction, expected by the policy", actual=0)


def unchecked_missing_tensor_cores(view: KernelView, policy: KernelPolicy) -> str:
    if policy.expect_tensor_cores and not view.has_ptx and view.metrics.sass_opcodes is None:
        return "needs the kernel's PTX, or nvdisasm"
    return ""


MISSING_TENSOR_CORES = Rule(
    id="missing-tensor-cores",
    severity="error",
    what="With `tensor_cores = true`: the kernel has no `mma`, `wmma.mma`, `wgmma` or "
    "`tcgen05.mma`.",
    why="A matrix kernel that misses the tensor cores runs at a tenth of the speed; a dtype or a "
    "shape that does not fit makes a compiler fall back silently.",
    example="artifact_checks = { tensor_cores = true }   # a float32 dot without tf32",
    instead="Use dtypes and tile shapes that the tensor cores take (tf32, bf16, f16; multiples "
    "of 16).",
    check=check_missing_tensor_cores,
    unchecked=unchecked_missing_tensor_cores,
)


_INTEGERS = frozenset({"u16", "s16", "u32", "s32", "u64", "s64"})


def find_integer_division(analysis: KernelAnalysis) -> Findings:
    divisions = analysis.select("div", "rem", where=lambda opcode: opcode.type in _INTEGERS)
    in_loops = [index for index in divisions if analysis.in_loop(index)]

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'integer division')} in a loop ({opcode})"

    return analysis.group(in_loops, describe)


INTEGER_DIVISION_IN_LOOP = Rule(
    id="integer-division-in-loop",
    severity="warning",
    what="`div` or `rem` of integers inside a loop. Divisions by constants do not show: the "
    "compiler has made multiplications of them.",
    why="GPUs have no integer divider: a 32-bit division is about 20 instructions, a 64-bit one "
    "about 70 and often a call.",
    example="for (int i = t; i < n; i += 256) y[i] = x[i / w] + z[i % w];",
    instead="Keep row and column as two counters, divide once before the loop, make `w` a "
    "template parameter, or use 32-bit indices.",
    find=find_integer_division,
)


_FLOATS = frozenset({"f32", "f64", "f16", "f16x2", "bf16", "bf16x2", "f32x2"})


def find_unfused_multiply_add(analysis: KernelAnalysis) -> Findings:
    products = analysis.select("mul", where=_is_rounded)
    if not products:
        return ()
    sums = analysis.select("add", "sub", where=_is_rounded)
    if not sums:
        return ()
    defs, uses = analysis.flow.defs, analysis.flow.uses
    instructions = analysis.body.instructions
    product_type = {
        register: instructions[index].opcode.type for index in products for register in defs[index]
    }
    times_used = Counter(register for read in uses for register in read if register in product_type)
    unfused = [
        index
        for index in sums
        if any(
            times_used[register] == 1
            and product_type.get(register) == instructions[index].opcode.type
            for register in uses[index]
        )
    ]
    return analysis.group(
        unfused, lambda _, count: f"{plural(count, 'addition')} of a product that is rounded first"
    )


def _is_rounded(opcode: Opcode) -> bool:
    return "rn" in opcode.segments and opcode.type in _FLOATS


UNFUSED_MULTIPLY_ADD = Rule(
    id="unfused-multiply-add",
    severity="info",
    what="`mul.rn` followed by `add.rn` or `sub.rn` on its result, which nothing else uses. The "
    "explicit `.rn` forbids ptxas to fuse them.",
    why="One fma does both in one instruction and rounds once instead of twice.",
    example="nvcc -fmad=false, or __fadd_rn(__fmul_rn(a, b), c)",
    instead="Compile with the default `-fmad=true` or write `fmaf(a, b, c)`. Keep it where results "
    "must equal a reference that rounds twice.",
    find=find_unfused_multiply_add,
)


def find_exact_division(analysis: KernelAnalysis) -> Findings:
    exact = analysis.select(
        "div", "sqrt", "rcp", where=lambda o: o.type == "f32" and "rn" in o.segments
    )

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        loop = " in a loop" if analysis.in_loop(first) else ""
        return f"{plural(count, 'correctly rounded operation')}{loop} ({opcode})"

    return analysis.group(exact, describe)


EXACT_DIVISION = Rule(
    id="exact-division",
    severity="info",
    what="`div.rn.f32`, `sqrt.rn.f32` or `rcp.rn.f32`.",
    why="Each is 8 to 20 instructions with a slow path; the approximate forms are one or two and "
    "are wrong by at most 2 ulp.",
    example="y[i] = x[i] / sum;      // div.rn.f32 per element",
    instead="Divide once and multiply, or use `__fdividef`, `rsqrtf`, or `-prec-div=false`, where "
    "the tolerance allows it.",
    find=find_exact_division,
)


def find_legacy_warp_operations(analysis: KernelAnalysis) -> Findings:
    legacy = analysis.select("shfl", "vote", where=lambda o: "sync" not in o.segments)

    def describe(first: int, count: int) -> str:
        opcode = analysis.body.instructions[first].opcode.text
        return f"{plural(count, 'warp operation')} without .sync ({opcode})"

    return analysis.group(legacy, describe)


LEGACY_WARP_OPERATIONS = Rule(
    id="legacy-warp-operations",
    severity="error",
    what="`shfl` or `vote` without `.sync`.",
    why="Since Volta the threads of a warp need not run in step: without a member mask the "
    "result depends on which of them happen to be there. PTX 6.4 removed both for sm_70 and later.",
    example="__shfl_down(x, 16);      // shfl.down.b32",
    instead="`__shfl_down_sync(0xffffffff, x, 16)`, `__ballot_sync(mask, p)`.",
    find=find_legacy_warp_operations,
)


def check_forbidden_instruction(view: KernelView, policy: KernelPolicy) -> Findings:
    for pattern in policy.forbidden_instructions:
        if pattern == SPILL:
            spills = view.metrics.spill_instructions or view.metrics.spill_bytes or 0
            if spills:
                yield Finding("forbidden: spills", actual=spills, limit=0)
        elif is_sass_pattern(pattern):
            sass = view.metrics.sass_opcodes or {}
            found = matching_opcodes(pattern, sass)
            if found:
                count = sum(sass[opcode] for opcode in found)
                message = f"forbidden {pattern}: {plural(count, 'machine instruction')}"
                yield Finding(f"{message} ({', '.join(found[:3])})", actual=count, limit=0)
        else:
            yield from _check_ptx(view, pattern)


def _check_ptx(view: KernelView, pattern: str) -> Findings:
    opcodes, calls = view.metrics.opcodes, view.metrics.calls
    found = matching_opcodes(pattern, opcodes)
    called = matching_symbols(pattern, calls)
    count = sum(opcodes[o] for o in found) + sum(calls[name] for name in called)
    if not count:
        return
    places = [view.opcode_places[o] for o in found if o in view.opcode_places]
    places += [view.call_places[name] for name in called if name in view.call_places]
    yield Finding(
        f"forbidden {pattern}: {plural(count, 'instruction')} ({', '.join((found + called)[:3])})",
        place=min(places, key=lambda place: place.line, default=None),
        actual=count,
        limit=0,
    )


def unchecked_forbidden_instruction(view: KernelView, policy: KernelPolicy) -> str:
    sass = [p for p in policy.forbidden_instructions if is_sass_pattern(p)]
    ptx = [p for p in policy.forbidden_instructions if not is_sass_pattern(p) and p != SPILL]
    return unchecked_patterns(view, ptx, sass)


def unchecked_patterns(view: KernelView, ptx: list[str], sass: list[str]) -> str:
    """Return the reason why a kernel cannot be searched for some patterns; empty if it can. `ptx`
    are patterns for PTX instructions, `sass` patterns for machine instructions."""
    if sass and view.metrics.sass_opcodes is None:
        return f"{', '.join(sass)}: machine instructions need a cubin and nvdisasm"
    if ptx and not view.has_ptx:
        return f"{', '.join(ptx)}: needs the kernel's PTX"
    return ""


FORBIDDEN_INSTRUCTION = Rule(
    id="forbidden-instruction",
    severity="error",
    what="Instructions or calls that match `forbidden_instructions`. Patterns are compared with "
    "the opcode's dotted segments; upper-case ones with machine instructions.",
    why="The configuration forbids them.",
    example='forbidden_instructions = ["f64", "ld.local", "printf", "STL"]',
    instead="Remove the instruction or the pattern.",
    check=check_forbidden_instruction,
    unchecked=unchecked_forbidden_instruction,
)


_SHORTEST_SYMBOL = 3


def check_required_instruction(view: KernelView, policy: KernelPolicy) -> Findings:
    for pattern in policy.required_patterns:
        if is_sass_pattern(pattern):
            sass = view.metrics.sass_opcodes
            present = sass is None or bool(matching_opcodes(pattern, sass))
        else:
            present = not view.has_ptx or _is_present(view, pattern)
        if not present:
            yield Finding(f"required {pattern}: no instruction matches", actual=0)


def _is_present(view: KernelView, pattern: str) -> bool:
    if matching_opcodes(pattern, view.metrics.opcodes):
        return True
    if matching_symbols(pattern, view.metrics.calls):
        return True
    # Documented examples name functions (gelu_forward), which are mangled in the PTX.
    names = (view.name, *view.metrics.calls)
    return len(pattern) >= _SHORTEST_SYMBOL and any(pattern in name for name in names)


def unchecked_required_instruction(view: KernelView, policy: KernelPolicy) -> str:
    sass = [p for p in policy.required_patterns if is_sass_pattern(p)]
    return unchecked_patterns(view, [p for p in policy.required_patterns if p not in sass], sass)


REQUIRED_INSTRUCTION = Rule(
    id="required-instruction",
    severity="error",
    what="A pattern of `required_patterns` that no opcode, called function or kernel name matches.",
    why="The user expects the instruction: a tensor-core operation, an asynchronous copy.",
    example='required_patterns = ["mma.sync", "cp.async"]',
    instead="Find out why the compiler did not use it, or remove the pattern.",
    check=check_required_instruction,
    unchecked=unchecked_required_instruction,
)


def check_portability(view: KernelView, policy: KernelPolicy) -> Findings:
    """Report each architecture of the policy for which a kernel cannot be built, with the reason.
    If the policy names no architecture, a target that excludes later architectures is reported as
    information."""
    target = view.metrics.ptx_target
    for arch in policy.archs:
        error = view.assembly.get(arch, "")
        reason = error or target_excludes(target, arch)
        if reason:
            yield Finding(f"does not build for {arch}: {reason}")
    if not policy.archs and target[-1:] in ("a", "f") and arch_number(target) is not None:
        kind = "this architecture" if target.endswith("a") else "this family of architectures"
        yield Finding(f".target {target} runs on {kind} only", severity="info")


def target_excludes(target: str, arch: str) -> str:
    """Return the reason why PTX for `target` cannot run on `arch`; empty if it can. PTX for a
    target without a suffix runs on that architecture and all later ones; for an ``a`` target, on
    that architecture only; for an ``f`` target, on that architecture and later ones of the same
    family (``sm_10x``). Source: PTX ISA, ".target"."""
    built, wanted = arch_number(target), arch_number(arch)
    if built is None or wanted is None:
        return ""
    if target.endswith("a") and wanted != built:
        return f".target {target} runs on sm_{built} only"
    if target.endswith("f") and (wanted < built or wanted // 10 != built // 10):
        return f".target {target} runs on the sm_{built // 10}x family only"
    if wanted < built:
        return f".target {target} is newer"
    return ""


PORTABILITY = Rule(
    id="portability",
    severity="error",
    what="The PTX does not assemble for a wanted architecture, or its `.target` (`sm_90a`, "
    "`sm_100f`) excludes it. If no architectures are configured, such targets are reported as "
    "information.",
    why="Architecture-specific PTX has no forward compatibility: the kernel that runs today does "
    "not load on the next GPU.",
    example=".target sm_90a      // wgmma: sm_90 only, neither sm_80 nor sm_100",
    instead="Build one artifact per architecture, or keep a portable kernel beside the tuned one.",
    check=check_portability,
    unchecked=needs_ptx,
)


def find_unset_constant(analysis: KernelAnalysis) -> Findings:
    for name in unset_constants(analysis.function):
        yield Finding(
            f"reads the constant {name}, which has no initial value: unless the host sets it, it "
            "holds zeros",
            analysis.kernel_place,
        )


def unset_constants(function: Function) -> list[str]:
    """Return the module's constants without an initial value that a kernel's code names."""
    text = function.module.source.text
    unset = [
        v.name
        for v in function.module.variables
        if v.space == "const" and not v.external
        and "=" not in text[v.offset : text.find(";", v.offset)]
    ]  # fmt: skip
    if not unset:
        return []
    body = text[function.body_start : function.body_end]
    named = {found[0] for found in re.finditer(r"[A-Za-z_$][\w$]*", body)}
    return [name for name in unset if name in named]


UNSET_CONSTANT = Rule(
    id="unset-constant",
    severity="info",
    what="A `__constant__` variable without an initial value, which the kernel reads.",
    why="Its content comes from the host, by `cudaMemcpyToSymbol`. Where no host code runs, as in "
    '`emulate` and in an op of `kind = "cuda"`, it holds zeros.',
    example="__constant__ float w[4];\n__global__ void k(float *y) { y[threadIdx.x] *= w[0]; }",
    instead='Give it a content: `symbols = { w = "weights" }` in the op, `--symbol w=f32[4]:ones` '
    "for `emulate`.",
    find=find_unset_constant,
)
