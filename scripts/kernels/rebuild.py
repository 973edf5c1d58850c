"""Rebuild the committed PTX and cubins of the kernels in this folder (needs nvcc and ptxas).

    python scripts/kernels/rebuild.py [--check] [NAME ...]

Each ``NAME.cu`` gives ``sm_80/NAME.ptx``, ``sm_80/NAME.cubin`` and the same for sm_90. Source paths
in the PTX are made relative to the repository and a hash of the path is zeroed, so that the result
is the same on every machine.
``--check`` builds into a temporary folder and says what differs.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
REPOSITORY = FOLDER.parent.parent
ARCHITECTURES = ("sm_80", "sm_90")
_FILE_DIRECTIVE = re.compile(r'(\.file\s+\d+\s+)"([^"\n]*)"')
_UNIT_HASH = re.compile(
    "({})(?:[0-9]+,){{8}}".format("".join(f"{byte}," for byte in b"_INTERNAL_"))
)
"""Matches, in the bytes of a debug name, the hash that nvcc makes of the source's absolute path."""


def relative_source(match: re.Match[str]) -> str:
    """Return a ``.file`` directive without the machine's folders."""
    path = Path(match.group(2))
    try:
        shown = path.relative_to(REPOSITORY).as_posix()
    except ValueError:
        shown = f"cuda/{path.name}"
    return f'{match.group(1)}"{shown}"'


def build(source: Path, arch: str, output: Path) -> None:
    """Compile one source to PTX with line information, and that PTX to a cubin."""
    output.mkdir(parents=True, exist_ok=True)
    ptx, cubin = output / f"{source.stem}.ptx", output / f"{source.stem}.cubin"
    subprocess.run(
        ["nvcc", "-ptx", "-lineinfo", f"-arch={arch}", "-o", str(ptx), str(source)], check=True
    )
    text = _FILE_DIRECTIVE.sub(relative_source, ptx.read_text(encoding="utf-8"))
    text = _UNIT_HASH.sub(lambda match: match[1] + "48," * 8, text)
    ptx.write_text(text, encoding="utf-8")
    subprocess.run(
        ["ptxas", "--suppress-debug-info", f"-arch={arch}", ptx.name, "-o", cubin.name],
        check=True,
        cwd=output,
    )


def main() -> int:
    """Build the named kernels, or all kernels."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    arguments = parser.parse_args()
    sources = [FOLDER / f"{name}.cu" for name in arguments.names] or sorted(FOLDER.glob("*.cu"))
    differing = []
    with tempfile.TemporaryDirectory() as scratch:
        for source in sources:
            for arch in ARCHITECTURES:
                target = FOLDER / arch
                output = Path(scratch) / arch if arguments.check else target
                build(source, arch, output)
                for suffix in (".ptx", ".cubin"):
                    name = source.stem + suffix
                    committed = target / name
                    same = committed.is_file() and (
                        committed.read_bytes() == (output / name).read_bytes()
                    )
                    if not same:
                        differing.append(f"{arch}/{name}")
    for name in differing:
        print(f"differs: {name}")
    print(f"{len(sources)} sources, {len(ARCHITECTURES)} architectures")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
