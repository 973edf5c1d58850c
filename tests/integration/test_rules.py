"""Rules: what makes their commands run, what comes from the store, and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from built_workspace import ALL, MAKE, OUTPUT, make_built, slugs
from mini_workspace import Mini
from once import once

from gpuemu_flow.config.load import check_config
from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import landlock_version

fenced = pytest.mark.skipif(
    not landlock_version(system_level()), reason="the system has no Landlock"
)
MOVED = {"build:table", "op:it:float32", "compare:it:float32", "diff:it"}


@pytest.fixture
def built(tmp_path: Path) -> Mini:
    return make_built(tmp_path / "built")


@pytest.fixture(scope="module")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace after its first run; only to be copied."""

    def make(folder: Path) -> Path:
        make_built(folder).run()
        return folder

    return once(tmp_path_factory, "rules", make)


@pytest.fixture
def checked(built_once: Path, tmp_path: Path) -> Mini:
    """A workspace whose first run is over, to be changed by one test."""
    shutil.copytree(built_once, tmp_path / "built", copy_function=shutil.copy2)
    return Mini(tmp_path / "built", warm=True)


def test_a_copy_with_its_cache_runs_nothing(checked: Mini) -> None:
    assert checked.run()["executed"] == []


def test_the_rule_runs_before_the_op_and_once(built: Mini) -> None:
    first = built.run()
    assert first["executed"] == ["build:table", *sorted(first["executed"][1:], key=_order)]
    assert set(first["executed"]) == {"build:table", *ALL, "diff:it"}
    assert first["results"][0]["verdict"] == "passed"
    assert (built.root / OUTPUT).read_text() == "3"
    assert built.run()["executed"] == []
    assert built.command("run").stdout.startswith("up to date")


def _order(task: str) -> int:
    stages = ("generate", "op", "reference", "compare", "diff")
    return stages.index(task.partition(":")[0])


def _add(built: Mini) -> None:
    built.write("src/deep/c.txt", "4\n")


def _delete(built: Mini) -> None:
    (built.root / "src/b.txt").unlink()


EDITS: dict[str, tuple[Callable[[Mini], object], set[str]]] = {
    "an input": (lambda w: w.write("src/a.txt", "5\n"), MOVED),
    "an input that gives the same": (lambda w: w.write("src/a.txt", "# one\n1\n"), {"build:table"}),
    "an input that appears": (_add, MOVED),
    "an input that goes": (_delete, MOVED),
    "the command": (
        lambda w: w.edit("gpuemu.toml", '"make.py"]', '"make.py", "again"]'),
        {"build:table"},
    ),
    "a script that the command names": (
        lambda w: w.write("make.py", MAKE.replace("sum(", "2 * sum(")),
        MOVED,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_runs_what_depends_on_it(checked: Mini, name: str) -> None:
    edit, executed = EDITS[name]
    before = {p: p.read_bytes() for p in checked.root.rglob("*") if p.is_file() and _own(p)}
    edit(checked)
    found = checked.run(code=None)
    assert set(found["executed"]) == executed
    assert checked.run(code=None)["executed"] == []
    if name != "an input":
        return
    for path in checked.root.rglob("*"):  # back again: the store has all of it
        if path.is_file() and _own(path) and path not in before:
            path.unlink()
    for path, data in before.items():
        path.write_bytes(data)
    assert not {"build:table", "op:it:float32"} & set(checked.run()["executed"])
    assert (checked.root / OUTPUT).read_text() == "3"


def _own(path: Path) -> bool:
    return not {".gpuemu-cache", "build", "home", "__pycache__"} & set(path.parts)


TOUCHED: dict[str, Callable[[Path], object]] = {
    "edited": lambda path: path.write_text("7"),
    "deleted": lambda path: path.unlink(),
    "with its folder": lambda path: shutil.rmtree(path.parent),
    "made a program": lambda path: path.chmod(0o755),
    "made a link": lambda path: (path.rename(path.with_name("x")), path.symlink_to("x")),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "edited" else pytest.mark.ci) for n in TOUCHED],
)
def test_an_output_that_somebody_touched_is_put_back(checked: Mini, name: str) -> None:
    path = checked.root / OUTPUT
    TOUCHED[name](path)
    explained = json.loads(checked.command("explain", "build:table", "--format", "json").stdout)
    if name != "made a link":
        assert not explained["tasks"][0]["current"]
        assert f"output.{OUTPUT}" in json.dumps(explained)
    found = checked.run()
    assert found["executed"] == []
    assert path.read_text() == "3"
    if name != "made a link":
        assert not path.is_symlink()
        assert not path.stat().st_mode & stat.S_IXUSR


def test_a_damaged_copy_in_the_store_is_not_used(checked: Mini) -> None:
    (checked.root / OUTPUT).unlink()
    for blob in (checked.root / ".gpuemu-cache" / "blobs").rglob("*.safetensors"):
        if blob.read_bytes() == b"3":
            blob.chmod(0o600)
            blob.write_bytes(b"4")
    found = checked.run()
    assert found["executed"] == ["build:table"]
    assert (checked.root / OUTPUT).read_text() == "3"


def test_an_input_that_can_no_longer_be_executed_runs_the_rule_again(built: Mini) -> None:
    tool = built.write("src/tool.txt", "#!/bin/sh\n")
    tool.chmod(0o755)
    built.edit("make.py", "from pathlib import Path", "import os\nfrom pathlib import Path")
    built.write("make.py", (built.root / "make.py").read_text() + CHECK)
    built.run()
    assert "up to date" in built.command("run").stdout
    tool.chmod(0o644)
    found = built.run(code=3)
    assert [problem["slug"] for problem in found["problems"]][:1] == ["build-failed"]


CHECK = 'assert os.access("src/tool.txt", os.X_OK)\n'


def test_a_file_in_a_linked_folder_is_an_input_of_two_stars(built: Mini) -> None:
    built.write("other/c.txt", "0\n")
    (built.root / "src/link").symlink_to("../other")
    built.edit("make.py", 'Path("src").rglob("*.txt")', 'Path("src/link").glob("*.txt")')
    built.write("ops/it_ref.py", "def it(x):\n    return x * 0\n")
    built.run()
    assert "up to date" in built.command("run").stdout
    built.write("other/c.txt", "1\n")
    assert "build:table" in built.run(code=None)["executed"]


def test_another_program_on_path_runs_the_rule_again(built: Mini, tmp_path: Path) -> None:
    built.edit("gpuemu.toml", f'"{sys.executable}", "make.py"', '"maketable"')
    script = "#!/bin/sh\necho {} > build/factor.txt\n"
    for folder, number in (("one", 3), ("two", 3)):
        tool = built.write(f"../{folder}/maketable", script.format(number) + f"# {folder}\n")
        tool.chmod(0o755)
    places = [str(tmp_path / "empty"), str(tmp_path / "two"), "/usr/bin", "/bin"]
    built.env["PATH"] = ":".join(places)
    assert "build:table" in built.run()["executed"]
    assert built.run()["executed"] == []
    (tmp_path / "empty").mkdir()
    shutil.copy(tmp_path / "one" / "maketable", tmp_path / "empty" / "maketable")
    assert built.run()["executed"] == ["build:table"]


def test_another_program_of_the_workspace_runs_the_rule_again(built: Mini) -> None:
    built.edit("gpuemu.toml", f'"{sys.executable}", "make.py"', '"./maketable"')
    tool = built.write("maketable", "#!/bin/sh\necho 3 > build/factor.txt\n")
    tool.chmod(0o755)
    assert "build:table" in built.run()["executed"]
    assert built.run()["executed"] == []
    tool.write_text(tool.read_text() + "# the same\n")
    assert built.run()["executed"] == ["build:table"]


def test_a_variable_that_reaches_the_command_runs_it_again(built: Mini) -> None:
    built.run()
    built.env["CC"] = "another"
    assert "build:table" in built.run()["executed"]
    built.env["UNRELATED"] = "another"
    assert built.run()["executed"] == []


def test_an_input_that_changes_meanwhile_is_noticed(built: Mini) -> None:
    meanwhile = 'p = Path("src/a.txt"); p.write_text("9"); p.write_text("1\\n")\n'
    built.write("make.py", MAKE.replace("lines =", f"{meanwhile}lines ="))
    built.edit("gpuemu.toml", "[[rules]]", '[sandbox]\nwritable = ["src"]\n[[rules]]')
    found = built.run(code=3)
    assert "sources-changing" in slugs(found)
    assert "op:it:float32" not in found["executed"]


def test_what_is_not_declared_is_told_until_it_is(built: Mini) -> None:
    built.write("make.py", MAKE + 'Path("build/more.o").write_text("x")\n')
    for _ in range(2):
        found = built.run()
        (problem,) = [p for p in found["problems"] if p["slug"] == "rule-undeclared-output"]
        assert "build/more.o" in problem["message"]
        assert problem["file"] == "gpuemu.toml"
    assert "build/more.o" in built.command("run").stdout  # the short answer, too
    built.edit("gpuemu.toml", f'["{OUTPUT}"]', f'["{OUTPUT}", "build/more.o"]')
    assert slugs(built.run()) == []


def test_a_promise_that_is_not_kept_is_an_error(checked: Mini) -> None:
    checked.write("make.py", "")
    found = checked.run(code=3)
    (problem,) = [p for p in found["problems"] if p["slug"] == "rule-output-missing"]
    assert (problem["file"], problem["line"]) == ("gpuemu.toml", 8)
    assert found["results"][0]["verdict"] == "error"  # an old output does not pass for a new one
    assert not (checked.root / OUTPUT).exists()
    assert checked.run("build:table", code=3)["executed"] == []


def test_a_command_that_fails_says_why(built: Mini) -> None:
    built.write("make.py", 'raise SystemExit("no such luck")')
    found = built.run(code=3)
    (problem,) = [p for p in found["problems"] if p["slug"] == "build-failed"]
    assert "no such luck" in problem["message"]
    built.edit("gpuemu.toml", f'"{sys.executable}", "make.py"', '"no-such-program"')
    (problem,) = [p for p in built.run(code=3)["problems"] if p["slug"] == "build-failed"]
    assert "no-such-program" in problem["message"]


def test_a_command_that_takes_too_long_is_ended(built: Mini) -> None:
    built.write("make.py", "import threading\nthreading.Event().wait()\n")
    built.edit("gpuemu.toml", 'outputs = ["build/', 'timeout = 0.5\noutputs = ["build/')
    (problem,) = [p for p in built.run(code=3)["problems"] if p["slug"] == "build-failed"]
    assert "timeout" in problem["hint"]
    built.write("make.py", MAKE)
    built.edit("gpuemu.toml", "timeout = 0.5", "timeout = 600")
    assert built.run()["results"][0]["verdict"] == "passed"
    built.edit("gpuemu.toml", "timeout = 600", "timeout = 500")
    assert built.run()["executed"] == []


DEEDS = {
    "writes an op": 'Path("ops/it.py").write_text("secret")',
    "writes the configuration": 'Path("gpuemu.toml").write_text("secret")',
    "writes elsewhere": 'Path("src/other.txt").write_text("secret")',
    "reads the reference": 'Path("ops/it_ref.py").read_text()',
    "reads the cache": 'next(Path(".gpuemu-cache").glob("state/*")).read_bytes()',
}


@fenced
@pytest.mark.parametrize("name", DEEDS)
def test_a_command_stays_behind_the_fence(built: Mini, name: str) -> None:
    built.command("run", "generate", code=4)
    built.write("make.py", MAKE + DEEDS[name])
    found = built.run(code=3)
    (problem,) = [p for p in found["problems"] if p["slug"] == "build-failed"]
    assert "Permission denied" in problem["message"]
    assert "writable" in problem["hint"]
    assert not [p for p in built.root.rglob("*") if p.is_file() and p.read_bytes() == b"secret"]


def test_a_folder_that_becomes_a_link_is_not_followed(checked: Mini, tmp_path: Path) -> None:
    shutil.rmtree(checked.root / "build")
    (tmp_path / "outside").mkdir()
    (checked.root / "build").symlink_to(tmp_path / "outside")
    done = checked.command("run", code=None)
    assert done.returncode in (2, 3)
    assert "outside of" in done.stdout + done.stderr or "out of the" in done.stdout + done.stderr
    assert not list((tmp_path / "outside").iterdir())


def test_builds_alone_end_well(built: Mini) -> None:
    assert built.run("build:table")["executed"] == ["build:table"]
    assert built.command("run", "table").stdout.startswith("built")
    assert built.command("run", "build").returncode == 0
    built.edit("gpuemu.toml", "[[rules]]", '[targets]\nmade = ["build:table"]\n[[rules]]')
    built.command("run", "made")
    built.command("run", "generate:it", code=4)  # checks nothing, and is no build


def test_the_commands_know_the_task(built: Mini) -> None:
    assert "build:table" in built.command("list").stdout.splitlines()
    assert "op:it:float32 <- generate:it:float32, build:table" in built.command("graph").stdout
    assert "never finished" in built.command("explain", "build:table").stdout
    built.run()
    assert "is current" in built.command("explain", "build:table").stdout
    assert "6: 6 current" in built.command("status").stdout
    assert "forgot 1 tasks" in built.command("clean", "build:table").stdout
    assert built.run()["executed"] == []  # restored


def test_until_stops_at_a_task(built: Mini) -> None:
    assert set(built.run("--until", "op:it", code=4)["executed"]) == {
        "build:table",
        "generate:it:float32",
        "op:it:float32",
    }
    built.command("run", "--until", "op:none", code=2)
    assert built.command("run", "--until", "build:table").stdout.startswith("built")
    assert not built.command("run").stdout.startswith("up to date")


def test_a_forced_task_and_what_depends_on_it_run(checked: Mini) -> None:
    reference = "reference:it:float32"
    assert set(checked.run("--forcerun", "build:table")["executed"]) == {*MOVED, reference}
    assert set(checked.run("--forcerun", "compare:it")["executed"]) == {
        "compare:it:float32",
        "diff:it",
    }
    planned = checked.command("run", "-n", "--forcerun", "diff:it").stdout
    assert planned.splitlines()[0] == "diff:it"
    assert "reference:it" not in planned
    assert checked.command("run").stdout.startswith("up to date")


def test_a_number_of_cases_is_for_one_run(built: Mini) -> None:
    assert built.run("--cases", "5")["results"][0]["cases"] == 5
    assert not built.command("run").stdout.startswith("up to date")
    assert built.run()["results"][0]["cases"] == 3


def test_fuzz_builds_first(built: Mini) -> None:
    built.command("fuzz", "it", "-n", "4")
    assert (built.root / OUTPUT).read_text() == "3"
    built.write("src/a.txt", "5\n")
    built.command("fuzz", "it", "-n", "4", code=1)


def test_rules_go_in_the_order_of_their_files(built: Mini) -> None:
    chained = """
        [[rules]]
        name = "copy"
        command = ["cp", "build/factor.txt", "bin/factor.txt"]
        inputs = ["build/*.txt"]
        outputs = ["bin/factor.txt"]

        [[rules]]
        name = "again"
        command = "cat bin/factor.txt > last/factor.txt && echo >> last/factor.txt"
        shell = true
        needs = ["copy"]
        outputs = ["last/factor.txt"]

        [[ops]]"""
    built.edit("gpuemu.toml", "[[ops]]", "\n".join(map(str.strip, chained.splitlines())))
    built.edit("gpuemu.toml", '["table"]', '["again"]')
    built.edit("ops/it.py", '"build"', '"last"')
    first = built.run()["executed"]
    assert [n for n in first if n.startswith("build:")] == [
        "build:table",
        "build:copy",
        "build:again",
    ]
    built.write("src/a.txt", "# same\n1\n")
    assert built.run()["executed"] == ["build:table"]
    built.write("src/a.txt", "2\n")
    assert {"build:table", "build:copy", "build:again", "op:it:float32"} <= set(
        built.run(code=1)["executed"]
    )


PROGRAM = """
#!{python}
import base64, json, sys
import numpy as np

x = json.load(sys.stdin)["inputs"]["x"]
y = np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"]) * {factor}
data = base64.b64encode(y.astype(x["dtype"]).tobytes()).decode()
print(json.dumps({{"shape": list(y.shape), "dtype": x["dtype"], "data": data}}))
"""


@pytest.mark.ci
def test_an_op_builds_its_own_program(built: Mini) -> None:
    build = (
        'build = { command = ["install", "-m", "755", "src/program.py", "bin/it"], '
        'inputs = ["src/program.py"], outputs = ["bin/it"] }'
    )
    built.edit("gpuemu.toml", 'op = "ops/it.py:it"', f'op = "bin/it"\n{build}')
    built.edit("gpuemu.toml", 'needs = ["table"]\n', "")
    built.write("src/program.py", PROGRAM.format(python=sys.executable, factor=3).lstrip())
    built.command("config", "check")  # before the program is there
    found = built.run("it")
    assert found["executed"][0] == "build:it"
    assert found["results"][0]["verdict"] == "passed"
    (built.root / "bin/it").chmod(0o644)
    assert built.run("it")["executed"] == []
    assert os.access(built.root / "bin/it", os.X_OK)
    built.write("src/program.py", PROGRAM.format(python=sys.executable, factor=4).lstrip())
    again = built.run("it", code=1)
    assert {"build:it", "op:it:float32"} <= set(again["executed"])
    assert "reference:it:float32" not in again["executed"]


@pytest.mark.skipif(not (shutil.which("make") and shutil.which("cc")), reason="no make or no cc")
def test_a_library_is_built_by_make(built: Mini) -> None:
    built.edit(
        "gpuemu.toml", f'"{sys.executable}", "make.py"', '"make", "-C", "csrc", "../build/it.so"'
    )
    built.edit("gpuemu.toml", "src/**/*.txt", "csrc/*")
    built.edit("gpuemu.toml", OUTPUT, "build/it.so")
    code = "void it(const float *x, float *y, long n) {{ while (n--) y[n] = x[n] * {}; }}\n"
    built.write("csrc/it.c", code.format(3))
    built.write("csrc/Makefile", "../build/it.so: it.c\n\tcc -shared -fPIC -o $@ it.c\n")
    built.write(
        "ops/it.py",
        """
        import ctypes
        from pathlib import Path
        import numpy as np

        LIBRARY = ctypes.CDLL(str(Path(__file__).parent.parent / "build" / "it.so"))

        def it(x):
            x, y = np.ascontiguousarray(x), np.empty_like(x, order="C")
            to = ctypes.c_void_p
            LIBRARY.it(to(x.ctypes.data), to(y.ctypes.data), ctypes.c_long(x.size))
            return y
        """,
    )
    assert built.run()["results"][0]["verdict"] == "passed"
    built.write("csrc/it.c", "/* a comment */ " + code.format(3))
    assert built.run()["executed"] == ["build:table"]
    built.write("csrc/it.c", code.format(4))
    assert set(built.run(code=1)["executed"]) == MOVED
    os.utime(built.root / "csrc/it.c", (0, 0))  # older than its output: make alone would do nothing
    built.write("csrc/it.c", code.format(3))
    os.utime(built.root / "csrc/it.c", (0, 0))
    assert built.run()["results"][0]["verdict"] == "passed"


FILES = {
    "csrc/relu6.c": "int relu6;\n",
    "csrc/Makefile": "all:\n",
    "scripts/relu6.py": "def relu6(x):\n    return x\n",
    "scripts/relu6_ref.py": "def relu6(x):\n    return x\n",
    "scripts/mm.py": "def multiply(a, b, tile, order):\n    return a @ b\n",
    "scripts/mm_ref.py": "def multiply(a, b, tile, order):\n    return a @ b\n",
    "ops/one.toml": "",
    "candidates/fast.py": "def softmax(x):\n    return x\n",
    "softmax_ref.py": "def softmax(x):\n    return x\n",
    "adapter.py": "def load(path):\n    return abs\n",
}
PROJECT = '[project]\nname = "page"\n'
TEMPLATE = """[[ops]]
name = "softmax/{candidate}"
foreach.candidate = { files = "candidates/*.py" }
reference = "softmax_ref.py:softmax"
"""
PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def test_the_examples_of_the_page_are_sound(tmp_path: Path) -> None:
    found = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(found) == 8
    for number, block in enumerate(found):
        page = Mini(tmp_path / str(number))
        for path, text in FILES.items():
            page.write(path, text)
        if block.startswith("include"):
            config = block + PROJECT
        elif block.startswith("name"):
            programs = 'op = "scripts/mm.py:multiply"\nreference = "scripts/mm_ref.py:multiply"\n'
            names = 'input_names = ["a", "b"]\n'
            config = PROJECT + "[[ops]]\n" + block + programs + names
        elif block.startswith("[ops.op]"):
            config = PROJECT + TEMPLATE + block
        else:
            config = PROJECT + block
        assert check_config(page.write("gpuemu.toml", config), strict=True) == [], block
