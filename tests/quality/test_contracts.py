"""Ops as people have them, with bugs at the edges of their inputs' contracts: `run` finds each.

The suite runs one right and two wrong ones of each op: see `whole`.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini
from whole import rotated, sample

pytestmark = pytest.mark.timeout(1800)

CONTRACTS = Path(__file__).parent / "contracts"
OPS = sorted(path.stem for path in CONTRACTS.glob("*.toml"))
RIGHT, WRONG = 3, 5
FEW = 6
"""The first cases of a default run, of which most bugs need no more."""


def functions(op: str) -> list[str]:
    tree = ast.parse((CONTRACTS / f"{op}.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith(("right_", "wrong_"))]


def table(op: str, function: str, cases: str = "") -> str:
    schema = (CONTRACTS / f"{op}.toml").read_text(encoding="utf-8")
    return (
        f'[[ops]]\nname = "{op}.{function}"\nop = "scripts/{op}.py:{function}"\n{cases}'
        f'reference = "refs/{op}.py:reference"\n[ops.schema]\n{schema}\n'
    )


def verdicts(mini: Mini, tables: list[str]) -> dict[str, str]:
    """Run ops and return their verdicts by the names of their functions."""
    mini.write("gpuemu.toml", '[project]\nname = "contracts"\n' + "\n".join(tables))
    found = mini.run("--no-confirm", code=None)
    return {each["op"].partition(".")[2]: each["verdict"] for each in found["results"]}


@pytest.mark.parametrize("op", OPS)
def test_there_are_three_right_ones_and_five_wrong_ones(op: str) -> None:
    names = functions(op)
    assert sum(name.startswith("right_") for name in names) == RIGHT
    assert sum(name.startswith("wrong_") for name in names) == WRONG


@pytest.mark.parametrize("op", sample(OPS, 2))
def test_run_tells_right_from_wrong(op: str, tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "w")
    for folder in ("scripts", "refs"):  # an op may not be its own reference's file
        (mini.root / folder).mkdir(exist_ok=True)
        shutil.copy(CONTRACTS / f"{op}.py", mini.root / folder)
    few = f"cases = {FEW}\n"
    turn = OPS.index(op)
    right = [name for name in functions(op) if name.startswith("right_")]
    wrong = [name for name in functions(op) if name.startswith("wrong_")]
    names = [*rotated(right, 1, turn), *rotated(wrong, 2, turn)]
    tables = [table(op, name, few if name.startswith("wrong_") else "") for name in names]
    told = verdicts(mini, tables)
    missed = [n for n in names if n.startswith("wrong_") and told[n] not in ("failed", "error")]
    if missed:  # a default run has these cases and more
        told |= verdicts(mini, [table(op, name) for name in missed])
    assert sorted(told) == sorted(names)
    accused = [n for n, v in told.items() if n.startswith("right_") and v != "passed"]
    missed = [n for n, v in told.items() if n.startswith("wrong_") and v not in ("failed", "error")]
    assert (accused, missed) == ([], [])
