"""Programs in other processes are traced, in whatever language they are; or it is said that not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from observed_workspace import Seen, observe, write_all
from runner_workspace import PROTOCOL, Workspace, make_case

from gpuemu_flow.workers import notices
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.sandbox import filters

FENCED = True

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not notices.CALLS, reason="this system gives no notices"),
]

PYTHON = f"""#!{sys.executable}
import json, os, sys
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import proto, helper
arrays, _ = proto.read()
open("data.txt").read()
os.path.exists("looked_for.txt")
os.listdir("folder")
open("out.txt", "w").close()
open("out.txt").close()
print(json.dumps(proto.tensor(arrays["x"])))
"""
LIBRARY = {"proto.py": PROTOCOL, "lib/helper.py": "", "data.txt": "", "folder/one": ""}
USED = {"proto.py", "lib/helper.py", "data.txt"}


def _executable(ws: Workspace, name: str, text: str) -> Path:
    path = ws.write(name, text)
    path.chmod(0o755)
    return path


def _command(ws: Workspace, *argv: str) -> Program:
    return Program(
        "command", root=str(ws.folder), path=argv[0], argv=argv[1:], input_names=("x",)
    )  # fmt: skip


def _check(seen: Seen, own: set[str]) -> None:
    assert seen.files == {*own, *USED}
    assert "looked_for.txt" in seen.missed
    assert "folder" in seen.listed
    assert "out.txt" not in seen.missed
    assert seen.untracked == set()
    assert not any("__pycache__" in path for path in seen.files | seen.missed)


def test_a_python_executable_without_a_suffix(ws: Workspace) -> None:
    write_all(ws, LIBRARY)
    seen = observe(ws, _command(ws, str(_executable(ws, "relu", PYTHON))), cases=2)
    _check(seen, {"relu"})
    assert sys.executable in seen.whole.files


def test_a_module_that_an_interpreter_runs(ws: Workspace) -> None:
    body = PYTHON.replace("os.path.dirname(os.path.abspath(__file__))", "os.getcwd()")
    write_all(ws, {**LIBRARY, "pkg/__init__.py": "", "pkg/__main__.py": body})
    seen = observe(ws, _command(ws, sys.executable, "-m", "pkg"))
    _check(seen, {"pkg/__init__.py", "pkg/__main__.py"})


@pytest.mark.parametrize("kind", ["script", "callable"])
def test_another_interpreter(ws: Workspace, kind: str) -> None:
    """The interpreter is another one by its name."""
    write_all(ws, LIBRARY)
    text = PYTHON
    if kind == "callable":
        text = "\n".join(line for line in PYTHON.split("\n") if "arrays" not in line)
        text += "def op(x): return x\n"
    program = ws.program(kind, text, python=sys.executable)
    _check(observe(ws, program), {"program.py"})


def test_a_shell_script_and_what_it_starts(ws: Workspace) -> None:
    write_all(ws, {**LIBRARY, "relu": PYTHON, "settings.sh": "true\n"})
    (ws.folder / "relu").chmod(0o755)
    shell = _executable(ws, "run", "#!/bin/sh\n. ./settings.sh\nexec ./relu\n")
    seen = observe(ws, _command(ws, str(shell)))
    _check(seen, {"run", "relu", "settings.sh"})
    assert "/bin/sh" in seen.whole.files


def _compiler() -> str:
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler")
    return found


ANSWER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>
int main(void) {
    char buffer[4096];
    struct stat about;
    FILE *table = fopen("table.bin", "rb");
    stat("looked_for.txt", &about);
    while (read(0, buffer, sizeof buffer) > 0) {}
    close(open("out.txt", O_CREAT | O_RDWR, 0600));
    close(open("out.txt", O_RDONLY));
    if (table) puts("{\"shape\": [1], \"dtype\": \"uint8\", \"data\": \"AA==\"}");
    return 0;
}
"""


@pytest.mark.parametrize("linked", ["-dynamic", "-static"])
def test_a_compiled_executable(ws: Workspace, linked: str) -> None:
    write_all(ws, {"table.bin": "1", "op.c": ANSWER})
    flags = [] if linked == "-dynamic" else [linked]
    command = [_compiler(), "op.c", "-o", "op", *flags]
    if subprocess.run(command, cwd=ws.folder, capture_output=True, check=False).returncode:
        pytest.skip(f"no library for {linked}")
    seen = observe(ws, _command(ws, str(ws.folder / "op")), cases=2)
    assert seen.files == {"op", "table.bin"}
    assert "looked_for.txt" in seen.missed
    assert seen.untracked == set()
    libc = [p for p in seen.whole.files if "/libc.so" in p or "/ld-" in p]
    assert libc or linked == "-static"


STARTS = {
    "subprocess": "import subprocess; subprocess.run(['./tool'], check=True)",
    "a pipe": "import os; os.popen('./tool').read()",
    "os.system": "import os; os.system('./tool')",
    "posix_spawn": "import os; os.waitpid(os.posix_spawn('./tool', ['./tool'], os.environ), 0)",
    "fork and exec": "import os\nif not os.fork():\n    os.execv('./tool', ['./tool'])\nos.wait()",
    "by PATH": "import os, subprocess\nos.environ['PATH'] = 'bin:' + os.environ['PATH']\n"
    "subprocess.run(['tool'], check=True)",
}


@pytest.mark.parametrize("way", STARTS)
def test_what_an_op_starts(ws: Workspace, way: str) -> None:
    for name in ("tool", "bin/tool"):
        _executable(ws, name, "#!/bin/sh\nread line < data.txt\ntest -e looked_for\n: > out.txt\n")
    ws.write("data.txt", "1\n")
    body = textwrap.indent(STARTS[way], "    ")
    seen = observe(ws, ws.program("callable", f"def op(x):\n{body}\n    return x\n"), cases=2)
    tool = "bin/tool" if way == "by PATH" else "tool"
    assert seen.files == {"program.py", tool, "data.txt"}
    assert seen.untracked == set()
    assert "looked_for" in seen.missed


def test_an_op_that_hands_junk_to_the_tracer_disturbs_nobody(ws: Workspace) -> None:
    """The fork server stays, and so do the other workers; the op has only itself to blame."""
    source = """
    import os, socket
    def op(x):
        for fd in sorted(map(int, os.listdir("/proc/self/fd")), reverse=True):
            try:
                sock = socket.socket(fileno=os.dup(fd))
            except OSError:
                continue
            if fd > 100 and sock.family == socket.AF_UNIX:
                for path in ("/dev/null", "program.py", "/dev/zero"):
                    socket.send_fds(sock, [b"a"], [os.open(path, os.O_RDONLY)])
                    socket.send_fds(sock, [b"a"], os.pipe())
        return x
    """
    parent = "import os\nimport numpy as np\ndef op(x): return np.array(os.getppid())"
    plain = ws.program("callable", parent, name="plain.py")
    with ws.pool.session(plain) as other:
        before = other.call(make_case(0))[0]["result"].item()
        with ws.pool.session(ws.program("callable", source)) as session:
            session.call(make_case(0))
        outputs, outcome = other.call(make_case(1))
        assert outcome.ok, outcome.error
        assert outputs["result"].item() == before
    assert observe(ws, plain).files == {"plain.py"}


def test_spawned_workers_of_python(ws: Workspace) -> None:
    source = """
    import multiprocessing as mp
    import part
    def op(x):
        with mp.get_context("spawn").Pool(1) as pool:
            assert pool.map(part.work, [1]) == [2]
        return x
    """
    part = "def work(n):\n    open('data.txt').close()\n    return n + 1\n"
    write_all(ws, {"part.py": part, "data.txt": ""})
    seen = observe(ws, ws.program("callable", source, timeout=300))
    assert {"part.py", "data.txt"} <= seen.files


def test_a_traced_program_may_stop_and_wait_and_fork(ws: Workspace) -> None:
    """Nothing that a program sees of its processes is changed by being traced."""
    source = """
    import os, signal, subprocess, time
    def op(x):
        child = subprocess.Popen(["/bin/sh", "-c", "kill -STOP $$; read line < data.txt"])
        assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1])
        os.kill(child.pid, signal.SIGCONT)
        assert child.wait() == 0
        try:
            os.wait()
        except ChildProcessError:
            return x
        raise AssertionError("there is a child that the op did not start")
    """
    ws.write("data.txt", "1\n")
    assert observe(ws, ws.program("callable", source), cases=2).files == {"program.py", "data.txt"}


def test_a_daemon_goes_on_after_its_starter(ws: Workspace) -> None:
    """A process that a program leaves behind can open files as long as the worker lives."""
    source = """
    import os, subprocess, time
    def op(x):
        if not os.path.exists("ready"):
            subprocess.run(["/bin/sh", "-c", "(while ! read line < go; do :; done; : > ready) &"],
                           stderr=subprocess.DEVNULL)
            open("go.part", "w").write("now\\n")
            os.rename("go.part", "go")
        while not os.path.exists("ready"):
            time.sleep(0.01)
        return x
    """
    assert observe(ws, ws.program("callable", source), cases=2).untracked == set()


REFUSE = """
import ctypes, struct, sys
libc = ctypes.CDLL(None)
number = {number}
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
data = b"".join(struct.pack("<HBBI", *line) for line in code)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
assert libc.prctl(38, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0
assert libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(Program(len(code), data))) == 0
"""
RUN = """
from pathlib import Path
from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.pool import Pool
import numpy as np
root = Path(sys.argv[1])
with Pool(1, staging=root) as pool:
    for program in (
        Program("command", root=str(root), path=str(root / "relu"), input_names=("x",)),
        Program("callable", root=str(root), path=str(root / "starts.py"), function="op",
                input_names=("x",)),
        Program("callable", root=str(root), path=str(root / "plain.py"), function="op",
                input_names=("x",)),
    ):
        with pool.session(program) as session:
            _, outcome = session.call({"x": np.zeros(3, np.float32)})
            assert outcome.ok, outcome.error
            seen = session.observed()
            print(sorted(p for p in seen.files if p.startswith(sys.argv[1])), *seen.untracked)
"""


def test_where_the_system_refuses_it_is_said(ws: Workspace) -> None:
    """As in a container without this right: EPERM for the call that asks for notices."""
    write_all(ws, {**LIBRARY, "plain.py": "def op(x): return x"})
    _executable(ws, "relu", PYTHON)
    starts = "import subprocess\ndef op(x):\n    subprocess.run(['./relu'], stdin=-3)\n    return x"
    write_all(ws, {"starts.py": starts})
    code = REFUSE.format(number=filters.seccomp_number()) + RUN
    done = subprocess.run(
        [sys.executable, "-c", code, str(ws.folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    sentence = "the files that programs use are not seen on this system (Operation not permitted)"
    assert done.stdout.splitlines() == [f"[] {sentence}"] * 3
    assert os.access(ws.folder / "relu", os.X_OK)


NOBODY_TAKES = """
import os, socket
from gpuemu_flow.workers.notices import Observer

ours, theirs = socket.socketpair()
theirs.close()
Observer(os.open("/dev/null", os.O_WRONLY), ours.detach()).begin()
try:
    os.open("/", os.O_RDONLY)
except OSError as error:
    print(error)
os._exit(0)
"""


def test_nothing_waits_when_nobody_takes_the_notices() -> None:
    """A call fails that nobody lets go on: a program that cannot be observed does not pass."""
    done = subprocess.run(
        [sys.executable, "-c", NOBODY_TAKES],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert "Function not implemented" in done.stdout, done.stderr
