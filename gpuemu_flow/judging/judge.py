"""The verdict on one case, from its outputs and the reference's; runs in a worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.judging.params import CompareParams
from gpuemu_flow.judging.verdicts import comparison_failed
from gpuemu_flow.numerics.checked_output import SpecialInputs
from gpuemu_flow.numerics.compare import Policy, check_outputs
from gpuemu_flow.numerics.diagnose import diagnose
from gpuemu_flow.numerics.dtypes import dtype_name
from gpuemu_flow.numerics.envelope import (
    Envelope,
    build_envelope,
    is_exact_op,
    shadow_is_faithful,
)
from gpuemu_flow.numerics.operand import Rounding, rounding_for
from gpuemu_flow.numerics.tolerances import default_tolerance
from gpuemu_flow.numerics.variants import split_variants
from gpuemu_flow.runners.api import RunError
from gpuemu_flow.types import DTYPES, Case, CheckResult, Tolerance, Verdict

Arrays = Mapping[str, NDArray[Any]]


class Reference(Protocol):
    """The reference as a function of its inputs; see `numerics.envelope.Evaluate`."""

    @property
    def has_source(self) -> bool:
        """Tell whether it has a float32 shadow."""

    def __call__(
        self, inputs: Arrays, *, shadow: bool = False, rounding: Rounding | None = None
    ) -> Arrays:
        """Its outputs."""


@dataclass(frozen=True)
class OpTraits:
    """Traits of an op that the ``auto`` tolerance depends on.

    Attributes
    ----------
    exact : bool
        It computes without rounding: copies, comparisons, selections.
    weak : bool
        The reference cannot be evaluated in float32 arithmetic.
    """

    exact: bool
    weak: bool


@dataclass(frozen=True)
class Criteria:
    """Arguments by which `numerics.compare.check_outputs` judges one case's outputs."""

    tolerance: Mapping[str, Tolerance] | Envelope
    policy: Policy
    dtypes: Mapping[str, str]


@dataclass(frozen=True)
class _Measured:
    """The latest case's tensors, and their envelopes by the dtypes of the outputs."""

    inputs: Arrays
    expected: Arrays
    envelopes: dict[tuple[tuple[str, str], ...], Envelope] = field(default_factory=dict)


class Judge:
    """Judges the cases of one op and dtype.

    Parameters
    ----------
    settings : CompareParams
    expected_dtypes : mapping of output name to list of dtype names
        Dtypes that the reference manifest allows for each output; the op chooses among them.
    samples : sequence of Case
        See `cases.samples`: on their shapes, with plain values, the op's nature is decided, so
        that all of its cases are judged alike.
    evaluate : Reference
        Asked only under the ``auto`` tolerance, and only where the cheap bound
        does not prove a case.
    traits : OpTraits, optional
        Traits that another judge of the same op found out.

    Attributes
    ----------
    traits : OpTraits or None
        None until a case needed it.
    """

    def __init__(
        self,
        settings: CompareParams,
        expected_dtypes: Mapping[str, list[str]],
        samples: Sequence[Case],
        evaluate: Reference,
        *,
        traits: OpTraits | None = None,
    ) -> None:
        self._settings = settings
        self._expected_dtypes = expected_dtypes
        self._evaluate = evaluate
        self._samples = samples
        self.traits = traits
        self._last: _Measured | None = None
        self._tolerances = {
            dtype: Tolerance(t["atol"], t["rtol"], "gpuemu.toml")
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

        Without `explain` the notes do not say what the wrong elements have in common, which takes
        longer than all else. Outputs of variants (`numerics.variants`) are judged too: where one
        has another verdict, there is none.
        """
        if inputs is None:
            inputs = materialise(case)
        own, variants = split_variants(actual)
        result = self._check_own(case, own, expected, inputs, explain=explain)
        if not variants or result.verdict not in (Verdict.PASSED, Verdict.FAILED):
            return result
        flips = [
            label
            for label, outputs in variants.items()
            if self._check_own(case, outputs, expected, inputs, explain=False).verdict
            is not result.verdict
        ]
        if not flips:
            return result
        notes = [f"{result.verdict.value} as it stands, but not with {label}" for label in flips]
        return CheckResult(Verdict.INCONCLUSIVE, (), result.stats, (*notes, *result.notes))

    def _check_own(
        self, case: Case, actual: Arrays, expected: Arrays, inputs: Arrays, *, explain: bool
    ) -> CheckResult:
        """The verdict on one set of outputs."""
        criteria = self.criteria(case, expected, inputs, actual)
        result = check_outputs(
            actual,
            expected,
            tolerance=criteria.tolerance,
            policy=criteria.policy,
            expected_dtypes=criteria.dtypes,
            inputs=inputs,
        )
        if result.verdict is not Verdict.FAILED or not explain:
            return result
        findings = self._findings(result, actual, expected, inputs, criteria.tolerance)
        fix = self._policy_that_passes(actual, expected, inputs, criteria)
        return replace(result, notes=(*findings, *fix, *result.notes))

    def _policy_that_passes(
        self, actual: Arrays, expected: Arrays, inputs: Arrays, criteria: Criteria
    ) -> list[str]:
        """Suggest what to write where only NaN and Inf differ, in a case that feeds them."""
        if not SpecialInputs(inputs):
            return []
        for names in (("nan_policy",), ("inf_policy",), ("nan_policy", "inf_policy")):
            ignored: dict[str, Any] = dict.fromkeys(names, "ignore")
            policy = replace(criteria.policy, **ignored)
            result = check_outputs(
                actual,
                expected,
                tolerance=criteria.tolerance,
                policy=policy,
                expected_dtypes=criteria.dtypes,
                inputs=inputs,
            )
            if result.verdict is not Verdict.FAILED:
                keys = " and ".join(f'`{name} = "ignore"`' for name in names)
                return [f"nothing but NaN and Inf differs; if that is meant, {keys} for this op"]
        return []

    def criteria(
        self, case: Case, expected: Arrays, inputs: Arrays, actual: Arrays | None = None
    ) -> Criteria:
        """Choose the criteria of a case's outputs; `actual` decides among several dtypes."""
        given = actual or {}
        dtypes = {
            name: self._dtype(name, given.get(name), values) for name, values in expected.items()
        }
        automatic = self._settings.tolerance == "auto" and case.dtype not in self._tolerances
        tolerance = self._envelope(case, inputs, expected, dtypes) if automatic else None
        return Criteria(tolerance or self._tolerances, self._policy, dtypes)

    def allowed_dtypes(self, expected: Arrays) -> dict[str, list[str]]:
        """Return the dtypes that each output may have, the likeliest first."""
        return {
            name: self._expected_dtypes.get(name) or [dtype_name(values.dtype) or ""]
            for name, values in expected.items()
        }

    def _findings(
        self,
        result: CheckResult,
        actual: Arrays,
        expected: Arrays,
        inputs: Arrays,
        tolerance: Mapping[str, Tolerance] | Envelope,
    ) -> list[str]:
        """Describe the wrong elements beside their numbers."""
        outputs = dict.fromkeys(f.output for f in result.failures if f.output in actual)
        sentences = []
        for name in outputs:
            dtype = dtype_name(actual[name].dtype) or ""
            bound = (
                tolerance.settled(name)
                if isinstance(tolerance, Envelope)
                else tolerance.get(dtype) or default_tolerance(dtype)
            )
            prefix = f"{name}: " if len(actual) > 1 else ""
            sentences += [
                prefix + finding.sentence
                for finding in diagnose(actual[name], expected[name], bound, inputs=inputs)
            ]
        return sentences

    def _dtype(self, name: str, actual: NDArray[Any] | None, expected: NDArray[Any]) -> str:
        allowed = self.allowed_dtypes({name: expected})[name]
        own = dtype_name(actual.dtype) if actual is not None else None
        return own if own is not None and own in allowed else allowed[0]

    def _envelope(
        self, case: Case, inputs: Arrays, expected: Arrays, dtypes: Mapping[str, str]
    ) -> Envelope:
        """Of the case, or what is known of it from judging other outputs of the same one."""
        last = self._last
        if last is None or last.inputs is not inputs or last.expected is not expected:
            last = self._last = _Measured(inputs, expected)
        key = tuple(sorted(dtypes.items()))
        if key not in last.envelopes:
            traits = self._traits()
            last.envelopes[key] = build_envelope(
                inputs,
                expected,
                self._evaluate,
                dtype=dtypes,
                seed=case.seed,
                exact_op=traits.exact,
                weak=traits.weak,
                rounding=rounding_for(self._settings.precision, case.dtype),
            )
        return last.envelopes[key]

    def _traits(self) -> OpTraits:
        if self.traits is None:
            samples = [_plain_inputs(case) for case in self._samples]
            exact = is_exact_op(self._evaluate, samples)
            shadowed = self._evaluate.has_source and (
                exact or shadow_is_faithful(self._evaluate, samples)
            )
            self.traits = OpTraits(exact, weak=not shadowed)
        return self.traits


def _plain_inputs(case: Case) -> dict[str, NDArray[Any]]:
    """The case's shapes with ``normal`` values in float32 at most."""
    plain = tuple(
        replace(
            spec,
            strategy="normal",
            layout="contiguous",
            dtype="float32" if DTYPES[spec.dtype].kind == "float" else spec.dtype,
        )
        for spec in case.inputs
    )
    return materialise(replace(case, inputs=plain))


def judge_case(
    judge: Judge,
    case: Case,
    actual: Arrays,
    expected: Arrays,
    inputs: Arrays | None = None,
    *,
    explain: bool = True,
) -> CheckResult:
    """Return the verdict on one case's outputs; an error if `Judge.check` does not finish."""
    try:
        return judge.check(case, actual, expected, inputs, explain=explain)
    except Exception as error:
        return comparison_failed(RunError("reference-failed", str(error)))
    except BaseException as error:  # the reference may raise anything
        text = f"{type(error).__name__}: {error}"
        return comparison_failed(RunError("reference-failed", text))
