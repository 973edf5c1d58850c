"""The cost of fencing a worker; exits 1 when a bound is missed.

    python benchmarks/bench_sandbox.py [--rounds 30] [--fuzz-rounds 7] [--json]

The same fork server starts workers with the fence and without it, in turns. Each loads nothing and
ends. What is judged is CPU time, of the worker itself: `enter` is put into force in forked children
and measured there, in a workspace whose reference and cache are hidden as in a run, and in one that
hides 750 files. The ``fuzz`` command takes turns with sandbox and without, 500 cases of softmax
(8, 128, 512) each. The system enforces the fence, so that all it costs once its two workers have
entered is system time; the user time of the same cases varies by far more from run to run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import workspaces
from processes import Cost, plain_environment, timed

from gpuemu_flow.workers.process import ServerHandle
from gpuemu_flow.workers.sandbox.enter import enter, make_scratch, move_in
from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import Sandbox, lacks

MAX_MS = 50.0
MAX_FUZZ = 0.02
FILES, MANY = 100, 750
_PAIR = struct.Struct("dd")


@dataclass(frozen=True)
class Figures:
    """Medians in milliseconds, unless said otherwise.

    Attributes
    ----------
    level : str
    enter_cpu, enter_wall : float
        Of putting the fence into force in a forked process.
    many_cpu : float
        The same with 750 hidden files.
    fuzz_plain_cpu : float
        The median of a whole ``fuzz`` command without the fence.
    fuzz_system, fuzz_plain_system : float
        System time of the ``fuzz`` command, with the fence and without.
    fenced_wall, plain_wall : float
        From the request for a worker to its process id.
    """

    level: str
    enter_cpu: float
    enter_wall: float
    many_cpu: float
    fuzz_plain_cpu: float
    fuzz_system: float
    fuzz_plain_system: float
    fenced_wall: float
    plain_wall: float


def measure_enter(sandbox: Sandbox) -> tuple[float, float]:
    """CPU and wall milliseconds of `enter`, in a child that ends then."""
    around = make_scratch()
    scratch = make_scratch(around)
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        wall, cpu = time.perf_counter(), time.process_time()
        enter(sandbox, scratch, move_in(scratch, trusted=False))
        cost = time.process_time() - cpu, time.perf_counter() - wall
        os.write(theirs, _PAIR.pack(*cost))
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(theirs)
    cpu, wall = _PAIR.unpack(os.read(ours, _PAIR.size))
    os.close(ours)
    shutil.rmtree(around)
    return 1000 * cpu, 1000 * wall


def measure_start(server: ServerHandle, sandbox: Sandbox | None) -> float:
    """Wall milliseconds until a worker has its process id."""
    begin = time.perf_counter()
    worker = server.open_worker(fresh=False, sandbox=sandbox)
    seconds = time.perf_counter() - begin
    worker.close()
    return 1000 * seconds


def measure_fuzz(root: Path, rounds: int) -> tuple[float, float, float]:
    """Milliseconds of the ``fuzz`` command: all without the fence, system time with and without."""
    program = str(Path(sys.executable).with_name("gpuemu-flow"))
    command = [program, "fuzz", "softmax", "-n", "500", "--force", "--strategy", "uniform"]
    spent: dict[str, list[Cost]] = {"require": [], "off": []}
    for mode in spent:
        folder = root / mode
        folder.mkdir()
        workspaces.write_softmax(folder)
        with (folder / "gpuemu.toml").open("a") as stream:
            stream.write(f'\n[sandbox]\nmode = "{mode}"\n')
    environment = {**plain_environment(), "GPUEMU_TRUST": "1"}
    for _ in range(rounds):
        for mode, costs in spent.items():
            costs.append(timed(command, root / mode, environment))
    whole = statistics.median(cost.cpu_s for cost in spent["off"])
    fenced, plain = (statistics.median(c.system_s for c in costs) for costs in spent.values())
    return 1000 * whole, 1000 * fenced, 1000 * plain


def write_files(root: Path) -> tuple[str, str, str]:
    """Make folders of a few and of many scripts, and one for the cache; return their paths."""
    folders = scripts, many, cache = root / "scripts", root / "many", root / ".gpuemu-cache"
    for folder in folders:
        folder.mkdir()
    for folder, count in ((scripts, FILES), (many, MANY)):
        for number in range(count):
            (folder / f"op_{number}.py").write_text("x = 1\n")
    return str(scripts), str(many), str(cache)


def measure(root: Path, rounds: int, fuzz_rounds: int) -> Figures:
    """Take all measurements in turns."""
    scripts, many, cache = write_files(root)
    sandbox = Sandbox(system_level(), str(root), hidden=(f"{scripts}/op_1.py", cache))
    wide = tuple(f"{many}/op_{number}.py" for number in range(MANY))
    hiding = msgspec.structs.replace(sandbox, hidden=(*wide, cache))
    server = ServerHandle({})
    entered, entered_many, fenced, plain = [], [], [], []
    try:
        for _ in range(rounds):
            entered.append(measure_enter(sandbox))
            entered_many.append(measure_enter(hiding)[0])
            fenced.append(measure_start(server, sandbox))
            plain.append(measure_start(server, None))
    finally:
        server.close()
    fuzz = measure_fuzz(root, fuzz_rounds)
    return Figures(
        sandbox.level,
        statistics.median(cpu for cpu, _ in entered),
        statistics.median(wall for _, wall in entered),
        statistics.median(entered_many),
        *fuzz,
        statistics.median(fenced),
        statistics.median(plain),
    )


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--fuzz-rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if lacks(system_level()):
        print(f"the system has only {system_level()}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), options.rounds, options.fuzz_rounds)
    if options.json:
        print(json.dumps(asdict(figures)))
    else:
        for name, value in asdict(figures).items():
            print(f"{name:18} {value if isinstance(value, str) else f'{value:8.2f} ms'}")
    dear = max(figures.enter_cpu, figures.many_cpu) > MAX_MS
    added = 2 * figures.enter_cpu + figures.fuzz_system - figures.fuzz_plain_system
    return int(dear or added > MAX_FUZZ * figures.fuzz_plain_cpu)


if __name__ == "__main__":
    sys.exit(main())
