"""Write a report as JUnit XML, in the form of pytest's ``xunit2``, which CI services read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from msgspec import Struct

from gpuemu_flow.judge.results import MISSED, STANDING, Absence, CaseVerdict, KernelResult, OpResult
from gpuemu_flow.model.plain_text import clean, inert_markup
from gpuemu_flow.model.types import FailureKind, Verdict
from gpuemu_flow.report.document import Report
from gpuemu_flow.report.formats import ReaderOptions
from gpuemu_flow.report.text import minimal_lines, note_lines, number, percent, share
from gpuemu_flow.workers.sandbox.spec import shown_level

MAX_MESSAGE = 400
MAX_NAME = 500
MAX_BODY = 8000
BODIES_BUDGET = 12_000_000
"""Maximum number of characters of all bodies together; some services refuse files above 30 MB."""

_ELEMENTS = {Verdict.FAILED: "failure", Verdict.ERROR: "error"}


class _Test(Struct, frozen=True):
    """One ``testcase``; `element` is ``failure``, ``error``, ``skipped`` or empty."""

    classname: str
    name: str
    seconds: float = 0.0
    element: str = ""
    kind: str = ""
    message: str = ""
    body: str = ""


def clip(text: str, limit: int) -> str:
    """Cut text to at most `limit` characters, and append the number of characters left out."""
    if len(text) <= limit:
        return text
    note = f"... [{len(text) - limit} more characters]"
    return text[: max(0, limit - len(note))] + note


def write(report: Report, _look: ReaderOptions) -> str:
    return report_to_junit(report)


def report_to_junit(report: Report) -> str:
    suites = [
        ("validation", [*_cases(report), *_ops_without_cases(report)]),
        ("lint", list(_lints(report))),
        ("regressions", list(_regressions(report))),
        ("problems", list(_problems(report))),
    ]
    tests = [test for _, members in suites for test in members]
    wrong = sum(bool(test.body) for test in tests)
    limit = min(MAX_BODY, BODIES_BUDGET // max(1, wrong))
    names: dict[tuple[str, str], int] = {}
    root = ElementTree.Element("testsuites", {"name": "gpuemu-flow", **_counts(tests)})
    root.set("time", f"{report.run.duration_s:.3f}")
    # Readers also accept a report without tests.
    for name, members in [(n, m) for n, m in suites if m] or [("validation", [])]:
        suite = ElementTree.SubElement(root, "testsuite", {"name": f"gpuemu-flow.{name}"})
        skipped = sum(test.element == "skipped" for test in members)
        # The common schema allows no `skipped` on the outermost element.
        suite.attrib.update(_counts(members), skipped=str(skipped))
        suite.set("timestamp", clean(report.created.removesuffix("Z")))
        if name == "validation":
            _add_properties(suite, report)
        for test in members:
            _add_test(suite, test, limit, names)
    ElementTree.indent(root, "")
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{inert_markup(text)}\n'


def _add_properties(suite: Element, report: Report) -> None:
    """Add properties: warnings, and each op's sandbox and share of elements without a verdict. The
    format has no element for warnings, and a test for each would falsify the number of tests."""
    facts = [
        (f"unjudged {result.op}[{result.dtype}]", f"{result.unjudged:.6g}")
        for result in report.run.results
        if result.cases
    ]
    facts += [
        (f"sandbox {result.op}[{result.dtype}]", shown_level(result.sandbox))
        for result in report.run.results
        if result.sandbox
    ]
    if report.run.had_nothing_to_do:
        facts.append(("verdict", report.verdict))
    if report.run.drawn_seed is not None:
        facts.append(("drawn seed", str(report.run.drawn_seed)))
    facts += [
        (f"warning {problem.slug}", str(problem))
        for problem in report.run.problems
        if problem.warning and problem.slug in STANDING
    ]
    properties = ElementTree.SubElement(suite, "properties") if facts else suite
    for name, value in facts:
        shown = {"name": clip(clean(name), MAX_NAME), "value": clip(clean(value), MAX_MESSAGE)}
        ElementTree.SubElement(properties, "property", shown)


def _counts(tests: list[_Test]) -> dict[str, str]:
    errors, failures = (
        sum(test.element == element for test in tests) for element in ("error", "failure")
    )
    seconds = sum(test.seconds for test in tests)
    return {
        "errors": str(errors),
        "failures": str(failures),
        "tests": str(len(tests)),
        "time": f"{seconds:.3f}",
    }


def _add_test(suite: Element, test: _Test, limit: int, names: dict[tuple[str, str], int]) -> None:
    classname, name = (clip(clean(word), MAX_NAME) for word in (test.classname, test.name))
    again = names[classname, name] = names.get((classname, name), 0) + 1
    if again > 1:  # some readers keep only the first test of a name
        name = f"{name}#{again}"
    facts = {"classname": classname, "name": name, "time": f"{test.seconds:.3f}"}
    case = ElementTree.SubElement(suite, "testcase", facts)
    if test.element:
        found = ElementTree.SubElement(case, test.element)
        if test.kind:
            found.set("type", clean(test.kind))
        found.set("message", clip(clean(test.message), MAX_MESSAGE))
        found.text = clip(clean(test.body or test.message), limit)


def _cases(report: Report) -> Iterator[_Test]:
    alike = Counter(map(_exception, report.cases))
    told: set[tuple[str, ...]] = set()
    seconds = {(r.op, r.dtype): r.duration_s / max(1, r.cases) for r in report.run.results}
    for checked in report.cases:
        result = checked.result
        took = seconds.get((checked.op, checked.case.dtype), 0.0)
        if result.verdict is Verdict.PASSED:
            yield _Test(f"ops.{checked.op}", checked.name, took)
            continue
        first = result.failures[0] if result.failures else None
        kind = first.kind.value if first is not None else result.verdict.value
        message = f"{kind}: {first.message}" if first is not None else result.verdict.value
        raised = _exception(checked)
        if raised and raised in told:
            continue
        told.add(raised)
        if raised and alike[raised] > 1:
            message = f"{message} (in {alike[raised]} cases)"
        element = _ELEMENTS.get(result.verdict, "skipped")
        body = "\n".join(_body(report, checked, message))
        yield _Test(f"ops.{checked.op}", checked.name, took, element, kind, message, body)


def _exception(checked: CaseVerdict) -> tuple[str, ...]:
    first = checked.result.failures[0] if checked.result.failures else None
    if checked.result.verdict is not Verdict.ERROR or first is None or not first.place:
        return ()
    return checked.op, checked.case.dtype, first.why, first.place


def _body(report: Report, checked: CaseVerdict, message: str) -> Iterator[str]:
    """Yield the lines of a failure's body: message and details. The message stands here, too,
    because some services show only the body."""
    case, result, stats = checked.case, checked.result, checked.result.stats
    minimal = report.run.minimal_of(checked)
    if minimal is not None:
        yield from minimal_lines(minimal, checked.reproduce)
    yield message
    if minimal is None:
        yield f"Reproduce: {checked.reproduce}"
    yield f"Op: {checked.op}  Seed: {case.seed}"
    shapes = " ".join(f"{i.name}{list(i.shape)}" for i in case.inputs)
    yield f"DType: {case.dtype}  Shape: {shapes}"
    yield f"Layout: {case.layout}  Strategy: {case.strategy}  Shape class: {case.shape_class}"
    yield (
        f"Max diff: {number(stats.max_abs)}  Max rel diff: {number(stats.max_rel)}  "
        f"Of tolerance: {share(stats.tolerance_used)}  Unjudged: {percent(stats.unjudged)}"
    )
    place = report.place_of(checked)
    if place is not None:
        yield f"At: {place.file}:{place.line}"
    if cause := report.causes.get(report.key(checked)):
        yield f"Cause: {cause}"
    for other in result.failures[1:]:
        yield f"{other.kind.value}: {other.message}"
    yield from note_lines(result)


def _ops_without_cases(report: Report) -> Iterator[_Test]:
    """Yield tests for results of ops that the report's list of cases does not show. There is a test
    for each op that was skipped, is broken, or has no verdict or an outdated one. Passing cases
    that clients submitted are only counted in the report, and get one test per op."""
    listed = Counter((checked.op, checked.case.dtype) for checked in report.cases)
    for result in report.run.results:
        if result.cases:
            if result.failed_as_a_whole:
                kind, name = FailureKind.TOLERANCE.value, f"{result.op}[{result.dtype}]"
                yield _Test(f"ops.{result.op}", name, 0.0, "failure", kind, result.reason)
            unsure = result.verdict is Verdict.INCONCLUSIVE
            if unsure and (result.passed or _is_missed(report, result)):
                kind, name = result.verdict.value, f"{result.op}[{result.dtype}]"
                element = "error" if _is_missed(report, result) else "skipped"
                yield _Test(f"ops.{result.op}", name, 0.0, element, kind, result.reason)
            if result.absence is Absence.OUTDATED:
                name = f"{result.op}[{result.dtype}]"
                kind = result.absence.value
                yield _Test(f"ops.{result.op}", name, 0.0, "skipped", kind, result.reason)
            if result.passed and not listed[result.op, result.dtype] - len(result.failures):
                note = f"{result.op}[{result.dtype}-{result.passed} submitted]"
                yield _Test(f"ops.{result.op}", note, result.duration_s)
            continue
        wrong = result.verdict is Verdict.ERROR or _is_missed(report, result)
        element = "error" if wrong else "skipped"
        kind = "Error" if wrong else ""
        name = f"{result.op}[{result.dtype}]"
        yield _Test(f"ops.{result.op}", name, 0.0, element, kind, result.reason)


def _is_missed(report: Report, one: OpResult | KernelResult) -> bool:
    """Tell whether a result lacks a verdict that the report needs in order to be a success."""
    cut_off = one.absent is Absence.CUT_OFF
    return cut_off or (report.require_all and one.absent in MISSED)


def _lints(report: Report) -> Iterator[_Test]:
    for kernel in report.run.kernels:
        name = f"{kernel.kernel}[{kernel.arch}]" if kernel.arch else kernel.kernel
        if kernel.verdict is Verdict.PASSED:
            yield _Test("kernels", name)
        elif kernel.verdict is Verdict.SKIPPED:
            element = "error" if _is_missed(report, kernel) else "skipped"
            yield _Test("kernels", name, 0.0, element, "", kernel.reason)
        else:
            yield _lint(kernel, name)


def _lint(kernel: KernelResult, name: str) -> _Test:
    found = [
        f"{v.file}:{v.line}: {v.rule}: {entry.name}: {v.message}"
        for entry in kernel.entries
        for v in entry.errors
    ]
    figures = [
        f"{entry.name}: " + ", ".join(f"{k} {v}" for k, v in entry.metrics.counts.items())
        for entry in kernel.entries
    ]
    message = found[0] if found else kernel.reason or kernel.verdict.value
    element = _ELEMENTS.get(kernel.verdict, "skipped")
    return _Test("kernels", name, 0.0, element, "Lint", message, "\n".join([*found, *figures]))


def _regressions(report: Report) -> Iterator[_Test]:
    if report.fail_on_regression:
        for worse in report.regressions:
            said = worse.sentence
            yield _Test("regressions", worse.subject, 0.0, "failure", "Regression", said)


def _problems(report: Report) -> Iterator[_Test]:
    for problem in report.run.problems:
        if not problem.warning:
            yield _Test("problems", problem.slug, 0.0, "error", problem.slug, str(problem))
