"""Classic kernel bugs that chance hid from a default run: in vectors, and in whole reductions.

Each shows on one kind of values alone: an infinity without NaN, a row far below 0, only zeros, a
number whose square overflows. The cases of a run find them with every seed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from contract_sets import ContractOp, contract_ops
from false_alarms import Tally, contract_subjects, judge, parts_of
from oracle import search
from whole import WHOLE, rotated

from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.workers.pool import Pool

pytestmark = pytest.mark.timeout(3600)

OPS = contract_ops("classic_ops")
SEEDS = (42, 1, 2, 3, 4, 5) if WHOLE else (42,)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.stem)
def test_the_cases_of_a_run_find_every_bug(op: ContractOp, tmp_path: Path) -> None:
    bugs = [(op, name) for name in op.functions("bug_")]
    found = dict(contract_subjects(tmp_path, bugs))
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        missed = [
            (name, seed)
            for name, items in found.items()
            for seed in SEEDS
            if not search(pool, items, seed=seed).killed
        ]
    assert len(found) == len(bugs) > 0
    assert missed == []


def test_no_right_one_fails(tmp_path: Path) -> None:
    chosen = [
        (op, name)
        for turn, op in enumerate(OPS)
        for name in rotated(op.functions("right_"), 1, turn, whole=WHOLE)
    ]
    found = list(contract_subjects(tmp_path, chosen))
    total = Tally()
    with Pool(SESSIONS_PER_EVALUATOR) as pool:
        for part in (part for seed in SEEDS for part in parts_of(found, seed, 24)):
            total.merge(judge(pool, part, lambda: False) or Tally())
    assert total.failures == []
    assert total.verdicts["passed"] >= 0.97 * total.cases > 0
