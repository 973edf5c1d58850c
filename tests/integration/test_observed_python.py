"""Every way in which Python code can come by a module is reported, in every kind of worker."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from observed_workspace import Seen, below, observe, write_all
from runner_workspace import PROTOCOL, Workspace, make_case, marked_case, workspace

from gpuemu_flow.workers.api import Checks, Program, Request

pytestmark = pytest.mark.ci

FENCED = True

SCRIPT = """
from proto import read, tensor
import json
arrays, _ = read()
import helper
print(json.dumps(tensor(arrays["x"])))
"""


def _zip() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("packed.py", "VALUE = 1\n")
    return data.getvalue()


WAYS = {
    "beside it": ("import helper", {"helper.py": ""}),
    "inside a function": ("def op(x):\n    import helper\n    return x", {"helper.py": ""}),
    "a path put in front": (
        "import sys\nsys.path.insert(0, 'lib')\nimport helper",
        {"lib/helper.py": ""},
    ),
    "a name at run time": (
        "import importlib\nimportlib.import_module('hel' + 'per')",
        {"helper.py": ""},
    ),
    "a file's location": (
        "import importlib.util as u\n"
        "s = u.spec_from_file_location('any', 'deep/odd.name')\n"
        "from importlib.machinery import SourceFileLoader\n"
        "s = u.spec_from_loader('any', SourceFileLoader('any', 'deep/odd.name'))\n"
        "s.loader.exec_module(u.module_from_spec(s))",
        {"deep/odd.name": "X = 1"},
    ),
    "a registry of a package": (
        "import pkgutil, importlib, ops\n"
        "for m in pkgutil.iter_modules(ops.__path__):\n"
        "    importlib.import_module('ops.' + m.name)",
        {"ops/__init__.py": "", "ops/one.py": "", "ops/two.py": ""},
    ),
    "a relative import": (
        "import pkg.main",
        {"pkg/__init__.py": "", "pkg/main.py": "from .helper import g\n", "pkg/helper.py": "g = 1"},
    ),
    "a namespace package": ("import space.inner", {"space/inner.py": ""}),
    "an archive": ("import sys\nsys.path.insert(0, 'a.zip')\nimport packed", {"a.zip": _zip()}),
    "compiled by hand": ("exec(open('code.txt').read())", {"code.txt": "X = 1"}),
    "a hook of an editable install": (
        "import sys, os\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        import importlib.util as u\n"
        "        if name == 'editable':\n"
        "            return u.spec_from_file_location(name, os.path.abspath('src/editable.py'))\n"
        "sys.meta_path.append(Finder())\n"
        "import editable",
        {"src/editable.py": ""},
    ),
    "runpy": ("import runpy\nrunpy.run_path('code/x.py')", {"code/x.py": ""}),
}


def _with_op(code: str) -> str:
    return code if "def op" in code else f"{code}\ndef op(x):\n    return x\n"


@pytest.mark.parametrize("isolation", ["fork", "spawn"])
@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_a_module(ws: Workspace, way: str, isolation: str) -> None:
    code, files = WAYS[way]
    write_all(ws, files)
    seen = observe(ws, ws.program("callable", _with_op(code), isolation=isolation))
    assert seen.files == {"program.py", *files}
    assert seen.untracked == set()
    assert any(path.endswith("/numpy/__init__.py") for path in seen.whole.files)
    assert sys.executable in seen.whole.files


def test_a_registry_lists_its_folder(ws: Workspace) -> None:
    code, files = WAYS["a registry of a package"]
    write_all(ws, files)
    seen = observe(ws, ws.program("callable", _with_op(code)))
    assert seen.listed == {"ops"}


def test_a_folder_that_is_in_the_way_counts(ws: Workspace) -> None:
    code = "import os\ntry:\n    os.mkdir('v')\n"
    (ws.folder / "v").mkdir()
    seen = observe(ws, ws.program("callable", _with_op(code + "except OSError:\n    pass")))
    assert f"{ws.folder}/v" in seen.whole.looked


def test_searching_for_modules_lists_nothing(ws: Workspace) -> None:
    """A new file beside the program changes nothing unless it has a name that was searched."""
    write_all(ws, {"helper.py": ""})
    assert observe(ws, ws.program("callable", _with_op("import helper"))).listed == set()


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


FOUND = {
    "util": ('u.find_spec("fast")', "fast.py", {"fast.py": ""}),
    "a package": ('u.find_spec("fast")', "fast/__init__.py", {"fast/__init__.py": ""}),
    "within a package": (
        'u.find_spec("pkg.fast")',
        "pkg/fast.py",
        {"pkg/__init__.py": "", "pkg/fast.py": ""},
    ),
    "a namespace": ('u.find_spec("fast")', "fast", {"fast/any.txt": ""}),
    "the finder itself": (
        'PathFinder.find_spec("fast", ["lib"])',
        "lib/fast.py",
        {"lib/fast.py": ""},
    ),
    "a loader": ('pkgutil.get_loader("fast")', "fast.py", {"fast.py": ""}),
}


if sys.version_info >= (3, 14):  # which lacks that function
    del FOUND["a loader"]


@pytest.mark.parametrize("way", FOUND)
@pytest.mark.filterwarnings("ignore:.*get_loader")
def test_a_module_that_is_found_and_not_imported(ws: Workspace, way: str) -> None:
    code, found, files = FOUND[way]
    code = (
        "import pkgutil, importlib.util as u\nfrom importlib.machinery import PathFinder\n"
        f"assert {code}"
    )
    write_all(ws, files)
    seen = observe(ws, ws.program("callable", _with_op(code)))
    root = f"{ws.folder}/"
    looked = {path.removeprefix(root) for path in seen.whole.looked if path.startswith(root)}
    assert found in looked
    assert found not in seen.missed
    first = f"{found.removesuffix('.py')}.so" if found.endswith(".py") else f"{found}.so"
    assert first in seen.missed, "it would be found before"


def test_all_parts_of_a_namespace_package_count(ws: Workspace) -> None:
    write_all(ws, {"a/space/any.txt": "", "b/space/any.txt": ""})
    code = "import sys\nsys.path[:0] = ['a', 'b']\nimport space"
    seen = observe(ws, ws.program("callable", _with_op(code)))
    assert {f"{ws.folder}/{part}/space" for part in "ab"} <= seen.whole.looked


def test_a_module_that_the_finder_itself_does_not_find_is_missed(ws: Workspace) -> None:
    write_all(ws, {"lib/any.txt": ""})
    code = (
        "from importlib.machinery import PathFinder\n"
        "assert PathFinder.find_spec('fast', ['lib', 'none']) is None"
    )
    seen = observe(ws, ws.program("callable", _with_op(code)))
    assert {"lib/fast", "lib/fast.py", "none"} <= seen.missed


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


def test_a_dotted_module(ws: Workspace) -> None:
    write_all(ws, {"pkg/__init__.py": "", "pkg/ops.py": "def op(x): return x"})
    program = Program(
        "callable", root=str(ws.folder), module="pkg.ops", function="op", input_names=("x",)
    )
    assert observe(ws, program).files == {"pkg/__init__.py", "pkg/ops.py"}


@pytest.mark.parametrize("isolation", ["fork", "spawn", "warm"])
def test_a_script_in_the_worker(ws: Workspace, isolation: str) -> None:
    write_all(ws, {"proto.py": PROTOCOL, "helper.py": ""})
    seen = observe(ws, ws.program("script", SCRIPT, isolation=isolation), cases=3)
    assert seen.files == {"program.py", "proto.py", "helper.py"}


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


def test_nothing_new_costs_nothing(ws: Workspace) -> None:
    program = ws.program("callable", "def op(x):\n    if x[0, 0] == 42: open('late')\n    return x")
    ws.write("late", "")
    with ws.pool.session(program) as session:
        session.call(make_case(0))
        first = session.observed()
        session.call(make_case(1))
        assert session.observed() is first
        session.call(marked_case(2))
        assert below(ws, session.observed()).files == {"program.py", "late"}


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


def test_runs_and_jobs_tell_at_their_end(ws: Workspace) -> None:
    program = ws.program("callable", "import helper\ndef op(x): return x")
    write_all(ws, {"helper.py": ""})
    seen: list[Seen] = []
    ws.pool.run(
        program, [Request(make_case(0))], checks=Checks(), publish=ws.publish,
        on_observed=lambda observation: seen.append(below(ws, observation)),
    )  # fmt: skip
    assert [s.files for s in seen] == [{"program.py", "helper.py"}]


def test_children_that_are_forked_report(ws: Workspace) -> None:
    source = """
    import os
    def op(x):
        pid = os.fork()
        if not pid:
            open("inherited").close()
            os._exit(0)
        os.waitpid(pid, 0)
        return x
    """
    ws.write("inherited", "")
    assert observe(ws, ws.program("callable", source)).files == {"program.py", "inherited"}


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


def test_a_source_transformation_changes_nothing(tmp_path: Path) -> None:
    with workspace(tmp_path) as ws:
        write_all(ws, {"helper.py": "import numpy as np\nT = np.float64\n"})
        program = ws.program("callable", "import helper\ndef op(x): return x", shadow=True)
        assert observe(ws, program).files == {"program.py", "helper.py"}


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
