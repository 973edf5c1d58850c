"""Rule 22: instructions that the policy requires."""

from __future__ import annotations

from gpuemu_flow.lint.policy import is_sass_pattern, matching_opcodes, matching_symbols
from gpuemu_flow.lint.rules.base import Finding, Findings, KernelPolicy, KernelView, Rule
from gpuemu_flow.lint.rules.forbidden_instruction import unchecked_patterns

_SHORTEST_SYMBOL = 3


def check(view: KernelView, policy: KernelPolicy) -> Findings:
    """Yield a violation for each required pattern that nothing in a kernel matches."""
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


def unchecked(view: KernelView, policy: KernelPolicy) -> str:
    """Return the reason why the rule cannot search a kernel for some patterns; empty if it can."""
    sass = [p for p in policy.required_patterns if is_sass_pattern(p)]
    return unchecked_patterns(view, [p for p in policy.required_patterns if p not in sass], sass)


RULE = Rule(
    id="required-instruction",
    severity="error",
    what="A pattern of `required_patterns` that no opcode, called function or kernel name matches.",
    why="The user expects the instruction: a tensor-core operation, an asynchronous copy.",
    example='required_patterns = ["mma.sync", "cp.async"]',
    instead="Find out why the compiler did not use it, or remove the pattern.",
    check=check,
    unchecked=unchecked,
)
