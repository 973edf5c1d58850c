"""The pytest plugin, in pytest processes of its own: items, seeds, options, marks, fixtures."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest
from pytest_workspace import REFERENCE, Place, properties


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


@pytest.mark.ci
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


@pytest.mark.ci
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


@pytest.mark.ci
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


def test_a_marked_unittest_is_refused(tested: Place) -> None:
    ran = tested.pytest(
        """
        import unittest

        @pytest.mark.gpuemu("double")
        class TestDouble(unittest.TestCase):
            def test_double(self):
                pass
        """
    )
    assert "pytest-bad-mark: test_double is marked gpuemu" in ran.text
    assert not ran.counts.get("passed"), ran.counts


def test_a_fixture_without_a_mark(tested: Place) -> None:
    ran = tested.pytest(
        """
        def test_no_mark(gpuemu_case):
            pass
        """
    )
    assert 'name the op: @pytest.mark.gpuemu("softmax")' in ran.text
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


@pytest.mark.ci
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


@pytest.mark.ci
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


@pytest.mark.ci
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
