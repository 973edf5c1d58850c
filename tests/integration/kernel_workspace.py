"""A workspace whose op is a compiled kernel with a race in it, and how commands are run there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm import warm_command

KERNELS = Path(__file__).resolve().parent.parent / "emulator_kernels"

REFERENCE = """
import numpy as np

def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)
"""

CONFIG = """
[project]
name = "kernels"

[validation]
cause_budget = 0

[[ops]]
name = "softmax"
op = {{ {program}, entry = "softmax_rows", grid = ["B"], block = [64], args = ["x", "out", {{ i32 = "H" }}], outputs = {{ out = ["B", "H"] }} }}
reference = "ref.py:softmax"
strategies = ["normal"]
cases = 3
schema = {{ dims = {{ B = [1, 3], H = [5, 70] }}, inputs = {{ x = ["B", "H"] }}, output = ["B", "H"] }}
"""  # noqa: E501

RIGHT = "s[threadIdx.x / 32] = v;\n  __syncthreads();"
WRONG = "s[threadIdx.x / 32] = v;"
RACE_LINE = "v = s[0];"
"""The line at which racecheck finds that the barrier is missing."""


@dataclass(frozen=True)
class KernelWorkspace:
    """A folder with ``gpuemu.toml`` in it."""

    root: Path

    def flow(
        self, *words: str, given: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there."""
        environ = {**os.environ, **variables}
        if not given:
            return warm_command(words, self.root, environ)
        return subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", *words], cwd=self.root, input=given,
            capture_output=True, text=True, check=False, env=environ,
        )  # fmt: skip

    def json(self, *words: str) -> dict[str, Any]:
        """Run a command whose answer is JSON."""
        done = self.flow(*words)
        assert done.stdout.startswith("{"), done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    def source(self, name: str) -> Path:
        """Give the path of one of its files."""
        return self.root / name

    def edit(self, name: str, old: str, new: str) -> str:
        """Replace the one place of a file; its text afterwards."""
        text = self.source(name).read_text()
        assert text.count(old) == 1
        text = text.replace(old, new)
        temporary = self.source(f".{Path(name).name}.new")  # saved at one moment, as by editors
        temporary.write_text(text)
        temporary.replace(self.source(name))
        return text


def line_of(text: str, part: str) -> int:
    """Return the 1-based number of the first line with a part."""
    return next(n for n, line in enumerate(text.splitlines(), 1) if part in line)


def make_workspace(root: Path, program: str) -> KernelWorkspace:
    """Write the configuration and the reference."""
    root.mkdir(exist_ok=True)
    (root / "gpuemu.toml").write_text(CONFIG.format(program=program))
    (root / "ref.py").write_text(REFERENCE)
    return KernelWorkspace(root)


def make_ptx_workspace(root: Path) -> KernelWorkspace:
    """An op of kind ``ptx`` that has lost its barriers, with the source beside the PTX."""
    made = make_workspace(root, 'kind = "ptx", file = "matrices.ptx"')
    ptx = (KERNELS / "matrices.ptx").read_text()
    start = ptx.index(".entry softmax_rows(")
    end = ptx.index("\n}", start)
    body = ptx[start:end].replace("bar.sync \t0;", "")
    assert body != ptx[start:end]
    made.source("matrices.ptx").write_text(ptx[:start] + body + ptx[end:])
    made.source("matrices.cu").write_text((KERNELS / "matrices.cu").read_text())
    return made


def make_cuda_workspace(root: Path, *, right: bool = True) -> KernelWorkspace:
    """An op of kind ``cuda``."""
    made = make_workspace(root, 'kind = "cuda", file = "k/matrices.cu", arch = "sm_80"')
    (root / "k").mkdir()
    text = (KERNELS / "matrices.cu").read_text()
    assert text.count(RIGHT) == 1
    made.source("k/matrices.cu").write_text(text if right else text.replace(RIGHT, WRONG))
    return made
