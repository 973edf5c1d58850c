"""Names and versions of the stages, in a module that is cheap to import."""

from __future__ import annotations

GENERATE, OP, REFERENCE, COMPARE, DIFF = "generate", "op", "reference", "compare", "diff"
BUILD, LINT, KERNEL_DIFF, CODE = "build", "lint", "kernel-diff", "code"
RULE = "rule"
"""A command of ``[[rules]]``; its tasks are named ``build:NAME``, as those of kernels are."""

BUILT = f"{BUILD}:"
"""Beginning of the role of a rule's manifest whose outputs belong to a task's own inputs."""
AFTER = "after:"
"""Beginning of the role of a manifest that a task only waits for; no key holds it."""

VERSIONS: dict[str, int] = {
    GENERATE: 2, OP: 2, REFERENCE: 2, COMPARE: 5, DIFF: 2, BUILD: 2, LINT: 1, KERNEL_DIFF: 1,
    CODE: 1, RULE: 1,
}  # fmt: skip
"""Versions of the manifests. What re-runs tasks is the digest of our own code, not these."""

CASE_VERDICT = "case verdict"
"""A ``diff`` on the verdicts of common cases, where the op's own says less or is not compared."""
OTHER_CASES = "cases"
"""A ``diff`` that compared no verdict, because the cases are others."""

SHARED = frozenset({GENERATE, OP, REFERENCE, COMPARE, BUILD, RULE})
"""Stages that run programs, and whose results machines share."""

OBSERVED = frozenset({GENERATE, OP, REFERENCE, COMPARE, RULE})
"""Stages that run programs of the user's."""

RECORDING = OBSERVED | {BUILD}
"""Stages whose tasks record what their programs use besides their sources."""


def is_made(role: str) -> bool:
    """Tell whether a manifest of this role describes the compiled or built code of a program."""
    return role == CODE or role.startswith(BUILT)


def is_needed(role: str) -> bool:
    """Tell whether the outputs that this manifest lists must exist before a program is run."""
    return is_made(role) or role.startswith(AFTER)
