"""Workspaces with one op for each planted bug, and what `run` says of their causes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import tomli
from truths import Planted

HERE = Path(__file__).parent

_M, _N = "M = { min = 1, max = 160 }", "N = { min = 1, max = 520 }"
_ROWS = (f"{_M}, {_N}", 'x = ["M", "N"]')
_NORM = (f"{_M}, {_N}", 'x = ["M", "N"], w = ["N"], b = ["N"]')

SCHEMAS: dict[str, tuple[str, str, str]] = {
    "softmax": (*_ROWS, '["M", "N"]'),
    "log_softmax": (*_ROWS, '["M", "N"]'),
    "logsumexp": (*_ROWS, '["M"]'),
    "layernorm": (*_NORM, '["M", "N"]'),
    "rmsnorm": (f"{_M}, {_N}", 'x = ["M", "N"], w = ["N"]', '["M", "N"]'),
    "l2norm": (*_ROWS, '["M", "N"]'),
    "matmul": (
        "M = { min = 1, max = 140 }, K = { min = 1, max = 270 }, N = { min = 1, max = 140 }",
        'a = ["M", "K"], b = ["K", "N"]',
        '["M", "N"]',
    ),
    "matvec": (
        "M = { min = 1, max = 270 }, K = { min = 1, max = 270 }",
        'a = ["M", "K"], v = ["K"]',
        '["M"]',
    ),
    "linear": (
        "M = { min = 1, max = 70 }, K = { min = 1, max = 140 }, N = { min = 1, max = 140 }",
        'x = ["M", "K"], w = ["N", "K"], bias = ["N"]',
        '["M", "N"]',
    ),
    "attention": (
        "S = { min = 1, max = 70 }, T = { min = 1, max = 140 }, D = { min = 1, max = 80 }",
        'q = ["S", "D"], k = ["T", "D"], v = ["T", "D"]',
        '["S", "D"]',
    ),
    "causal_attention": (
        "S = { min = 1, max = 140 }, D = { min = 1, max = 80 }",
        'q = ["S", "D"], k = ["S", "D"], v = ["S", "D"]',
        '["S", "D"]',
    ),
    "cumsum": (*_ROWS, '["M", "N"]'),
    "argmax": (*_ROWS, '["M"]'),
    "transpose": (*_ROWS, '["N", "M"]'),
    "gelu": (*_ROWS, '["M", "N"]'),
    "swiglu": (f"{_M}, {_N}", 'x = ["M", "N"], g = ["M", "N"]', '["M", "N"]'),
    "cross_entropy": (
        "N = { min = 1, max = 140 }, C = { min = 20, max = 270 }",
        'logits = ["N", "C"], labels = { dims = ["N"], dtype = "int32", range = [-2, 19] }',
        '["N"]',
    ),
    "gather": (
        "V = { min = 20, max = 140 }, D = { min = 1, max = 140 }, N = { min = 1, max = 140 }",
        'table = ["V", "D"], rows = { dims = ["N"], dtype = "int32", range = [0, 19] }',
        '["N", "D"]',
    ),
    "axpy": (f"{_M}, {_N}", 'x = ["M", "N"], y = ["M", "N"]', '["M", "N"]'),
    "variance": (*_ROWS, '["M"]'),
    "mean": (*_ROWS, '["M"]'),
    "rowmax": (*_ROWS, '["M"]'),
    "conv1d": ("N = { min = 1, max = 2100 }", 'x = ["N"], w = [3]', '["N"]'),
    "rope": (
        "S = { min = 1, max = 140 }, H = { min = 1, max = 40 }, D = { min = 1, max = 40 }",
        'x = ["S", 64], cos = ["S", 32], sin = ["S", 32]',
        '["S", 64]',
    ),
    "bias_relu": (f"{_M}, {_N}", 'x = ["M", "N"], b = ["N"]', '["M", "N"]'),
}
SCHEMAS["rope"] = ("S = { min = 1, max = 140 }", *SCHEMAS["rope"][1:])


def write(folder: Path, bugs: Sequence[Planted]) -> None:
    """Write the workspace: an op per bug."""
    shutil.copytree(HERE / "scripts", folder / "scripts")
    # An op may not use its reference: the bugs are wrong versions of a copy.
    shutil.copy(folder / "scripts" / "ref.py", folder / "scripts" / "formulas.py")
    lines = ['[project]\nname = "causes"\nversion = "1"\n[validation]\ndtypes = ["float32"]']
    for bug, op, _ in bugs:
        dims, inputs, output = SCHEMAS[op]
        names = json.dumps(list(tomli.loads(f"inputs = {{ {inputs} }}")["inputs"]))
        lines.append(
            f'[[ops]]\nname = "{bug}"\nop = "scripts/bugs.py:{bug}"\n'
            f'reference = "scripts/ref.py:{op}"\ninput_names = {names}\n'
            f"[ops.schema]\ndims = {{ {dims} }}\ninputs = {{ {inputs} }}\noutput = {output}\n"
        )
    (folder / "gpuemu.toml").write_text("\n".join(lines), encoding="utf-8")


def write_more(folder: Path, names: Collection[str]) -> dict[str, list[str]]:
    """Write a workspace with the named bugs of the folder ``more`` (all if there are no names).

    Return, for each bug, the patterns of statements that are true of it.
    """
    shutil.copytree(HERE / "more", folder)
    # An op may not use its reference.
    shutil.copy(folder / "refs.py", folder / "base.py")
    known = tomli.loads((folder / "truths.toml").read_text(encoding="utf-8"))
    homes = {
        name: file
        for file in ("ops.py", "more_ops.py")
        for name in re.findall(r"^def (\w+)", (folder / file).read_text(), re.MULTILINE)
    }
    bugs = [bug for bug in known["bugs"] if not names or bug["name"] in names]
    text = '[project]\nname = "causes"\n[validation]\ndtypes = ["float32"]\n'
    for bug in bugs:
        text += f'[[ops]]\nname = "{bug["name"]}"\nop = "{homes[bug["name"]]}:{bug["name"]}"\n'
        text += f'reference = "refs.py:{bug["reference"]}"\n'
        text += f"[ops.schema]\n{known['schemas'][bug['schema']]}\n"
    (folder / "gpuemu.toml").write_text(text, encoding="utf-8")
    return {bug["name"]: bug["true"] for bug in bugs}


def run(folder: Path) -> dict[str, dict]:
    """Run the workspace; the results by op."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 1:
        raise RuntimeError(done.stderr)
    return {result["op"]: result for result in json.loads(done.stdout)["results"]}
