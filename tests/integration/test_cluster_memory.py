"""Memory that processes of a cluster use for work that is done does not grow with a run."""

from __future__ import annotations

import gc
import secrets
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Scheduler, started
from mini_workspace import make_mini

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions

pytest.importorskip("distributed", reason="the extra `cluster` is not installed")
from distributed import Client

from gpuemu_flow.services.cluster import worker
from gpuemu_flow.services.cluster.dask_cluster import ClusterTasks, open_cluster

pytestmark = pytest.mark.ci

MESSAGE_BYTES = 50_000
MESSAGES = 200


class Whole:
    """Work that cannot be divided."""

    def halves(self) -> None:
        """No parts."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scheduler]:
    with started(tmp_path_factory.mktemp("dask")) as scheduler:
        yield scheduler


def profiled(dask_worker: object) -> int:
    """Count the calls that a worker of dask has sampled."""
    trees = [tree for _, tree in dask_worker.profile_history]  # type: ignore[attr-defined]
    return sum(tree["count"] for tree in (*trees, dask_worker.profile_recent))  # type: ignore[attr-defined]


def exchange(client: Client, count: int) -> int:
    """Send messages and await them all; return the bytes that this process allocated meanwhile."""
    tasks: ClusterTasks[Whole] = ClusterTasks(client, bytes, "r", end=worker.end_run, resources={})

    def message(_work: Whole) -> bytes:
        return secrets.token_bytes(MESSAGE_BYTES)

    sent = answered = 0
    tracemalloc.start()
    try:
        while answered < count:
            while sent < count and tasks.outstanding < max(1, tasks.capacity):
                tasks.submit(Whole(), message)
                sent += 1
            for _, data in tasks.answers(1.0):
                assert data is not None
                assert len(data) == MESSAGE_BYTES
                answered += 1
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        tasks.close()


@pytest.mark.parametrize("own", [True, False])
def test_messages_are_not_kept_when_they_are_answered(running: Scheduler, own: bool) -> None:
    """dask logs the last thousand of each connection by default, in the coordinator too."""
    if not own:
        running.add_worker()
    address = "" if own else running.address
    with open_cluster(address, jobs=1, resources={}, force=True) as cluster:
        kept = exchange(cluster._client, MESSAGES)
    assert kept < MESSAGES * MESSAGE_BYTES / 2


def test_workers_of_this_machine_keep_no_profiles_of_their_calls(tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "w")
    mini.edit("scripts/scale.py", "return (widen", "time.sleep(0.02)\n    return (widen")
    mini.edit("scripts/scale.py", "def scale", "import time\n\n\ndef scale")
    workspace = Workspace(mini.root)
    workspace.cache.create()
    with open_cluster("", jobs=1, resources={}, force=True) as cluster:
        options = FuzzOptions(iterations=16, force=True)
        Fuzzer(workspace, "scale", options, cluster=cluster).run()
        counts = cluster._client.run(profiled)
    workspace.cache.close()
    assert list(counts.values()) == [0]
