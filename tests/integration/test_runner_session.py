"""A program called again and again over shared memory: same results, same trouble, no files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from runner_workspace import Workspace, make_case, marked_case, slugs, staged_pool

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.runners.api import Checks
from gpuemu_flow.types import DTYPES, LAYOUTS, FailureKind

SHAPES = [(), (0,), (3, 4), (2, 0, 5), (300, 4000), (2, 3)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_cases_and_arrays_give_the_same_bits(ws: Workspace, dtype: str) -> None:
    """Growing and shrinking tensors through one session."""
    with ws.pool.session(ws.program("callable", "def op(x): return {'a': x}")) as session:
        for index, shape in enumerate(SHAPES):
            case = make_case(index, shape, dtype)
            array = materialise(case)["x"]
            for inputs in (case, {"x": array}):
                outputs, outcome = session.call(inputs, index=index)
                assert outcome.ok, outcome.error
                assert outcome.index == index
                result = outputs["result"]
                assert (result.dtype, result.shape) == (array.dtype, array.shape)
                assert result.tobytes() == array.tobytes()
                assert not result.flags.writeable


@pytest.mark.parametrize("layout", LAYOUTS)
def test_arrays_keep_their_layout(ws: Workspace, layout: str) -> None:
    source = """
    import numpy as np
    def op(x):
        facts = [*x.strides, x.ctypes.data % 64, x.flags.writeable]
        return {"facts": np.array(facts), "values": x}
    """
    program = ws.program("callable", source, output_names=("facts", "values"))
    array = materialise(make_case(0, (6, 10), layout=layout))["x"]
    with ws.pool.session(program) as session:
        outputs, _ = session.call({"x": array})
    assert outputs["facts"].tolist() == [
        *array.strides,
        array.ctypes.data % 64,
        array.flags.writeable,
    ]
    np.testing.assert_array_equal(outputs["values"], array)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_conversion_in_the_worker(ws: Workspace, layout: str) -> None:
    program = ws.program("callable", "def op(x, n): return {'r': x}", input_names=("x", "n"))
    case = make_case(0, (6, 10), "bfloat16", layout=layout)
    x, n = materialise(case)["x"], np.arange(3)
    with ws.pool.session(program) as session:
        outputs, outcome = session.call(
            {"x": x, "n": n}, input_dtype="float64", dtype="bfloat16", checks=Checks(repeat=True)
        )
        assert outcome.violations == ()
        assert outputs["result"].dtype == np.float64
        np.testing.assert_array_equal(outputs["result"], x.astype(np.float64))
        outputs, _ = session.call({"x": x, "n": n}, input_dtype="float64", dtype="float16")
        assert outputs["result"].dtype == x.dtype


def test_views_backwards_and_sliced(ws: Workspace) -> None:
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    with ws.pool.session(ws.program("callable", "def op(x): return x + 1")) as session:
        for array in (base[::-1], base[:, ::-2], base.T, base[2:4, 3:7], base[:0], base[3, 3]):
            outputs, outcome = session.call({"x": array})
            assert outcome.ok, outcome.error
            np.testing.assert_array_equal(outputs["result"], array + 1)


def test_the_callers_arrays_are_never_changed(ws: Workspace) -> None:
    array = np.zeros((4, 4), np.float32)
    program = ws.program("callable", "def op(x):\n    x += 1\n    return x")
    with ws.pool.session(program) as session:
        _, outcome = session.call({"x": array})
    assert [f.kind for f in outcome.violations] == [FailureKind.INPUT_MODIFIED]
    assert not array.any()


TROUBLE = {
    "os.abort()": "op-crashed",
    "signal.pause()": "op-timeout",
    "raise ValueError": "op-exception",
    "os.kill(os.getppid(), 9); signal.pause()": "op-broke-runner",
    "return None": "op-output-missing",
}


@pytest.mark.parametrize("body", TROUBLE)
def test_a_session_goes_on_after_trouble(ws: Workspace, body: str) -> None:
    source = f"""
    import os, signal
    def op(x):
        if x[0, 0] == 42:
            {body}
        return x + 1
    """
    cases = [make_case(0), make_case(1), marked_case(2), make_case(3), make_case(4)]
    outcomes = []
    with ws.pool.session(ws.program("callable", source, timeout=10)) as session:
        for case in cases:
            outputs, outcome = session.call(case)
            outcomes.append(outcome)
            assert bool(outputs) == outcome.ok
            if outcome.ok:
                expected = materialise(case)["x"] + 1
                np.testing.assert_array_equal(outputs["result"], expected)
    assert slugs(outcomes) == ["ok", "ok", TROUBLE[body], "ok", "ok"]
    assert [o.index for o in outcomes] == [0, 1, 2, 3, 4]


ATTACKS = {
    "shrinks": "os.ftruncate(fd, 0)",
    "punches": "os.ftruncate(fd, os.fstat(fd).st_size + (1 << 20))",
    "closes": "os.close(fd)",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_on_the_shared_memory(ws: Workspace, name: str) -> None:
    """The reader may get wrong values from a lying program, but is not killed."""
    source = f"""
    import os, stat
    def op(x):
        for fd in range(3, 1000):
            try:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    {ATTACKS[name]}
            except OSError:
                pass
        return x + 1
    """
    with ws.pool.session(ws.program("callable", source)) as session:
        for index in range(3):
            outputs, outcome = session.call(make_case(index, (100, 100)))
            if outcome.ok:
                assert np.isfinite(outputs["result"].sum())
    fine = ws.program("callable", "def op(x): return x", name="fine.py")
    assert slugs(ws.run(fine)) == ["ok"]


LIES = {
    "far_offset": "written['result'] = replace(slot, offset=1 << 40)",
    "negative_offset": "written['result'] = replace(slot, offset=-8)",
    "huge_shape": "written['result'] = replace(slot, shape=(1 << 30, 1 << 30))",
    "zero_strides": "written['result'] = replace(slot, shape=(1 << 50, 1), strides=(0, 4))",
    "unknown_dtype": "written['result'] = replace(slot, dtype='object')",
    "negative_shape": "written['result'] = replace(slot, shape=(-3, -4))",
    "many_dims": "written['result'] = replace(slot, shape=(1,) * 99, strides=(4,) * 99)",
}


@pytest.mark.parametrize("name", LIES)
def test_lies_about_where_the_outputs_are(ws: Workspace, name: str) -> None:
    source = f"""
    from dataclasses import replace
    from gpuemu_flow.runners import arena
    honest = arena.Arena.write
    def lying(self, arrays, **options):
        written = honest(self, arrays, **options)
        slot = written["result"]
        {LIES[name]}
        return written
    arena.Arena.write = lying
    def op(x):
        return x + 1
    """
    with ws.pool.session(ws.program("callable", source)) as session:
        outputs, outcome = session.call(make_case(0))
    assert slugs([outcome]) == ["op-broke-runner"]
    assert outputs == {}


@pytest.mark.parametrize("change", ["serial=0", "type='loaded'", "slots=None", "seconds='x'"])
def test_a_forged_answer_is_not_believed(ws: Workspace, change: str) -> None:
    source = f"""
    from gpuemu_flow.runners import worker
    honest = worker.Worker._call
    def forged(self, message):
        return dict(honest(self, message), {change})
    worker.Worker._call = forged
    def op(x):
        return x
    """
    with ws.pool.session(ws.program("callable", source)) as session:
        outputs, outcome = session.call(make_case(0))
    assert slugs([outcome]) == ["op-broke-runner"]
    assert outputs == {}


def test_checks_work_in_a_session(ws: Workspace) -> None:
    counter = "n = 0\ndef op(x):\n    global n\n    n += 1\n    return x + n"
    with ws.pool.session(ws.program("callable", counter)) as session:
        for inputs in (make_case(0), {"x": np.zeros((3, 4), np.float32)}):
            _, outcome = session.call(inputs, checks=Checks(repeat=True))
            assert [f.kind for f in outcome.violations] == [FailureKind.NON_DETERMINISTIC]


def test_scripts_and_spawned_processes_work_in_a_session(ws: Workspace) -> None:
    plain = "def reference(inputs): return inputs['x']"
    for isolation in ("fork", "warm", "spawn"):
        program = ws.program("script", plain, isolation=isolation)
        with ws.pool.session(program) as session:
            for index in range(2):
                outputs, _ = session.call(make_case(index))
                expected = materialise(make_case(index))["x"]
                np.testing.assert_array_equal(outputs["result"], expected)


def test_a_program_that_cannot_be_loaded(ws: Workspace) -> None:
    with ws.pool.session(ws.program("callable", "import nothing_like_this")) as session:
        for index in range(3):
            outputs, outcome = session.call(make_case(index))
            assert (slugs([outcome]), outcome.index) == (["op-not-loadable"], index)
            assert outputs == {}


def test_two_sessions_run_beside_each_other(ws: Workspace) -> None:
    """Each waits for the other: one after the other they would hang."""
    source = """
    import os
    def op(x):
        mine, other = ("a", "b") if {first} else ("b", "a")
        open(mine, "w").close()
        while not os.path.exists(other):
            pass
        return x
    """
    programs = [
        ws.program(
            "callable", source.replace("{first}", str(first)), name=f"{first}.py", timeout=600
        )
        for first in (True, False)
    ]
    case = make_case(0)
    with ws.pool.session(programs[0]) as first, ws.pool.session(programs[1]) as second:
        first.begin(case)
        second.begin(case)
        for session in (first, second):
            outputs, outcome = session.finish()
            assert outcome.ok, outcome.error
            np.testing.assert_array_equal(outputs["result"], materialise(case)["x"])


def test_begin_and_finish_go_in_pairs(ws: Workspace) -> None:
    with ws.pool.session(ws.program("callable", "def op(x): return x")) as session:
        with pytest.raises(RuntimeError):
            session.finish()
        session.begin(make_case(0))
        with pytest.raises(RuntimeError):
            session.begin(make_case(1))
        assert session.finish()[1].ok
        assert session.call(make_case(1))[1].ok


def test_leaving_a_session_in_the_middle_of_a_call(tmp_path: Path) -> None:
    with staged_pool(tmp_path) as pool:
        ws = Workspace(tmp_path / "ws", pool)
        source = "import signal\ndef op(x): signal.pause()"
        with pool.session(ws.program("callable", source, timeout=1000)) as session:
            session.begin(make_case(0))
        with pool.session(ws.program("callable", "def op(x): return x")) as session:
            assert session.call(make_case(0))[1].ok
