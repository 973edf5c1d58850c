"""All lint rules, the most valuable first; each rule has its own file."""

from gpuemu_flow.lint.rules import (
    accidental_f64,
    atomics_in_loop,
    debug_build,
    debug_call,
    divergent_barrier,
    exact_division,
    forbidden_instruction,
    generic_address,
    instruction_limit,
    integer_division_in_loop,
    legacy_warp_operations,
    local_memory,
    missing_tensor_cores,
    narrow_offset,
    no_full_block,
    portability,
    real_spills,
    register_limit,
    required_instruction,
    scalar_accesses,
    shared_memory_limit,
    static_shared_memory,
    unfused_multiply_add,
    unmet_launch_bounds,
    unset_constant,
    unused_shared_memory,
)
from gpuemu_flow.lint.rules.base import Rule

_IN_ORDER = (
    real_spills, local_memory, register_limit, accidental_f64, debug_call, debug_build,
    static_shared_memory, unmet_launch_bounds, no_full_block, missing_tensor_cores, portability,
    divergent_barrier, integer_division_in_loop, generic_address, atomics_in_loop, scalar_accesses,
    unfused_multiply_add, exact_division, unused_shared_memory, legacy_warp_operations,
    forbidden_instruction, required_instruction, shared_memory_limit, instruction_limit,
    unset_constant, narrow_offset,
)  # fmt: skip

RULES: tuple[Rule, ...] = tuple(module.RULE for module in _IN_ORDER)

RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}

__all__ = ["RULES", "RULES_BY_ID", "Rule", "explain"]


def explain(rule: Rule) -> str:
    """Return the description of one rule as a section of Markdown."""
    example = "\n".join(f"    {line}" for line in rule.example.splitlines())
    return (
        f"## {rule.id}\n\n"
        f"Rule {RULES.index(rule) + 1}, {rule.severity}.\n\n"
        f"**What it does.** {rule.what}\n\n"
        f"**Why it matters.** {rule.why}\n\n"
        f"**Example.**\n\n{example}\n\n"
        f"**Instead.** {rule.instead}\n"
    )
