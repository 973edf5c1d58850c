"""Programs in processes: trouble in one case costs that case, and nothing leaks into the next."""

from __future__ import annotations

import sys

import pytest
from many_ops import MATRIX, Op, Ran, run_once

FIVE = 'dims = { N = [2, 3, 4, 5, 6] }\ninputs = { x = ["N"] }\noutput = ["N"]'
SIX = 'cases = 6\nstrategies = ["normal"]\nlayouts = ["contiguous"]'
PROTOCOL = """
import base64, json, os, sys
import numpy as np
def read():
    request = json.load(sys.stdin)
    given = request["inputs"]["x"]
    data = base64.b64decode(given["data"])
    return request, np.frombuffer(data, given["dtype"]).reshape(given["shape"])
def write(a):
    data = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
    print(json.dumps({"shape": list(a.shape), "dtype": str(a.dtype), "data": data}))
"""


def sized(trouble: str, **more: object) -> Op:
    """An op that does something in the cases of five elements alone."""
    body = f"if len(x) == 5:\n    {trouble}\nreturn x * 2"
    return Op(op=body, schema=FIVE, keys=SIX, **more)  # type: ignore[arg-type]


def holds(condition: str, head: str = "", *, before: str = "", keys: str = SIX) -> Op:
    """An op that is right only where something holds in every case."""
    body = f"{before}\nif not ({condition}): raise AssertionError({condition!r})\nreturn x * 2"
    return Op(op=body.strip(), schema=FIVE, keys=keys, head=head)


INTERPRETER = "'workers.worker' in open('/proc/self/cmdline').read()"  # of its own, not forked


def state(isolation: str, head: str = "", **more: object) -> Op:
    """An op that is wrong from the third case on that its process is given."""
    body = "seen.add(x.tobytes())\nreturn x * (2 if len(seen) < 7 else 3)"
    keys = f'isolation = "{isolation}"\n{SIX}'
    return Op(op=body, schema=FIVE, keys=keys, head=f"seen = set()\n{head}", **more)  # type: ignore[arg-type]


def script(body: str, **more: object) -> Op:
    return Op(script=f"{PROTOCOL}\n{body}\n", **more)  # type: ignore[arg-type]


ERROR = {"verdict": "error", "kind": "ExecutionError"}
OPS = {
    # One case in trouble
    "raises_once": sized("raise ValueError('five')", says=("ValueError: five",), **ERROR),
    "exits_once": sized("import os; os._exit(3)", says=("exit code 3",), **ERROR),
    "exits_softly": sized("import sys; sys.exit(4)", **ERROR),
    "killed_once": sized("import os; os.kill(os.getpid(), 9)", says=("SIGKILL",), **ERROR),
    "aborts_once": sized("import os; os.abort()", says=("SIGABRT",), **ERROR),
    "recursion_once": sized("f = lambda: f()\n    f()", says=("RecursionError",), **ERROR),
    "wrong_once": sized("return x * 3", verdict="failed", kind="ToleranceExceeded"),
    "none_once": sized("return None", **ERROR),
    # What a program finds
    "workspace_folder": holds("os.path.exists('gpuemu.toml')", "import os\n"),
    "hash_seed": holds("os.environ.get('PYTHONHASHSEED') == '0'", "import os\n"),
    "one_thread": holds("os.environ['OMP_NUM_THREADS'] == '1'", "import os\n"),
    "no_secret": holds("'SECRET' not in os.environ", "import os\n"),
    "own_variable": holds("os.environ['MINE'] == 'yes'", "import os\n",
                          keys=SIX + '\nenv = { MINE = "yes" }'),
    "passed_variable": holds("os.environ['GIVEN'] == 'on'", "import os\n",
                             keys=SIX + '\nenv = ["GIVEN"]'),
    "globbed_variable": holds("os.environ['GIVEN_TOO'] == 'on'", "import os\n",
                              keys=SIX + '\nenv = ["GIVEN_*"]'),
    "imports_beside": holds("beside.where == 'ops'", "import beside\n"),
    "imports_root": holds("at_root.where == 'root'", "import at_root\n"),
    "scratch": holds("os.listdir(tempfile.gettempdir()) is not None", "import os, tempfile\n"),
    # What it may do, and what is put back
    "changes_folder": Op(op="import os, tempfile\nassert os.path.exists('gpuemu.toml')\n"
                         "os.chdir(tempfile.gettempdir())\nreturn x * 2", schema=FIVE, keys=SIX),
    "changes_errors": Op(op="assert np.geterr()['over'] == 'warn'\nnp.seterr(all='raise')\n"
                         "return x * 2", schema=FIVE, keys=SIX),
    "changes_path": Op(op="import sys\nassert len(sys.path) < 900\nsys.path += ['/no'] * 900\n"
                       "return x * 2", schema=FIVE, keys=SIX),
    "leaves_thread": Op(op="import threading, time\nthreading.Thread(target=time.sleep, "
                        "args=(60,), daemon=True).start()\nreturn x * 2", schema=FIVE, keys=SIX),
    "leaves_child": Op(op="import subprocess\nsubprocess.Popen(['sleep', '60'])\nreturn x * 2",
                       schema=FIVE, keys=SIX),
    "prints": Op(op="print('much ' * 1000)\nreturn x * 2", schema=FIVE, keys=SIX),
    "warns": Op(op="import warnings\nwarnings.warn('careful')\nreturn x * 2", schema=FIVE,
                keys=SIX),
    "seals_files": Op(
        op="import contextlib, fcntl, os\nfor fd in os.listdir('/proc/self/fd'):\n"
        "    with contextlib.suppress(OSError):\n"
        "        fcntl.fcntl(int(fd), 1033, 15)  # F_ADD_SEALS, all\nreturn x * 2",
        schema=FIVE, keys=SIX),
    "keeps_input": Op(op="kept.append(x)\nreturn x * 2", schema=FIVE, keys=SIX, head="kept = []\n"),
    "read_only_output": Op(op="y = x * 2\ny.flags.writeable = False\nreturn y", schema=FIVE,
                           keys=SIX),
    "empty": Op(schema='dims = { N = [0, 3] }\ninputs = { x = ["N"] }\noutput = ["N"]', keys=SIX,
                wrong=1),
    # Isolation
    "spawned": state("spawn", f"import sys\nassert sys.platform != 'linux' or {INTERPRETER}\n"),
    "raises_when_used": Op(
        op="seen.add(x.tobytes())\nif len(seen) > 6: raise ValueError('of the process')\n"
        "return x * 2", schema=FIVE, keys=SIX, head="seen = set()\n"),
    "limited": Op(op="b = bytearray(3 << 30)\nreturn x * 2", schema=FIVE,
                  keys=SIX + '\nmemory_limit = "1GB"', **ERROR,
                  says=("op-out-of-memory: memory_limit = 1000000000 bytes",)),
    "within_limit": Op(op="b = bytearray(10 << 20)\nreturn x * 2", schema=FIVE,
                       keys=SIX + '\nmemory_limit = "1GB"'),
    # Scripts and executables
    "script_kwargs": script("r, x = read()\nassert r['kwargs'] == {'k': '2', 'on': 'True', "
                            "'axes': '[0, 1]'}, r['kwargs']\nwrite(x * 2)",
                            takes="x, **kw", keys="kwargs = { k = 2, on = true, axes = [0, 1] }"),
    "typed_kwargs": Op("x, **kw", "assert kw == {'k': 2, 'on': True, 'axes': [0, 1]}, kw\n"
                       "return x * 2", keys="kwargs = { k = 2, on = true, axes = [0, 1] }"),
    "script_strides": script(
        "r, x = read()\ng = r['inputs']['x']\nassert len(g['strides']) == 2\nwrite(x * 2)",
        schema=MATRIX, keys='layouts = ["strided", "transposed"]'),
    "script_main": script("assert __name__ == '__main__' and os.path.basename(sys.argv[0]) == "
                          "os.path.basename(__file__)\nr, x = read()\nwrite(x * 2)\nsys.exit()"),
    "script_chatter": script("print('a note', file=sys.stderr)\nr, x = read()\nwrite(x * 2)"),
    "script_stdout_note": script("r, x = read()\nprint('a note')\nwrite(x * 2)", **ERROR,
                                 says=("op-output-junk",)),
    "script_function": Op(script="import numpy as np\ndef op(x): return x * 2\n"),
    "script_raises": script("raise KeyError('of the script')", **ERROR,
                            says=("KeyError", "of the script")),
    "script_hangs": script("import time\ntime.sleep(600)", keys="timeout = 2\ncases = 1", **ERROR,
                           says=("op-timeout",)),
    "script_ignores_input": script("write(np.zeros(3, np.float32))", verdict="error"),
}  # fmt: skip
ONCE = [name for name, op in OPS.items() if name.endswith(("_once", "_softly"))]
FILES = {"ops/beside.py": "where = 'ops'\n", "beside.py": "where = 'root'\n",
         "at_root.py": "where = 'root'\n"}  # fmt: skip
VALIDATION = 'cases = 3\nseed = 3\ntolerance = "table"'


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("SECRET", "s"), ("GIVEN", "on"), ("GIVEN_TOO", "on")):
            patch.setenv(name, value)
        return run_once(tmp_path_factory, "workers", OPS, VALIDATION, files=FILES)


def test_each_process_gives_its_verdict(ran: Ran) -> None:
    elsewhere = set() if sys.platform.startswith("linux") else {"limited"}
    ran.check_all({name: op for name, op in OPS.items() if name not in elsewhere})


def test_trouble_costs_its_own_cases_only(ran: Ran) -> None:
    for name in ONCE:
        (result,) = ran.results[name]
        assert result["cases"] == 6, name
        assert {tuple(f["shape"]) for f in ran.failures[name]} == {(5,)}, name
        assert result["passed"] == 6 - len(ran.failures[name]) > 0, name
