"""Calls of programs: what they are given, return and say, and what is known of them, by tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.model.types import Case, ConfiguredEnv, Failure, FailureKind, InputSpec
from gpuemu_flow.workers.api import (
    OpError,
    Outcome,
    OutputInfo,
    Program,
    RunError,
    Slot,
    end_of,
    gives_up,
    not_run,
    was_given_up,
)
from gpuemu_flow.workers.arguments import (
    ArgumentRecord,
    argument_names,
    arguments,
    changed_arguments,
    for_protocol,
    pinned,
    split,
    take_apart,
)
from gpuemu_flow.workers.attempt import hinted
from gpuemu_flow.workers.callable import CallableRunner, call_style
from gpuemu_flow.workers.checked import CheckedInputs, resemble
from gpuemu_flow.workers.sandbox.spec import (
    has_seccomp,
    is_below,
    lacks,
    landlock_version,
    level_of,
    shown_level,
)
from gpuemu_flow.workers.tensors import demand_bools, name_outputs

NAMES = ("a", "re", "n", "b", "im", "mode", "bias")
PROGRAM = Program(
    "callable",
    "/",
    NAMES,
    mutates=("re", "bias", "im"),
    scalars={"n": None, "mode": ["sum", "mean", "none"], "a": None},
    optional=("b", "bias", "n"),
    groups={
        "z": {"kind": "complex", "members": ["re", "im"]},
        "all": {"kind": "list", "members": ["a", "b"]},
    },
)


def inputs() -> dict[str, np.ndarray]:
    return {
        "a": np.array([1.0, 2.0], np.float32),  # more than one element is no scalar
        "re": np.array([1.0, 2.0], np.float32),
        "n": np.array([7], np.int32),
        "b": np.zeros((0, 0), np.float32),
        "im": np.array([3.0, 4.0], np.float32),
        "mode": np.array([4], np.int64),
        "bias": np.zeros((0, 3), np.float32),  # empty, and not absent
    }


def test_inputs_become_arguments() -> None:
    given = inputs()
    assert argument_names(PROGRAM) == ("all", "z", "n", "mode", "bias")
    assert changed_arguments(PROGRAM) == ("z", "bias")
    found = arguments(PROGRAM, given)
    assert [(name, type(value)) for name, value in found.items()] == [
        ("all", list), ("z", np.ndarray), ("n", int), ("mode", str), ("bias", np.ndarray),
    ]  # fmt: skip
    (only,) = found["all"]
    assert only is given["a"]
    assert (found["n"], found["mode"]) == (7, "mean")
    assert found["bias"] is given["bias"]
    assert (found["z"].dtype, found["z"].tolist()) == (np.complex64, [1 + 3j, 2 + 4j])
    wide = {name: array.astype(np.float64) for name, array in given.items() if name in ("re", "im")}
    assert arguments(PROGRAM, {**given, **wide})["z"].dtype == np.complex128
    plain = Program("callable", "/", ("n", "b"))
    assert argument_names(plain) == ("n", "b")
    assert arguments(plain, given) == given


def test_what_is_no_tensor_is_named_apart() -> None:
    given = inputs()
    tensors, rest = split(PROGRAM, given)
    assert list(tensors) == ["a", "re", "im", "bias"]
    assert rest == {"n": 7, "b": None, "mode": "mean"}
    assert for_protocol(PROGRAM, given)[1] == {"n": 7, "mode": "mean"}
    fixed, left = pinned(PROGRAM, given)
    assert list(left) == list(fixed.input_names) == ["a", "re", "im", "bias"]
    assert (fixed.kwargs, fixed.scalars, fixed.optional) == (rest, {}, ())
    plain = Program("callable", "/", ("a",), kwargs={"eps": 1})
    assert pinned(plain, {"a": given["a"]}) == (plain, {"a": given["a"]})


def test_changes_of_a_complex_argument_reach_its_parts() -> None:
    given = inputs()
    given["im"].flags.writeable = False
    found = arguments(PROGRAM, given)
    found["z"] *= 2
    found["all"][0] = np.zeros(2)
    take_apart(PROGRAM, found, given)
    assert [given[name].tolist() for name in ("re", "im", "a")] == [[2, 4], [3, 4], [1, 2]]
    take_apart(PROGRAM, {}, given)


def transposed(x: np.ndarray) -> None:
    x.shape = x.shape[::-1]


def other_strides(x: np.ndarray) -> None:
    x.strides = (4, 8)


def as_integers(x: np.ndarray) -> None:
    x.dtype = np.int32


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "nothing": (lambda given: None, ""),
    "elements": (lambda given: given["x"].fill(0), ""),
    "what may": (lambda given: transposed(given["out"]), ""),
    "shape": (
        lambda given: transposed(given["x"]),
        "the program changed the shape of input 'x' from [2, 3] to [3, 2]",
    ),
    "dtype": (
        lambda given: as_integers(given["x"]),
        "the program changed the dtype of input 'x' from float32 to int32",
    ),
    "strides": (
        lambda given: other_strides(given["x"]),
        "the program changed the strides of input 'x' from [12, 4] to [4, 8]",
    ),
    "member's shape": (
        lambda given: transposed(given["many"][1]),
        "the program changed the shape of input 'many' from [2, 3] to [3, 2]",
    ),
    "fewer": (
        lambda given: given["many"].pop(),
        "the program changed the list 'many' from 2 to 1 tensors",
    ),
    "others": (
        lambda given: given["many"].reverse(),
        "the program put other tensors into the list 'many'",
    ),
}


@for_each("name", CHANGES)
def test_what_a_call_changes_is_named(name: str) -> None:
    change, says = CHANGES[name]
    program = Program("callable", "/", ("x", "out", "a", "b"), mutates=("out",), kwargs={"k": 1},
                      groups={"many": {"kind": "list", "members": ["a", "b"]}})  # fmt: skip
    arrays = {name: np.ones((2, 3), np.float32) for name in program.input_names}
    for by_name in (False, True):
        given = {name: array.copy() for name, array in arrays.items()}
        given = {**arguments(program, given), "k": np.ones((2, 3))}
        assert list(given) == ["x", "out", "many", "k"]
        args = () if by_name else tuple(given.values())[:3]
        record = ArgumentRecord(program, args, given if by_name else {"k": given["k"]})
        transposed(given["k"])
        change(given)
        assert [failure.message for failure in record.failures()] == [says] * bool(says)


def test_a_mapping_keeps_its_members() -> None:
    program = Program("callable", "/", ("x", "out", "y"), mutates=("out",))
    given = {name: np.ones((2, 3), np.float32) for name in program.input_names}
    record = ArgumentRecord(program, (given,), {})
    assert record.failures() == []
    given.update(x=given["x"].copy(), out=np.ones(1))
    del given["y"]
    assert [(f.output, f.message.split(" in ")[0]) for f in record.failures()] == [
        (name, f"the program removed or replaced input {name!r}") for name in ("x", "y")
    ]


def in_order(x: Any, y: Any) -> None: ...
def any_order(y: Any, x: Any, *, eps: float = 0.0) -> None: ...
def one_mapping(inputs: Any, eps: float = 0.0) -> None: ...
def any_names(**inputs: Any) -> None: ...
def rest(*inputs: Any) -> None: ...
def by_place(x: Any, y: Any, /) -> None: ...
def with_more(x: Any, y: Any, z: Any) -> None: ...


STYLES: list[tuple[Callable[..., None], tuple[str, ...], tuple[str, ...], str]] = [
    (in_order, ("x", "y"), (), "f(**inputs)"),
    (any_order, ("x", "y"), ("eps",), "f(**inputs)"),
    (any_names, ("x", "y"), ("k",), "f(**inputs)"),
    (one_mapping, ("x", "y"), (), "f(inputs)"),
    (one_mapping, ("x",), ("eps",), "f(inputs)"),
    (one_mapping, ("inputs",), (), "f(**inputs)"),
    (rest, ("x", "y"), (), "f(*inputs)"),
    (by_place, ("x", "y"), (), "f(*inputs)"),
    (np.add, ("x", "y"), (), "f(*inputs)"),
    (with_more, ("x", "y"), ("z",), "f(**inputs)"),
    (in_order, ("x",), ("k",), "in_order(x, y) does not take the inputs x"),
    (in_order, ("x", "y", "z"), (), "in_order(x, y) does not take the inputs x, y, z"),
    (with_more, ("x", "y"), (), "with_more(x, y, z) does not take the inputs x, y"),
    (one_mapping, ("x", "y"), ("a", "eps", "b"), "one_mapping takes no keyword a, b"),
]


@for_each(("function", "names", "kwargs", "style"), STYLES)
def test_a_signature_decides_how_it_is_called(
    function: Callable[..., None], names: tuple[str, ...], kwargs: tuple[str, ...], style: str
) -> None:
    program = Program(
        "callable", "/", names, function=function.__name__, kwargs=dict.fromkeys(kwargs, 1)
    )
    if style.startswith("f("):
        assert call_style(function, program) == style
        hint = CallableRunner(program, function).hint
        assert bool(hint) == (style == "f(inputs)" and len(names) == 1)
        return
    with pytest.raises(OpError) as caught:
        call_style(function, program)
    error = caught.value.error
    assert (error.slug, error.message) == ("op-signature", style)
    assert error.line == function.__code__.co_firstlineno


@for_each("size", [0, 1, 2, 3, 6, 191, 192, 195, 400])
def test_a_decoy_resembles_the_judged_inputs_at_their_ends(size: int) -> None:
    case = Case(0, 7, "float32", "contiguous", "normal", (InputSpec("x", (size,), "float32"),))
    judged = np.arange(size, dtype=np.float32)
    decoy = {"x": -1 - judged, "fixed": -2 - judged}
    decoy["fixed"].flags.writeable = False
    resemble(decoy, {"x": judged, "fixed": judged}, case)
    ends = min(64, size // 3)
    alike = np.arange(size) < ends
    assert np.array_equal(decoy["x"] == judged, alike | alike[::-1])
    assert not (decoy["fixed"] == judged).any()
    other = {"x": -1 - judged}
    resemble(other, {"x": judged}, replace(case, seed=8))
    assert not (other["x"] == judged).any()


ONE, TWO = np.array([1.0]), np.array([2.0])
RETURNED: list[tuple[object, tuple[str, ...], dict[str, np.ndarray] | str]] = [
    (ONE, (), {"result": ONE}),
    (ONE, ("y",), {"y": ONE}),
    (2.5, ("y",), {"y": np.array(2.5)}),
    ((ONE,), (), {"result": ONE}),
    ([ONE, TWO], (), {"result0": ONE, "result1": TWO}),
    ((ONE, TWO), ("y", "z"), {"y": ONE, "z": TWO}),
    ({"a": ONE}, (), {"result": ONE}),
    ({"a": ONE}, ("y",), {"y": ONE}),
    ({"b": ONE, "a": TWO}, (), {"a": TWO, "b": ONE}),
    ({"b": ONE, "a": TWO}, ("b", "a"), {"b": ONE, "a": TWO}),
    ([[1.0], [2.0]], (), "output 'result' is of type list, not an array"),
    (None, ("y",), "output 'y' is of type NoneType, not an array"),
    (ONE, ("y", "z"), "one ndarray returned where 2 outputs are declared: y, z"),
    ((ONE, TWO), ("y",), "2 outputs returned where 1 are declared: y"),
    ((ONE,), ("y", "z"), "1 outputs returned where 2 are declared: y, z"),
    ({}, (), "a mapping of outputs needs string keys, at least one"),
    ({1: ONE}, (), "a mapping of outputs needs string keys, at least one"),
    ({"a": ONE, "b": TWO}, ("y",), "the outputs are a, b, but y are declared"),
    ({"a": ONE}, ("a", "b"), "the outputs are a, but a, b are declared"),
    (np.array(["a"]), (), "output 'result' has the dtype 'str32'"),
    (10**400, (), "output 'result' has the dtype 'object'"),
    (np.ma.masked_array([1.0], [True]), (), "output 'result' is a masked array"),
]


@for_each(("returned", "names", "expected"), RETURNED)
def test_what_a_call_returns_is_named(
    returned: object, names: tuple[str, ...], expected: dict[str, np.ndarray] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises(OpError) as caught:
            name_outputs(returned, names)
        assert caught.value.error.message.startswith(expected)
        return
    found = name_outputs(returned, names)
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    assert list(found) == list(expected)


def test_the_bytes_of_an_array_are_those_of_its_dtype() -> None:
    big = name_outputs(np.array([1, 2], ">i4"), ())["result"]
    assert (big.dtype, big.tolist()) == (np.dtype("<i4"), [1, 2])

    class Mine(np.ndarray):
        pass

    assert type(name_outputs(ONE.view(Mine), ())["result"]) is np.ndarray
    bools = np.array([0, 1], np.uint8).view(np.bool_)
    demand_bools({"a": bools, "b": np.array([2, 255]), "c": bools[:0]})
    with pytest.raises(OpError, match="output 'b' holds bytes that are no bool"):
        demand_bools({"a": bools, "b": np.array([0, 2], np.uint8).view(np.bool_)})


@for_each(
    ("slug", "said", "hint"),
    [
        ("op-exception", ("KeyError: 'MY_FIRST'", ""), '"MY_FIRST"'),
        ("op-not-loadable", ("", "MY_SECOND, MY_FIRST"), '"MY_FIRST", "MY_SECOND"'),
        ("op-exit-code", ("MY_A MY_B MY_C MY_D", ""), '"MY_A", "MY_B", "MY_C"'),
        ("op-exception", ("MY_GIVEN MY_NAMED OMP_NUM_THREADS MY_UNSET M", ""), ""),
        ("op-timeout", ("MY_FIRST", ""), ""),
    ],
)
def test_a_variable_that_was_held_back_is_named(
    monkeypatch: pytest.MonkeyPatch, slug: str, said: tuple[str, str], hint: str
) -> None:
    for name in ("FIRST", "SECOND", "GIVEN", "NAMED", "A", "B", "C", "D"):
        monkeypatch.setenv(f"MY_{name}", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    program = Program("callable", "/", (), env={"MY_GIVEN": "2"}, env_names=("MY_NAMED",))
    error = RunError(slug, said[0], stderr_tail=said[1])
    found = hinted(error, program).hint
    assert found == (f"it was not given variables of yours: env = [{hint}], of the op or of "
                     "`[execution]`, lets them through" if hint else "")  # fmt: skip
    other = replace(error, hint="another")
    assert hinted(other, program) is other


def test_what_is_known_of_a_case_that_ran_comes_back() -> None:
    error = RunError("op-exception", "why", "a hint", "tail", "f.py", 3, "ValueError", "said")
    failure = Failure(FailureKind.INPUT_MODIFIED, "it did", "x", (1, 2), math.nan, math.inf)
    outputs = (OutputInfo("y", (2, 3), "float16"), OutputInfo("z", (), "bool"))
    for outcome in (
        Outcome(0, ok=True),
        Outcome(1, ok=False, error=error),
        Outcome(2, True, "ab", 7, outputs, None, (failure,), 0.25, "printed"),
    ):
        data = json.loads(json.dumps(outcome.to_json()))
        assert repr(Outcome.from_json(data)) == repr(outcome)
        assert ("printed" in data) is bool(outcome.printed)
        with pytest.raises((KeyError, TypeError, ValueError)):
            Outcome.from_json({**data, "outputs": [{}]})
    assert len(Outcome.from_json({**data, "printed": "x" * 5000}).printed) == 4000


def test_the_last_cases_decide_whether_to_go_on() -> None:
    late, not_late = ("op-timeout", "op-not-run"), ("op-crashed", "")
    for slugs, wanted in (
        ((), False), (late[:1] * 2, False), (late[:1] * 3, True), ((*late, late[1]), True),
        ((*late, not_late[0]), False), ((*late, not_late[1]), False),
        ((not_late[1], *late, late[0]), True), ((late[0], not_late[1], *late), False),
    ):  # fmt: skip
        errors = [RunError(slug, "") if slug else None for slug in slugs]
        outcomes = [Outcome(n, error is None, error=error) for n, error in enumerate(errors)]
        assert gives_up(outcomes) is wanted, slugs
    skipped = not_run(7, 2.5)
    assert (skipped.index, skipped.ok, was_given_up(skipped)) == (7, False, True)
    assert "3 cases in a row had no result after 2.5 s each" in str(skipped.error)
    assert not was_given_up(Outcome(0, ok=True))


def test_what_a_program_may_take_and_leave() -> None:
    program = Program("callable", "/", (), timeout=2.0)
    assert (program.patience(5_000_000), program.can_stay) == (2.0, True)
    assert replace(program, timeout_grows=True).patience(5_000_000) == 7.0
    for change in ({"isolation": "spawn"}, {"isolation": "warm"}, {"memory_limit": 0},
                   {"python": "python"}, {"kind": "command"}, {"kind": "ptx"}, {"kind": "cuda"},
                   {"gpu_folder": "f"}):  # fmt: skip
        assert not replace(program, **change).can_stay, change
    given = replace(program, env={"A": "1"}, env_names=("B",)).given
    assert given == ConfiguredEnv({"A": "1"}, ("B",))


def test_the_place_of_a_tensor() -> None:
    for slot, span in (
        (Slot(8, (2, 3), (12, 4), "float32"), (8, 32)),
        (Slot(8, (2, 3), (4, -8), "float32"), (-8, 16)),
        (Slot(8, (), (), "float64"), (8, 16)),
        (Slot(8, (5, 0), (4, 4), "float32"), (8, 8)),
        (Slot(8, (4,), (0,), "int8"), (8, 9)),
    ):
        assert slot.span() == span
    assert end_of({}) == 0
    assert end_of({"a": Slot(8, (2,), (4,), "float32"), "b": Slot(0, (1,), (1,), "int8")}) == 16
    for wrong in (("f", (2,), ()), ("float32", (-1,), (4,)), ("float32", (1,) * 33, (1,) * 33)):
        with pytest.raises(ValueError, match="not a tensor's place"):
            Slot(0, wrong[1], wrong[2], wrong[0])
    case = Case(0, 7, "float16", "contiguous", "normal", ())
    for inputs, dtype in (
        (CheckedInputs(0, 7, case), "float16"), (CheckedInputs(0, 7), ""),
        (CheckedInputs(0, 7, case, input_dtype="float64"), "float64"),
    ):  # fmt: skip
        assert inputs.float_dtype == dtype


def test_levels_of_the_sandbox() -> None:
    for version in range(12):
        for seccomp in (False, True):
            level = level_of(version, seccomp=seccomp)
            assert (landlock_version(level), has_seccomp(level)) == (version, seccomp)
            missing = ("landlock",) * (not version) + ("seccomp",) * (not seccomp)
            assert lacks(level) == missing
            words = [*([level]), *[", ".join(f"no {name}" for name in missing)] * bool(missing)]
            assert shown_level(level) == "; ".join(words)
    assert (level_of(0, seccomp=False), level_of(7, seccomp=True)) == (
        "none",
        "landlock 7, seccomp",
    )
    assert (lacks("off"), shown_level("off"), landlock_version("off")) == ((), "off", 0)
    below = {"/a": True, "/a/b": True, "/ab": False, "/": False, "/c/d": True, "/c": False}
    assert {path: is_below(path, ("/a", "/c/d/")) for path in below} == below | {"/c/d": False}
    assert is_below("/any", ("/",))
