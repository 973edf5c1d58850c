"""Nothing becomes ``passed`` but through `verdicts.decide`, and nothing with nothing compared."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np
import pytest
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from import_graph import ROOT, every_node, source_files
from msgspec import to_builtins
from msgspec.structs import asdict

from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import CheckResult, ErrorStats, Tolerance, Verdict, WeakOutput
from gpuemu_flow.model.verdicts import Compared, Elements, Tally, decide, of_outputs
from gpuemu_flow.numerics.compare import Policy, check_outputs

ONLY = "gpuemu_flow.model.verdicts"
counts = st.integers(-3, 10**6)


@st.composite
def outputs(draw: st.DrawFn) -> Compared:
    """Any output of a case: elements with a verdict, without one, expected to be NaN."""
    count = draw(st.integers(0, 10_000))
    no_verdict = draw(st.integers(0, count))
    nan = draw(st.integers(0, count - no_verdict))
    return Compared("y", count, no_verdict, nan, finite_inputs=draw(st.booleans()))


@given(failed=st.booleans(), compared=counts)
def test_zero_parts_never_pass(failed: bool, compared: int) -> None:
    verdict = decide(failed, compared)
    assert (verdict is Verdict.PASSED) == (not failed and compared > 0)
    assert (verdict is Verdict.FAILED) == failed


@given(st.lists(outputs(), max_size=4))
def test_a_case_passes_only_if_nine_tenths_of_each_output_were_judged(
    found: list[Compared],
) -> None:
    verdict, reasons = of_outputs(False, found)
    assert verdict in (Verdict.PASSED, Verdict.INCONCLUSIVE)
    assert bool(reasons) == (verdict is Verdict.INCONCLUSIVE)
    if verdict is Verdict.PASSED:
        assert sum(output.count for output in found) > 0
        for output in found:
            assert output.no_verdict <= 0.1 * output.count
            assert not (output.finite_inputs and output.count and output.nan == output.count)
    assert of_outputs(True, found) == (Verdict.FAILED, ())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(Verdict),
            st.integers(0, 100),
            st.integers(0, 100),
            st.sets(st.sampled_from("yz")),
        ),
        max_size=30,
    )
)
def test_cases_pass_only_together(cases: list[tuple[Verdict, int, int, set[str]]]) -> None:
    tally = Tally()
    for verdict, count, finite, empty in cases:
        tally.count(verdict, Elements(count, 0, min(count, finite), tuple(sorted(empty))))
    verdict, reason = tally.verdict()
    named = [found for found, *_ in cases]
    assert bool(reason) == (verdict is Verdict.INCONCLUSIVE)
    if Verdict.FAILED in named:
        assert verdict is Verdict.FAILED
    elif Verdict.ERROR in named:
        assert verdict is Verdict.ERROR
    if verdict is Verdict.PASSED:
        assert named.count(Verdict.PASSED) >= 0.8 * len(named) > 0
        assert tally.finite > 0
        assert not set.intersection(*(c[3] for c in cases if c[0] is not Verdict.SKIPPED))


def tallied(*verdicts: Verdict) -> Verdict:
    tally = Tally()
    for verdict in verdicts:
        tally.count(verdict, Elements(8, 0, 8))
    return tally.verdict()[0]


def test_one_case_in_five_may_go_without_a_verdict_and_no_more() -> None:
    passed, unsure = Verdict.PASSED, Verdict.INCONCLUSIVE
    assert tallied(*[passed] * 4, unsure) is passed
    assert tallied(*[passed] * 3, unsure) is unsure
    assert tallied(passed, *[unsure] * 23) is unsure
    assert tallied(*[unsure] * 24) is unsure
    assert tallied() is tallied(Verdict.SKIPPED) is Verdict.SKIPPED


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=20))
def test_cases_on_zeros_alone_never_pass(cases: list[tuple[bool, int]]) -> None:
    tally = Tally()
    for blank, count in cases:
        elements = Elements(count, 0, count, () if count else ("y",), (), blank)
        tally.count(Verdict.PASSED if count else Verdict.INCONCLUSIVE, elements)
    if not any(count and not blank for blank, count in cases):
        assert tally.verdict()[0] is not Verdict.PASSED


@for_each(
    ("values", "count", "chosen", "verdict"),
    [
        ([0.0], 4, True, Verdict.INCONCLUSIVE),
        ([0.0], 1, True, Verdict.INCONCLUSIVE),
        ([0.25, 0.25], 8, True, Verdict.INCONCLUSIVE),
        ([0.25, None], 8, True, Verdict.PASSED),
        ([0.25, 0.5], 8, True, Verdict.PASSED),
        ([0.25], 1, True, Verdict.PASSED),  # a loss: a number of its own
        ([0.0], 64, False, Verdict.PASSED),
    ],
)
def test_chosen_inputs_must_give_more_than_one_value(
    values: list[float | None], count: int, chosen: bool, verdict: Verdict
) -> None:
    tally = Tally()
    for value in values:
        weak = () if value is None else (WeakOutput("y", value),)
        elements = Elements(count, 0, count, (), weak)
        assert convert(to_builtins(elements), Elements) == elements
        tally.count(Verdict.PASSED, elements, chosen=chosen)
    assert tally.verdict()[0] is verdict


@pytest.mark.parametrize("count", [0, 5])
def test_a_stored_pass_without_anything_compared_is_refused(count: int) -> None:
    stored = {
        "verdict": "passed",
        "failures": [],
        "stats": asdict(ErrorStats(count=count, num_no_verdict=count)),
        "notes": [],
    }
    with pytest.raises(ValueError, match="nothing compared"):
        convert(stored, CheckResult, strict=False)


@given(
    shapes=st.lists(st.sampled_from([(0,), (4, 0), (0, 3, 2)]), max_size=3),
    dtype=st.sampled_from(["float32", "float16", "int32", "bool"]),
)
def test_outputs_without_elements_never_pass(shapes: list[tuple[int, ...]], dtype: str) -> None:
    arrays = {f"y{n}": np.zeros(shape, dtype) for n, shape in enumerate(shapes)}
    result = check_outputs(arrays, arrays, tolerance={}, policy=Policy())
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.empty == tuple(arrays)


@pytest.mark.parametrize(
    ("empty", "full", "verdict"),
    [(12, 12, "passed"), (4, 8, "passed"), (20, 4, "inconclusive"), (24, 0, "inconclusive")],
)
def test_dims_of_size_0_take_no_verdict_from_the_cases_beside_them(
    empty: int, full: int, verdict: str
) -> None:
    def judge(size: int) -> CheckResult:
        x = np.arange(1.0, size + 1, dtype=np.float32)
        given = {"x": x}
        return check_outputs({"y": x}, {"y": x}, tolerance={}, policy=Policy(), inputs=given)

    assert judge(0).verdict is Verdict.INCONCLUSIVE
    assert tally_of(*[judge(0)] * empty, *[judge(5)] * full).verdict()[0].value == verdict


@pytest.mark.parametrize("policy", [Policy(), Policy("ignore", "ignore")])
def test_matching_nan_on_finite_inputs_is_no_verdict_and_on_nan_inputs_is(policy: Policy) -> None:
    nan, plain = np.full(8, np.nan, np.float32), np.ones(8, np.float32)

    def verdict(inputs: np.ndarray) -> Verdict:
        given = {"x": inputs}
        result = check_outputs({"y": nan}, {"y": nan}, tolerance={}, policy=policy, inputs=given)
        return result.verdict

    assert verdict(plain) is Verdict.INCONCLUSIVE
    assert verdict(nan) is Verdict.PASSED


def test_an_output_that_is_nan_alone_is_found_beside_a_good_one() -> None:
    nan, plain = np.full(8, np.nan, np.float32), np.ones(8, np.float32)
    arrays = {"good": plain, "bad": nan}
    result = check_outputs(arrays, arrays, tolerance={}, policy=Policy(), inputs={"x": plain})
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "'bad'" in result.notes[0]
    assert result.stats.unjudged == 0.5


def test_a_domain_of_which_half_is_nan_is_judged() -> None:
    values = np.array([1, np.nan] * 8, np.float32)
    result = check_outputs(
        {"y": values}, {"y": values}, tolerance={}, policy=Policy(), inputs={"x": np.ones(16)}
    )
    assert result.verdict is Verdict.PASSED
    assert result.stats.num_finite == 8
    assert result.stats.unjudged == 0.5, "the share says that half has no value"
    assert any("NaN is expected in 8 of 16" in note for note in result.notes)


@pytest.mark.parametrize(("ignored", "verdict"), [(10, "passed"), (11, "inconclusive")])
def test_ignored_elements_are_no_verdict_either(ignored: int, verdict: str) -> None:
    expected = np.ones(100, np.float32)
    expected[:ignored] = np.nan
    result = check_outputs(
        {"y": np.ones(100, np.float32)},
        {"y": expected},
        tolerance={"float32": Tolerance(0.1, 0.0)},
        policy=Policy("ignore"),
        inputs={"x": np.ones(3)},
    )
    assert result.verdict.value == verdict
    assert result.stats.unjudged == ignored / 100


def judged(
    values: np.ndarray, tolerance: Tolerance | None, name: str = "y", x: float = 1.0
) -> CheckResult:
    return check_outputs(
        {name: values},
        {name: values},
        tolerance={} if tolerance is None else {"float32": tolerance},
        policy=Policy(),
        inputs={"x": np.full(3, x)},
    )


def tally_of(*results: CheckResult) -> Tally:
    tally = Tally()
    for result in results:
        tally.add(result)
    return tally


SMALL = np.array([0.25, -0.5, 0.0, np.nan], np.float32)
LARGE = np.array([0.25, -0.5, 3.0], np.float32)
LOOSE = Tolerance(1.0, 0.0)


@pytest.mark.parametrize("size", [4, 20_000])
@pytest.mark.parametrize("allowed", [LOOSE, Tolerance(0.0, 1.0), Tolerance(0.25, 0.5)])
def test_a_tolerance_larger_than_all_that_it_judges_gives_no_verdict(
    size: int, allowed: Tolerance
) -> None:
    small = np.resize(SMALL, size)
    zeros = np.zeros(3, np.float32)
    nothing = np.zeros(0, np.float32)
    for cases in ([small], [small, zeros], [zeros, nothing, small], [nothing, small]):
        tally = tally_of(*(judged(values, allowed, x=np.inf) for values in cases))
        assert tally.passed_by_zeros == ("y",), cases
        if nothing.size in map(len, cases):
            continue  # a case without elements has no verdict in any way
        verdict, reason = tally.verdict()
        assert verdict is Verdict.INCONCLUSIVE
        assert "zeros for 'y' would pass" in reason


def test_one_case_that_zeros_fail_is_enough() -> None:
    late = np.full(20_000, 0.5, np.float32)
    late[12_345] = 3.0
    for other in (LARGE, late):
        for order in ([other, SMALL], [SMALL, other]):
            tally = tally_of(*(judged(values, LOOSE, x=np.inf) for values in order))
            assert tally.verdict() == (Verdict.PASSED, "")


def test_zeros_that_are_expected_make_no_tolerance_loose() -> None:
    zeros = np.zeros(5, np.float32)
    tally = tally_of(judged(zeros, LOOSE), judged(zeros[:2], LOOSE))
    assert tally.verdict() == (Verdict.PASSED, "")
    assert tally.constant == {"y": 0.0}, "which is warned of in another way"


def test_an_output_that_always_has_one_value_is_known() -> None:
    one, five = np.ones(4, np.float32), np.full(9, 5, np.float32)
    mixed = np.array([1, 1, 2], np.float32)
    assert tally_of(judged(five, None), judged(five[:1], None)).constant == {"y": 5.0}
    assert tally_of(judged(one[:0], None), judged(one, None)).constant == {"y": 1.0}
    for cases in ([one, five], [one, mixed], [mixed, one], [one[:0], mixed, one]):
        assert tally_of(*(judged(values, None) for values in cases)).constant == {}, cases


def test_what_is_weak_survives_being_stored() -> None:
    result = judged(np.full(9, 0.5, np.float32), LOOSE)
    assert convert(plain(result), CheckResult, strict=False) == result
    elements = Elements.of(result)
    assert convert(to_builtins(elements), Elements) == elements
    assert elements.weak


def makes_passed(tree: ast.AST) -> Iterator[int]:
    """Lines that make the verdict ``passed``, rather than ask for it or look something up by it."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in every_node(tree):
        if isinstance(node, ast.Attribute) and node.attr == "PASSED":
            value: ast.AST = node
            outer = parents[node]
            if isinstance(outer, ast.Attribute) and outer.attr == "value":
                value, outer = outer, parents[outer]
            while isinstance(outer, (ast.Tuple, ast.Set, ast.List)):
                value, outer = outer, parents[outer]
            if not _only_asks(value, outer):
                yield node.lineno
        elif isinstance(node, ast.Constant) and node.value == "PASSED":
            outer = parents[node]
            looked_up = isinstance(outer, ast.Call) and getattr(outer.func, "id", "") == "getattr"
            if looked_up or isinstance(outer, ast.Subscript):
                yield node.lineno
        elif isinstance(node, ast.Constant) and node.value == "passed":
            outer = parents[node]
            named = isinstance(outer, ast.keyword) and outer.arg == "verdict"
            called = isinstance(outer, ast.Call) and getattr(outer.func, "id", "") == "Verdict"
            entry = isinstance(outer, ast.Dict) and any(
                value is node and isinstance(key, ast.Constant) and key.value == "verdict"
                for key, value in zip(outer.keys, outer.values, strict=True)
            )
            if named or called or entry:
                yield node.lineno


def _only_asks(value: ast.AST, outer: ast.AST) -> bool:
    """A comparison, a key, an index, a lookup, or a constant that holds several verdicts."""
    if isinstance(outer, (ast.Compare, ast.Subscript)):
        return True
    if isinstance(outer, ast.Dict):
        return value in outer.keys
    if isinstance(outer, ast.Call):
        return getattr(outer.func, "attr", "") in ("get", "count")
    if isinstance(outer, ast.Assign):
        return isinstance(value, ast.Tuple) or _is_name_of_word(outer)
    return isinstance(outer, ast.IfExp) and isinstance(value, ast.Tuple)


def _is_name_of_word(assignment: ast.Assign) -> bool:
    """``passed = Verdict.PASSED.value``: a shorter name, of which only comparisons are made."""
    target = assignment.targets[0]
    return isinstance(target, ast.Name) and target.id == "passed"


def test_only_one_function_makes_the_verdict_passed() -> None:
    found = {
        f"{module}:{line}"
        for module, path in source_files(ROOT).items()
        if "passed" in (text := path.read_text(encoding="utf-8")).lower()
        for line in makes_passed(ast.parse(text))
    }
    assert {place.rpartition(":")[0] for place in found} == {ONLY}
    assert len(found) == 1


@for_each(
    "code",
    [
        "return_(Verdict.PASSED)",
        "x = Verdict.FAILED if bad else Verdict.PASSED",
        "verdict = Verdict('passed')",
        "verdict = Verdict['PASSED']",
        "verdict = getattr(Verdict, 'PASSED')",
        "replace(r, verdict=Verdict.PASSED)",
        "d = {'verdict': 'passed'}",
        "d = {'verdict': Verdict.PASSED.value}",
        "f(verdict='passed')",
        "y = values.get('verdict', Verdict.PASSED.value) or Verdict.PASSED",
    ],
)
def test_the_search_finds_a_second_way(code: str) -> None:
    assert list(makes_passed(ast.parse(code)))
