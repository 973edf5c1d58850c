"""Make test items of marked functions, and do the work of the plugin's hooks on each item."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

from gpuemu_flow.client import Client
from gpuemu_flow.client.results import ClientError, ValidationError
from gpuemu_flow.config.paths import find_config
from gpuemu_flow.model.errors import FlowError, Problem, UsageError
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.model.types import Case, CheckResult, Json, Shape, Verdict
from gpuemu_flow.model.verdicts import Elements, Tally, shown_values, weakness_alone
from gpuemu_flow.services.testing.session import (
    FIXTURE,
    MARK,
    Item,
    PytestSession,
    read_mark,
    session_of,
)
from gpuemu_flow.workers.api import OpError

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    if verdict is Verdict.FAILED:
        more = [f"and {failed - len(texts)} more"] if failed > len(texts) else []
        head = f"{failed} of {about.count} cases failed" if failed else why
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


# The fixture ``gpuemu_case``: a case, its inputs, and the verdict on a test's output.


SHOWN_FAILURES = 3
_BY_WEIGHT = (Verdict.PASSED, Verdict.SKIPPED, Verdict.INCONCLUSIVE)
"""Verdicts from the lightest to the heaviest; any other verdict is heavier than all of these."""


class GpuemuCase(Mapping[str, Any]):
    """One case: a mapping of input names to values, with attributes that identify it.

    Attributes
    ----------
    op, dtype : str
    result : CheckResult or None
        Set by `check`; the worst result if it was called several times.
    error : Exception or None
        Exception of the first `check` that did not pass, even if the test caught it.
    reported : bool
        True if the test's own report shows the failure.
    """

    def __init__(self, session: PytestSession, item: Item, test: str) -> None:
        self._session = session
        self._item = item
        self._test = test
        self.op = item.marked.op
        self.dtype = item.dtype
        self.master_seed = session.seed(item.marked)
        self.failure_id = ""
        self.reported = False
        self._checking = threading.RLock()
        self.turn_to(item.index or 0)

    def turn_to(self, index: int) -> None:
        """Switch to another case of the same op."""
        marked = self._item.marked
        self._case = self._session.outputs.case(
            self.op,
            index,
            dtype=self.dtype,
            seed=self.master_seed,
            strategies=marked.strategies,
            layouts=marked.layouts,
        )
        self._inputs: dict[str, Any] | None = None
        self._replaced: dict[str, NDArray[Any]] = {}
        self._tolerance: tuple[float, float] | None = None
        self.result: CheckResult | None = None
        self.error: Exception | None = None
        self._weakness = ""

    @property
    def case(self) -> Case:
        """Return the case that this object stands for, from which its inputs are made."""
        return self._case

    @property
    def seed(self) -> int:
        """Return the case's own seed."""
        return self._case.seed

    @property
    def index(self) -> int:
        """Return the position among the op's cases."""
        return self._case.index

    @property
    def layout(self) -> str:
        """Return the layout of the inputs in memory."""
        return self._case.layout

    @property
    def strategy(self) -> str:
        """Return the strategy by which the inputs' values are drawn."""
        return self._case.strategy

    @property
    def target(self) -> str | None:
        """Return the input that `layout` and `strategy` apply to; None if they apply to all."""
        return self._case.target

    @property
    def dims(self) -> dict[str, int]:
        """Return the sizes of the schema's dims."""
        return dict(self._case.dims)

    @property
    def shape(self) -> Shape:
        """Return the shape of the first input."""
        return self._case.inputs[0].shape if self._case.inputs else ()

    @property
    def shapes(self) -> dict[str, Shape]:
        """Return the shape of every input."""
        return {spec.name: spec.shape for spec in self._case.inputs}

    @property
    def kwargs(self) -> dict[str, Json]:
        """Return the op's configured keyword arguments, which are also passed to the reference."""
        return dict(self._session.outputs.op(self.op).kwargs)

    @property
    def inputs(self) -> dict[str, Any]:
        """Return the inputs in the op's order: arrays in their layouts, scalars as Python values.

        An absent input is None.
        """
        if self._inputs is None:
            from gpuemu_flow.cases.generate import materialise  # noqa: PLC0415

            arrays = materialise(self._case)
            given = self._session.outputs.given_values(self.op, self.dtype, arrays)
            self._replaced = {name: a for name, a in arrays.items() if given[name] is not a}
            self._inputs = given
        return self._inputs

    def _arrays_after(self) -> dict[str, NDArray[Any]] | None:
        """Return the input arrays as the test left them; None if the test did not use them."""
        return None if self._inputs is None else {**self._inputs, **self._replaced}

    def __getitem__(self, name: str) -> Any:
        if name not in self.inputs:
            raise KeyError(f"{name!r}; the inputs of {self.op} are {', '.join(self.inputs)}")
        return self.inputs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(spec.name for spec in self._case.inputs)

    def __len__(self) -> int:
        return len(self._case.inputs)

    def __repr__(self) -> str:
        return f"<GpuemuCase {self.op} {self.describe()}>"

    def describe(self) -> str:
        """Return the case in one line."""
        case = self._case
        shapes = " ".join(f"{spec.name}{list(spec.shape)}" for spec in case.inputs)
        target = f" of {case.target}" if case.target else ""
        return (
            f"{case.dtype}  {shapes}  layout {case.layout}  strategy {case.strategy}{target}  "
            f"seed {case.seed}"
        )

    def check(
        self, output: Any, *, atol: float | None = None, rtol: float | None = None
    ) -> CheckResult:
        """Judge the op's output, and return the result if the output passed.

        Several threads may call this method; they take turns. An exception that is raised here
        fails or skips the test, even if the thread or the test catches the exception.

        Parameters
        ----------
        output : tensor, mapping of name to tensor, or a tuple of them in the order of the outputs
            Arrays of numpy, PyTorch, JAX or TensorFlow. Outputs that the op wrote into its inputs
            (those named in its `mutates`) may be left out; they are then taken from `inputs`. Pass
            None if the op returns nothing.
        atol, rtol : float, optional
            Tolerance of this case instead of the configured one; if only one is given, the other is
            0.

        Raises
        ------
        ValidationError
            The output did not pass; the case is recorded for ``gpuemu-flow failures``.
        pytest.skip.Exception
            The verdict is inconclusive.
        """
        __tracebackhide__ = True
        with self._checking:
            try:
                return self._checked(output, atol, rtol)
            except Exception as error:
                self.error = self.error or error
                raise

    def _checked(self, output: Any, atol: float | None, rtol: float | None) -> CheckResult:
        __tracebackhide__ = True
        from gpuemu_flow.client.calls import check_tolerances  # noqa: PLC0415

        check_tolerances(atol, rtol)
        if atol is not None or rtol is not None:
            self._tolerance = (atol or 0.0, rtol or 0.0)
        result = self._judged(output)
        if self._item.index is not None:  # else the cases of the op are judged together
            self._weakness = self._weakness or weakness_alone(result)
        if self.result is None or _weight(result) >= _weight(self.result):
            self.result = result
        if result.verdict in (Verdict.PASSED, Verdict.INCONCLUSIVE):
            self._skip_inconclusive(result)
            return result
        self._record()
        raise ValidationError(self.explain(), result)

    def raise_failures(self) -> None:
        """Wait for running checks to end, and raise the first failure that a check has found.

        Raises
        ------
        Exception
            The first exception that `check` raised.
        pytest.skip.Exception
            The verdict is inconclusive.
        """
        __tracebackhide__ = True
        with self._checking:
            if self.error is not None:
                raise self.error
            if self.result is not None:
                self._skip_inconclusive(self.result)

    def raise_late_failures(self) -> None:
        """Raise a failure that a thread found after the test was reported; see `raise_failures`."""
        with self._checking:
            if self.error is not None and not self.reported:
                raise self.error

    def _verdict(self, result: CheckResult) -> Verdict:
        """Return the verdict of `result`, or inconclusive if the case passed but proves nothing.

        It proves nothing if the test judges only this case, with a tolerance so large that zeros
        would pass.
        """
        weak = result.verdict is Verdict.PASSED and self._weakness
        return Verdict.INCONCLUSIVE if weak else result.verdict

    def _skip_inconclusive(self, result: CheckResult) -> None:
        """Skip the test if the result shows neither a failure nor that the output is correct."""
        __tracebackhide__ = True
        if self._verdict(result) is Verdict.INCONCLUSIVE:
            why = "; ".join(filter(None, (*result.all_notes, self._weakness)))
            pytest.skip(f"inconclusive: {why}")

    def _judged(self, output: Any) -> CheckResult:
        """Judge the value that a test passed to `check`.

        Some invalid values are judged as an error of the op; for others, ClientError or UsageError
        is raised.
        """
        __tracebackhide__ = True
        from gpuemu_flow.numerics.gradients import is_gradient  # noqa: PLC0415
        from gpuemu_flow.workers.tensors import name_outputs, name_values  # noqa: PLC0415

        outputs = self._session.outputs
        names = outputs.output_names(self.op, self.dtype)
        output = outputs.with_changed_inputs(self.op, self.dtype, output, self._arrays_after())
        try:
            if isinstance(output, Mapping) and not outputs.op(self.op).gradients:
                output = name_values(output, outputs.declared_outputs(self.op, self.dtype))
            arrays = _arrays(output, names)
            if outputs.op(self.op).gradients and not any(map(is_gradient, arrays)):
                text = f"no gradient was given; the op {self.op!r} has `gradients`"
                hint = "pass what gpuemu_flow.frameworks.pytorch.with_gradients(op, inputs) returns"
                raise UsageError(Problem("pytest-bad-output", text, hint))
        except OpError as refused:
            return outputs.judge_error(self.op, self._case, refused.error)
        except ClientError:
            try:
                name_outputs(output, names)
            except OpError as refused:
                return outputs.judge_error(self.op, self._case, refused.error)
            raise
        return outputs.check(
            self.op, self._case, arrays, inputs=self._arrays_after(), tolerance=self._tolerance
        )

    def raised(self, error: BaseException) -> None:
        """Record an exception of the op or of its test as a failure of the case.

        Our own exceptions say nothing about the op, and are not recorded.
        """
        self.result = self._session.outputs.raised(self.op, self._case, error)
        if not isinstance(error, FlowError):
            self._record()

    def _record(self) -> None:
        assert self.result is not None  # noqa: S101 - for the type checker
        seed = self.master_seed
        command = self._session.command(self._test, seed)
        self.failure_id = self._session.outputs.record(
            self.op,
            self._case,
            self.result,
            source="pytest",
            tolerance=self._tolerance,
            more={"test": {"id": self._test, "seed": seed, "command": command}},
        )

    def explain(self) -> str:
        """Explain why the case did not pass, on which inputs, and how to reproduce it."""
        lines = [f"{self.op}: case {self.index}: {self.describe()}"]
        failures = self.result.failures if self.result is not None else ()
        for failure in failures[:SHOWN_FAILURES]:
            lines.append(f"  {failure.kind.value}: {failure.message}")
            if values := shown_values(failure):
                lines.append(f"    {values}")
        if len(failures) > SHOWN_FAILURES:
            lines.append(f"  and {len(failures) - SHOWN_FAILURES} more")
        lines += [
            f"  {note}" for note in (self.result.all_notes if self.result is not None else ())
        ]
        lines += self.how_to_see_it_again()
        return "\n".join(map(printable, lines))

    def how_to_see_it_again(self) -> list[str]:
        """Return the lines on how to reproduce the case: a command, and the failure's id."""
        lines = [f"  again: {self._session.command(self._test, self.master_seed)}"]
        if self.failure_id:
            lines.append(f"  recorded: gpuemu-flow failures show {self.failure_id}")
        return lines

    def properties(self) -> list[tuple[str, object]]:
        """Return the properties that reports show for the case."""
        out: list[tuple[str, object]] = [
            ("gpuemu_op", self.op),
            ("gpuemu_dtype", self.dtype),
            ("gpuemu_shape", "x".join(map(str, self.shape)) or "scalar"),
            ("gpuemu_seed", str(self.seed)),
            ("gpuemu_master_seed", str(self.master_seed)),
        ]
        if self.result is not None:
            out += [
                ("gpuemu_verdict", self._verdict(self.result).value),
                ("gpuemu_tolerance_used", f"{self.result.stats.tolerance_used:.6g}"),
                ("gpuemu_unjudged", f"{self.result.stats.unjudged:.6g}"),
            ]
        return out


def _weight(result: CheckResult) -> int:
    known = result.verdict in _BY_WEIGHT
    return _BY_WEIGHT.index(result.verdict) if known else len(_BY_WEIGHT)


def _arrays(output: Any, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    """Return outputs by name; an op's single output has the empty name."""
    from gpuemu_flow.client.calls import as_array, as_arrays, holds_tensors  # noqa: PLC0415
    from gpuemu_flow.numerics.dtypes import element_name  # noqa: PLC0415

    if isinstance(output, Mapping):
        return as_arrays(output, known=element_name)
    if isinstance(output, (tuple, list)) and len(names) > 1:
        if len(output) != len(names):
            text = f"{len(output)} outputs were given; the op has {', '.join(names)}"
            raise UsageError(Problem("pytest-bad-output", text))
        return {
            n: as_array(value, n, known=element_name)
            for n, value in zip(names, output, strict=True)
        }
    if holds_tensors(output):
        text = f"{len(output)} outputs were given; the op has one"
        raise UsageError(Problem("pytest-bad-output", text, "pass the single output"))
    return {"": as_array(output, "output", known=element_name)}
