"""The pytest plugin: what fails a test, is recorded, and can be seen again."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest
from pytest_workspace import REFERENCE, Place, properties

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


@pytest.mark.ci
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

        @pytest.mark.gpuemu("pair", cases=1, dtypes=["float32"])
        def test_other_names(gpuemu_case):
            gpuemu_case.check({"total": 1, "other": 2})

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_own_tolerance(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2 + 1, atol=1.5)

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_tolerance_that_is_no_number(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2, atol=True)

        @pytest.mark.gpuemu("double", cases=1, dtypes=["float32"])
        def test_skips(gpuemu_case):
            pytest.skip("not on this GPU")
        """
    )
    assert ran.counts == {"failed": 7, "passed": 1, "skipped": 1}, ran.text
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
    assert "op-output-missing: the outputs are other, total, but" in texts["test_other_names"]
    assert "client-bad-tolerance" in texts["test_tolerance_that_is_no_number"]
    assert "gpuemu case" in ran.text and "--gpuemu-seed 42" in ran.text
    found = tested.failures()
    kinds = sorted(failure.kind for failure in found)
    ours = ["DTypeMismatch", "ExecutionError", "ExecutionError", "InputModified"]
    assert kinds == ours, "not what we refused"


def test_a_tolerance_that_zeros_pass_under_judges_nothing(tested: Place) -> None:
    ran = tested.pytest(
        """
        import numpy as np

        @pytest.mark.gpuemu("double", cases=3, dtypes=["float32"], strategies=["normal"])
        def test_zeros(gpuemu_case):
            gpuemu_case.check(np.zeros_like(gpuemu_case["x"]), atol=1e39)

        @pytest.mark.gpuemu("double", cases=3, dtypes=["float32"], strategies=["normal"])
        def test_right(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2, atol=1e-3)

        @pytest.mark.gpuemu("double", cases=6, per="op", dtypes=["float32"],
                            strategies=["small", "normal"])
        def test_right_of_small_numbers_too(gpuemu_case):
            gpuemu_case.check(gpuemu_case["x"] * 2, atol=3e-3)
        """
    )
    assert ran.counts == {"skipped": 3, "passed": 4}, ran.text
    figures = [properties(case) for case in ran.junit if case.find("skipped") is not None]
    assert {each["gpuemu_verdict"] for each in figures} == {"inconclusive"}
    assert "zeros for" in ran.text


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


def test_an_item_whose_cases_are_skipped_does_not_pass(tested: Place) -> None:
    ran = tested.pytest(
        """
        @pytest.mark.gpuemu("double", cases=10, per="op", dtypes=["float32"])
        @pytest.mark.parametrize("skipped", [2, 3])
        def test_double(gpuemu_case, skipped):
            if gpuemu_case.index < skipped:
                pytest.skip("not on this machine")
            gpuemu_case.check(gpuemu_case["x"] * 2)
        """
    )
    assert ran.counts == {"passed": 1, "skipped": 1}, ran.text
    assert "no verdict on 3 of 10 cases" in ran.text


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
@pytest.mark.ci
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


@pytest.mark.ci
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
