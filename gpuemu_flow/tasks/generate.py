"""Stage ``generate``: plan the cases of an op from its schema and a seed.

Reads the configuration, and calls the user's generator functions. Writes the cases as data,
including the generator functions' values. Other tensors are not made here: each worker makes the
same bits from the case.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from gpuemu_flow.cases.generated_values import case_fault
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import SAMPLED, plan_cases, sample_cases
from gpuemu_flow.judge.generated import usable, with_generated
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import CancelledRunError
from gpuemu_flow.model.observed import Observation
from gpuemu_flow.model.types import Case, Json
from gpuemu_flow.store.discovered import Discovered, KnownInputs
from gpuemu_flow.store.keys import KeyParts, digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import (
    Interrupted,
    StageContext,
    StageResult,
    TaskSpec,
    resolved,
)
from gpuemu_flow.tasks.params import GenerateParams, params_of
from gpuemu_flow.workers.api import Program

STAGE = stages.GENERATE
VERSION = stages.VERSIONS[STAGE]


def run(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    """Plan the cases of one op and dtype."""
    params = params_of(GenerateParams, spec.params)
    cases, samples = _planned(convert(spec.settings["schema"], OpSchema), spec.dtype, params)
    used = Discovered()
    executed = True
    generators = generators_of(spec.settings)
    cached = (
        _SharedCases(spec, context, parts, generators) if generators and context.shared else None
    )
    known = None if cached is None else cached.find()
    if cached is not None and known is not None:
        cases, samples = known
        used, executed = cached.used, False
    elif generators:
        context.about_to_run()
        seen: list[Observation] = []
        try:
            filled = with_generated(
                context.pool,
                generators,
                [*cases, *samples],
                cancel=context.cancel,
                on_observed=seen.append,
            )
        except CancelledRunError:
            raise Interrupted from None
        cases, samples = filled[: len(cases)], usable(filled[len(cases) :])
        sources = Observation(files=frozenset(str(context.root / path) for path in spec.sources))
        given = next(iter(generators.values())).given
        for each in (sources, *seen):
            used |= context.inputs.discover(each, given)
        if cached is not None:
            cached.store(cases, samples, used)
    content = {
        "stage": STAGE,
        "version": VERSION,
        "cases": [case.to_json() for case in cases],
        "samples": [case.to_json() for case in samples],
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


class _SharedCases:
    """A shared cache's entries for the cases of a task with generator functions."""

    def __init__(
        self,
        spec: TaskSpec,
        context: StageContext,
        parts: KeyParts,
        generators: Mapping[str, Program],
    ) -> None:
        self._context = context
        self._inputs = context.inputs
        self._known = KnownInputs(
            context.cache.actions,
            digest_json([parts.key(), spec.dtype, spec.settings["schema"]]),
            context.inputs,
        )
        self._names = next(iter(generators.values())).given.names
        self._begun = context.inputs.now()
        self.used = Discovered()

    def find(self) -> tuple[list[Case], list[Case]] | None:
        """Return the stored cases and samples for the present inputs; None if there are none."""
        cache = self._context.shared
        if cache is None or self._context.force:
            return None
        for names in cache.sets(self._known.place, self._names):
            key = self._known.key(names)
            cache.fetch([key])
            data = self._context.cache.actions.get(key)
            try:
                if data is not None:
                    found = [[Case.from_json(each) for each in part] for part in data]
                    self.used = names
                    return found[0], found[1]
            except (AttributeError, IndexError, KeyError, TypeError, ValueError):
                continue
        return None

    def store(self, cases: Sequence[Case], samples: Sequence[Case], used: Discovered) -> None:
        """Store the cases, unless a generator failed or its inputs are uncertain.

        `used` holds the inputs that the generators were seen to use. They are uncertain if one of
        them changed after the creation of this object, or if not all use could be observed.
        """
        cache, context = self._context.shared, self._context
        sound = not any(map(case_fault, [*cases, *samples])) and not used.untracked
        if cache is None or not cache.writes or not sound:
            return
        if not context.unchanged() or self._inputs.moved(used, self._begun):
            return
        key = self._known.key(used)
        content = [[case.to_json() for case in part] for part in (cases, samples)]
        cache.store_set(self._known.place, used, self._names)
        cache.store([key], {key: content}, [])


def generators_of(settings: Mapping[str, Json]) -> dict[str, Program]:
    """Return the generator functions in a task's settings, by their labels."""
    found = settings.get("generators", {})
    return {label: resolved(convert(program, Program)) for label, program in found.items()}
