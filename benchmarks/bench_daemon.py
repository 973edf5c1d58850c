"""Measure the daemon: throughput, pings under load, large tensors; exit with 1 if a bound fails.

A workspace of its own with two ops that only clients run: one whose reference sleeps 50 ms, one
whose reference is a short callable. Clients are processes of their own.

    python benchmarks/bench_daemon.py [--clients 8] [--seconds 4] [--json]

Bounds: N clients of the sleeping reference get at least 0.75 N times one client's throughput, and a
ping's 99th percentile stays below 20 ms while they do. The throughput of small submissions is
reported with the CPU time that daemon, workers and clients spend on each: with all of them on the
machine's cores, their sum is what limits it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gpuemu_flow.client import Client, TestCase
from gpuemu_flow.services.daemon.control import stop_daemon
from gpuemu_flow.wire import start_daemon

CONFIG = """\
[project]
name = "bench"

[execution]
max_parallel_refs = {clients}

[[ops]]
name = "sleeping"
reference = "refs.py:sleeping"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "short"
reference = "refs.py:short"
input_names = ["x"]
execution_mode = "client_side"
"""
REFERENCES = """\
import time

def sleeping(x):
    time.sleep(0.05)
    return x * 2

def short(x):
    return x * 2
"""
SCALING_BOUND, PING_BOUND_MS = 0.75, 20.0
PING_EVERY_S = 0.005
MANY = 2000  # cases in one request


@dataclass(frozen=True)
class Load:
    """One load on the daemon.

    Attributes
    ----------
    op : str
    clients : int
    per_second : float
        Requests answered.
    ping_p50_ms, ping_p99_ms : float
    cpu_us : dict of str to float
        Per request, of the daemon, its workers and the clients.
    """

    op: str
    clients: int
    per_second: float
    ping_p50_ms: float
    ping_p99_ms: float
    cpu_us: dict[str, float]


@contextmanager
def workspace(clients: int) -> Iterator[tuple[Path, dict[str, str], dict[str, object]]]:
    """A workspace with a running daemon."""
    folder = Path(tempfile.mkdtemp(prefix="gfb-"))
    root, home = folder / "ws", folder / "home"
    root.mkdir()
    home.mkdir()
    (root / "gpuemu.toml").write_text(CONFIG.format(clients=clients))
    (root / "refs.py").write_text(REFERENCES)
    environ = {**os.environ, "HOME": str(home)}
    try:
        yield root, environ, start_daemon(root, environ)
    finally:
        stop_daemon(root, environ)
        shutil.rmtree(folder, ignore_errors=True)


def client_main(socket: str, op: str, seconds: float) -> None:
    """A client process: submits as fast as it is answered, and says how often."""
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    with Client(socket) as client:
        client.validate_op(op, {"x": x}, x * 2)
        print("ready", flush=True)
        sys.stdin.readline()
        cpu, end, count = time.process_time(), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            if not client.validate_op(op, {"x": x}, x * 2).passed:
                raise SystemExit("a right output did not pass")
            count += 1
        print(json.dumps({"count": count, "cpu_s": time.process_time() - cpu}), flush=True)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workers_below(root: Path) -> list[int]:
    """Worker processes of the daemon's references."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == root.resolve():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def run_load(socket: str, root: Path, pid: int, op: str, clients: int, seconds: float) -> Load:
    """Let clients work and ping meanwhile."""
    command = [sys.executable, __file__, "--client", socket, op, str(seconds)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(clients)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    workers = [worker for worker in workers_below(root) if worker != pid]
    before = cpu_seconds(pid), sum(map(cpu_seconds, workers))
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    pings = []
    with Client(socket) as client:
        end = time.monotonic() + seconds * 0.9
        while time.monotonic() < end:
            begin = time.perf_counter()
            client.ping()
            pings.append((time.perf_counter() - begin) * 1e3)
            time.sleep(PING_EVERY_S)
    told = [json.loads(process.communicate()[0]) for process in processes]
    count = sum(one["count"] for one in told)
    living = [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    spent = {
        "daemon": cpu_seconds(pid) - before[0],
        "workers": sum(map(cpu_seconds, living)) - before[1],
        "clients": sum(one["cpu_s"] for one in told),
    }
    return Load(
        op,
        clients,
        count / seconds,
        statistics.median(pings),
        statistics.quantiles(pings, n=100)[98],
        {name: value / count * 1e6 for name, value in spent.items()},
    )


def many_outputs(socket: str, root: Path, pid: int) -> dict[str, float]:
    """Cases per second when they are submitted in one request, and the CPU time of each, in us.

    The time ends when the results are acknowledged, which is after they are stored.
    """
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    cases = [TestCase(seed=seed, inputs={"x": x}) for seed in range(MANY)]
    outputs = [x * 2] * MANY
    rounds = []
    with Client(socket) as client:
        client.submit_outputs("short", cases[:8], outputs[:8])
        workers = [worker for worker in workers_below(root) if worker != pid]
        for _ in range(3):
            before = cpu_seconds(pid), sum(map(cpu_seconds, workers)), time.process_time()
            begin = time.perf_counter()
            results = client.submit_outputs("short", cases, outputs)
            wall = time.perf_counter() - begin
            if not all(result.passed for result in results):
                raise SystemExit("a right output did not pass")
            spent = {
                "daemon": cpu_seconds(pid) - before[0],
                "workers": sum(map(cpu_seconds, workers)) - before[1],
                "clients": time.process_time() - before[2],
            }
            per_case = {name: seconds / MANY * 1e6 for name, seconds in spent.items()}
            rounds.append({"per_second": MANY / wall, **per_case})
    return max(rounds, key=lambda found: found["per_second"])


def large_tensors(socket: str) -> dict[str, float]:
    """Milliseconds for a validation of 64 MB in and 64 MB out, by file and in the message."""
    x = np.zeros(16 << 20, np.float32)
    found = {}
    for way in ("by file", "in the message"):
        with Client(socket) as client:
            client.ping()
            if way == "in the message":
                client._connection._exchange = None
            times = []
            for _ in range(3):
                begin = time.perf_counter()
                client.validate_op("short", {"x": x}, x)
                times.append((time.perf_counter() - begin) * 1e3)
        found[way] = min(times)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    with workspace(given.clients) as (root, _, info):
        socket, pid = str(info["socket"]), int(str(info["pid"]))
        loads = [
            run_load(socket, root, pid, op, clients, given.seconds)
            for op in ("sleeping", "short")
            for clients in (1, given.clients)
        ]
        at_once = many_outputs(socket, root, pid)
        large = large_tensors(socket)
    one, many = loads[0], loads[1]
    scaling = many.per_second / one.per_second
    missed = scaling < SCALING_BOUND * given.clients or many.ping_p99_ms > PING_BOUND_MS
    if given.json:
        found = [asdict(load) for load in loads]
        summary = {
            "loads": found,
            "scaling": scaling,
            "at_once": at_once,
            "large_ms": large,
            "ok": not missed,
        }
        print(json.dumps(summary))
        return int(missed)
    print(
        "reference  clients  requests/s  ping p50 ms  p99 ms  "
        "CPU us/request (daemon, workers, clients)"
    )
    for load in loads:
        cpu = " ".join(f"{load.cpu_us[name]:7.0f}" for name in ("daemon", "workers", "clients"))
        print(
            f"{load.op:9}  {load.clients:7}  {load.per_second:10.1f}  {load.ping_p50_ms:11.2f}"
            f"  {load.ping_p99_ms:6.2f}  {cpu}"
        )
    print(f"{given.clients} clients of the sleeping reference: {scaling:.1f} times one client")
    cpu = " ".join(f"{at_once[name]:.0f}" for name in ("daemon", "workers", "clients"))
    print(f"{MANY} cases in one request: {at_once['per_second']:.0f} cases/s, CPU us/case {cpu}")
    for way, milliseconds in large.items():
        print(f"64 MB in, 64 MB out, {way}: {milliseconds:.0f} ms")
    return int(missed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        client_main(sys.argv[2], sys.argv[3], float(sys.argv[4]))
    else:
        raise SystemExit(main())
