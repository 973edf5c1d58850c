"""Each way to depend on something: all are changed at once, and no command leaves an old pass.

Each group of ways is one workspace with an op for each way. Files are changed in place, in place
with the old times, by moving a new file there, or by a link to a new file, in turns.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mini_workspace import Mini
from stale_rows import PROTOCOL
from whole import sample

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.services.watched_files import FileWatch

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
op = {op}
reference = "ref.py:f"
input_names = ["x"]
env = ["WAY_*", "COLUMNS", "MY_SESSION_ID"]
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
"""


@dataclass(frozen=True)
class Way:
    """An op that multiplies by `value`, an expression after `lines`, which is 3 until `edit`.

    One that `warns` moves its own input while it runs, which cannot be told from an edit. An op
    that is no function in Python is named by `op`, in TOML.
    """

    lines: str
    edit: Edit
    value: str = "int(v)"
    files: dict[str, str] = field(default_factory=dict)
    needs: str = ""
    warns: bool = False
    op: str = ""
    links: dict[str, str] = field(default_factory=dict)


def puts(path: str, text: str = "4") -> Edit:
    def act(mini: Mini) -> None:
        place = mini.root / path
        before = place.stat()
        kind = zlib.crc32(path.encode()) % 4
        if kind < 2:
            mini.write(path, text)
        if kind == 1:
            os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
        if kind < 2:
            return
        fresh = mini.write(f"{path}.fresh", text)
        fresh.chmod(before.st_mode & 0o777)
        if kind == 2:
            fresh.replace(place)
        else:
            place.unlink()
            place.symlink_to(fresh)

    return act


def adds(path: str, text: str = "") -> Edit:
    return lambda mini: mini.write(path, text).chmod(0o755 if text.startswith("#!") else 0o644)


def removes(path: str) -> Edit:
    def act(mini: Mini) -> None:
        place = mini.root / path
        shutil.rmtree(place) if place.is_dir() else place.unlink()

    return act


def relinks(path: str, target: str) -> Edit:
    def act(mini: Mini) -> None:
        (mini.root / path).unlink()
        (mini.root / path).symlink_to(target)

    return act


def sets(name: str, value: str) -> Edit:
    return lambda mini: mini.env.update({name: value})


def chmods(path: str, mode: int) -> Edit:
    return lambda mini: (mini.root / path).chmod(mode)


def three(condition: str) -> str:
    return f"3 if {condition} else 4"


def installs(site: str, version: str, files: dict[str, str]) -> dict[str, str]:
    """Return the files of a distribution in the folder `site`."""
    info = f"{site}/Dist_{site}-{version}.dist-info"
    record = "".join(f"{path},,\n" for path in files)
    return {
        **{f"{site}/{path}": text for path, text in files.items()},
        f"{info}/RECORD": record,
        f"{info}/METADATA": f"Name: Dist-{site}\nVersion: {version}\n",
    }


def upgrades(site: str, files: dict[str, str]) -> Edit:
    def act(mini: Mini) -> None:
        shutil.rmtree(mini.root / site, ignore_errors=True)
        for path, text in installs(site, "1.1", files).items():
            mini.write(path, text)

    return act


LIBC = "import ctypes\nc = ctypes.CDLL(None)\n"
GETENV = LIBC + "c.getenv.restype = ctypes.c_char_p\n"

ZONE = (
    b"TZif" + bytes(16) + b"".join(n.to_bytes(4, "big") for n in (0, 0, 0, 0, 1, 4))
    + (3600).to_bytes(4, "big") + bytes(2) + b"XYZ\0"
)  # fmt: skip
LOCALE = "/usr/lib/locale/C.utf8"
TERMINFO = next(
    (f for f in ("/lib/terminfo/x/xterm", "/usr/share/terminfo/x/xterm") if Path(f).exists()),
    "/no/terminfo",
)

PIPED = "import os\nr, w = os.pipe()\n"
MODULES = {
    "sys.path": Way("import sys\nsys.path.insert(0, 'im2')\nimport im2fac\nv = im2fac.F",
                    puts("im2/im2fac.py", "F = 4"), files={"im2/im2fac.py": "F = 3"}),
    "beside the workspace": Way(
        "import sys\nsys.path.append('../more')\nimport im3fac\nv = im3fac.F",
        puts("../more/im3fac.py", "F = 4"), files={"../more/im3fac.py": "F = 3"}),
    "computed name": Way(
        "from importlib import import_module\nv = import_module('im4' + 'fac').F",
        puts("im4fac.py", "F = 4"), files={"im4fac.py": "F = 3"}),
    "registry": Way(
        "import importlib, pkgutil, im5reg\nv = max(importlib.import_module('im5reg.' + m.name).F "
        "for m in pkgutil.iter_modules(im5reg.__path__))",
        adds("im5reg/b.py", "F = 4"), files={"im5reg/__init__.py": "", "im5reg/a.py": "F = 3"}),
    "a file's location": Way(
        "import importlib.util as u\ns = u.spec_from_file_location('z', 'im6 odd.inc.py')\n"
        "m = u.module_from_spec(s)\ns.loader.exec_module(m)\nv = m.F",
        puts("im6 odd.inc.py", "F = 4"), files={"im6 odd.inc.py": "F = 3"}),
    "FileFinder": Way(
        "import importlib.util as u\nfrom importlib.machinery import FileFinder, SourceFileLoader\n"
        "s = FileFinder('im7', (SourceFileLoader, ['.py'])).find_spec('im7fac')\n"
        "m = u.module_from_spec(s)\ns.loader.exec_module(m)\nv = m.F",
        puts("im7/im7fac.py", "F = 4"), files={"im7/im7fac.py": "F = 3"}),
    "FileFinder, in vain": Way(
        "from importlib.machinery import FileFinder, SourceFileLoader\n"
        "f = FileFinder('im8', (SourceFileLoader, ['.py']))\n"
        "v = 4 if f.find_spec('im8fac') else 3",
        adds("im8/im8fac.py"), files={"im8/other": ""}),
    "found and not imported": Way(
        "import importlib.util as u\nv = 3 if u.find_spec('im9fac') else 4",
        removes("im9fac.py"), files={"im9fac.py": ""}),
    "archive": Way("import sys\nsys.path.append('im10.zip')\nimport im10fac\nv = im10fac.F",
                   lambda m: zipped(m, 4)),
    "distribution asked for in vain": Way(
        "import sys, importlib.metadata as M\nsys.path.append('im11')\ntry:\n"
        "    M.version('dist-im11')\n    v = 4\nexcept M.PackageNotFoundError:\n    v = 3",
        upgrades("im11", {})),
    "distribution that is found": Way(
        "import sys, importlib.metadata as M\nsys.path.append('im12')\n"
        "v = 3 if M.version('dist-im12') == '1.0' else 4",
        upgrades("im12", {}), files=installs("im12", "1.0", {})),
    "package found and not imported": Way(
        "import sys, importlib.util as u\nsys.path.append('im13/lib/site-packages')\n"
        "v = 3 if u.find_spec('im13bar') else 4",
        removes("im13"), files={"im13/lib/site-packages/im13bar.py": ""}),
    "relative import": Way(
        "import im15pkg.main\nv = im15pkg.main.F", puts("im15pkg/helper.py", "F = 4"),
        files={"im15pkg/__init__.py": "", "im15pkg/main.py": "from .helper import F\n",
               "im15pkg/helper.py": "F = 3"}),
    "package upgraded": Way(
        "import sys\nsys.path.append('im16')\nimport im16bar\nv = im16bar.F",
        upgrades("im16", {"im16bar.py": "F = 4\n"}),
        files=installs("im16", "1.0", {"im16bar.py": "F = 3\n"})),
    "package that a package imports": Way(
        "import sys\nsys.path.append('im17')\nimport im17bar\nv = im17bar.F",
        upgrades("im17", {"im17bar.py": "from im17deep import F\n", "im17deep.py": "F = 4\n"}),
        files=installs("im17", "1.0", {"im17bar.py": "from im17deep import F\n",
                                       "im17deep.py": "F = 3\n"})),
    "editable install": Way(
        "import site\nsite.addsitedir('im18')\nimport im18fac\nv = im18fac.F",
        puts("src/im18fac.py", "F = 4"),
        files={**installs("im18", "1.0", {"__editable__.pth": "{root}/src\n"}),
               "src/im18fac.py": "F = 3"}),
    "deleted": Way("try:\n    import im19fac\n    v = 3\nexcept ImportError:\n    v = 4",
                   removes("im19fac.py"), files={"im19fac.py": ""}),
    "shadowing module": Way(
        "import sys\nsys.path.append('im20')\nimport im20fac\nv = im20fac.F",
        adds("im20fac.py", "F = 4"), files={"im20/im20fac.py": "F = 3"}),
    "exec": Way("d = {}\nexec(open('im21.inc').read(), d)\nv = d['F']",
                puts("im21.inc", "F = 4"), files={"im21.inc": "F = 3"}),
    "another interpreter in the process": Way(
        PIPED + "try:\n    import _xxsubinterpreters as s\nexcept ImportError:\n"
        "    import _interpreters as s\ni = s.create()\n"
        "s.run_string(i, f\"import os; os.write({w}, open('im22.txt', 'rb').read())\")\n"
        "v = os.read(r, 9)",
        puts("im22.txt"), files={"im22.txt": "3"}),
    "through a link of its own": Way(
        "import os, sys\np = f'im23d/{os.getpid()}'\nos.symlink('../im23', p)\n"
        "sys.path.insert(0, p)\nimport im23fac\nos.unlink(p)\nv = im23fac.F",
        puts("im23/im23fac.py", "F = 4"), files={"im23/im23fac.py": "F = 3", "im23d/keep": ""}),
    "linked folder": Way(
        "import sys\nsys.path.insert(0, 'im24')\nimport im24fac\nv = im24fac.F",
        relinks("im24", "im24b"), links={"im24": "im24a"},
        files={"im24a/im24fac.py": "F = 3", "im24b/im24fac.py": "F = 4"}),
    "runpy": Way("import runpy\nv = runpy.run_path('im25/x.py')['F']",
                 puts("im25/x.py", "F = 4"), files={"im25/x.py": "F = 3"}),
    "namespace package": Way("import im26.inner\nv = im26.inner.F",
                             puts("im26/inner.py", "F = 4"), files={"im26/inner.py": "F = 3"}),
    "compiled extension": Way(
        "import cext\nv = cext.f()", lambda m: extension(m, 4), needs="gcc"),
    "library that a library links": Way(
        "import ctypes\nv = ctypes.CDLL('./libouter.so').f()", lambda m: linked(m, 4),
        needs="gcc"),
}  # fmt: skip


def terminal(mini: Mini) -> None:
    (mini.root / "da12/z").mkdir(parents=True)
    shutil.copy(TERMINFO, mini.root / "da12/z/zz")


COMPILED = "subprocess.run(['gcc', '-shared', '-fPIC', '-x', 'c', p, '-o', p + '.so'], check=True)"
DATA = {
    "np.load": Way("import numpy as np\nv = np.load('da1.npy')", lambda m: table(m, "da1", 4)),
    "np.load through a link of its own": Way(
        "import os, numpy as np\np = f'da2.{os.getpid()}.npy'\nos.symlink('da2.npy', p)\n"
        "v = np.load(p)\nos.unlink(p)", lambda m: table(m, "da2", 4)),
    "listed through a link of its own": Way(
        "import os\np = f'da3.{os.getpid()}'\nos.symlink('da3', p)\nv = len(os.listdir(p))\n"
        "os.unlink(p)", adds("da3/d"), files={f"da3/{n}": "" for n in "abc"}),
    "through a link of its own, renamed": Way(
        "import os\np = f'da4.{os.getpid()}'\nos.symlink('da4', p)\nos.rename(p, p + 'x')\n"
        "v = open(p + 'x').read()\nos.unlink(p + 'x')", puts("da4"), files={"da4": "3"}),
    "loaded through a link of its own": Way(
        "import os, ctypes\np = f'./da5.{os.getpid()}.so'\nos.symlink('reads.so', p)\n"
        "v = ctypes.CDLL(p).da5()\nos.unlink(p)",
        puts("da5"), files={"da5": "3"}, needs="gcc"),
    "compiled through a link of its own": Way(
        "import os, ctypes, subprocess\np = f'./da6.{os.getpid()}'\nos.symlink('da6.c', p)\n"
        + COMPILED + "\nv = ctypes.CDLL(p + '.so').f()\nos.unlink(p)\nos.unlink(p + '.so')",
        puts("da6.c", "int f(void) { return 4; }"),
        files={"da6.c": "int f(void) { return 3; }"}, needs="gcc"),
    "PyDLL": Way("import ctypes\nv = ctypes.PyDLL('./reads.so').da7()", puts("da7"),
                 files={"da7": "3"}, needs="gcc"),
    "pythonapi": Way(
        "import ctypes\nc = ctypes.pythonapi\nc.fopen.restype = ctypes.c_void_p\n"
        "v = chr(c.fgetc(ctypes.c_void_p(c.fopen(b'da8', b'r'))))",
        puts("da8"), files={"da8": "3"}),
    "certificates": Way(
        "import ssl\ntry:\n    ssl.create_default_context(cafile='da9.pem')\n"
        "except FileNotFoundError:\n    v = 3\nexcept ssl.SSLError:\n    v = 4",
        adds("da9.pem")),
    "time zone": Way(
        "import os, time\nos.environ['TZ'] = ':' + os.path.abspath('da10.tz')\ntime.tzset()\n"
        "v = 4 if time.timezone else 3",
        lambda m: (m.root / "da10.tz").write_bytes(ZONE) and None),
    "locale": Way(
        "import os, locale\nos.environ['LOCPATH'] = os.path.abspath('da11')\ntry:\n"
        "    locale.setlocale(locale.LC_CTYPE, 'xx_YY')\n    v = 4\n"
        "except locale.Error:\n    v = 3",
        lambda m: shutil.copytree(LOCALE, m.root / "da11/xx_YY") and None, needs=LOCALE),
    "terminfo": Way(
        "import os, curses\nos.environ['TERMINFO'] = os.path.abspath('da12')\ntry:\n"
        "    curses.setupterm('zz', 1)\n    v = 4\nexcept curses.error:\n    v = 3",
        terminal, needs=TERMINFO),
    "shared memory by name": Way(
        "import os, _posixshmem\nv = os.read(_posixshmem.shm_open(open('da13').read(), "
        "os.O_RDONLY, 0), 1)",
        lambda m: shared(m, "da13").write_text("4") and None),
    "TOML": Way("import tomllib\nv = tomllib.load(open('da14.toml', 'rb'))['f']",
                puts("da14.toml", "f = 4"), files={"da14.toml": "f = 3"},
                needs="" if sys.version_info >= (3, 11) else "tomllib"),
    "tried": Way("try:\n    v = open('da15').read()\nexcept OSError:\n    v = 3",
                 adds("da15", "4")),
    "link to a file of the same text": Way(
        "import os\nh = os.path.realpath('da16')\nv = open(os.path.dirname(h) + '/n').read()",
        relinks("da16", "da16b/here"), links={"da16": "da16a/here"},
        files={"da16a/here": "", "da16b/here": "", "da16a/n": "3", "da16b/n": "4"}),
    "where a link leads": Way(
        "import os\nv = open(os.readlink('da17') + '/n').read()",
        relinks("da17", "da17b"), links={"da17": "da17a"},
        files={"da17a/n": "3", "da17b/n": "4"}),
    "folder entered through a link": Way(
        "import os\nh = os.getcwd()\nos.chdir('da18')\nv = open('n').read()\nos.chdir(h)",
        relinks("da18", "da18b"), links={"da18": "da18a"},
        files={"da18a/n": "3", "da18b/n": "4"}),
    "folder entered by a child": Way(
        "import subprocess\nv = subprocess.check_output(['cat', 'n'], cwd='da19')",
        relinks("da19", "da19b"), links={"da19": "da19a"},
        files={"da19a/n": "3", "da19b/n": "4"}),
    "file that becomes a link": Way(
        "import os\nv = 4 if os.path.islink('da20') else 3",
        relinks("da20", "da20x"),
        files={"da20": "x", "da20x": "x"}),
    "listed file that becomes a link": Way(
        "import os\nv = 3 + sum(e.is_symlink() for e in os.scandir('da21'))",
        relinks("da21/v", "../da21x"),
        files={"da21/v": "x", "da21x": "x"}),
    "program started by posix_spawn": Way(
        "import os\nr, w = os.pipe()\nos.waitpid(os.posix_spawnp('cat', ['cat', 'da24'], "
        "os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, w, 1)]), 0)\nv = os.read(r, 1)",
        puts("da24"), files={"da24": "3"}),
    **{f"file found by {call}": Way(
        f"import os\nv = 3\ntry:\n    os.{call}\nexcept FileNotFoundError:\n    v = 4\n"
        "except OSError:\n    pass",
        removes(f"da22{n}"), files={f"da22{n}": ""})
       for n, call in enumerate((
           "statvfs('da220')", "pathconf('da221', 'PC_NAME_MAX')", "listxattr('da222')",
           "getxattr('da223', 'user.a')", "utime('da224')",
           "chown('da225', -1, -1)", "truncate('da226', 0)"))},
    **{f"right to execute, {way}": Way(
        f"import os, subprocess\nv = {code.format('da23' + way)}", chmods(f"da23{way}", 0o644),
        files={f"da23{way}": "#!/bin/sh\necho 3\n"})
       for way, code in {
           "shell": "subprocess.check_output('./{} || echo 4', shell=True)",
           "pipe": "os.popen('./{} || echo 4').read()",
           "fork": "3 if subprocess.call(['/bin/sh', '-c', 'exec ./{}']) == 0 else 4"}.items()},
}  # fmt: skip

PYTHON = f"#!{sys.executable}\nfrom protocol import answer\n"
ON_PATH = PYTHON.replace("from", "import sys\nsys.path.insert(0, '.')\nfrom")
PROGRAMS = {
    "executable without .py": Way(
        "", puts("pr1fac.py", "F = 4"), op='["./pr1"]',
        files={"pr1": f"{PYTHON}import pr1fac\nanswer(pr1fac.F)\n", "pr1fac.py": "F = 3"}),
    "python -m": Way(
        "", puts("pr2/fac.py", "F = 4"), op='["python3", "-m", "pr2"]',
        files={"pr2/__init__.py": "", "pr2/fac.py": "F = 3",
               "pr2/__main__.py": "from protocol import answer\nfrom pr2.fac import F\nanswer(F)\n"
               }),
    "executable on PATH": Way(
        "", adds("bin0/pr3-tool", f"{ON_PATH}answer(4)\n"), op='["pr3-tool"]',
        files={"bin/pr3-tool": f"{ON_PATH}answer(3)\n"}),
    "linked executable": Way(
        "", relinks("pr4", "pr4b"), op='["./pr4"]', links={"pr4": "pr4a"},
        files={"pr4a": f"{PYTHON}answer(3)\n", "pr4b": f"{PYTHON}answer(4)\n"}),
    "linked op": Way(
        "", relinks("pr5.py", "pr5b.py"), op='"pr5.py:f"', links={"pr5.py": "pr5a.py"},
        files={"pr5a.py": "def f(x):\n    return x + x + x\n",
               "pr5b.py": "def f(x):\n    return x\n"}),
    "started by the op": Way(
        "", puts("pr6in", "4"), op='["./pr6"]',
        files={"pr6": f"#!/bin/sh\nexec {sys.executable} pr6.py\n", "pr6in": "3",
               "pr6.py": "from protocol import answer\nanswer(int(open('pr6in').read()))\n"}),
    "not executable any more": Way(
        "", chmods("pr7t", 0o644), op='["./pr7"]',
        files={"pr7": "#!/bin/sh\nexec ./pr7t\n", "pr7t": f"{PYTHON}answer(3)\n"}),
    "named as a module of Python": Way(
        "", puts("pr8", "4"), op='"macros.py:f"',
        files={"pr8": "3", "macros.py": "def f(x):\n    return x * int(open('pr8').read())\n"}),
    "module of the environment": Way(
        "", puts("pr9.d/pr9fac.py", "F = 4"), op='"pr9.py:f"',
        files={"pr9.d/pr9fac.py": "F = 3",
               "pr9.py": "import pr9fac\ndef f(x):\n    return x * pr9fac.F\n"}),
}  # fmt: skip


def zipped(mini: Mini, value: int) -> None:
    with zipfile.ZipFile(mini.root / "im10.zip", "w") as archive:
        archive.writestr("im10fac.py", f"F = {value}\n")


def table(mini: Mini, name: str, value: int) -> None:
    np.save(mini.root / f"{name}.npy", np.array(value))


def extension(mini: Mini, value: int) -> None:
    text = f"""
#include <Python.h>
static PyObject *f(PyObject *s, PyObject *a) {{ return PyLong_FromLong({value}); }}
static PyMethodDef m[] = {{{{"f", f, METH_NOARGS, ""}}, {{0}}}};
static struct PyModuleDef d = {{PyModuleDef_HEAD_INIT, "cext", "", -1, m}};
PyMODINIT_FUNC PyInit_cext(void) {{ return PyModule_Create(&d); }}
"""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    build(mini, f"cext{suffix}", text, f"-I{sysconfig.get_path('include')}")


def linked(mini: Mini, value: int) -> None:
    build(mini, "libinner.so", f"int inner(void) {{ return {value}; }}")
    if not (mini.root / "libouter.so").exists():
        outer = "int inner(void); int f(void) { return inner(); }"
        flags = (f"-L{mini.root}", "-l:libinner.so", "-Wl,-rpath,$ORIGIN")
        build(mini, "libouter.so", outer, *flags)


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
        "import ctypes\nv = ctypes.CDLL('./reads.so').f()", sets("WAY_B", "4"), needs="gcc"
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
        "import ctypes\nv = 3 if not ctypes.CDLL('./reads.so').g() else 4",
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
        "import ctypes\nv = ctypes.CDLL('./reads.so').h()", chmods("lk27", 0o755),
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


def lists(call: str, folder: str) -> Way:
    return Way(
        f"import os, subprocess\nv = {call.format(folder)}",
        lambda mini: mini.write(f"{folder}/d", "") and None,
        files={f"{folder}/{name}": "" for name in "abc"},
    )


def finds(folder: str) -> Way:
    """An op that imports a module from a second folder, until the first one has it, too."""
    return Way(
        f"import sys\nsys.path[:0] = ['{folder}', 'second']\nimport found\nv = found.F",
        lambda mini: mini.write(f"{folder}/found.py", "F = 4\n") and None,
        files={f"{folder}/other": "", "second/found.py": "F = 3\n"},
    )


PLACES = {
    "listed, site-packages": lists("len(os.listdir('{}'))", "a/site-packages"),
    "listed, below site-packages": lists("len(os.listdir('{}'))", "b/site-packages/data"),
    "listed, dist-packages": lists("len(list(os.scandir('{}')))", "c/dist-packages/data"),
    "listed, lib": lists("len(os.listdir('{}'))", "lib/python3.9/data"),
    "listed, lib64": lists("len(os.listdir('{}'))", "d/lib64/python3.11"),
    "listed by a child": lists(
        "subprocess.check_output(['sh', '-c', 'ls {} | wc -l'])", "e/site-packages"
    ),
    "searched, site-packages": finds("f/site-packages"),
    "searched, lib": finds("g/lib/python3.11/more"),
    "looked for, site-packages": Way(
        "import os\nv = 3 if os.path.exists('h/site-packages/x') else 4",
        removes("h/site-packages/x"), files={"h/site-packages/x": ""}),
    "missing, like a hook": Way(
        "import os\nv = 4 if os.path.exists('i_hook__') else 3",
        lambda mini: mini.write("i_hook__", "") and None),
    "opened in vain, like a hook": Way(
        "try:\n    v = open('j.__path_hook__').read()\nexcept OSError:\n    v = 3",
        lambda mini: mini.write("j.__path_hook__", "4") and None),
    "searched, like a hook": finds("k_hook__"),
    "edited": Way("v = open('lib/python3.8/x').read()", puts("lib/python3.8/x"),
                  files={"lib/python3.8/x": "3"}),
}  # fmt: skip


def shared(mini: Mini, name: str) -> Path:
    """A file in shared memory whose name the named file of the workspace holds."""
    place = Path("/dev/shm") / f"gpuemu-test-{os.getpid()}-{name}"
    mini.write(name, f"/{place.name}" if name == "da13" else str(place))
    return place


def sourceless(mini: Mini, value: int) -> None:
    import py_compile

    source = mini.write("build/lk28.py", f"F = {value}\n")
    py_compile.compile(str(source), str(mini.root / "lk28.pyc"), doraise=True)


def build(mini: Mini, target: str, code: str, *flags: str) -> None:
    place = mini.root / f"{target}.new"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(place), *flags]
    subprocess.run(command, input=code.encode(), check=True, capture_output=True)
    place.replace(mini.root / target)


READS_C = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int digit(const char *path) { FILE *f = fopen(path, "r"); return f ? fgetc(f) - '0' : 9; }
int f(void) { char *v = getenv("WAY_B"); return v ? atoi(v) : 3; }
int g(void) { return getenv("OPENBLAS_VERBOSE") != 0; }
int h(void) { return access("lk27", X_OK) ? 3 : 4; }
int da5(void) { return digit("da5"); }
int da7(void) { return digit("da7"); }
"""


def workspace(folder: Path, ways: dict[str, Way]) -> Mini:
    root = folder / "ws"
    root.mkdir()
    mini = Mini(root, warm=True)
    (root / "home").mkdir()  # which the command makes where it is missing
    config = [HEAD]
    for number, (name, way) in enumerate(ways.items()):
        op = way.op
        if not op:
            op = f'"ops/op{number}.py:f"'
            lines = "\n".join(f"    {line}" for line in way.lines.split("\n"))
            end = f"    return (x * x.dtype.type({way.value})).astype(x.dtype)\n"
            mini.write(f"ops/op{number}.py", f"def f(x):\n{lines}\n{end}")
        config.append(OP.format(name=slug(name), op=op))
        for path, text in way.files.items():
            made = mini.write(path, text.replace("{root}", str(root)))
            if text.startswith("#!"):
                made.chmod(0o755)
        for path, target in way.links.items():
            (root / path).symlink_to(target)
    mini.write("gpuemu.toml", "".join(config))
    mini.unfence()  # some keep files of their own beside what is theirs to read
    mini.write("ref.py", "def f(x):\n    return x * 3\n")
    mini.write("protocol.py", PROTOCOL)
    mini.write("docs/index.md", "")
    mini.write("ops/first.py", "")
    if any(way.needs == "gcc" for way in ways.values()):
        build(mini, "reads.so", READS_C)
        extension(mini, 3)
        linked(mini, 3)
    if "os.access with dir_fd" in ways:
        (root / "lk29").chmod(0o755)
    if ways is DATA or "np.load" in ways:
        table(mini, "da1", 3)
        table(mini, "da2", 3)
    zipped(mini, 3)
    sourceless(mini, 3)
    mini.env["COLUMNS"] = "3"
    mini.env["PYTHONPATH"] = "pr9.d"
    mini.env["PATH"] = f"{root / 'bin0'}:{root / 'bin'}:{os.environ['PATH']}"
    return mini


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {r["op"]: r["verdict"] for r in report["results"]}


def fuzzed(mini: Mini, *ops: str) -> dict[str, str]:
    done = mini.command("fuzz", *ops, "-n", "1", "--format", "json", code=None)
    report = json.loads(done.stdout)
    return {r["op"]: r["verdict"] for r in report.get("ops", [report])}


def watching(mini: Mini) -> FileWatch:
    """Return a watch on the files that ``watch`` follows once it has run."""
    workspace = Workspace(mini.root, environ=mini.environment())
    watch = FileWatch(workspace.root)
    watch.follow(workspace, workspace.graph.tasks)
    workspace.cache.close()
    return watch


GROUPS = {
    "modules": MODULES, "data": DATA, "programs": PROGRAMS, "own": OWN, "variables": VARIABLES,
    "looks": LOOKS, "places": PLACES,
}  # fmt: skip


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.ci
def test_no_pass_is_left_after_an_edit(group: str, tmp_path: Path) -> None:
    ways = {
        name: way
        for name, way in GROUPS[group].items()
        if not way.needs or shutil.which(way.needs) or Path(way.needs).exists()
    }
    mini = workspace(tmp_path.resolve(), ways)
    memory = [shared(mini, name) for name in ("da13", "lk26")]
    for place in memory:
        place.write_text("3")
    wrong = []
    first = mini.run(code=None)
    wrong += [f"not passed at first: {n}" for n, v in verdicts(first).items() if v != "passed"]
    mini.write("ops/more.py", "F = 4\n")
    mini.write("docs/notes.txt", "nothing to anybody")
    mini.env.update(EDITOR="ed", TERM="dumb", UNKNOWN="1")
    again = mini.run(code=None)
    # `importlib.metadata` lists each folder of sys.path, of which the op's own is one.
    wrong += [f"again: {n}" for n in again["executed"] if not n.startswith("op:distribution_")]
    warned = {p["message"].removeprefix("op of ").partition(":")[0] for p in again["problems"]}
    wrong += [f"warned: {n}" for n in warned ^ {slug(n) for n, w in ways.items() if w.warns}]
    some = [slug(name) for name in sample([*ways], 3)]  # it looks where `run` does
    wrong += [f"fuzz, at first: {n}" for n, v in fuzzed(mini, *some).items() if v != "passed"]
    watch = watching(mini)
    seen = watch.saved()
    for name, way in ways.items():
        way.edit(mini)
        before, seen = seen, watch.saved()
        # What moves its own input has moved it since `watch` began, in `fuzz`.
        wrong += [] if way.warns or group == "variables" or seen - before else [f"watch: {name}"]
    wrong += [f"fuzz, stale: {name}" for name, v in fuzzed(mini, *some).items() if v == "passed"]
    left = verdicts(mini.run(code=None))
    wrong += [f"stale: {name}" for name, verdict in left.items() if verdict == "passed"]
    for place in memory:
        place.unlink()
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


@pytest.mark.ci
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


def test_an_edited_module_is_not_run_from_old_bytecode(tmp_path: Path) -> None:
    """Neither its size nor its time tells that it was edited."""
    mini = Mini(tmp_path.resolve())
    mini.write("gpuemu.toml", HEAD + OP.format(name="it", op='"ops/op.py:f"'))
    mini.unfence()  # so that Python writes bytecode
    mini.env["PYTHONDONTWRITEBYTECODE"] = ""
    lines = "import sys\nsys.path[:0] = ['v/site-packages']\nfrom helper import F\n"
    mini.write("ops/op.py", f"{lines}def f(x):\n    return x * x.dtype.type(F)\n")
    mini.write("ref.py", "def f(x):\n    return x * 3\n")
    helper = mini.write("v/site-packages/helper.py", "F = 3\n")
    assert verdicts(mini.run(code=None)) == {"it": "passed"}
    before = helper.stat()
    helper.write_text("F = 4\n")
    os.utime(helper, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verdicts(mini.run(code=None)) == {"it": "failed"}


def test_exact_places_are_installed(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    packages = venv / "lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    assert not is_installed(f"{packages}/x.py")
    other = tmp_path / "other"
    (other / "pyvenv.cfg").parent.mkdir()
    (other / "pyvenv.cfg").write_text("")
    python = tmp_path / "python/lib/python3.12"
    python.mkdir(parents=True)
    (python / "os.py").write_text("")
    for path in (
        np.__file__,
        json.__file__,
        sysconfig.get_path("purelib"),
        f"{other}/lib/python3.12/site-packages/x.py",
        f"{python}/x.py",
        f"{python}/site-packages/x.py",
        "/usr/lib/python3/dist-packages/x.py",
        "/home/somebody/.local/lib/python3.12/site-packages/x.py",
    ):
        assert is_installed(path), path
    for path in (f"{tmp_path}/site-packages/x.py", f"{tmp_path}/lib/python3.9/x.py", "/x/y.py"):
        assert not is_installed(path), path
