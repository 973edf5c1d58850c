"""Measure a daemon under hostile clients: mutated requests and connections that say half of it.

A workspace of its own. While one process sends requests that are wrong in some place or nested
deeply, and then holds many connections open that never finish a request, a well-behaved client in
a process of its own pings every 10 ms. Another pings a second daemon meanwhile that nobody attacks:
what that one waits for is the load of the machine. The distribution of both clients' waits is
printed, with the most CPU time (ms) that the daemon used during one wait, which is what it adds
itself whatever the load; the CPU time of the attacked daemon, what its threads waited for a
processor, and its memory and descriptors before, during and after.

    python benchmarks/bench_hostile.py [--requests 50000] [--connections 1000] [--json]

Exit code 1 if the daemon has ended, left a request without an answer, or does not come back to the
descriptors of the beginning. Times are reported and not judged: see the load of the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pynng

from gpuemu_flow.services.daemon.control import stop_daemon
from gpuemu_flow.wire import start_daemon

CONFIG = """\
[project]
name = "hostile"

[[ops]]
name = "double"
reference = "refs.py:double"
input_names = ["x"]
execution_mode = "client_side"
"""
REFERENCES = "def double(x):\n    return x * 2\n"
PING = b'{"type": "Ping"}'
PING_EVERY_S = 0.01
TENSOR = {"shape": [2], "dtype": "float32", "data": "AAAAAAAAgD8="}
REQUESTS: list[dict[str, Any]] = [
    {"type": "Ping"},
    {"type": "ValidateOp", "op_name": "double", "inputs": {"x": TENSOR}, "output": TENSOR,
     "kwargs": {"k": "2"}},
    {"type": "SubmitOutput", "op_name": "double", "inputs": {"x": TENSOR}, "output": TENSOR,
     "seed": 7, "kwargs": {}},
    {"type": "GetResult", "seed": 7},
    {"type": "ListResults", "limit": 3},
    {"type": "ListFailures", "limit": 3},
    {"type": "Reproduce", "seed": 7},
    {"type": "LintKernel", "kernel_name": None, "ptx_content": ".visible .entry k()\n{\nret;\n}"},
    {"type": "GetArtifact", "kernel_name": "k"},
    {"type": "ListArtifacts"},
    {"type": "GetCiSummary"},
    {"type": "Progress", "request_id": "r"},
    {"type": "Cancel", "request_id": "r"},
]  # fmt: skip
WRONG: list[Any] = [
    None, True, -1, 1 << 64, 1 << 200, 1e308, "", "\x00", "../../etc/passwd", "y" * 5000, [[]],
    [-1], [1 << 40], ["float33"], {}, {"x": None}, {"data": "AAAA"},
]  # fmt: skip
MARK = "a place for what is too deep for Python's own reader and writer"
DEEP = (
    *("[" * depth + "]" * depth for depth in (60, 1_000, 100_000)),
    *('{"x":' * depth + "1" + "}" * depth for depth in (60, 1_000, 100_000)),
    "[" * 100_000,
)
GREETING = b"\x00SP\x00\x00\x30\x00\x00"
SLOW = (
    b"",
    GREETING,
    GREETING + struct.pack(">BQ", 1, 20),
    GREETING + struct.pack(">BQ", 1, 1 << 29),
    GREETING + struct.pack(">BQI", 1, 20, 0x80000001) + PING[:9],
)
LATE_MS = 50
SETTLE_S = 60.0
SPARE_DESCRIPTORS = 40
"""Each thread opens databases when it first needs them: some 20 descriptors, then no more."""


@dataclass(frozen=True)
class Daemons:
    """Both daemons: their processes, and where they answer."""

    pid: int
    attacked: str
    control_pid: int
    control: str


def places(message: Any) -> list[tuple[Any, Any]]:
    """List every container in a message with each of its keys, however deep it is nested."""
    found, waiting = [], [message]
    while waiting:
        value = waiting.pop()
        for key in value if isinstance(value, dict) else range(len(value)):
            found.append((value, key))
            if isinstance(value[key], (dict, list)):
                waiting.append(value[key])
    return found


def mutated(chance: random.Random) -> bytes:
    """Return a request that is wrong in one to three places, or whose bytes are."""
    message = json.loads(json.dumps(chance.choice(REQUESTS)))
    if chance.random() < 0.7:
        for _ in range(chance.randint(1, 3)):
            found = places(message)
            if not found:
                break
            container, key = chance.choice(found)
            if chance.random() < 0.2:
                del container[key]
            else:
                # A copy: a later mutation would change it for all messages, or put it into itself.
                container[key] = json.loads(json.dumps(chance.choice(WRONG)))
        if chance.random() < 0.01 and message:
            message[chance.choice(list(message))] = MARK
        return json.dumps(message).replace(f'"{MARK}"', chance.choice(DEEP)).encode()
    data = bytearray(json.dumps(message).encode())
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data))
        data[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 3))
    return bytes(data) or b"{"


def ping_until_closed(address: str, pid: int) -> None:
    """Ping until standard input is closed; print the waits, and the daemon's CPU time in each."""
    clock = (~pid << 3) | 2  # the CPU time of all threads of another process: linux/posix-timers.h
    took = []
    with pynng.Req0(dial=address, recv_timeout=30_000, send_timeout=30_000) as client:
        os.set_blocking(0, False)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            begin, used = time.perf_counter(), time.clock_gettime(clock)
            client.send(PING)
            client.recv()
            used = time.clock_gettime(clock) - used
            took.append((1000 * (time.perf_counter() - begin), 1000 * used))
            with contextlib.suppress(BlockingIOError):
                if not os.read(0, 1):
                    break
            time.sleep(PING_EVERY_S)
    json.dump(took, sys.stdout)


def waits(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """End a client, and return the distribution of its waits."""
    said, _ = process.communicate()
    took, used = np.array(json.loads(said)).T
    quantiles = np.quantile(took, (0.5, 0.99, 0.999, 1.0)).round(2).tolist()
    return {
        "pings": took.size,
        **dict(zip(("p50", "p99", "p99.9", "worst"), quantiles, strict=True)),
        f"over_{LATE_MS}_ms": int((took > LATE_MS).sum()),
        "worst_cpu": round(float(used.max()), 2),
    }


@contextlib.contextmanager
def pinged(daemons: Daemons, found: dict[str, Any], name: str) -> Iterator[None]:
    """Ping both daemons from other processes meanwhile, and put the distributions into `found`."""
    clients = [
        subprocess.Popen(
            [sys.executable, __file__, "--ping", address, "--pid", str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for pid, address in (
            (daemons.pid, daemons.attacked),
            (daemons.control_pid, daemons.control),
        )
    ]
    for client in clients:
        if client.stdout is not None:
            client.stdout.readline()
    begin, before = time.perf_counter(), processor(daemons.pid)
    yield
    wall, after = time.perf_counter() - begin, processor(daemons.pid)
    found[f"{name}_ms"], found[f"{name}_control_ms"] = map(waits, clients)
    found[f"{name}_processor_s"] = {
        "wall": round(wall, 2),
        "daemon": round(after[0] - before[0], 2),
        "daemon_waited": round(after[1] - before[1], 2),
    }


def processor(pid: int) -> tuple[float, float]:
    """Return the seconds that a process's threads ran, and waited for a processor."""
    ran = waited = 0
    for path in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError, ValueError):  # a thread that ended, a kernel without
            words = (path / "schedstat").read_text().split()
            ran, waited = ran + int(words[0]), waited + int(words[1])
    return ran / 1e9, waited / 1e9


def state(pid: int) -> dict[str, float]:
    """Return the descriptors and the resident MiB of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    mib = pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    return {"descriptors": descriptors, "resident_mib": round(mib, 1)}


def send_mutated(address: str, count: int, seed: int) -> tuple[int, Counter[str]]:
    """Send requests one after another; return how many had no answer, and the kinds of answers."""
    chance = random.Random(seed)
    unanswered, kinds = 0, Counter[str]()
    with pynng.Req0(dial=address, recv_timeout=60_000, send_timeout=60_000) as client:
        for _ in range(count):
            client.send(mutated(chance))
            try:
                answer = json.loads(client.recv())
            except (pynng.exceptions.Timeout, ValueError):
                unanswered += 1
                continue
            kinds[str(answer.get("code", answer.get("type")))] += 1
    return unanswered, kinds


def hold_connections(path: str, count: int) -> list[socket.socket]:
    """Open connections that never finish what they say."""
    held = []
    for number in range(count):
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        with contextlib.suppress(OSError):
            sock.sendall(SLOW[number % len(SLOW)])
        held.append(sock)
    return held


def settle(pid: int, descriptors: float) -> None:
    """Wait until a process is back at a number of descriptors, or the time is up."""
    end = time.monotonic() + SETTLE_S
    while time.monotonic() < end and state(pid)["descriptors"] > descriptors + SPARE_DESCRIPTORS:
        time.sleep(0.2)


@contextlib.contextmanager
def daemon() -> Iterator[tuple[int, str]]:
    """Run a daemon in a workspace of its own; yield its process and the path of its socket."""
    home = Path(tempfile.mkdtemp(prefix="hostile-"))
    environ = {**os.environ, "HOME": str(home)}
    try:
        (home / "gpuemu.toml").write_text(CONFIG)
        (home / "refs.py").write_text(REFERENCES)
        info = start_daemon(home, environ)
        try:
            yield int(info["pid"]), str(info["socket"])
        finally:
            stop_daemon(home, environ)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def measure(requests: int, connections: int, seed: int) -> dict[str, Any]:
    """Run the load on one of two daemons."""
    with daemon() as (pid, path), daemon() as (control_pid, control):
        daemons = Daemons(pid, f"ipc://{path}", control_pid, f"ipc://{control}")
        return attack(daemons, path, requests, connections, seed)


def attack(
    daemons: Daemons, path: str, requests: int, connections: int, seed: int
) -> dict[str, Any]:
    """Send the requests, then hold the connections; return what was measured."""
    found: dict[str, Any] = {"load_before": os.getloadavg()[0]}
    send_mutated(daemons.attacked, requests // 10, seed + 1)  # until workers are warm
    found["begin"] = state(daemons.pid)
    with pinged(daemons, found, "ping_alone"):
        time.sleep(2)
    begin = time.perf_counter()
    with pinged(daemons, found, "ping_mutated"):
        found["unanswered"], kinds = send_mutated(daemons.attacked, requests, seed)
    found["requests_per_s"] = round(requests / (time.perf_counter() - begin))
    found["answers"] = dict(kinds.most_common())
    found["after_requests"] = state(daemons.pid)
    with pinged(daemons, found, "ping_slow"):
        held = hold_connections(path, connections)
        found["among_connections"] = state(daemons.pid)
        time.sleep(12)  # longer than a half-open connection lives
    for sock in held:
        sock.close()
    settle(daemons.pid, found["begin"]["descriptors"])
    found["end"] = state(daemons.pid)
    found["load_after"] = os.getloadavg()[0]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and tell whether the daemon held."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ping", help=argparse.SUPPRESS)
    parser.add_argument("--pid", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.ping:
        ping_until_closed(given.ping, given.pid)
        return 0
    found = measure(given.requests, given.connections, given.seed)
    if given.json:
        json.dump(found, sys.stdout, indent=1)
    else:
        for name, value in found.items():
            sys.stdout.write(f"{name:20} {value}\n")
    spare = found["begin"]["descriptors"] + SPARE_DESCRIPTORS
    return int(found["unanswered"] > 0 or found["end"]["descriptors"] > spare)


if __name__ == "__main__":
    sys.exit(main())
