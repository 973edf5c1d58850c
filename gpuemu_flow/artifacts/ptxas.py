"""Parse the output of ptxas: its messages, and with ``-v`` the resource usage of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass

_COMPILING = re.compile(r"Compiling entry function '([^']*)' for '(sm_\w+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_FRAME = re.compile(
    r"(\d{1,12}) bytes stack frame, (\d{1,12}) bytes spill stores, (\d{1,12}) bytes spill loads"
)
_USED = re.compile(r"Used (\d{1,6}) registers")
_BARRIERS = re.compile(r"used (\d{1,6}) barriers")
_STACK = re.compile(r"(\d{1,12}) bytes cumulative stack size")
_SHARED = re.compile(r"(\d{1,12})(?:\+\d{1,12})? bytes smem")
_MESSAGE = re.compile(
    r"ptxas (?:(?P<file>.*?), line (?P<line>\d{1,9}); )?(?P<level>error|fatal|warning)\s*: "
    r"(?P<text>.*)"
)
_LAUNCH_BOUNDS = re.compile(
    r"(?:for entry |entry function '?)(?P<kernel>[\w$]+).*"
    r"(?P<directive>\.(?:minnctapersm|maxntid|maxnreg|reqntid)|maxntid|minnctapersm).*ignored"
)
_UNSUPPORTED_VERSION = re.compile(r"Unsupported \.version")
MAX_MESSAGES = 50
"""Largest number of messages of one run that are kept."""


@dataclass
class KernelUsage:
    """Resources of one kernel as ``ptxas -v`` prints them.

    Attributes
    ----------
    name, arch : str
    registers, barriers : int
        Barriers are 0 with a ptxas older than CUDA 12.5, since it does not print them.
    stack_bytes : int
        Stack of the whole call tree, per thread.
    spill_store_bytes, spill_load_bytes : int
    shared_bytes : int
        Static shared memory per block, without the part that the system reserves.
    """

    name: str
    arch: str
    registers: int = 0
    barriers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    shared_bytes: int = 0

    @property
    def spill_bytes(self) -> int:
        """Add up the bytes of spill stores and loads."""
        return self.spill_store_bytes + self.spill_load_bytes


@dataclass
class PtxasReport:
    """The parsed output of one run of ptxas.

    Attributes
    ----------
    kernels : dict of str to KernelUsage
        By mangled name, because ptxas does not print kernels in source order.
    problems : list of Problem
        Errors and warnings, with the line of the PTX if ptxas gives it.
    unmet_bounds : dict of str to str
        For each kernel whose launch bounds ptxas ignored, the message that ptxas printed.
    """

    kernels: dict[str, KernelUsage] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unmet_bounds: dict[str, str] = field(default_factory=dict)


def parse_ptxas_output(text: str, file: str = "") -> PtxasReport:
    """Read the standard error of ``ptxas -v``.

    Parameters
    ----------
    text : str
    file : str
        The PTX file's name as the user knows it, which replaces the name that ptxas saw.
    """
    report = PtxasReport()
    current: KernelUsage | None = None
    described = ""
    for line in text.splitlines():
        compiling = _COMPILING.search(line)
        if compiling is not None:
            current = KernelUsage(compiling.group(1), compiling.group(2))
            report.kernels[current.name] = current
            continue
        properties = _PROPERTIES.search(line)
        if properties is not None:
            described = properties.group(1)
            continue
        if current is not None and _resources(current, line, described):
            continue
        _message(report, line, file)
    return report


def _resources(kernel: KernelUsage, line: str, described: str) -> bool:
    frame = _FRAME.search(line)
    if frame is not None:
        if described == kernel.name:
            kernel.stack_bytes = max(kernel.stack_bytes, int(frame.group(1)))
            kernel.spill_store_bytes = int(frame.group(2))
            kernel.spill_load_bytes = int(frame.group(3))
        return True
    used = _USED.search(line)
    if used is None:
        return False
    kernel.registers = int(used.group(1))
    kernel.barriers = _number(_BARRIERS, line)
    kernel.stack_bytes = max(kernel.stack_bytes, _number(_STACK, line))
    kernel.shared_bytes = _number(_SHARED, line)
    return True


def _number(pattern: re.Pattern[str], line: str) -> int:
    match = pattern.search(line)
    return int(match.group(1)) if match else 0


def _message(report: PtxasReport, line: str, file: str) -> None:
    match = _MESSAGE.match(line)
    if match is None or len(report.problems) >= MAX_MESSAGES:
        return
    text = match.group("text").strip()
    bounds = _LAUNCH_BOUNDS.search(text)
    if bounds is not None:
        report.unmet_bounds[bounds.group("kernel")] = text
    hint = ""
    if _UNSUPPORTED_VERSION.search(text):
        hint = "use a newer ptxas (pip install -U nvidia-cuda-nvcc) or build older PTX"
    report.problems.append(
        Problem(
            "ptxas-warning" if match.group("level") == "warning" else "ptxas-error",
            text,
            hint,
            file or match.group("file") or "",
            int(match.group("line") or 0),
            warning=match.group("level") == "warning",
        )
    )


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are errors, without the warnings."""
    return [problem for problem in problems if not problem.warning]
