"""The extra checks: inputs that change, writes out of bounds, state, unwritten outputs."""

from __future__ import annotations

import pytest
from runner_workspace import Workspace, make_case, slugs

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.runners.api import Checks
from gpuemu_flow.types import DTYPES, LAYOUTS, FailureKind

FENCED = True

ALL = Checks(inputs_unchanged=True, guards=True, decoy=True, repeat=True)


def kinds(ws: Workspace, source: str, checks: Checks = ALL, **more: object) -> list[FailureKind]:
    case = more.pop("case", make_case(0, (64, 48)))
    (outcome,) = ws.run(ws.program("callable", source, **more), [case], checks)
    assert outcome.ok, outcome.error
    return [failure.kind for failure in outcome.violations]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2", "int64", "bool"])
def test_a_clean_op_has_no_violation(ws: Workspace, layout: str, dtype: str) -> None:
    source = "import numpy as np\ndef op(x): return np.concatenate([x, x])"
    for index, shape in enumerate([(), (0, 3), (1,), (5, 7), (64, 48)]):
        case = make_case(index, shape, dtype, layout=layout)
        body = source if shape else source.replace("np.concatenate([x, x])", "x + x")
        assert kinds(ws, body, case=case) == []


def test_a_changed_input(ws: Workspace) -> None:
    source = "def op(x):\n    x[3, 5] = 99\n    return x + 0"
    case = make_case(0, (64, 48))
    (outcome,) = ws.run(ws.program("callable", source), [case], Checks())
    (failure,) = outcome.violations
    assert failure.kind is FailureKind.INPUT_MODIFIED
    assert (failure.output, failure.index) == ("x", (3, 5))
    assert failure.expected == float(materialise(case)["x"][3, 5])
    assert failure.actual == 99.0
    assert "1 of 3072" in failure.message


def test_a_declared_change_is_allowed(ws: Workspace) -> None:
    source = "def op(x):\n    x *= 2\n    return x"
    assert kinds(ws, source) == [FailureKind.INPUT_MODIFIED]
    assert kinds(ws, source, mutates=("x",)) == []
    assert kinds(ws, source, Checks(inputs_unchanged=False)) == []


def test_a_mutating_ops_outputs_are_those_of_the_judged_call(ws: Workspace) -> None:
    """The repeated call gets the original values again, and does not touch what was returned."""
    case = make_case(0, (64, 48))
    program = ws.program("callable", "def op(x):\n    x *= 2\n    return x", mutates=("x",))
    (outcome,) = ws.run(program, [case], ALL)
    assert (ws.outputs(outcome)["result"] == 2 * materialise(case)["x"]).all()
    assert outcome.violations == ()


@pytest.mark.parametrize("side", [-1, 1])
def test_a_write_out_of_bounds(ws: Workspace, side: int) -> None:
    source = f"""
    import ctypes
    def op(x):
        start, end = x.ctypes.data, x.ctypes.data + x.nbytes
        address = start - 8 if {side} < 0 else end + 4
        ctypes.memset(address, 0x11, 4)
        return x + 1
    """
    assert kinds(ws, source) == [FailureKind.OUT_OF_BOUNDS]


def test_a_write_into_the_gaps_of_a_strided_input(ws: Workspace) -> None:
    source = """
    import ctypes
    def op(x):
        ctypes.memset(x.ctypes.data + x.itemsize, 0, 1)
        return x + 1
    """
    strided = make_case(0, (64, 48), layout="strided")
    assert kinds(ws, source, Checks(), case=strided) == [FailureKind.OUT_OF_BOUNDS]


def test_state_from_an_earlier_call_shows_in_the_judged_one(ws: Workspace) -> None:
    """A result cached by address and shape is the decoy's, because its memory is used again."""
    source = """
    cache = {}
    def op(x):
        key = (x.ctypes.data, x.shape)
        if key not in cache:
            cache[key] = x * 2
        return cache[key]
    """
    case = make_case(0, (64, 48))
    (outcome,) = ws.run(ws.program("callable", source), [case], Checks(decoy=True))
    assert (ws.outputs(outcome)["result"] != 2 * materialise(case)["x"]).any()


def test_calls_that_differ(ws: Workspace) -> None:
    counter = "n = 0\ndef op(x):\n    global n\n    n += 1\n    return x + n"
    assert kinds(ws, counter, Checks(repeat=True)) == [FailureKind.NON_DETERMINISTIC]
    assert kinds(ws, counter, Checks(repeat=True), deterministic=False) == []
    assert kinds(ws, counter, Checks()) == []
    noise = "import numpy as np\ndef op(x): return x + np.random.rand()"
    assert kinds(ws, noise, Checks(repeat=True)) == [FailureKind.NON_DETERMINISTIC]
    shapes = "n = 0\ndef op(x):\n    global n\n    n += 1\n    return x[:-n]"
    assert kinds(ws, shapes, Checks(repeat=True)) == [FailureKind.NON_DETERMINISTIC]
    buffer = """
    import numpy as np
    out = np.empty((64, 48), np.float32)
    def op(x):
        np.add(x, len(calls), out=out)
        calls.append(1)
        return out
    calls = []
    """
    assert kinds(ws, buffer, Checks(repeat=True)) == [FailureKind.NON_DETERMINISTIC]


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bool"])
def test_elements_that_nobody_wrote(ws: Workspace, dtype: str) -> None:
    source = """
    import numpy as np
    def op(x):
        out = np.empty_like(x, order="C")
        out[:-1] = x[:-1]
        return out
    """
    case = make_case(0, (64, 48), dtype)
    (outcome,) = ws.run(ws.program("callable", source), [case], Checks(repeat=True))
    (failure,) = outcome.violations
    assert failure.kind is FailureKind.UNWRITTEN
    assert failure.index == (63, 0)
    assert "48 of 3072" in failure.message


def test_an_uninitialised_scratch_buffer_is_allowed(ws: Workspace) -> None:
    source = """
    import numpy as np
    def op(x):
        scratch = np.empty((64, 96), np.float32)
        scratch[:, :48] = x
        return scratch[:, :48] * 2
    """
    assert kinds(ws, source) == []


def test_checks_on_scripts_and_in_spawned_processes(ws: Workspace) -> None:
    from runner_workspace import PROTOCOL

    script = PROTOCOL + "print(json.dumps(tensor(read()[0]['x'] + np.random.rand())))\n"
    (outcome,) = ws.run(ws.program("script", script), 1, ALL)
    assert [f.kind for f in outcome.violations] == [FailureKind.NON_DETERMINISTIC]
    clean = PROTOCOL + "print(json.dumps(tensor(read()[0]['x'] + 1)))\n"
    outcomes = ws.run(ws.program("script", clean, isolation="spawn"), 2, ALL)
    assert slugs(outcomes) == ["ok", "ok"]
    assert outcomes[0].violations == ()


def test_a_decoy_that_fails_does_not_count(ws: Workspace) -> None:
    source = """
    n = 0
    def op(x):
        global n
        n += 1
        if n == 1:
            raise RuntimeError("at the first call")
        return x
    """
    assert kinds(ws, source) == []
