"""Names and versions of the stages, in a module that is cheap to import."""

from __future__ import annotations

GENERATE, OP, REFERENCE, COMPARE, DIFF = "generate", "op", "reference", "compare", "diff"
BUILD, LINT, KERNEL_DIFF, CODE = "build", "lint", "kernel-diff", "code"
RULE = "rule"
"""A command of ``[[rules]]``. Its tasks are named ``build:NAME``, like those of kernels."""

BUILT = f"{BUILD}:"
"""Prefix of the role of a rule, for a task that reads the rule's outputs."""
AFTER = "after:"
"""Prefix of the role of a task that a task only waits for. It is not part of any key."""

VERSIONS: dict[str, int] = {
    GENERATE: 2, OP: 2, REFERENCE: 2, COMPARE: 5, DIFF: 2, BUILD: 2, LINT: 1, KERNEL_DIFF: 1,
    CODE: 1, RULE: 1,
}  # fmt: skip
"""Versions of the results. Tasks run again when our code's digest changes, not these versions."""

CASE_VERDICT = "case verdict"
"""A change in the verdicts on common cases, used when the ops' verdicts cannot show it."""
OTHER_CASES = "cases"
"""A change of the cases, which prevented a comparison of verdicts."""

SHARED = frozenset({GENERATE, OP, REFERENCE, COMPARE, BUILD, RULE})
"""Stages that run programs, and whose results are stored in a shared cache."""

OBSERVED = frozenset({GENERATE, OP, REFERENCE, COMPARE, RULE})
"""Stages that run the user's programs."""

RECORDING = OBSERVED | {BUILD}
"""Stages whose tasks record what their programs use besides their sources."""


def is_made(role: str) -> bool:
    """Tell whether a result with this role describes compiled code or rules' outputs."""
    return role == CODE or role.startswith(BUILT)


def is_needed(role: str) -> bool:
    """Tell whether the outputs in a result with this role must exist before a program runs."""
    return is_made(role) or role.startswith(AFTER)
