"""Functions that crash, lie and attack the runner: one error each, and the run goes on."""

from __future__ import annotations

import pytest
from runner_workspace import Workspace, make_case, marked_case, slugs
from whole import sample

pytestmark = pytest.mark.ci

# Each is triggered by the case whose element 0 equals the marker, and by no other.
HOSTILE_CALLABLES = {
    "segfault": ("import ctypes; ctypes.string_at(0)", "op-crashed", "SIGSEGV"),
    "abort": ("os.abort()", "op-crashed", "SIGABRT"),
    "os_exit": ("os._exit(7)", "op-crashed", "code 7"),
    "os_exit_zero": ("os._exit(0)", "op-crashed", "code 0"),
    "sys_exit": ("sys.exit(3)", "op-exit-code", "3"),
    "sys_exit_text": ("sys.exit('no luck')", "op-exit-code", "no luck"),
    "exception": ("raise ValueError('planted')", "op-exception", "ValueError: planted"),
    "keyboard_interrupt": ("raise KeyboardInterrupt", "op-exception", "KeyboardInterrupt"),
    "generator_exit": ("raise GeneratorExit", "op-exception", "GeneratorExit"),
    "hostile_str": ("raise Nasty()", "op-exception", "Nasty"),
    "kill_self": ("os.kill(os.getpid(), 9)", "op-crashed", "SIGKILL"),
    "kill_group": ("os.killpg(0, 9)", "op-crashed", "SIGKILL"),
    "terminate_self": ("os.kill(os.getpid(), 15)", "op-crashed", "SIGTERM"),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.01); pause()", "op-crashed", "SIGALRM"),
    "recursion": ("recurse()", "op-exception", "RecursionError"),
    "memory_error": ("np.empty(1 << 60, dtype=np.uint8)", "op-out-of-memory", "memory"),
    "close_everything": ("os.closerange(0, 1000)", "op-broke-runner", "socket"),
    "kill_parent": ("os.kill(os.getppid(), 9); pause()", "op-broke-runner", "killed the process"),
    "garbage_everywhere": ("garbage()", "op-broke-runner", "socket"),
    "huge_frame": ("frame(b'gfr1' + b'\\xff' * 4)", "op-broke-runner", "socket"),
    "forged_frame": (
        "frame(struct.pack('<4sI', b'gfr1', 2) + b'{}')", "op-broke-runner", "socket",
    ),
    "nested_frame": (
        "frame(struct.pack('<4sI', b'gfr1', 10**6) + b'[' * 10**6)", "op-broke-runner", "socket",
    ),
    "none": ("return None", "op-output-missing", "NoneType"),
    "text": ("return 'text'", "op-output-missing", "str"),
    "generator": ("return (i for i in [1])", "op-output-missing", "generator"),
    "wide complex": ("return x.astype(np.clongdouble)", "op-output-dtype", "complex"),
    "dates": ("return x.astype('int64').astype('datetime64[s]')", "op-output-dtype", "datetime64"),
    "object": ("return x.astype(object)", "op-output-dtype", "object"),
    "longdouble": ("return x.astype(np.longdouble)", "op-output-dtype", "float"),
    "huge_int": ("return 10**100", "op-output-dtype", ""),
    "too_many": ("return x, x", "op-output-missing", "2 outputs"),
    "endless_shape": ("return np.broadcast_to(x[:1, :1], (1 << 40, 4))", "op-output-shape", ""),
    "many_outputs": ("return {str(i): x for i in range(100)}", "op-output-junk", "100"),
}  # fmt: skip

HOSTILE_OP = """
import ctypes, os, signal, struct, sys
import numpy as np

class Nasty(Exception):
    def __str__(self):
        raise RuntimeError("no text")

def pause():
    while True:
        signal.pause()

def recurse():
    recurse()

def channels():
    import stat
    for fd in range(3, 1000):
        try:
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                yield fd
        except OSError:
            pass

def frame(data):
    for fd in channels():
        os.write(fd, data)
    pause()

def garbage():
    for fd in list(range(3, 1000)):
        try:
            os.write(fd, b"garbage" * 10000)
        except OSError:
            pass
    pause()

def op(x):
    if x[0, 0] == 42:
        {body}
    return x + 1
"""


@pytest.mark.parametrize("name", sample([*HOSTILE_CALLABLES], 3))
def test_a_hostile_callable_costs_one_case(ws: Workspace, name: str) -> None:
    body, slug, text = HOSTILE_CALLABLES[name]
    program = ws.program("callable", HOSTILE_OP.replace("{body}", body), timeout=600)
    cases = [make_case(0), make_case(1), marked_case(2), make_case(3), make_case(4)]

    outcomes = ws.run(program, cases)

    assert [o.index for o in outcomes] == [0, 1, 2, 3, 4]
    assert slugs(outcomes) == ["ok", "ok", slug, "ok", "ok"], outcomes[2]
    assert text in outcomes[2].error.message
    for outcome in (outcomes[0], outcomes[3]):
        assert ws.outputs(outcome)["result"].shape == (3, 4)


@pytest.mark.ci
def test_a_c_stack_overflow_costs_one_case(ws: Workspace) -> None:
    """A crash, or an exception from Python 3.12 on."""
    body = """sys.setrecursionlimit(10**9)
        deep = []
        for _ in range(10**6):
            deep = [deep]
        repr(deep)"""
    program = ws.program("callable", HOSTILE_OP.replace("{body}", body), timeout=600)
    first, second, third = ws.run(program, [make_case(0), marked_case(1), make_case(2)])
    assert slugs([first, third]) == ["ok", "ok"]
    assert slugs([second])[0] in ("op-crashed", "op-exception")
