"""Fuzzing on workers of dask: the same verdicts in the same order, whatever becomes of a worker."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster import Scheduler, below_of, started, wait_until_gone
from mini_workspace import Mini, make_mini

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import FailureLog
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.fuzz.outcome import Judged
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.store.failures import FailureStore

pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
import dask

from gpuemu_flow.services.cluster import dask_cluster
from gpuemu_flow.services.cluster.dask_cluster import open_cluster

pytestmark = pytest.mark.ci

KILLER = """
    import os
    import signal

    from common import widen

    def scale(x):
        if x.size == SIZE:
            pid = os.getpid()
            while pid > 1:
                with open(f"/proc/{pid}/stat") as stat:
                    pid = int(stat.read().rpartition(")")[2].split()[1])
                with open(f"/proc/{pid}/cmdline") as line:
                    if "spawn_main" in line.read():
                        os.kill(pid, signal.SIGKILL)
                        signal.pause()
        return (widen(x) * 3).astype(x.dtype)
    """


READS_FACTOR = """
    import os

    FACTOR = float(os.environ.get("FACTOR", "3"))

    def scale(x):
        return (x * FACTOR).astype(x.dtype)
    """


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    with started(tmp_path_factory.mktemp("dask")) as scheduler:
        yield scheduler


@pytest.fixture
def scheduler(running: Scheduler) -> Iterator[Scheduler]:
    """A scheduler without workers."""
    yield running
    running.end_workers()


def fuzzed(
    mini: Mini, op: str, options: FuzzOptions, scheduler: str | None = None, **hooks: object
) -> list[Judged]:
    """The verdicts of a run in the order in which they came; its failures are recorded."""
    workspace = Workspace(mini.root)
    workspace.cache.create()
    log = FailureLog(workspace)
    found: list[Judged] = []

    def on_failure(subject: object, judged: Judged) -> None:
        log.add(op, judged.case, judged.result, source="fuzz")

    hooks = {"on_case": found.append, **hooks}
    try:
        if scheduler is None:
            Fuzzer(workspace, op, options, on_failure=on_failure, **hooks).run()  # type: ignore[arg-type]
        else:
            where = {"jobs": options.jobs, "resources": {}, "force": options.force}
            with open_cluster(scheduler, **where) as cluster:  # type: ignore[arg-type]
                fuzzer = Fuzzer(
                    workspace,
                    op,
                    options,
                    on_failure=on_failure,
                    cluster=cluster,
                    **hooks,  # type: ignore[arg-type]
                )
                fuzzer.run()
    finally:
        workspace.cache.close()
    return found


def told(judged: list[Judged]) -> list[object]:
    return [[j.number, plain(j.case), plain(j.result)] for j in judged]


def recorded(mini: Mini) -> list[object]:
    """The recorded failures by case, as stored but for the time; they are forgotten then."""
    store = FailureStore(Workspace(mini.root).cache)
    found: list[object] = []
    for record in sorted(store.list(), key=lambda r: (r.dtype, r.seed)):
        data = plain(record)
        del data["time"]
        found.append([data, store.input_tensors(record)])
    mini.command("clean", "--cache")
    return found


def test_one_two_and_three_workers_say_what_one_machine_says(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    mini = make_mini(tmp_path / "w")
    mini.edit("scripts/total.py", "acc +=", "acc =")
    options = FuzzOptions(iterations=60, seed=9, force=True)
    here = sorted(fuzzed(mini, "total", options), key=lambda j: j.number)
    failures = recorded(mini)
    assert failures
    for _ in range(3):
        scheduler.add_worker()
        there = fuzzed(mini, "total", options, scheduler.address)
        assert told(there) == told(here)
        assert recorded(mini) == failures
    workers = [psutil.Process(worker.pid) for worker in scheduler.workers]
    assert not wait_until_gone([below for worker in workers for below in below_of(worker)])


def test_what_a_cluster_judged_is_known_to_this_machine_and_the_other_way_round(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    mini = make_mini(tmp_path / "w")
    scheduler.add_worker()
    there = fuzzed(mini, "scale", FuzzOptions(iterations=20), scheduler.address)
    assert not any(j.cached for j in there)
    again = fuzzed(mini, "scale", FuzzOptions(iterations=30))
    assert [j.number for j in again if not j.cached] == list(range(20, 30))
    more = fuzzed(mini, "scale", FuzzOptions(iterations=40), scheduler.address)
    assert [j.number for j in more if not j.cached] == list(range(30, 40))
    assert [j.number for j in more] == list(range(40))
    mini.edit("scripts/scale.py", "* 3", "* 3.0625")
    edited = fuzzed(mini, "scale", FuzzOptions(iterations=20), scheduler.address)
    assert not any(j.cached for j in edited)
    assert len(recorded(mini)) > 10


def test_a_worker_killed_in_mid_run_costs_only_time(tmp_path: Path, scheduler: Scheduler) -> None:
    mini = make_mini(tmp_path / "w")
    mini.edit("scripts/total.py", "acc +=", "acc =")
    options = FuzzOptions(iterations=200, seed=9, force=True)
    first, _ = scheduler.add_worker(), scheduler.add_worker()
    found: list[Judged] = []

    def on_case(judged: Judged) -> None:
        found.append(judged)
        if judged.number == 60:
            for below in (*below_of(first), first):
                below.kill()

    fuzzed(mini, "total", options, scheduler.address, on_case=on_case)
    assert scheduler.workers[0].wait() == -signal.SIGKILL
    here = sorted(fuzzed(mini, "total", options), key=lambda j: j.number)
    assert told(found) == told(here)


def test_a_case_that_kills_its_workers_is_found_and_others_keep_their_verdicts(
    tmp_path: Path,
) -> None:
    mini = make_mini(tmp_path / "w")
    mini.unfence()
    options = FuzzOptions(iterations=4, force=True, jobs=2)
    here = sorted(fuzzed(mini, "scale", options), key=lambda j: j.number)
    sizes = [j.case.numel for j in here]
    killer = next(n for n, size in enumerate(sizes) if sizes.count(size) == 1)
    mini.write("scripts/scale.py", KILLER.replace("SIZE", str(sizes[killer])))
    there = fuzzed(mini, "scale", options, "")
    assert there[killer].result.verdict == "error"
    (failure,) = there[killer].result.failures
    assert failure.why == "cluster-worker-died"
    del there[killer], here[killer]
    assert told(there) == told(here)


def test_workers_that_dask_gave_up_are_replaced(tmp_path: Path) -> None:
    """It does so with those that take too long to come up again after they were killed."""
    mini = make_mini(tmp_path / "w")
    workspace = Workspace(mini.root)
    workspace.cache.create()
    options = FuzzOptions(iterations=4, force=True)
    seen: list[Judged] = []
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}),
        open_cluster("", jobs=2, resources={}, force=True) as cluster,
    ):
        own = cluster._client.cluster
        for worker in list(own.workers.values()):
            own.sync(worker.close)
        Fuzzer(workspace, "scale", options, cluster=cluster, on_case=seen.append).run()
    workspace.cache.close()
    assert [judged.result.verdict for judged in seen] == ["passed"] * 4


def test_a_worker_that_differs_is_refused_and_nothing_of_it_is_kept(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    mini = make_mini(tmp_path / "w")
    mini.edit("gpuemu.toml", 'op = "scripts/scale.py:scale"\n',
              'op = "scripts/scale.py:scale"\nenv = ["FACTOR"]\n')  # fmt: skip
    mini.write("scripts/scale.py", READS_FACTOR)
    scheduler.add_worker(FACTOR="4")
    with pytest.raises(FlowError) as refused:
        fuzzed(mini, "scale", FuzzOptions(iterations=4), scheduler.address)
    assert refused.value.slug == "cluster-worker-differs"
    assert "variable FACTOR" in str(refused.value)
    assert not any(j.cached for j in fuzzed(mini, "scale", FuzzOptions(iterations=4)))


def test_a_worker_that_sees_another_file_is_refused_before_it_judges(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    mini = make_mini(tmp_path / "w")
    scheduler.add_worker()
    options = FuzzOptions(iterations=4)
    with open_cluster(scheduler.address, jobs=1, resources={}, force=False) as cluster:
        stale = Workspace(mini.root)
        fuzzer = Fuzzer(stale, "scale", options, cluster=cluster)
        mini.edit("scripts/scale.py", "* 3", "* 4")
        with pytest.raises(FlowError) as refused:
            fuzzer.run()
        stale.cache.close()
    assert refused.value.slug == "cluster-worker-differs"
    assert "scale in float32" in str(refused.value)


@pytest.mark.parametrize("own", [False, True], ids=["scheduler", "own workers"])
def test_ctrl_c_ends_what_workers_do(tmp_path: Path, scheduler: Scheduler, own: bool) -> None:
    mini = make_mini(tmp_path / "w")
    where = ["--scheduler", scheduler.address]
    if own:
        where = ["-j", "2"]
    else:
        scheduler.add_worker()
    process = mini.popen("fuzz", "scale", "-n", "1000000", "--executor", "dask", *where,
                         start_new_session=True)  # fmt: skip
    root = psutil.Process(process.pid) if own else psutil.Process(scheduler.workers[0].pid)
    programs = 5 if own else 3  # workers and theirs
    below: list[psutil.Process] = []
    while len(below) < programs:
        assert process.poll() is None, process.communicate()
        below = below_of(root)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, out + err
    assert "interrupted after" in out  # after 0 cases, if the cluster was not yet ready
    assert "Traceback" not in err
    assert not wait_until_gone([*below, *below_of(root)])


def test_no_scheduler_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_cluster, "CONNECT_SECONDS", 1)
    mini = make_mini(tmp_path / "w")
    for address, slug in (("tcp://127.0.0.1:9", "cluster-unreachable"), ("x", "cluster-address")):
        with pytest.raises(FlowError) as refused:
            fuzzed(mini, "scale", FuzzOptions(iterations=4), address)
        assert refused.value.slug == slug


def test_the_command_reports_what_it_reports_without_a_cluster(
    tmp_path: Path, scheduler: Scheduler
) -> None:
    mini = make_mini(tmp_path / "w")
    mini.edit("scripts/total.py", "acc +=", "acc =")
    scheduler.add_worker("--resources", "GPU=1")
    words = ["fuzz", "total", "-n", "40", "--force", "--no-confirm", "--format", "json", "-x"]
    there = ["--executor", "dask", "--scheduler", scheduler.address, "--resource", "GPU=1"]
    reports = []
    for more in (["-j", "1"], there):
        report = json.loads(mini.command(*words, *more, code=1).stdout)
        for of_the_run in ("duration_s", "cases_per_s"):
            del report[of_the_run]
        for failure in report["failures"]:
            del failure["time"]
        reports.append(report)
    assert reports[0] == reports[1]
    assert mini.command("fuzz", "--scheduler", "tcp://x:1", code=2).stdout == ""


def listening() -> set[tuple[int, str, int]]:
    """Return (process, address, port) of sockets on which this process and its children listen."""
    me = psutil.Process()
    return {
        (process.pid, place.laddr.ip, place.laddr.port)
        for process in (me, *below_of(me))
        for place in process.net_connections(kind="inet")
        if place.status == psutil.CONN_LISTEN
    }


def test_processes_of_a_local_cluster_listen_on_this_machine_only() -> None:
    before = listening()  # those of schedulers that other tests started
    with open_cluster("", jobs=2, resources={}, force=False):
        found = listening() - before
    assert len(found) >= 3
    assert {address for _, address, _ in found} == {"127.0.0.1"}
