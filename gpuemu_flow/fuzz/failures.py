"""Record failing cases with their inputs, and run them again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from threading import Event
from typing import Any

from msgspec.structs import replace
from numpy.typing import NDArray

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.generate import input_values, materialise
from gpuemu_flow.cases.generated_values import is_made
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.fuzz.named_case import disallowed_sizes, records_from_words
from gpuemu_flow.fuzz.subjects import (
    dtypes_of,
    op_names,
    op_subject,
    open_ordered,
    select_ops,
    tasks_of,
)
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR, CaseEvaluator, EvaluatedCase
from gpuemu_flow.judge.fuzz_results import Reproduction
from gpuemu_flow.judge.results import OpResult
from gpuemu_flow.judge.subject import FULL_CHECKS, Subject, provenance_of, recorded_subject
from gpuemu_flow.judge.verdicts import reason
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, StoreError, UsageError
from gpuemu_flow.model.types import (
    BAD,
    Case,
    CheckResult,
    FailureKind,
    Json,
    Observation,
    Verdict,
    canonical_dtype,
)
from gpuemu_flow.model.verdicts import case_id
from gpuemu_flow.numerics.layouts import lay_out
from gpuemu_flow.store.failures import (
    GENERATED,
    INPUTS_DROPPED,
    INPUTS_LIMIT,
    SUBMITTED,
    FailureRecord,
    FailureStore,
    inputs_dropped_problem,
)
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import read_result, resolved
from gpuemu_flow.workers import tensors
from gpuemu_flow.workers.api import Checks
from gpuemu_flow.workers.pool import Pool

# Judge recorded inputs again, in a setting in which the failure may occur.


_WATCHED = (
    "OutOfBoundsRead",
    "InputModified",
    "NonDeterministic",
    "OutputNotWritten",
    "OutOfBoundsWrite",
    "MisalignedAccess",
    "UninitializedRead",
    "DataRace",
    "BarrierMisuse",
    "KernelTrap",
)


CONFIRMED_BY = 5
"""Number of runs in a setting that must agree to confirm it."""

DIFFERS = "results differ between equal calls: it fails in some of them only"


class FailureSetting(enum.Enum):
    """A setting in which a failure occurs; the member's value is a sentence to show to the user."""

    ALONE = ""
    AFTER_DECOY = "shows only after a call on other inputs of the same shapes: the op keeps state"
    GUARDED = "shows only between guard zones: the op reads or writes beyond its inputs"
    AS_RUN = "shows only with all the checks that `run` makes"


def judge_in(
    setting: FailureSetting,
    evaluator: CaseEvaluator,
    case: Case,
    inputs: Arrays,
    record: FailureRecord,
) -> EvaluatedCase:
    watched = record.kind in _WATCHED
    checks = Checks(inputs_unchanged=True, repeat=True) if watched else Checks()
    if setting is FailureSetting.AS_RUN:
        checks = FULL_CHECKS
    else:
        decoy, guards = setting is FailureSetting.AFTER_DECOY, setting is FailureSetting.GUARDED
        checks = replace(checks, decoy=decoy, guards=guards)
    return evaluator.judge_arrays(case, inputs, checks)


def told_by_setting(setting: FailureSetting, fails: Callable[[FailureSetting], bool]) -> str:
    """Confirm by new runs the setting in which a failure occurs, and return a sentence about it."""
    if setting is FailureSetting.ALONE:
        return ""
    for _ in range(CONFIRMED_BY - 1):
        if fails(FailureSetting.ALONE) or not fails(setting):
            return DIFFERS
    return str(setting.value)


def recorded_reason(record: FailureRecord) -> str:
    """Return the reason why the recorded case did not pass; see `judge.verdicts.reason`."""
    first = next(iter(record.result.failures), None)
    return reason(first) if first is not None else record.kind


def shows_all(record: FailureRecord, result: CheckResult) -> bool:
    """Tell whether a result has the recorded verdict, and every reason that was recorded for it."""
    recorded = record.result
    reasons = {reason(failure) for failure in result.failures}
    wanted = {reason(failure) for failure in recorded.failures}
    if not wanted:  # the record does not tell how it failed
        return result.verdict in BAD
    return result.verdict is recorded.verdict and wanted <= reasons


def fails_alike(record: FailureRecord, result: CheckResult) -> bool:
    """Tell whether a result has the recorded verdict, and the main recorded reason for it."""
    reasons = {reason(failure) for failure in result.failures}
    return result.verdict.value == record.verdict and recorded_reason(record) in reasons


Arrays = Mapping[str, NDArray[Any]]
MOST_DIGITS = 40
"""Largest number of digits in a text that may be a seed; Python refuses to read thousands."""
MOST_NAMED = 8
"""Largest number of failures that an error lists."""


class FailureLog:
    """Writes failing cases of one workspace into its failure store."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._codes: dict[tuple[str, str], str] = {}
        self.store = FailureStore(workspace.cache)

    def add(
        self,
        op: str,
        case: Case,
        result: CheckResult,
        *,
        source: str,
        subject: Subject | None = None,
        inputs: Arrays | None = None,
        cause: str = "",
        minimized_from: str | None = None,
        more: Mapping[str, Json] | None = None,
    ) -> str:
        values = inputs
        if values is None:
            values = {s.name: input_values(case, s) for s in case.inputs if s.has_values}
        subject = subject or op_subject(self._workspace, op, case.dtype).subject
        record = FailureRecord.of(
            op,
            case,
            result,
            source=source,
            provenance={**provenance_of(subject), CODE: self._code(op, case.dtype), **(more or {})},
            environment=self._workspace.environment,
            cause=cause,
            minimized_from=minimized_from,
        )
        return self.store.add(record, tensors.encode(values))

    def _code(self, op: str, dtype: str) -> str:
        """Return the digest of an op's code and configuration, computed only on the first call."""
        where = op, dtype
        if where not in self._codes:
            self._codes[where] = code_key(self._workspace, *where)
        return self._codes[where]


def record_results(workspace: Workspace, fresh: Sequence[OpResult]) -> list[Problem]:
    """Record the failing cases in `fresh`, the results that a run has just judged. Return warnings
    if stored inputs were removed to keep the disk limit."""
    log = FailureLog(workspace)
    for result in fresh:
        subject = op_subject(workspace, result.op, result.dtype).subject
        stated = {each: c.text for c in reversed(result.causes) if c.stated for each in c.members}
        for failure in result.failures:
            if failure.result.verdict in BAD:
                log.add(
                    result.op,
                    failure.case,
                    failure.result,
                    source="run",
                    subject=subject,
                    cause=stated.get(case_id(failure.case), ""),
                )
    workspace.cache.close()
    return [p for p in workspace.cache.problems if p.slug == INPUTS_DROPPED]


def list_failures(
    workspace: Workspace, op: str | None = None, limit: int | None = None
) -> tuple[FailureRecord, ...]:
    if op is not None and op not in op_names(workspace):
        known = {record.op for record in FailureStore(workspace.cache)}
        if op not in known:
            select_ops(workspace, [op])
    return FailureStore(workspace.cache).list(op, limit)


def inputs_dropped(workspace: Workspace) -> list[Problem]:
    """Return a warning if stored inputs of failures were removed to keep the disk limit."""
    count = FailureStore(workspace.cache).dropped()
    return [inputs_dropped_problem(count, INPUTS_LIMIT)] if count else []


def _may_be_seed(word: str) -> bool:
    return word.isdecimal() and len(word) <= MOST_DIGITS


def find_failures(workspace: Workspace, word: str, op: str | None = None) -> list[FailureRecord]:
    """Find failures by seed or id; sort them newest first, except that shrunk failures come last.
    Raises UsageError: ``unknown-failure`` if none is found."""
    store = FailureStore(workspace.cache)
    found = list(store.find(int(word), op)) if _may_be_seed(word) else []
    if not found:
        if word.isdecimal():
            hint = "`gpuemu-flow failures` lists those that are kept"
            where = f" of op {op!r}" if op else ""
            try:
                return [store.get(word)]
            except UsageError:
                message = f"no failure{where} has the seed {word}"
                raise UsageError(Problem("unknown-failure", message, hint)) from None
        return [store.get(word)]
    return sorted(found, key=lambda record: record.minimized_from is not None)


def find_failure(workspace: Workspace, word: str, op: str | None = None) -> FailureRecord:
    """Find one failure by seed or id. Raises UsageError: ``unknown-failure``; ``ambiguous-failure``
    if several failures have the seed."""
    return only_failure(find_failures(workspace, word, op), word)


def only_failure(found: Sequence[FailureRecord], seed: int | str) -> FailureRecord:
    """Return the failure with a seed; return a shrunk one only if its original is not recorded.
    Raises UsageError: ``ambiguous-failure`` if the failures are of several ops, dtypes or cases."""
    whole = [record for record in found if record.minimized_from is None] or found[:1]
    if len({(r.op, r.dtype, r.case.to_text()) for r in whole}) > 1:
        which = ", ".join(f"{r.id} ({r.op} {r.dtype})" for r in whole[:MOST_NAMED])
        more = f" and {len(whole) - MOST_NAMED} more" if len(whole) > MOST_NAMED else ""
        message = f"{len(whole)} failures have the seed {seed}: {which}{more}"
        raise UsageError(Problem("ambiguous-failure", message, "name one by its id"))
    return whole[0]


def find_or_make(
    workspace: Workspace,
    word: str,
    op: str | None,
    *,
    dtype: str | None = None,
    case_text: str | None = None,
) -> list[FailureRecord]:
    """Find failures by seed or id; if there are none, make records of the cases with that seed.
    Raises UsageError: ``unknown-failure`` and others: nothing is recorded, and no records can be
    made."""
    wanted = canonical_dtype(dtype) if dtype else None
    try:
        found = find_failures(workspace, word, op)
    except UsageError:
        if op is None or not _may_be_seed(word):
            raise
        found = []
    if case_text is not None:
        found = [one for one in found if one.case.to_text() == case_text]
    elif dtype is not None:
        found = [one for one in found if one.dtype == wanted]
    if found:
        return found
    if op is None or not _may_be_seed(word) or int(word) >= 1 << 64:
        message = f"no failure with the seed {word} is of that dtype or case"
        raise UsageError(Problem("unknown-failure", message, "give --op, too"))
    return records_from_words(workspace, int(word), op, wanted or dtype, case_text)


def stored_inputs(store: FailureStore, record: FailureRecord) -> dict[str, NDArray[Any]]:
    """Return the exact inputs of a failure, in their layouts. An input that could not be made,
    because the user's function failed, is left out. Raises StoreError: ``failure-inputs-lost`` if
    the stored inputs are gone or damaged, and cannot be made again."""
    data = store.input_tensors(record)
    if data is not None:
        values = tensors.decode(data)
        layouts = record.layouts.items()
        return {name: lay_out(values[name], layout) for name, layout in layouts if name in values}
    if record.source in GENERATED:
        case = record.case
        return dict(materialise(case)) if is_made(case) else {}
    how = "were deleted to make room" if record.inputs_dropped else "are lost or damaged"
    raise StoreError(Problem("failure-inputs-lost", f"the inputs of failure {record.id} {how}"))


def subject_for(
    workspace: Workspace, record: FailureRecord, *, given_op: bool = False
) -> tuple[Subject, OpSchema | None]:
    """Return the subject of a failure: the op as configured now, or as recorded if it was removed.
    A request to the daemon can set the op's arguments and tolerance. So a failure from a request is
    judged with the recorded arguments and tolerance. The second result is the op's schema; None if
    the op was removed. Raises UsageError: ``failure-not-runnable``: the outputs were computed by
    the user's own process, unless `given_op` says that this process has the op."""
    provenance = record.provenance if isinstance(record.provenance, Mapping) else {}
    op = provenance.get("op")
    if isinstance(op, Mapping) and op.get("kind") == SUBMITTED and not given_op:
        raise _not_runnable(record)
    schema = None
    if given_op:
        schema = next((o.schema for o in workspace.config.ops if o.name == record.op), None)
    elif record.op in op_names(workspace) and record.dtype in dtypes_of(workspace, record.op):
        found = op_subject(workspace, record.op, record.dtype)
        schema = found.schema
        if _first(workspace, record).source != "daemon":
            return found.subject, schema
    try:
        recorded = recorded_subject(record.op, record.case, provenance)
    except (KeyError, TypeError, ValueError, AttributeError):
        message = f"the record of failure {record.id} does not say how {record.op} was run"
        hint = "run or fuzz the op again: that records its failures anew"
        raise UsageError(Problem("failure-not-runnable", message, hint)) from None
    now = replace(recorded, op=resolved(recorded.op), reference=resolved(recorded.reference))
    return now, schema


def _first(workspace: Workspace, record: FailureRecord) -> FailureRecord:
    """Find the original of a shrunk failure; return the record itself if it was not shrunk."""
    store, seen = FailureStore(workspace.cache), {record.id}
    while record.minimized_from is not None and record.minimized_from not in seen:
        seen.add(record.minimized_from)
        try:
            record = store.get(record.minimized_from)
        except UsageError:
            break
    return record


def _not_runnable(record: FailureRecord) -> UsageError:
    test = (record.provenance or {}).get("test")
    if test:
        whence = f"the test {test['id']}"
        hint = f"run `{test['command']}`"
    else:
        whence = "a client"
        hint = (
            "run your op on the inputs that it failed on: "
            f"`gpuemu_flow.Client().reproduce({record.seed}).inputs`, or shrink them: "
            f"`gpuemu_flow.Client().minimize({record.seed}, run_op=my_op)`"
        )
    message = f"the outputs of failure {record.id} of {record.op} came from {whence}"
    return UsageError(Problem("failure-not-runnable", message, hint))


def reproduce(
    workspace: Workspace, records: Sequence[FailureRecord], *, cancel: Event | None = None
) -> list[Reproduction]:
    """Run recorded failures again, on their exact inputs. A failure may occur only in some
    settings, such as after a call on other inputs. The settings in `FailureSetting` are tried in
    their order, until all recorded failures of the case occur. The result comes from this setting.
    If no setting shows them all, it comes from the first one in which the op fails at all. The
    result's notes describe the setting if repeated runs confirm it."""
    workspace.cache.create()
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        return [_Rerun(workspace, pool, record, cancel).reproduction() for record in records]


class _Rerun:
    """Runs one recorded failure again."""

    def __init__(
        self, workspace: Workspace, pool: Pool, record: FailureRecord, cancel: Event | None
    ) -> None:
        self._workspace = workspace
        self._pool = pool
        self._record = record
        self._cancel = cancel
        self._store = FailureStore(workspace.cache)
        self._subject, self._schema = subject_for(workspace, record)
        self._inputs = stored_inputs(self._store, record)
        self._changed = False

    def reproduction(self) -> Reproduction:
        """Return the outcome, and record whether the failure is fixed or intermittent."""
        setting, shown = self._first_that_shows()
        passed = shown.result.verdict is Verdict.PASSED
        differs = False
        if shown.still_fails:
            told = told_by_setting(setting, self._fails)
            differs = told == DIFFERS
            notes = (told, *shown.result.notes) if told else shown.result.notes
            shown = replace(shown, result=replace(shown.result, notes=notes))
        elif passed and (not self._changed or self._is_unsteady()):
            again = next((r for r in self._more_runs() if r.still_fails), None)
            if again is not None:
                notes = (DIFFERS, *again.result.notes)
                shown, differs = (
                    replace(again, result=replace(again.result, notes=notes)),
                    True,
                )
        known = self._record.id in {record.id for record in self._store.find(self._record.seed)}
        passed = shown.result.verdict is Verdict.PASSED
        unseen = known and passed and not self._changed
        self._store.set_seen(
            self._record.id, mended=passed and self._changed, intermittent=unseen or differs
        )
        case, schema = self._record.case, self._schema
        disallowed = disallowed_sizes(schema, case) if schema and not known else ""
        return replace(shown, did_not_show=unseen, known=known, disallowed=disallowed)

    def _first_that_shows(self) -> tuple[FailureSetting, Reproduction]:
        shown: tuple[FailureSetting, Reproduction] | None = None
        for setting in FailureSetting:
            again = self._run(setting)
            if shown is None or (again.still_fails and not shown[1].still_fails):
                shown = setting, again
            if shows_all(self._record, again.result):
                return setting, again
        assert shown is not None  # noqa: S101 - there are settings
        return shown

    def _is_unsteady(self) -> bool:
        """Tell whether the failure is intermittent, or is a difference between identical calls. A
        single pass of such a case says little."""
        unsteady = FailureKind.NON_DETERMINISTIC.value
        return self._record.intermittent or self._record.kind == unsteady

    def _more_runs(self) -> Iterator[Reproduction]:
        for _ in range(CONFIRMED_BY - 1):
            for setting in (FailureSetting.ALONE, FailureSetting.AS_RUN):
                yield self._run(setting)

    def _fails(self, setting: FailureSetting) -> bool:
        return self._run(setting).still_fails

    def _run(self, setting: FailureSetting) -> Reproduction:
        record, inputs = self._record, self._inputs
        with open_ordered(self._workspace, self._pool, self._subject, self._cancel) as evaluator:
            evaluated = judge_in(setting, evaluator, record.case, inputs, record)
            self._changed = self._changed or self._has_changed(evaluator.observed())
            return Reproduction(
                record,
                evaluated.result,
                inputs,
                _copied(evaluated.actual),
                _copied(evaluated.expected),
            )

    def _has_changed(self, observed: Mapping[str, Observation]) -> bool:
        """Tell whether code or configuration has, or may have, changed since the failure was
        recorded. One that no longer occurs counts as fixed only if there was such a change."""
        lookup, since = self._workspace.inputs, _nanoseconds(self._record.time)
        return code_changed(self._workspace, self._record) or any(
            lookup.moved(lookup.discover(seen, self._subject.program(who).given), since)
            for who, seen in observed.items()
        )


def _copied(outputs: Arrays) -> Arrays:
    return {name: array.copy() for name, array in outputs.items()}


# Tell whether code and configuration have changed since a failure was seen.


CODE = "code"
"""Key under which a record's provenance holds the digest of code and configuration."""


def code_key(workspace: Workspace, op: str, dtype: str) -> str:
    """Return a digest of the present code and configuration of an op and its reference. The digest
    is empty for an op that the workspace does not run in that dtype."""
    if op not in op_names(workspace) or dtype not in dtypes_of(workspace, op):
        return ""
    tasks = tasks_of(workspace.graph, op, dtype)
    states = workspace.states()
    found = []
    for spec in (tasks.op, tasks.reference, tasks.compare):
        parts = states.static_parts(spec)
        built = {role: digest for role, digest in parts.input.items() if stages.is_made(role)}
        found.append([parts.stage, dict(parts.code), parts.params, dict(parts.env), built])
    return digest_json(found)


def code_changed(workspace: Workspace, record: FailureRecord) -> bool:
    """Tell whether code or configuration differs from that with which a failure was recorded. Only
    the code that is known without running the op is compared. For a record without a digest, the
    result is True: it was written by an earlier version of this package, and the package is part of
    the code."""
    provenance = record.provenance if isinstance(record.provenance, Mapping) else {}
    known = provenance.get(CODE)
    return known is None or known != code_key(workspace, record.op, record.dtype)


def _nanoseconds(text: str) -> int:
    """Convert a record's time to nanoseconds since the epoch; 0 if it is malformed."""
    try:
        parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return 0
    return int(parsed.timestamp() * 1e9)


_CaseKey = tuple[int, str]


def fixed_ids(workspace: Workspace, records: Iterable[FailureRecord]) -> set[str]:
    """Return the ids of the failures whose cases passed when they last ran. A failure counts as
    fixed if its case passed in `reproduce` or in the last run, after code or configuration had
    changed. If the case passed without a change, the failure is intermittent. If a later edit
    breaks a fixed case again, only the next run finds that."""
    passed: dict[tuple[str, str], set[_CaseKey]] = {}
    found = set()
    store, records = FailureStore(workspace.cache), list(records)
    known = {record.id for record in records}
    wanted = {one.minimized_from for one in records if one.minimized_from} - known
    originals = [one for one in store if one.id in wanted] if wanted else []
    for record in (*records, *originals):
        if record.mended:
            found.add(record.id)
        elif record.source in GENERATED:
            where = (record.op, record.dtype)
            if where not in passed:
                passed[where] = _passed(workspace, *where)
            key = _key(record.case)
            if key in passed[where] and code_changed(workspace, record):
                found.add(record.id)
    return found | {record.id for record in records if record.minimized_from in found}


def _passed(workspace: Workspace, op: str, dtype: str) -> set[_CaseKey]:
    """Return the cases of an op and dtype that passed in the last run."""
    spec = workspace.graph.tasks.get(f"{stages.COMPARE}:{op}:{dtype}")
    if spec is None or spec.name not in workspace.snapshot.current:
        return set()
    try:
        result = read_result(workspace.cache, spec.name, stages.COMPARE)
    except StoreError:
        return set()
    return {
        _key(convert(item["case"], Case))
        for item in result["cases"]
        if item["result"]["verdict"] == Verdict.PASSED.value
    }


def _key(case: Case) -> _CaseKey:
    return case.seed, case.to_text()
