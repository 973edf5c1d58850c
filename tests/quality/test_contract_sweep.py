"""Right implementations of the ops that need contracts: none fails.

``CONTRACT_SWEEP=5x500`` in the environment takes five seeds and 500 cases of each implementation,
shared by its dtypes; by default it is one seed, few cases and one implementation of each op whose
contract is on both sides. ``false_alarms.py --contracts`` is the same with a log, so that a sweep
that was ended goes on.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from contract_ops import contract_ops
from false_alarms import Tally, judge, parts_of, right_contracts
from whole import rotated

from gpuemu_flow.judging.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.runners.pool import Pool

pytestmark = pytest.mark.timeout(36000)

SWEEP = os.environ.get("CONTRACT_SWEEP", "")
SEEDS, CASES = (int(number) for number in (SWEEP or "1x8").split("x"))


def test_no_right_one_fails(tmp_path: Path) -> None:
    chosen = [
        (op, name)
        for turn, op in enumerate(contract_ops() if SWEEP else contract_ops("edge_ops"))
        for name in rotated(op.functions("right_"), 1, turn, whole=bool(SWEEP))
    ]
    found = list(right_contracts(tmp_path, chosen))
    total = Tally()
    with Pool(SESSIONS_PER_EVALUATOR, staging=tmp_path) as pool:
        for part in (part for seed in range(SEEDS) for part in parts_of(found, 300 + seed, CASES)):
            total.merge(judge(pool, part, lambda: False) or Tally())
    print(f"{total.cases} cases: {dict(total.verdicts)}", *total.inconclusive, sep="\n")
    assert total.failures == []
    assert total.verdicts["passed"] >= 0.97 * total.cases
    assert total.cases == SEEDS * sum(CASES // len(items) * len(items) for _, items in found)
