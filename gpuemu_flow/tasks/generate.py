"""Stage ``generate``: plan the cases of an op from its schema and a seed.

Reads the configuration, and calls the user's generator functions. Writes the cases as data,
including the generator functions' values. Other tensors are not made here: each worker makes the
same bits from the case.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from msgspec import ValidationError, to_builtins

from gpuemu_flow.cases.generated_values import case_fault, usable
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import SAMPLED, plan_cases, sample_cases
from gpuemu_flow.judge.known import KnownResults
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.types import Case, Json, Observation
from gpuemu_flow.store.keys import Discovered, KeyParts, digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    GenerateParams,
    Interrupted,
    StageContext,
    StageResult,
    TaskSpec,
    params_of,
    resolved,
)
from gpuemu_flow.workers.api import Program

STAGE = stages.GENERATE
VERSION = stages.VERSIONS[STAGE]
Filled = tuple[list[Case], list[Case]]
"""Cases and sample cases with the values that the user's functions return."""
_ALL = {0: ""}  # what the one result of a task is about


def run(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    """Plan the cases of one op and dtype."""
    params = params_of(GenerateParams, spec.params)
    cases, samples = _planned(convert(spec.settings["schema"], OpSchema), spec.dtype, params)
    used = Discovered()
    executed = True
    generators = generators_of(spec.settings)
    if generators:
        cases, samples, used, executed = _filled(spec, context, parts, generators, cases, samples)
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": cases,
        "samples": samples,
    }
    return StageResult(
        content,
        complete=not any(case_fault(case) for case in cases),
        executed=executed,
        values={"cases": len(cases)},
        discovered=used,
    )


def _planned(schema: OpSchema, dtype: str, params: GenerateParams) -> tuple[list[Case], list[Case]]:
    """Return the planned cases, and the sample cases from which the op's traits are found."""
    plan = functools.partial(
        plan_cases, schema, dtype=dtype, strategies=params.strategies, layouts=params.layouts
    )
    if params.seed == params.samples_seed:  # the shorter plan is the beginning of the longer one
        longer = plan(seed=params.seed, count=max(params.count, SAMPLED))
        return longer[: params.count], sample_cases(longer)
    samples = sample_cases(plan(seed=params.samples_seed, count=SAMPLED))
    return plan(seed=params.seed, count=params.count), samples


def _filled(
    spec: TaskSpec,
    context: StageContext,
    parts: KeyParts,
    generators: Mapping[str, Program],
    cases: list[Case],
    samples: list[Case],
) -> tuple[list[Case], list[Case], Discovered, bool]:
    """Return cases and samples with the values of the user's functions, and the inputs of these.
    The last result is false if all come from a shared cache, whose entries hold no failures."""
    from gpuemu_flow.judge.generated import with_generated  # noqa: PLC0415 - few ops have them

    given = next(iter(generators.values())).given
    sources = Observation(files=frozenset(str(context.root / path) for path in spec.sources))
    known = KnownResults(
        context.cache.actions,
        digest_json([parts.key(), spec.dtype, spec.settings["schema"]]),
        context.inputs,
        context.inputs.discover(sources, given),
        read=_read,
        write=to_builtins,
        unchanged=context.unchanged,
    )
    found: dict[int, Filled] = {}
    if not context.force:
        known.fetch(context.shared, given, _ALL, found)
    if found:
        return *found[0], known.inputs.used, False
    try:
        filled = with_generated(
            context.pool,
            generators,
            [*cases, *samples],
            cancel=context.cancel,
            on_observed=lambda seen: known.learn(seen, given),
        )
    except CancelledRunError:
        raise Interrupted from None
    made = filled[: len(cases)], usable(filled[len(cases) :])
    if not any(map(case_fault, filled)):
        known.share(context.shared, given, _ALL, {0: made})
    return *made, known.inputs.names, True


def _read(data: Json) -> Filled | None:
    try:
        return None if data is None else convert(data, Filled)
    except ValidationError:
        return None


def generators_of(settings: Mapping[str, Json]) -> dict[str, Program]:
    """Return the generator functions in a task's settings, by their labels."""
    found = settings.get("generators", {})
    return {label: resolved(convert(program, Program)) for label, program in found.items()}
