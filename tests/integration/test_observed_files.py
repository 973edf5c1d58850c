"""Data files, folders, variables and libraries that code in a worker uses are reported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observed_workspace import observe, write_all
from runner_workspace import Workspace, workspace

FENCED = True

LINUX = sys.platform == "linux"

READS = {
    "open": "open('d.bin', 'rb').read()",
    "io.FileIO": "import io; io.FileIO('d.bin').read()",
    "os.open": "import os; os.close(os.open('d.bin', os.O_RDONLY))",
    "pathlib": "from pathlib import Path; Path('d.bin').read_bytes()",
    "bytes": "open(b'd.bin').close()",
    "np.load": "import numpy as np; np.load('d.bin')",
    "np.fromfile": "import numpy as np; np.fromfile('d.bin', 'u1')",
    "np.memmap": "import numpy as np; np.memmap('d.bin', 'u1', 'r')",
    "mmap": "import mmap; f = open('d.bin'); mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)",
    "tomllib": "import tomli\ntry:\n    tomli.load(open('d.bin', 'rb'))\nexcept ValueError: pass",
    "sqlite3": "import sqlite3; sqlite3.connect('d.bin').close()",
    "sqlite3, URI": "import sqlite3\ns = sqlite3.connect('file:d.bin?mode=ro', uri=True)\n"
    "s.execute('PRAGMA schema_version').fetchall()",
    "sqlite3, attached": "import sqlite3\ns = sqlite3.connect(':memory:')\n"
    "s.execute('ATTACH ? AS d', ['d.bin'])\ns.execute('PRAGMA d.schema_version').fetchall()",
    "read and written": "open('d.bin', 'r+b').close()",
    "after chdir": "import os; os.makedirs('in/x'); os.chdir('in/x'); open('../../d.bin').close()",
    "folder descriptor": "import os; f = os.open('.', os.O_RDONLY); os.open('./d.bin', 0)",
    "a thread": "import threading as t; a = t.Thread(target=open, args=('d.bin',)); "
    "a.start(); a.join()",
    "closed and left": "f = open('d.bin'); f.close(); import os; os.chdir('/')",
}


@pytest.mark.parametrize("read", READS)
def test_each_way_to_a_file(ws: Workspace, read: str) -> None:
    data = ws.folder / "d.bin"
    with data.open("wb") as stream:
        np.save(stream, np.arange(3))
    if read.startswith("sqlite3"):
        data.write_bytes(b"")
    seen = observe(ws, ws.program("callable", _body(READS[read])))
    assert {_plain(path) for path in seen.files} == {"program.py", "d.bin"}
    assert seen.untracked == set()


def _plain(path: str) -> str:
    return path.removeprefix("in/x/../../")


def _body(code: str) -> str:
    lines = "\n".join(f"    {line}" for line in code.split("\n"))
    return f"def op(x):\n{lines}\n    return x\n"


MISSES = {
    "open": "open('none.txt')",
    "np.load": "import numpy as np; np.load('none.txt')",
    "os.open": "import os; os.open('none.txt', 0)",
    "a folder": "import os; os.listdir('none.txt')",
}


@pytest.mark.parametrize("miss", MISSES)
def test_what_is_not_there_is_missed(ws: Workspace, miss: str) -> None:
    code = f"try:\n    {MISSES[miss]}\nexcept OSError:\n    pass"
    seen = observe(ws, ws.program("callable", _body(code)), cases=2)
    assert "none.txt" in seen.missed
    assert seen.files == {"program.py"}


ASKS = {
    "os.path.exists": "import os; os.path.exists({!r})",
    "os.path.isfile": "import os; os.path.isfile({!r})",
    "os.path.lexists": "import os; os.path.lexists({!r})",
    "os.path.getmtime": "import os\ntry: os.path.getmtime({!r})\nexcept OSError: pass",
    "Path.exists": "from pathlib import Path; Path({!r}).exists()",
    "Path.is_file": "from pathlib import Path; Path({!r}).is_file()",
}


@pytest.mark.parametrize("way", ASKS)
def test_asking_for_a_file_depends_on_it(ws: Workspace, way: str) -> None:
    """Found or not: what is deleted or comes later changes what the program does."""
    ws.write("there", "")
    body = ASKS[way].format("there") + "\n" + ASKS[way].format("nowhere")
    seen = observe(ws, ws.program("callable", _body(body)), cases=2)
    assert seen.files == {"program.py", "there"}
    assert "nowhere" in seen.missed


def test_a_log_that_a_program_looks_for_and_adds_to_is_no_input(ws: Workspace) -> None:
    ws.write("log", "old")
    body = "import os\nif os.path.exists('log'):\n    open('log', 'a').write('1')"
    assert observe(ws, ws.program("callable", _body(body)), cases=2).files == {"program.py"}


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


@pytest.mark.parametrize("write", WRITES)
def test_what_a_program_makes_itself_is_no_input(ws: Workspace, write: str) -> None:
    seen = observe(ws, ws.program("callable", _body(WRITES[write])), cases=2)
    assert seen.files == {"program.py"}
    assert seen.listed == set()
    missed = {path for path in seen.missed if path.split("/")[-1] == "n"}
    # Where it looks before it writes, the file decides what the next run does.
    assert missed == ({"n"} if write in ("looked for, made", "new database") else set())
    assert not any(p.startswith(("/proc/", "/dev/")) for p in seen.whole.files | seen.whole.missed)


LISTS = {
    "os.listdir": "import os; os.listdir('d')",
    "os.scandir": "import os; list(os.scandir('d'))",
    "glob": "import glob; glob.glob('d/*.txt')",
    "pathlib": "from pathlib import Path; list(Path('d').iterdir())",
    "os.walk": "import os; list(os.walk('d'))",
}


@pytest.mark.parametrize("way", LISTS)
def test_each_way_to_list_a_folder(ws: Workspace, way: str) -> None:
    ws.write("d/one.txt", "")
    seen = observe(ws, ws.program("callable", _body(LISTS[way])))
    assert seen.listed == {"d"}


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
