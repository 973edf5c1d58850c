"""Rates of `fuzz --executor dask`: measured with a few workers, simulated with up to 10,000.

``measure`` fuzzes an op on this machine, alone and with two workers of dask behind a scheduler, all
as processes of their own, and prints rates and the CPU time that each part takes. With
``--wait-ms`` the op waits that long in each call, as one does that waits for a device: that leaves
the processors free, so that few of them show how workers add up. ``memory`` fuzzes an op with
workers of this machine's own, prints what each process holds at each quarter of the cases, and can
kill a worker at half. ``simulate`` takes such costs and asks how long 10^9 cases take with more
workers than anybody has here.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "integration")]

from cluster import Scheduler, below_of, started  # noqa: E402
from mini_workspace import Mini, make_mini  # noqa: E402

from gpuemu_flow.build.workspace import Workspace  # noqa: E402
from gpuemu_flow.fuzz.fuzzing import (  # noqa: E402
    MOST_BATCH,
    TARGET_SECONDS,
    Fuzzer,
    FuzzOptions,
)
from gpuemu_flow.fuzz.outcome import Judged  # noqa: E402
from gpuemu_flow.services.cluster.dask_cluster import (  # noqa: E402
    PER_THREAD,
    open_cluster,
)
from gpuemu_flow.services.cluster.worker import BatchRequest  # noqa: E402

CASES = 10**9
WARM_UP = 0.2  # of the cases, after which the clock starts
SPREAD = 0.3  # of the times of batches, as the standard deviation of their logarithm
WORKERS = (1, 2, 10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Costs:
    """Seconds that the parts of a run take.

    Attributes
    ----------
    case : float
        Of a worker, to judge a case.
    coordinator_case : float
        Of the coordinator: plan, look up, encode, decode, count, store.
    scheduler_batch : float
        Of dask's scheduler.
    way : float
        From one machine to another and back.
    """

    case: float
    coordinator_case: float
    scheduler_batch: float
    way: float = 0.002


def cpu_of(processes: list[psutil.Process]) -> float:
    """CPU seconds of processes that still run, and of their children that have ended."""
    total = 0.0
    for process in processes:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Meter:
    """Notes clocks when the warm-up is over."""

    def __init__(self, count: int, others: list[psutil.Process]) -> None:
        self._from = int(count * WARM_UP)
        self._others = others
        self._seen = 0
        self.begin: tuple[float, float, float] | None = None

    def clocks(self) -> tuple[float, float, float]:
        """Wall, this process's CPU, and that of the others with all below them."""
        below = [p for other in self._others for p in (other, *below_of(other))]
        return time.perf_counter(), time.process_time(), cpu_of(below)

    def __call__(self, _judged: Judged) -> None:
        self._seen += 1
        if self.begin is None and self._seen >= self._from:
            self.begin = self.clocks()

    def figures(self) -> tuple[float, float, float]:
        """Cases a second, and CPU seconds per case here and elsewhere."""
        assert self.begin is not None
        cases = self._seen - self._from
        wall, here, there = (b - a for a, b in zip(self.begin, self.clocks(), strict=True))
        return cases / wall, here / cases, there / cases


def fuzz(
    mini: Mini, op: str, count: int, scheduler: Scheduler | None
) -> tuple[float, float, float]:
    """Fuzz an op once, and return its figures."""
    workspace = Workspace(mini.root)
    workspace.cache.create()
    options = FuzzOptions(iterations=count, force=True, jobs=1)
    try:
        if scheduler is None:
            meter = Meter(count, [])
            Fuzzer(workspace, op, options, on_case=meter).run()
            return meter.figures()
        meter = Meter(count, [psutil.Process(worker.pid) for worker in scheduler.workers])
        with open_cluster(scheduler.address, jobs=1, resources={}, force=True) as cluster:
            fuzzer = Fuzzer(workspace, op, options, on_case=meter, cluster=cluster)
            fuzzer.run()
            return meter.figures()
    finally:
        workspace.cache.close()


def measure(op: str, count: int, workers: int, wait_ms: float) -> None:
    """Print the rates of one machine and of a cluster on it."""
    with tempfile.TemporaryDirectory() as folder, started(Path(folder) / "dask") as scheduler:
        mini = make_mini(Path(folder) / "w")
        if wait_ms:
            op = "scale"
            wait = f"time.sleep({wait_ms / 1e3})\n    return (widen"
            mini.edit("scripts/scale.py", "return (widen", wait)
            mini.edit("scripts/scale.py", "def scale", "import time\n\n\ndef scale")
        load = psutil.getloadavg()[0]
        print(f"{psutil.cpu_count()} processors, load {load:.1f}; {op}, {count} cases")
        alone, here, _ = fuzz(mini, op, count, None)
        print(f"here: {alone:.0f} cases/s, {here * 1e3:.2f} ms CPU of the coordinator per case")
        for _ in range(workers):
            scheduler.add_worker()
        server = scheduler.process
        before = cpu_of([server])
        rate, here, there = fuzz(mini, op, count, scheduler)
        scheduling = (cpu_of([server]) - before) / count
        print(f"{workers} workers: {rate:.0f} cases/s, {rate / alone:.2f} times one local worker;")
        print(f"CPU per case: {here * 1e3:.2f} ms of the", end=" ")
        print(f"coordinator, {there * 1e3:.2f} of workers, {scheduling * 1e3:.3f} of the scheduler")


def held(process: psutil.Process) -> str:
    """Describe what a process holds in memory, and how much of that is no file's."""
    with contextlib.suppress(psutil.NoSuchProcess):
        memory = process.memory_info()
        return f"{memory.rss / 1e6:.1f} ({(memory.rss - memory.shared) / 1e6:.1f})"
    return "gone"


def memory(op: str, count: int, workers: int, *, kill: bool) -> None:
    """Print what processes hold at each quarter of a run, and what a worker's death cost."""
    judged = sent = 0
    marks = {count // 20, *(count * quarter // 4 for quarter in range(1, 5))}
    encode = BatchRequest.encode

    def counted(request: BatchRequest) -> bytes:
        nonlocal sent
        sent += len(request.cases)
        return encode(request)

    def on_case(_judged: Judged) -> None:
        nonlocal judged
        judged += 1
        if judged in marks:
            own = cluster._client.cluster
            below = [psutil.Process(nanny.pid) for nanny in own.workers.values() if nanny.pid]
            programs = [p for worker in below for p in below_of(worker)]
            parts = (
                ("coordinator", [psutil.Process()]),
                ("workers", below),
                ("programs", programs),
            )
            shown = "; ".join(f"{name} {', '.join(map(held, each))}" for name, each in parts)
            passed = time.perf_counter() - begin
            print(f"{judged / count:4.0%} {passed:6.1f} s, MB (own): {shown}", flush=True)
            if kill and judged == count // 2:
                print(f"SIGKILL to {below[0].pid}")
                below[0].kill()

    BatchRequest.encode = counted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        mini = make_mini(Path(folder) / "w")
        workspace = Workspace(mini.root)
        workspace.trusted = True
        workspace.cache.create()
        print(f"load {psutil.getloadavg()[0]:.1f}; {op}, {count} cases, {workers} workers")
        with open_cluster("", jobs=workers, resources={}, force=False) as cluster:
            begin = time.perf_counter()
            options = FuzzOptions(iterations=count, jobs=workers)
            Fuzzer(workspace, op, options, on_case=on_case, cluster=cluster).run()
            passed = time.perf_counter() - begin
        workspace.cache.close()
    print(f"{judged} cases in {passed:.1f} s, {judged / passed:.0f} a second")
    print(f"{sent - judged} cases were sent again")


def simulate(costs: Costs, workers: int, cases: int, draw: random.Random) -> tuple[float, str]:
    """Return the seconds that a run takes, and the part that is always busy.

    The coordinator and the scheduler serve one after the other; each worker has a queue of
    `PER_THREAD`. Some 40 batches per worker are simulated, and the rest follows from their rate.
    """
    size = max(1, min(MOST_BATCH, int(TARGET_SECONDS / costs.case)))
    rounds = min(40 * workers, max(workers, cases // size))
    coordinator = scheduler = 0.0
    busy = {"the coordinator": 0.0, "the scheduler": 0.0, "the workers": 0.0}
    free = [0.0] * workers
    back: list[float] = [0.0] * min(PER_THREAD * workers, rounds)  # when a place becomes free
    heapq.heapify(back)
    heapq.heapify(free)
    end = 0.0
    for _ in range(rounds):
        ready = heapq.heappop(back)
        take = costs.coordinator_case * size
        coordinator = max(coordinator, ready) + take
        scheduler = max(scheduler, coordinator + costs.way / 2) + costs.scheduler_batch
        work = costs.case * size * draw.lognormvariate(-SPREAD * SPREAD / 2, SPREAD)
        begin = max(heapq.heappop(free), scheduler + costs.way / 2)
        heapq.heappush(free, begin + work)
        done = begin + work + costs.way
        heapq.heappush(back, done)
        end = max(end, done)
        busy["the coordinator"] += take
        busy["the scheduler"] += costs.scheduler_batch
        busy["the workers"] += work / workers
    limit = max(busy, key=lambda name: busy[name])
    return end * cases / (rounds * size), limit


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measured = commands.add_parser("measure")
    measured.add_argument("--op", default="scale")
    measured.add_argument("--cases", type=int, default=4000)
    measured.add_argument("--workers", type=int, default=2)
    measured.add_argument("--wait-ms", type=float, default=0.0)
    memories = commands.add_parser("memory")
    memories.add_argument("--op", default="scale")
    memories.add_argument("--cases", type=int, default=100_000)
    memories.add_argument("--workers", type=int, default=2)
    memories.add_argument("--kill", action="store_true", help="kill a worker at half")
    simulated = commands.add_parser("simulate")
    simulated.add_argument("--case-ms", type=float, nargs="+", default=[1.0, 10.0, 100.0, 1000.0])
    simulated.add_argument("--coordinator-ms", type=float, default=0.22)
    simulated.add_argument("--scheduler-ms", type=float, default=1.0)
    options = parser.parse_args()
    if options.command == "measure":
        measure(options.op, options.cases, options.workers, options.wait_ms)
        return
    if options.command == "memory":
        memory(options.op, options.cases, options.workers, kill=options.kill)
        return
    for case_ms in options.case_ms:
        costs = Costs(case_ms / 1e3, options.coordinator_ms / 1e3, options.scheduler_ms / 1e3)
        print(f"\ncases of {case_ms:g} ms: workers, hours for 10^9 cases, efficiency, limit")
        for workers in WORKERS:
            seconds, limit = simulate(costs, workers, CASES, random.Random(workers))
            share = costs.case * CASES / workers / seconds
            print(f"{workers:>7} {seconds / 3600:>12,.1f} {share:>8.0%}  {limit}")


if __name__ == "__main__":
    main()
