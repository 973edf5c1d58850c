"""A script gets the same answer out whether its request is lent to it or lies in a file.

The first call of a worker always goes through files: it is the witness for those that follow.
"""

from __future__ import annotations

import numpy as np
import pytest
from runner_workspace import Workspace

READING = {
    "load": "request = json.load(sys.stdin)",
    "loads": "request = json.loads(sys.stdin.read())",
    "bytes": "request = json.loads(sys.stdin.buffer.read())",
    "load_bytes": "request = json.load(sys.stdin.buffer)",
    "hook": "request = json.load(sys.stdin, object_hook=dict)",
    "descriptor": "request = json.loads(b''.join(iter(lambda: os.read(0, 1 << 20), b'')))",
    "opened": "request = json.load(open(0, closefd=False))",
    "line": "request = json.loads(sys.stdin.readline())",
    "pieces": "request = json.loads(sys.stdin.read(10) + sys.stdin.read())",
    "twice": "request = json.loads(sys.stdin.read() + sys.stdin.read())",
    "then_end": "request = json.load(sys.stdin); assert not os.read(0, 1)",
    "again": "request = json.load(sys.stdin); sys.stdin.seek(0); request = json.load(sys.stdin)",
    "child": "request = json.loads(subprocess.run(['cat'], capture_output=True).stdout)",
    "changed": "request = json.load(sys.stdin); request['inputs']['x']['shape'] = [64, 64]",
}
WRITING = {
    "dump": "json.dump(answer, sys.stdout)",
    "print": "print(json.dumps(answer))",
    "write": "sys.stdout.write(json.dumps(answer)); sys.stdout.write('\\n\\n'); sys.stdout.flush()",
    "named": "json.dump({'outputs': {'result': answer}}, sys.stdout)",
    "indented": "json.dump(answer, sys.stdout, indent=1)",
    "bytes": "sys.stdout.buffer.write(json.dumps(answer).encode())",
    "descriptor": "os.write(1, json.dumps(answer).encode())",
    "spaces_before": "print(); print(json.dumps(answer))",
    "junk_before": "print('hello'); print(json.dumps(answer))",
    "junk_after": "print(json.dumps(answer)); print('hello')",
    "bytes_after": "print(json.dumps(answer)); sys.stdout.buffer.write(b'!')",
    "junk_by_descriptor": "print(json.dumps(answer)); sys.stdout.flush(); os.write(1, b'x')",
    "space_by_descriptor": "print(json.dumps(answer)); sys.stdout.flush(); os.write(1, b' ')",
    "twice": "json.dump(answer, sys.stdout); json.dump(answer, sys.stdout)",
    "dumped_only": "json.dumps(answer)",
    "dumped_twice": "json.dumps(answer); print(json.dumps({**answer, 'shape': [64, 64]}))",
    "changed_later": "text = json.dumps(answer); answer['data'] = ''; print(text)",
    "wrong_shape": "answer['shape'] = [1]; print(json.dumps(answer))",
    "wrong_dtype": "answer['dtype'] = 'float33'; print(json.dumps(answer))",
    "no_base64": "answer['data'] += '?'; print(json.dumps(answer))",
    "exit_code": "print(json.dumps(answer)); sys.exit(3)",
    "exit": "print(json.dumps(answer)); sys.exit()",
    "exception": "print(json.dumps(answer)); raise OSError('of its own')",
    "redirected": "with contextlib.redirect_stdout(None): print(1)\nprint(json.dumps(answer))",
    "closed": "print(json.dumps(answer)); sys.stdout.close()",
    "at_exit": "atexit.register(lambda: print(json.dumps(answer)))",
    "nothing": "pass",
}
SCRIPT = """\
import atexit, base64, contextlib, json, os, subprocess, sys
import numpy as np

{reading}
x = request["inputs"]["x"]
x = np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"])
data = base64.b64encode((x + 1).tobytes()).decode()
answer = {{"shape": list(x.shape), "dtype": str(x.dtype), "data": data}}
{writing}
"""


def outcomes(ws: Workspace, source: str, calls: int = 3) -> list[tuple[str, str, bytes]]:
    """Of calls in one process on the same input: the error's slug and message, or the output."""
    inputs = {"x": np.arange(4096, dtype=np.float32).reshape(64, 64)}
    found = []
    with ws.pool.session(ws.program("script", source, isolation="warm")) as session:
        for _ in range(calls):
            outputs, outcome = session.call(inputs)
            error = outcome.error
            value = outputs["result"].tobytes() if outcome.ok else b""
            found.append((error.slug if error else "", error.message if error else "", value))
    return found


@pytest.mark.parametrize("name", READING)
def test_every_way_to_read(ws: Workspace, name: str) -> None:
    first, *others = outcomes(
        ws, SCRIPT.format(reading=READING[name], writing="print(json.dumps(answer))")
    )
    assert others == [first] * 2
    assert first[2] == (np.arange(4096, dtype=np.float32) + 1).tobytes(), first


@pytest.mark.parametrize("name", WRITING)
def test_every_way_to_write(ws: Workspace, name: str) -> None:
    first, *others = outcomes(
        ws, SCRIPT.format(reading="request = json.load(sys.stdin)", writing=WRITING[name])
    )
    assert others == [first] * 2


def test_a_script_that_begins_to_read_otherwise(ws: Workspace) -> None:
    """The module that counts outlives a call."""
    ws.write("counting.py", "calls = 0\n")
    reading = """
import counting
counting.calls += 1
if counting.calls == 3:
    request = json.loads(os.read(0, 1 << 20))
else:
    request = json.load(sys.stdin)
"""
    source = SCRIPT.format(reading=reading, writing="json.dump(answer, sys.stdout)")
    found = outcomes(ws, source, 5)
    assert found == [found[0]] * 5
    assert found[0][0] == ""


def test_what_a_script_does_to_a_lent_request_is_forgotten(ws: Workspace) -> None:
    source = SCRIPT.format(
        reading="request = json.load(sys.stdin)",
        writing="request['inputs']['x']['shape'][:] = [1]; request['inputs'].clear()\n"
        "json.dump(answer, sys.stdout)",
    )
    found = outcomes(ws, source)
    assert found == [found[0]] * 3
    assert found[0][0] == ""


def test_an_error_of_its_own_is_not_tried_again(ws: Workspace) -> None:
    """A script that fails now and then must not be given a second chance."""
    ws.write("counting.py", "calls = 0\n")
    source = SCRIPT.format(
        reading="import counting\ncounting.calls += 1\nrequest = json.load(sys.stdin)",
        writing="assert counting.calls != 3\njson.dump(answer, sys.stdout)",
    )
    program = ws.program("script", source, isolation="warm")
    inputs = {"x": np.zeros((64, 64), np.float32)}
    with ws.pool.session(program) as session:
        verdicts = [session.call(inputs)[1].ok for _ in range(4)]
    assert verdicts == [True, True, False, True]
