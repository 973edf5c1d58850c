"""The pytest plugin, in pytest processes of its own: items, verdicts, seeds, reports, records."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.failures import list_failures

CONFIG = """
[project]
name = "tested"

[validation]
dtypes = ["float32", "float16"]
cases = 3
seed = 42

[[ops]]
name = "double"
reference = "ref.py:double"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "pair"
reference = "ref.py:pair"
input_names = ["a", "b"]
execution_mode = "client_side"
[ops.schema]
dims = { N = [1, 5, 8] }
inputs = { a = ["N"], b = ["N"] }
outputs = { total = ["N"], gap = ["N"] }

[[ops]]
name = "sum"
reference = "ref.py:total"
input_names = ["x"]
execution_mode = "client_side"
schema = { dims = { N = 4000 }, inputs = { x = ["N"] }, output = [] }
"""
REFERENCE = """
import numpy as np

def double(x):
    return x * 2

def pair(a, b):
    return a + b, a - b

def total(x):
    return x.astype(np.float64).sum().astype(x.dtype)
"""


@dataclass
class Ran:
    """What a pytest process said."""

    code: int
    text: str
    folder: Path

    @property
    def counts(self) -> dict[str, int]:
        found = re.findall(r"(\d+) (passed|failed|skipped|error)s?", self.text.splitlines()[-1])
        return {word: int(number) for number, word in found}

    @property
    def junit(self) -> list[ElementTree.Element]:
        return list(ElementTree.parse(self.folder / "junit.xml").iter("testcase"))


class Place:
    """A workspace with tests in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gpuemu.toml").write_text(CONFIG)
        (folder / "ref.py").write_text(REFERENCE)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "PYTEST"))}
        self.environ = {**kept, "HOME": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def pytest(self, tests: str, *arguments: str, name: str = "test_ops.py") -> Ran:
        (self.folder / name).write_text("import pytest\n" + dedent(tests))
        return self.again(name, *arguments)

    def again(self, *arguments: str) -> Ran:
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-p", "gpuemu_flow.pytest_plugin",
                "-p", "no:cacheprovider", "--junit-xml", "junit.xml", "-rA", *arguments,
            ],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout + done.stderr, self.folder)

    def failures(self) -> list[dict[str, Any]]:
        workspace = Workspace(self.folder, environ=self.environ)
        try:
            return list_failures(workspace)
        finally:
            workspace.cache.close()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", *arguments],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip


@pytest.fixture
def tested(tmp_path: Path) -> Place:
    return Place(tmp_path)


def properties(case: ElementTree.Element) -> dict[str, str]:
    return {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}


def test_an_item_per_case_with_its_figures(tested: Place) -> None:
    ran = tested.pytest(
        '''
        @pytest.mark.gpuemu("double", cases=4)
        def test_double(gpuemu_case):
            x = gpuemu_case["x"]
            assert list(gpuemu_case) == ["x"] and len(gpuemu_case) == 1
            assert x.shape == gpuemu_case.shape == gpuemu_case.shapes["x"]
            assert x.dtype.name == gpuemu_case.dtype
            assert gpuemu_case.layout and gpuemu_case.strategy and gpuemu_case.index < 4
            with pytest.raises(KeyError, match="the inputs of double are x"):
                gpuemu_case["y"]
            assert gpuemu_case.check(x + x).verdict == "passed"

        @pytest.mark.gpuemu("pair", dtypes=["f32"], layouts=["contiguous"], strategies=["normal"])
        @pytest.mark.parametrize("swapped", [False, True])
        def test_pair(gpuemu_case, swapped):
            a, b = gpuemu_case.inputs.values()
            assert gpuemu_case.strategy == "normal" and set(gpuemu_case.dims) == {"N"}
            gpuemu_case.check({"gap": a - b, "total": a + b} if swapped else (a + b, a - b))

        @pytest.mark.gpuemu("sum", cases=2, dtypes=["float32"], strategies=["uniform"])
        def test_sum(gpuemu_case):
            """Judged as run does: the auto tolerance lets a float32 sum be one."""
            import numpy as np

            gpuemu_case.check(np.add.accumulate(gpuemu_case["x"])[-1])
        '''
    )
    assert ran.code == 0, ran.text
    assert ran.counts == {"passed": 2 * 4 + 2 * 3 + 2}
    names = [case.attrib["name"] for case in ran.junit]
    assert names[:5] == [
        *(f"test_double[double-float32-{n}]" for n in range(4)), "test_double[double-float16-0]",
    ]  # fmt: skip
    first = properties(ran.junit[0])
    assert first.pop("gpuemu_seed").isdecimal()
    assert float(first.pop("gpuemu_tolerance_used")) == 0
    assert first == {
        "gpuemu_op": "double", "gpuemu_dtype": "float32", "gpuemu_shape": "2x65x3",
        "gpuemu_master_seed": "42", "gpuemu_verdict": "passed", "gpuemu_unjudged": "0",
    }  # fmt: skip
    assert not (tested.folder / ".gpuemu-cache" / "failures").exists()


WRONG = """
def wrong(x):
    y = x * 2
    y.reshape(-1)[3] += 1
    return y

@pytest.mark.gpuemu("double", cases=4, dtypes=["float32"])
def test_double(gpuemu_case):
    x = gpuemu_case["x"]
    gpuemu_case.check(wrong(x) if gpuemu_case.index > 1 else x * 2)
"""


def test_a_failure_names_its_seed_and_is_recorded(tested: Place) -> None:
    ran = tested.pytest(WRONG, "--gpuemu-seed", "7")
    assert ran.code == 1
    assert ran.counts == {"passed": 2, "failed": 2}
    failed = next(case for case in ran.junit if case.find("failure") is not None)
    figures = properties(failed)
    assert (figures["gpuemu_verdict"], figures["gpuemu_master_seed"]) == ("failed", "7")
    assert float(figures["gpuemu_tolerance_used"]) > 1
    text = failed.find("failure").text or ""  # type: ignore[union-attr]
    assert f"seed {figures['gpuemu_seed']}" in text
    assert "ToleranceExceeded" in text
    (again,) = re.findall(r"again: (pytest .*)", text)
    test = f"test_ops.py::{failed.attrib['name']}"
    assert again == f"pytest '{test}' --gpuemu-seed 7"
    (failure,) = re.findall(r"recorded: gpuemu-flow failures show (\w+)", text)

    (record,) = (r for r in tested.failures() if r.id == failure)
    assert (record.source, record.op) == ("pytest", "double")
    assert str(record.seed) == figures["gpuemu_seed"]
    reproduced = tested.command("reproduce", failure)
    assert reproduced.returncode == 2
    assert "failure-not-runnable" in reproduced.stderr
    assert again in reproduced.stderr

    alone = tested.again(test, "--gpuemu-seed", "7")
    assert alone.counts == {"failed": 1}
    assert properties(alone.junit[0])["gpuemu_seed"] == figures["gpuemu_seed"], "the same case"
    assert len(tested.failures()) == 2, "seen twice, kept once"


def test_what_goes_wrong_in_a_test_is_a_failure_of_its_case(tested: Place) -> None:
    ran = tested.pytest(
        """
        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_raises(gpuemu_case):
            raise ZeroDivisionError("in the kernel")

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_checks_nothing(gpuemu_case):
            pass

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_changes_its_input(gpuemu_case):
            x = gpuemu_case["x"]
            x *= 2
            gpuemu_case.check(x)

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_wrong_dtype(gpuemu_case):
            gpuemu_case.check((gpuemu_case["x"] * 2).astype("float64").astype("int32"))

        @pytest.mark.gpuemu("pair", cases=1, dtypes=["float32"])
        def test_too_many(gpuemu_case):
            gpuemu_case.check((1, 2, 3))

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_own_tolerance(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2 + 1, atol=1.5)

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_skips(gpuemu_case):
            pytest.skip("not on this GPU")
        """
    )
    assert ran.counts == {"failed": 5, "passed": 1, "skipped": 1}, ran.text
    texts = {
        case.attrib["name"].partition("[")[0]: (case.find("failure").text or "")  # type: ignore[union-attr]
        for case in ran.junit
        if case.find("failure") is not None
    }
    assert "ZeroDivisionError" in texts["test_raises"]
    assert "pytest-nothing-checked" in texts["test_checks_nothing"]
    assert "InputModified" in texts["test_changes_its_input"]
    assert "DTypeMismatch" in texts["test_wrong_dtype"]
    assert "pytest-bad-output" in texts["test_too_many"]
    assert "gpuemu case" in ran.text and "--gpuemu-seed 42" in ran.text
    found = tested.failures()
    kinds = sorted(failure.kind for failure in found)
    assert kinds == ["DTypeMismatch", "ExecutionError", "InputModified"], "not what we refused"


def test_one_item_for_a_whole_op(tested: Place) -> None:
    ran = tested.pytest(
        """
        @pytest.mark.gpuemu("double", cases=6, per="op")
        def test_double(gpuemu_case, tmp_path):
            x = gpuemu_case["x"]
            if gpuemu_case.dtype == "float16":
                if gpuemu_case.index == 2:
                    raise RuntimeError("launch failed")
                x = x * (1 + (gpuemu_case.index == 4))
            gpuemu_case.check(x + x)

        @pytest.mark.gpuemu("double", cases=2, per="op", dtypes=["float32"])
        def test_nothing(gpuemu_case):
            pass
        """
    )
    assert ran.counts == {"passed": 1, "failed": 2}, ran.text
    passed, failed, nothing = ran.junit
    assert passed.attrib["name"] == "test_double[double-float32]"
    figures = properties(passed)
    assert (figures["gpuemu_cases"], figures["gpuemu_passed"]) == ("6", "6")
    text = failed.find("failure").text or ""  # type: ignore[union-attr]
    assert text.startswith("2 of 6 cases failed")
    assert "case 2: float16" in text and "RuntimeError: launch failed" in text
    assert "case 4: float16" in text and "ToleranceExceeded" in text
    assert properties(failed)["gpuemu_failed"] == "2"
    assert "pytest-nothing-checked" in (nothing.find("failure").text or "")  # type: ignore[union-attr]


SWALLOWED = """
import concurrent.futures, threading

def judge(case, out):
    case.check(out, **({"atol": 0.0} if case.dtype == "float32" else {}))

def swallow(case, way, op):
    x = case["x"]
    if way == "thread":
        thread = threading.Thread(target=judge, args=(case, op(x)))
        thread.start()
        thread.join()
    elif way == "future":
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for _ in range(4):
                pool.submit(judge, case, op(x))
    elif way == "refused":
        judge(case, x * 2)
        try:
            case.check("no output")
        except BaseException:
            pass
    else:
        try:
            judge(case, op(x))
        except Exception:
            if way == "skip":
                pytest.skip("does not work here")
        if way == "then_right":
            judge(case, x * 2)
"""


@pytest.mark.parametrize("per", ["case", "op"])
def test_a_failed_check_fails_the_test_whatever_becomes_of_the_exception(
    tested: Place, per: str
) -> None:
    ways = ["thread", "future", "except", "skip", "then_right", "refused"]
    ran = tested.pytest(
        SWALLOWED
        + f"""
@pytest.mark.parametrize("way", {ways})
@pytest.mark.gpuemu("double", cases=1, dtypes=["float32"], per="{per}")
def test_wrong(gpuemu_case, way):
    swallow(gpuemu_case, way, lambda x: x * 2 + 1)

@pytest.mark.parametrize("way", {ways[:-1]})
@pytest.mark.gpuemu("double", cases=1, dtypes=["float16"], per="{per}")
def test_right(gpuemu_case, way):
    swallow(gpuemu_case, way, lambda x: x * 2)

@pytest.mark.xfail(reason="known", strict=True)
@pytest.mark.gpuemu("double", cases=1, dtypes=["float32"], per="{per}")
def test_expected(gpuemu_case):
    swallow(gpuemu_case, "except", lambda x: x * 2 + 1)
""",
        "-W", "ignore",
    )  # fmt: skip
    assert ran.counts == {"passed": len(ways) - 1, "failed": len(ways)}, ran.text
    assert "1 xfailed" in ran.text
    failed = [case for case in ran.junit if case.find("failure") is not None]
    assert {properties(case)["gpuemu_verdict"] for case in failed[:5]} == {"failed"}
    text = failed[0].find("failure").text or ""  # type: ignore[union-attr]
    assert "ToleranceExceeded" in text and "gpuemu-flow failures show" in text


def test_a_check_that_fails_after_the_test_has_ended_is_an_error(tested: Place) -> None:
    """The thread waits for the test's report, the fixture's end for the thread's check."""
    (tested.folder / "conftest.py").write_text(
        dedent(
            """
            import threading
            import pytest

            reported, judged = threading.Event(), threading.Event()

            @pytest.hookimpl(trylast=True)
            def pytest_runtest_logreport(report):
                if report.when == "call":
                    reported.set()
                    judged.wait(100)
            """
        )
    )
    ran = tested.pytest(
        """
        import threading
        from conftest import judged, reported

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_double(gpuemu_case):
            def late():
                reported.wait(100)
                try:
                    gpuemu_case.check(gpuemu_case["x"] + 1)
                finally:
                    judged.set()

            threading.Thread(target=late).start()
            gpuemu_case.check(gpuemu_case["x"] * 2)
        """,
        "-W", "ignore",
    )  # fmt: skip
    assert (ran.code, ran.counts) == (1, {"passed": 1, "error": 1}), ran.text
    assert "ToleranceExceeded" in ran.text


def test_nothing_judged_in_a_thread_is_no_pass(tested: Place) -> None:
    (tested.folder / "ref.py").write_text(REFERENCE.replace("x * 2", "x * np.nan"))
    ran = tested.pytest(
        """
        import threading

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"], strategies=["normal"])
        def test_double(gpuemu_case):
            given = (gpuemu_case["x"] * float("nan"),)
            thread = threading.Thread(target=gpuemu_case.check, args=given)
            thread.start()
            thread.join()
        """,
        "-W", "ignore",
    )  # fmt: skip
    assert ran.counts == {"skipped": 1}, ran.text


def test_workers_of_xdist_agree(tested: Place) -> None:
    pytest.importorskip("xdist")
    config = (tested.folder / "gpuemu.toml").read_text()
    (tested.folder / "gpuemu.toml").write_text(config.replace("seed = 42", "seed = 0"))
    ran = tested.pytest(
        """
        @pytest.mark.gpuemu("double", cases=5)
        def test_double(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * (1 + (gpuemu_case.index != 4)))
        """,
        "-p", "xdist", "-n2",
    )  # fmt: skip
    assert ran.counts == {"passed": 8, "failed": 2}, ran.text
    seeds = {properties(case)["gpuemu_master_seed"] for case in ran.junit}
    assert len(seeds) == 1, "drawn anew for each run, and alike in all workers"
    assert {f.dtype for f in tested.failures()} == {"float32", "float16"}


def test_a_forked_process_judges_by_programs_of_its_own(tested: Place) -> None:
    ran = tested.pytest(
        """
        import os

        @pytest.mark.gpuemu("double", cases=3)
        def test_double(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2)
            child = os.fork()
            if not child:
                code = 3
                try:
                    code = 0 if gpuemu_case.check(gpuemu_case["x"] * 2) else 4
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            gpuemu_case.check(gpuemu_case["x"] * 2)
        """
    )
    assert ran.counts == {"passed": 6}, ran.text


def test_options_choose(tested: Place) -> None:
    tests = """
        @pytest.mark.gpuemu("double", cases=9, seed=5)
        def test_double(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2)
        """
    ran = tested.pytest(tests, "--gpuemu-cases", "2", "--gpuemu-dtype", "half")
    assert [case.attrib["name"] for case in ran.junit] == [
        "test_double[double-float16-0]", "test_double[double-float16-1]",
    ]  # fmt: skip
    assert properties(ran.junit[0])["gpuemu_master_seed"] == "5"
    folder = tested.folder / "elsewhere"
    folder.mkdir()
    (tested.folder / "gpuemu.toml").rename(folder / "kernels.toml")
    (tested.folder / "ref.py").rename(folder / "ref.py")
    (tested.folder / "pytest.ini").write_text("[pytest]\ngpuemu_config = elsewhere/kernels.toml\n")
    assert tested.again("--gpuemu-cases", "1").counts == {"passed": 2}
    ran = tested.again("--gpuemu-config", "nowhere.toml")
    assert "config-not-found" in ran.text and not ran.counts.get("passed")


WRONG_MARKS = {
    '"duoble"': "unknown-op: no op 'duoble'; did you mean 'double'?",
    "": "pytest-bad-mark: the gpuemu mark: it names no op",
    '"double", case=3': "it has no argument 'case'; did you mean 'cases'?",
    '"double", cases=0': "pytest-bad-number: cases must be an integer from 1",
    '"double", dtypes=["float23"]': "unknown-dtype: there is no dtype 'float23'; did you",
    '"double", per="file"': """per='file'; per="case" or per="op\"""",
    '"double", layouts=3': "layouts must be a list of names",
    '"double", layouts=["diagonal"]': "unknown-layout: there is no layout 'diagonal'",
}


def test_marks_that_are_wrong(tested: Place) -> None:
    for number, mark in enumerate(WRONG_MARKS):
        test = f"""
            import pytest

            @pytest.mark.gpuemu({mark})
            def test_double(gpuemu_case):
                pass
            """
        (tested.folder / f"test_mark_{number}.py").write_text(dedent(test))
    ran = tested.pytest(
        """
        @pytest.mark.gpuemu("double")
        def test_no_fixture():
            pass
        """,
        "--continue-on-collection-errors", ".",
    )  # fmt: skip
    for said in WRONG_MARKS.values():
        assert said in ran.text
    assert "test_no_fixture is marked gpuemu and takes no gpuemu_case" in ran.text
    assert not ran.counts.get("passed")
    assert "Traceback" not in ran.text and "INTERNALERROR" not in ran.text


def test_a_fixture_without_a_mark(tested: Place) -> None:
    ran = tested.pytest(
        """
        def test_no_mark(gpuemu_case):
            pass
        """
    )
    assert 'say the op: @pytest.mark.gpuemu("softmax")' in ran.text
    assert "pytest-bad-number" in tested.again("--gpuemu-seed=-1").text


def test_tests_without_cases_load_nothing_of_it(tested: Place) -> None:
    ran = tested.pytest(
        """
        import sys

        def test_plain():
            ours = {m for m in sys.modules if m.startswith("gpuemu_flow")}
            assert ours == {"gpuemu_flow", "gpuemu_flow.pytest_plugin"}, ours
            assert not {"numpy", "pynng", "click"} & set(sys.modules)
        """
    )
    assert ran.counts == {"passed": 1}, ran.text


def test_the_client_fixture(tested: Place) -> None:
    """It starts a daemon for the workspace; the test ends it."""
    ran = tested.pytest(
        """
        import numpy as np

        def test_client(gpuemu_client):
            x = np.ones((2, 3), "float32")
            assert gpuemu_client.validate_op("double", {"x": x}, x * 2).passed
            gpuemu_client.shutdown()
        """
    )
    assert ran.counts == {"passed": 1}, ran.text


def test_it_loads_as_an_installed_plugin(tested: Place) -> None:
    """By the entry point that the package declares, without being named."""
    info = tested.folder / "site" / "installed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\ngpuemu = gpuemu_flow.pytest_plugin\n")
    (tested.folder / "test_ops.py").write_text(
        "import pytest\n\n"
        "@pytest.mark.gpuemu('double', cases=1)\n"
        "def test_double(gpuemu_case):\n"
        "    gpuemu_case.check(gpuemu_case['x'] * 2)\n"
    )
    del tested.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"]
    tested.environ["PYTHONPATH"] = str(info.parent)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--strict-markers", "-p", "no:cacheprovider"],
        cwd=tested.folder, env=tested.environ, capture_output=True, text=True, timeout=600,
        check=False,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_documented_test(tested: Place) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "pytest.md"
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    config = tested.folder / "gpuemu.toml"
    config.write_text(config.read_text().replace("double", "softmax"))
    (tested.folder / "my_kernels.py").write_text("def my_softmax(x):\n    return x + x\n")
    (tested.folder / "ref.py").write_text(REFERENCE.replace("double", "softmax"))
    ran = tested.pytest(snippet, "--gpuemu-dtype", "float32")
    assert ran.counts == {"passed": 50}, ran.text
    assert "test_softmax[softmax-float32-7]" in ran.text
