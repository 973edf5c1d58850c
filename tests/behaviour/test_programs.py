"""How programs are called, what they may return, and what is said of those that go wrong."""

from __future__ import annotations

import pytest
from many_ops import MATRIX, Op, Ran, run_once

PAIR = 'dims = { N = [5, 12] }\ninputs = { a = ["N"], b = ["N"] }\noutput = ["N"]'
TWO = 'dims = { N = [5, 12] }\ninputs = { x = ["N"] }\noutputs = { out = ["N"], lse = ["N"] }'
PROTOCOL = """
import base64, json, os, sys
import numpy as np
request = json.load(sys.stdin)
given = request["inputs"]["x"]
x = np.frombuffer(base64.b64decode(given["data"]), given["dtype"]).reshape(given["shape"])
def tensor(a):
    data = base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()
    return {"shape": list(a.shape), "dtype": str(a.dtype), "data": data}
y = tensor(x * 2)
"""


def called(text: str) -> Op:
    """An op of a whole file, with a reference that takes its arguments by name."""
    body = "return (a - alpha * b).astype(a.dtype)"
    return Op(
        "a, b, alpha", reference=body, schema=PAIR, keys="kwargs = { alpha = 2.5 }", text=text
    )


def refused(text: str, keys: str = "") -> Op:
    return Op("a, b, **kw", "", "return a - b", PAIR, keys, text=text, verdict="error",
              kind="ExecutionError", says=("op-signature", ".py:1)"))  # fmt: skip


def printed(form: str, **more: object) -> Op:
    return Op(script=f"{PROTOCOL}\nprint({form})\n", **more)  # type: ignore[arg-type]


def wrong(op: str, kind: str, *says: str, verdict: str = "failed", **more: object) -> Op:
    return Op(op=op, verdict=verdict, kind=kind, says=says, **more)  # type: ignore[arg-type]


OPS = {
    # Calls
    "by_name": called("def op(b, a, alpha=1): return a - alpha * b"),
    "any_keywords": called("def op(**t): return t['a'] - t['alpha'] * t['b']"),
    "some_by_name": called("def op(a, **rest): return a - rest['alpha'] * rest['b']"),
    "keyword_only": called("def op(*, a, b, alpha): return a - alpha * b"),
    "mapping": called("def op(inputs, alpha): return inputs['a'] - alpha * inputs['b']"),
    "mapping_and_any": called(
        "def op(inputs, **kw): return inputs['a'] - kw['alpha'] * inputs['b']"
    ),
    "positional_only": called("def op(first, second, /, alpha): return first - alpha * second"),
    "varargs": called("def op(*tensors, alpha): return tensors[0] - alpha * tensors[1]"),
    "object": called(
        "class Op:\n    def __call__(self, a, b, alpha): return a - alpha * b\nop = Op()"
    ),
    "partial": called(
        "import functools\ndef f(scale, a, b, alpha): return scale * (a - alpha * b)\n"
        "op = functools.partial(f, 1)"
    ),
    "decorated": called(
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n"
        "    def g(*args, **kw):\n        return f(*args, **kw)\n    return g\n"
        "@deco\ndef op(a, b, alpha): return a - alpha * b"
    ),
    "refused_names": refused("def op(x, y): return x"),
    "refused_missing": refused("def op(a): return a"),
    "refused_keyword": refused("def op(a, b): return a", "kwargs = { alpha = 1 }"),
    "no_function": Op(
        text="def other(x): return x\n",
        verdict="error",
        says=("op-not-loadable", "defines no callable 'op'"),
    ),
    "no_import": Op(
        text="import nothing_of_this_name\ndef op(x): return x\n",
        verdict="error",
        says=("nothing_of_this_name", ".py:1"),
    ),
    "raises_at_import": Op(
        text="x = 1\nraise RuntimeError('at import')\n",
        verdict="error",
        says=("op-not-loadable", "at import", ".py:2"),
    ),
    "no_callable": Op(text="op = 1\n", verdict="error", says=("op-not-loadable",)),
    "exits_at_import": Op(
        text="raise SystemExit(4)\n", verdict="error", says=("op-exit-code", ".py:1")
    ),
    "crashes_at_import": Op(
        text="import os; os.abort()\n", verdict="error", says=("op-crashed", "SIGABRT")
    ),
    "null_byte": Op(text="x = '\0'\n", verdict="error", says=("op-not-loadable",)),
    "syntax": Op(text="def op(x): return (x\n", verdict="error", says=("SyntaxError",)),
    "returns_view": Op(op="return np.repeat(x * 2, 2)[::2]"),
    "returns_fortran": Op(op="return np.asfortranarray(x * 2)", schema=MATRIX),
    "returns_transposed": Op(op="return np.ascontiguousarray((x * 2).T).T", schema=MATRIX),
    "returns_big_endian": Op(op="return (x * 2).astype('>f4')"),
    "returns_matrix": Op(op="return np.asmatrix(x * 2)", schema=MATRIX),
    "returns_tuple": Op(op="return (x * 2,)"),
    "returns_dict": Op(op="return {'whatever': x * 2}"),
    "returns_protocol": Op(
        head="class W:\n    def __init__(self, a): self.a = a\n"
        "    def __array__(self, dtype=None, copy=None): return self.a\n",
        op="return W(x * 2)",
    ),
    "two_as_tuple": Op(op="return x, 2 * x", reference="return x, 2 * x", schema=TWO),
    "two_as_dict": Op(
        op="return {'lse': 2 * x, 'out': x}", reference="return x, x + x", schema=TWO
    ),
    "two_exchanged": Op(
        op="return {'lse': x, 'out': 2 * x}",
        reference="return x, 2 * x",
        schema=TWO,
        verdict="failed",
        kind="ToleranceExceeded",
        says=("'lse'", "auto (exact)"),
        wrong=4,
    ),
    "scalar": Op(
        op="return float(x.sum())",
        reference="return x.sum()",
        schema='dims = { N = [5] }\ninputs = { x = ["N"] }\noutput = []',
        keys='strategies = ["integers"]',
        verdict="error",
        kind="DTypeMismatch",
        says=("output 'output' has dtype float64, expected float32",),
    ),
    # Scripts
    "script_flat": printed("json.dumps(y)"),
    "script_outputs": printed("json.dumps({'outputs': {'y': y}})"),
    "script_output": printed("json.dumps({'output': y})"),
    "script_no_dtype": printed("json.dumps({k: v for k, v in y.items() if k != 'dtype'})"),
    "script_capital": printed("json.dumps(dict(y, dtype='Float32'))"),
    "script_data_first": printed("json.dumps(dict(reversed(y.items())), indent=1)"),
    "script_note": printed("json.dumps(dict(y, note={'data': 'AAAA'}, strides=[1]))"),
    "script_no_json": printed(
        "'hello'",
        verdict="error",
        says=("op-output-junk: stdout is not one JSON object", "'hello'"),
    ),
    "script_silent": printed(
        "end=''", verdict="error", says=("op-output-missing: the program wrote nothing to stdout",)
    ),
    "script_short_data": printed(
        "json.dumps(dict(y, data=y['data'][:-8]))",
        verdict="error",
        says=("op-output-length", "takes 20 bytes; its data holds 15"),
    ),
    "script_bad_base64": printed(
        "json.dumps(dict(y, data='?'))",
        verdict="error",
        says=("op-output-junk: output 'output': its data is not base64",),
    ),
    "script_exits": Op(
        script=PROTOCOL + "sys.exit(3)\n",
        verdict="error",
        says=("op-exit-code: the script exited with code 3",),
    ),
    "script_says_why": Op(
        script=PROTOCOL + "sys.exit('of no use')\n",
        verdict="error",
        says=("op-exit-code: the script exited with code 1",),
    ),
    # What goes wrong
    "raises": wrong(
        "raise ValueError('of the op')",
        "ExecutionError",
        "the op: op-exception: ValueError: of the op (ops/raises.py:5)",
        verdict="error",
    ),
    "raises_no_text": wrong(
        "raise ValueError('no \\udcff text')",
        "ExecutionError",
        "ValueError: no \udcff text",
        verdict="error",
    ),
    "no_array": wrong(
        "return 'text'", "ExecutionError", "is of type str, not an array", verdict="error"
    ),
    "nothing": wrong(
        "return None", "ExecutionError", "op-output-missing", "is of type NoneType", verdict="error"
    ),
    "wrong_shape": wrong(
        "return (x * 2)[:-1]",
        "ShapeMismatch",
        "has shape [4], declared as [N = 5]",
        verdict="error",
    ),
    "wrong_dtype": wrong(
        "return (x * 2).astype(np.float64)",
        "DTypeMismatch",
        "has dtype float64, expected float32",
        verdict="error",
    ),
    "two_for_one": wrong(
        "return x, x",
        "ExecutionError",
        "2 outputs returned where 1 are declared: output",
        verdict="error",
    ),
    "one_for_two": wrong(
        "return x",
        "ExecutionError",
        "one ndarray returned",
        "out, lse",
        verdict="error",
        schema=TWO,
        reference="return x, x",
    ),
    "exits": wrong(
        "import os\nos._exit(7)", "ExecutionError", "op-crashed", "exit code 7", verdict="error"
    ),
    "crashes": wrong(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "ExecutionError",
        "op-crashed: the process was killed by SIGSEGV",
        verdict="error",
    ),
    "hangs": wrong(
        "import time\ntime.sleep(600)",
        "ExecutionError",
        "op-timeout: no result after 2 s",
        verdict="error",
        keys="timeout = 2\ncases = 1",
    ),
    # Checks
    "changes_input": wrong(
        "y = x * 2\nx[1] = 99\nreturn y",
        "InputModified",
        "the program changed 1 of 5 elements of input 'x'",
        wrong=4,
    ),
    "may_change_input": Op(op="y = x * 2\nx[1] = 99\nreturn y", keys='mutates = ["x"]'),
    "shape_of_input": wrong(
        "y = x * 2\nx.shape = (len(x), 1)\nreturn y",
        "InputModified",
        "the shape of input 'x' from [5] to [5, 1]",
    ),
    "writes_before": wrong(
        "import ctypes\nctypes.memset(x.ctypes.data - 8, 0x11, 4)\nreturn x * 2",
        "OutOfBoundsWrite",
        "4 bytes of memory round the elements of input 'x'",
    ),
    "writes_behind": wrong(
        "import ctypes\nctypes.memset(x.ctypes.data + x.nbytes + 4, 0x11, 4)\nreturn x * 2",
        "OutOfBoundsWrite",
        "4 bytes of memory",
        keys='layouts = ["contiguous"]',
    ),
    "counts_calls": wrong(
        "n.append(1)\nreturn x * 2 + len(n) % 2",
        "NonDeterministic",
        "an identical call changed 5 of 5 elements",
        head="n = []\n",
    ),
    "random": wrong(
        "import os\nreturn x * 2 + np.frombuffer(os.urandom(8), np.uint8)[:1] % 64",
        "NonDeterministic",
        verdict="failed",
    ),
    "may_differ": wrong(
        "import os\nreturn x * 2 + np.frombuffer(os.urandom(8), np.uint8)[:1] % 64",
        "ToleranceExceeded",
        keys="deterministic = false",
    ),
    "unwritten": wrong("y = np.empty_like(x)\ny[:-1] = x[:-1] * 2\nreturn y", ""),
    "scratch": Op(op="s = np.empty((2, *x.shape), x.dtype)\ns[0] = x\nreturn s[0] * 2"),
    "cached_result": wrong(
        "key = x.shape\nif key not in kept: kept[key] = x * 2\nreturn kept[key]",
        "ToleranceExceeded",
        head="kept = {}\n",
    ),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "programs", OPS, "cases = 4\nseed = 3")


def test_each_program_gets_its_verdict(ran: Ran) -> None:
    ran.check_all(OPS)
