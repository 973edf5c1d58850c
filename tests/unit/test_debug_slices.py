"""The debugger's tensor words: read as numpy would, refused with a reason, never evaluated."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.services.debugger import check_slice, parse_tensors

ARRAY = np.arange(2 * 3 * 5).reshape(2, 3, 5)


@for_each(
    "text",
    ["0", "-1", "1,2,-5", ":", "::2", "1:", ":-1", "4:0:-1", "...", "...,0", "0,...", "0,...,1:3",
     "1 , 0 : 2", "+1", "5:2", "0:100"],
)  # fmt: skip
def test_as_numpy_reads_it(text: str) -> None:
    ((name, indices),) = parse_tensors(f" x[{text}] ")
    assert name == "x"
    check_slice(name, indices, ARRAY.shape)
    expected = eval(f"ARRAY[{text}]")
    np.testing.assert_array_equal(ARRAY[indices], expected)


@for_each(
    ("text", "reason"),
    [
        ("x[]", "nothing between"),
        ("x[ ]", "nothing between"),
        ("x[1", "without its partner"),
        ("x]1", "without its partner"),
        ("[1]", "without its partner"),
        ("x[1]y", "unexpected 'y'"),
        ("x[[1]]", "without its partner"),
        ("x[1,]", "an empty index"),
        ("x[a]", "'a' is no integer"),
        ("x[1.5]", "no integer"),
        ("x[1e3]", "no integer"),
        ("x[0x10]", "no integer"),
        ("x[١]", "no integer"),
        ("x[1_0]", "no integer"),
        ("x[" + "9" * 19 + "]", "no integer"),
        ("x[1:2:3:4]", "more than start:stop:step"),
        ("x[::0]", "a step of 0"),
        ("x[...,...]", "more than one ellipsis"),
        ("x[__import__('os').system('true')]", "no integer"),
        ("x[2]", "2 is out of range for a dim of 2"),
        ("x[-3]", "-3 is out of range"),
        ("x[...,5]", "5 is out of range for a dim of 5"),
        ("x[0,...,3,0]", "3 is out of range for a dim of 3"),
        ("x[0,0,0,0]", "4 indices for the shape"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UsageError) as caught:
        for name, indices in parse_tensors(text):
            check_slice(name, indices, ARRAY.shape)
    problem = caught.value.problems[0]
    assert problem.slug == "debug-bad-slice"
    assert reason in problem.message


def test_several_words() -> None:
    assert parse_tensors("") == []
    assert parse_tensors("a b.c[0]  d [1:2]") == [
        ("a", ()), ("b.c", (0,)), ("d", (slice(1, 2),)),
    ]  # fmt: skip


def test_a_0d_tensor() -> None:
    check_slice("x", (...,), ())
    with pytest.raises(UsageError):
        check_slice("x", (0,), ())
