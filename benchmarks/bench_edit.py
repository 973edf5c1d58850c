"""From `run` after one edit to the edited op's first call, beside ninja; exits 1 on a missed bound.

Both tools get the same graph of files. One op notes on the machine's monotonic clock when it is
called first. Its script is edited, a tool is started, and what counts is the time from that start
to the first call. ninja's rule for this op runs the same script in a plain interpreter: numpy, the
script, one call. Its other rules only make their output. Ours runs the op in a fenced worker.

The bounds: at the smaller size so many times what ninja takes, and at the larger one at most so
much more than at the smaller. Wall time, since parts of it run at once; so nothing else may run on
the machine. What the whole command takes is shown beside.

    python benchmarks/bench_edit.py [--tasks 30 10000] [--rounds 9] [--folder DIR] [--json]

The tool is measured as its users have it, see `bench_noop.py`; --folder keeps what is built.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import workspaces
from installation import install
from processes import CommandFailedError, Cost, output_of, plain_environment, timed

TIMES_NINJA = 2.5
"""Bound on the time to the first call at the smaller size, of ninja's."""
MORE_MS = 100.0
"""Bound on what the larger size adds to it."""
FEWEST_ROUNDS = 5

_NOTES = """
    with open("notes/begun", "a") as file:
        file.write(f"{time.monotonic_ns()}\\n")"""

_CALLER = '''"""Call the function `op` of a script, as a rule of a build tool would."""

import runpy
import sys

import numpy as np

x = np.linspace(-1, 1, 8, dtype=np.float32)
np.save(sys.argv[2], runpy.run_path(sys.argv[1])["op"](x))
'''


class NotMeasuredError(Exception):
    """The op was not called, or twice where once was expected."""


@dataclass
class Tool:
    """One candidate in its workspace, and what its rounds took.

    Attributes
    ----------
    call_ms : list of float
        Milliseconds from the start of the command to the op's first call.
    whole : list of Cost
        The whole command.
    """

    name: str
    tasks: int
    folder: Path
    command: list[str]
    call_ms: list[float] = field(default_factory=list)
    whole: list[Cost] = field(default_factory=list)

    @property
    def _script(self) -> Path:
        return self.folder / "scripts" / "op_0.py"

    def edit(self) -> None:
        """Edit the script so that what it computes differs in the last bits, and still passes."""
        number = time.time_ns()
        leg = f"LEG = {1.0 + (32 + number % 64) * 2.0**-28}  # edit {number}"
        text = re.sub("^LEG = .*$", leg, self._script.read_text(), flags=re.MULTILINE)
        self._script.write_text(text)

    def run(self) -> None:
        """Bring everything up to date."""
        output_of(self.command, self.folder, plain_environment())

    def measure(self) -> None:
        """Edit, run, and note how long it took until the op was called."""
        begun = self.folder / "notes" / "begun"
        self.edit()
        begun.unlink(missing_ok=True)
        begin = time.monotonic_ns()
        self.whole.append(timed(self.command, self.folder, plain_environment()))
        called = begun.read_text().split() if begun.exists() else []
        if not called:
            raise NotMeasuredError(f"{self.name} did not call the edited op")
        self.call_ms.append((int(called[0]) - begin) / 1e6)

    def to_json(self) -> dict[str, object]:
        """Medians, and each sample of the time to the first call."""
        return {
            "tool": self.name,
            "tasks": self.tasks,
            "call_ms": statistics.median(self.call_ms),
            "whole_cpu_ms": statistics.median(cost.cpu_s for cost in self.whole) * 1e3,
            "whole_wall_ms": statistics.median(cost.wall_s for cost in self.whole) * 1e3,
            "call_samples_ms": [round(ms, 1) for ms in self.call_ms],
        }


def _write(folder: Path, tasks: int) -> None:
    """Write the scripts, of which the first notes when it is called."""
    workspaces.write_scripts(folder, tasks // workspaces.TASKS_PER_OP)
    folder.joinpath("out").mkdir()
    folder.joinpath("notes").mkdir()
    script = folder / "scripts" / "op_0.py"
    plain = script.read_text().replace("import", "import time\nimport", 1)
    script.write_text(plain.replace("def op(x):", f"def op(x):{_NOTES}"))


def ours(folder: Path, programs: Path, tasks: int) -> Tool:
    """Our workspace, built unless that was done before."""
    tool = Tool("gpuemu-flow", tasks, folder / f"edit-ours-{tasks}",
                [str(programs / "gpuemu-flow"), "run"])  # fmt: skip
    done = tool.folder / "built"
    if not done.exists():
        print(f"building {tasks} tasks with {tool.name}", file=sys.stderr)
        shutil.rmtree(tool.folder, ignore_errors=True)
        _write(tool.folder, tasks)
        workspaces.write_gpuemu(tool.folder, tasks // workspaces.TASKS_PER_OP)
        with tool.folder.joinpath("gpuemu.toml").open("a") as file:
            file.write('\n[sandbox]\nwritable = ["notes"]\n')
        tool.run()
        done.touch()
    tool.run()  # under another version than last time, it does all again
    return tool


def ninja(folder: Path, programs: Path, tasks: int) -> Tool:
    """ninja's workspace; the same interpreter runs the op."""
    tool = Tool("ninja", tasks, folder / f"edit-ninja-{tasks}", ["ninja"])
    shutil.rmtree(tool.folder, ignore_errors=True)
    _write(tool.folder, tasks)
    workspaces.write_ninja(tool.folder, tasks // workspaces.TASKS_PER_OP)
    (tool.folder / "call.py").write_text(_CALLER)
    rules = tool.folder / "build.ninja"
    call = (
        f"rule call\n  command = {programs / 'python'} call.py scripts/op_0.py $out.npy && : > $out"
    )
    text = rules.read_text().replace("build out/op_0: touch", "build out/op_0: call")
    rules.write_text(f"{call}\n{text}")
    tool.run()
    return tool


def measure(folder: Path, sizes: list[int], rounds: int) -> list[Tool]:
    """All candidates, taking turns; the first round fills the system's caches."""
    programs = install(folder / "installed")
    tools = [make(folder, programs, tasks) for tasks in sizes for make in (ninja, ours)]
    for number in range(rounds + 1):
        for tool in tools:
            tool.measure()
            if not number:
                tool.call_ms.clear()
                tool.whole.clear()
    return tools


def main(argv: list[str] | None = None) -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, nargs="+", default=[30, 10_000])
    parser.add_argument("--rounds", type=int, default=9, help=f"at least {FEWEST_ROUNDS}")
    parser.add_argument("--folder", type=Path, help="keep what is built here, and use it again")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(argv)
    if shutil.which("ninja") is None:
        parser.error("ninja is not installed; it is what the bound refers to")
    if options.rounds < FEWEST_ROUNDS:
        parser.error(f"--rounds must be at least {FEWEST_ROUNDS}")
    if any(tasks % workspaces.TASKS_PER_OP for tasks in options.tasks):
        parser.error(f"--tasks must be multiples of {workspaces.TASKS_PER_OP}")
    sizes = sorted(options.tasks)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            tools = measure(folder.resolve(), sizes, options.rounds)
        except (CommandFailedError, NotMeasuredError, subprocess.SubprocessError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
    calls = {(tool.name, tool.tasks): statistics.median(tool.call_ms) for tool in tools}
    least, most = sizes[0], sizes[-1]
    ratio = calls["gpuemu-flow", least] / calls["ninja", least]
    more = calls["gpuemu-flow", most] - calls["gpuemu-flow", least]
    passed = ratio <= TIMES_NINJA and more <= MORE_MS
    rows = [tool.to_json() for tool in tools]
    if options.json:
        bounds = {
            "times_ninja": {"value": ratio, "limit": TIMES_NINJA},
            "more_ms": {"value": more, "limit": MORE_MS},
        }
        print(
            json.dumps(
                {"benchmark": "edit", "passed": passed, "bounds": bounds, "rows": rows}, indent=2
            )
        )
        return 0 if passed else 1
    heads = ("to the first call, ms", "whole, ms CPU", "ms wall")
    print(f"{'tasks':>7}  {'tool':14}{heads[0]:>23}{heads[1]:>15}{heads[2]:>10}")
    for row in rows:
        print(
            f"{row['tasks']:>7}  {row['tool']:14}{row['call_ms']:>23.0f}"
            f"{row['whole_cpu_ms']:>15.0f}{row['whole_wall_ms']:>10.0f}"
        )
    print(
        f"  at {least:,} tasks / ninja: {ratio:.2f}, at most {TIMES_NINJA:g}"
        + ("  missed" if ratio > TIMES_NINJA else "")
    )
    print(
        f"  more at {most:,} tasks: {more:.0f} ms, at most {MORE_MS:g}"
        + ("  missed" if more > MORE_MS else "")
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
