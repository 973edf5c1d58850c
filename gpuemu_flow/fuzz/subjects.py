"""The ops of a workspace as subjects of fuzzing, reproducing, minimising and measuring."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.build.graph import Graph, Listener
from gpuemu_flow.build.session import require_trust
from gpuemu_flow.build.states import as_inputs, revealed, without
from gpuemu_flow.build.unordered import RuleOutputs
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import iterate_cases, op_samples
from gpuemu_flow.judge.case_evaluator import CaseEvaluator, open_evaluator
from gpuemu_flow.judge.protocol import ReferenceFacts
from gpuemu_flow.judge.subject import CompareParams, Subject
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError, did_you_mean
from gpuemu_flow.model.types import Case, Json, Observation
from gpuemu_flow.store.keys import Discovered, KnownInputs, digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    GenerateParams,
    ReferenceParams,
    StageContext,
    TaskSpec,
    params_of,
    program_of,
)
from gpuemu_flow.tasks.generate import generators_of
from gpuemu_flow.workers.pool import Pool


class OpTasks(Struct, frozen=True):
    """The tasks of one op in one dtype; the op's subject is made from them."""

    generate: TaskSpec
    op: TaskSpec
    reference: TaskSpec
    compare: TaskSpec

    @property
    def schema(self) -> OpSchema:
        return convert(self.generate.settings["schema"], OpSchema)

    def samples(self) -> list[Case]:
        """Plan the sample cases on which the op's traits (`OpTraits`) are decided. Raises
        FlowError: The schema allows no cases."""
        params = params_of(GenerateParams, self.generate.params)
        return op_samples(
            self.schema,
            seed=params.samples_seed,
            dtype=params.dtype,
            strategies=params.strategies,
            layouts=params.layouts,
        )


def tasks_of(graph: Graph, op: str, dtype: str) -> OpTasks:
    """Return the tasks of one op in one dtype from a graph that contains these tasks."""
    stage_names = (stages.GENERATE, stages.OP, stages.REFERENCE, stages.COMPARE)
    return OpTasks(*(graph.tasks[f"{stage}:{op}:{dtype}"] for stage in stage_names))


def make_subject(tasks: OpTasks, samples: Sequence[Case]) -> Subject:
    """Make the subject of an op in one dtype, in the same way for commands, daemon and clients."""
    return Subject(
        name=tasks.op.subject,
        dtype=tasks.op.dtype,
        op=program_of(tasks.op.settings),
        reference=program_of(tasks.reference.settings),
        compare=params_of(CompareParams, tasks.compare.params),
        samples=samples,
        reference_dtype=params_of(ReferenceParams, tasks.reference.params).dtype,
        generators=generators_of(tasks.generate.settings),
    )


class OpSubject(Struct, frozen=True):
    """An op in one dtype, with the settings from which its cases are made."""

    subject: Subject
    schema: OpSchema
    seed: int
    strategies: tuple[str, ...]
    layouts: tuple[str, ...]
    op_key: str
    reference_key: str
    judge_key: str
    op_sources: Discovered
    reference_sources: Discovered
    others: RuleOutputs
    hidden: tuple[str, ...] = ()
    known: tuple[str, ...] | None = None

    def cases(
        self,
        *,
        seed: int | None = None,
        strategies: Sequence[str] = (),
        layouts: Sequence[str] = (),
    ) -> Iterator[Case]:
        return iterate_cases(
            self.schema,
            seed=self.seed if seed is None else seed,
            dtype=self.subject.dtype,
            strategies=strategies or self.strategies,
            layouts=layouts or self.layouts,
        )


def op_names(workspace: Workspace) -> list[str]:
    return list(dict.fromkeys(s.subject for s in workspace.graph.tasks.values() if s.stage == "op"))


def select_ops(workspace: Workspace, names: Iterable[str]) -> list[str]:
    """Return the ops with these names; without names, return all ops that can be run. Raises
    UsageError: ``unknown-op``, with the most similar name; ``op-skipped`` for an op that cannot be
    run here."""
    known = op_names(workspace)
    skipped = {skip.op: skip.reason for skip in workspace.graph.skips}
    problems = []
    chosen = list(dict.fromkeys(names)) or known
    for name in chosen:
        if name in skipped and name not in known:
            problems.append(Problem("op-skipped", f"{name} cannot be run here: {skipped[name]}"))
        elif name not in known:
            problems.append(Problem("unknown-op", f"no op {name!r}", did_you_mean(name, known)))
    if problems:
        raise UsageError(*problems)
    return chosen


def dtypes_of(workspace: Workspace, op: str, wanted: Iterable[str] = ()) -> list[str]:
    """Return the dtypes in which an op is checked; if `wanted` is not empty, only those in it.
    Raises UsageError: ``no-such-dtype`` if the op is not checked in all of `wanted`."""
    known = [s.dtype for s in workspace.graph.tasks.values() if s.stage == "op" and s.subject == op]
    for dtype in wanted:
        if dtype not in known:
            raise UsageError(
                Problem(
                    "no-such-dtype", f"{op} is not checked in {dtype!r}", did_you_mean(dtype, known)
                )
            )
    return [d for d in known if not wanted or d in set(wanted)]


def op_subject(
    workspace: Workspace, op: str, dtype: str, *, to_run: bool = True, learned: bool = True
) -> OpSubject:
    """Return one op in one dtype, ready to be run; compiled code is built first. Raises
    RunnerError: The compiler's errors. Raises UsageError: ``workspace-untrusted``."""
    if to_run:
        require_trust(workspace)
    tasks = tasks_of(workspace.graph, op, dtype)
    for spec in (tasks.op, tasks.reference) if to_run else ():
        build_code(workspace, spec)
    params = params_of(GenerateParams, tasks.generate.params)
    states = workspace.states()

    def key(part: Json, spec: TaskSpec, hidden: Sequence[str] = ()) -> str:
        parts = states.static_parts(spec)
        made = {role: digest for role, digest in parts.input.items() if stages.is_made(role)}
        made |= as_inputs(hidden)
        return digest_json(
            [part, parts.stage, dict(parts.code), made, parts.params, dict(parts.env)]
        )

    reference_key = key("reference", tasks.reference)
    hidden: list[str] = []
    if learned and tasks.op.judge:
        judge = states.made_from(tasks.op.judge)
        used = Discovered() if judge is None else judge.discovered
        asked = params_of(ReferenceParams, tasks.reference.params).dtype
        key_of_outputs = outputs_key(reference_key, dtype, asked)
        for names in KnownInputs(workspace.cache.actions, key_of_outputs, workspace.inputs).sets():
            used |= names
        hidden = revealed(used, tasks.op.known, workspace.root)
        settings = without(tasks.op.settings, hidden, workspace.root)
        tasks = replace(tasks, op=replace(tasks.op, settings=settings))

    def sources(spec: TaskSpec) -> Discovered:
        paths = frozenset(str(workspace.root / path) for path in spec.sources)
        given = program_of(spec.settings).given
        return workspace.inputs.discover(Observation(files=paths), given)

    samples = tasks.samples()
    return OpSubject(
        make_subject(tasks, samples),
        tasks.schema,
        params.seed,
        tuple(params.strategies),
        tuple(params.layouts),
        op_key=key("op", tasks.op, hidden),
        reference_key=reference_key,
        judge_key=digest_json(
            [
                tasks.compare.version,
                tasks.compare.params,
                [c.identity() for c in samples],
                *([key("generate", tasks.generate)] if tasks.generate.sources else []),
            ]
        ),
        op_sources=sources(tasks.op),
        reference_sources=sources(tasks.reference),
        others=RuleOutputs.not_awaited(workspace.graph, workspace.root, op),
        hidden=tuple(hidden),
        known=tasks.op.known if learned and tasks.op.judge else None,
    )


@contextmanager
def open_ordered(
    workspace: Workspace,
    pool: Pool,
    subject: Subject,
    cancel: Event | None = None,
    *,
    facts: ReferenceFacts | None = None,
) -> Iterator[CaseEvaluator]:
    """Open warm programs of an op in a context, which checks at its end which files they used.
    Results from inside the context are valid only if leaving it raises no error."""
    others = RuleOutputs.not_awaited(workspace.graph, workspace.root, subject.name)
    with open_evaluator(pool, subject, cancel, facts=facts) as evaluator:
        yield evaluator
        others.refuse_seen(evaluator.observed(), workspace.inputs)


def outputs_key(reference_key: str, dtype: str, reference_dtype: str | None) -> str:
    """Return a digest of everything, except the case, that decides a reference's outputs."""
    return digest_json([reference_key, dtype, reference_dtype])


# Build outdated compiled code before an op is executed outside of a task, such as by fuzzing.


_one_at_a_time = threading.Lock()


def build_code(workspace: Workspace, spec: TaskSpec, graph: Graph | None = None) -> None:
    """Build the files that a task's program needs: compiled code, and outputs of build rules.
    Nothing is built if the task needs no such files, or if they are up to date. Raises RunnerError:
    The compiler's errors; ``kernel-not-built`` if the compiler reported none."""
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
    from gpuemu_flow.build.run import Executor  # noqa: PLC0415 - doit only when tasks may run

    require_trust(workspace)
    workspace.cache.create()
    with Pool(1) as pool:
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
