"""What is asked of the judge in the reference's worker, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field

from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model.types import Case, CheckResult, Failure
from gpuemu_flow.numerics.operand import Rounding
from gpuemu_flow.workers.api import Slot

Slots = dict[str, Slot]


class OpTraits(Struct, frozen=True):
    """Traits of an op on which the ``auto`` tolerance depends."""

    exact: bool
    weak: bool
    exact_outputs: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()  # the inputs in `mutates` that the reference changes
    # An input's name, its number of axes, an axis, and whether the op does not combine elements
    # along it; found when first needed, see `envelope.is_separate`
    separate: Sequence[Sequence[Any]] = ()


class ReferenceFacts(Struct, frozen=True):
    """What was found out about a reference, and holds for all cases."""

    traits: OpTraits | None = None
    allowed: dict[str, list[str]] | None = None  # the dtypes that each output may have


class Setup(Struct):
    """Settings with which a worker's `judge_service.JudgeService` is made."""

    dtype: str
    widens: bool
    compare: CompareParams
    samples: Sequence[Case]
    probes: bool = True
    facts: ReferenceFacts = field(default_factory=ReferenceFacts)


class Ask(Struct, frozen=True, tag_field="method"):
    """A request; `slots` are the tensors that came with it, by keys of the request."""

    slots: Slots = {}


class Prepare(Ask, frozen=True, kw_only=True, tag="prepare"):
    """Make the inputs of cases, which the next requests are about. With `give`, they are copied to
    the memory shared with the op."""

    cases: tuple[Case, ...]
    by_seed: bool
    give: bool
    widens: bool


class JudgePrepared(Ask, frozen=True, kw_only=True, tag="judge"):
    """Judge the op's outputs for the prepared cases. They lie at `places` in the memory shared with
    the op; if that is None, they came along."""

    places: Sequence[Slots] | None
    explain: bool
    watch: bool
    submitted: bool


class JudgeThere(Ask, frozen=True, kw_only=True, tag="there"):
    """Judge cases whose tensors came along: their inputs, the op's outputs and, of all cases or of
    none, the reference's. Each is given by its key."""

    cases: tuple[Case, ...]
    inputs: Sequence[dict[str, str]]
    outputs: Sequence[dict[str, str]]
    expected: Sequence[dict[str, str]] = ()


class GiveExpected(Ask, frozen=True, kw_only=True, tag="expected"):
    """Run the reference on the only prepared case; with `bring`, return its outputs."""

    bring: bool


class EvaluateReference(Ask, frozen=True, kw_only=True, tag="evaluate"):
    """Run the reference, or its float32 shadow, on inputs that came along."""

    shadow: bool
    single: bool
    rounding: Rounding | None


AnyAsk = Prepare | JudgePrepared | JudgeThere | GiveExpected | EvaluateReference


class Judged(Struct, frozen=True):
    """Verdicts; None for a case that needs a request of its own."""

    results: list[CheckResult | None] = []
    facts: ReferenceFacts = ReferenceFacts()
    changed: list[tuple[Failure, ...]] = []  # inputs that the op changed, by case


class Expected(Struct, frozen=True):
    """The reference's outputs for a case, and the dtypes that an op's may have."""

    slots: Slots = {}
    dtypes: dict[str, list[str]] = {}
