"""Test which submissions of clients count, where several were made for one case."""

from __future__ import annotations

from gpuemu_flow.fuzz.submitted_code import newest_judged_by
from gpuemu_flow.store.result_records import CountedResult, StoredResult
from gpuemu_flow.types import Json, Verdict

NAMED: dict[str, Json] = {"id": "1", "origin": "kernels.py:softmax", "code": "c0de"}
PASSED, FAILED = Verdict.PASSED, Verdict.FAILED


def verdicts(client: dict[str, Json], *stored: tuple[str, Verdict]) -> list[Verdict]:
    """Return the verdicts that count of submissions for one case: who judged each, and how."""
    submissions = [
        StoredResult(
            f"{key:03}", "softmax", 7, "float32", "submit", by, CountedResult(verdict), "{}", client
        )
        for key, (by, verdict) in enumerate(stored)
    ]
    return [one.judged.verdict for one in newest_judged_by(submissions, "now")]


def test_the_newest_of_the_present_judgement_counts() -> None:
    for client in ({}, NAMED):
        assert verdicts(client, ("now", PASSED), ("now", FAILED)) == [FAILED]
        assert verdicts(client, ("now", FAILED), ("now", PASSED)) == [PASSED]
        assert verdicts(client, ("other", PASSED)) == []


def test_another_judgement_hides_no_failure() -> None:
    for client in ({}, NAMED):
        assert verdicts(client, ("now", FAILED), ("other", PASSED)) == [FAILED]


def test_a_pass_stands_where_the_code_is_known_to_be_the_same() -> None:
    assert verdicts(NAMED, ("now", PASSED), ("other", FAILED)) == [PASSED]
    assert verdicts({}, ("now", PASSED), ("other", FAILED)) == []
    assert verdicts({}, ("now", PASSED), ("other", FAILED), ("now", PASSED)) == [PASSED]
