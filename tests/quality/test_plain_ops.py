"""Ops and bugs that were written without a look at the workspace's own: is the oracle as good?

The suite takes a sample of the bugs, in which each op and each kind has one, and fewer cases of the
ops themselves: see `whole`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from mutants import KINDS, load_tables, plant
from once import once
from oracle import RUN_CASES, fuzzed, search_all
from whole import WHOLE, sample

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import op_names

pytestmark = pytest.mark.timeout(1800)

PLAIN = Path(__file__).parent / "plain_ops"
PLANTED = load_tables(PLAIN / "mutants")
BUGS = sample(PLANTED, 4, lambda m: m.op, lambda m: m.kind)
TRIED = 100 if WHOLE else RUN_CASES


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Every chosen bug under the cases and checks of a default run."""
    variants = [(m.id, m.op, partial(plant, m)) for m in BUGS]

    def search(folder: Path) -> dict[str, bool]:
        folder.mkdir()
        found = search_all(folder, variants, source=PLAIN)
        return {name: finding.killed for name, finding in found.items()}

    return once(tmp_path_factory, "plain-ops", search)


def test_every_op_has_bugs_of_known_kinds() -> None:
    assert {m.op for m in PLANTED} == {m.op for m in BUGS} == set(op_names(Workspace(PLAIN)))
    assert {m.kind for m in PLANTED} == {m.kind for m in BUGS} <= set(KINDS)
    assert len(PLANTED) >= 60


def test_a_default_run_kills_95_percent(killed: dict[str, bool]) -> None:
    survivors = [name for name, is_killed in killed.items() if not is_killed]
    assert len(survivors) <= 0.05 * len(BUGS), survivors


def test_fuzzing_500_cases_kills_98_percent(killed: dict[str, bool], tmp_path: Path) -> None:
    left = [m for m in BUGS if not killed[m.id]]
    variants = [(m.id, m.op, partial(plant, m)) for m in left]
    found = search_all(tmp_path, variants, fuzzed(500), source=PLAIN)
    survivors = [name for name, finding in found.items() if not finding.killed]
    assert len(survivors) <= 0.02 * len(BUGS), survivors


@pytest.mark.ci
def test_the_ops_themselves_pass(tmp_path: Path) -> None:
    variants = [(op, op, lambda _: None) for op in op_names(Workspace(PLAIN))]
    found = search_all(tmp_path, variants, fuzzed(TRIED), seed=21, source=PLAIN)
    alarms = {name: f.evaluated and f.evaluated.result for name, f in found.items() if f.killed}
    assert alarms == {}
