"""Less usual ways to depend on something: each is edited, and no old pass is left."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.timeout(900)  # one workspace, many programs, on whatever machine

Edit = Callable[[Mini], None]

HEAD = """
[project]
name = "ways"
[validation]
seed = 7
cases = 2
tolerance = "table"
cause_budget = 0
dtypes = ["float32"]
"""
OP = """
[[ops]]
name = "{name}"
op = "ops/{file}.py:f"
reference = "ref.py:f"
input_names = ["x"]
env = ["WAY_*", "COLUMNS", "MY_SESSION_ID"]
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""


@dataclass(frozen=True)
class Way:
    """An op that multiplies by `value`, an expression after `lines`, which is 3 until `edit`.

    One that `warns` moves its own input while it runs, which cannot be told from an edit.
    """

    lines: str
    edit: Edit
    value: str = "int(v)"
    files: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    warns: bool = False


def puts(path: str, text: str = "4") -> Edit:
    def act(mini: Mini) -> None:
        assert (mini.root / path).exists()
        mini.write(path, text)

    return act


def removes(path: str) -> Edit:
    return lambda mini: (mini.root / path).unlink()


def sets(name: str, value: str) -> Edit:
    return lambda mini: mini.env.update({name: value})


def chmods(path: str, mode: int) -> Edit:
    return lambda mini: (mini.root / path).chmod(mode)


def three(condition: str) -> str:
    return f"3 if {condition} else 4"


LIBC = "import ctypes\nc = ctypes.CDLL(None)\n"
GETENV = LIBC + "c.getenv.restype = ctypes.c_char_p\n"

OWN = {
    "own cache": Way(
        "import os, json\nif os.path.exists('own1.json'):\n    v = json.load(open('own1.json'))\n"
        "else:\n    v = 3\n    json.dump(v, open('own1.json', 'w'))",
        puts("own1.json"),
    ),
    "own cache, tried": Way(
        "try:\n    v = open('own2.txt').read()\nexcept OSError:\n    v = 3\n"
        "    open('own2.txt', 'w').write('3')",
        puts("own2.txt"),
    ),
    "own cache, renamed into place": Way(
        "import os\nif not os.path.exists('own3.txt'):\n    open('own3.tmp', 'w').write('3')\n"
        "    os.replace('own3.tmp', 'own3.txt')\nv = open('own3.txt').read()",
        puts("own3.txt"),
    ),
    "own folder": Way(
        "import os\nif not os.path.isdir('own4'):\n    os.makedirs('own4')\n"
        "    open('own4/n', 'w').write('3')\nv = open('own4/n').read()",
        puts("own4/n"),
    ),
    "own folder made before": Way(
        "import os\nos.makedirs('own5', exist_ok=True)\nif not os.path.exists('own5/n'):\n"
        "    open('own5/n', 'w').write('3')\nv = open('own5/n').read()",
        puts("own5/n"),
    ),
    "appended to and read": Way(
        "open('own6.txt', 'a').close()\nv = open('own6.txt').read()",
        puts("own6.txt"), files={"own6.txt": "3"},
    ),
    "opened for writing and read": Way(
        "import os\nos.close(os.open('own7.txt', os.O_WRONLY))\nv = open('own7.txt').read()",
        puts("own7.txt"), files={"own7.txt": "3"},
    ),
    "temporary link": Way(
        "import os\np = f'own8.{os.getpid()}'\nos.symlink('own8.txt', p)\nv = open(p).read()\n"
        "os.unlink(p)",
        puts("own8.txt"), files={"own8.txt": "3"},
    ),
    "temporary link to a folder": Way(
        "import os\np = f'own9.{os.getpid()}'\nos.symlink('own9', p)\nv = open(p + '/n').read()\n"
        "os.unlink(p)",
        puts("own9/n"), files={"own9/n": "3"},
    ),
    "temporary hard link": Way(
        "import os\np = f'own10.{os.getpid()}'\nos.link('own10.txt', p)\nv = open(p).read()\n"
        "os.unlink(p)",
        puts("own10.txt"), files={"own10.txt": "3"}, warns=True,
    ),
    "renamed and back": Way(
        "import os\nos.rename('own11.txt', 'own11.t')\nv = open('own11.t').read()\n"
        "os.rename('own11.t', 'own11.txt')",
        puts("own11.txt"), files={"own11.txt": "3"}, warns=True,
    ),
    "folder renamed and back": Way(
        "import os\nos.rename('own12', 'own12.t')\nv = open('own12.t/n').read()\n"
        "os.rename('own12.t', 'own12')",
        puts("own12/n"), files={"own12/n": "3"},
    ),
    "linked in a folder of its own": Way(
        "import os, tempfile\nwith tempfile.TemporaryDirectory(dir='.') as d:\n"
        "    os.symlink(os.path.abspath('own13.txt'), d + '/l')\n    v = open(d + '/l').read()",
        puts("own13.txt"), files={"own13.txt": "3"},
    ),
    "removed below a descriptor": Way(
        "import os, shutil\nos.makedirs('own14')\nopen('own14/own14.txt', 'w').close()\n"
        "shutil.rmtree('own14')\nv = open('own14.txt').read()",
        puts("own14.txt"), files={"own14.txt": "3"},
    ),
    "built once": Way(
        "import ctypes, os, subprocess\nif not os.path.exists('own15.so'):\n"
        "    open('own15.c', 'w').write('int f(void) { return 3; }')\n"
        "    subprocess.run(['gcc', '-shared', '-fPIC', 'own15.c', '-o', 'own15.so'], check=True)\n"
        "v = ctypes.CDLL('./own15.so').f()",
        lambda mini: build(mini, "own15.so", "int f(void) { return 4; }"), needs="gcc",
    ),
    "in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'[ -e own16 ] || echo 3 > own16; cat own16'])",
        puts("own16"),
    ),
    "linked in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'ln -s own17 own17.$$; cat own17.$$; rm own17.$$'])",
        puts("own17"), files={"own17": "3"},
    ),
    "linked hard in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'ln own18 own18.$$; cat own18.$$; rm own18.$$'])",
        puts("own18"), files={"own18": "3"}, warns=True,
    ),
    "moved in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'mv own19 own19.t; cat own19.t; mv own19.t own19'])",
        puts("own19"), files={"own19": "3"}, warns=True,
    ),
}  # fmt: skip

VARIABLES = {
    "getenv of the C library": Way(GETENV + "v = c.getenv(b'WAY_A') or 3", sets("WAY_A", "4")),
    "getenv in a library": Way(
        "import ctypes\nv = ctypes.CDLL('./getenv.so').f()", sets("WAY_B", "4"), needs="gcc"
    ),
    "posix.environ": Way("import posix\nv = posix.environ.get(b'WAY_C', 3)", sets("WAY_C", "4")),
    "proc": Way(
        "v = 4 if b'NPY_WAY_D' in open('/proc/self/environ', 'rb').read() else 3",
        sets("NPY_WAY_D", "4"),
    ),
    "proc in C": Way(
        LIBC + "f = c.open(b'/proc/self/environ', 0)\nb = ctypes.create_string_buffer(1 << 18)\n"
        "c.read(f, b, len(b))\nc.close(f)\nv = 4 if b'NPY_WAY_E' in b.raw else 3",
        sets("NPY_WAY_E", "4"),
    ),
    "time zone": Way("import time\ntime.tzset()\nv = 4 if time.timezone else 3",
                     sets("TZ", "XYZ-5")),
    "local time": Way("import time\nv = 4 if time.localtime(0).tm_gmtoff else 3",
                      sets("TZ", "XYZ-5")),
    "columns": Way("import os\nv = os.environ.get('COLUMNS', 3)", sets("COLUMNS", "4")),
    "terminal size": Way("import shutil\nv = 4 if shutil.get_terminal_size()[0] == 4 else 3",
                         sets("COLUMNS", "4")),
    "session id": Way("import os\nv = os.environ.get('MY_SESSION_ID', 3)",
                      sets("MY_SESSION_ID", "4")),
    "session id in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', 'echo ${MY_SESSION_ID:-3}'])",
        sets("MY_SESSION_ID", "4"),
    ),
    "environment of libraries": Way(
        "import ctypes\nv = 3 if not ctypes.CDLL('./getenv.so').g() else 4",
        sets("OPENBLAS_VERBOSE", "0"), needs="gcc",
    ),
}  # fmt: skip

LOOKS = {
    "os.stat": Way("import os\ntry:\n    os.stat('lk1')\n    v = 3\nexcept OSError:\n    v = 4",
                   removes("lk1"), files={"lk1": ""}),
    "os.stat, in vain": Way(
        "import os\ntry:\n    os.stat('lk2')\n    v = 4\nexcept OSError:\n    v = 3",
        lambda m: m.write("lk2", "") and None),
    "os.stat, size": Way("import os\nv = os.stat('lk3').st_size", puts("lk3", "xxxx"),
                         files={"lk3": "xxx"}),
    "os.lstat": Way("import os\nv = os.lstat('lk4').st_size", puts("lk4", "xxxx"),
                    files={"lk4": "xxx"}),
    "posix.stat": Way("import posix\nv = posix.stat('lk5').st_size", puts("lk5", "xxxx"),
                      files={"lk5": "xxx"}),
    "os.access": Way(f"import os\nv = {three('''os.access('lk6', os.F_OK)''')}", removes("lk6"),
                     files={"lk6": ""}),
    "os.access, executable": Way(f"import os\nv = {three('''not os.access('lk7', os.X_OK)''')}",
                                 chmods("lk7", 0o755), files={"lk7": ""}),
    "mode": Way(f"import os\nv = {three('''os.stat('lk8').st_mode & 0o77 == 0o44''')}",
                chmods("lk8", 0o640), files={"lk8": ""}),
    "which": Way(f"import shutil\nv = {three('''shutil.which('lk9', path='d9') is None''')}",
                 chmods("d9/lk9", 0o755), files={"d9/lk9": ""}),
    "a folder is there": Way(f"import os\nv = {three('''os.path.isdir('lk10')''')}",
                             lambda m: shutil.rmtree(m.root / "lk10"), files={"lk10/x": ""}),
    "a folder is there, in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'if [ -d lk11 ]; then echo 3; else echo 4; fi'])",
        lambda m: shutil.rmtree(m.root / "lk11"), files={"lk11/x": ""}),
    "executable, in a child": Way(
        "import subprocess\nv = subprocess.check_output(['sh', '-c', "
        "'if [ -x lk12 ]; then echo 4; else echo 3; fi'])",
        chmods("lk12", 0o755), files={"lk12": ""}),
    "entry types": Way(
        f"import os\nv = {three('''[e.is_file() for e in os.scandir('lk13')] == [True]''')}",
        lambda m: (removes("lk13/x")(m), (m.root / "lk13/x").mkdir()), files={"lk13/x": ""}),
    "entry sizes": Way("import os\nv = [e.stat().st_size for e in os.scandir('lk14')][0]",
                       puts("lk14/x", "xxxx"), files={"lk14/x": "xxx"}),
    "walk": Way("import os\nv = 3 + sum(len(d) for _, d, _ in os.walk('lk15'))",
                lambda m: (removes("lk15/x")(m), (m.root / "lk15/x").mkdir()),
                files={"lk15/x": ""}),
    "scandir of a descriptor": Way(
        "import os\nf = os.open('lk16', 0)\nv = len(list(os.scandir(f)))\nos.close(f)",
        lambda m: m.write("lk16/d", "") and None, files={f"lk16/{n}": "" for n in "abc"}),
    "listdir of a descriptor": Way(
        "import os\nf = os.open('lk17', 0)\nv = len(os.listdir(f))\nos.close(f)",
        lambda m: m.write("lk17/d", "") and None, files={f"lk17/{n}": "" for n in "abc"}),
    "names of backups": Way(
        "import os\nv = len(os.listdir('lk18'))",
        lambda m: m.write("lk18/c~", "") and None, files={f"lk18/{n}": "" for n in "abc"}),
    "dir_fd of open": Way(
        "import os\nd = os.open('lk19', 0)\nf = os.open('n', 0, dir_fd=d)\nv = os.read(f, 9)\n"
        "os.close(f)\nos.close(d)", puts("lk19/n"), files={"lk19/n": "3"}),
    "dir_fd of stat": Way(
        "import os\nd = os.open('lk20', 0)\nv = os.stat('n', dir_fd=d).st_size\nos.close(d)",
        puts("lk20/n", "xxxx"), files={"lk20/n": "xxx"}),
    "proc/self/fd": Way(
        "import os\nd = os.open('lk21', 0)\nv = open(f'/proc/self/fd/{d}/n').read()\nos.close(d)",
        puts("lk21/n"), files={"lk21/n": "3"}),
    "proc/self/cwd": Way("v = open('/proc/self/cwd/lk22').read()", puts("lk22"),
                         files={"lk22": "3"}),
    "proc in a child": Way(
        "import subprocess\nv = subprocess.check_output(['cat', '/proc/self/cwd/lk23'])",
        puts("lk23"), files={"lk23": "3"}),
    "fopen of the C library": Way(
        LIBC + "c.fopen.restype = ctypes.c_void_p\nf = ctypes.c_void_p(c.fopen(b'lk24', b'r'))\n"
        "v = chr(c.fgetc(f))\nc.fclose(f)", puts("lk24"), files={"lk24": "3"}),
    "access of the C library": Way(
        LIBC + "v = 3 if c.access(b'lk25', 1) else 4", chmods("lk25", 0o755), files={"lk25": ""}),
    "shared memory": Way(
        "v = open(open('lk26').read()).read()",
        lambda m: shared(m, "lk26").write_text("4") and None, files={"lk26": ""}),
    "access in a library": Way(
        "import ctypes\nv = ctypes.CDLL('./getenv.so').h()", chmods("lk27", 0o755),
        files={"lk27": ""}, needs="gcc"),
    "module without source": Way(
        "import lk28\nv = lk28.F", lambda m: sourceless(m, 4)),
    "os.access with dir_fd": Way(
        "import os\nd = os.open('.', 0)\nv = 3 if os.access('lk29', os.X_OK, dir_fd=d) else 4\n"
        "os.close(d)", chmods("lk29", 0o644), files={"lk29": ""}),
    "stat of a descriptor": Way(
        "import os\nwith open('lk30') as f:\n    v = os.fstat(f.fileno()).st_size",
        puts("lk30", "xxxx"), files={"lk30": "xxx"}),
}  # fmt: skip


def shared(mini: Mini, name: str) -> Path:
    """A file in shared memory whose path the named file of the workspace holds."""
    place = Path("/dev/shm") / f"gpuemu-test-{os.getpid()}-{name}"
    mini.write(name, str(place))
    return place


def sourceless(mini: Mini, value: int) -> None:
    import py_compile

    source = mini.write("build/lk28.py", f"F = {value}\n")
    py_compile.compile(str(source), str(mini.root / "lk28.pyc"), doraise=True)


def build(mini: Mini, target: str, code: str) -> None:
    import subprocess

    place = mini.root / f"{target}.new"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(place)]
    subprocess.run(command, input=code.encode(), check=True, capture_output=True)
    place.replace(mini.root / target)


GETENV_C = """
#include <stdlib.h>
#include <unistd.h>
int f(void) { char *v = getenv("WAY_B"); return v ? atoi(v) : 3; }
int g(void) { return getenv("OPENBLAS_VERBOSE") != 0; }
int h(void) { return access("lk27", X_OK) ? 3 : 4; }
"""


def workspace(folder: Path, ways: dict[str, Way]) -> Mini:
    mini = Mini(folder, warm=True)
    config = [HEAD]
    for number, (name, way) in enumerate(ways.items()):
        lines = "\n".join(f"    {line}" for line in way.lines.split("\n"))
        source = f"def f(x):\n{lines}\n    return (x * x.dtype.type({way.value})).astype(x.dtype)\n"
        mini.write(f"ops/op{number}.py", source)
        config.append(OP.format(name=slug(name), file=f"op{number}"))
        for path, text in way.files.items():
            mini.write(path, text)
    mini.write("gpuemu.toml", "".join(config))
    mini.unfence()  # some keep files of their own beside what is theirs to read
    mini.write("ref.py", "def f(x):\n    return x * 3\n")
    if any(way.needs for way in ways.values()):
        build(mini, "getenv.so", GETENV_C)
    if "os.access with dir_fd" in ways:
        (mini.root / "lk29").chmod(0o755)
    sourceless(mini, 3)
    mini.env["COLUMNS"] = "3"
    return mini


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {r["op"]: r["verdict"] for r in report["results"]}


def fuzzed(mini: Mini) -> dict[str, str]:
    done = mini.command("fuzz", "-n", "1", "--format", "json", code=None)
    report = json.loads(done.stdout)
    return {r["op"]: r["verdict"] for r in report.get("ops", [report])}


@pytest.mark.parametrize("ways", [OWN, VARIABLES, LOOKS], ids=["own", "variables", "looks"])
@pytest.mark.ci
def test_no_pass_is_left_after_an_edit(ways: dict[str, Way], tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        ways = {name: way for name, way in ways.items() if not way.needs}
    mini = workspace(tmp_path.resolve(), ways)
    if "shared memory" in ways:
        shared(mini, "lk26").write_text("3")
    wrong = []
    first = mini.run(code=None)
    wrong += [f"not passed at first: {n}" for n, v in verdicts(first).items() if v != "passed"]
    again = mini.run(code=None)
    wrong += [f"again: {name}" for name in again["executed"]]
    warned = {p["message"].removeprefix("op of ").partition(":")[0] for p in again["problems"]}
    wrong += [f"warned: {n}" for n in warned ^ {slug(n) for n, w in ways.items() if w.warns}]
    wrong += [f"fuzz, at first: {n}" for n, v in fuzzed(mini).items() if v != "passed"]
    for way in ways.values():
        way.edit(mini)
    wrong += [f"fuzz, stale: {name}" for name, v in fuzzed(mini).items() if v != "failed"]
    left = verdicts(mini.run(code=None))
    wrong += [f"stale: {name}" for name, verdict in left.items() if verdict != "failed"]
    if "shared memory" in ways:
        shared(mini, "lk26").unlink()
    assert not wrong, "\n".join(wrong)


INTERPRETER = """\
#!/bin/sh
export PYTHONPATH="{site}:$PYTHONPATH"
exec "{python}" "$@"
"""


@pytest.mark.parametrize("change", ["configured", "linked", "edited"])
@pytest.mark.ci
def test_another_interpreter_is_another_op(change: str, tmp_path: Path) -> None:
    """Its packages are those that the op imports, whichever way it became another one."""
    way = Way("import dep\nv = dep.F", lambda _: None)
    mini = workspace(tmp_path.resolve(), {"interpreter": way})
    mini.edit("gpuemu.toml", "cases = 2", "cases = 1")  # each starts several interpreters
    for number in (3, 4):
        mini.write(f"site{number}/dep.py", f"F = {number}\n")
        interpreter(mini, f"python{number}", number)
    (mini.root / "python").symlink_to("python3")
    named = "python" if change == "linked" else "python3"
    mini.edit(
        "gpuemu.toml", "[validation]", f"[execution]\npython_path = './{named}'\n[validation]"
    )
    assert verdicts(mini.run(code=None)) == {"interpreter": "passed"}
    assert mini.run(code=None)["executed"] == []
    if change == "configured":
        mini.edit("gpuemu.toml", "./python3", "./python4")
    elif change == "linked":
        (mini.root / "python").unlink()
        (mini.root / "python").symlink_to("python4")
    else:
        interpreter(mini, "python3", 4)
    assert verdicts(mini.run(code=None)) == {"interpreter": "failed"}
    assert fuzzed(mini) == {"interpreter": "failed"}


ASKED = {
    "imported": "try:\n    import dep\n    v = 4\nexcept ImportError:\n    v = 3",
    "searched for": "import importlib.util as u\nv = 4 if u.find_spec('dep') else 3",
    "asked for": "import importlib.metadata as m\ntry:\n    m.version('dep')\n    v = 4\n"
    "except m.PackageNotFoundError:\n    v = 3",
}


@pytest.mark.parametrize("how", ASKED)
@pytest.mark.ci
def test_a_package_that_another_interpreter_lacks_counts(how: str, tmp_path: Path) -> None:
    mini = workspace(tmp_path.resolve(), {"interpreter": Way(ASKED[how], lambda _: None)})
    mini.edit("gpuemu.toml", "cases = 2", "cases = 1")
    (mini.root / "site-packages").mkdir()
    interpreter(mini, "python3", "-packages")
    mini.edit("gpuemu.toml", "[validation]", "[execution]\npython_path = './python3'\n[validation]")
    assert verdicts(mini.run(code=None)) == {"interpreter": "passed"}
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("site-packages/dep.py", "")
    mini.write("site-packages/dep-1.0.dist-info/METADATA", "Name: dep\nVersion: 1.0\n")
    mini.write("site-packages/dep-1.0.dist-info/RECORD", "dep.py,,\n")
    assert verdicts(mini.run(code=None)) == {"interpreter": "failed"}
    shutil.rmtree(mini.root / "site-packages")
    assert verdicts(mini.run(code=None)) == {"interpreter": "passed"}


def interpreter(mini: Mini, name: str, number: int | str) -> None:
    text = INTERPRETER.format(site=mini.root / f"site{number}", python=sys.executable)
    mini.write(name, text).chmod(0o755)


def test_a_link_to_nothing_is_no_reason_to_run_again(tmp_path: Path) -> None:
    """The program looks for a file that is a dangling link; the link's target comes and goes."""
    way = Way("import os\nv = 4 if os.path.exists('to') else 3", lambda _: None)
    mini = workspace(tmp_path.resolve(), {"link": way})
    (mini.root / "to").symlink_to("nothing")
    report = mini.run(code=None)
    assert (verdicts(report), report["problems"]) == ({"link": "passed"}, [])
    assert mini.command("run").stdout.count("up to date") == 1
    mini.write("nothing", "")
    assert verdicts(mini.run(code=None)) == {"link": "failed"}
    (mini.root / "nothing").unlink()
    assert verdicts(mini.run(code=None)) == {"link": "passed"}


def test_an_edited_source_is_named_once(tmp_path: Path) -> None:
    mini = workspace(tmp_path.resolve(), {"own": Way("v = 3", lambda _: None)})
    mini.run()
    mini.write("ops/op0.py", "def f(x):\n    return x + x + x\n")
    done = mini.command("explain", "op:own:float32", "--format", "json", code=None)
    (task,) = json.loads(done.stdout)["tasks"]
    assert [change["what"] for change in task["changes"]] == ["code.ops/op0.py"]
