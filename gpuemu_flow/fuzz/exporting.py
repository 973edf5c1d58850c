"""Export a recorded failure as a pytest file that runs without this tool."""

from __future__ import annotations

from pathlib import Path

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.fuzz.failures import stored_inputs, subject_for
from gpuemu_flow.fuzz.subjects import open_ordered
from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.numerics.gradients import gradient_name
from gpuemu_flow.reports.export_outputs import Expectation
from gpuemu_flow.reports.pytest_export import render
from gpuemu_flow.runners.pool import Pool
from gpuemu_flow.store.failures import FailureRecord, FailureStore
from gpuemu_flow.types import Case


def export_pytest(workspace: Workspace, record: FailureRecord, output: Path | None) -> Path:
    """Write a failure as a pytest file that runs without this tool, and return its path.

    Raises
    ------
    UsageError
        ``export-contract``: the outputs are compared in a way that needs this tool.
    StoreError
        ``failure-inputs-lost``.
    RunnerError
        ``reference-failed``; ``needs-missing``.
    """
    folder, name = Path.cwd(), ""
    if output is not None:
        folder, name = (output, "") if output.is_dir() else (output.parent, output.name)
    store = FailureStore(workspace.cache)
    workspace.cache.create()
    subject, _ = subject_for(workspace, record)
    inputs = stored_inputs(store, record)
    case = Case.from_json(record.case)
    with (
        Pool(SESSIONS_PER_EVALUATOR, staging=workspace.cache.staging) as pool,
        open_ordered(workspace, pool, subject) as evaluator,
    ):
        prepared = evaluator.prepare(case, inputs)
        case, inputs = prepared.case, dict(prepared.inputs)
        elsewhere = [c.name for c in subject.compare.outputs if not c.plain]
        elsewhere += map(gradient_name, subject.compare.gradients)
        if elsewhere:
            names = ", ".join(map(repr, elsewhere))
            message = f"how {names} of {record.op} is compared cannot be said without this tool"
            hint = f"run `gpuemu-flow reproduce {record.id}`"
            raise UsageError(Problem("export-contract", message, hint))
        criteria = evaluator.judge_of(prepared).criteria(case, prepared.expected, inputs)
        expectation = Expectation(
            prepared.expected,
            criteria.tolerance,
            criteria.policy,
            prepared.allowed,
            criteria.contracts.tolerances,
        )
        # Rendering measures the envelope, for which the reference is still needed.
        export = render(
            record, subject.op, inputs, expectation, folder=folder.resolve(), file_name=name
        )
    return export.write(folder)
