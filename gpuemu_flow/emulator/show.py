"""A launch as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuemu_flow.emulator.findings import CheckFinding, readable_function
from gpuemu_flow.emulator.launch import Kernel, LaunchResult, unset_symbols
from gpuemu_flow.emulator.session import KernelCoverage, NamedArgument
from gpuemu_flow.emulator.types import Array

Json = object


def finding_json(finding: CheckFinding) -> dict[str, Json]:
    return {
        "check": finding.check,
        "rule": finding.rule,
        "message": finding.message,
        "kernel": finding.kernel,
        "file": finding.place.file,
        "line": finding.place.line,
        "ptx_line": finding.place.ptx_line,
        "instruction": finding.place.text,
        "block": list(finding.block),
        "thread": list(finding.thread),
        "count": finding.count,
    }


def _summary(data: Array) -> dict[str, Json]:
    numbers = data.astype(np.float64) if data.dtype.kind != "b" else data.astype(np.int8)
    finite = numbers[np.isfinite(numbers)]
    return {
        "shape": list(data.shape),
        "dtype": str(data.dtype),
        "least": float(finite.min()) if finite.size else None,
        "largest": float(finite.max()) if finite.size else None,
        "mean": float(finite.mean()) if finite.size else None,
        "not_finite": int(numbers.size - finite.size),
    }


def changed_buffers(arguments: Sequence[NamedArgument], result: LaunchResult) -> dict[str, Array]:
    found = {}
    for named, after in zip(arguments, result.buffers, strict=True):
        before = getattr(named.argument, "data", None)
        if after is None or not isinstance(before, np.ndarray):
            continue
        fresh = not getattr(named.argument, "initialised", True)
        if fresh or before.tobytes() != after.tobytes():
            found[named.name] = after
    return found


def result_json(
    kernel: Kernel, arguments: Sequence[NamedArgument], result: LaunchResult, seconds: float
) -> dict[str, Json]:
    return {
        "schema_version": 1,
        "kernel": kernel.name,
        "seconds": seconds,
        "thread_instructions": result.instructions,
        "backend": result.backend,
        "backend_note": result.note,
        "outputs": {n: _summary(d) for n, d in changed_buffers(arguments, result).items()},
        "findings": [finding_json(f) for f in result.findings],
        "printed": result.printed,
        "unset_constants": unset_symbols(kernel.program, [n.argument for n in arguments]),
    }


def result_text(
    kernel: Kernel, arguments: Sequence[NamedArgument], result: LaunchResult, seconds: float
) -> str:
    lines = [
        f"{readable_function(kernel.name)}: {result.instructions:,} thread instructions in "
        f"{seconds:.3f} s by {result.backend}",
    ]
    if result.note:
        lines.append(f"  not compiled: {result.note}")
    for name, data in changed_buffers(arguments, result).items():
        facts = _summary(data)
        spread = f"{facts['least']:.6g} to {facts['largest']:.6g}" if facts[
            "least"] is not None else "no finite value"  # fmt: skip
        shape = ", ".join(map(str, data.shape))
        lines.append(f"  {name}: {data.dtype} [{shape}], {spread}")
        if facts["not_finite"]:
            lines[-1] += f", {facts['not_finite']} not finite"
    for name in unset_symbols(kernel.program, [named.argument for named in arguments]):
        lines.append(
            f"  note: {name} is a constant that nothing sets, it holds zeros; --symbol "
            f"{name}=f32[...]"
        )
    if result.printed:
        lines.append("printed:")
        lines += [f"  {line}" for line in result.printed.splitlines()[:200]]
    lines += [str(finding) for finding in result.findings]
    unwatched = "; not watched: what bulk copies read from global memory"
    module = kernel.program.module
    (function,) = [one for one in module.functions if one.name == kernel.name]
    bulk = ".async.bulk" in module.source.text[function.body_start : function.body_end]
    lines.append(f"{len(result.findings) or 'no'} findings{unwatched if bulk else ''}")
    return "\n".join(lines)


def coverage_json(file: str, found: Sequence[KernelCoverage]) -> dict[str, Json]:
    return {"schema_version": 1, "file": file, "kernels": found}


def coverage_text(file: str, found: Sequence[KernelCoverage]) -> str:
    lines = []
    for kernel in found:
        state = "can be run" if kernel.runs else "cannot be run"
        lines.append(
            f"{kernel.name}: {state}; {kernel.instructions:,} instructions, "
            f"{len(kernel.opcodes)} different"
        )
        if kernel.problem:
            lines.append(f"  {kernel.problem}")
        lines += [
            f"  {file}:{m.line}: {m.opcode} ({m.count} times): {m.reason}" for m in kernel.missing
        ]
    runs = sum(kernel.runs for kernel in found)
    lines.append(f"{runs} of {len(found)} kernels can be run")
    return "\n".join(lines)
