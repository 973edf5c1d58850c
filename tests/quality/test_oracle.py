"""The oracle finds planted bugs and leaves correct ops alone.

The workspace's ops are tried on one more seed; ``JUDGED_SEEDS=all`` in the environment takes two,
and more cases. Of the bugs and the correct ops the suite takes a sample (see `whole`): each op and
each kind of bug is among them. A correct op is tried in one of its dtypes, which take turns.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from controls import CONTROLS, install
from mutants import KINDS, MUTANTS, plant
from once import once
from oracle import fuzzed, search_all
from whole import WHOLE, sample

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.subjects import dtypes_of, op_names

pytestmark = pytest.mark.timeout(1800)

SEEDS, TRIED = ((1, 2), 60) if os.environ.get("JUDGED_SEEDS") == "all" else ((2,), 10)
BUGS = sample(MUTANTS, 5, lambda m: m.op, lambda m: m.kind)
CORRECT = sample(CONTROLS, 3, lambda c: c.op)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bool]:
    """Every chosen mutant under the cases and checks of a default run."""
    variants = [(m.id, m.op, partial(plant, m)) for m in BUGS]

    def search(folder: Path) -> dict[str, bool]:
        folder.mkdir()
        found = search_all(folder, variants)
        return {name: finding.killed for name, finding in found.items()}

    return once(tmp_path_factory, "oracle", search)


def test_there_are_enough_mutants_of_every_kind() -> None:
    assert len(MUTANTS) >= 60
    assert len({m.op for m in MUTANTS}) >= 12
    assert {m.kind for m in MUTANTS} == {m.kind for m in BUGS} == set(KINDS)
    assert {m.op for m in MUTANTS} == {m.op for m in BUGS}


def test_a_default_run_kills_95_percent(killed: dict[str, bool]) -> None:
    survivors = [name for name, is_killed in killed.items() if not is_killed]
    assert len(survivors) <= 0.05 * len(BUGS), survivors


def test_fuzzing_500_cases_kills_98_percent(killed: dict[str, bool], tmp_path: Path) -> None:
    left = [m for m in BUGS if not killed[m.id]]
    variants = [(m.id, m.op, partial(plant, m)) for m in left]
    found = search_all(tmp_path, variants, fuzzed(500))
    survivors = [name for name, finding in found.items() if not finding.killed]
    assert len(survivors) <= 0.02 * len(BUGS), survivors


def in_turns(ops: Mapping[str, str]) -> dict[str, list[str]]:
    """Return one dtype for each id's op, the one that the fewest before it have; or all."""
    workspace = Workspace(Path(__file__).parents[2])
    met: Counter[str] = Counter()
    found = {}
    for name, op in ops.items():
        known = dtypes_of(workspace, op)
        rarest = min(known, key=met.__getitem__)
        met[rarest] += 1
        found[name] = known if WHOLE else [rarest]
    return found


def test_correct_variants_pass_a_default_run(tmp_path: Path) -> None:
    variants = [(c.id, c.op, partial(install, c)) for c in CORRECT]
    dtypes = in_turns({c.id: c.op for c in CORRECT})
    found = search_all(tmp_path, variants, dtypes=dtypes)
    alarms = {name: f.evaluated and f.evaluated.result for name, f in found.items() if f.killed}
    assert alarms == {}


@pytest.mark.ci
def test_the_workspaces_ops_pass_on_other_seeds(tmp_path: Path) -> None:
    ops = op_names(Workspace(Path(__file__).parents[2]))
    variants = [(op, op, lambda _: None) for op in ops]
    for seed in SEEDS:
        found = search_all(tmp_path, variants, fuzzed(TRIED), seed=seed)
        alarms = {name: f.evaluated and f.evaluated.result for name, f in found.items() if f.killed}
        assert alarms == {}
