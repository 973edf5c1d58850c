"""Find NVIDIA's tools and run them, with bounded time and output, and without a shell."""

from __future__ import annotations

import hashlib
import json
import os
import re
import selectors
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.model.errors import Problem

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


class PtxasReport(Struct):
    """What one run of ptxas said; ``unmet_bounds`` are its messages by kernel."""

    problems: list[Problem] = field(default_factory=list)
    unmet_bounds: dict[str, str] = field(default_factory=dict)


class MachineCode(Struct, frozen=True):
    """Counts of machine opcodes in the functions of one cubin, and the tool that listed them."""

    tool: str
    functions: Mapping[str, Mapping[str, int]]


def parse_ptxas_output(text: str, file: str = "") -> PtxasReport:
    report = PtxasReport()
    for line in text.splitlines():
        _message(report, line, file)
    return report


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
    return [problem for problem in problems if not problem.warning]


def parse_nvdisasm_json(text: bytes | str, file: str = "") -> dict[str, dict[str, int]] | Problem:
    """Count the opcodes of each function, except padding, in the output of ``nvdisasm -json``. The
    output has the form ``[header, [function, ...]]``. The result is a problem for other text."""
    try:
        counts = {
            str(function["function-name"]): Counter(
                str(item["opcode"]) for item in function["sass-instructions"]
            )
            for function in json.loads(text)[1]
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Problem(
            "sass-unreadable",
            f"not the output of nvdisasm -json ({type(error).__name__}: {error})",
            "",
            file,
        )
    for found in counts.values():
        del found["NOP"]
    return {name: dict(sorted(found.items())) for name, found in counts.items()}


TOOL_NAMES = ("nvcc", "ptxas", "cuobjdump", "nvdisasm")
PACKAGES: dict[str, str] = {
    "nvcc": "nvidia-cuda-nvcc",
    "ptxas": "nvidia-cuda-nvcc",
    "cuobjdump": "nvidia-cuda-cuobjdump",
    "nvdisasm": "nvidia-cuda-nvdisasm",
}
"""PyPI package that brings each tool."""

DEFAULT_TIMEOUT = 300.0
MAX_OUTPUT_BYTES = 64 << 20

_SITE_FOLDERS = (
    ("nvidia/cu13/bin", "nvidia/cu13"),
    ("nvidia/cuda_nvcc/bin", "nvidia/cuda_nvcc"),
    ("triton/backends/nvidia/bin", "triton"),
)
_OTHER_FILES: dict[str, tuple[str, ...]] = {"ptxas": ("ptxas-blackwell",)}  # Triton's second one
_VERSION_IN_FILE = re.compile(rb"release (\d{1,3})\.(\d{1,3}), V(\d{1,4}\.\d{1,4}\.\d{1,6})")
_MOST_LOOKED_AT = 64 << 20
_VERSION = re.compile(r"release (\d{1,3})\.(\d{1,3}), V([\d.]{1,32})")
_VERSION_TIMEOUT = 20.0
_GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guarded.py")))
_LOOK_EVERY = 0.1  # seconds between looks at a cancel event

# CUDA release -> the newest PTX ISA its ptxas reads. Source: PTX ISA, "Release Notes".
_PTX_OF_CUDA: dict[tuple[int, int], tuple[int, int]] = {
    (11, 0): (7, 0), (11, 1): (7, 1), (11, 2): (7, 2), (11, 3): (7, 3), (11, 4): (7, 4),
    (11, 5): (7, 5), (11, 6): (7, 6), (11, 7): (7, 7), (11, 8): (7, 8),
    (12, 0): (8, 0), (12, 1): (8, 1), (12, 2): (8, 2), (12, 3): (8, 3), (12, 4): (8, 4),
    (12, 5): (8, 5), (12, 6): (8, 5), (12, 7): (8, 6), (12, 8): (8, 7), (12, 9): (8, 8),
    (13, 0): (9, 0), (13, 1): (9, 1), (13, 2): (9, 2),
}  # fmt: skip


class ToolRun(Struct, frozen=True):
    """The outcome of one run of a program. ``status`` is the exit status, negative for a signal. It
    is None if the program was stopped because it took too long, printed too much or was cancelled;
    ``stopped`` then gives the reason."""

    status: int | None
    stdout: bytes
    stderr: bytes
    stopped: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether the program ended by itself with status 0."""
        return self.status == 0


class Tool(Struct, frozen=True):
    """One of NVIDIA's programs, as it was found on this machine."""

    name: str
    path: str
    release: tuple[int, int]
    version: str
    origin: str

    @property
    def newest_ptx(self) -> tuple[int, int]:
        """Return the newest PTX version that the ptxas of this CUDA release reads. For a release
        that is newer than all known ones, the result is a lower bound. For any other unknown
        release, the result is (0, 0)."""
        known = _PTX_OF_CUDA.get(self.release)
        if known is not None:
            return known
        newest = max(_PTX_OF_CUDA)
        if self.release > newest:  # at least what the newest one that we know reads
            return (max(self.release[0] - 4, 9), self.release[1])
        return (0, 0)


class Toolchain(Struct):
    """NVIDIA's tools on one machine: all that were found of each name, in order of preference."""

    tools: dict[str, list[Tool]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def first(self, name: str) -> Tool | Problem:
        found = self.tools.get(name)
        return found[0] if found else tool_missing(name)

    def ptxas_for(self, ptx_version: tuple[int, int]) -> Tool | Problem:
        """Return the first ptxas that reads a PTX version, or a problem that says why none does."""
        candidates = self.tools.get("ptxas", [])
        if not candidates:
            return tool_missing("ptxas")
        for tool in candidates:
            if tool.newest_ptx >= ptx_version:
                return tool
        best = max(candidates, key=lambda tool: tool.newest_ptx)
        return Problem(
            "tool-too-old",
            f"ptxas {best.version} reads PTX up to {best.newest_ptx[0]}.{best.newest_ptx[1]}, "
            f"the file is .version {ptx_version[0]}.{ptx_version[1]}",
            f"pip install -U {PACKAGES['ptxas']}, or compile for an older PTX version",
            best.path,
        )


def tool_missing(name: str) -> Problem:
    return Problem(
        "tool-not-found",
        f"{name} was not found",
        f"pip install {PACKAGES.get(name, name)}, or put {name} on PATH",
    )


def find_tools(
    configured: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    site_packages: Sequence[Path] | None = None,
    *,
    names: Sequence[str] = TOOL_NAMES,
    root: Path | None = None,
) -> Toolchain:
    """Search for NVIDIA's tools: configured path, PATH, PyPI packages, Triton's own copy."""
    chain = Toolchain()
    for name in names:
        seen: set[str] = set()
        on_path = False
        for path, origin in tool_places(name, configured, environment, site_packages):
            if origin == "PATH":
                if on_path:
                    continue  # only the first one on PATH is what a user means
                on_path = _is_program(path)
            if origin != "configured" and not _is_program(path):
                continue
            real = str(Path(path).resolve())
            if real in seen:
                continue
            seen.add(real)
            foreign = origin == "configured" and _is_foreign(real, root)
            tool = (_look_at if foreign else _identify)(name, path, origin)
            if isinstance(tool, Tool):
                chain.tools.setdefault(name, []).append(tool)
            elif origin == "configured":
                chain.problems.append(tool)
    return chain


def tool_places(
    name: str,
    configured: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    site_packages: Sequence[Path] | None = None,
) -> list[tuple[str, str]]:
    """Return every path where a tool may lie, each with its origin, in order of preference. The
    files need not exist: a caller can watch these paths to notice when a tool appears."""
    environment = os.environ if environment is None else environment
    if site_packages is None:
        paths = sysconfig.get_paths()
        site_packages = [Path(p) for p in dict.fromkeys((paths["purelib"], paths["platlib"]))]
    found = []
    if configured and name in configured:
        path = shutil.which(configured[name], path=environment.get("PATH", ""))
        found.append((path or configured[name], "configured"))
    for folder in environment.get("PATH", "").split(os.pathsep):
        if folder:
            found.append((str(Path(folder).absolute() / name), "PATH"))
    for site in site_packages:
        for part, origin in _SITE_FOLDERS:
            for file in (name, *_OTHER_FILES.get(name, ())):
                found.append((str(site / part / file), origin))
    return list(dict.fromkeys(found))


def _is_program(path: str) -> bool:
    return Path(path).is_file() and os.access(path, os.X_OK)


def _identify(name: str, path: str, origin: str) -> Tool | Problem:
    run = run_tool([path, "--version"], timeout=_VERSION_TIMEOUT)
    match = _VERSION.search(run.stdout.decode("utf-8", "replace"))
    if not run.ok or match is None:
        return Problem(
            "tool-unusable",
            f"{path} --version gave no CUDA release ({_outcome(run)})",
            f"point to a working {name}, or remove the setting",
            path,
        )
    release = (int(match.group(1)), int(match.group(2)))
    return Tool(name, path, release, match.group(3), origin)


def _is_foreign(path: str, root: Path | None) -> bool:
    """Tell whether a program lies in the workspace, or is owned by neither this user nor root."""
    if root is not None and Path(path).is_relative_to(root.resolve()):
        return True
    try:
        return Path(path).stat().st_uid not in (os.geteuid(), 0)
    except OSError:
        return False


def _look_at(name: str, path: str, origin: str) -> Tool | Problem:
    """Make a `Tool` for a program that must not be run, with the version found in its file. The
    result is a problem if the file contains no version."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_LOOKED_AT)
    except (OSError, ValueError):
        content = b""
    match = _VERSION_IN_FILE.search(content)
    if match is None:
        return Problem(
            "tool-unusable",
            f"{path} belongs to the workspace or to another user, so it is not run to find out "
            "its version, and the file contains no version",
            f"name a {name} of your own outside of the workspace, or remove the setting",
            path,
        )
    release, version = (int(match.group(1)), int(match.group(2))), match.group(3).decode()
    return Tool(name, path, release, version, origin)


def _outcome(run: ToolRun) -> str:
    if run.stopped:
        return run.stopped
    message = run.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"exit status {run.status}" + (f": {message[0]}" if message else "")


def run_tool(
    arguments: Sequence[str],
    *,
    timeout: float = DEFAULT_TIMEOUT,
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    max_output: int = MAX_OUTPUT_BYTES,
    cancel: threading.Event | None = None,
    fds: Sequence[int] = (),
) -> ToolRun:
    """Run a program in a process group of its own; stop the group on timeout or too much output.
    The group is killed when this process dies."""
    variables = os.environ if environment is None else environment
    lifeline, own_end = os.pipe()
    try:
        process = subprocess.Popen(
            [*_GUARD, str(lifeline), variables.get("LC_CTYPE", ""), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(variables),
            pass_fds=[lifeline, *fds],
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        os.close(own_end)
        return ToolRun(127, b"", str(error).encode())
    finally:
        os.close(lifeline)
    with process:
        try:
            output, stopped = _collect(process, timeout, max_output, cancel)
        finally:  # on Ctrl-C, too: the program has a group of its own and would go on
            os.close(own_end)
        status = process.wait()
    stdout, stderr = output
    return ToolRun(None if stopped else status, bytes(stdout), bytes(stderr), stopped)


def _collect(
    process: subprocess.Popen[bytes],
    timeout: float,
    max_output: int,
    cancel: threading.Event | None,
) -> tuple[tuple[bytearray, bytearray], str]:
    deadline = time.monotonic() + timeout
    stdout, stderr = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, buffer in ((process.stdout, stdout), (process.stderr, stderr)):
            if stream is not None:
                selector.register(stream, selectors.EVENT_READ, buffer)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return (stdout, stderr), f"stopped after {timeout:g} s"
            if cancel is not None and cancel.is_set():
                return (stdout, stderr), "stopped with the run"
            for key, _ in selector.select(left if cancel is None else min(left, _LOOK_EVERY)):
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
                if len(key.data) > max_output:
                    return (stdout, stderr), f"stopped after printing {max_output} bytes"
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return (stdout, stderr), f"stopped after {timeout:g} s"
    return (stdout, stderr), ""


# Find the host compilers that nvcc may start, with digests that show when one has changed.


HOST_COMPILERS = ("gcc", "g++")
"""Programs that nvcc starts from ``PATH`` on Linux, unless a flag names another program."""
_FOLDER_OPTIONS = ("-ccbin", "--compiler-bindir")
_MOST_READ = 64 << 20


def host_compilers(
    flags: Sequence[str], root: Path, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the sha256 of each program that nvcc may start as its host compiler, by path."""
    path = (os.environ if environment is None else environment).get("PATH", "")
    named = _named(flags)
    if not named:
        places = [shutil.which(name, path=path) for name in HOST_COMPILERS]
    elif (root / named).is_dir():
        places = [str(root / named / name) for name in HOST_COMPILERS]
    else:
        places = [str(root / named) if os.sep in named else shutil.which(named, path=path)]
    digests = {place: _digest(place) for place in places if place is not None}
    return {place: digest for place, digest in digests.items() if digest}


def _named(flags: Sequence[str]) -> str:
    """Return the compiler or folder that the last ``-ccbin`` flag gives; empty if there is none."""
    named = ""
    for flag, following in zip(flags, (*flags[1:], ""), strict=False):
        option, equals, value = flag.partition("=")
        if option in _FOLDER_OPTIONS:
            named = value if equals else following
    return named


def _digest(path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            return hashlib.sha256(file.read(_MOST_READ)).hexdigest()
    except OSError:
        return ""
