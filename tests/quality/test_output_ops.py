"""Ops whose outputs need a contract: right in three styles, wrong in five ways at its edges.

The suite runs one right and two wrong ones of each op: see `whole`.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from warm import warm_command
from whole import rotated

FOLDER = Path(__file__).parent / "output_ops"
OPS = sorted(path.stem for path in FOLDER.glob("*.toml"))
SEEDS = int(os.environ.get("GPUEMU_OUTPUT_SEEDS", "1"))
CASES = os.environ.get("GPUEMU_OUTPUT_CASES", "")
FEW = "4"

pytestmark = pytest.mark.timeout(1800)


@dataclass(frozen=True)
class Judged:
    """The verdicts on each implementation, dtype by dtype, and the words on those that failed."""

    verdicts: dict[str, list[str]]
    words: dict[str, list[str]]


def functions(op: str, prefix: str) -> list[str]:
    tree = ast.parse((FOLDER / f"{op}.py").read_text(encoding="utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith(prefix)]


def run(root: Path, names: dict[str, list[str]], seed: int, cases: str = "") -> Judged:
    """Run implementations of several ops, all in one workspace."""
    shutil.copytree(FOLDER, root)
    text = f'[project]\nname = "outputs"\n[validation]\nseed = {seed}\n'
    for op, chosen in names.items():
        table = (FOLDER / f"{op}.toml").read_text(encoding="utf-8")
        for name in chosen:
            text += f'\n[[ops]]\nname = "{op}-{name}"\nop = "{op}.py:{name}"\n'
            text += f'reference = "{op}_ref.py:reference"\n'
            own = table if not cases else table.replace("\ncases = 12", "")
            text += (f"cases = {cases}\n" if cases else "") + own
    (root / "gpuemu.toml").write_text(text)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "XDG", "PYTEST"))}
    words = ("run", "--format", "json", "--no-confirm")
    done = warm_command(words, root, {**kept, "HOME": str(root)})
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


@pytest.mark.parametrize("op", OPS)
def test_each_op_has_three_right_ones_and_five_bugs(op: str) -> None:
    assert len(functions(op, "right_")) >= 3
    assert len(functions(op, "bug_")) >= 5


@pytest.mark.parametrize("seed", range(42, 42 + SEEDS))
def test_no_right_one_fails(tmp_path: Path, seed: int) -> None:
    names = {op: rotated(functions(op, "right_"), 1, n) for n, op in enumerate(OPS)}
    judged = run(tmp_path / "w", names, seed, CASES)
    alarms = {
        name: (verdicts, judged.words[name][:2])
        for name, verdicts in judged.verdicts.items()
        if set(verdicts) != {"passed"}
    }
    assert len(judged.verdicts) == sum(map(len, names.values()))
    assert alarms == {}


def test_a_run_finds_every_bug(tmp_path: Path) -> None:
    """Most bugs need the first cases only; the others get all cases of a default run."""
    names = {op: rotated(functions(op, "bug_"), 2, n) for n, op in enumerate(OPS)}
    first = run(tmp_path / "few", names, 42, FEW)
    assert len(first.verdicts) == sum(map(len, names.values()))
    missed = left(first)
    if missed:
        again = {op: [n for n in names[op] if f"{op}-{n}" in missed] for op in OPS}
        judged = run(tmp_path / "all", again, 42)
        assert set(judged.verdicts) == missed
        missed = left(judged)
    assert missed == set()
