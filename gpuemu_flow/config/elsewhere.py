"""Find keys in a wrong table if ignoring these keys would weaken a check or the sandbox."""

from __future__ import annotations

from functools import partial

from gpuemu_flow.config.keys import is_meant
from gpuemu_flow.config.report import OwningTable
from gpuemu_flow.config.tables import FILE, POLICIES, VALIDATION
from gpuemu_flow.config.tables_kernels import ARTIFACT_CHECKS
from gpuemu_flow.config.tables_ops import OP
from gpuemu_flow.config.tables_sandbox import SANDBOX
from gpuemu_flow.config.vocabulary import TOLERANCE

_ABOUT_RUNS = {"seed", "fuzz_iterations", "cause_budget"}
_TABLES = {"kernels", "ops", "policies", "rules", "sandbox", "validation"}
_OF_OPS = {
    "depends",
    "deterministic",
    "forbid",
    "gradients",
    "invariants",
    "mutates",
    "reference_dtype",
    "require_kernel",
    "schema",
    "shared",
}


def _elsewhere() -> dict[str, list[OwningTable]]:
    """Map names of keys to the tables to which the keys belong.

    The keys are those that would weaken a check or the sandbox if they were ignored.
    """
    found: dict[str, list[OwningTable]] = {}
    for table, section, names in (
        ("[sandbox]", SANDBOX, {key.name for key in SANDBOX.keys}),
        ("[validation]", VALIDATION, {key.name for key in VALIDATION.keys} - _ABOUT_RUNS),
        ("[[ops]]", OP, _OF_OPS),
        ("[policies]", POLICIES, {key.name for key in POLICIES.keys} - {"rules"}),
        ("[kernels.artifact_checks]", ARTIFACT_CHECKS, {*ARTIFACT_CHECKS.by_name}),
        ("[validation.tolerances], per dtype", TOLERANCE, {"atol", "rtol"}),
        ("the file itself", FILE, _TABLES),
    ):
        for name in names:
            found.setdefault(name, []).append(
                OwningTable(table, partial(is_meant, section.by_name[name].type))
            )
    return found


ELSEWHERE = _elsewhere()
