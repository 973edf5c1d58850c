"""Compile the test kernels of the emulator to PTX; needs nvcc, which the tests do not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parent
ARCHITECTURES = {
    "small_floats.cu": "sm_89",
    "barriers.cu": "sm_90",
    "clusters.cu": "sm_90",
    "cooperative.cu": "sm_90",
}


def compile_kernel(source: Path, nvcc: str = "nvcc") -> str:
    """Compile one file; paths of this machine are left out of the PTX."""
    arch = ARCHITECTURES.get(source.name, "sm_80")
    done = subprocess.run(
        [nvcc, f"-arch={arch}", "-lineinfo", "-ptx", "-o", "-", source.name],
        cwd=source.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{source.name}: {done.stderr}")
    text = re.sub(r'(\.file\s+\d+\s+)"[^"]*/([^"/]+)"', r'\1"\2"', done.stdout)
    text = re.sub(r"^//.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^\.section.*?^\}\n?|^\s*\.section\s+\.debug_\w+\s*\{[^}]*\}\n?", "", text,
                  flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    return re.sub(r"\n\s*\n+", "\n", text)


def main() -> None:
    """Compile the files named, or all."""
    named = [KERNELS / name for name in sys.argv[1:]] or sorted(KERNELS.glob("*.cu"))
    for source in named:
        source.with_suffix(".ptx").write_text(compile_kernel(source))
        print(f"{source.name}: {source.with_suffix('.ptx').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
