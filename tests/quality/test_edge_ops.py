"""Ops with contracts on both sides, written as kernels are: bugs are found, right ones pass.

The bugs are tried on the cases and with the checks of a default run until one fails; the suite
takes one of each op (see `whole`).

``CONTRACT_SWEEP=5x500`` in the environment fuzzes the right implementations of all three sets of
`contract_sets` with five seeds and 500 cases of each, shared by its dtypes. By default it is one
seed, a few cases and one implementation of each op of this set. ``false_alarms.py --contracts`` is
the same with a log, so that a sweep that was ended goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract_sets import Chosen, ContractOp, contract_ops
from false_alarms import Tally, contract_subjects, judge, parts_of
from oracle import search
from whole import WHOLE, rotated

from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.workers.pool import Pool

pytestmark = pytest.mark.timeout(36000)

EDGES = contract_ops("edge_ops")
SWEEP = os.environ.get("CONTRACT_SWEEP", "")
SEEDS, CASES = (int(number) for number in (SWEEP or "1x8").split("x"))


def picked(ops: list[ContractOp], prefix: str, *, whole: bool = WHOLE) -> list[Chosen]:
    """One implementation of each op, another one from op to op, or all."""
    return [
        (op, name)
        for turn, op in enumerate(ops)
        for name in rotated(op.functions(prefix), 1, turn, whole=whole)
    ]


@pytest.mark.parametrize("op", EDGES, ids=lambda op: op.name)
def test_each_op_has_three_right_ones_and_five_bugs(op: ContractOp) -> None:
    assert len(op.functions("right_")) >= 3
    assert len(op.functions("bug_")) >= 5


def test_the_cases_of_a_run_find_every_bug(tmp_path: Path) -> None:
    found = dict(contract_subjects(tmp_path, picked(EDGES, "bug_")))
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        missed = [name for name, items in found.items() if not search(pool, items).killed]
    assert len(found) >= len(EDGES)
    assert missed == []


@pytest.mark.ci
def test_no_right_one_fails(tmp_path: Path) -> None:
    ops = contract_ops() if SWEEP else EDGES
    found = list(contract_subjects(tmp_path, picked(ops, "right_", whole=WHOLE or bool(SWEEP))))
    total = Tally()
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        for part in (part for seed in range(SEEDS) for part in parts_of(found, 300 + seed, CASES)):
            total.merge(judge(pool, part, lambda: False) or Tally())
    print(f"{total.cases} cases: {dict(total.verdicts)}", *total.inconclusive, sep="\n")
    assert total.failures == []
    assert total.verdicts["passed"] >= 0.97 * total.cases
    assert total.cases == SEEDS * sum(CASES // len(items) * len(items) for _, items in found)
