"""Ops whose outputs need a contract: right in three styles, wrong in five ways at its edges.

The suite runs one right and two wrong ones of each op: see `whole`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from contract_sets import Chosen, ContractOp, contract_ops, write_workspace
from warm import warm_command
from whole import rotated

OPS = contract_ops("output_ops")
SEEDS = int(os.environ.get("GPUEMU_OUTPUT_SEEDS", "1"))
CASES = os.environ.get("GPUEMU_OUTPUT_CASES", "")
FEW = "4"

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Judged:
    """The verdicts on each implementation, dtype by dtype, and the words on those that failed."""

    verdicts: dict[str, list[str]]
    words: dict[str, list[str]]


def run(root: Path, chosen: Sequence[Chosen], seed: int, cases: str = "") -> Judged:
    """Run implementations of several ops, all in one workspace."""
    head = f'[project]\nname = "outputs"\n[validation]\nseed = {seed}\n'
    write_workspace(root, chosen, head=head, cases=cases)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "XDG", "PYTEST"))}
    command = ("run", "--format", "json", "--no-confirm")
    done = warm_command(command, root, {**kept, "HOME": str(root)})
    assert done.returncode in (0, 1), done.stderr
    verdicts: dict[str, list[str]] = {}
    words: dict[str, list[str]] = {}
    told = json.loads(done.stdout)
    for result in told["results"]:
        verdicts.setdefault(result["op"], []).append(result["verdict"])
        words.setdefault(result["op"], []).append(result["reason"])
    for failure in told["failures"]:
        words[failure["op"]].append(failure["message"])
    return Judged(verdicts, words)


def left(judged: Judged) -> set[str]:
    """Return the names of the bugs that were not found."""
    return {n for n, found in judged.verdicts.items() if not {"failed", "error"} & set(found)}


def picked(ops: Sequence[ContractOp], prefix: str, count: int) -> list[Chosen]:
    """Some implementations of each op, other ones from op to op."""
    return [
        (op, name)
        for turn, op in enumerate(ops)
        for name in rotated(op.functions(prefix), count, turn)
    ]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_each_op_has_three_right_ones_and_five_bugs(op: ContractOp) -> None:
    assert len(op.functions("right_")) >= 3
    assert len(op.functions("bug_")) >= 5


@pytest.mark.parametrize("seed", range(42, 42 + SEEDS))
@pytest.mark.ci
def test_no_right_one_fails(tmp_path: Path, seed: int) -> None:
    chosen = picked(OPS, "right_", 1)
    judged = run(tmp_path / "w", chosen, seed, CASES)
    alarms = {
        name: (verdicts, judged.words[name][:2])
        for name, verdicts in judged.verdicts.items()
        if set(verdicts) != {"passed"}
    }
    assert len(judged.verdicts) == len(chosen)
    assert alarms == {}


@pytest.mark.ci
def test_a_run_finds_every_bug(tmp_path: Path) -> None:
    """Most bugs need the first cases only; the others get all cases of a default run."""
    chosen = picked(OPS, "bug_", 2)
    first = run(tmp_path / "few", chosen, 42, FEW)
    assert len(first.verdicts) == len(chosen)
    missed = left(first)
    if missed:
        again = [(op, name) for op, name in chosen if f"{op.name}-{name}" in missed]
        judged = run(tmp_path / "all", again, 42)
        assert set(judged.verdicts) == missed
        missed = left(judged)
    assert missed == set()
