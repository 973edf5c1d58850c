"""Assemble PTX to a cubin, and list its machine instructions, if the tools are installed."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path

from gpuemu_flow.artifacts.cubin import read_cubin
from gpuemu_flow.artifacts.ptxas import errors_of, parse_ptxas_output
from gpuemu_flow.artifacts.sass import MachineCode, parse_nvdisasm_json
from gpuemu_flow.artifacts.toolchain import PACKAGES, Tool, Toolchain
from gpuemu_flow.errors import Problem
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.tasks.parts import compilers

_PTX_VERSION = re.compile(rb"^\s*\.version\s+(\d{1,3})\.(\d{1,3})", re.MULTILINE)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+(sm_\d{2,3}[af]?)", re.MULTILINE)
_HEAD = 1 << 16


@dataclass
class Assembled:
    """The result of assembling a PTX file.

    Attributes
    ----------
    cubin : bytes or None
        The cubin; None if assembling failed.
    arch : str
        Architecture of the cubin.
    unmet_bounds : dict of str to str
        For each kernel whose launch bounds ptxas ignored, the message of ptxas.
    error : str
        Reason why assembling failed, in one line.
    problems : list of Problem
    stopped : bool
        True if ptxas was ended because it took too long or printed too much.
    """

    cubin: bytes | None
    arch: str
    unmet_bounds: dict[str, str] = field(default_factory=dict)
    error: str = ""
    problems: list[Problem] = field(default_factory=list)
    stopped: bool = False


def assemble(
    ptx: bytes,
    file: str,
    arch: str,
    tools: Sequence[Tool],
    folder: Path,
    cancel: threading.Event,
    tool_sandbox: compilers.ToolSandbox | None,
) -> Assembled | None:
    """Assemble PTX with the first ptxas that supports its version.

    Parameters
    ----------
    file : str
        Name for messages.
    arch : str
        Architecture; empty for the target that the PTX names. If an architecture is given, the
        lint judges errors without a line number, so `Assembled.problems` contains nothing about
        them, unless ptxas was stopped.
    folder : Path
        Folder for the files that ptxas reads and writes.
    cancel : threading.Event
    tool_sandbox : ToolSandbox or None
        The sandbox of ptxas, since hostile PTX could take over ptxas; None for no sandbox.

    Returns
    -------
    Assembled or None
        None if there is no ptxas, or if the PTX names no version or target. The reader of PTX
        reports such PTX.
    """
    head = ptx[:_HEAD]
    version, target = _PTX_VERSION.search(head), _PTX_TARGET.search(head)
    wanted = arch or (target.group(1).decode() if target else "")
    if version is None or not wanted or not tools:
        return None
    chain = Toolchain({"ptxas": list(tools)})
    tool = chain.ptxas_for((int(version.group(1)), int(version.group(2))))
    if isinstance(tool, Problem):
        return Assembled(None, "", problems=[replace(tool, file=file, warning=True)])
    result = compilers.ptxas(tool, ptx, wanted, folder, cancel=cancel, tool_sandbox=tool_sandbox)
    report = parse_ptxas_output(result.text, file)
    if result.output is not None:
        return Assembled(result.output, wanted, report.unmet_bounds)
    errors = errors_of(report.problems)
    error = errors[0].message if errors else result.reason
    problems = [problem for problem in errors if problem.line]
    if not problems and (not arch or result.stopped):
        text = f"ptxas {tool.version} does not assemble it for {wanted}: {error}"
        problems = [Problem("ptxas-warning", text, "", file, warning=True)]
    return Assembled(None, wanted, report.unmet_bounds, error, problems, result.stopped)


def disassemble(
    cubin: bytes,
    file: str,
    tools: Sequence[Tool],
    folder: Path,
    cancel: threading.Event,
    tool_sandbox: compilers.ToolSandbox | None,
) -> MachineCode | Problem | None:
    """List a cubin's machine instructions with the first disassembler that can read it.

    Returns
    -------
    MachineCode, Problem or None
        None if there is no disassembler, or if the cubin is damaged; the reader of cubins reports
        such a cubin. A Problem, which is only a warning, if no disassembler can read the cubin.
    """
    if tools and isinstance(read_cubin(cubin), Problem):
        return None
    problem: Problem | None = None
    for tool in tools:
        result = compilers.nvdisasm(tool, cubin, folder, cancel=cancel, tool_sandbox=tool_sandbox)
        if result.output is None:
            reason = f"nvdisasm {tool.version} does not read it: {result.reason}"
            hint = f"pip install -U {PACKAGES[tool.name]}"
            problem = Problem("sass-unreadable", reason, hint, file, warning=True)
            continue
        listing = parse_nvdisasm_json(result.output, file)
        if not isinstance(listing, Problem):
            return MachineCode(f"nvdisasm {tool.version}", listing.histograms())
        problem = replace(listing, warning=True)
    return problem
