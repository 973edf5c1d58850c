"""All lint rules, the most valuable first; each rule has its own file."""

from gpuemu_flow.artifacts.rules import (
    accidental_f64,
    atomics_in_loop,
    debug_build,
    debug_call,
    divergent_barrier,
    exact_division,
    forbidden_instruction,
    generic_address,
    instruction_limit,
    integer_division,
    legacy_warp_operations,
    local_memory,
    missing_tensor_cores,
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
    unused_shared_memory,
)
from gpuemu_flow.artifacts.rules.base import Rule

RULES: tuple[Rule, ...] = (
    real_spills.RULE,
    local_memory.RULE,
    register_limit.RULE,
    accidental_f64.RULE,
    debug_call.RULE,
    debug_build.RULE,
    static_shared_memory.RULE,
    unmet_launch_bounds.RULE,
    no_full_block.RULE,
    missing_tensor_cores.RULE,
    portability.RULE,
    divergent_barrier.RULE,
    integer_division.RULE,
    generic_address.RULE,
    atomics_in_loop.RULE,
    scalar_accesses.RULE,
    unfused_multiply_add.RULE,
    exact_division.RULE,
    unused_shared_memory.RULE,
    legacy_warp_operations.RULE,
    forbidden_instruction.RULE,
    required_instruction.RULE,
    shared_memory_limit.RULE,
    instruction_limit.RULE,
)

RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}

__all__ = ["RULES", "RULES_BY_ID", "Rule"]
