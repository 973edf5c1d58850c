"""JUnit XML: valid by the common schema, read by a real reader, bounded, and nobody's markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from published_schemas import check_junit
from report_samples import failed, hostile, huge, report_of, sample

from gpuemu_flow.judge.results import Regression
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.report.document import Report
from gpuemu_flow.report.junit import MAX_MESSAGE, report_to_junit

GITLAB_LIMIT = 30_000_000


def cases(text: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(text).iter("testcase"))


def test_every_result_is_one_test_with_its_outcome() -> None:
    root = ElementTree.fromstring(report_to_junit(sample()))
    found = {
        f"{c.get('classname')}:{c.get('name')}": [child.tag for child in c]
        for c in root.iter("testcase")
    }
    assert found == {
        "ops.softmax:softmax[float32-3x5-contiguous-uniform-11]": [],
        "ops.softmax:softmax[float32-2x3-contiguous-uniform-12]": ["failure"],
        "ops.softmax:softmax[float32-7x9-contiguous-uniform-13]": ["failure"],
        "ops.silu:silu[float32-3x5-contiguous-uniform-14]": ["error"],
        "ops.silu:silu[float32-3x5-contiguous-uniform-15]": [],
        "ops.argmax:argmax[float32-3x5-contiguous-uniform-16]": ["skipped"],
        "ops.gelu:gelu[float16-3x5-contiguous-uniform-18446744073709551615]": [],
        "ops.matmul:matmul[bfloat16]": ["skipped"],
        "kernels:softmax_kernel[sm_80]": ["failure"],
        "regressions:softmax float32": ["failure"],
    }
    assert [root.get(n) for n in ("tests", "failures", "errors")] == ["10", "4", "1"]
    suites = list(root.iter("testsuite"))
    for name in ("tests", "failures", "errors"):
        assert sum(int(s.get(name, "0")) for s in suites) == int(root.get(name, "0"))


def test_a_body_says_all_that_helps() -> None:
    (failure,) = [c for c in cases(report_to_junit(sample())) if "-12]" in c.get("name", "")]
    text = failure[0].text or ""
    for word in (
        failure[0].get("message", "?"),
        "gpuemu-flow reproduce 12 --op softmax",
        "Seed: 12",
        "x[2, 3]",
        "scripts/softmax.py:7",
        "wrong in the last column",
    ):
        assert word in text


@pytest.mark.parametrize("make", [sample, hostile, lambda: report_of([])])
def test_valid_by_the_common_schema(make: Callable[[], Report]) -> None:
    check_junit(report_to_junit(make()))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("<testcase ", "<testcase flavour='x' "),
        ("</testsuites>", "<testsuites/></testsuites>"),
        ('time="', 'time="soon'),
        (" name=", " title="),
    ],
)
def test_the_schema_is_one_that_refuses(old: str, new: str) -> None:
    etree = pytest.importorskip("lxml.etree")
    with pytest.raises(etree.DocumentInvalid):
        check_junit(report_to_junit(sample()).replace(old, new))


def test_hostile_text_stays_text() -> None:
    found = cases(report_to_junit(hostile()))
    names = Counter((c.get("classname"), c.get("name")) for c in found)
    assert set(names.values()) == {1}, "readers keep only the first of a name"
    assert any("<script>alert('x')</script>]]>&amp;" in (c.get("name") or "") for c in found)
    assert all(len(c) <= 1 for c in found), "error and failure together"
    text = report_to_junit(hostile())
    assert "<script>" not in text
    assert not any(c in text for c in "\x00\x07\x1b\ufffe\x85\x9b")
    assert "\\x1b[31m" in text


def read_by_a_reader(report: Report) -> Any:
    junitparser = pytest.importorskip("junitparser")
    return junitparser.JUnitXml.fromstring(report_to_junit(report).encode())


def test_a_real_reader_reads_it() -> None:
    found = read_by_a_reader(sample())
    assert (found.tests, found.failures, found.errors) == (10, 4, 1)
    kinds = Counter(
        type(case.result[0]).__name__ if case.result else "passed"
        for suite in found
        for case in suite
    )
    assert kinds == {"passed": 3, "Failure": 4, "Error": 1, "Skipped": 2}


@pytest.mark.ci
def test_five_thousand_hostile_failures_and_a_megabyte_of_noise_stay_bounded() -> None:
    report = huge()
    text = report_to_junit(report)
    assert len(text.encode()) < GITLAB_LIMIT
    check_junit(text)
    assert read_by_a_reader(report).failures == 5000
    found = cases(text)
    assert len(found) == 5000
    assert len({(c.get("classname"), c.get("name")) for c in found}) == 5000
    assert max(len(c[0].get("message", "")) for c in found) <= MAX_MESSAGE
    noisy = found[-1][0].text or ""
    assert "more characters]" in noisy
    assert len(noisy) < 10_000


def test_what_clients_submitted_is_one_passed_test() -> None:
    report = report_of([failed("a", 1)])
    (result,) = report.run.results
    submitted = replace(result, cases=4, passed=3)
    text = report_to_junit(replace(report, run=replace(report.run, results=(submitted,))))
    assert [(c.get("name"), len(c)) for c in cases(text)] == [
        ("a[float32-3x5-contiguous-uniform-1]", 1), ("a[float32-3 submitted]", 0),
    ]  # fmt: skip


def test_regressions_that_do_not_fail_the_run_are_no_failures() -> None:
    report = report_of([failed("a", 1)], regressions=(Regression("a", "float32"),))
    assert not [c for c in cases(report_to_junit(report)) if c.get("classname") == "regressions"]


def test_every_sign_that_xml_cannot_hold_is_shown_by_its_number() -> None:
    """XML 1.0, section 2.2: Char; and the C1 controls, which a terminal obeys."""
    signs = [chr(n) for n in (*range(0x20), *range(0x7F, 0xA0), 0xD800, 0xDFFF, 0xFFFE, 0xFFFF)]
    for sign in signs:
        text = f"a{sign}b"
        (case,) = cases(report_to_junit(report_of([failed(text, 1, text, notes=(text,))])))
        # A carriage return is a line end to who reads a log, and to XML too.
        shown = text if sign in "\t\n" else f"a\\x{ord(sign):02x}b"
        assert (case.get("classname") or "") == f"ops.{shown}"
        assert (case[0].get("message") or "").endswith(shown)
        body = case[0].text or ""
        assert shown in body or sign in "\t\n"


def test_warnings_of_results_are_properties_and_no_tests() -> None:
    report = replace(sample(), regressions=())
    loose = Problem("loose-tolerance", "softmax: zeros <pass>", "a smaller one", warning=True)
    warned = replace(report, run=replace(report.run, problems=(*report.run.problems, loose)))
    text = report_to_junit(warned)
    check_junit(text)
    assert len(cases(text)) == len(cases(report_to_junit(report))) == warned.totals["total"]
    root = ElementTree.fromstring(text)
    found = {p.get("name"): p.get("value") for p in root.iter("property")}
    assert found["warning loose-tolerance"] == str(loose)
    assert "warning cache-damaged" not in found
