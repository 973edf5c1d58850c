"""Stand-ins for NVIDIA's tools: real programs with their arguments and messages.

They hand out the committed artifacts of ``scripts/kernels``, so that what happens around a compiler
is tested where none is installed. Each writes a line into a log.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "scripts" / "kernels"
RELEASE = "13.0"

_COMMON = """\
#!{python}
import re, shutil, sys, time
from pathlib import Path

KERNELS = Path({kernels!r})
arguments = sys.argv[1:]
asked = arguments == ["--version"]
try:
    with Path({log!r}).open("a") as log:
        log.write("{name}?\\n" if asked else "{name}\\n")
except PermissionError:
    pass  # behind a fence
if asked:
    print("Cuda compilation tools, release {release}, V{release}.99")
    sys.exit()


def value(option):
    return arguments[arguments.index(option) + 1]


def refuse(text):
    if "@fail" in text:
        sys.exit("something went wrong, without a place")
    if "@hang" in text:
        time.sleep(600)


arch = next((a.split("=")[1] for a in arguments if a.startswith("-arch=")), "")
"""

_NVCC = """
source = Path(arguments[-1])
folders = [Path(a[2:]) for a in arguments if a.startswith("-I")]
texts, pending = {}, [source]
while pending:
    path = pending.pop()
    texts[path] = path.read_text()
    for name in re.findall('#include "(.*)"', texts[path]):
        found = [f / name for f in (path.parent, *folders) if (f / name).is_file()]
        if not found:
            sys.exit(f"{path}:1:10: fatal error: {name}: No such file or directory")
        pending.append(found[0])
for path, text in texts.items():
    refuse(text)
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("@"):
            sys.exit(f'{path}({number}): error: expected a declaration')
(made,) = re.findall("makes ([a-z_]+)", "".join(texts.values()))
shutil.copy(KERNELS / arch / f"{made}.ptx", Path(value("--keep-dir")) / f"{source.stem}.ptx")
shutil.copy(KERNELS / arch / f"{made}.cubin", value("-o"))
Path(value("-MF")).write_text("kernel.cubin : " + " ".join(map(str, texts)) + "\\n")
"""

_PTXAS = """
text = Path(arguments[2]).read_text()
refuse(text)
for number, line in enumerate(text.splitlines(), 1):
    if "@" in line and "@bad" in line:
        sys.exit(f"ptxas kernel.ptx, line {number}; error   : Unknown instruction\\n")
entry = re.search(r"[.]entry (\\w+)", text).group(1)
for path in (KERNELS / arch).glob("*.ptx"):
    if f".entry {entry}(" in path.read_text():
        shutil.copy(path.with_suffix(".cubin"), value("-o"))
"""

_NVDISASM = """
import json

data = Path(arguments[-1]).read_bytes()
if Path(__file__).with_name("nvdisasm.fails").exists():
    sys.exit("nvdisasm fatal   : unsupported architecture")
names = sorted(set(re.findall(rb"[.]text[.](\\w+)", data)))
opcodes = ["LDG.E.128", "FADD", "FADD", "STL", "NOP"]
functions = [
    {"function-name": n.decode(), "sass-instructions": [{"opcode": o} for o in opcodes]}
    for n in names
]
print(json.dumps([{}, functions]))
"""

_TEXTS = {"nvcc": _NVCC, "ptxas": _PTXAS, "nvdisasm": _NVDISASM}


@dataclass
class StandIns:
    """A folder for ``PATH`` with some of the tools.

    Attributes
    ----------
    folder : Path
    log : Path, optional
        By default a file beside the tools. Those that run behind the fence of ops need one in what
        is ``writable``, else they write none.
    """

    folder: Path
    log: Path | None = None

    def __post_init__(self) -> None:
        self._log = self.log or self.folder / "calls.log"

    def add(self, name: str, release: str = RELEASE) -> Path:
        """Put a tool there, or replace it by another release."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        path = self.folder / name
        head = _COMMON.format(
            python=sys.executable,
            kernels=str(KERNELS),
            release=release,
            name=name,
            log=str(self._log),
        )
        part = path.with_suffix(".part")
        part.write_text(head + _TEXTS[name], encoding="utf-8")
        part.chmod(0o755)
        part.rename(path)
        return path

    def calls(self) -> list[str]:
        """Names of the tools that have worked since the last question, in order."""
        return [name for name in self.started() if not name.endswith("?")]

    def started(self) -> list[str]:
        """The same with those that were only asked for their version, as ``ptxas?``."""
        if not self._log.exists():
            return []
        names = self._log.read_text().split()
        self._log.unlink()
        return names

    @property
    def path(self) -> str:
        """For the environment: this folder first."""
        return f"{self.folder}{os.pathsep}{os.environ['PATH']}"
