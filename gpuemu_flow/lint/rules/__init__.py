"""All lint rules, the most valuable first."""

from gpuemu_flow.lint.analysis import Rule
from gpuemu_flow.lint.rules import accesses, instructions, resources

RULES: tuple[Rule, ...] = (
    resources.REAL_SPILLS, resources.LOCAL_MEMORY, resources.REGISTER_LIMIT,
    instructions.ACCIDENTAL_F64, instructions.DEBUG_CALL, instructions.DEBUG_BUILD,
    resources.STATIC_SHARED_MEMORY, resources.UNMET_LAUNCH_BOUNDS, resources.NO_FULL_BLOCK,
    instructions.MISSING_TENSOR_CORES, instructions.PORTABILITY, accesses.DIVERGENT_BARRIER,
    instructions.INTEGER_DIVISION_IN_LOOP, accesses.GENERIC_ADDRESS, accesses.ATOMICS_IN_LOOP,
    accesses.SCALAR_ACCESSES, instructions.UNFUSED_MULTIPLY_ADD, instructions.EXACT_DIVISION,
    resources.UNUSED_SHARED_MEMORY, instructions.LEGACY_WARP_OPERATIONS,
    instructions.FORBIDDEN_INSTRUCTION, instructions.REQUIRED_INSTRUCTION,
    resources.SHARED_MEMORY_LIMIT, resources.INSTRUCTION_LIMIT, instructions.UNSET_CONSTANT,
    accesses.NARROW_OFFSET,
)  # fmt: skip

RULES_BY_ID: dict[str, Rule] = {rule.id: rule for rule in RULES}

__all__ = ["RULES", "RULES_BY_ID", "Rule", "explain"]


def explain(rule: Rule) -> str:
    example = "\n".join(f"    {line}" for line in rule.example.splitlines())
    return (
        f"## {rule.id}\n\n"
        f"Rule {RULES.index(rule) + 1}, {rule.severity}.\n\n"
        f"**What it does.** {rule.what}\n\n"
        f"**Why it matters.** {rule.why}\n\n"
        f"**Example.**\n\n{example}\n\n"
        f"**Instead.** {rule.instead}\n"
    )
