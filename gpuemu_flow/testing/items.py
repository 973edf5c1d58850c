"""Make test items of marked functions, and do the work of the plugin's hooks on each item."""

from __future__ import annotations

from typing import Any

import pytest

from gpuemu_flow.client import Client
from gpuemu_flow.config.find import find_config
from gpuemu_flow.errors import FlowError, Problem, UsageError
from gpuemu_flow.testing.case import GpuemuCase
from gpuemu_flow.testing.session import FIXTURE, MARK, Item, read_mark, session_of
from gpuemu_flow.types import Verdict
from gpuemu_flow.verdicts import Elements, Tally

SHOWN_CASES = 5


def parametrize(metafunc: pytest.Metafunc, *, asks: bool) -> None:
    """Make test items from a function's marks.

    A collection error is raised if a mark is wrong, if there is no mark, or if the function does
    not take the fixture ``gpuemu_case``.
    """
    marks = list(metafunc.definition.iter_markers(MARK))
    try:
        session = session_of(metafunc.config)
        if not asks:
            text = f"{metafunc.function.__name__} is marked gpuemu and takes no {FIXTURE}"
            raise UsageError(Problem("pytest-bad-mark", text, f"add {FIXTURE} to its parameters"))
        if not marks:
            text = f"{metafunc.function.__name__} takes {FIXTURE} and has no gpuemu mark"
            raise UsageError(
                Problem("pytest-bad-mark", text, 'name the op: @pytest.mark.gpuemu("softmax")')
            )
        found = [item for mark in reversed(marks) for item in session.items(read_mark(mark))]
    except FlowError as error:
        pytest.fail(str(error), pytrace=False)
    metafunc.parametrize(
        FIXTURE, [item for _, item in found], ids=[name for name, _ in found], indirect=True
    )


def refuse_unused_mark(item: pytest.Item) -> None:
    """Fail a marked test that gets no cases, such as a method of a ``unittest.TestCase``."""
    text = f"{item.name} is marked gpuemu, and a test of its kind gets no cases"
    hint = f"make it a function, or the method of a plain class, that takes {FIXTURE}"
    pytest.fail(str(Problem("pytest-bad-mark", text, hint)), pytrace=False)


def make_case(request: pytest.FixtureRequest) -> GpuemuCase:
    """Return the value of the fixture ``gpuemu_case``."""
    try:
        case = GpuemuCase(session_of(request.config), request.param, request.node.nodeid)
    except FlowError as error:
        pytest.fail(str(error), pytrace=False)
    return case


def make_client(config: pytest.Config) -> Client:
    """Return a client of the workspace's daemon."""
    session = session_of(config)
    return Client(workspace=find_config(session.root, session.environ))


def call_per_op(item: pytest.Function) -> bool | None:
    """Run a test of a whole op case by case and return True; return None for other tests."""
    fixture = item.funcargs[FIXTURE]
    about = item.callspec.params[FIXTURE] if hasattr(item, "callspec") else None
    if not isinstance(fixture, GpuemuCase) or not isinstance(about, Item):
        return None
    if about.index is not None:
        return None
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    worst, failed, skipped = 0.0, 0, 0
    tally = Tally()
    texts: list[str] = []
    for index in range(about.count):
        fixture.turn_to(index)
        try:
            _call(item, arguments, fixture)
        except pytest.skip.Exception:
            skipped += 1
            if fixture.result is None:
                tally.count(Verdict.SKIPPED, Elements())
        except Exception as error:
            if fixture.result is None or fixture.result.verdict is Verdict.PASSED:
                fixture.raised(error)
            failed += 1
            if len(texts) < SHOWN_CASES:
                texts.append(fixture.explain())
        else:
            _must_be_checked(fixture)
        if fixture.result is not None:
            tally.add(fixture.result)
            worst = max(worst, fixture.result.stats.tolerance_used)
    fixture.reported = fixture.error is not None
    passed = about.count - failed - skipped
    judged, why = tally.verdict()
    verdict = Verdict.FAILED if failed else judged
    item.user_properties += [
        ("gpuemu_op", about.marked.op),
        ("gpuemu_dtype", about.dtype),
        ("gpuemu_master_seed", str(fixture.master_seed)),
        ("gpuemu_cases", str(about.count)),
        ("gpuemu_passed", str(passed)),
        ("gpuemu_failed", str(failed)),
        ("gpuemu_verdict", verdict.value),
        ("gpuemu_tolerance_used", f"{worst:.6g}"),
        ("gpuemu_unjudged", f"{tally.unjudged:.6g}"),
    ]
    if failed:
        more = [f"and {failed - len(texts)} more"] if failed > len(texts) else []
        head = f"{failed} of {about.count} cases failed"
        pytest.fail("\n".join([head, *texts, *more]), pytrace=False)
    if verdict is not Verdict.PASSED:
        pytest.skip(f"inconclusive: {why or 'no case could be judged'}")
    return True


def _call(item: pytest.Function, arguments: dict[str, Any], fixture: GpuemuCase) -> None:
    """Run a test on one case; fail it if a check failed, even if the test caught the exception."""
    try:
        item.obj(**arguments)
    except pytest.skip.Exception:
        fixture.raise_failures()
        raise
    fixture.raise_failures()


def finish_checks(item: pytest.Item) -> None:
    """Fail a test that has ended normally although one of its checks failed."""
    __tracebackhide__ = True
    case = getattr(item, "funcargs", {}).get(FIXTURE)
    about = item.callspec.params.get(FIXTURE) if hasattr(item, "callspec") else None
    if isinstance(case, GpuemuCase) and isinstance(about, Item) and about.index is not None:
        case.raise_failures()


def _must_be_checked(case: GpuemuCase) -> None:
    if case.result is None:
        pytest.fail(_nothing_checked(case), pytrace=False)


def _nothing_checked(case: GpuemuCase) -> str:
    text = f"the test ended without {FIXTURE}.check(output): nothing of {case.op} was validated"
    return str(Problem("pytest-nothing-checked", text))


def finish(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Add the case's properties and the description of a failure to a test's report."""
    case = getattr(item, "funcargs", {}).get(FIXTURE)
    about = item.callspec.params.get(FIXTURE) if hasattr(item, "callspec") else None
    if not isinstance(case, GpuemuCase) or not isinstance(about, Item) or about.index is None:
        return
    if report.passed and case.result is None:
        report.outcome = "failed"
        report.longrepr = _nothing_checked(case)
    elif report.skipped and case.error is not None and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = str(case.error)
    case.reported = report.failed or case.error is not None
    unjudged = case.result is None or case.result.verdict is Verdict.PASSED
    if report.failed and unjudged and call.excinfo is not None:
        if isinstance(call.excinfo.value, Exception):
            case.raised(call.excinfo.value)
        lines = [case.describe(), *case.how_to_see_it_again()]
        report.sections.append(("gpuemu case", "\n".join(lines)))
    item.user_properties += case.properties()
