"""Judge in the reference's worker, so that almost no tensor is copied between processes.

For each case, the service makes the inputs, and copies them to memory that it shares with the op's
worker. It runs the reference while the op runs, and judges the op's outputs in the shared memory.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import converted, materialise, materialise_each
from gpuemu_flow.judge import gradients
from gpuemu_flow.judge.compare_functions import CompareError, CompareFunctions
from gpuemu_flow.judge.judge import Judge, refused
from gpuemu_flow.judge.protocol import (
    AnyAsk,
    EvaluateReference,
    Expected,
    GiveExpected,
    Judged,
    JudgePrepared,
    JudgeThere,
    Prepare,
    ReferenceFacts,
    Setup,
    Slots,
)
from gpuemu_flow.judge.subject import expected_dtypes, own_dtypes, probe_case
from gpuemu_flow.judge.verdicts import comparison_failed
from gpuemu_flow.model.decoding import convert, known
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    Failure,
    FailureKind,
    Json,
    MeasuredErrors,
    Verdict,
    dtypes_to_try,
)
from gpuemu_flow.numerics.calibrate import NOT_MEASURED, measured_outputs, observe
from gpuemu_flow.numerics.compare import MOST_CASES, MOST_ELEMENTS, Form, check_batch, form_of
from gpuemu_flow.numerics.single import single, staying_single
from gpuemu_flow.workers.api import Outcome, OutputInfo, RunError, Slot, end_of
from gpuemu_flow.workers.arena import Arena, changed_inputs
from gpuemu_flow.workers.arguments import begin_call
from gpuemu_flow.workers.jobs import ServiceContext
from gpuemu_flow.workers.limits import lift_memory_limit
from gpuemu_flow.workers.tensors import element_type

Arrays = dict[str, NDArray[Any]]


class _Item(Struct):
    """One case of a request, with the reference's outputs or exception; see `PreparedBatch`."""

    case: Case
    inputs: Arrays
    given: Slots | None = None
    widens: bool = False
    expected: Arrays | None = None
    failed: BaseException | None = None


class JudgeService:
    """Judges the cases of one op and dtype; see `workers.jobs.WorkerService`."""

    def __init__(self, setup: Json) -> None:
        self._setup = convert(setup, Setup)
        self._facts = self._setup.facts
        self._judge: Judge | None = None
        self._items: list[_Item] = []

    def answer(self, method: str, payload: Json, context: ServiceContext) -> Json:
        """Answer one request of `protocol`. Raises BaseException: The reference's exception, if the
        request concerns a single case."""
        ask = convert(payload, AnyAsk)
        if isinstance(ask, Prepare):
            answer: object = self._prepare(ask, context)
        elif isinstance(ask, EvaluateReference):
            answer = self._evaluate(ask, context)
        elif isinstance(ask, JudgeThere):
            answer = self._judge_there(ask, context)
        elif isinstance(ask, GiveExpected):
            answer = self._give_expected(ask, context)
        else:
            answer = self._judge_prepared(ask, context)
        return to_builtins(answer, enc_hook=_number)

    def _evaluate(self, ask: EvaluateReference, context: ServiceContext) -> Slots:
        """Run the reference, or its shadow, on the inputs of a request. The shadow is the
        reference's source with float64 replaced by float32."""
        inputs = _copied(context.own, ask.slots)
        if not ask.single:
            outputs = context.evaluate(inputs, shadow=ask.shadow, rounding=ask.rounding)
        else:
            with staying_single():
                outputs = context.evaluate(single(inputs), shadow=ask.shadow, rounding=ask.rounding)
        return context.own.write(outputs)

    def _prepare(self, ask: Prepare, context: ServiceContext) -> list[Slots] | None:
        """Make the cases' inputs, or copy the inputs that came with the request. If another process
        needs the inputs, write them to shared memory, and return their positions."""
        widens = self._setup.widens and ask.widens
        peer = context.peer if ask.give else None
        made: Iterable[Arrays] = materialise_each(ask.cases)
        if not ask.by_seed:
            made = [_copied(context.own, ask.slots)]
        self._items = []
        given = []
        start = 0
        for case, inputs in zip(ask.cases, made, strict=True):
            item = _Item(case, inputs, widens=widens)
            self._items.append(item)
            if peer is not None:
                item.given = peer.write(inputs, start=start, keep_layout=True)
                start = end_of(item.given)
                given.append(item.given)
        return given if peer is not None else None

    def go_on(self, context: ServiceContext) -> None:
        """Run the reference on a single case, while the op runs in its own process. If there are
        several cases, do nothing: the reference then runs on each case just before the case is
        judged, so that the tensors are still in the processor's cache."""
        if len(self._items) == 1:
            self._fill_expected(self._items[0], context)

    def _fill_expected(self, item: _Item, context: ServiceContext) -> None:
        if item.expected is None and item.failed is None:
            try:
                item.expected = self._run_reference(item, context)
            except BaseException as error:  # reported when the result is requested
                item.failed = error

    def _run_reference(self, item: _Item, context: ServiceContext) -> Arrays:
        """Run the reference on copies of the inputs, in the first dtype that it accepts."""
        *earlier, last = dtypes_to_try(widened=item.widens)
        for dtype in earlier:
            with suppress(BaseException):  # programs may raise anything
                return self._run_in(dtype, item, context)
        return self._run_in(last, item, context)

    def _run_in(self, dtype: str | None, item: _Item, context: ServiceContext) -> Arrays:
        inputs = self._own_inputs(item, dtype)
        return _in_order(context.run(inputs, item.case.seed))

    def _only_expected(self) -> Arrays:
        (item,) = self._items
        if item.failed is not None:
            raise item.failed
        if item.expected is None:
            raise ValueError("the case was not prepared")
        return item.expected

    def _give_expected(self, ask: GiveExpected, context: ServiceContext) -> Expected:
        expected = self._only_expected()
        if not ask.bring:
            return Expected()
        inputs = self._items[0].inputs
        allowed = self._made_judge(context, expected).allowed_dtypes(expected, inputs)
        return Expected(context.own.write(expected), allowed)

    def _judge_prepared(self, ask: JudgePrepared, context: ServiceContext) -> Judged:
        """Judge the prepared cases that have outputs. A case that needs a separate request, because
        the reference failed, gets None as its result."""
        places, arena = ask.places, context.peer
        if places is None or arena is None:
            places, arena = [ask.slots], context.own
        if len(self._items) == 1:
            self._only_expected()
        changed: list[tuple[Failure, ...]] = []
        measured: list[tuple[MeasuredErrors, ...]] = []
        verdicts = self._verdicts(context, explain=ask.explain)
        for item, place in zip(self._items, places, strict=False):
            self._fill_expected(item, context)
            changed.append(_changed(item, context.peer) if ask.watch else ())
            actual = arena.read(place)
            self._add(verdicts, item, actual, context, submitted=ask.submitted)
            measured.append(self._errors(item, actual) if ask.submitted else ())
            if len(self._items) > 1:
                item.expected = None
        return Judged(_with_errors(verdicts, measured), self._found_out(), changed)

    def _judge_there(self, ask: JudgeThere, context: ServiceContext) -> Judged:
        """Judge cases whose outputs came with the request."""
        self._items = []
        verdicts = self._verdicts(context, explain=True)
        if ask.expected:
            # The reference only serves the comparison, so its memory limit does not apply.
            lift_memory_limit()
            np.random.seed(0)  # so that a verdict does not depend on the cases before
        measured: list[tuple[MeasuredErrors, ...]] = []
        for number, case in enumerate(ask.cases):
            inputs, outputs = (
                {name: ask.slots[key] for name, key in keys[number].items()}
                for keys in (ask.inputs, ask.outputs)
            )
            actual = context.own.read(outputs)
            if ask.expected:
                keys = ask.expected[number]
                expected = context.own.read({name: ask.slots[key] for name, key in keys.items()})
                laid = materialise(case, context.own.views(inputs))
                verdicts.add(Ran(case, actual, expected, laid))
                measured.append(())
                continue
            item = _Item(case, _copied(context.own, inputs), widens=self._setup.widens)
            self._fill_expected(item, context)
            self._add(verdicts, item, actual, context, submitted=True)
            measured.append(self._errors(item, actual))
        return Judged(_with_errors(verdicts, measured), self._found_out())

    def _errors(self, item: _Item, actual: Arrays) -> tuple[MeasuredErrors, ...]:
        """Measure the errors of a case, from which `calibrate` suggests a tolerance."""
        if item.expected is None or item.case.strategy in NOT_MEASURED:
            return ()
        contracts = self._setup.compare.outputs
        given = {
            name: actual[name]
            for name in measured_outputs(contracts, actual)
            if name in item.expected and actual[name].shape == item.expected[name].shape
        }
        return tuple(observe(given, item.expected))

    def _add(
        self,
        verdicts: Verdicts,
        item: _Item,
        actual: Arrays,
        context: ServiceContext,
        *,
        submitted: bool,
    ) -> None:
        """Judge a case if the reference gave outputs; submitted ones may lack gradients."""
        if item.expected is None:
            verdicts.skip()
        elif submitted and self._setup.compare.gradients:
            judge = self._made_judge(context, item.expected)
            told = gradients.as_submitted(actual, item.expected)
            result = judge_case(judge, item.case, actual, told, item.inputs)
            verdicts.put(gradients.half_judged(result, told, item.expected))
        else:
            verdicts.add(Ran(item.case, actual, item.expected, item.inputs))

    def _verdicts(self, context: ServiceContext, *, explain: bool) -> Verdicts:
        return Verdicts(lambda expected: self._made_judge(context, expected), explain=explain)

    def _found_out(self) -> ReferenceFacts:
        """Return the facts about the reference that are known by now."""
        traits = self._judge.traits if self._judge is not None else None
        if traits is not None:
            self._facts = replace(self._facts, traits=traits)
        return self._facts

    def _own_inputs(self, item: _Item, input_dtype: str | None) -> Arrays:
        """Return copies of the inputs; convert those of the case's float type to `input_dtype`."""
        begin_call(input_dtype or self._setup.dtype)
        wide = converted(item.inputs, self._setup.dtype, input_dtype)
        return {
            name: array.copy(order="K") if array is item.inputs[name] else array
            for name, array in wide.items()
        }

    def _probe(self, context: ServiceContext) -> Outcome:
        """Run the reference on a sample in the case's dtype; return its outcome. If the reference
        fails, or probing is switched off, the outcome is an error."""
        refused = Outcome(0, ok=False, error=RunError("op-exception", "it gives nothing"))
        if not self._setup.probes:
            return refused
        case = probe_case(self._setup.samples)
        try:
            begin_call(case.dtype)
            return _outcome(context.run(materialise(case), case.seed))
        except BaseException:  # programs may raise anything
            return refused

    def _made_judge(self, context: ServiceContext, expected: Mapping[str, NDArray[Any]]) -> Judge:
        if self._judge is None:
            setup, allowed = self._setup, self._facts.allowed or {}
            if not allowed:
                ran = _outcome(expected)
                allowed = (
                    expected_dtypes(self._probe(context), [ran], setup.dtype)
                    if setup.widens
                    else own_dtypes(ran, setup.dtype)
                )
            self._facts = replace(self._facts, allowed=allowed)
            self._judge = Judge(
                setup.compare,
                allowed,
                setup.samples,
                context.evaluate,
                traits=self._facts.traits,
                functions=CompareFunctions(context.evaluate.program),
            )
        return self._judge


def _with_errors(
    verdicts: Verdicts, measured: Sequence[tuple[MeasuredErrors, ...]]
) -> list[CheckResult | None]:
    return [
        replace(result, measured=errors) if result is not None and errors else result
        for result, errors in zip(verdicts.finish(), measured, strict=True)
    ]


def _number(value: Any) -> Json:
    """Return the Python number of one of numpy's."""
    return value.item()


def _changed(item: _Item, arena: Arena | None) -> tuple[Failure, ...]:
    """Compare the op's inputs with private copies; return a failure for each change."""
    if item.given is None or arena is None:
        return ()
    return tuple(changed_inputs(item.inputs, arena.views(item.given)))


def _in_order(outputs: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return outputs in the order and layout of blobs: sorted by name, each array in C order.
    Raises TypeError: An output has an unknown dtype."""
    for array in outputs.values():
        element_type(array)
    return {name: np.asarray(outputs[name], order="C") for name in sorted(outputs)}


def _outcome(outputs: Mapping[str, NDArray[Any]]) -> Outcome:
    infos = tuple(OutputInfo(n, a.shape, element_type(a)) for n, a in sorted(outputs.items()))
    return Outcome(0, ok=True, outputs=infos)


def _copied(arena: Arena, slots: Mapping[str, Slot]) -> Arrays:
    """Copy tensors, with their layouts, out of memory that other processes can write to."""
    return {name: array.copy(order="K") for name, array in arena.views(slots).items()}


# Judge one case, or many together, by comparing the op's outputs with the reference's.


FEWEST = 3
"""Minimum number of cases for which comparing them together is faster than one by one."""


class Ran(Struct, frozen=True):
    """A case on which both op and reference have run."""

    case: Case
    actual: Mapping[str, NDArray[Any]]
    expected: Mapping[str, NDArray[Any]]
    inputs: Mapping[str, NDArray[Any]]


def judge_cases(judge: Judge, ran: Sequence[Ran], *, explain: bool = True) -> list[CheckResult]:
    """Return the verdicts on several cases, equal to those of `judge_case`."""
    results = _passed_together(judge, ran)
    return [
        judge_case(judge, one.case, one.actual, one.expected, one.inputs, explain=explain)
        if result is None
        else result
        for one, result in zip(ran, results, strict=True)
    ]


def _passed_together(judge: Judge, ran: Sequence[Ran]) -> list[CheckResult | None]:
    """Compare cases of equal structure together, and return one item for each case. The item is the
    case's result if the case passed. It is None if the case must be judged alone."""
    results: list[CheckResult | None] = [None] * len(ran)
    forms: dict[Form, list[int]] = {}
    for number, one in enumerate(ran):
        policy = judge.shared_policy(one.case.dtype)
        if policy is None:
            continue
        form = form_of(one.case, one.actual, one.expected, one.inputs, policy)
        if form is not None:
            forms.setdefault(form, []).append(number)
    for form, numbers in forms.items():
        for start in range(0, len(numbers), MOST_CASES):
            some = numbers[start : start + MOST_CASES]
            if len(some) < FEWEST:
                continue
            for number, result in zip(
                some, _checked(judge, form, [ran[n] for n in some]), strict=True
            ):
                results[number] = result
    return results


def _checked(judge: Judge, form: Form, ran: Sequence[Ran]) -> list[CheckResult | None]:
    first, name = ran[0], form.name
    criteria = judge.criteria(first.case, first.expected, first.inputs, first.actual)
    contracts = criteria.contracts
    if contracts and not (
        contracts.of_form and refused(first.actual, first.expected, criteria) is None
    ):
        return [None] * len(ran)
    return check_batch(
        form,
        [one.actual[name] for one in ran],
        [one.expected[name] for one in ran],
        [one.inputs for one in ran],
        dtype=criteria.dtypes[name],
        tolerance=criteria.tolerance,
    )


class Verdicts:
    """Collects verdicts in the order of the cases; small cases wait until they are judged
    together."""

    def __init__(
        self, made_judge: Callable[[Mapping[str, NDArray[Any]]], Judge], *, explain: bool
    ) -> None:
        self._made_judge = made_judge
        self._explain = explain
        self._results: list[CheckResult | None] = []
        self._waiting: list[tuple[int, Ran]] = []

    def skip(self) -> None:
        self._results.append(None)

    def put(self, result: CheckResult) -> None:
        self._results.append(result)

    def add(self, ran: Ran) -> None:
        small = _is_small(ran)
        if small:  # copy: the reference's next call may overwrite its results
            kept = {name: array.copy() for name, array in ran.expected.items()}
            ran = Ran(ran.case, ran.actual, kept, ran.inputs)
        self._waiting.append((len(self._results), ran))
        self._results.append(None)
        if not small or len(self._waiting) == MOST_CASES:
            self._judge()

    def finish(self) -> list[CheckResult | None]:
        """Judge the waiting cases, and return all verdicts; None for skipped cases."""
        self._judge()
        return self._results

    def _judge(self) -> None:
        if not self._waiting:
            return
        judge = self._made_judge(self._waiting[0][1].expected)
        found = judge_cases(judge, [ran for _, ran in self._waiting], explain=self._explain)
        for (number, _), result in zip(self._waiting, found, strict=True):
            self._results[number] = result
        self._waiting.clear()


def _is_small(ran: Ran) -> bool:
    """Tell whether a case's tensors are small enough to stay in the processor's cache."""
    size = 0
    for arrays in (ran.expected, ran.inputs):
        for array in arrays.values():
            size += array.size
    return size <= 2 * MOST_ELEMENTS


def judge_case(
    judge: Judge,
    case: Case,
    actual: Mapping[str, NDArray[Any]],
    expected: Mapping[str, NDArray[Any]],
    inputs: Mapping[str, NDArray[Any]] | None = None,
    *,
    explain: bool = True,
) -> CheckResult:
    """Return the verdict on one case's outputs; if `Judge.check` raises, return an error result."""
    try:
        return judge.check(case, actual, expected, inputs, explain=explain)
    except CompareError as error:
        return CheckResult(Verdict.ERROR, (error.failure,))
    except FlowError as error:
        return comparison_failed(RunError("reference-failed", str(error)))
    except Exception as error:
        return _own_fault(error)
    except BaseException as error:  # the reference may raise anything
        text = f"{type(error).__name__}: {error}"
        return comparison_failed(RunError("reference-failed", text))


def _own_fault(error: Exception) -> CheckResult:
    """Return the verdict on a case if our comparison raised, and not the reference in it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    fault = RunError(
        "comparison-failed",
        f"the comparison itself failed: {type(error).__name__}: {error} ({place})",
        "hint: report it with the op and this line; it says nothing about the op",
    )
    failure = Failure(FailureKind.REFERENCE, fault.message, why=fault.slug, place=place)
    return CheckResult(Verdict.ERROR, (failure,), notes=(fault.hint,))


for _each in (Setup, AnyAsk):
    known(_each)  # takes milliseconds: once here, before processes are forked
