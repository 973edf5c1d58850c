"""A quantiser that rounds halves the wrong way fails, and right ones pass however they scale."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)

REFERENCE = """
import numpy as np

def rows(x):
    scale = np.abs(x).max(-1, keepdims=True) / 127.0
    scale = np.where(scale == 0, 1.0, scale)
    return np.clip(np.rint(x / scale), -128, 127).astype(np.int8)
"""
OPS = """
import numpy as np
F = np.float32

def scale(x):
    found = np.abs(x).max(-1, keepdims=True) / F(127)
    return np.where(found == 0, F(1), found).astype(F)

def kept(values):
    return np.clip(values, -128, 127).astype(np.int8)

def divides(x):
    return kept(np.rint(x / scale(x)))

def multiplies(x):
    return kept(np.rint(x * (F(1) / scale(x))))

def inverts(x):
    largest = np.abs(x).max(-1, keepdims=True)
    return kept(np.rint(x * (F(127) / np.where(largest == 0, F(127), largest))))

def half_up(x):
    return kept(np.floor(x / scale(x) + F(0.5)))

def half_away(x):
    q = x / scale(x)
    return kept(np.trunc(q + np.copysign(F(0.5), q)))

def truncates(x):
    return kept(np.trunc(x / scale(x)))
"""
RIGHT = ("divides", "multiplies", "inverts")
WRONG = ("half_up", "half_away", "truncates")


def verdicts(folder: Path, seed: int) -> dict[str, str]:
    """Run a workspace of all of them."""
    (folder / "ref.py").write_text(REFERENCE)
    (folder / "ops.py").write_text(OPS)
    lines = ['[project]\nname = "quantisers"\nversion = "1"']
    # Where a scale is subnormal its reciprocal overflows: that `extremes` finds, and rightly so.
    strategies = '["core", "wide", "offset", "special"]'
    lines.append(f"[validation]\nseed = {seed}\nstrategies = {strategies}")
    lines.append('dtypes = ["float32"]')
    lines += [
        f'[[ops]]\nname = "{name}"\nop = "ops.py:{name}"\nreference = "ref.py:rows"\n'
        'input_names = ["x"]\n[ops.schema]\n'
        "dims = { M = { min = 1, max = 64 }, N = { min = 2, max = 300 } }\n"
        'inputs = { x = ["M", "N"] }\noutput = ["M", "N"]'
        for name in (*RIGHT, *WRONG)
    ]
    (folder / "gpuemu.toml").write_text("\n".join(lines))
    command = [sys.executable, "-m", "gpuemu_flow", "run", "--no-confirm", "--format", "json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return {each["op"]: each["verdict"] for each in json.loads(done.stdout)["results"]}


@pytest.mark.parametrize("seed", [1, 42])
def test_halves_decide_between_quantisers(tmp_path: Path, seed: int) -> None:
    found = verdicts(tmp_path, seed)
    assert {name: found[name] for name in RIGHT} == dict.fromkeys(RIGHT, "passed")
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, "failed")
