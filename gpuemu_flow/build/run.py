"""Run tasks with doit's scheduler and thread runner, and with our own states and workers."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import itertools
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from doit.control import TaskControl
from doit.dependency import Dependency, DependencyStatus
from doit.exceptions import TaskFailed, UnmetDependency
from doit.reporter import ZeroReporter
from doit.runner import MThreadRunner
from doit.task import Stream, Task
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.build.graph import Graph, Listener, TaskEvent
from gpuemu_flow.build.signals import WAKE_SECONDS, on_signals
from gpuemu_flow.build.states import TaskStates, as_inputs, hidden_by, without_hidden
from gpuemu_flow.model.errors import FlowError, Problem, RunnerError
from gpuemu_flow.model.types import Json, Verdict
from gpuemu_flow.store.keys import Discovered, KeyParts
from gpuemu_flow.store.private_files import FAILING_ERRNOS, PrivateFolder, disk_problem
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import Interrupted, StageContext, StageResult, TaskSpec

_ATTEMPTS = 3
_MOST_KEPT = 4 << 20  # bytes, as stored, of results that are in memory for the next stages
_TICKS = 50


def _consists_of(parts: KeyParts) -> dict[str, str]:
    """Return digests of a program's sources and of the built files that it needs. Built files are
    compiled code and outputs of rules. The keys are the paths of sources, and the roles of built
    files. Each file that is hidden from the program has an entry, too, with a fixed word in place
    of a digest."""
    made = {role: digest for role, digest in parts.input.items() if stages.is_made(role)}
    return {**parts.code, **made, **as_inputs(hidden_by(parts.input))}


_MODULES = {
    stages.GENERATE: "generate",
    stages.OP: "programs:run_op",
    stages.REFERENCE: "programs:run_reference",
    stages.COMPARE: "compare",
    stages.DIFF: "diff",
    stages.BUILD: "build_kernel",
    stages.RULE: "build_rule",
    stages.CODE: "kernel_code",
    stages.LINT: "lint",
    stages.KERNEL_DIFF: "diff_kernel",
}
"""The module in `tasks` of each stage, imported only when a task of it runs, and its function if
that is not `run`."""
_OF_PROGRAMS = (stages.OP, stages.REFERENCE, stages.COMPARE)
_OF_RESULTS = (stages.DIFF, stages.CODE, stages.LINT, stages.KERNEL_DIFF)


def act(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    """Run a task's action; `parts` are those of its key that need no observed inputs."""
    module, _, function = _MODULES[spec.stage].partition(":")
    stage = importlib.import_module(f"gpuemu_flow.tasks.{module}")
    run: Callable[..., StageResult] = getattr(stage, function or "run")
    if spec.stage in _OF_RESULTS:
        return run(spec, context)
    given = _consists_of(parts) if spec.stage in _OF_PROGRAMS else parts
    return run(spec, context, given)


class Execution(Struct):
    """The outcome of each task that was considered."""

    status: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    interrupted: bool = False
    broken: dict[str, tuple[Problem, ...]] = field(default_factory=dict)


class _Reporter(ZeroReporter):  # type: ignore[misc]  # doit has no types
    """Passes doit's events to our listener."""

    def __init__(
        self, execution: Execution, listener: Listener, log_path: Callable[[str], Path]
    ) -> None:
        super().__init__(io.StringIO(), {})
        self._execution = execution
        self._listener = listener
        self._log_path = log_path

    def execute_task(self, task: Task) -> None:
        self._listener.on_task(TaskEvent(task.name, "started"))

    def add_success(self, task: Task) -> None:
        status = "ran" if task.values["executed"] else "restored"
        self._finish(task, status)

    def skip_uptodate(self, task: Task) -> None:
        self._finish(task, "current")

    def add_failure(self, task: Task, fail: Any) -> None:
        self._finish(task, "failed")
        if isinstance(fail, _Failed):
            self._execution.problems.extend(fail.flow_problems)
            if fail.flow_problems:  # without any, it was interrupted
                self._execution.broken[task.name] = tuple(fail.flow_problems)
        elif not isinstance(fail, UnmetDependency):  # that one has been reported where it began
            lines = str(fail.get_msg()).strip().splitlines()
            self._write_log(task.name, "\n".join(lines))
            self._execution.problems.append(
                Problem(
                    "task-broke",
                    f"{task.name}: {lines[-1] if lines else fail!r}",
                    "this is a fault of gpuemu-flow; its log has the traceback",
                    file=str(self._log_path(task.name)),
                )
            )

    def _write_log(self, task: str, text: str) -> None:
        with contextlib.suppress(OSError):
            path = self._log_path(task)
            files = PrivateFolder(path.parents[1])  # a log lies at ``logs/NAME.log``
            files.write(path, f"{text}\n".encode())

    def _finish(self, task: Task, status: str) -> None:
        self._execution.status[task.name] = status
        self._listener.on_task(TaskEvent(task.name, status))


class _WakingQueue(queue.Queue[Any]):
    """A queue whose `get` wakes up periodically, so that signal handlers can run."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while block and timeout is None:
            with contextlib.suppress(queue.Empty):
                return super().get(timeout=WAKE_SECONDS)
        return super().get(block, timeout)


class _Runner(MThreadRunner):  # type: ignore[misc]  # doit has no types
    """doit's thread runner. The threads only wait for worker processes."""

    Queue = _WakingQueue

    def stop(self) -> None:
        self._stop_running = True

    def finish(self) -> int:
        return int(self.final_result)


class _Failed(TaskFailed):  # type: ignore[misc]  # doit has no types
    """The failure of a task, with its problems as data."""

    def __init__(self, name: str, problems: tuple[Problem, ...]) -> None:
        super().__init__(f"{name} failed")
        self.flow_problems = problems


class FlowDependency(Dependency):  # type: ignore[misc]  # doit has no types
    """doit's interface to `TaskStates`. doit's own class keeps its state in memory until the end,
    so that a killed run loses everything. It also trusts equal mtimes, and checks only that a
    target exists, not its content."""

    def __init__(
        self,
        states: TaskStates,
        specs: Mapping[str, TaskSpec],
        forced: Collection[str],
        results: dict[str, Mapping[str, object]],
    ) -> None:
        """Put the contents that are stored into `results`, and take out the oldest."""
        # The base class opens a database of its own; none of its attributes are used.
        self._results = results
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._states = states
        self._specs = specs
        self._forced = forced
        self.parts: dict[str, KeyParts] = {}
        self.made: dict[
            str, StageResult
        ] = {}  # until they are stored: doit keeps values to its end

    def get_status(self, task: Task, tasks_dict: Any, get_log: bool = False) -> DependencyStatus:
        """Return ``run`` or ``up-to-date``, and keep the task's key for `save`."""
        spec = self._specs[task.name]
        parts = self.parts[task.name] = self._states.parts(spec)
        task.dep_changed = []
        result = DependencyStatus(get_log)
        stale = task.name in self._forced or self._states.reasons(spec, parts)
        result.status = "run" if stale else "up-to-date"
        return result

    def save_success(self, task: Task, result_hash: object = None) -> None:
        """Store the success of one task."""
        self.save(self._specs[task.name], self.made.pop(task.name))

    def save(self, spec: TaskSpec, result: StageResult) -> None:
        before = self._states.record(spec.name)
        values = with_real_duration(
            result.values, {} if before is None else before.values, executed=result.executed
        )
        size = self._states.save(spec, self.parts[spec.name], result, values)
        with self._lock:
            self._results[spec.name] = result.content
            self._sizes[spec.name] = size
            while sum(self._sizes.values()) > _MOST_KEPT:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest], self._results[oldest]

    def remove_success(self, task: Task) -> None:
        """Delete the record of a task that failed."""
        self._states.forget(task.name)

    def status_is_ignore(self, task: Task) -> bool:
        """Return False: no task is ever ignored."""
        return False

    def get_values(self, task_name: str) -> dict[str, Json]:
        """Return {}: no task uses another one's values."""
        return {}

    def close(self) -> None:
        """Do nothing: everything is already on disk."""


def _written_meanwhile(names: Discovered, moved: Sequence[str]) -> Discovered:
    reasons = {f"{name} is written to whenever it runs" for name in moved}
    return replace(names, untracked=names.untracked | reasons)


class Executor:
    """Executes a set of tasks of one graph."""

    def __init__(
        self,
        graph: Graph,
        context: StageContext,
        states: TaskStates,
        listener: Listener,
        *,
        jobs: int,
        fail_fast: bool = False,
        forced: Collection[str] = (),
    ) -> None:
        self._graph = graph
        self._context = context
        self._listener = listener
        self._jobs = max(1, jobs)
        self._fail_fast = fail_fast
        self._states = states
        self._forced = frozenset(forced)
        self._dependency = FlowDependency(states, graph.tasks, self._forced, context.results)
        self._runner: _Runner | None = None
        self._repeated: set[str] = set()

    def run(self, names: set[str]) -> Execution:
        """Run the members of `names` that are not current, in dependency order. A task is not run
        if its key is unchanged after all, because the stage before it gave the same output as
        before."""
        execution = Execution()
        if not names:
            return execution
        seconds = known_durations(self._states, names) if len(names) > 1 else {}
        order = longest_first(self._graph, names, seconds)
        if not seconds:
            order = spread(self._graph, order, 2 * self._jobs)  # some are faster than others
        control = TaskControl([self._task(name, names) for name in order])
        control.process(None)
        self._runner = _Runner(
            self._dependency,
            _Reporter(execution, self._listener, self._context.cache.log_path),
            continue_=True,
            always_execute=self._context.force,
            stream=Stream(0),
            num_process=min(self._jobs, len(order)),
        )
        try:
            with on_signals(self.interrupt):
                self._runner.run_all(control.task_dispatcher())
        except KeyboardInterrupt:
            self.interrupt()
        execution.status.update(dict.fromkeys(self._repeated, "ran"))
        execution.interrupted = self._context.cancel.is_set()
        return execution

    def _task(self, name: str, names: set[str]) -> Task:
        spec = self._graph.tasks[name]
        return Task(
            name,
            [(self._act, (spec,))],
            task_dep=[*self._before(spec, names), *(n for n in spec.reads if n in names)],
            io={"capture": False},
        )

    def _before(self, spec: TaskSpec, names: set[str]) -> list[str]:
        """Return the reference's task, in a list, if `spec` is an op whose reference has to run.
        The files that the reference is then seen to use are hidden from the op."""
        return [spec.judge] if spec.stage == stages.OP and spec.judge in names else []

    def _act(self, spec: TaskSpec) -> dict[str, Json] | _Failed:
        try:
            if spec.stage == stages.COMPARE:
                self._run_again_if_revealed(spec)
            result = self._act_on_one_state(spec)
        except Interrupted:
            return _Failed(spec.name, ())
        except FlowError as error:
            return _Failed(spec.name, error.problems)
        except OSError as error:
            if error.errno not in FAILING_ERRNOS:
                raise
            place = error.filename or self._context.cache.folder
            return _Failed(spec.name, (disk_problem(error, place),))
        if (
            self._fail_fast
            and spec.stage in (stages.COMPARE, stages.LINT)
            and self._runner is not None
            and result.values.get("verdict") in (Verdict.FAILED.value, Verdict.ERROR.value)
        ):
            self._runner.stop()
        self._dependency.made[spec.name] = result
        return {"executed": result.executed}

    def _run_again_if_revealed(self, judging: TaskSpec) -> None:
        """Run the op of the comparison `judging` again if it could read files of the reference.
        Which files a reference loads may become known only when it runs. The second run of the op
        has no access to them."""
        names = [source.task for source in judging.inputs if source.role == stages.OP]
        for spec in map(self._graph.tasks.__getitem__, names):
            made = self._states.made_from(spec.name)
            now = hidden_by(self._states.static_parts(spec).input)
            if made is not None and hidden_by(made.parts["input"]) != now:
                self._dependency.save(spec, self._act_on_one_state(spec))
                self._repeated.add(spec.name)

    def _act_on_one_state(self, spec: TaskSpec) -> StageResult:
        """Run a task's action, and repeat it if a source or an observed input changed meanwhile.
        Otherwise, the result could be stored under a key computed from other sources. Raises
        RunnerError: ``sources-changing`` if sources changed during each of several attempts."""
        for left in reversed(range(_ATTEMPTS)):
            begun = self._context.inputs.now()
            parts = self._states.static_parts(spec)
            unchanged = functools.partial(self._unchanged, spec, parts, begun)
            context = msgspec.structs.replace(
                self._context,
                unchanged=unchanged,
                packages=self._states.packages(spec),
                force=self._context.force or spec.name in self._forced,
            )
            task = spec
            if spec.judge:
                settings = without_hidden(spec.stage, spec.settings, parts, context.root)
                task = msgspec.structs.replace(spec, settings=settings)
            result = act(task, context, parts)
            if not unchanged():
                continue
            moved = self._context.inputs.moved(result.discovered, begun)
            if moved and left:
                self._wait_until_after(begun)
                continue
            if moved:  # the program itself probably wrote them, since the sources are unchanged
                result = msgspec.structs.replace(
                    result, discovered=_written_meanwhile(result.discovered, moved)
                )
            self._dependency.parts[spec.name] = replace(
                parts, observed=self._context.inputs.parts(result.discovered)
            )
            return result
        raise RunnerError(
            Problem(
                "sources-changing",
                f"{spec.name}: its sources changed while it ran, {_ATTEMPTS} times",
                "run again when nothing writes to them",
            )
        )

    def _wait_until_after(self, begun: int) -> None:
        """Wait briefly until the file system's clock is past `begun`, when an attempt began. The
        clock has ticks of some ms, and an attempt that only restores results is very quick. Without
        the wait, all attempts at a task could fall into the one tick in which a package is
        installed or a link is replaced. The task would then fail."""
        for _ in range(_TICKS):
            if self._context.inputs.now() > begun:
                return
            time.sleep(0.001)

    def _unchanged(self, spec: TaskSpec, parts: KeyParts, begun: int) -> bool:
        names = Discovered(files=frozenset(spec.sources))
        same = self._states.code(spec) == parts.code
        return same and not self._context.inputs.moved(names, begun)

    def interrupt(self) -> None:
        self._context.cancel.set()
        if self._runner is not None:
            self._runner.stop()


# Use the durations of earlier runs to order tasks.


def known_durations(states: TaskStates, names: Collection[str]) -> dict[str, float]:
    found = {name: states.duration(name) for name in names}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


def with_real_duration(
    values: Mapping[str, Json], before: Mapping[str, Json], *, executed: bool
) -> Mapping[str, Json]:
    """Return a task's values with the duration of all its work, including work of earlier runs.

    In the result, ``duration_s`` is the sum of two durations:

    - For the cases that were run now: ``duration_s`` in `values`.
    - For the restored cases, which were run earlier: ``duration_s`` of the task's last success,
      divided by its number of cases and multiplied by the number of restored cases.

    If no case was restored, or if a duration is unknown, `values` are returned unchanged. A task
    without cases is treated as one case.
    """
    cases, known_cases = values.get("cases", 1), before.get("cases", 1)
    ran = values.get("executed", int(executed))
    known, took = before.get("duration_s"), values.get("duration_s")
    if took is None or known is None or ran >= cases or not known_cases:
        return values
    kept = known if (ran, cases) == (0, known_cases) else known / known_cases * (cases - ran)
    return {**values, "duration_s": kept + took if ran else kept}


def spread(graph: Graph, order: Sequence[str], count: int) -> list[str]:
    """Let `count` ops take turns, so that tasks which run at a time are of different ops. The
    dtypes of an op share a worker of its reference, one after another."""
    ops: dict[str, dict[str, list[str]]] = {}
    for name in order:
        spec = graph.tasks[name]
        ops.setdefault(spec.subject, {}).setdefault(spec.dtype, []).append(name)
    found: list[str] = []
    left = [list(dtypes.values()) for dtypes in ops.values()]
    for start in range(0, len(left), count):
        for turn in itertools.zip_longest(*left[start : start + count], fillvalue=()):
            found += itertools.chain(*turn)
    return found


def longest_first(graph: Graph, names: Collection[str], seconds: Mapping[str, float]) -> list[str]:
    """Order tasks by the longest path that begins at each task, longest first. On a path, each task
    reads the output of the previous one. The length of a path is the sum of its tasks' durations.
    Starting long paths early shortens the run. Tasks with equally long paths keep the order of the
    graph."""
    order = [name for name in graph.tasks if name in names]
    if not seconds:
        return order
    ways: dict[str, float] = {}
    for name in reversed(order):
        after = [ways[reader] for reader in graph.readers(name) if reader in ways]
        ways[name] = seconds.get(name, 0.0) + max(after, default=0.0)
    return sorted(order, key=lambda name: -ways[name])
