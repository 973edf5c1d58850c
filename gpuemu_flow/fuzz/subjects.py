"""The ops of a workspace as subjects of fuzzing, reproducing, minimising and measuring."""

from __future__ import annotations

from collections.abc import Iterable

from gpuemu_flow.cases.op_schema import OpSchema, schema_from_json
from gpuemu_flow.cases.samples import op_samples
from gpuemu_flow.engine.prepare import build_code
from gpuemu_flow.engine.trust import require_trust
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.judging.subject import Subject
from gpuemu_flow.observed import Observation
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.discovered import Discovered
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec, program_of
from gpuemu_flow.tasks.generate import generators_of
from gpuemu_flow.tasks.params import GenerateParams, ReferenceParams, params_of
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class OpSubject:
    """An op in one dtype, and what its cases are made from.

    Attributes
    ----------
    subject : Subject
    schema : OpSchema
    seed : int
        The workspace's master seed.
    strategies, layouts : tuple of str
    op_key, reference_key : str
        Digests of all that decides what the two programs compute, as far as it is known before they
        run.
    judge_key : str
        Digest of all that decides a verdict besides outputs.
    op_sources, reference_sources : Discovered
        The files that the two programs are known to consist of before they run.
    """

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


def op_names(workspace: Workspace) -> list[str]:
    """Return the ops that can be run, in the order of the configuration."""
    return list(dict.fromkeys(s.subject for s in workspace.graph.tasks.values() if s.stage == "op"))


def select_ops(workspace: Workspace, names: Iterable[str]) -> list[str]:
    """Return `names`, or all ops when there are none.

    Raises
    ------
    UsageError
        ``unknown-op``, with the nearest name; ``op-skipped`` for one that cannot be run here.
    """
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
    """Return the dtypes that an op is checked in, or those of `wanted`.

    Raises
    ------
    UsageError
        ``no-such-dtype`` when the op is not checked in one of `wanted`.
    """
    known = [s.dtype for s in workspace.graph.tasks.values() if s.stage == "op" and s.subject == op]
    for dtype in wanted:
        if dtype not in known:
            raise UsageError(
                Problem(
                    "no-such-dtype", f"{op} is not checked in {dtype!r}", did_you_mean(dtype, known)
                )
            )
    return [d for d in known if not wanted or d in set(wanted)]


def op_subject(workspace: Workspace, op: str, dtype: str, *, to_run: bool = True) -> OpSubject:
    """Return one op in one dtype, ready to be tried; compiled code is built first.

    Parameters
    ----------
    workspace : Workspace
    op, dtype : str
    to_run : bool
        False for its keys only: nothing is built, and nobody is asked for trust.

    Raises
    ------
    RunnerError
        The compiler's errors.
    UsageError
        ``workspace-untrusted``.
    """
    if to_run:
        require_trust(workspace)
    tasks = workspace.graph.tasks
    generate, program, reference, compare = (
        tasks[f"{stage}:{op}:{dtype}"] for stage in ("generate", "op", "reference", "compare")
    )
    for spec in (program, reference) if to_run else ():
        build_code(workspace, spec)
    schema = schema_from_json(generate.settings["schema"])
    params = params_of(GenerateParams, generate.params)
    states = workspace.states()

    def key(part: Json, task: str) -> str:
        parts = states.static_parts(tasks[task])
        code = parts.input.get(stages.CODE, "")
        return digest_json(
            [part, parts.stage, dict(parts.code), code, parts.params, dict(parts.env)]
        )

    def sources(spec: TaskSpec) -> Discovered:
        paths = frozenset(str(workspace.root / path) for path in spec.sources)
        given = program_of(spec.settings).given
        return workspace.inputs.discover(Observation(files=paths), given)

    samples = op_samples(
        schema,
        seed=params.samples_seed,
        dtype=dtype,
        strategies=params.strategies,
        layouts=params.layouts,
    )
    return OpSubject(
        Subject(
            name=op,
            dtype=dtype,
            op=program_of(program.settings),
            reference=program_of(reference.settings),
            compare=params_of(CompareParams, compare.params),
            samples=samples,
            reference_dtype=params_of(ReferenceParams, reference.params).dtype,
            generators=generators_of(generate.settings),
        ),
        schema,
        params.seed,
        tuple(params.strategies),
        tuple(params.layouts),
        op_key=key("op", program.name),
        reference_key=key("reference", reference.name),
        judge_key=digest_json(
            [
                compare.version,
                compare.params.to_json(),
                [c.identity() for c in samples],
                *([key("generate", generate.name)] if generate.sources else []),
            ]
        ),
        op_sources=sources(program),
        reference_sources=sources(reference),
    )
