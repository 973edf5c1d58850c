"""Runs extensions, each right and with its mistakes, and prints a line of JSON for each."""

import json
import sys
from pathlib import Path

import torch

from gpuemu_flow.workers.gpu import Gpu


def signatures(cuda: str) -> str:
    """Return the declarations of a source's functions that give tensors."""
    lines = [
        line.removesuffix(" {") + ";"
        for line in cuda.splitlines()
        if line.startswith(("Tensor ", "std::vector<Tensor> ", "std::tuple<Tensor, Tensor> "))
    ]
    return "using torch::Tensor;\n" + "\n".join(lines)


def judge(cases: dict) -> None:
    """Run the cases: name, the mistake, whether the values are right, and what was found."""
    gpu = Gpu(str(Path(__file__).parent))
    for name in sys.argv[1:] or cases:
        run, expected, mistakes = cases[name]
        wanted = expected()
        for bug, mistake in enumerate(("", *mistakes)):
            gpu.report()
            result = run(bug)
            # as a check with a loose tolerance reads the result
            right = torch.allclose(result.double(), wanted.double(), rtol=2e-3, atol=2e-3)
            report = gpu.report()
            texts = [str(finding) for finding in report.findings]
            print(json.dumps({"name": name, "mistake": mistake, "right": right, "found": texts,
                              "problems": report.problems}), flush=True)  # fmt: skip
