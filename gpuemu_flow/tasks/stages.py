"""Names and versions of the stages, in a module that is cheap to import."""

from __future__ import annotations

GENERATE, OP, REFERENCE, COMPARE, DIFF = "generate", "op", "reference", "compare", "diff"
BUILD, LINT, KERNEL_DIFF, CODE = "build", "lint", "kernel-diff", "code"

VERSIONS: dict[str, int] = {
    GENERATE: 2, OP: 2, REFERENCE: 2, COMPARE: 5, DIFF: 2, BUILD: 2, LINT: 1, KERNEL_DIFF: 1,
    CODE: 1,
}  # fmt: skip
"""Versions of the manifests. What re-runs tasks is the digest of our own code, not these."""
