"""Run compilers with limits of time and output, and convert their errors to problems."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.lint.cubin import read_cubin
from gpuemu_flow.lint.toolchain import (
    PACKAGES,
    MachineCode,
    Tool,
    Toolchain,
    ToolRun,
    errors_of,
    parse_nvdisasm_json,
    parse_ptxas_output,
    run_tool,
)
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.let_through import let_through
from gpuemu_flow.model.plain_text import clipped
from gpuemu_flow.model.types import Json
from gpuemu_flow.tasks.base import Interrupted
from gpuemu_flow.workers.sandbox import launch

if TYPE_CHECKING:
    from gpuemu_flow.workers.listener import Recording

TIMEOUT = 300.0
COMMAND_TIMEOUT = 900.0
MAX_OUTPUT = 8 << 20
MAX_LISTING = 32 << 20  # about 350,000 machine instructions
MAX_PROBLEMS = 20
_LINES_SHOWN, _LINE_SHOWN = 3, 200
_LAUNCHER = Path(launch.__file__)
# Variables that would change a build without being part of its key.
_DROPPED = (
    "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH",
    "NVCC_CCBIN", "TRITON_INTERPRET",
)  # fmt: skip
_CUDA_ERROR = re.compile(
    r"^(?P<file>[^\n]+?)\((?P<line>\d{1,9})\): (?:catastrophic )?error(?: #[\w-]+)?: (?P<text>.*)$"
)
_HOST_ERROR = re.compile(
    r"^(?P<file>[^\n:]+):(?P<line>\d{1,9}):(?:\d{1,9}:)? (?:fatal )?error: (?P<text>.*)$"
)
_TOOL_ERROR = re.compile(
    r"^(?:nvcc|ptxas|cicc|nvlink|fatbinary)\b(?! +info\b)(?:[^\n:]*?[\s;])?(?:fatal|error)\s*:"
    r"\s*(?P<text>.*)$"
)
_REMARK = re.compile(r"^ptxas +info\b|^\s*\d+ bytes stack frame\b|^Remark: ")
_SAYS_WHY = re.compile(
    r"\b(?:error|fatal|failed|cannot|can't|unable|denied|killed|no space)\b", re.I
)
"""Matches lines of a compiler's output that report an error, but that no pattern above matches."""
_REFUSED = ("Permission denied", "Read-only file system", "Operation not permitted")
REFUSED_HINT = (
    "it may write beside its outputs only: name all that it makes, or the folder under "
    "`[sandbox] writable`"
)
_UNRESOLVED = "Unresolved extern"


class ToolSandbox(Struct, frozen=True):
    """The sandbox in which a compiler runs."""

    folder: Path
    sandbox: Mapping[str, Json]


class CompilerRun(Struct):
    """The result of one run of a compiler."""

    output: bytes | None = None
    ptx: bytes | None = None
    text: str = ""
    problems: list[Problem] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    reason: str = ""
    stopped: bool = False
    skipped: str = ""
    launch: dict[str, Json] | None = None


def nvcc(
    tool: Tool,
    source: str,
    arch: str,
    flags: Sequence[str],
    folder: Path,
    *,
    root: Path,
    cancel: threading.Event,
    tool_sandbox: ToolSandbox | None = None,
) -> CompilerRun:
    """Compile CUDA C++ to PTX and cubin in one run, with line information."""
    # Lines in the PTX only: in a cubin they come with the source's size and time, and a build of
    # the same code would not give the same bytes.
    lines = ["-lineinfo", "-Xptxas", "--suppress-debug-info"]
    debug = {"-G", "--device-debug", "-lineinfo", "--generate-line-info"}
    arguments = [
        tool.path, "-cubin", f"-arch={arch}", "--keep", "--keep-dir", str(folder),
        "-MMD", "-MF", str(folder / "reads.d"), "-Xptxas", "-v", "-o", str(folder / "kernel.cubin"),
        *([] if debug.intersection(flags) else lines), *flags, source,
    ]  # fmt: skip
    run = _run(arguments, root, TIMEOUT, cancel, tool_sandbox=tool_sandbox)
    text = _text(run)
    if not run.ok:
        problems = _errors(text, source, root) or [_failed(run, tool.name, source, text)]
        return CompilerRun(text=text, problems=problems, stopped=bool(run.stopped))
    cubin = _bytes(folder / "kernel.cubin")
    result = CompilerRun(cubin, _bytes(folder / f"{Path(source).stem}.ptx"), text)
    result.reads = _reads(folder / "reads.d", root)
    if cubin is None:
        message = "nvcc ended well and made no cubin; look at build.flags"
        result.problems.append(Problem("build-failed", message, "", source))
    return result


def ptxas(
    tool: Tool,
    ptx: bytes,
    arch: str,
    folder: Path,
    *,
    cancel: threading.Event,
    tool_sandbox: ToolSandbox | None = None,
) -> CompilerRun:
    """Assemble PTX to a cubin, without linking it if the PTX calls functions of other files."""
    (folder / "kernel.ptx").write_bytes(ptx)
    arguments = [tool.path, "-v", f"-arch={arch}", "kernel.ptx", "-o", "kernel.cubin"]
    run = _run(arguments, folder, TIMEOUT, cancel, tool_sandbox=tool_sandbox)
    text = run.stderr.decode("utf-8", "replace")
    if not run.ok and _UNRESOLVED in text:
        run = _run([*arguments, "-c"], folder, TIMEOUT, cancel, tool_sandbox=tool_sandbox)
        text = run.stderr.decode("utf-8", "replace")
    output = _bytes(folder / "kernel.cubin") if run.ok else None
    return CompilerRun(output, text=text, reason=_reason(run, text), stopped=bool(run.stopped))


def nvdisasm(
    tool: Tool,
    cubin: bytes,
    folder: Path,
    *,
    cancel: threading.Event,
    tool_sandbox: ToolSandbox | None = None,
) -> CompilerRun:
    """List a cubin's machine instructions; `output` is the listing as JSON."""
    (folder / "listed.cubin").write_bytes(cubin)
    arguments = [tool.path, "-json", "listed.cubin"]
    run = _run(
        arguments, folder, TIMEOUT, cancel, max_output=MAX_LISTING, tool_sandbox=tool_sandbox
    )
    reason = _reason(run, run.stderr.decode("utf-8", "replace"))
    return CompilerRun(run.stdout if run.ok else None, reason=reason, stopped=bool(run.stopped))


def command(
    arguments: Sequence[str],
    root: Path,
    *,
    cancel: threading.Event,
    tool_sandbox: ToolSandbox | None = None,
    environment: Mapping[str, str] | None = None,
    timeout: float = COMMAND_TIMEOUT,
    if_slow: str = "",
    recording: Recording | None = None,
) -> Problem | None:
    """Run the user's command in the workspace; return a problem if it fails, else None."""
    run = _run(
        list(arguments), root, timeout, cancel, tool_sandbox=tool_sandbox, environment=environment,
        recording=recording,
    )  # fmt: skip
    if run.ok:
        return None
    text = _text(run)
    found = _errors(text, "", root)
    problem = found[0] if found else _failed(run, arguments[0], "", text)
    if run.stopped and if_slow:
        problem = replace(problem, hint=if_slow)
    if tool_sandbox is not None and not problem.hint and any(sign in text for sign in _REFUSED):
        return replace(problem, hint=REFUSED_HINT)
    return problem


def triton(
    kernel: Mapping[str, Json],
    arch: str,
    folder: Path,
    *,
    root: Path,
    python: str,
    cancel: threading.Event,
    tool_sandbox: ToolSandbox | None = None,
) -> CompilerRun:
    """Compile a Triton kernel for a target, in a separate interpreter."""
    (folder / "request.json").write_text(
        json.dumps({**kernel, "arch": arch, "root": str(root)}), encoding="utf-8"
    )
    child = Path(__file__).with_name("triton_child.py")
    arguments = [python or sys.executable, str(child), str(folder)]
    variables = {"TRITON_CACHE_DIR": str(folder / "cache")}
    run = _run(arguments, root, TIMEOUT, cancel, variables=variables, tool_sandbox=tool_sandbox)
    text = _text(run)
    answer: dict[str, Json] = {}
    data = _bytes(folder / "answer.json")
    if data is not None:
        # The kernel's file was imported by whoever wrote it.
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(data)
            answer = found if isinstance(found, dict) else {}
    if answer.get("missing"):
        return CompilerRun(skipped=str(answer["missing"]))
    path = str(kernel["path"])
    if answer.get("error"):
        line = answer.get("line")
        place = (str(answer.get("file") or path), line if isinstance(line, int) else 0)
        return CompilerRun(problems=[Problem("build-failed", str(answer["error"]), "", *place)])
    if not run.ok:
        return CompilerRun(problems=[_failed(run, "triton", path, text)], stopped=bool(run.stopped))
    return CompilerRun(
        _bytes(folder / "kernel.cubin"),
        _bytes(folder / "kernel.ptx"),
        text,
        launch=launched if isinstance(launched := answer.get("launch"), dict) else None,
    )


def _run(
    arguments: Sequence[str],
    cwd: Path,
    timeout: float,
    cancel: threading.Event,
    *,
    max_output: int = MAX_OUTPUT,
    variables: Mapping[str, str] | None = None,
    tool_sandbox: ToolSandbox | None = None,
    environment: Mapping[str, str] | None = None,
    recording: Recording | None = None,
) -> ToolRun:
    known: Mapping[str, str] = os.environ
    if tool_sandbox is not None:
        # A source can have the environment of its compiler in what is made of it.
        known = {**let_through(os.environ), "HOME": os.environ.get("HOME", "")}
    if environment is None:
        environment = {name: value for name, value in known.items() if name not in _DROPPED}
    environment = {**environment, **(variables or {})}
    fds = () if recording is None else recording.fds
    if tool_sandbox is not None or fds:
        how: dict[str, Json] = {"seen_at": fds, "locale": environment.get("LC_CTYPE", "")}
        if tool_sandbox is not None:
            how |= {"sandbox": tool_sandbox.sandbox, "folder": str(tool_sandbox.folder)}
        arguments = [sys.executable, str(_LAUNCHER), json.dumps(how), *arguments]
    if cancel.is_set():
        raise Interrupted
    run = run_tool(
        arguments,
        timeout=timeout,
        cwd=cwd,
        environment=environment,
        max_output=max_output,
        cancel=cancel,
        fds=fds,
    )
    if cancel.is_set():
        raise Interrupted
    return run


def _text(run: ToolRun) -> str:
    return (run.stderr + b"\n" + run.stdout).decode("utf-8", "replace")


def _bytes(path: Path) -> bytes | None:
    """Read a file that a compiler wrote; return None if it is not a regular file."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:  # noqa: PTH123 - opened above
            return file.read() if stat.S_ISREG(os.fstat(fd).st_mode) else None
    except OSError:
        return None


def _errors(text: str, source: str, root: Path) -> list[Problem]:
    """Return the errors in a compiler's output, each with its file and, if known, its line."""
    problems: dict[Problem, None] = {}
    prefix = f"{root}/"
    for line in text.splitlines():
        match = _CUDA_ERROR.match(line) or _HOST_ERROR.match(line)
        if match is not None:
            file = match.group("file").strip().removeprefix(prefix)
            place = (file, int(match.group("line")))
            problems[Problem("build-failed", match.group("text").strip(), "", *place)] = None
        else:
            fatal = _TOOL_ERROR.match(line)
            if fatal is not None:
                problems[Problem("build-failed", fatal.group("text").strip(), "", source)] = None
        if len(problems) >= MAX_PROBLEMS:
            break
    return list(problems)


def _reason(run: ToolRun, text: str) -> str:
    if run.ok:
        return ""
    lines = [line for line in text.splitlines() if line.strip() and not _REMARK.search(line)]
    if len(lines) > _LINES_SHOWN:
        lines = [line for line in lines if _SAYS_WHY.search(line)] or lines
    said = " / ".join(clipped(line, _LINE_SHOWN) for line in lines[-_LINES_SHOWN:])
    how = run.stopped or f"exit status {run.status}"
    return f"{how}: {said}" if said else how


def _failed(run: ToolRun, name: str, file: str, text: str) -> Problem:
    hint = "make it faster, or build with build.command beforehand" if run.stopped else ""
    return Problem("build-failed", f"{name} failed, {_reason(run, text)}", hint, file)


def _reads(path: Path, root: Path) -> list[str]:
    """Return the workspace files that a dependency file (in the format of make) names, sorted."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return []
    _, _, names = text.replace("\\\n", " ").partition(" :")
    found = set()
    for name in re.findall(r"(?:\\.|[^\s\\])+", names):
        plain = re.sub(r"\\(.)", r"\1", name)
        full = Path(os.path.normpath(root / plain))
        if full.is_relative_to(root):
            found.add(full.relative_to(root).as_posix())
    return sorted(found)


# Assemble PTX to a cubin, and list its machine instructions, if the tools are installed.


_PTX_VERSION = re.compile(rb"^\s*\.version\s+(\d{1,3})\.(\d{1,3})", re.MULTILINE)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+(sm_\d{2,3}[af]?)", re.MULTILINE)
_HEAD = 1 << 16


class Assembled(Struct):
    """The result of assembling a PTX file."""

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
    tool_sandbox: ToolSandbox | None,
) -> Assembled | None:
    """Assemble PTX with the first ptxas that supports its version."""
    head = ptx[:_HEAD]
    version, target = _PTX_VERSION.search(head), _PTX_TARGET.search(head)
    wanted = arch or (target.group(1).decode() if target else "")
    if version is None or not wanted or not tools:
        return None
    chain = Toolchain({"ptxas": list(tools)})
    tool = chain.ptxas_for((int(version.group(1)), int(version.group(2))))
    if isinstance(tool, Problem):
        return Assembled(None, "", problems=[replace(tool, file=file, warning=True)])
    result = ptxas(tool, ptx, wanted, folder, cancel=cancel, tool_sandbox=tool_sandbox)
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
    tool_sandbox: ToolSandbox | None,
) -> MachineCode | Problem | None:
    """List a cubin's machine instructions with the first disassembler that can read it."""
    if tools and isinstance(read_cubin(cubin), Problem):
        return None
    problem: Problem | None = None
    for tool in tools:
        result = nvdisasm(tool, cubin, folder, cancel=cancel, tool_sandbox=tool_sandbox)
        if result.output is None:
            reason = f"nvdisasm {tool.version} does not read it: {result.reason}"
            hint = f"pip install -U {PACKAGES[tool.name]}"
            problem = Problem("sass-unreadable", reason, hint, file, warning=True)
            continue
        listing = parse_nvdisasm_json(result.output, file)
        if not isinstance(listing, Problem):
            return MachineCode(f"nvdisasm {tool.version}", listing)
        problem = replace(listing, warning=True)
    return problem
