"""Ops as people have them, with bugs at the edges of their inputs' contracts: `run` finds each."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest
from mini_workspace import make_mini

pytestmark = pytest.mark.timeout(1800)

CONTRACTS = Path(__file__).parent / "contracts"
OPS = sorted(path.stem for path in CONTRACTS.glob("*.toml"))
RIGHT, WRONG = 3, 5


def functions(op: str) -> list[str]:
    tree = ast.parse((CONTRACTS / f"{op}.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith(("right_", "wrong_"))]


def table(op: str, function: str) -> str:
    schema = (CONTRACTS / f"{op}.toml").read_text(encoding="utf-8")
    return (
        f'[[ops]]\nname = "{op}.{function}"\nop = "scripts/{op}.py:{function}"\n'
        f'reference = "refs/{op}.py:reference"\n[ops.schema]\n{schema}\n'
    )


@pytest.mark.parametrize("op", OPS)
def test_there_are_three_right_ones_and_five_wrong_ones(op: str) -> None:
    names = functions(op)
    assert sum(name.startswith("right_") for name in names) == RIGHT
    assert sum(name.startswith("wrong_") for name in names) == WRONG


@pytest.mark.parametrize("op", OPS)
def test_run_tells_right_from_wrong(op: str, tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "w")
    tables = [table(op, function) for function in functions(op)]
    mini.write("gpuemu.toml", '[project]\nname = "contracts"\n' + "\n".join(tables))
    for folder in ("scripts", "refs"):  # an op may not be its own reference's file
        (mini.root / folder).mkdir(exist_ok=True)
        shutil.copy(CONTRACTS / f"{op}.py", mini.root / folder)
    found = mini.run("--no-confirm", code=None)
    verdicts = {each["op"].partition(".")[2]: each["verdict"] for each in found["results"]}
    told = {name: verdicts[name] for name in functions(op)}
    accused = [n for n, v in told.items() if n.startswith("right_") and v != "passed"]
    missed = [n for n, v in told.items() if n.startswith("wrong_") and v not in ("failed", "error")]
    assert (accused, missed) == ([], [])
