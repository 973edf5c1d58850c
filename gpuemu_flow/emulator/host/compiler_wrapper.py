"""Stands for nvcc and for c++ when PyTorch builds an extension.

It asks nvcc for PTX with line numbers only, leaves the host's code unoptimised, and tries small
headers of PyTorch first; a source that needs more is compiled again with the whole ones.
"""
# Runs alone, for each file that is compiled: no pathlib.
# ruff: noqa: PTH119, PTH123, SIM115, PTH110, PTH103, PTH105, S606, PLW1510

import hashlib
import os
import re
import subprocess
import sys

REAL, SLIM, TORCH, HOME = "@REAL@", "@SLIM@", "@TORCH@", "@HOME@"
NVCC = os.path.basename(sys.argv[0]) == "nvcc"
_ARCH = re.compile(r"-{1,2}(gencode|generate-code|arch|gpu-architecture|code|gpu-code)\b")
_FOR_ANOTHER = re.compile(r"-X\w+|--\w+-options")
_NAMED = re.compile(r"\b(?:torch|at)::(\w+)\s*\(")
_NEEDED = {
    "CONTEXT": r"Context\b|AT_CUDA_(NVRTC|DRIVER)_CHECK",
    "DEVICEGUARD": r"device_of|Device\w*Guard",
    "TENSORUTILS": r"TensorArg|Geometry|check(All|Same|Size|Dim|Num|Def|Cont|Scalar)|\w+Stride",
    "TRACERMODE": r"tracer",
}
"""Names of what the headers give that each of PyTorch's operators includes, and none needs."""
_ALWAYS = ("empty", "empty_like", "zeros", "zeros_like", "from_blob", "full", "ones")


def for_emulator(given: list[str]) -> list[str]:
    """Ask for PTX of the newest architecture among those that are given, with line numbers."""
    kept: list[str] = []
    chosen: list[str] = []
    words = iter(given)
    for word in words:
        if _ARCH.match(word):
            text = word if "=" in word else f"{word}={next(words, '')}"
            chosen += re.findall(r"(?:compute|sm)_(\d+[af]?)", text)
        elif word not in ("-G", "--device-debug"):
            kept.append(word)
    chosen.append(os.environ.get("GPUEMU_ARCH", "80"))
    arch = max(chosen, key=lambda a: (int(a.rstrip("af")), a))
    return [*kept, f"-gencode=arch=compute_{arch},code=compute_{arch}", "-lineinfo"]


def without_levels(given: list[str]) -> list[str]:
    """Leave out -O3 and the like, which double the time of c++, and of nvcc's c++: the code that
    launches kernels gains nothing by it. Kernels are optimised without it, too."""
    return [
        word
        for before, word in zip(["", *given], given, strict=False)
        if not re.fullmatch(r"-O[0-3sg]", word) or _FOR_ANOTHER.fullmatch(before)
    ]


def slim_flags(sources: list[str]) -> list[str] | None:
    """Return flags for the small headers, with the operators that the sources name."""
    text = "".join(open(name, errors="replace").read() for name in sources)
    if not re.search(r"#\s*include\s*[<\"](torch|ATen)/", text):
        return None
    named = sorted(
        name
        for name in {*_NAMED.findall(text), *_ALWAYS}
        if os.path.exists(f"{TORCH}/include/ATen/ops/{name}.h")
    )
    body = "#pragma once\n"
    body += "".join(f"#define GPUEMU_{h}\n" for h, said in _NEEDED.items() if re.search(said, text))
    body += "#include <ATen/TensorOperators.h>\n"
    body += "".join(f"#include <ATen/ops/{name}.h>\n" for name in named)
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    folder = f"{os.environ.get('GPUEMU_BUILD', HOME)}/ops/{digest}"
    os.makedirs(folder, exist_ok=True)
    target = f"{folder}/gpuemu_ops.h"
    if not os.path.exists(target):  # a new date would make ninja compile again
        with open(f"{target}.{os.getpid()}", "w") as file:
            file.write(body)
        os.replace(file.name, target)
    python = re.search(r"PYBIND11|py::|pybind11", text)
    return [f"-I{SLIM}", f"-I{folder}", *(["-DGPUEMU_PYBIND"] if python else [])]


given = sys.argv[1:]
if {"-dlink", "--version", "-dumpversion", "-dumpfullversion", "-v"} & set(given):
    os.execv(REAL, [REAL, *given])
args = without_levels(for_emulator(given) if NVCC else given)
sources = [a for a in args if a.endswith((".cu", ".cpp", ".cc"))] if "-c" in args else []
slim = slim_flags(sources) if sources else None
if slim is not None:
    done = subprocess.run([REAL, *slim, *args], capture_output=True)
    if done.returncode == 0:
        sys.stderr.buffer.write(done.stderr)
        sys.exit(0)
os.execv(REAL, [REAL, *args])
