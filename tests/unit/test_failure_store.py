"""Failure records: kept once each, found by id, seed and op, never lost to another op."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuemu_flow.fuzz.failures import (
    CONFIRMED_BY,
    DIFFERS,
    FailureSetting,
    shows_all,
    told_by_setting,
)
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import (
    Case,
    CheckResult,
    ErrorStats,
    Failure,
    FailureKind,
    InputSpec,
    Verdict,
)
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import ID_LENGTH, FailureRecord, FailureStore
from gpuemu_flow.store.keys import digest_bytes

TENSORS = b"stands for a safetensors file"


def make(
    op: str = "softmax",
    *,
    seed: int = 7,
    kind: FailureKind = FailureKind.TOLERANCE,
    source: str = "run",
    index: int = 3,
    time: str = "2024-05-01T10:00:00.000000Z",
    **settings: str,
) -> FailureRecord:
    specs = (InputSpec("x", (2, 9), "float32", "strided"), InputSpec("w", (9,), "float32"))
    case = Case(index, seed, "float32", "strided", "special", specs, "x", "tail", (("N", 9),))
    failure = Failure(kind, "3 elements exceed it", "y", (1, 8), math.nan, -math.inf)
    stats = ErrorStats(count=18, max_abs=math.inf, max_rel=math.nan, max_ulp=2.0)
    result = CheckResult(Verdict.FAILED, (failure,), stats, ("a note",))
    record = FailureRecord.of(
        op, case, result, source=source, provenance={"op": {"kind": "callable"}}
    )
    return replace(record, time=time, **settings)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[WorkspaceCache]:
    cache = WorkspaceCache(tmp_path / ".gpuemu-cache")
    cache.create()
    yield cache
    cache.close()


@pytest.fixture
def store(cache: WorkspaceCache) -> FailureStore:
    return FailureStore(cache)


def test_a_record_comes_back_whole(store: FailureStore) -> None:
    record = make(environment={"numpy": "2.4"}, cause="tail of N")
    stored = store.get(store.add(record, TENSORS))
    assert stored.inputs == digest_bytes(TENSORS)
    assert math.isnan(stored.max_rel)
    assert math.isnan(stored.expected)
    assert (stored.max_abs, stored.actual) == (math.inf, -math.inf)
    assert stored.index == (1, 8)
    assert stored.shapes == {"x": (2, 9), "w": (9,)}
    assert list(stored.layouts) == ["x", "w"]
    assert stored.case.seed == 7
    assert stored.result.notes == ("a note",)
    assert store.input_tensors(stored) == TENSORS
    assert plain(stored) == plain(replace(record, id=stored.id, inputs=stored.inputs))


def test_a_scalar_failure_has_the_empty_index() -> None:
    case = Case(0, 1, "float32", "contiguous", "normal", (InputSpec("x", (), "float32"),))
    stats = ErrorStats(count=1, worst_index=(5,))
    failure = Failure(FailureKind.TOLERANCE, "", "y", ())
    result = CheckResult(Verdict.FAILED, (failure,), stats)
    assert FailureRecord.of("op", case, result, source="fuzz").index == ()


def test_the_same_failure_is_one_record_with_the_newest_time(store: FailureStore) -> None:
    first = store.add(make(time="2024-05-01T10:00:00.000000Z", cause="tail"), TENSORS)
    again = store.add(make(time="2024-05-02T10:00:00.000000Z", source="fuzz", index=99), TENSORS)
    late = store.add(make(time="2024-05-01T09:00:00.000000Z"), TENSORS)
    assert first == again == late
    (record,) = store.list()
    assert record.time == "2024-05-02T10:00:00.000000Z"
    assert record.cause == "tail"


def test_what_differs_never_overwrites(store: FailureStore) -> None:
    records = [
        make("softmax"),
        make("softmax2"),
        make("softmax", seed=8),
        make("softmax", kind=FailureKind.NAN),
        make("softmax", source="minimize"),
    ]
    ids = [store.add(record, TENSORS) for record in records]
    ids.append(store.add(make("softmax", source="minimize"), b"other values of the same case"))
    assert len(set(ids)) == 6
    assert {record.id for record in store.list()} == set(ids)


def test_ids_that_begin_alike_are_made_longer(store: FailureStore) -> None:
    record = make("softmax")
    taken = store.add(record, TENSORS)
    other = make("other")
    # Two failures whose digests share their first digits: the other one sits in the short place.
    squatter = replace(other, id=taken, inputs=digest_bytes(TENSORS))
    store._records.put(taken, plain(squatter))
    moved = store.add(record, TENSORS)
    assert moved.startswith(taken)
    assert ID_LENGTH == 12
    assert len(moved) == ID_LENGTH + 1
    assert store.get(taken).op == "other"
    assert store.get(moved).op == "softmax"
    assert store.add(record, TENSORS) == moved


def test_found_by_a_unique_prefix(store: FailureStore) -> None:
    ids = sorted(store.add(make(seed=n), TENSORS) for n in range(40))
    unique = next(i for i in ids if sum(other[:5] == i[:5] for other in ids) == 1)
    assert store.get(unique[:5].upper()).id == unique
    with pytest.raises(UsageError, match="unknown-failure"):
        store.get("")
    doubled = next(c for c in "0123456789abcdef" if sum(i[0] == c for i in ids) > 1)
    with pytest.raises(UsageError, match="ambiguous-failure"):
        store.get(doubled)
    with pytest.raises(UsageError, match="unknown-failure"):
        store.get("zz")


@pytest.fixture
def read_keys(cache: WorkspaceCache, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys of the records that were read, one after another."""
    keys: list[str] = []
    get = cache.failures_db.get
    monkeypatch.setattr(cache.failures_db, "get", lambda key: (keys.append(key), get(key))[1])
    return keys


def test_only_records_that_may_be_meant_are_read(store: FailureStore, read_keys: list[str]) -> None:
    ids = {n: store.add(make(seed=(n << 40) + 7), TENSORS) for n in range(300)}
    read_keys.clear()
    assert [record.id for record in store.find((9 << 40) + 7)] == [ids[9]]
    assert read_keys == [ids[9]]
    read_keys.clear()
    assert store.get(ids[9][:8]).id == ids[9]
    assert set(read_keys) <= {ids[9], ids[9][:8]}


def test_a_record_too_large_for_the_database_is_found_by_its_seed(store: FailureStore) -> None:
    large = store.add(replace(make(seed=12345), message="m" * 200_000), TENSORS)
    store.add(make(seed=123), TENSORS)
    store.add(make(op="12345", seed=6), TENSORS)
    assert [record.id for record in store.find(12345)] == [large]


def test_newest_first(store: FailureStore) -> None:
    for day, op in ((2, "b"), (3, "c"), (1, "a"), (4, "b")):
        store.add(make(op, seed=day, time=f"2024-05-0{day}T00:00:00.000000Z"), TENSORS)
    assert [record.seed for record in store.list()] == [4, 3, 2, 1]
    assert [record.seed for record in store.list("b")] == [4, 2]
    assert [record.seed for record in store.list(limit=2)] == [4, 3]
    assert store.list("d") == ()


def test_one_seed_of_several_ops(store: FailureStore) -> None:
    for day, op in ((1, "a"), (2, "b")):
        store.add(make(op, time=f"2024-05-0{day}T00:00:00.000000Z"), TENSORS)
    assert [record.op for record in store.find(7)] == ["b", "a"]
    assert [record.op for record in store.find(7, "a")] == ["a"]
    assert store.find(8) == ()


def test_a_seed_that_javascript_has_rounded(store: FailureStore) -> None:
    seed = 2**64 - 500
    rounded = 18446744073709552000
    assert float(rounded) == float(seed) == float(seed + 1)
    store.add(make(seed=seed), TENSORS)
    assert [record.seed for record in store.find(seed)] == [seed]
    assert [record.seed for record in store.find(rounded)] == [seed]
    store.add(make(seed=seed, kind=FailureKind.NAN), TENSORS)
    assert len(store.find(rounded)) == 2
    store.add(make(seed=seed + 1), TENSORS)
    assert store.find(rounded) == ()
    assert [record.seed for record in store.find(seed + 1)] == [seed + 1]


def test_small_seeds_are_never_taken_for_rounded_ones(store: FailureStore) -> None:
    store.add(make(seed=2**53 - 1), TENSORS)
    assert store.find(2**53 - 2) == ()
    assert store.find(10**400) == ()


def test_a_shrunk_case_and_its_original_know_each_other(store: FailureStore) -> None:
    original = store.add(make(), TENSORS)
    shrunk = store.add(make(source="minimize", minimized_from=original), b"smaller")
    assert store.get(original).minimized == shrunk
    assert store.get(shrunk).minimized_from == original
    store.add(make(time="2025-01-01T00:00:00.000000Z"), TENSORS)
    assert store.get(original).minimized == shrunk
    assert store.get(shrunk).reproduce == f"gpuemu-flow reproduce {shrunk}"


def test_collection_keeps_the_inputs(store: FailureStore, cache: WorkspaceCache) -> None:
    record = store.get(store.add(make(), TENSORS))
    loose = cache.blobs.write(b"an output of long ago")
    assert store.pinned() == {record.inputs}
    cache.blobs.collect(0, store.pinned())
    assert not cache.blobs.has(loose)
    assert store.input_tensors(record) == TENSORS


def test_damaged_and_foreign_records_hide_no_others(store: FailureStore) -> None:
    kept = store.add(make(), TENSORS)
    store._records.put("aaaa", {"version": 1, "op": "half a record"})
    store._records.put("bbbb", {**plain(make("later")), "version": 99})
    store._records.put("cccc", ["not even an object"])
    assert [record.id for record in store.list()] == [kept]
    assert store.pinned() == {digest_bytes(TENSORS)}
    with pytest.raises(UsageError, match="unknown-failure"):
        store.get("aaaa")


def test_public_json_is_what_the_interface_page_lists(store: FailureStore) -> None:
    seed = 2**64 - 1
    record = store.get(store.add(make("a; rm -rf $(HOME) 'x'", seed=seed), TENSORS))
    public = record.to_public_json()
    listed = (
        "id op seed seed_str dtype shape shapes layout strategy kind message max_abs max_rel "
        "max_ulp index expected actual cause reproduce minimized time"
    )
    assert set(listed.split()) <= set(public)
    assert public["seed_str"] == str(seed)
    assert public["max_abs"] == "Infinity"
    assert public["expected"] == "NaN"
    assert not {"provenance", "environment", "case", "inputs"} & set(public)
    words = shlex.split(public["reproduce"])
    assert words[:5] == ["gpuemu-flow", "reproduce", str(seed), "--op", "a; rm -rf $(HOME) 'x'"]
    option, text = words[5:]
    assert (option, text) == ("--case", make(seed=seed).case.to_text())


def test_the_tolerance_is_that_of_the_output_which_failed() -> None:
    """That of its dtype where the output has none; none of the two under ``auto``."""
    own, table = {"atol": 1.0, "rtol": 2.0}, {"float32": {"atol": 3.0}, "float64": {"atol": 4.0}}
    other = {"name": "x", "tolerance": {"atol": 5.0}}
    for compare, wanted in (
        (None, (None, None)),
        ({}, (None, None)),
        ({"tolerances": table}, (3.0, None)),
        ({"tolerances": {"float64": own}}, (None, None)),
        ({"tolerances": table, "outputs": [other, {"name": "y"}]}, (3.0, None)),
        ({"tolerances": table, "outputs": [other, {"name": "y", "tolerance": own}]}, (1.0, 2.0)),
    ):
        record = replace(make(), provenance={"compare": compare})
        assert tuple(record.tolerance.values()) == wanted, compare
    assert replace(make(), provenance=None).tolerance == {"atol": None, "rtol": None}


def test_an_unknown_source_is_refused() -> None:
    with pytest.raises(ValueError, match="no source 'guess'"):
        make(source="guess")


@pytest.mark.parametrize(
    ("alone", "other", "told"),
    [
        ([], [], FailureSetting.AFTER_DECOY.value),
        ([2], [], DIFFERS),
        ([], [3], DIFFERS),
    ],
    ids=["confirmed", "fails alone once", "passes there once"],
)
def test_a_setting_is_told_once_repeated_runs_confirm_it(
    alone: list[int], other: list[int], told: str
) -> None:
    counts = {FailureSetting.ALONE: 0, FailureSetting.AFTER_DECOY: 0}

    def fails(setting: FailureSetting) -> bool:
        counts[setting] += 1
        if setting is FailureSetting.ALONE:
            return counts[setting] in alone
        return counts[setting] not in other

    assert told_by_setting(FailureSetting.AFTER_DECOY, fails) == told
    if told != DIFFERS:
        assert set(counts.values()) == {CONFIRMED_BY - 1}
    assert told_by_setting(FailureSetting.ALONE, fails) == ""


def test_a_failure_shows_again_with_its_verdict_and_all_its_reasons() -> None:
    def result(verdict: Verdict, *kinds: FailureKind) -> CheckResult:
        return CheckResult(verdict, tuple(Failure(kind, "") for kind in kinds))

    tolerance, shape, ended = FailureKind.TOLERANCE, FailureKind.SHAPE, FailureKind.EXECUTION
    record = replace(make(), result=result(Verdict.FAILED, tolerance, shape))
    for again, shows in (
        (result(Verdict.FAILED, tolerance, shape), True),
        (result(Verdict.FAILED, shape, ended, tolerance), True),
        (result(Verdict.FAILED, tolerance), False),
        (result(Verdict.ERROR, tolerance, shape), False),
        (result(Verdict.INCONCLUSIVE), False),
    ):
        assert shows_all(record, again) == shows, again
    untold = replace(record, result=result(Verdict.FAILED))
    assert shows_all(untold, result(Verdict.ERROR, ended))
    assert not shows_all(untold, result(Verdict.INCONCLUSIVE))
