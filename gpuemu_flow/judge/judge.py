"""Judge one case by its outputs and the reference's, in a worker process."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.cases.rule_values import without_poison
from gpuemu_flow.judge import gradients
from gpuemu_flow.judge.compare_functions import CompareFunctions
from gpuemu_flow.judge.protocol import OpTraits
from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.judge.traits import (
    Probes,
    blamed,
    overflow_notes,
    same_values,
    unsteady_output,
)
from gpuemu_flow.judge.verdicts import PASSES_UNDER, few_values, is_special
from gpuemu_flow.model.types import (
    SCALAR,
    Case,
    CheckResult,
    Failure,
    FailureKind,
    Tolerance,
    ValueRule,
    Verdict,
)
from gpuemu_flow.model.verdicts import decide
from gpuemu_flow.numerics.checked_output import SpecialInputs
from gpuemu_flow.numerics.compare import Policy, SeparateVerdict, check_outputs, check_structure
from gpuemu_flow.numerics.contract import OutputContract, default_tolerance
from gpuemu_flow.numerics.contract_statistics import tested
from gpuemu_flow.numerics.contract_views import (
    IN_PLACE,
    WITH_GRADIENTS,
    after_call,
    split_variants,
)
from gpuemu_flow.numerics.contracts import (
    CaseContracts,
    SeenOutputs,
    ViewedReference,
    declared_dtypes,
)
from gpuemu_flow.numerics.diagnose import diagnose
from gpuemu_flow.numerics.dtypes import (
    FLOAT_LIMITS,
    dtype_name,
    element_name,
    spacing,
    to_float64,
)
from gpuemu_flow.numerics.envelope import Axis, Envelope
from gpuemu_flow.numerics.finding import Finding
from gpuemu_flow.numerics.gradients import Kinks, MovedCotangents, unit_of
from gpuemu_flow.numerics.judge import BoolArray, Bound
from gpuemu_flow.numerics.operand import FLOAT32, INPUT, TENSOR_CORE, Rounding, rounding_for

Arrays = Mapping[str, NDArray[Any]]


class Reference(Protocol):
    """The reference as a function of its inputs; see `numerics.envelope.Evaluate`."""

    @property
    def has_source(self) -> bool:
        """Tell whether the reference has source from which a float32 shadow is made."""

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays:
        """Evaluate the reference and return its outputs."""


class Criteria(Struct, frozen=True):
    """The criteria of the verdict on one case's outputs; see `numerics.compare.check_outputs`."""

    tolerance: Mapping[str, Tolerance] | Envelope
    policy: Policy
    dtypes: Mapping[str, str]
    contracts: CaseContracts

    def bound(self, name: str, dtype: str) -> Tolerance | Bound:
        """Return the tolerance of one output, or the error bound under the ``auto`` tolerance."""
        own = self.contracts.tolerances.get(name)
        if own is not None:
            return own
        if isinstance(self.tolerance, Envelope):
            return self.tolerance.final(name)
        return self.tolerance.get(dtype) or default_tolerance(dtype)


class _Measured(Struct, frozen=True):
    """The tensors of the case judged last, with facts that were derived from them."""

    inputs: Arrays
    expected: Arrays
    contracts: CaseContracts
    kinks: Kinks
    envelopes: dict[tuple[tuple[str, str], ...], Envelope] = field(default_factory=dict)
    unsteady: list[Failure | None] = field(default_factory=list)


class Judge:
    """Judges the cases of one op and dtype."""

    def __init__(
        self,
        settings: CompareParams,
        expected_dtypes: Mapping[str, list[str]],
        samples: Sequence[Case],
        evaluate: Reference,
        *,
        traits: OpTraits | None = None,
        functions: CompareFunctions | None = None,
    ) -> None:
        self._functions = functions
        self._settings = settings
        self._expected_dtypes = expected_dtypes
        self._evaluate = evaluate
        self._probes = Probes(evaluate, samples)
        self.traits = traits
        self._last: _Measured | None = None
        self._tolerances = {
            dtype: Tolerance(t["atol"], t["rtol"], settings.tolerances_from)
            for dtype, t in settings.tolerances.items()
        }
        self._policy = Policy(
            nan_policy=settings.nan_policy,
            inf_policy=settings.inf_policy,
            invariants=settings.invariants,
            shape_preserved_input=settings.shape_preserved_input,
        )

    def check(
        self,
        case: Case,
        actual: Arrays,
        expected: Arrays,
        inputs: Arrays | None = None,
        *,
        explain: bool = True,
    ) -> CheckResult:
        """Return the verdict on one case's outputs; make its inputs if they are not given.

        If the outputs of a variant (`numerics.contract_views`) get a different verdict, the case is
        inconclusive. Where the variant is a right op's, too (its gradients, the inputs that it
        changed), the worse verdict counts.

        With `explain`, two more steps follow for a case that does not pass, and take longer than
        the rest. The result notes what the wrong elements have in common. The reference is
        evaluated again: if its outputs differ this time, the verdict is ``error``.
        """
        if inputs is None:
            inputs = materialise(case)
        actual, expected = self._without_scratch(actual, expected, inputs)
        result = self._check(case, actual, expected, inputs, explain=explain)
        if result.verdict not in (Verdict.FAILED, Verdict.INCONCLUSIVE) or not explain:
            return result
        measured = self._measured(case, inputs, expected)
        if not measured.unsteady:
            random = [each.name for each in self._settings.outputs if not each.plain]
            found = unsteady_output(self._evaluate, inputs, expected, random=random)
            measured.unsteady.append(found)
        (failure,) = measured.unsteady
        return result if failure is None else blamed(result, failure)

    def _without_scratch(
        self, actual: Arrays, expected: Arrays, inputs: Arrays
    ) -> tuple[Arrays, Arrays]:
        """Leave out inputs in `mutates` that the reference never changes, or that were not sent.

        What the op leaves in the others is compared with what the reference leaves in them.
        """
        left = {after_call(name): name for name in self._settings.mutates}
        unasked = set()
        for after in left.keys() & (actual.keys() | expected.keys()):
            if after not in actual or after not in expected:
                unasked.add(after)
                continue
            before = inputs[left[after]]
            if same_values(expected[after], before) and (
                same_values(actual[after], before) or left[after] not in self._traits().changes
            ):
                unasked.add(after)
        if not unasked:
            return actual, expected
        kept = [{n: a for n, a in each.items() if n not in unasked} for each in (actual, expected)]
        return kept[0], kept[1]

    def _check(
        self, case: Case, actual: Arrays, expected: Arrays, inputs: Arrays, *, explain: bool
    ) -> CheckResult:
        """Judge a case's outputs, and those of the op's variants; combine the verdicts."""
        own: Arrays
        own, variants = split_variants(actual)
        if self._settings.gradients:
            dtypes = self.allowed_dtypes(expected)
            own = gradients.with_parameters(own, expected, dtypes)
            variants = {
                label: gradients.with_parameters(outputs, expected, dtypes)
                for label, outputs in variants.items()
            }
        result = self._check_own(case, own, expected, inputs, explain=explain)
        if not variants or result.verdict not in (Verdict.PASSED, Verdict.FAILED):
            return result
        others = {
            label: self._check_own(case, outputs, expected, inputs, explain=False)
            for label, outputs in variants.items()
        }
        flips = [label for label, other in others.items() if other.verdict is not result.verdict]
        if not flips:
            return result
        label = IN_PLACE if IN_PLACE in flips else WITH_GRADIENTS
        return gradients.worse(result, others[label], label)

    def _check_own(
        self, case: Case, actual: Arrays, expected: Arrays, inputs: Arrays, *, explain: bool
    ) -> CheckResult:
        """Judge one set of outputs, without considering variants."""
        criteria = self.criteria(case, expected, inputs, actual)
        given = actual, expected
        if criteria.contracts:
            early = refused(actual, expected, criteria)
            if early is not None:
                return early
        result = self._compared(actual, expected, inputs, criteria)
        if criteria.policy.gradients and result.verdict is Verdict.FAILED:
            found = gradients.excused(result, actual, self._measured(case, inputs, expected).kinks)
            if found:
                left_out = {name: excuse.unjudged for name, excuse in found.items()}
                mended = gradients.corrected(actual, expected, found)
                result = self._compared(mended, expected, inputs, criteria, left_out)
            result = gradients.explained(result, actual, found)
        if criteria.contracts:
            actual = criteria.contracts.views(actual)
            expected = criteria.contracts.expected
        if result.verdict not in (Verdict.FAILED, Verdict.INCONCLUSIVE):
            return result
        far = self._far(case, inputs, result)
        if far:
            return replace(uncounted(result), notes=(*result.notes, far))
        if result.verdict is not Verdict.FAILED or not explain:
            return result
        findings = self._findings(case, result, actual, expected, inputs, criteria)
        fix = unused_notes(case, inputs, result)
        fix = fix or _finer_than_rounding(result, actual, criteria)
        fix = fix or self._precision_that_passes(case, *given, inputs, criteria, result)
        overflows = overflow_notes(actual, expected, inputs, self._evaluate)
        return replace(result, notes=(*overflows, *findings, *fix, *result.notes))

    def _compared(
        self,
        actual: Arrays,
        expected: Arrays,
        inputs: Arrays,
        criteria: Criteria,
        left_out: Mapping[str, BoolArray] | None = None,
    ) -> CheckResult:
        """Compare outputs; an output with a contract is judged by its contract.

        `left_out` holds, for outputs by name, a mask of the elements whose errors do not count.
        """
        contracts = criteria.contracts
        if not contracts:
            return check_outputs(
                actual,
                expected,
                tolerance=criteria.tolerance,
                policy=criteria.policy,
                expected_dtypes=criteria.dtypes,
                inputs=inputs,
                excused=left_out,
            )
        return check_outputs(
            contracts.views(actual),
            contracts.expected,
            tolerance=criteria.tolerance,
            policy=criteria.policy,
            expected_dtypes=contracts.dtypes(criteria.dtypes),
            inputs=inputs,
            seen=SeenOutputs(contracts, actual),
            excused=left_out,
            apart=[
                self._apart(contract, actual, inputs, criteria) for contract in contracts.apart()
            ],
        )

    def _apart(
        self, contract: OutputContract, actual: Arrays, inputs: Arrays, criteria: Criteria
    ) -> SeparateVerdict:
        """Judge one output by its declared distribution, or by the user's compare function."""
        name, contracts = contract.name, criteria.contracts
        values = contracts.masked(name, actual[name])
        if contract.statistics is not None:
            declared = contract.statistics
            drawn = contracts.masked(name, contracts.whole(name)) if declared.mean else None
            result = tested(name, values, contracts.means(contract), declared, drawn)
            kind, rate = FailureKind.TOLERANCE, declared.false_alarms
            failures = tuple(
                Failure(kind, f"{text} (false alarms: at most {rate:g} of cases)", name)
                for text in result.failures
            )
            without = 0 if result.count else values.size
            return SeparateVerdict(
                name, result.count or values.size, without, failures, result.note
            )
        if self._functions is None or contract.compare is None:
            raise ValueError("functions that compare run beside the reference only")
        dtype = dtype_name(actual[name].dtype) or ""
        tolerance = contract.tolerance or self._tolerances.get(dtype) or default_tolerance(dtype)
        expected = contracts.whole(name)
        answer = self._functions.ask(name, contract.compare, values, expected, inputs, tolerance)
        note = "" if answer.compared else f"nothing of {name!r} was compared, as its function says"
        count = answer.compared or values.size
        return SeparateVerdict(name, count, 0 if answer.compared else count, answer.failures, note)

    def _far(self, case: Case, inputs: Arrays, result: CheckResult) -> str:
        """Say why a case that does not pass says nothing about the op; empty if it does.

        The reason is that inputs hold numbers that no user feeds to an op that combines elements.
        """
        kinds = (FailureKind.TOLERANCE, FailureKind.NAN, FailureKind.INF)
        if any(failure.kind not in kinds for failure in result.failures):
            return ""
        special = not _is_poisoned(case) and bool(SpecialInputs(inputs))
        if self._settings.accuracy == NORM and special:
            return 'under `accuracy = "norm"` nothing is asked where inputs hold NaN or Inf'
        names = far_inputs(case, inputs)
        if not names or self._traits().exact or not self._combines(inputs):
            return ""
        return (
            f"{_listed(names)} hold{'s' * (len(names) == 1)} numbers whose squares leave the range "
            "of the dtype: this says nothing about an op that combines elements; a `range` that "
            "reaches as far makes such cases count"
        )

    def _combines(self, inputs: Arrays) -> bool:
        """Tell whether elements of the output depend on several elements of a float input."""
        return any(
            size > 1 and not self._is_separate((name, array.ndim, axis))
            for name, array in inputs.items()
            if dtype_name(array.dtype) in FLOAT_LIMITS
            for axis, size in enumerate(array.shape)
        )

    def _precision_that_passes(
        self,
        case: Case,
        actual: Arrays,
        expected: Arrays,
        inputs: Arrays,
        criteria: Criteria,
        result: CheckResult,
    ) -> list[str]:
        """Name a key under which the case would pass: `precision`, `accuracy`, else both."""
        few = few_values(result) and not is_special(result)
        if not isinstance(criteria.tolerance, Envelope) or not few:
            return []
        measured = self._measured(case, inputs, expected)
        own, wider = self._settings.precision, wider_precisions(self._settings.precision, case)
        tried = [(precision, self._settings.accuracy) for precision in wider]
        if self._settings.accuracy != NORM and self._combines(inputs):
            tried += [(precision, NORM) for precision in (own, *wider[-1:])]
        for precision, accuracy in tried:
            envelope = self._envelope(case, measured, criteria.dtypes, precision, accuracy)
            other = replace(criteria, tolerance=envelope)
            if self._compared(actual, expected, inputs, other).verdict is Verdict.PASSED:
                words = [] if precision == own else [precision_note(precision, case.dtype)]
                words += [] if accuracy == self._settings.accuracy else [NORM_NOTE]
                return [f"{PASSES_UNDER} {' and '.join(words)}; if the op is meant to, say so"]
        return []

    def criteria(
        self, case: Case, expected: Arrays, inputs: Arrays, actual: Arrays | None = None
    ) -> Criteria:
        """Choose the criteria for a case's outputs; `actual` selects among the allowed dtypes."""
        given = actual or {}
        measured = self._measured(case, inputs, expected)
        contracts = measured.contracts
        dtypes = {
            name: contracts.dtype(name) or self._dtype(name, given.get(name), values)
            for name, values in expected.items()
        }
        automatic = self._settings.tolerance == "auto" and case.dtype not in self._tolerances
        automatic = automatic and not contracts.refused
        tolerance = self._envelope(case, measured, dtypes) if automatic else None
        policy = self._policy
        if self._settings.gradients:
            policy = replace(policy, gradients=gradients.gradients_in(expected))
        return Criteria(tolerance or self._tolerances, policy, dtypes, contracts)

    def shared_policy(self, dtype: str) -> Policy | None:
        """Return the policy for comparing cases together; None if each must be judged alone."""
        settings = self._settings
        automatic = settings.tolerance == "auto" and dtype not in self._tolerances
        if settings.gradients or (automatic and self.traits is None):
            return None
        return self._policy if all(each.of_form for each in settings.outputs) else None

    def allowed_dtypes(
        self, expected: Arrays, inputs: Arrays | None = None
    ) -> dict[str, list[str]]:
        """Map each output to the dtypes that it may have, the likeliest first.

        If `inputs` are given and the output's dtype is declared, only the declared dtype is
        allowed.
        """
        declared = {} if inputs is None else declared_dtypes(self._settings.outputs, inputs)
        return {
            name: [declared[name]]
            if name in declared
            else self._expected_dtypes.get(name) or [element_name(values.dtype) or ""]
            for name, values in expected.items()
        }

    def _findings(
        self,
        case: Case,
        result: CheckResult,
        actual: Arrays,
        expected: Arrays,
        inputs: Arrays,
        criteria: Criteria,
    ) -> list[str]:
        """Describe how each output is wrong; the message names one output only."""
        outputs = {f.output: f.message for f in reversed(result.failures) if f.output in actual}
        sentences = []
        for name, message in reversed(outputs.items()):
            bound = criteria.bound(name, dtype_name(actual[name].dtype) or "")
            prefix = f"{name}: " if len(actual) > 1 else ""
            found: tuple[Finding, ...] = ()
            if not criteria.contracts.is_masked(name):  # else positions are not those in the output
                found = diagnose(
                    actual[name], expected[name], bound, inputs=inputs, plain=case.is_plain
                )
            sentences += [prefix + finding.sentence for finding in found]
            if not found and name != result.failures[0].output:
                sentences.append(message)
            unordered = [c.name for c in self._settings.outputs if c.order and c.name != name]
            if unordered and any(finding.kind in ("permuted", "reversed") for finding in found):
                which = _listed(unordered)
                sentences.append(f'{which} may be in any order: `order = "any"` says so of {name}')
        return sentences

    def _dtype(self, name: str, actual: NDArray[Any] | None, expected: NDArray[Any]) -> str:
        allowed = self.allowed_dtypes({name: expected})[name]
        own = element_name(actual.dtype) if actual is not None else None
        return own if own is not None and own in allowed else allowed[0]

    def _measured(self, case: Case, inputs: Arrays, expected: Arrays) -> _Measured:
        """Return the facts known about a case; start anew if another case was judged last."""
        last = self._last
        if last is None or last.inputs is not inputs or last.expected is not expected:
            settings = self._settings
            contracts = CaseContracts(settings.outputs, settings.input_dims, case, inputs, expected)
            unit = unit_of(case.dtype)
            kinks = Kinks(self._evaluate, inputs, expected, case.seed, unit)
            last = self._last = _Measured(inputs, expected, contracts, kinks)
        return last

    def _envelope(
        self,
        case: Case,
        last: _Measured,
        dtypes: Mapping[str, str],
        precision: str = "",
        accuracy: str = "",
    ) -> Envelope:
        """Return the error bounds (envelope) for a case's outputs.

        If an output is converted for the comparison, its bounds are for the converted values.
        `last` holds the case's tensors, and keeps its envelopes, so that none is measured twice. An
        empty `precision` or `accuracy` means the op's configured one.
        """
        precision = precision or self._settings.precision
        accuracy = accuracy or self._settings.accuracy
        key = (*sorted(dtypes.items()), (accuracy, precision))
        if key not in last.envelopes:
            traits = self._traits()
            contracts = last.contracts
            own = contracts.tolerances
            expected = {n: a for n, a in contracts.expected.items() if n not in own}
            evaluate = self._evaluate
            if self._settings.gradients:
                evaluate = MovedCotangents(evaluate, case.seed, unit_of(case.dtype))
            last.envelopes[key] = Envelope(
                last.inputs,
                expected,
                ViewedReference(evaluate, contracts) if contracts else evaluate,
                dtype=contracts.dtypes(dtypes) if contracts else dtypes,
                seed=case.seed,
                exact_op=traits.exact,
                exact_outputs=traits.exact_outputs,
                weak=traits.weak,
                rounding=rounding_for(precision, case.dtype),
                separate=self._is_separate,
                by_norm=accuracy == NORM,
                near=_compared_numbers(case, last.inputs),
            )
        return last.envelopes[key]

    def _is_separate(self, axis: Axis) -> bool:
        known = {tuple(key): separate for *key, separate in self._traits().separate}
        if axis not in known:
            known[axis] = self._probes.is_separate(axis)
            separate = [(*key, found) for key, found in known.items()]
            self.traits = replace(self._traits(), separate=separate)
        return bool(known[axis])

    def _traits(self) -> OpTraits:
        if self.traits is None:
            self.traits = self._probes.traits()
        return self.traits


def _compared_numbers(case: Case, inputs: Arrays) -> list[float]:
    """Return the numbers that an op may compare its inputs with: of the sources, and scalars."""
    found = {number for spec in case.inputs for number in spec.near}
    for spec in case.inputs:
        if spec.rule is not None and spec.rule.kind == SCALAR and inputs[spec.name].size == 1:
            found.add(float(inputs[spec.name].reshape(())))
    return sorted(found - {0.0})


def refused(actual: Arrays, expected: Arrays, criteria: Criteria) -> CheckResult | None:
    """Return the error for outputs of a wrong structure; None if they can be compared."""
    refused = criteria.contracts.refused
    if refused:
        return CheckResult(Verdict.ERROR, refused)
    structural = criteria.contracts.shape_faults(actual)
    named = {failure.output for failure in structural}
    found = check_structure(actual, expected, criteria.dtypes, element_name)
    structural += [
        failure
        for failure in found
        if failure.kind is not FailureKind.SHAPE
        or failure.output not in (named | (criteria.contracts.of_any_shape & actual.keys()))
    ]
    return CheckResult(Verdict.ERROR, tuple(structural)) if structural else None


# Suggest settings under which a failed case would pass.


FAR = {"float32": 1e18, "bfloat16": 1e18, "float64": 1e150}
"""Magnitude from which on squares, and products of a few inputs, leave a dtype's range."""

DRAWING_FAR = ("extremes", "special", "large")
"""Strategies that draw values beyond `FAR`, or below its inverse; inputs of a request are not
drawn."""


def uncounted(result: CheckResult) -> CheckResult:
    """Return the result of a case that says nothing about the op, whatever it gives."""
    verdict = decide(False, 0)
    return CheckResult(verdict, (), result.stats, result.notes, uncounted=True)


def wider_precisions(precision: str, case: Case) -> list[str]:
    """Return the wider precisions, narrowest first, that mean something for the case's dtype."""
    order = (FLOAT32, TENSOR_CORE, INPUT)
    wider = order[order.index(precision) + 1 :]
    return [name for name in wider if rounding_for(name, case.dtype) is not None]


def precision_note(precision: str, dtype: str) -> str:
    """Return a precision with what it allows."""
    what = "the result of every step" if precision == INPUT else "operands of matrix products"
    return f'`precision = "{precision}"`, where {what} may be rounded to {dtype}'


NORM = "norm"
NORM_NOTE = '`accuracy = "norm"`, where errors need be small only beside the largest element'


def _is_poisoned(case: Case) -> bool:
    """Tell whether inputs hold NaN and Inf in elements that no op may use."""
    return any(spec.rule is not None and spec.rule.unused is not None for spec in case.inputs)


def _finer_than_rounding(result: CheckResult, actual: Arrays, criteria: Criteria) -> list[str]:
    """Say that an explicit tolerance allows less than the output's dtype rounds by, if it does."""
    for failure in result.failures:
        dtype = dtype_name(actual[failure.output].dtype) if failure.output in actual else None
        given = criteria.bound(failure.output, dtype) if dtype in FLOAT_LIMITS else None
        if isinstance(given, Tolerance) and failure.expected is not None:
            allowed = given.atol + given.rtol * abs(failure.expected)
            rounding = float(spacing(np.array(failure.expected), FLOAT_LIMITS[dtype or ""])) / 2
            if 0.0 < allowed < rounding and math.isfinite(failure.expected):
                return [
                    f"the tolerance is finer than {dtype}: {allowed:.3g} at this element, where "
                    f"rounding alone changes a right result by up to {rounding:.3g}"
                ]
    return []


def unused_notes(case: Case, inputs: Arrays, result: CheckResult) -> list[str]:
    """Return a note if a result is NaN or Inf, and inputs are only in elements that are unused."""
    if not any(failure.kind in (FailureKind.NAN, FailureKind.INF) for failure in result.failures):
        return []
    holding: list[str] = []
    for spec in case.inputs:
        values = inputs.get(spec.name)
        if values is None or dtype_name(values.dtype) not in FLOAT_LIMITS:
            continue
        if np.isfinite(to_float64(values)).all():
            continue
        if spec.rule is None or spec.rule.unused is None:
            return []
        others = [inputs[name] for name in spec.rule.unused.others]
        if not np.array_equal(values, without_poison(values, spec.rule, others), equal_nan=True):
            return []
        holding.append(spec.name)
    hold = "hold" if len(holding) > 1 else "holds"
    which = f"{_listed(holding)} {hold} NaN or Inf, and only in" if holding else ""
    return [f"{which} elements that `unused` says no op uses"] if holding else []


def far_inputs(case: Case, inputs: Mapping[str, NDArray[Any]]) -> list[str]:
    """Return the inputs that hold numbers whose squares overflow or underflow, as none may want.

    Inputs whose range declares such numbers are left out.
    """
    limit = FAR.get(case.dtype)
    if limit is None:
        return []
    found = []
    for spec in case.inputs:
        rule = spec.rule or ValueRule()
        ends = [spec.low, spec.high, rule.low, rule.high]
        declared = any(not isinstance(e, str) and e is not None and abs(e) > limit for e in ends)
        drawn = spec.strategy in DRAWING_FAR and not spec.is_generated and not declared
        if drawn and spec.name in inputs and dtype_name(inputs[spec.name].dtype) in FLOAT_LIMITS:
            sizes = np.abs(to_float64(inputs[spec.name]))
            far = ((sizes > limit) & np.isfinite(sizes)) | ((sizes < 1.0 / limit) & (sizes > 0.0))
            found += [spec.name] if far.any() else []
    return found


def _listed(names: list[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
