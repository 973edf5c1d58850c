"""Names and versions of the stages: all that planning has to know of them."""

from __future__ import annotations

GENERATE, OP, REFERENCE, COMPARE, DIFF = "generate", "op", "reference", "compare", "diff"
BUILD, LINT, KERNEL_DIFF = "build", "lint", "kernel-diff"

VERSIONS: dict[str, int] = {
    GENERATE: 1, OP: 1, REFERENCE: 1, COMPARE: 3, DIFF: 2, BUILD: 2, LINT: 1, KERNEL_DIFF: 1,
}  # fmt: skip
"""A new version of a stage's action re-runs all of its tasks."""
