"""What programs use is reported: files, folders, libraries, modules, and what other programs open.

`test_stale.py` tries by whole runs what these reports are for.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observed_workspace import below, observe, write_all
from runner_workspace import Workspace, make_case, marked_case, workspace

from gpuemu_flow.workers import notices
from gpuemu_flow.workers.api import Program

FENCED = True
LINUX = sys.platform == "linux"

READS = {
    "open": "open('{d}', 'rb').read()",
    "io.FileIO": "import io; io.FileIO('{d}').read()",
    "os.open": "import os; os.close(os.open('{d}', os.O_RDONLY))",
    "pathlib": "from pathlib import Path; Path('{d}').read_bytes()",
    "bytes": "open(b'{d}').close()",
    "np.load": "import numpy as np; np.load('{d}')",
    "np.fromfile": "import numpy as np; np.fromfile('{d}', 'u1')",
    "np.memmap": "import numpy as np; np.memmap('{d}', 'u1', 'r')",
    "mmap": "import mmap; f = open('{d}'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)",
    "tomllib": "import tomli\ntry:\n    tomli.load(open('{d}', 'rb'))\nexcept ValueError: pass",
    "sqlite3": "import sqlite3; sqlite3.connect('{d}').close()",
    "sqlite3, URI": "import sqlite3\ns = sqlite3.connect('file:{d}?mode=ro', uri=True)\n"
    "s.execute('PRAGMA schema_version').fetchall()",
    "sqlite3, attached": "import sqlite3\ns = sqlite3.connect(':memory:')\n"
    "s.execute('ATTACH ? AS d', ['{d}'])\ns.execute('PRAGMA d.schema_version').fetchall()",
    "read and written": "open('{d}', 'r+b').close()",
    "after chdir": "import os; os.makedirs('in/x'); os.chdir('in/x'); open('../../{d}').close()",
    "folder descriptor": "import os; f = os.open('.', os.O_RDONLY); os.open('./{d}', 0)",
    "a thread": "import threading as t; a = t.Thread(target=open, args=('{d}',)); "
    "a.start(); a.join()",
    "closed and left": "f = open('{d}'); f.close(); import os; os.chdir('/')",
}


def _in_turns(ways: list[str]) -> str:
    """An op that does all of it, each in a function and in the workspace's folder."""
    lines = ["import os", "home = os.getcwd()"]
    for n, way in enumerate(ways):
        lines += [f"def way{n}():", *(f"    {line}" for line in way.split("\n"))]
    lines += ["def op(x):"]
    for n in range(len(ways)):
        lines += [f"    way{n}()", "    os.chdir(home)"]
    return "\n".join([*lines, "    return x", ""])


def test_each_way_to_a_file(ws: Workspace) -> None:
    ws.folder.mkdir(exist_ok=True)
    names = {way: f"d{n}.bin" for n, way in enumerate(READS)}
    for way, name in names.items():
        with (ws.folder / name).open("wb") as stream:
            if not way.startswith("sqlite3"):
                np.save(stream, np.arange(3))
    code = _in_turns([READS[way].replace("{d}", name) for way, name in names.items()])
    seen = observe(ws, ws.program("callable", code))
    found = {path.removeprefix("in/x/../../") for path in seen.files}
    assert found == {"program.py", *names.values()}, {w for w, n in names.items() if n not in found}
    assert seen.untracked == set()


MISSES = {
    "open": "open('{n}')",
    "np.load": "import numpy as np; np.load('{n}')",
    "os.open": "import os; os.open('{n}', 0)",
    "a folder": "import os; os.listdir('{n}')",
}


def test_what_is_not_there_is_missed(ws: Workspace) -> None:
    names = [f"none{n}.txt" for n in range(len(MISSES))]
    ways = [
        f"try:\n    {way.replace('{n}', name)}\nexcept OSError:\n    pass"
        for way, name in zip(MISSES.values(), names, strict=True)
    ]
    seen = observe(ws, ws.program("callable", _in_turns(ways)), cases=2)
    assert set(names) <= seen.missed
    assert seen.files == {"program.py"}


ASKS = {
    "os.path.exists": "import os; os.path.exists({!r})",
    "os.path.isfile": "import os; os.path.isfile({!r})",
    "os.path.lexists": "import os; os.path.lexists({!r})",
    "os.path.getmtime": "import os\ntry: os.path.getmtime({!r})\nexcept OSError: pass",
    "Path.exists": "from pathlib import Path; Path({!r}).exists()",
    "Path.is_file": "from pathlib import Path; Path({!r}).is_file()",
}


def test_asking_for_a_file_depends_on_it(ws: Workspace) -> None:
    """Found or not: what is deleted or comes later changes what the program does."""
    there, nowhere = ([f"{word}{n}" for n in range(len(ASKS))] for word in ("there", "nowhere"))
    write_all(ws, dict.fromkeys(there, ""))
    ways = [
        way.format(name)
        for names in (there, nowhere)
        for way, name in zip(ASKS.values(), names, strict=True)
    ]
    seen = observe(ws, ws.program("callable", _in_turns(ways)), cases=2)
    assert seen.files == {"program.py", *there}
    assert set(nowhere) <= seen.missed


def test_a_log_that_a_program_looks_for_and_adds_to_is_no_input(ws: Workspace) -> None:
    ws.write("log", "old")
    body = "import os\nif os.path.exists('log'):\n    open('log', 'a').write('1')"
    assert observe(ws, ws.program("callable", _in_turns([body])), cases=2).files == {"program.py"}


WRITES = {
    "written, read": "open('n', 'w').write('1')\nopen('n').read()",
    "made, filled": "import os\nos.makedirs('f/g', exist_ok=True)\nopen('f/g/n', 'w').close()\n"
    "open('f/g/n').close()\nos.listdir('f')\nos.listdir('f/g')",
    "temporary": "import tempfile as t, os\nwith t.TemporaryDirectory(dir='.') as d:\n"
    "    open(d + '/n', 'w').close()\n    open(d + '/n').close()\n    os.listdir(d)",
    "renamed": "import os\nopen('p', 'w').close()\nos.replace('p', 'n')\nopen('n').close()",
    "looked for, made": "import os\ntry:\n    open('n').close()\nexcept OSError:\n"
    "    open('n', 'w').close()\nopen('n').close()",
    "new database": "import sqlite3\nsqlite3.connect('n').close()\nopen('n').close()",
    "appended": "open('n', 'a').write('1')",
    "system": "open('/proc/self/stat').close()\nopen('/dev/null').close()",
}


def test_what_a_program_makes_itself_is_no_input(ws: Workspace) -> None:
    ways = [way.replace("'n'", f"'n{n}'").replace("/n'", f"/n{n}'").replace("'p'", f"'p{n}'")
            for n, way in enumerate(WRITES.values())]  # fmt: skip
    looked = {
        f"n{n}" for n, way in enumerate(WRITES) if way in ("looked for, made", "new database")
    }
    seen = observe(ws, ws.program("callable", _in_turns(ways)), cases=2)
    assert seen.files == {"program.py"}
    assert seen.listed == set()
    missed = {name for path in seen.missed if (name := path.split("/")[-1])[1:].isdigit()}
    # Where it looks before it writes, the file decides what the next run does.
    assert missed == looked
    assert not any(p.startswith(("/proc/", "/dev/")) for p in seen.whole.files | seen.whole.missed)


LISTS = {
    "os.listdir": "import os; os.listdir('{d}')",
    "os.scandir": "import os; list(os.scandir('{d}'))",
    "glob": "import glob; glob.glob('{d}/*.txt')",
    "pathlib": "from pathlib import Path; list(Path('{d}').iterdir())",
    "os.walk": "import os; list(os.walk('{d}'))",
}


def test_each_way_to_list_a_folder(ws: Workspace) -> None:
    folders = [f"d{n}" for n in range(len(LISTS))]
    write_all(ws, {f"{folder}/one.txt": "" for folder in folders})
    ways = [w.replace("{d}", d) for w, d in zip(LISTS.values(), folders, strict=True)]
    assert observe(ws, ws.program("callable", _in_turns(ways))).listed == set(folders)


def _compile(folder: Path, name: str, source: str, *options: str) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    code, made = folder / f"{name}.c", folder / name
    code.write_text(source)
    command = [compiler, str(code), "-o", str(made), *options]
    subprocess.run(command, check=True, capture_output=True)
    code.unlink()
    return made


OPENS_FILE = '#include <stdio.h>\nint look(void) { return fopen("table.bin", "r") != 0; }\n'


def test_a_library_what_it_links_and_what_it_opens(ws: Workspace) -> None:
    """Only machine code opens the table, and only the linker names the inner library."""
    if not LINUX:
        pytest.skip("needs Linux' notices of system calls")
    ws.folder.mkdir(exist_ok=True)
    inner = "int inner(void) { return 1; }\n"
    _compile(ws.folder, "libinner.so", inner, "-shared", "-fPIC")
    outer = OPENS_FILE + "int inner(void);\nint outer(void) { return inner() + look(); }\n"
    flags = ("-shared", "-fPIC", f"-L{ws.folder}", "-l:libinner.so", f"-Wl,-rpath,{ws.folder}")
    _compile(ws.folder, "libouter.so", outer, *flags)
    write_all(ws, {"table.bin": "1"})
    source = """
    import ctypes
    def op(x):
        assert ctypes.CDLL("./libouter.so").outer() == 2
        return x
    """
    seen = observe(ws, ws.program("callable", source))
    assert seen.files == {"program.py", "libouter.so", "libinner.so", "table.bin"}
    assert seen.untracked == set()


MACHINE_LISTS = """
import ctypes, importlib, os, sys
libc = ctypes.CDLL(None)
libc.opendir.restype = libc.readdir.restype = ctypes.c_void_p

def machine_lists(folder):
    opened = ctypes.c_void_p(libc.opendir(folder))
    while libc.readdir(opened):
        pass
    libc.closedir(opened)

def python_searches():
    sys.path.insert(0, "modules")
    importlib.invalidate_caches()
    import helper

def op(x):
    {calls}
    return x
"""


@pytest.mark.skipif(not LINUX, reason="needs Linux' notices of system calls")
@pytest.mark.parametrize(
    ("calls", "listed"),
    [
        ("machine_lists(b'data')", {"data"}),
        ("machine_lists(b'data/../data/')", {"data"}),
        ("python_searches(); machine_lists(b'data')", {"data"}),
        ("python_searches(); machine_lists(b'modules')", {"modules"}),
        ("machine_lists(b'data'); python_searches()", {"data"}),
        ("python_searches()", set()),
        ("python_searches(); os.listdir('data'); python_searches()", {"data"}),
    ],
)
def test_a_folder_that_machine_code_lists(ws: Workspace, calls: str, listed: set[str]) -> None:
    """A folder that imports search is not listed by that, before or after machine code lists."""
    write_all(ws, {"data/a": "", "modules/helper.py": ""})
    seen = observe(ws, ws.program("callable", MACHINE_LISTS.format(calls=calls)))
    assert seen.listed == listed
    assert seen.missed.isdisjoint({"data"})
    assert not any("lists" in path for path in seen.whole.missed)


def test_a_compiled_extension(ws: Workspace) -> None:
    include = subprocess.run(
        [sys.executable, "-c", "import sysconfig; print(sysconfig.get_path('include'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    if not (Path(include) / "Python.h").exists():
        pytest.skip("no headers of Python")
    ws.folder.mkdir(exist_ok=True)
    source = (
        "#include <Python.h>\n"
        'static struct PyModuleDef d = {PyModuleDef_HEAD_INIT, "cext", 0, -1, 0};\n'
        "PyMODINIT_FUNC PyInit_cext(void) { return PyModule_Create(&d); }\n"
    )
    _compile(ws.folder, "cext.so", source, "-shared", "-fPIC", f"-I{include}")
    seen = observe(ws, ws.program("callable", "import cext\ndef op(x): return x"))
    assert seen.files == {"program.py", "cext.so"}
    assert seen.untracked == set()


def test_the_pools_own_files_are_not_the_programs(tmp_path: Path) -> None:
    with workspace(tmp_path) as ws:
        seen: list[Any] = []
        program = ws.program("callable", "def op(x): return x")
        ws.run(program, 2, on_observed=seen.append)
    (observation,) = seen
    ours = [p for p in observation.files | observation.missed if "staging" in p or "blob" in p]
    assert ours == []
    assert not any("gpuemu_flow/workers" in path for path in observation.files)


CACHED = """
import os

def op(x):
    open("q/__pycache__/data.txt").close()
    open("q/__pycache__/data.a.txt").close()
    os.path.exists("q/__pycache__/none.txt")
    return x
"""


def test_data_beside_bytecode_is_observed(ws: Workspace) -> None:
    """Also where a module has the same name up to the first dot."""
    for file in ("q/data.py", "q/__pycache__/data.txt", "q/__pycache__/data.a.txt"):
        ws.write(file, "")
    seen = observe(ws, ws.program("callable", CACHED))
    data = {"q/__pycache__/data.txt", "q/__pycache__/data.a.txt"}
    assert seen.files == {"program.py", *data}
    assert "q/__pycache__/none.txt" in seen.missed


def _with_op(code: str) -> str:
    return f"{code}\ndef op(x):\n    return x\n"


def test_a_folder_that_is_in_the_way_counts(ws: Workspace) -> None:
    code = "import os\ntry:\n    os.mkdir('v')\n"
    (ws.folder / "v").mkdir()
    seen = observe(ws, ws.program("callable", _with_op(code + "except OSError:\n    pass")))
    assert f"{ws.folder}/v" in seen.whole.looked


def test_a_module_that_would_shadow_is_missed(ws: Workspace) -> None:
    write_all(ws, {"a/keep.txt": "", "b/helper.py": "", "pkg/__init__.py": ""})
    code = (
        "import sys\nsys.path[:0] = ['a', 'b', 'c']\nimport helper, pkg, colorsys\n"
        "try:\n    import never_there\nexcept ImportError:\n    pass"
    )
    seen = observe(ws, ws.program("callable", _with_op(code)))
    assert {"a/helper", "a/helper.py", "a/helper.so", "a/colorsys.py", "b/colorsys"} <= seen.missed
    assert {"b/helper", "b/helper.so", "a/pkg", "c"} <= seen.missed
    assert {"a/never_there.py", "b/never_there.py", "never_there", "pkg/__init__.so"} <= seen.missed
    assert not {"b/helper.py", "helper.py", "pkg", "pkg.py", "pkg/__init__.py"} & seen.missed
    packages = [p for p in seen.whole.missed if p.endswith("-packages/never_there.py")]
    assert packages, "a package that is installed later would be found"
    assert not any(p.endswith("-packages/colorsys.py") for p in seen.whole.missed)


def test_all_parts_of_a_namespace_package_count(ws: Workspace) -> None:
    write_all(ws, {"a/space/any.txt": "", "b/space/any.txt": ""})
    code = "import sys\nsys.path[:0] = ['a', 'b']\nimport space"
    seen = observe(ws, ws.program("callable", _with_op(code)))
    assert {f"{ws.folder}/{part}/space" for part in "ab"} <= seen.whole.looked


def test_bytecode_counts_as_its_source(ws: Workspace) -> None:
    """The module lies where its bytecode is used: outside of the workspace."""
    outside = ws.folder.parent / f"{ws.folder.name}-outside"
    outside.mkdir()
    (outside / "helper.py").write_text("VALUE = 1\n")
    code = f"import sys\nsys.path.insert(0, {str(outside)!r})\nimport helper"
    program = ws.program("callable", _with_op(code), env={"PYTHONDONTWRITEBYTECODE": ""})
    for _ in range(2):
        seen = observe(ws, program)
        ours = {p for p in seen.whole.files if p.startswith(str(outside))}
        assert ours == {str(outside / "helper.py")}


def test_links_stay_as_they_were_named(ws: Workspace) -> None:
    code = "import sys\nsys.path.insert(0, 'lib')\nimport helper\ndef op(x): return x"
    write_all(ws, {"real/helper.py": "", "v1.py": code})
    Path(ws.folder / "lib").symlink_to("real")
    Path(ws.folder / "op.py").symlink_to("v1.py")
    program = Program(
        "callable", root=str(ws.folder), path=str(ws.folder / "op.py"), function="op",
        input_names=("x",),
    )  # fmt: skip
    assert observe(ws, program).files == {"op.py", "lib/helper.py"}


def test_what_was_reported_survives_a_crash(ws: Workspace) -> None:
    source = """
    import os
    def op(x):
        open("first")
        if x[0, 0] == 42:
            open("last")
            os.abort()
        return x
    """
    write_all(ws, {"first": "", "last": ""})
    with ws.pool.session(ws.program("callable", source)) as session:
        session.call(make_case(0))
        _, outcome = session.call(marked_case(1))
        assert outcome.error is not None
        assert below(ws, session.observed()).files == {"program.py", "first", "last"}


def test_a_damaged_record_is_told(ws: Workspace) -> None:
    source = """
    import os
    def op(x):
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if "memfd:report" in os.readlink(f"/proc/self/fd/{fd}"):
                    os.write(fd, b"junk\\0r\\xff relative\\0")
            except OSError:
                pass
        return x
    """
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("no /proc")
    seen = observe(ws, ws.program("callable", source))
    assert seen.untracked == {"the program damaged the record of the files that it used"}


def test_modules_made_since_a_folder_was_listed_are_found(tmp_path: Path) -> None:
    """By a finder that would not look again, as the folder's time of change is the old one."""
    code = f"""
import importlib, os, sys
from pathlib import Path
from gpuemu_flow.workers import imports

folder = Path({str(tmp_path)!r})
sys.path.insert(0, str(folder))
before = folder.stat()

def there():
    try:
        importlib.import_module('a_module_of_the_test')
    except ImportError:
        return False
    return True

found = [there()]
(folder / "a_module_of_the_test.py").write_text("")
os.utime(folder, ns=(before.st_atime_ns, before.st_mtime_ns))
found.append(there())
imports.forget_folders()
found.append(there())
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.strip() == "[False, False, True]", done.stderr


needs_notices = pytest.mark.skipif(not notices.CALLS, reason="this system gives no notices")


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


@needs_notices
@pytest.mark.parametrize("linked", ["-dynamic", "-static"])
def test_a_compiled_executable(ws: Workspace, linked: str) -> None:
    write_all(ws, {"table.bin": "1", "op.c": ANSWER})
    flags = [] if linked == "-dynamic" else [linked]
    command = [shutil.which("gcc") or "cc", "op.c", "-o", "op", *flags]
    if subprocess.run(command, cwd=ws.folder, capture_output=True, check=False).returncode:
        pytest.skip(f"no library for {linked}")
    seen = observe(
        ws,
        Program("command", root=str(ws.folder), path=str(ws.folder / "op"), input_names=("x",)),
        cases=2,
    )
    assert seen.files == {"op", "table.bin"}
    assert "looked_for.txt" in seen.missed
    assert seen.untracked == set()
    libc = [p for p in seen.whole.files if "/libc.so" in p or "/ld-" in p]
    assert libc or linked == "-static"


@needs_notices
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


@needs_notices
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


@needs_notices
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


@needs_notices
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


@needs_notices
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
