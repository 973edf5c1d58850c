"""Programs that crash, lie and attack their runner: one error each, and their other cases pass."""

from __future__ import annotations

import pytest
from many_ops import Op, Ran, run_once
from test_workers import FIVE, PROTOCOL, SIX

pytestmark = pytest.mark.ci

HEAD = """
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
"""
SCRIPT = (
    PROTOCOL
    + """
import atexit, ctypes, os, subprocess, threading
_, x = read()
data = base64.b64encode((x * 2).tobytes()).decode()
result = {"shape": list(x.shape), "dtype": str(x.dtype), "data": data}
if len(x) == 5:
    %s
print(json.dumps(result))
"""
)
CALLABLES = {
    "segfault": ("import ctypes; ctypes.string_at(0)", "op-crashed", "SIGSEGV"),
    "os_exit_zero": ("os._exit(0)", "op-crashed", "code 0"),
    "sys_exit_text": ("sys.exit('no luck')", "op-exit-code", "no luck"),
    "keyboard_interrupt": ("raise KeyboardInterrupt", "op-exception", "KeyboardInterrupt"),
    "generator_exit": ("raise GeneratorExit", "op-exception", "GeneratorExit"),
    "hostile_str": ("raise Nasty()", "op-exception", "Nasty"),
    "kill_group": ("os.killpg(0, 9)", "op-crashed", "SIGKILL"),
    "terminate_self": ("os.kill(os.getpid(), 15)", "op-crashed", "SIGTERM"),
    "alarm": ("signal.setitimer(signal.ITIMER_REAL, 0.01); pause()", "op-crashed", "SIGALRM"),
    "memory_error": ("np.empty(1 << 60, dtype=np.uint8)", "op-out-of-memory", "memory"),
    "close_everything": ("os.closerange(0, 1000)", "op-crashed", "its own process"),
    "kill_parent": ("os.kill(os.getppid(), 9); pause()", "op-exception", "not permitted"),
    "garbage_everywhere": ("garbage()", "op-broke-runner", "socket"),
    "huge_frame": ("frame(b'gfr1' + b'\\xff' * 4)", "op-broke-runner", "socket"),
    "forged_frame": (
        "frame(struct.pack('<4sI', b'gfr1', 2) + b'{}')", "op-broke-runner", "socket",
    ),
    "nested_frame": (
        "frame(struct.pack('<4sI', b'gfr1', 10**6) + b'[' * 10**6)", "op-broke-runner", "socket",
    ),
    "text": ("return 'text'", "op-output-missing", "str"),
    "generator": ("return (i for i in [1])", "op-output-missing", "generator"),
    "wide complex": ("return x.astype(np.clongdouble)", "op-output-dtype", "complex"),
    "dates": ("return x.astype('int64').astype('datetime64[s]')", "op-output-dtype", "datetime64"),
    "object": ("return x.astype(object)", "op-output-dtype", "object"),
    "longdouble": ("return x.astype(np.longdouble)", "op-output-dtype", "float"),
    "huge_int": ("return 10**100", "op-output-dtype", ""),
    "too_many": ("return x, x", "op-output-missing", "2 outputs"),
    "endless_shape": ("return np.broadcast_to(x[:1], (1 << 40,))", "op-output-shape", ""),
    "many_outputs": ("return {str(i): x for i in range(100)}", "op-output-missing", "99"),
    "c_stack": (
        "sys.setrecursionlimit(10**9); d = []; [d := [d] for _ in range(10**6)]; repr(d)",
        "op-",
        "",
    ),
}  # fmt: skip
SCRIPTS = {
    "print_debugging": ("print('debug', x.shape)", "op-output-junk", "debug"),
    "raw_write": ("os.write(1, b'raw')", "op-output-junk", "raw"),
    "child_print": ("subprocess.run(['echo', 'child'])", "op-output-junk", "child"),
    "atexit_print": ("atexit.register(print, 'bye')", "op-output-junk", "shape"),
    "thread_print": (
        "threading.Timer(0.05, print, ['late']).start()", "op-output-junk", "shape",
    ),
    "binary": ("os.write(1, bytes(range(256)))", "op-output-junk", ""),
    "silent": ("sys.exit(0)", "op-output-missing", "nothing"),
    "exit_code": ("sys.exit(5)", "op-exit-code", "5"),
    "exit_text": ("sys.exit('bad')", "op-exit-code", "1"),
    "exception": ("raise KeyError('planted')", "op-exception", "KeyError: 'planted'"),
    "os_exit": ("os._exit(3)", "op-crashed", "code 3"),
    "segfault": ("ctypes.string_at(0)", "op-crashed", "SIGSEGV"),
    "short_data": ("result['data'] = result['data'][:-8]", "op-output-length", "20 bytes"),
    "long_data": ("result['shape'] = [3, 3]", "op-output-length", "36 bytes"),
    "bad_base64": ("result['data'] = '!' + result['data'][1:]", "op-output-junk", "base64"),
    "not_text": ("result['data'] = 7", "op-output-junk", "base64"),
    "negative_shape": ("result['shape'] = [-3, -4]", "op-output-shape", "-3"),
    "float_shape": ("result['shape'] = [3.0, 4]", "op-output-shape", "3.0"),
    "bool_shape": ("result['shape'] = [True, 4]", "op-output-shape", "True"),
    "huge_shape": ("result['shape'] = [1 << 62, 1 << 62]", "op-output-shape", "limit"),
    "deep_shape": ("result['shape'] = [1] * 1000", "op-output-shape", "1000 dims"),
    "unknown_dtype": ("result['dtype'] = 'complex64'", "op-output-dtype", "complex64"),
    "no_shape": ("del result['shape']", "op-output-missing", "shape"),
    "no_data": ("del result['data']", "op-output-missing", "data"),
    "array": ("result = [result]", "op-output-junk", "list"),
    "number": ("result = 7", "op-output-junk", "int"),
    "empty_object": ("result = {}", "op-output-missing", "no tensor"),
    "empty_outputs": ("result = {'outputs': {}}", "op-output-missing", "outputs"),
    "outputs_list": ("result = {'outputs': [result]}", "op-output-missing", "outputs"),
    "two_objects": ("print(json.dumps(result))", "op-output-junk", ""),
    "nesting": ("sys.stdout.write('[' * 10**6)", "op-output-junk", ""),
    "nan_dims": ("result['shape'] = [float('nan'), 4]", "op-output-shape", "nan"),
    "close_stdout": ("os.close(1)", "op-exit-code", "120"),
    "swallowed_exit": ("os.kill(os.getpid(), 11)", "op-crashed", "SIGSEGV"),
    "exec": ("os.execv('/bin/true', ['true'])", "op-crashed", "code 0"),
    "endless_stdout": ("while True: os.write(1, b'x' * 10**6)", "op-exception", "File too large"),
    "endless_stderr": ("while True: os.write(2, b'x' * 10**6)", "op-exception", "File too large"),
    "endless_print": ("while True: print('x' * 10**6)", "op-exception", "File too large"),
    "printed_by_c": ("ctypes.CDLL(None).puts(b'from C')", "op-output-junk", ""),
}  # fmt: skip
ROWS = {**CALLABLES, **{f"script_{name}": row for name, row in SCRIPTS.items()}}


def hostile(name: str) -> Op:
    """An op that is right but for its case of five elements."""
    body, slug, words = ROWS[name]
    keys = SIX + "\ntimeout = 100\n" + 'isolation = "warm"' * (name == "script_printed_by_c")
    more = {"verdict": "error", "kind": "ExecutionError", "says": (slug, words), "keys": keys}
    if name.startswith("script_"):
        return Op(script=SCRIPT % body, schema=FIVE, **more)  # type: ignore[arg-type]
    body = f"if len(x) == 5:\n    {body}\nreturn x * 2"
    return Op(op=body, head=HEAD, schema=FIVE, **more)  # type: ignore[arg-type]


OPS = {name.replace(" ", "_"): hostile(name) for name in ROWS}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "hostile", OPS, 'seed = 3\ntolerance = "table"')


@pytest.mark.parametrize("name", OPS)
def test_it_costs_one_case(ran: Ran, name: str) -> None:
    ran.check(name, OPS[name])
    (result,) = ran.results[name]
    assert {tuple(f["shape"]) for f in ran.failures[name]} == {(5,)}
    assert result["passed"] == 6 - len(ran.failures[name]) > 0
