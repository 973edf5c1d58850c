"""Build outdated compiled code before an op is executed outside of a task, such as by fuzzing."""

from __future__ import annotations

import threading

from gpuemu_flow.engine.events import Listener
from gpuemu_flow.engine.trust import require_trust
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, RunnerError
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext, TaskSpec

_one_at_a_time = threading.Lock()


def build_code(workspace: Workspace, spec: TaskSpec, graph: Graph | None = None) -> None:
    """Build the files that a task's program needs: compiled code, and outputs of build rules.

    Nothing is built if the task needs no such files, or if they are up to date.

    Raises RunnerError: The compiler's errors; ``kernel-not-built`` if the compiler reported none.
    """
    wanted = [source.task for source in spec.inputs if stages.is_needed(source.role)]
    if not wanted:
        return
    graph = graph or workspace.graph
    with _one_at_a_time:
        names = graph.upstream(wanted)
        states = workspace.states()
        tasks = [task for name, task in graph.tasks.items() if name in names]
        if any(states.reasons(task, states.parts(task)) for task in tasks):
            _execute(workspace, graph, names)
            if any(states.record(name) is None for name in wanted):
                message = f"the code that {spec.name} runs could not be built"
                raise RunnerError(
                    Problem("kernel-not-built", message, "`gpuemu-flow run` says why")
                )


def _execute(workspace: Workspace, graph: Graph, names: set[str]) -> None:
    from gpuemu_flow.engine.run import Executor  # noqa: PLC0415 - doit only when tasks may run
    from gpuemu_flow.runners.pool import Pool  # noqa: PLC0415

    require_trust(workspace)
    workspace.cache.create()
    with Pool(1, staging=workspace.cache.staging) as pool:
        context = StageContext(
            root=workspace.root,
            cache=workspace.cache,
            pool=pool,
            environment=workspace.environment,
            inputs=workspace.inputs,
        )
        execution = Executor(graph, context, workspace.states(), Listener(), jobs=1).run(names)
    if execution.problems:
        raise RunnerError(*execution.problems)
