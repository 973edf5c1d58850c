"""Find references that import the op that they check."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuemu_flow.errors import Problem
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec

if TYPE_CHECKING:
    from gpuemu_flow.config.model import Config


def dependent_references(config: Config, tasks: Iterable[TaskSpec]) -> list[Problem]:
    """Return a warning for each op whose reference imports the file of the op.

    Such a reference may return the op's own results. The op would then pass whatever it computes.
    """
    imported = {spec.subject: spec.sources for spec in tasks if spec.stage == stages.REFERENCE}
    found = []
    for op in config.ops:
        file = op.op.relative if op.op is not None else ""
        if file and file != op.reference.relative and file in imported.get(op.name, ()):
            text = f"the reference of {op.name} imports {file}, which is the op"
            hint = "what the op gets wrong may then be wrong in both: move what both need elsewhere"
            found.append(Problem("reference-imports-op", text, hint, warning=True))
    return found
