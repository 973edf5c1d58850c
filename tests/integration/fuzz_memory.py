"""Fuzz an op and print the memory that the run holds after each tenth case, as JSON.

A program of its own: pages that a process shares with others are counted by their share, which
grows when one of the others ends. What is below this program shares memory with nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.fuzz.outcome import Judged


def held() -> int:
    """Bytes of this process and of all below it, but for those of files."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):  # it ended meanwhile
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
    return _held_below(os.getpid(), parents)


def _held_below(pid: int, parents: dict[int, int]) -> int:
    own = 0
    with contextlib.suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split()[0]: int(line.split()[1]) for line in rollup[1:]}
        own = sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]
    children = [child for child, parent in parents.items() if parent == pid]
    return own * 1024 + sum(_held_below(child, parents) for child in children)


def main() -> None:
    """Fuzz the op of the workspace that the arguments name, as many cases as they say."""
    root, op, cases = sys.argv[1:]
    seen: dict[int, int] = {}

    def on_case(judged: Judged) -> None:
        if judged.number % 10 == 0:
            seen[judged.number] = held()

    workspace = Workspace(Path(root), environ={"HOME": root})
    workspace.cache.create()
    options = FuzzOptions(iterations=int(cases), jobs=1, strategies=("normal", "uniform"))
    outcome = Fuzzer(workspace, op, options, on_case=on_case).run()
    workspace.cache.close()
    print(json.dumps({"cases": outcome.cases, "held": seen}))


if __name__ == "__main__":
    main()
