"""What is told of trouble, programs that cannot be loaded, limits, and the cases that follow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runner_workspace import Workspace, make_case, marked_case, slugs, staged_pool, workspace

from gpuemu_flow.runners.pool import Pool


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with staged_pool(tmp_path_factory.mktemp("pool"), load_timeout=30) as made:
        yield made


@pytest.fixture
def ws(tmp_path: Path, pool: Pool) -> Workspace:
    return Workspace(tmp_path, pool)


MARKED = """
import os, sys

def op(x):
    print("value", x[0, 0], file=sys.stderr)
    if x[0, 0] == 42:
        {body}
    return x + 1
"""


def test_the_place_of_an_exception_is_the_scripts_own_line(ws: Workspace) -> None:
    ws.write("helper.py", "def fail():\n    raise ValueError('deep')\n")
    program = ws.program("callable", "import helper\n\ndef op(x):\n    helper.fail()\n")
    (outcome,) = ws.run(program)
    error = outcome.error
    assert (error.slug, error.file, error.line) == ("op-exception", "program.py", 4)
    assert "helper.py" in error.stderr_tail
    assert "gpuemu_flow" not in error.stderr_tail


def test_stderr_is_the_cases_own(ws: Workspace) -> None:
    source = MARKED.replace("{body}", "raise ValueError('planted')")
    outcomes = ws.run(ws.program("callable", source), [make_case(0), marked_case(1)])
    assert "value 42.0" in outcomes[1].error.stderr_tail
    assert outcomes[1].error.stderr_tail.count("value") == 1


UNLOADABLE = {
    "syntax": ("def op(x:\n", "op-not-loadable", "program.py", 1),
    "import": ("import no_such_module\n", "op-not-loadable", "program.py", 1),
    "raises": ("\nraise RuntimeError('at import')\n", "op-not-loadable", "program.py", 2),
    "nothing": ("x = 1\n", "op-not-loadable", "program.py", 0),
    "not_callable": ("op = 1\n", "op-not-loadable", "program.py", 0),
    "exits": ("raise SystemExit(4)\n", "op-exit-code", "program.py", 1),
    "crashes": ("import os; os.abort()\n", "op-crashed", "", 0),
    "null_byte": ("x = '\0'\n", "op-not-loadable", "program.py", 0),
    "signature": ("def op(a, b): return a\n", "op-signature", "program.py", 1),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_a_program_that_cannot_be_loaded(ws: Workspace, name: str) -> None:
    source, slug, file, line = UNLOADABLE[name]
    outcomes = ws.run(ws.program("callable", source), 3)
    assert slugs(outcomes) == [slug] * 3, outcomes[0]
    assert [o.index for o in outcomes] == [0, 1, 2]
    error = outcomes[0].error
    assert Path(error.file).name == file
    assert line in (0, error.line)


def test_a_missing_file(ws: Workspace) -> None:
    for kind in ("script", "callable", "command"):
        program = ws.program(kind, "pass")
        Path(program.path).unlink()
        assert slugs(ws.run(program, 2)) == ["op-not-loadable"] * 2


def test_a_hang_while_loading_is_a_timeout(tmp_path: Path) -> None:
    with workspace(tmp_path, load_timeout=0.3) as ws:
        program = ws.program("callable", "import signal\nsignal.pause()", timeout=0.3)
        assert slugs(ws.run(program, 2)) == ["op-timeout"] * 2


def test_an_op_that_depends_on_earlier_cases_fails_only_with_them(ws: Workspace) -> None:
    """The second case fails in the shared process and succeeds alone: state, not the case."""
    source = """
    calls = []
    def op(x):
        calls.append(1)
        if len(calls) > 1:
            raise RuntimeError("called twice")
        return x
    """
    assert slugs(ws.run(ws.program("callable", source), 4)) == ["ok"] * 4
    warm = ws.program("callable", source, isolation="warm")
    assert slugs(ws.run(warm, 4)) == ["ok"] + ["op-exception"] * 3


def test_memory_limit(ws: Workspace) -> None:
    source = """
    import numpy as np
    def op(x):
        if x[0, 0] == 42:
            return np.ones(1 << 28, dtype=np.uint8)[:1]
        return x
    """
    cases = [make_case(0), marked_case(1), make_case(2)]
    limited = ws.program("callable", source, memory_limit=128 << 20)
    outcomes = ws.run(limited, cases)
    assert slugs(outcomes) == ["ok", "op-out-of-memory", "ok"]
    assert str(128 << 20) in outcomes[1].error.message
    generous = ws.program("callable", source, memory_limit=1 << 30)
    assert slugs(ws.run(generous, cases)) == ["ok"] * 3


def test_outputs_stay_right_after_trouble(ws: Workspace) -> None:
    program = ws.program("callable", MARKED.replace("{body}", "os.abort()"))
    case = make_case(7)
    before, _, after = ws.run(program, [case, marked_case(8), replace(case, index=9)])
    assert before.blob == after.blob
    expected = ws.outputs(ws.run(ws.program("callable", "def op(x): return x"), [case])[0])
    np.testing.assert_array_equal(ws.outputs(after)["result"], expected["result"] + 1)
