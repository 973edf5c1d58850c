"""Requests that come while others of their kind are answered are answered together after them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence

import pytest

from gpuemu_flow.daemon import gathering
from gpuemu_flow.daemon.gathering import MOST_TOGETHER, QUICK_SECONDS, Gatherer, Pace
from gpuemu_flow.daemon.jobs import CancelledJobError, Job, JobGroup, WorkerPool

PATIENCE = 20.0


class Gated:
    """Answers of groups that each wait to be let go on."""

    def __init__(self, threads: int) -> None:
        self.pool = WorkerPool("test", threads)
        self.begun: queue.Queue[list[int]] = queue.Queue()
        self.gate = threading.Semaphore(0)
        self.gatherer: Gatherer[int] = Gatherer(self.pool, self.answer)

    def answer(self, group: Sequence[int]) -> None:
        self.begun.put(list(group))
        assert self.gate.acquire(timeout=PATIENCE)

    def next_group(self) -> list[int]:
        return self.begun.get(timeout=PATIENCE)


def test_what_comes_meanwhile_is_answered_together_and_in_order() -> None:
    gated = Gated(threads=4)
    gated.gatherer.add("op", 0)
    assert gated.next_group() == [0], "nothing waits for others to come"
    for number in range(1, 6):
        gated.gatherer.add("op", number)
    assert gated.begun.empty()
    gated.gate.release()
    assert gated.next_group() == [1, 2, 3, 4, 5]
    gated.gate.release()
    gated.pool.close(PATIENCE)


def test_a_group_is_not_larger_than_allowed() -> None:
    gated = Gated(threads=1)
    for number in range(2 * MOST_TOGETHER + 2):
        gated.gatherer.add("op", number)
    sizes = [len(gated.next_group())]
    while sum(sizes) < 2 * MOST_TOGETHER + 2:
        gated.gate.release()
        sizes.append(len(gated.next_group()))
    gated.gate.release()
    assert max(sizes) == MOST_TOGETHER
    gated.pool.close(PATIENCE)


def test_groups_of_different_names_do_not_wait_for_each_other() -> None:
    gated = Gated(threads=2)
    gated.gatherer.add("a", 1)
    gated.gatherer.add("b", 2)
    assert sorted([gated.next_group(), gated.next_group()]) == [[1], [2]]
    gated.gate.release(2)
    gated.pool.close(PATIENCE)


def test_other_work_has_its_turn_between_groups() -> None:
    gated = Gated(threads=1)
    others: queue.Queue[bool] = queue.Queue()
    gated.gatherer.add("op", 0)
    gated.next_group()
    gated.gatherer.add("op", 1)
    gated.pool.submit(lambda: others.put(gated.begun.empty()))
    gated.gate.release()
    assert others.get(timeout=PATIENCE), "the work came before the second group"
    assert gated.next_group() == [1]
    gated.gate.release()
    gated.pool.close(PATIENCE)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_while_a_group_is_answered_holds_up_no_later_one() -> None:
    pool = WorkerPool("test", 2)
    answered: queue.Queue[list[int]] = queue.Queue()

    def answer(group: Sequence[int]) -> None:
        answered.put(list(group))
        if 0 in group:
            raise ValueError("a fault")

    gatherer: Gatherer[int] = Gatherer(pool, answer)
    gatherer.add("op", 0)
    assert answered.get(timeout=PATIENCE) == [0]
    gatherer.add("op", 1)
    assert answered.get(timeout=PATIENCE) == [1]


def test_only_an_op_that_was_quick_is_quick() -> None:
    pace = Pace()
    assert not pace.is_quick("op")
    pace.note("op", 10 * QUICK_SECONDS)
    assert not pace.is_quick("op")
    pace.note("op", QUICK_SECONDS / 2)
    assert pace.is_quick("op")
    assert not pace.is_quick("another")
    pace.note("op", 100 * QUICK_SECONDS)
    assert pace.is_quick("op"), "one time on a busy machine changes little"
    for _ in range(9):
        pace.note("op", 100 * QUICK_SECONDS)
    assert not pace.is_quick("op")


def test_a_group_is_given_up_when_all_of_its_jobs_are() -> None:
    jobs = [Job(b"1", 1, "a"), Job(b"2", 2, "b")]
    group = JobGroup(jobs)
    shared = threading.Event()
    with group.linked(shared):
        jobs[0].cancel()
    group.check()
    assert not shared.is_set(), "the other one still waits for the work"
    jobs[1].cancel()
    with pytest.raises(CancelledJobError):
        group.check()


def test_nobody_waits_long_for_a_group_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    gated = Gated(threads=2)
    assert gated.gatherer.add("op", 0)
    assert gated.next_group() == [0]
    assert gated.gatherer.add("op", 1), "the group has only begun"
    assert gated.gatherer.take_late() == []
    monkeypatch.setattr(gathering, "PATIENCE_SECONDS", -1.0)
    assert not gated.gatherer.add("op", 2)
    assert gated.gatherer.take_late() == [1]
    assert gated.gatherer.take_late() == []
    assert gated.gatherer.add("other", 3), "of which no group hangs"
    assert gated.next_group() == [3]
    gated.gate.release(2)
    gated.pool.close(PATIENCE)
    assert gated.begun.empty()
