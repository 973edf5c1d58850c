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


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("x.shape = (48, 64)", "the shape of input 'x' from [64, 48] to [48, 64]"),
        ("x.dtype = 'i4'", "the dtype of input 'x' from float32 to int32"),
    ],
)
def test_an_input_of_another_form_is_a_changed_input(ws: Workspace, change: str, said: str) -> None:
    source = f"def op(x):\n    y = x + 1\n    {change}\n    return y"
    (outcome,) = ws.run(ws.program("callable", source), [make_case(0, (64, 48))], Checks())
    assert [failure.kind for failure in outcome.violations] == [FailureKind.INPUT_MODIFIED]
    assert said in outcome.violations[0].message
    may = ws.program("callable", source, mutates=("x",))
    (outcome,) = ws.run(may, [make_case(0, (64, 48))], Checks())
    assert outcome.violations == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("while xs: xs.pop()", "the list 'xs' from 2 to 0 tensors"),
        ("xs.append(y)", "the list 'xs' from 2 to 3 tensors"),
        ("xs[0] = y", "put other tensors into the list 'xs'"),
        ("xs.reverse()", "put other tensors into the list 'xs'"),
        ("pass", ""),
        ("xs = xs[1:]", ""),
    ],
)
@pytest.mark.parametrize("kind", ["callable", "torch", "jax"])
def test_a_list_of_inputs_stays_as_it_is(ws: Workspace, kind: str, change: str, said: str) -> None:
    if kind != "callable":
        pytest.importorskip(kind)
    source = f"def op(xs):\n    y = xs[0] + xs[1]\n    {change}\n    return y"
    groups = {"xs": {"kind": "list", "members": ["a", "b"]}}
    program = ws.program(kind, source, function="op", input_names=("a", "b"), groups=groups)
    (outcome,) = ws.run(program, [make_case(0, (5, 7), names=("a", "b"))], Checks())
    assert outcome.ok, outcome.error
    found = [(f.kind, f.output) for f in outcome.violations]
    assert found == ([(FailureKind.INPUT_MODIFIED, "xs")] if said else [])
    assert all(said in failure.message for failure in outcome.violations)


def test_a_mapping_of_inputs_keeps_what_is_in_it(ws: Workspace) -> None:
    for change in ("inputs.pop('x')", "inputs['x'] = 0", "inputs.clear()"):
        source = f"def op(inputs):\n    y = inputs['x'] + 1\n    {change}\n    return y"
        assert kinds(ws, source, Checks()) == [FailureKind.INPUT_MODIFIED], change
    source = "def op(inputs):\n    return dict(inputs).pop('x') + 1"
    assert kinds(ws, source, Checks()) == []


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("torch", "x.t_()"),
        ("torch", "x.unsqueeze_(0)"),
        ("torch", "x.data = torch.zeros_like(x)"),
        ("torch", "x.set_(torch.zeros(2))"),
        ("triton", "x.t_()"),
    ],
)
def test_a_tensor_of_torch_stays_the_one_that_it_was(ws: Workspace, kind: str, change: str) -> None:
    for needed in {"torch", kind}:
        pytest.importorskip(needed)
    head = "import torch\ndef op(x):\n    y = x + 1\n"
    case = make_case(0, (5, 7))
    program = ws.program(kind, f"{head}    {change}\n    return y", function="op")
    (outcome,) = ws.run(program, [case], Checks())
    assert outcome.ok, outcome.error
    assert FailureKind.INPUT_MODIFIED in [failure.kind for failure in outcome.violations]
    view = ws.program(
        kind, f"{head}    z = x.view(-1); z.unsqueeze_(0)\n    return y", function="op"
    )
    (outcome,) = ws.run(view, [case], Checks())
    assert FailureKind.INPUT_MODIFIED not in [failure.kind for failure in outcome.violations]


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
