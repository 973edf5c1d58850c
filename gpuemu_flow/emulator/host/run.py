"""Run a program on the imaginary GPU: give it our libcudart, serve each process that uses it."""

from __future__ import annotations

import ctypes
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from gpuemu_flow.emulator.host.build import build_program, find_toolkit, problem, runtime_folder
from gpuemu_flow.emulator.host.places import needed_libraries
from gpuemu_flow.emulator.host.session import HostReport, Options, Session
from gpuemu_flow.model.decoding import known
from gpuemu_flow.model.errors import Problem

FINDINGS_CODE = 86
"""Exit code with findings; that of compute-sanitizer is the user's choice, often this one."""
NOT_RUN_CODE = 4
_SITE = Path(__file__).parent / "site"
_NVIDIA = re.compile(
    r"lib(nvidia|nvcuvid|nvrtc|nvJitLink|nvjpeg|nccl|npp|cu(dnn|fft|rand|sparse|solver|pti))"
)
_DRIVERS = ("libnvidia", "libnvcuvid")


class Executed(msgspec.Struct):
    """How a program ended, and what was found in it."""

    code: int
    report: HostReport
    signal: str = ""

    @property
    def exit_code(self) -> int:
        """Return the exit code for `exec`."""
        if self.report.findings:
            return FINDINGS_CODE
        if self.code == 0 and self.report.problems:
            return NOT_RUN_CODE
        return self.code


class Device:
    """An imaginary GPU for a program that is started by `environment`, and its descendants.

    Each process that uses the device is served by a process of its own, forked from this one.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        short = None if len(tempfile.gettempdir()) < 60 else "/tmp"  # noqa: S108 - a socket's name
        self._folder = Path(tempfile.mkdtemp(prefix="gpuemu-", dir=short))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._folder / "device"))
        self._socket.listen(16)
        self._servers: list[int] = []

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a program that uses the device."""
        toolkit = find_toolkit()
        library = str(runtime_folder(toolkit))
        before = environ.get("LD_LIBRARY_PATH", "")
        flags = environ.get("NVCC_APPEND_FLAGS", "")
        return {
            **environ,
            "LD_LIBRARY_PATH": f"{library}:{before}" if before else library,
            "GPUEMU_SOCKET": str(self._folder / "device"),
            "GPUEMU_ARCH": str(self.options.arch),
            "NVCC_APPEND_FLAGS": f"{flags} -cudart shared -lineinfo -g".strip(),
            "PYTHONPATH": ":".join(filter(None, (str(_SITE), environ.get("PYTHONPATH", "")))),
            "GPUEMU_PACKAGE": str(_SITE.parents[3]),
        }

    def fileno(self) -> int:
        """Return the socket's number, for a selector."""
        return self._socket.fileno()

    def accept(self) -> None:
        """Serve a process that wants to use the device, in a new process."""
        self._fork_server(self._socket.accept()[0])

    def _fork_server(self, connection: socket.socket) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            connection.close()
            self._servers.append(pid)
            return
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            self._socket.close()
            report = serve(connection, self.options)
            if report is not None:
                data = msgspec.msgpack.encode(report)
                (self._folder / f"{os.getpid()}.report").write_bytes(data)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def finish(self) -> HostReport:
        """Wait for all servers, and return what they found."""
        report = HostReport()
        for pid in self._servers:
            _, status = os.waitpid(pid, 0)
            file = self._folder / f"{pid}.report"
            if status:
                crash = Problem("exec-crash", "the emulator failed; its traceback is above")
                report.problems.append(str(crash))
            elif file.is_file():
                report.add(msgspec.msgpack.decode(file.read_bytes(), type=known(HostReport)))
        self._servers.clear()
        return report

    def close(self) -> None:
        """Remove the socket."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_THP_DISABLE, _MMAP_THRESHOLD = 41, -3
"""Of prctl and mallopt."""


def serve(connection: socket.socket, options: Options) -> HostReport | None:
    """Run the kernels of the process at the other end until it ends; None if it launched none."""
    hello, fds, _, _ = socket.recv_fds(connection, 256, 1)
    if not hello:
        return None
    _, pid, size = hello.decode().split()
    # Tables for each byte of the device are mostly never touched: their memory comes page by page.
    libc = ctypes.CDLL(None)
    libc.prctl(_THP_DISABLE, 1, 0, 0, 0)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 1 << 20)
    session = Session(connection, fds[0], int(pid), int(size), options)
    connection.sendall(b"!")
    return session.serve()


def prepare(program: str, flags: Sequence[str], arch: int) -> str:
    """Return the program to start: a ``.cu`` file is compiled first.

    Raises FlowError for a program that cannot run here, and says why.
    """
    path = Path(program)
    if path.suffix in (".cu", ".cuh"):
        if not path.is_file():
            raise problem("exec-no-program", f"{program} does not exist")
        return str(build_program([path], flags, arch))
    found = shutil.which(program)
    if found is None:
        hint = "write ./NAME for a file here"
        if path.exists() and ("/" in program or path.suffix == ".py"):
            hint = f"it is not executable; give what runs it, too, as in `exec python {program}`"
        elif "/" in program:
            hint = "there is no such file"
        raise problem("exec-no-program", f"{program} is no program", hint)
    needed = needed_libraries(Path(found))
    if needed is None:
        return found
    data = Path(found).read_bytes()
    if b".nv_fatbin" in data and not any(
        name.startswith(("libcudart.so", "libcuda.so")) for name in needed
    ):
        raise problem(
            "exec-static", f"{program} holds NVIDIA's runtime, which needs a driver",
            "build it with nvcc -cudart shared -lineinfo -g, or with "
            'NVCC_APPEND_FLAGS="-cudart shared -lineinfo -g" in the environment',
        )  # fmt: skip
    wanted = next((name for name in needed if name.startswith("libcudart.so.")), "")
    toolkit = find_toolkit()
    if wanted and wanted != f"libcudart.so.{toolkit.major}":
        raise problem(
            "exec-version", f"{program} needs {wanted}, the toolkit here is CUDA {toolkit.major}",
            "set CUDA_HOME to the toolkit that built it",
        )  # fmt: skip
    _demand_libraries(found, [name for name in needed if _NVIDIA.match(name)])
    return found


def _demand_libraries(program: str, names: Sequence[str]) -> None:
    """Refuse a program if the loader does not find one of NVIDIA's libraries that it names."""
    if not names:
        return
    asked = {**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=asked)
    for name in names:
        if f"{name} => not found" in done.stdout:
            driver = name.startswith(_DRIVERS)
            whose = "comes with NVIDIA's driver" if driver else "is not installed"
            raise problem(
                "exec-library", f"{program} needs {name}, which {whose}",
                "build it without what calls this library" + ", or install it" * (not driver),
            )  # fmt: skip


def run_program(command: Sequence[str], options: Options) -> Executed:
    """Run a program to its end."""
    device = Device(options)
    child = None
    try:
        child = subprocess.Popen(command, env=device.environment(os.environ))
        ended = os.pidfd_open(child.pid)
        with selectors.DefaultSelector() as selector:
            selector.register(device, selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if device in ready:
                    device.accept()
                elif ended in ready:
                    break
        os.close(ended)
        code = child.wait()
        name = signal.Signals(-code).name if code < 0 else ""
        return Executed(128 - code if code < 0 else code, device.finish(), name)
    except OSError as error:
        raise problem(
            "exec-no-program", f"{command[0]} cannot be started: {error.strerror}"
        ) from None
    finally:
        if child is not None and child.poll() is None:
            child.kill()
            child.wait()
        device.close()


# What `exec` prints of a run.


def summary(executed: Executed) -> str:
    """Return the last lines of a run."""
    report = executed.report
    launches = sum(use.launches for use in report.kernels.values())
    repeated = sum(use.repeated for use in report.kernels.values())
    lines = []
    if executed.signal:
        lines.append(f"the program was ended by {executed.signal}")
    if repeated:
        lines.append(
            f"{repeated:,} of {launches:,} launches repeated an earlier one: taken from it"
        )
    parts = [
        _count(len(report.findings), "finding"), _count(launches, "launch", "es"),
        _count(len(report.kernels), "kernel"),
    ]  # fmt: skip
    if report.problems:
        parts.append(_count(len(report.problems), "problem"))
    lines.append(", ".join(parts))
    return "\n".join(f"========= {line}" for line in lines)


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def as_json(executed: Executed) -> str:
    """Return the report: findings, problems, and how often each kernel was launched."""
    report = executed.report
    return json.dumps(
        {
            "exit_code": executed.exit_code,
            "program_exit_code": executed.code,
            "findings": [
                {**msgspec.to_builtins(finding), "text": str(finding)}
                for finding in report.findings
            ],
            "problems": report.problems,
            "kernels": {name: msgspec.to_builtins(use) for name, use in report.kernels.items()},
        },
        indent=2,
    )
