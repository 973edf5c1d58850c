"""What a call is given for a case's inputs, and what it may not change of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from for_each import for_each

from gpuemu_flow.workers.api import Program
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
from gpuemu_flow.workers.sandbox.spec import (
    has_seccomp,
    is_below,
    lacks,
    landlock_version,
    level_of,
    shown_level,
)

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
