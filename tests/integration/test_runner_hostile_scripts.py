"""Scripts that print junk, lie, crash or never stop writing: one error each."""

from __future__ import annotations

from pathlib import Path

import pytest
from runner_workspace import (
    PROTOCOL,
    Workspace,
    make_case,
    marked_case,
    slugs,
    workspace,
)
from whole import sample

pytestmark = pytest.mark.ci

HOSTILE_SCRIPTS = {
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
    "short_data": ("result['data'] = result['data'][:-8]", "op-output-length", "48 bytes"),
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
}  # fmt: skip

HOSTILE_SCRIPT = """
import atexit, ctypes, os, subprocess, threading
libc = ctypes.CDLL(None)
inputs, kwargs = read()
x = inputs["x"]
result = tensor(x + 1)
if x[0, 0] == 42:
    {body}
print(json.dumps(result))
"""


@pytest.mark.parametrize("name", sample([*HOSTILE_SCRIPTS], 4))
def test_a_hostile_script_costs_one_case(ws: Workspace, name: str) -> None:
    body, slug, text = HOSTILE_SCRIPTS[name]
    program = ws.program("script", PROTOCOL + HOSTILE_SCRIPT.replace("{body}", body), timeout=600)
    cases = [make_case(0), make_case(1), marked_case(2), make_case(3)]

    outcomes = ws.run(program, cases)

    assert slugs(outcomes) == ["ok", "ok", slug, "ok"], outcomes[2]
    error = outcomes[2].error
    assert error is not None
    assert text in error.message
    if slug == "op-output-junk" and "print" in body:
        assert "stderr" in error.hint
    for outcome in (outcomes[0], outcomes[3]):
        assert ws.outputs(outcome)["result"].shape == (3, 4)


ENDLESS = {
    "stdout": "while True: os.write(1, b'x' * 10**6)",
    "stderr": "while True: os.write(2, b'x' * 10**6)",
    "print": "while True: print('x' * 10**6)",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_output_is_cut_off(ws: Workspace, name: str) -> None:
    """The write fails at the limit; nobody waits for a timeout, and no memory runs out."""
    script = HOSTILE_SCRIPT.replace("{body}", ENDLESS[name])
    program = ws.program("script", PROTOCOL + script, timeout=600)
    outcomes = ws.run(program, [make_case(0), marked_case(1), make_case(2)])
    assert slugs(outcomes) == ["ok", "op-exception", "ok"], outcomes[1]
    assert "File too large" in outcomes[1].error.message


def test_what_c_code_prints_is_seen(tmp_path: Path) -> None:
    """Also when it still lies in the C library's buffer at the end of the case."""
    script = HOSTILE_SCRIPT.replace("{body}", "libc.puts(b'from C')")
    with workspace(tmp_path, env={"PYTHONUNBUFFERED": ""}) as ws:
        cases = [make_case(0), marked_case(1), make_case(2)]
        program = ws.program("script", PROTOCOL + script, isolation="warm")
        assert slugs(ws.run(program, cases)) == ["ok", "op-output-junk", "ok"]
