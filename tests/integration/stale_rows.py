"""Ways to depend on something, as workspaces: what tests of staleness change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from mini_workspace import Mini

Act = Callable[[Mini], None]

CONFIG = """
[project]
name = "stale"

[validation]
cause_budget = 0
seed = 7
cases = 2
tolerance = "table"

[[ops]]
name = "scale"
op = {op}
reference = "ref.py:reference"
input_names = ["x"]
schema = {{ dims = {{ N = [3] }}, inputs = {{ x = ["N"] }}, output = ["N"] }}
{more}
"""
REFERENCE = "def reference(x):\n    return x * 3\n"
PROTOCOL = """
    import array, base64, json, sys

    def answer(factor):
        request = json.load(sys.stdin)
        x = request["inputs"]["x"]
        assert x["dtype"] == "float32"
        a = array.array("f", base64.b64decode(x["data"]))
        a = array.array("f", [value * factor for value in a])
        data = base64.b64encode(a.tobytes()).decode()
        print(json.dumps({"shape": x["shape"], "dtype": "float32", "data": data}))
"""
"""Without numpy, which each of many interpreters would have to load."""


def scale_by(expression: str, *before: str, late: str = "") -> str:
    """An op that multiplies by what `expression` gives, which has to be 3."""
    lines = [*before, "def scale(x):"]
    lines += [f"    {late}"] if late else []
    return "\n".join([*lines, f"    return (x * x.dtype.type({expression})).astype(x.dtype)", ""])


def module(value: int) -> str:
    return f"F = {value}\n"


@dataclass(frozen=True)
class Row:
    """One way to depend on something.

    Attributes
    ----------
    name : str
    files : mapping of str to str
        What the workspace holds besides the reference.
    good, bad : callable
        Put what is depended on into the state where the op is right, or wrong.
    op : str
        As in the configuration; TOML.
    more : str
        More lines of the op's table.
    needs : str
        A program without which the row is passed over.
    executables : tuple of str
        Files that can be called.
    in_environment : bool
        A running process, such as ``watch``, cannot see it change.
    """

    name: str
    files: dict[str, str]
    good: Act
    bad: Act
    op: str = '"op.py:scale"'
    more: str = ""
    needs: str = ""
    executables: tuple[str, ...] = ()
    in_environment: bool = False


def puts(path: str, good: str, bad: str) -> dict[str, Act]:
    """Edit one file."""
    return {"good": lambda m: rewrite(m, path, good), "bad": lambda m: rewrite(m, path, bad)}


def rewrite(mini: Mini, path: str, text: str) -> None:
    """Write with the old times, where there is a file."""
    target = mini.root / path
    before = target.stat() if target.exists() else None
    mini.write(path, text)
    if before is not None:
        os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))


def link(path: str, target: str) -> Act:
    def act(mini: Mini) -> None:
        place = mini.root / path
        place.unlink(missing_ok=True)
        place.symlink_to(target)

    return act


def install(version: str, files: dict[str, str], *, name: str = "Foo-Dist") -> Act:
    """Install a distribution by hand into ``site/``, as pip would."""

    def act(mini: Mini) -> None:
        site = mini.root / "site"
        shutil.rmtree(site, ignore_errors=True)
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        record = []
        for path, text in {
            **files,
            f"{info}/METADATA": f"Name: {name}\nVersion: {version}\n",
        }.items():
            mini.write(f"site/{path}", text)
            digest = hashlib.sha256((site / path).read_bytes()).hexdigest()
            record.append(f"{path},sha256={digest},1")
        mini.write(f"site/{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))

    return act


def installed(mini: Mini, files: dict[str, str]) -> None:
    """Install a distribution into a folder of packages."""
    install("1.0", files)(mini)
    (mini.root / "lib").mkdir(exist_ok=True)
    (mini.root / "site").rename(mini.root / "lib/site-packages")


def editable(mini: Mini) -> None:
    """An editable install: the distribution lists a .pth file and nothing of the source."""
    install("1.0", {"__editable__.pth": str(mini.root / "src") + "\n"})(mini)


def compiled(value: int) -> Act:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    text = f"""
        #include <Python.h>
        static PyObject *f(PyObject *s, PyObject *a) {{ return PyLong_FromLong({value}); }}
        static PyMethodDef m[] = {{{{"f", f, METH_NOARGS, ""}}, {{0}}}};
        static struct PyModuleDef d = {{PyModuleDef_HEAD_INIT, "cext", "", -1, m}};
        PyMODINIT_FUNC PyInit_cext(void) {{ return PyModule_Create(&d); }}
        """

    def act(mini: Mini) -> None:
        source = mini.write("build/cext.c", text)
        build(mini, source, f"cext{suffix}", f"-I{sysconfig.get_path('include')}")

    return act


def library(value: int) -> Act:
    """A library that links another one, which holds the value."""

    def act(mini: Mini) -> None:
        inner = mini.write("build/inner.c", f"int inner(void) {{ return {value}; }}\n")
        build(mini, inner, "libinner.so")
        outer = mini.root / "libouter.so"
        if not outer.exists():
            source = mini.write(
                "build/outer.c", "int inner(void); int f(void) { return inner(); }\n"
            )
            build(mini, source, "libouter.so", f"-L{mini.root}", "-linner", "-Wl,-rpath,$ORIGIN")

    return act


def build(mini: Mini, source: Path, target: str, *flags: str) -> None:
    place = mini.root / "build" / target
    command = ["gcc", "-shared", "-fPIC", str(source), "-o", str(place), *flags]
    subprocess.run(command, check=True, capture_output=True)
    place.replace(mini.root / target)


def variable(value: str | None, name: str = "SCALE_BY") -> Act:
    def act(mini: Mini) -> None:
        mini.env.pop(name, None)
        if value is not None:
            mini.env[name] = value

    return act


def both(*acts: Act) -> Act:
    def act(mini: Mini) -> None:
        for one in acts:
            one(mini)

    return act


def permits(path: str, mode: int) -> Act:
    return lambda mini: (mini.root / path).chmod(mode)


def remove(*paths: str) -> Act:
    def act(mini: Mini) -> None:
        for path in paths:
            (mini.root / path).unlink()

    return act


ON_SITE = ("import os, sys", "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'site'))")
SRC = ("import os, site", "site.addsitedir(os.path.join(os.path.dirname(__file__), 'site'))")
LIB = ("import os, sys", "sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'lib'))")
PYTHON = sys.executable

ROWS = [
    Row("editable install", {"op.py": scale_by("pkg.F", *SRC, "import pkg")},
        both(editable, puts("src/pkg/__init__.py", module(3), "")["good"]),
        lambda m: rewrite(m, "src/pkg/__init__.py", module(4))),
    Row("sys.path", {"op.py": scale_by("fac.F", *LIB, "import fac")},
        **puts("lib/fac.py", module(3), module(4))),
    Row("module beside the workspace", {
            "op.py": scale_by("fac.F", "import os, sys", "D = os.path.dirname(__file__)",
                              "sys.path.append(D + '/../' + os.path.basename(D) + '-more')",
                              "import fac")},
        lambda m: rewrite(m, f"../{m.root.name}-more/fac.py", module(3)),
        lambda m: rewrite(m, f"../{m.root.name}-more/fac.py", module(4))),
    Row("computed name", {"op.py": scale_by("M.F", "from importlib import import_module",
                                            "NAME = 'f' + 'ac'", "M = import_module(NAME)")},
        **puts("fac.py", module(3), module(4))),
    Row("pkgutil registry", {
            "op.py": scale_by("max(m.F for m in ALL)", "import importlib, pkgutil, reg",
                              "ALL = [importlib.import_module('reg.' + m.name) "
                              "for m in pkgutil.iter_modules(reg.__path__)]"),
            "reg/__init__.py": "", "reg/a.py": module(3)},
        lambda m: (m.root / "reg/b.py").unlink(missing_ok=True),
        lambda m: m.write("reg/b.py", module(4)) and None),
    Row("spec_from_file_location", {
            "op.py": scale_by("M.F", "import importlib.util as u, os",
                              "S = u.spec_from_file_location('z', "
                              "os.path.join(os.path.dirname(__file__), 'odd name.inc.py'))",
                              "M = u.module_from_spec(S)", "S.loader.exec_module(M)")},
        **puts("odd name.inc.py", module(3), module(4))),
    Row("variable of the interpreter", {
            "op.py": scale_by("F", "import sys", "F = 4 if sys.flags.dev_mode else 3")},
        variable(None, "PYTHONDEVMODE"), variable("1", "PYTHONDEVMODE"), in_environment=True),
    Row("module that the interpreter runs at its start", {
            "op.py": scale_by("F", "import builtins", "F = getattr(builtins, 'FACTOR', 3)")},
        both(lambda m: (m.root / "lib/sitecustomize.py").unlink(missing_ok=True),
             lambda m: m.write("lib/keep", "") and None,
             lambda m: m.env.update(PYTHONPATH=str(m.root / "lib"))),
        lambda m: m.write("lib/sitecustomize.py", "import builtins\nbuiltins.FACTOR = 4\n")
        and None),
    Row("folder of PYTHONPATH", {"op.py": scale_by("fac.F", "import fac")},
        both(lambda m: m.env.update(PYTHONPATH="lib"), puts("lib/fac.py", module(3), "")["good"]),
        puts("lib/fac.py", "", module(4))["bad"]),
    Row("file that becomes a link", {
            "op.py": scale_by("F", "import os", "HERE = os.path.dirname(__file__)",
                              "F = 4 if os.path.islink(HERE + '/v') else 3"), "equal": "x\n"},
        both(lambda m: (m.root / "v").unlink(missing_ok=True),
             lambda m: m.write("v", "x\n") and None),
        link("v", "equal")),
    Row("listed file that becomes a link", {
            "op.py": scale_by("F", "import os", "HERE = os.path.dirname(__file__)",
                              "F = 3 + sum(e.is_symlink() for e in os.scandir(HERE + '/d'))"),
            "equal": "x\n"},
        both(lambda m: (m.root / "d/v").unlink(missing_ok=True),
             lambda m: m.write("d/v", "x\n") and None),
        link("d/v", "../equal")),
    Row("module found and not imported", {
            "op.py": scale_by("F", "import importlib.util as u",
                              "F = 3 if u.find_spec('fac') else 4")},
        lambda m: m.write("fac.py", "") and None, remove("fac.py")),
    Row("distribution asked for in vain", {
            "op.py": scale_by("F", *ON_SITE, "import importlib.metadata as M", "try:",
                              "    M.version('foo.dist')", "    F = 4",
                              "except M.PackageNotFoundError:", "    F = 3")},
        lambda m: shutil.rmtree(m.root / "site", ignore_errors=True), install("1.0", {})),
    Row("distribution that is found", {
            "op.py": scale_by("F", *ON_SITE, "import importlib.metadata as M", "try:",
                              "    F = 3 if M.version('foo.dist') == '1.0' else 4",
                              "except Exception:", "    F = 4")},
        install("1.0", {}), lambda m: shutil.rmtree(m.root / "site")),
    Row("package found and not imported", {
            "op.py": scale_by("F", "import os, sys", "import importlib.util as u",
                              "D = os.path.dirname(__file__)",
                              "sys.path.append(D + '/lib/site-packages')",
                              "F = 3 if u.find_spec('bar') else 4")},
        lambda m: installed(m, {"bar.py": ""}), lambda m: shutil.rmtree(m.root / "lib")),
    *(Row(f"file found by {call}", {
            "op.py": scale_by("F", "import os", "P = os.path.dirname(__file__) + '/v'", "F = 3",
                              "try:", f"    os.{call}", "except FileNotFoundError:", "    F = 4",
                              "except OSError:", "    pass")},
          lambda m: m.write("v", "") and None, remove("v"))
      for call in ("statvfs(P)", "pathconf(P, 'PC_NAME_MAX')", "listxattr(P)",
                   "getxattr(P, 'user.a')", "chmod(P, 0o644)", "utime(P)", "chown(P, -1, -1)")),
    *(Row(f"right to execute a helper, {way}", {
            "op.py": scale_by("F", "import os, subprocess", f"F = {code}"),
            "h": "#!/bin/sh\necho 3\n"},
          permits("h", 0o755), permits("h", 0o644))
      for way, code in {
          "shell": "subprocess.check_output('./h || echo 4', shell=True)",
          "pipe": "os.popen('./h || echo 4').read()",
          "fork": "3 if subprocess.call(['/bin/sh', '-c', 'exec ./h']) == 0 else 4",
      }.items()),
    Row("file that is named as Python's own", {
            "macros.py": scale_by("open(os.path.dirname(__file__) + '/v').read()", "import os")},
        op='"macros.py:scale"', **puts("v", "3", "4")),
    Row("import inside a function", {"op.py": scale_by("F", late="from fac import F")},
        **puts("fac.py", module(3), module(4))),
    Row("relative import", {"pkg/__init__.py": "",
                            "pkg/op.py": scale_by("g()", "from.helper import g")},
        op='"pkg.op:scale"',
        **puts("pkg/helper.py", "def g(): return 3\n", "def g(): return 4\n")),
    Row("executable without .py", {
            "tool": f"#!{PYTHON}\nfrom protocol import answer\nimport fac\nanswer(fac.F)\n",
            "protocol.py": PROTOCOL},
        op='["./tool"]', executables=("tool",), **puts("fac.py", module(3), module(4))),
    Row("python -m", {"pkg/__init__.py": "", "pkg/__main__.py":
                      "from protocol import answer\nfrom pkg.fac import F\nanswer(F)\n",
                      "protocol.py": PROTOCOL},
        op='["python3", "-m", "pkg"]', **puts("pkg/fac.py", module(3), module(4))),
    Row("executable on PATH", {"protocol.py": PROTOCOL},
        lambda m: on_path(m, 3), lambda m: on_path(m, 4), op='["my-scale-tool"]'),
    Row("compiled extension", {"op.py": scale_by("cext.f()", "import cext")},
        compiled(3), compiled(4), needs="gcc"),
    Row("ctypes and what it links", {
            "op.py": scale_by("L.f()", "import ctypes, os",
                              "L = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "
                              "'libouter.so'))")},
        library(3), library(4), needs="gcc"),
    Row("package upgraded", {"op.py": scale_by("bar.F", *ON_SITE, "import bar")},
        install("1.0", {"bar.py": module(3)}), install("1.1", {"bar.py": module(4)})),
    Row("package that a package imports", {
            "op.py": scale_by("bar.F", *ON_SITE, "import bar")},
        install("1.0", {"bar.py": "from _deep import F\n", "_deep/__init__.py": module(3)}),
        install("1.1", {"bar.py": "from _deep import F\n", "_deep/__init__.py": module(4)})),
    Row("linked op", {"v1.py": scale_by("3"), "v2.py": scale_by("4")},
        link("op.py", "v1.py"), link("op.py", "v2.py")),
    Row("linked folder", {"op.py": scale_by("fac.F", *LIB, "import fac"),
                          "l1/fac.py": module(3), "l2/fac.py": module(4)},
        link("lib", "l1"), link("lib", "l2")),
    Row("link to a file of the same text", {
            "op.py": scale_by("open(P).read()", "import os",
                              "H = os.path.realpath(open('here').name)",
                              "P = os.path.join(os.path.dirname(H), 'n.txt')"),
            "l1/here": "", "l2/here": "", "l1/n.txt": "3", "l2/n.txt": "4"},
        link("here", "l1/here"), link("here", "l2/here")),
    Row("linked executable", {
            "t1": f"#!{PYTHON}\nfrom protocol import answer\nanswer(3)\n",
            "t2": f"#!{PYTHON}\nfrom protocol import answer\nanswer(4)\n",
            "protocol.py": PROTOCOL},
        link("tool", "t1"), link("tool", "t2"), op='["./tool"]', executables=("t1", "t2")),
    Row("np.load", {"op.py": scale_by("T[0]", "import numpy as np", "T = np.load('t.npy')")},
        lambda m: table(m, 3), lambda m: table(m, 4)),
    Row("open", {"op.py": scale_by("int(open('n.txt').read())")}, **puts("n.txt", "3", "4")),
    Row("open that may fail", {
            "op.py": scale_by("N", "try:", "    N = int(open('n.txt').read())",
                              "except OSError:", "    N = 3")},
        lambda m: (m.root / "n.txt").unlink(missing_ok=True),
        lambda m: m.write("n.txt", "4") and None),
    Row("exec of a file", {"op.py": scale_by("F", "exec(open('f.inc').read())")},
        **puts("f.inc", module(3), module(4))),
    Row("TOML", {"op.py": scale_by("C['f']", "import tomllib",
                                   "C = tomllib.load(open('c.toml', 'rb'))")},
        **puts("c.toml", "f = 3\n", "f = 4\n")),
    Row("environment", {"op.py": scale_by("int(os.environ.get('SCALE_BY', 3))", "import os")},
        variable("3"), variable("4"), more='env = ["SCALE_BY"]', in_environment=True),
    Row("environment set later", {
            "op.py": scale_by("int(os.getenv('SCALE_BY') or 3)", "import os")},
        variable(None), variable("4"), more='env = ["SCALE_*"]', in_environment=True),
    Row("names in a folder", {"op.py": scale_by("len(os.listdir('d'))", "import os"),
                              "d/a": "", "d/b": "", "d/c": ""},
        lambda m: (m.root / "d/e").unlink(missing_ok=True), lambda m: m.write("d/e", "") and None),
    Row("deleted", {"op.py": scale_by("4 if fac is None else 3", "try:", "    import fac",
                                      "except ImportError:", "    fac = None")},
        lambda m: m.write("fac.py", "") and None, remove("fac.py")),
    Row("shadowing module", {"op.py": scale_by("fac.F", "import sys", "sys.path.append('lib')",
                                               "import fac"), "lib/fac.py": module(3)},
        lambda m: (m.root / "fac.py").unlink(missing_ok=True),
        lambda m: m.write("fac.py", module(4)) and None),
]  # fmt: skip


def on_path(mini: Mini, value: int) -> None:
    text = f"#!{PYTHON}\nimport sys; sys.path.insert(0, {str(mini.root)!r})\n"
    tool = mini.write("bin/my-scale-tool", text + f"from protocol import answer\nanswer({value})\n")
    tool.chmod(0o755)
    mini.env["PATH"] = f"{mini.root / 'bin'}:{os.environ['PATH']}"


def table(mini: Mini, value: int) -> None:
    import numpy as np

    np.save(mini.root / "t.npy", np.array([value]))


def make(row: Row, folder: Path) -> Mini:
    if row.needs and shutil.which(row.needs) is None:
        pytest.skip(f"{row.needs} is not here")
    mini = Mini(folder, warm=True)
    mini.write("gpuemu.toml", CONFIG.format(op=row.op, more=row.more))
    mini.write("ref.py", REFERENCE)
    for path, text in row.files.items():
        mini.write(path, text)
    for path in row.executables:
        (mini.root / path).chmod(0o755)
    row.good(mini)
    return mini
