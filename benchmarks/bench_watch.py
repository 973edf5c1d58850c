"""From a save to the start of the op that it affects: `watch`, beside `run` called at that moment.

One workspace, in which each op notes when it is begun. The candidates take turns, round after
round: a script is saved, and what counts is the time until the op itself runs, in a worker process,
on the machine's monotonic clock. `run` has no need to notice the save, but has to start. What is
judged is the ratio of the medians; exits 1 when a bound is missed, 2 when nothing was measured.

    python benchmarks/bench_watch.py [--ops 1 200] [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import workspaces
from processes import plain_environment

COMMAND = [sys.executable, "-m", "gpuemu_flow"]
RUN, WATCH = "run, called at the save", "watch"
BOUNDS = {WATCH: 0.6}
"""Of the time that `run` takes, which somebody would have to call at that very moment."""

GIVE_UP_S = 120.0
_NOTES = """
    with open("begun", "a") as file:
        file.write(f"{time.monotonic_ns()}\\n")"""


class NotMeasuredError(Exception):
    """A candidate did not do what was to be measured."""


class Workspace:
    """A folder with ops, of which one is saved again and again."""

    def __init__(self, folder: Path, ops: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        workspaces.write_scripts(folder, ops)
        workspaces.write_gpuemu(folder, ops)
        self._script = folder / "scripts" / "op_0.py"
        plain = self._script.read_text().replace("import", "import time\nimport", 1)
        self._text = plain.replace("def op(x):", f"def op(x):{_NOTES}")
        self._saves = 0
        self.save()
        self.run()

    def run(self) -> None:
        """Bring everything up to date."""
        subprocess.run([*COMMAND, "run"], cwd=self.folder, env=plain_environment(), check=True,
                       stdout=subprocess.DEVNULL)  # fmt: skip

    def save(self) -> int:
        """Save another text under the script's name, as editors do; the clock just before it."""
        self._saves += 1
        temporary = self._script.with_suffix(".new")
        temporary.write_text(f"{self._text}\nSAVE = {self._saves}\n")
        (self.folder / "begun").unlink(missing_ok=True)
        begin = time.monotonic_ns()
        temporary.replace(self._script)
        return begin

    def begun(self) -> int:
        """The clock when the op was begun after the last save."""
        path = self.folder / "begun"
        deadline = time.monotonic() + GIVE_UP_S
        while not (path.exists() and path.read_text().endswith("\n")):
            if time.monotonic() > deadline:
                raise NotMeasuredError("the op was not run after a save")
            time.sleep(0.002)
        return int(path.read_text().split()[0])


class Watcher:
    """A running `watch`, stopped while others are measured."""

    def __init__(self, workspace: Workspace, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "watch", *arguments],
            cwd=workspace.folder,
            env=plain_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        self.settle()

    def settle(self) -> None:
        """Read until it waits for a save."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "Ctrl-C ends it" in line:
                return
        raise NotMeasuredError("watch has ended")

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate()


@contextmanager
def watcher(workspace: Workspace, *arguments: str) -> Iterator[Watcher]:
    found = Watcher(workspace, *arguments)
    try:
        yield found
    finally:
        found.close()


def by_hand(workspace: Workspace) -> float:
    """Seconds from the save to the op, when `run` is called at once."""
    begin = workspace.save()
    workspace.run()
    return (workspace.begun() - begin) / 1e9


def watched(workspace: Workspace, watching: Watcher) -> float:
    """Seconds from the save to the op, when `watch` has to notice the save."""
    begin = workspace.save()
    seconds = (workspace.begun() - begin) / 1e9
    watching.settle()
    return seconds


def measure(folder: Path, ops: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by candidate. Each has a workspace: two must not run in one."""
    with ExitStack() as stack:
        candidates: dict[str, Callable[[], float]] = {}
        own = Workspace(folder / f"run-{ops}", ops)
        candidates[RUN] = lambda: by_hand(own)
        place = Workspace(folder / f"watch-{ops}", ops)
        watching = stack.enter_context(watcher(place))
        candidates[WATCH] = partial(watched, place, watching)
        found: dict[str, list[float]] = {name: [] for name in candidates}
        for number in range(rounds + 1):
            for name, candidate in candidates.items():
                seconds = candidate()
                if number:  # the first one fills the system's caches
                    found[name].append(seconds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ops", type=int, nargs="+", default=[1, 200])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, missed = [], []
    try:
        with tempfile.TemporaryDirectory(prefix="bench-watch-") as folder:
            for ops in options.ops:
                found = measure(Path(folder), ops, options.rounds)
                peer = statistics.median(found[RUN])
                for name, seconds in found.items():
                    median, bound = statistics.median(seconds), BOUNDS.get(name)
                    ratio = median / peer
                    rows.append({
                        "ops": ops, "candidate": name, "median_ms": median * 1e3,
                        "slowest_ms": max(seconds) * 1e3, "ratio": ratio, "bound": bound,
                    })  # fmt: skip
                    missed += [rows[-1]] if bound is not None and ratio > bound else []
    except (NotMeasuredError, subprocess.CalledProcessError) as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps({"rounds": options.rounds, "cpus": os.cpu_count(), "rows": rows}))
    else:
        print(f"{'tasks':>6}  {'candidate':24} {'median ms':>9} {'slowest ms':>10} {'/ run':>6}")
        for row in rows:
            bound = f"  (bound {row['bound']})" if row["bound"] is not None else ""
            print(
                f"{row['ops'] * workspaces.TASKS_PER_OP:6}  {row['candidate']:24} "
                f"{row['median_ms']:9.0f} {row['slowest_ms']:10.0f} {row['ratio']:6.2f}{bound}"
            )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
