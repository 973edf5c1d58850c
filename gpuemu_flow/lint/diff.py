"""Compare the figures of kernels with a baseline: list changes, and judge what is worse."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuemu_flow.lint.kernel import (
    STATIC_SHARED_LIMIT,
    KernelMetrics,
    Number,
    is_sass_pattern,
    matching_opcodes,
    matching_symbols,
)
from gpuemu_flow.lint.rules.instructions import DEBUG_CALLS

INSTRUCTION_TOLERANCE = 0.05
"""Relative growth of the instruction count up to which the growth is not reported."""

REGRESSION, IMPROVEMENT, WARNING, INFO = "regression", "improvement", "warning", "info"
NEW, MISSING, UNCHANGED, CHANGED, REFUSED = "new", "missing", "unchanged", "changed", "refused"

_RESOURCES = (
    "registers",
    "spill_instructions",
    "spill_bytes",
    "stack_bytes",
    "shared_bytes",
    "barriers",
)
_OF_PTX = (
    "local_bytes",
    "dynamic_shared_bytes",
    "max_live",
    "instructions",
    "predicated_instructions",
)
_NEVER_NEW = ("f64", "generic")


class MetricChange(Struct, frozen=True):
    """One figure of a kernel before and after a change; None where a figure is unknown. ``delta``
    is their difference, and ``percent`` the same of the old figure, unless that is 0."""

    metric: str
    old: Number | None
    new: Number | None
    delta: Number | None = None
    percent: float | None = None


class ChangeJudgement(Struct, frozen=True):
    """The judgement of one change of a kernel: worse, better or only worth a note. ``kind`` is
    ``regression``, ``improvement``, ``warning`` or ``info``."""

    kind: str
    metric: str
    message: str


class KernelDiff(Struct, frozen=True):
    """One kernel for one architecture against its baseline, as ``baseline diff`` prints it. A
    kernel can improve and regress at once. ``occupancy_limited_by`` is what limits occupancy before
    and after the change."""

    name: str
    arch: str
    status: str
    reason: str = ""
    is_regression: bool = False
    is_improvement: bool = False
    changes: tuple[MetricChange, ...] = ()
    families: tuple[MetricChange, ...] = ()
    occupancy_limited_by: tuple[str, ...] = ()
    judgements: tuple[ChangeJudgement, ...] = ()

    def figures(self, metric: str) -> tuple[Number | None, Number | None]:
        """Return a figure before and after the change; a figure that is unknown is None. If the
        figure did not change, both are None."""
        found = (c for c in (*self.changes, *self.families) if c.metric == metric)
        return next(((change.old, change.new) for change in found), (None, None))


def diff_kernels(
    baseline: Iterable[KernelMetrics],
    current: Iterable[KernelMetrics],
    *,
    forbidden: tuple[str, ...] = (),
) -> list[KernelDiff]:
    """Compare two sets of metrics, matched by kernel name and architecture."""
    old_by_key = {(m.name, m.arch): m for m in baseline}
    old_archs: dict[str, list[str]] = {}
    for name, arch in old_by_key:
        old_archs.setdefault(name, []).append(arch)
    result = []
    seen = set()
    for new in current:
        key = (new.name, new.arch)
        seen.add(key)
        old = old_by_key.get(key)
        if old is not None:
            result.append(_compare(old, new, forbidden))
            continue
        others = old_archs.get(new.name, [])
        reason = (
            f"the baseline has it for {', '.join(sorted(others))}: architectures are not compared"
            if others
            else ""
        )
        result.append(KernelDiff(new.name, new.arch, NEW, reason))
    result.extend(
        KernelDiff(name, arch, MISSING) for name, arch in old_by_key if (name, arch) not in seen
    )
    return result


def _compare(old: KernelMetrics, new: KernelMetrics, forbidden: tuple[str, ...]) -> KernelDiff:
    reason = _refusal(old, new)
    if reason:
        return KernelDiff(new.name, new.arch, REFUSED, reason)
    changes = tuple(_changes(old, new))
    families = tuple(_family_changes(old, new))
    judgements = (
        *_tool_drift(old, new),
        *_judge_resources(old, new),
        *_judge_occupancy(old, new),
        *_judge_instructions(old, new),
        *_judge_forbidden(old, new, forbidden),
    )
    limits = tuple(" and ".join(m.occupancy.limited_by) if m.occupancy else "" for m in (old, new))
    return KernelDiff(
        new.name,
        new.arch,
        CHANGED if changes or families else UNCHANGED,
        is_regression=any(j.kind == REGRESSION for j in judgements),
        is_improvement=any(j.kind == IMPROVEMENT for j in judgements),
        changes=changes,
        families=families,
        occupancy_limited_by=limits,
        judgements=judgements,
    )


def _refusal(old: KernelMetrics, new: KernelMetrics) -> str:
    if old.metric_source != new.metric_source:
        return (
            f"figures from {old.metric_source} and from {new.metric_source} are not comparable: "
            "build both with the same tools"
        )
    if old.ptx_target and new.ptx_target and old.ptx_target != new.ptx_target:
        return f"PTX for {old.ptx_target} and for {new.ptx_target} is not comparable"
    return ""


def _tool_drift(old: KernelMetrics, new: KernelMetrics) -> Iterator[ChangeJudgement]:
    if old.tool_version != new.tool_version:
        yield ChangeJudgement(
            WARNING,
            "tool_version",
            f"ptxas {old.tool_version or 'unknown'} against {new.tool_version or 'unknown'}: small "
            "differences may be the compiler's",
        )


def _changes(old: KernelMetrics, new: KernelMetrics) -> Iterator[MetricChange]:
    for name in (*_RESOURCES, *_OF_PTX):
        before, after = getattr(old, name), getattr(new, name)
        if before != after:
            yield _change(name, before, after)
    machine = (old.sass_instructions, new.sass_instructions)
    if old.sass_tool == new.sass_tool and machine[0] != machine[1]:
        yield _change("sass_instructions", *machine)
    for name in ("blocks", "fraction"):
        before = getattr(old.occupancy, name, None)
        after = getattr(new.occupancy, name, None)
        if before != after:
            yield _change(f"occupancy.{name}", before, after)


def _change(metric: str, old: Number | None, new: Number | None) -> MetricChange:
    if old is None or new is None:
        return MetricChange(metric, old, new)
    return MetricChange(metric, old, new, new - old, 100.0 * (new - old) / old if old else None)


def _family_changes(old: KernelMetrics, new: KernelMetrics) -> list[MetricChange]:
    names = sorted({*old.families, *new.families})
    changes = [_change(n, old.families.get(n, 0), new.families.get(n, 0)) for n in names]
    changed = [change for change in changes if change.delta]
    return sorted(changed, key=lambda change: -abs(change.delta or 0))


def _judge_resources(old: KernelMetrics, new: KernelMetrics) -> Iterator[ChangeJudgement]:
    for metric, what in (
        ("spill_instructions", "spill instructions"),
        ("spill_bytes", "bytes of spills"),
        ("stack_bytes", "bytes of stack"),
    ):
        before, after = getattr(old, metric), getattr(new, metric)
        if before is None or after is None or before == after:
            continue
        kind = REGRESSION if after > before else IMPROVEMENT
        yield ChangeJudgement(kind, metric, f"{before} → {after} {what}")
    before, after = old.shared_bytes or 0, new.shared_bytes or 0
    if before <= STATIC_SHARED_LIMIT < after:
        message = f"static shared memory passes {STATIC_SHARED_LIMIT} bytes: {before} → {after}"
        yield ChangeJudgement(REGRESSION, "shared_bytes", message)
    elif after <= STATIC_SHARED_LIMIT < before:
        message = f"static shared memory fits again: {before} → {after} bytes"
        yield ChangeJudgement(IMPROVEMENT, "shared_bytes", message)


def _judge_occupancy(old: KernelMetrics, new: KernelMetrics) -> Iterator[ChangeJudgement]:
    before, after = old.occupancy, new.occupancy
    comparable = before is not None and after is not None and before.threads == after.threads
    if comparable and before is not None and after is not None and before.blocks != after.blocks:
        worse = after.blocks < before.blocks
        kind = REGRESSION if worse else IMPROVEMENT
        if worse and not new.is_exact:
            kind = WARNING  # from an estimate
        yield ChangeJudgement(
            kind,
            "occupancy",
            f"{before.blocks} → {after.blocks} resident blocks of {after.threads} threads, "
            f"limited by {' and '.join(after.limited_by)}",
        )
        return
    if old.registers is not None and new.registers is not None:
        if new.registers > old.registers:
            message = f"{old.registers} → {new.registers} registers at the same occupancy"
            yield ChangeJudgement(WARNING, "registers", message)
        elif new.registers < old.registers:
            message = f"{old.registers} → {new.registers} registers"
            yield ChangeJudgement(IMPROVEMENT, "registers", message)


def _judge_instructions(old: KernelMetrics, new: KernelMetrics) -> Iterator[ChangeJudgement]:
    if old.instructions is None or new.instructions is None:
        return
    for family in _NEVER_NEW:
        yield from _appears(
            family,
            f"{family} instructions",
            old.families.get(family, 0),
            new.families.get(family, 0),
        )
    for written in dict.fromkeys(DEBUG_CALLS.values()):
        names = [callee for callee, name in DEBUG_CALLS.items() if name == written]
        before, after = (sum(m.calls.get(n, 0) for n in names) for m in (old, new))
        yield from _appears(written, f"calls of {written}", before, after)
    before, after = (m.families.get("tensor", 0) for m in (old, new))
    if before and not after:
        yield ChangeJudgement(REGRESSION, "tensor", f"{before} tensor-core instructions are gone")
    elif after and not before:
        yield ChangeJudgement(IMPROVEMENT, "tensor", f"{after} tensor-core instructions are new")
    growth = new.instructions - old.instructions
    if abs(growth) > INSTRUCTION_TOLERANCE * old.instructions:
        message = f"{old.instructions} → {new.instructions} PTX instructions"
        yield ChangeJudgement(INFO, "instructions", message)


def _judge_forbidden(
    old: KernelMetrics, new: KernelMetrics, forbidden: tuple[str, ...]
) -> Iterator[ChangeJudgement]:
    for pattern in forbidden:
        before, after = (_count_matches(pattern, m) for m in (old, new))
        if before is not None and after is not None:
            yield from _appears(pattern, f"forbidden {pattern} instructions", before, after)


def _appears(metric: str, what: str, before: int, after: int) -> Iterator[ChangeJudgement]:
    if after and not before:
        yield ChangeJudgement(REGRESSION, metric, f"{after} {what}, none before")
    elif before and not after:
        yield ChangeJudgement(IMPROVEMENT, metric, f"no {what}, {before} before")


def _count_matches(pattern: str, metrics: KernelMetrics) -> int | None:
    """Count the instructions that a pattern matches. The result is None if the instructions are
    unknown: the pattern is for machine code and no disassembler read the cubin, or the pattern is
    for PTX and there is no PTX."""
    if is_sass_pattern(pattern):
        sass = metrics.sass_opcodes
        return None if sass is None else sum(sass[o] for o in matching_opcodes(pattern, sass))
    if metrics.instructions is None:
        return None
    opcodes = matching_opcodes(pattern, metrics.opcodes)
    calls = matching_symbols(pattern, metrics.calls)
    return sum(metrics.opcodes[o] for o in opcodes) + sum(metrics.calls[c] for c in calls)
