"""A protocol script may read its request and write its answer in any way that Python offers."""

from __future__ import annotations

import numpy as np
from runner_workspace import Workspace

LOAD = "request = json.load(sys.stdin)"
READING = (
    LOAD,
    "request = json.loads(sys.stdin.buffer.read())",
    "request = json.loads(b''.join(iter(lambda: os.read(0, 1 << 20), b'')))",
    "request = json.loads(sys.stdin.read(10) + sys.stdin.read())",
    "request = json.load(sys.stdin); sys.stdin.seek(0); request = json.load(sys.stdin)",
    "request = json.loads(subprocess.run(['cat'], capture_output=True).stdout)",
)
PRINT = "print(json.dumps(answer))"
WRITING = {
    PRINT: "",
    "json.dump({'outputs': {'result': answer}}, sys.stdout, indent=1)": "",
    "sys.stdout.buffer.write(json.dumps(answer).encode())": "",
    "os.write(1, json.dumps(answer).encode())": "",
    "atexit.register(lambda: print(json.dumps(answer)))": "",
    f"{PRINT}; sys.exit()": "",
    f"{PRINT}; sys.stdout.close()": "",
    f"{PRINT}; print('hello')": "op-output-junk",
    f"{PRINT}; sys.exit(3)": "op-exit-code",
    f"{PRINT}; raise OSError('of its own')": "op-exception",
    "pass": "op-output-missing",
}
SCRIPT = """\
import atexit, base64, json, os, subprocess, sys
import numpy as np

{reading}
x = request["inputs"]["x"]
x = np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"])
data = base64.b64encode((x + 1).tobytes()).decode()
answer = {{"shape": list(x.shape), "dtype": str(x.dtype), "data": data}}
{writing}
"""
X = np.arange(4096, dtype=np.float32).reshape(64, 64)


def called(ws: Workspace, source: str) -> str:
    """Call a script twice in one process; return its error's slug if it has no right output."""
    slugs = []
    with ws.pool.session(ws.program("script", source, isolation="warm")) as session:
        for _ in range(2):
            outputs, outcome = session.call({"x": X})
            right = outcome.ok and np.array_equal(outputs["result"], X + 1)
            slugs.append(outcome.error.slug if outcome.error else "" if right else "wrong")
    assert slugs[0] == slugs[1]
    return slugs[0]


def test_ways_to_read(ws: Workspace) -> None:
    found = {way: called(ws, SCRIPT.format(reading=way, writing=PRINT)) for way in READING}
    assert found == dict.fromkeys(READING, "")


def test_ways_to_write(ws: Workspace) -> None:
    found = {way: called(ws, SCRIPT.format(reading=LOAD, writing=way)) for way in WRITING}
    assert found == WRITING
