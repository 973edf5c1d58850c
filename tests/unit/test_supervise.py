"""Which process gets which case: what is repeated, and what is run alone from then on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from for_each import for_each

from gpuemu_flow.model.types import Case, InputSpec
from gpuemu_flow.workers.api import Outcome, RunError
from gpuemu_flow.workers.attempt import Attempt
from gpuemu_flow.workers.supervise import BatchSize, Supervisor


class Process:
    """A worker of a program that does not exist."""

    def __init__(self, name: str) -> None:
        self.name, self.cases, self.closed = name, 0, False

    def close(self) -> None:
        self.closed = True


Program = Callable[[int, Process], Attempt]


def ok(case: int, _: Process) -> Attempt:
    return Attempt(Outcome(case, ok=True))


def fails(case: int, _: Process, slug: str = "op-exception", **how: Any) -> Attempt:
    error = RunError(slug, "why", exception="E" * (slug == "op-exception"), file="f", line=case + 1)
    return Attempt(Outcome(case, ok=False, error=error), **how)


def at(*cases: int, early: bool = False, first: bool = True, **how: Any) -> Program:
    """A program that fails at some cases: at all, or unless they are the first of a process."""

    def run(case: int, process: Process) -> Attempt:
        fine = case not in cases or (not first and process.cases == 0)
        return ok(case, process) if fine else fails(case, process, **how)

    return run


def dies(*cases: int, first: bool = True) -> Program:
    return at(*cases, first=first, slug="op-crashed", ended=True)


def same_line(case: int, process: Process) -> Attempt:
    """Each fourth case, and all from the eighth on, raise at the same line."""
    return fails(0, process) if case % 4 == 0 or case > 7 else ok(case, process)


def refused(case: int, process: Process) -> Attempt:
    return fails(0, process, slug="emulator-launch") if case else ok(case, process)


class Run:
    """One session: the names of the processes that were started, with the cases that each ran."""

    def __init__(self, program: Program, isolation: str = "fork", **more: Any) -> None:
        self.program, self.log, self.processes = program, [], []  # type: list[str], list[Process]
        self.supervisor = Supervisor(isolation, self.open, self.private, **more)  # type: ignore[arg-type]

    def open(self, name: str = "p") -> Process:
        self.processes.append(Process(f"{name}{len(self.processes)}"))
        return self.processes[-1]

    @contextlib.contextmanager
    def private(self) -> Iterator[Process]:
        yield self.open("own")

    def case(self, number: int) -> Attempt:
        run = self

        class Work:
            def begin(self, process: Process) -> Attempt | None:
                assert not process.closed
                return None

            def finish(self, process: Process) -> Attempt:
                run.log.append(f"{process.name}:{number}")
                attempt = run.program(number, process)
                process.cases += 1
                return attempt

        return self.supervisor.run(Work())  # type: ignore[arg-type]


@for_each(
    ("program", "isolation", "log"),
    [
        (ok, "fork", "p0:0 p0:1 p0:2 p0:3"),
        (ok, "spawn", "p0:0 p1:1 p2:2 p3:3"),
        (ok, "warm", "p0:0 p0:1 p0:2 p0:3"),
        # what fails behind others is tried alone; where it passes there, the others were to blame
        (at(1), "fork", "p0:0 p0:1 p1:1 p0:2 p0:3"),
        (at(1, first=False), "fork", "p0:0 p0:1 p1:1 p2:2 p3:3"),
        (at(1, first=False), "warm", "p0:0 p0:1 p0:2 p0:3"),
        (at(0), "fork", "p0:0 p0:1 p0:2 p0:3"),
        # where a process was lost, each later case gets its own
        (dies(0), "fork", "p0:0 p1:1 p2:2 p3:3"),
        (dies(1), "fork", "p0:0 p0:1 p1:1 p2:2 p3:3"),
        (dies(1, first=False), "warm", "p0:0 p0:1 p1:1 p2:2 p2:3"),
        (at(1, slug="op-timeout", timed_out=True, ended=True), "fork", "p0:0 p0:1 p1:2 p2:3"),
        # who was killed may not be to blame, once
        (at(0, 1, ended=True, killed=True), "fork", "p0:0 p1:0 p2:1 p3:2 p4:3"),
        (at(1, ended=True, killed=True, first=False), "spawn", "p0:0 p1:1 p2:2 p3:3"),
        # nor whose server was
        (at(1, server_died=True, first=False), "fork", "p0:0 p0:1 own1:1 p2:2 p2:3"),
        (at(1, server_died=True), "fork", "p0:0 p0:1 own1:1 own2:2 own3:3"),
        # what cannot be loaded cannot be loaded
        (at(0, slug="op-not-loadable", load_failed=True), "fork", "p0:0"),
    ],
)  # fmt: skip
def test_the_process_of_each_case(program: Program, isolation: str, log: str) -> None:
    run = Run(program, isolation)
    attempts = [run.case(number) for number in range(4)]
    assert " ".join(run.log) == log
    wanted = [program(n, Process("alone")).outcome.ok for n in range(4)]
    if log == "p0:0":
        wanted = [False] * 4
    elif isolation == "warm" and "p1" not in log:
        wanted[1] = program is ok
    assert [attempt.outcome.ok for attempt in attempts] == wanted
    run.supervisor.close()
    assert all(process.closed for process in run.processes if process.name.startswith("p"))


def test_an_exception_at_the_same_line_is_repeated_twice() -> None:
    """Where cases that were the first of their process have raised it."""
    run = Run(same_line)
    attempts = [run.case(number) for number in range(11)]
    assert " ".join(run.log) == "p0:0 p0:1 p0:2 p0:3 p0:4 p1:4 p0:5 p0:6 p0:7 p0:8 p0:9 p0:10"
    hints = [attempt.outcome.error.hint for attempt in attempts if attempt.outcome.error]
    said = "2 earlier cases raised the same, so this one was not run again by itself"
    assert hints == ["", "", said, said, said]


def test_a_launch_that_was_refused_is_refused_again() -> None:
    run = Run(refused)
    assert [run.case(number).outcome.ok for number in range(4)] == [True, False, False, False]
    assert " ".join(run.log) == "p0:0 p0:1 p1:1 p0:2 p0:3"


def test_what_leaves_nothing_behind_is_not_repeated() -> None:
    run = Run(at(1), leaves_nothing=True)
    assert [run.case(number).outcome.ok for number in range(3)] == [True, False, True]
    assert " ".join(run.log) == "p0:0 p0:1 p0:2"
    lost = Run(dies(1), leaves_nothing=True)
    assert [lost.case(number).outcome.ok for number in range(3)] == [True, False, True]
    assert " ".join(lost.log) == "p0:0 p0:1 p1:1 p2:2"


def test_a_worker_that_may_hold_half_of_something_is_not_given_away() -> None:
    for program, given in ((ok, True), (at(0), False), (at(1), False)):
        run = Run(program)
        assert run.supervisor.release() is None
        run.case(0), run.case(1)
        process = run.supervisor.release()
        assert (process is not None) is given
        run.supervisor.close()
        assert run.processes[0].closed is not given


def test_what_was_begun_may_be_abandoned() -> None:
    run = Run(ok)

    class Endless:
        def begin(self, process: Process) -> None:
            pass

    run.supervisor.abandon()
    run.supervisor.begin(Endless())  # type: ignore[arg-type]
    run.supervisor.abandon()
    assert [process.closed for process in run.processes] == [True]
    run.supervisor.abandon()
    assert run.case(0).outcome.ok
    assert run.log == ["p1:0"]


def test_a_message_takes_as_many_cases_as_run_in_a_short_time() -> None:
    cases = [Case(n, n, "float32", "contiguous", "normal", (InputSpec("x", (1 << 20,), "float32"),))
             for n in range(200)]  # fmt: skip
    size = BatchSize()
    assert [size.take(cases), size.take([]), size.admits(1, 1 << 40)] == [1, 0, True]
    size.took(1, 0.001)
    assert size.take(cases) == 4, "16 MiB"
    assert size.take(cases, 2) == 2
    assert [size.admits(n, 0) for n in (32, 33)] == [True, False]
    size.took(32, 0.001)
    assert [size.admits(n, 0) for n in (128, 129)] == [True, False]
    assert [size.admits(2, nbytes) for nbytes in (16 << 20, (16 << 20) + 1)] == [True, False]
    for seconds, allowed in ((0.5, 5), (25.0, 1), (0.0, 32)):
        size.took(10, seconds)
        assert [size.admits(n, 0) for n in (allowed, allowed + 1)] == [True, False]
    size.restart()
    assert not size.admits(2, 0)
