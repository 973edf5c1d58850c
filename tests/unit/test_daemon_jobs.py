"""Jobs: equal requests are one, those of clients that left end, pools do not hold each other up."""

from __future__ import annotations

import threading

import pytest

from gpuemu_flow.services.daemon.service import (
    MAX_WAITERS,
    CancelledJobError,
    Job,
    JobTable,
    WorkerPool,
)


def test_an_equal_request_of_the_same_client_waits_with_the_first() -> None:
    table = JobTable()
    first = Job(b"same", 1, "a")
    assert table.add(first) == (True, None)
    assert table.add(Job(b"same", 1, "b")) == (False, None)
    assert table.add(Job(b"same", 2, "c")) == (True, None)
    assert table.add(Job(b"other", 1, "d")) == (True, None)
    assert table.finish(first) == ["a", "b"]
    assert table.add(Job(b"same", 1, "e")) == (True, None)


def test_only_so_many_wait() -> None:
    table = JobTable()
    first = Job(b"same", 1, 0)
    table.add(first)
    dropped = [table.add(Job(b"same", 1, n))[1] for n in range(1, MAX_WAITERS + 3)]
    assert dropped[-3:] == [0, 1, 2]
    assert len(table.finish(first)) == MAX_WAITERS


def test_a_client_that_leaves_takes_its_jobs_along() -> None:
    table = JobTable()
    mine, other = Job(b"1", 1, "a"), Job(b"1", 2, "b")
    table.add(mine)
    table.add(other)
    table.disconnected(1)
    assert mine.cancelled.is_set()
    assert not other.cancelled.is_set()
    with pytest.raises(CancelledJobError):
        mine.check()
    late = Job(b"2", 1, "c")
    table.add(late)
    assert late.cancelled.is_set(), "its message was read after the client left"
    table.connected(1)
    new = Job(b"3", 1, "d")
    table.add(new)
    assert not new.cancelled.is_set()


def test_a_cancelled_job_is_not_joined() -> None:
    table = JobTable()
    first = Job(b"same", 1, "a", "name")
    table.add(first)
    found = table.named("name")
    assert found is first
    found.cancel()
    again = Job(b"same", 1, "b")
    assert table.add(again) == (True, None)
    assert table.finish(first) == ["a"]
    assert table.finish(again) == ["b"]


def test_linked_events() -> None:
    job = Job(b"", 1, None)
    inside, outside, late = threading.Event(), threading.Event(), threading.Event()
    with job.linked(outside):
        pass
    with job.linked(inside):
        job.cancel()
    with job.linked(late):
        assert late.is_set()
    assert inside.is_set()
    assert not outside.is_set()


def test_pools_start_threads_as_needed() -> None:
    pool = WorkerPool("test", 3)
    gate, entered = threading.Event(), threading.Semaphore(0)

    def work() -> None:
        entered.release()
        assert gate.wait(600)

    for _ in range(5):
        pool.submit(work)
    for _ in range(3):
        assert entered.acquire(timeout=600)
    assert not entered.acquire(blocking=False)
    gate.set()
    for _ in range(2):
        assert entered.acquire(timeout=600)
    pool.close(20)


def test_what_takes_too_long_is_cancelled() -> None:
    table = JobTable()
    old, new = Job(b"old", 1, "a"), Job(b"new", 1, "b")
    old.begun -= 100
    for job in (old, new):
        table.add(job)
    table.expire(50)
    assert old.cancelled.is_set()
    assert not new.cancelled.is_set()
