"""Test the three kinds of program: what they receive, how they are called, what they may return."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import ml_dtypes
import numpy as np
import pytest
from runner_workspace import (
    NO_CHECKS,
    PROTOCOL,
    Workspace,
    make_case,
    slugs,
)

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.runners.api import Program, Request
from gpuemu_flow.types import DTYPES, LAYOUTS

FENCED = True


def same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    return (
        first.dtype == second.dtype
        and first.shape == second.shape
        and first.tobytes() == second.tobytes()
    )


ECHO_SCRIPT = (
    PROTOCOL.replace("import numpy as np", "import numpy as np\nimport ml_dtypes")
    + """
inputs, kwargs = read()
print(json.dumps(tensor(inputs["x"])))
"""
)
SHAPES = [(), (0,), (1,), (3, 4), (2, 0, 5), (2, 3, 4)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_goes_through_unchanged(ws: Workspace, dtype: str) -> None:
    """Callable, function-only script and protocol script get and give the very same bits."""
    cases = [make_case(i, shape, dtype) for i, shape in enumerate(SHAPES)]
    expected = [materialise(case)["x"] for case in cases]
    programs = [
        ws.program("callable", "def op(x): return x", name="function.py"),
        ws.program("script", "def reference(inputs): return inputs['x']", name="plain.py"),
        ws.program("script", ECHO_SCRIPT, name="protocol.py"),
    ]
    for program in programs:
        outcomes = ws.run(program, cases)
        assert slugs(outcomes) == ["ok"] * len(cases), outcomes[0]
        for outcome, array in zip(outcomes, expected, strict=True):
            assert same_bits(ws.outputs(outcome)["result"], array)
            (info,) = outcome.outputs
            assert (info.name, info.shape, info.dtype) == ("result", array.shape, dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_real_for_callables_and_told_to_scripts(ws: Workspace, layout: str) -> None:
    case = make_case(0, (4, 6), layout=layout)
    expected = materialise(case)["x"]
    steps = [stride // expected.itemsize for stride in expected.strides]

    strides = "import numpy as np\ndef op(x): return np.array(x.strides) // x.itemsize"
    (outcome,) = ws.run(ws.program("callable", strides, name="strides.py"), [case])
    assert ws.outputs(outcome)["result"].tolist() == steps

    told = PROTOCOL + dedent("""
        request = json.load(sys.stdin)
        print(json.dumps(tensor(np.array(request["inputs"]["x"]["strides"]))))
    """)
    (outcome,) = ws.run(ws.program("script", told, name="told.py"), [case])
    assert ws.outputs(outcome)["result"].tolist() == steps

    (outcome,) = ws.run(ws.program("script", ECHO_SCRIPT, name="echo.py"), [case])
    assert same_bits(ws.outputs(outcome)["result"], np.ascontiguousarray(expected))


SIGNATURES = {
    "by_name": "def op(b, a, alpha=1): return a - alpha * b",
    "any_keywords": "def op(**tensors): return tensors['a'] - tensors['alpha'] * tensors['b']",
    "some_by_name": "def op(a, **rest): return a - rest['alpha'] * rest['b']",
    "keyword_only": "def op(*, a, b, alpha): return a - alpha * b",
    "mapping": "def op(inputs, alpha): return inputs['a'] - alpha * inputs['b']",
    "mapping_and_any": "def op(inputs, **kw): return inputs['a'] - kw['alpha'] * inputs['b']",
    "positional_only": "def op(first, second, /, alpha): return first - alpha * second",
    "varargs": "def op(*tensors, alpha): return tensors[0] - alpha * tensors[1]",
    "object": ("class Op:\n    def __call__(self, a, b, alpha): return a - alpha * b\nop = Op()"),
    "partial": (
        "import functools\ndef f(scale, a, b, alpha): return scale * (a - alpha * b)\n"
        "op = functools.partial(f, 1)"
    ),
    "decorated": (
        "import functools\ndef deco(f):\n    @functools.wraps(f)\n    def g(*args, **kw):\n"
        "        return f(*args, **kw)\n    return g\n"
        "@deco\ndef op(a, b, alpha): return a - alpha * b"
    ),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_how_a_function_is_called_follows_from_its_signature(ws: Workspace, name: str) -> None:
    program = ws.program(
        "callable", SIGNATURES[name], input_names=("a", "b"), kwargs={"alpha": 2.5}
    )
    case = make_case(0, names=("a", "b"))
    (outcome,) = ws.run(program, [case])
    arrays = materialise(case)
    expected = arrays["a"] - np.float32(2.5) * arrays["b"]
    np.testing.assert_allclose(ws.outputs(outcome)["result"], expected, rtol=1e-6)


REFUSED = {
    "other_names": "def op(x, y): return x",
    "one_missing": "def op(a): return a",
    "unknown_keyword": "def op(a, b): return a",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_signature_that_cannot_be_called_is_told(ws: Workspace, name: str) -> None:
    kwargs = {"alpha": 1} if name == "unknown_keyword" else {}
    program = ws.program("callable", REFUSED[name], input_names=("a", "b"), kwargs=kwargs)
    (outcome,) = ws.run(program, [make_case(0, names=("a", "b"))])
    assert outcome.error is not None
    assert outcome.error.slug == "op-signature"
    assert (Path(outcome.error.file).name, outcome.error.line) == ("program.py", 1)


def test_a_dotted_module_of_the_workspace_and_an_installed_one(ws: Workspace) -> None:
    ws.write("pkg/__init__.py", "")
    ws.write("pkg/ops.py", "from . import parts\ndef double(x): return parts.two * x\n")
    ws.write("pkg/parts.py", "two = 2\n")
    base = Program("callable", root=str(ws.folder), input_names=("x",))
    (outcome,) = ws.run(replace(base, module="pkg.ops", function="double"))
    x = materialise(make_case(0))["x"]
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], 2 * x)
    (outcome,) = ws.run(replace(base, module="numpy", function="exp"))
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], np.exp(x))
    (outcome,) = ws.run(replace(base, module="numpy", function="linalg.norm"))
    assert slugs([outcome]) in (["ok"], ["op-signature"])


def test_imports_come_from_the_files_folder_then_the_root(ws: Workspace) -> None:
    ws.write("lib/tools.py", "where = 1\n")
    ws.write("tools.py", "where = 2\n")
    ws.write("common.py", "where = 3\n")
    source = """
    import numpy as np, os, tools, common
    def op(x):
        here = os.getcwd() == os.path.realpath(os.path.dirname(common.__file__))
        return np.array([tools.where, common.where, here])
    """
    (outcome,) = ws.run(ws.program("callable", source, name="lib/program.py"))
    assert ws.outputs(outcome)["result"].tolist() == [1, 3, 1]


def test_an_edit_within_the_same_second_is_seen(ws: Workspace) -> None:
    """Bytecode files compare whole seconds and sizes; a helper's edit must not be missed."""
    results = []
    for value in (1, 2, 3):
        helper = ws.write("helper.py", f"value = {value}\n")
        os.utime(helper, (1_700_000_000, 1_700_000_000))
        program = ws.program("callable", "import helper\ndef op(x): return helper.value")
        results.append(int(ws.outputs(ws.run(program)[0])["result"]))
    assert results == [1, 2, 3]
    assert not list(ws.folder.rglob("__pycache__"))


def test_stale_bytecode_of_others_is_not_used(ws: Workspace) -> None:
    import py_compile

    helper = ws.write("helper.py", "value = 1\n")
    os.utime(helper, (1_700_000_000, 1_700_000_000))
    py_compile.compile(str(helper))
    ws.write("helper.py", "value = 2\n")
    os.utime(helper, (1_700_000_000, 1_700_000_000))
    program = ws.program("callable", "import helper\ndef op(x): return helper.value")
    assert int(ws.outputs(ws.run(program)[0])["result"]) == 2


RETURNS = {
    "array": ("return x", ("result",)),
    "tuple_of_one": ("return (x,)", ("result",)),
    "dict_of_one": ("return {'whatever': x}", ("result",)),
    "python_float": ("return 1.5", ("result",)),
    "python_bool": ("return True", ("result",)),
    "numpy_scalar": ("return np.float32(2)", ("result",)),
    "view": ("return x[::2, ::-1]", ("result",)),
    "big_endian": ("return x.astype('>f4')", ("result",)),
    "matrix": ("return np.asmatrix(x)", ("result",)),
    "masked": ("return np.ma.masked_array(x)", ("result",)),
    "array_protocol": ("return Wrapper(x)", ("result",)),
    "fortran": ("return np.asfortranarray(x)", ("result",)),
}


@pytest.mark.parametrize("name", RETURNS)
def test_what_a_function_may_return(ws: Workspace, name: str) -> None:
    body, names = RETURNS[name]
    source = f"""
    import numpy as np
    class Wrapper:
        def __init__(self, array): self.array = array
        def __array__(self, dtype=None, copy=None): return self.array
    def op(x):
        {body}
    """
    (outcome,) = ws.run(ws.program("callable", source))
    assert outcome.ok, outcome.error
    assert tuple(ws.outputs(outcome)) == names


@pytest.mark.parametrize(
    "body", ["return x, 2 * x", "return [x, 2 * x]", "return {'lse': 2 * x, 'out': x}"]
)
def test_several_outputs(ws: Workspace, body: str) -> None:
    program = ws.program("callable", f"def op(x): {body}", output_names=("out", "lse"))
    (outcome,) = ws.run(program)
    outputs = ws.outputs(outcome)
    np.testing.assert_array_equal(outputs["lse"], 2 * outputs["out"])
    assert [info.name for info in outcome.outputs] == ["lse", "out"]


def test_missing_and_unknown_outputs(ws: Workspace) -> None:
    for body in ("return x", "return x, x, x", "return {'out': x}", "return {'out': x, 'b': x}"):
        program = ws.program("callable", f"def op(x): {body}", output_names=("out", "lse"))
        (outcome,) = ws.run(program)
        assert outcome.error is not None
        assert outcome.error.slug == "op-output-missing", body
        assert "out, lse" in outcome.error.message


FORMS = {
    "flat": ("tensor(x)", (), ["result"]),
    "flat_named": ("tensor(x)", ("out",), ["out"]),
    "outputs_of_one": ("{'outputs': {'result': tensor(x)}}", (), ["result"]),
    "outputs_of_another": ("{'outputs': {'y': tensor(x)}}", (), ["result"]),
    "output": ("{'output': tensor(x)}", (), ["result"]),
    "two": ("{'outputs': {'a': tensor(x), 'b': tensor(x)}}", ("a", "b"), ["a", "b"]),
    "two_undeclared": ("{'outputs': {'b': tensor(x), 'a': tensor(x)}}", (), ["a", "b"]),
    "extra_keys": ("dict(tensor(x), note='data', strides=[1])", (), ["result"]),
    "no_dtype": ("{k: v for k, v in tensor(x).items() if k != 'dtype'}", (), ["result"]),
    "capital_dtype": ("dict(tensor(x), dtype='Float32')", (), ["result"]),
    "data_first": ("dict(reversed(tensor(x).items()))", (), ["result"]),
    "data_in_a_note": ("dict(tensor(x), note={'data': 'AAAA'})", (), ["result"]),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_a_script_may_print(ws: Workspace, name: str) -> None:
    form, declared, names = FORMS[name]
    script = f"{PROTOCOL}\nx = read()[0]['x']\nprint(json.dumps({form}, indent=1))\n"
    (outcome,) = ws.run(ws.program("script", script, output_names=declared))
    outputs = ws.outputs(outcome)
    assert list(outputs) == names
    for array in outputs.values():
        np.testing.assert_array_equal(array, materialise(make_case(0))["x"])


def test_keyword_arguments_are_typed_for_functions_and_text_for_scripts(ws: Workspace) -> None:
    kwargs = {"alpha": 0.5, "flag": True, "mode": "fast", "axes": [0, 1], "none": None}
    source = "import json\nimport numpy as np\ndef op(x, **kwargs):\n"
    source += "    return np.frombuffer(json.dumps(kwargs).encode(), np.uint8)"
    (outcome,) = ws.run(ws.program("callable", source, kwargs=kwargs, name="typed.py"))
    assert json.loads(ws.outputs(outcome)["result"].tobytes()) == kwargs

    script = PROTOCOL + "kwargs = read()[1]\nraw = json.dumps(kwargs).encode()\n"
    script += "print(json.dumps(tensor(np.frombuffer(raw, np.uint8))))\n"
    (outcome,) = ws.run(ws.program("script", script, kwargs=kwargs))
    assert json.loads(ws.outputs(outcome)["result"].tobytes()) == {
        "alpha": "0.5",
        "flag": "True",
        "mode": "fast",
        "axes": "[0, 1]",
        "none": "None",
    }


def test_a_script_runs_like_under_an_interpreter(ws: Workspace) -> None:
    """__main__, argv, file, fresh globals in each case, real descriptors, exit functions."""
    script = PROTOCOL + dedent("""
        import atexit, dataclasses, os, pickle, threading
        if __name__ == "__main__":
            assert "seen" not in globals()
            seen = True
            assert sys.modules["__main__"].__dict__ is globals()
            assert os.path.basename(__file__) == os.path.basename(sys.argv[0]) == "program.py"
            assert sys.argv[1:] == ["--fast"]
            assert sys.stdin.fileno() == 0 and sys.stdout.fileno() == 1

            @dataclasses.dataclass
            class Point:
                x: int
            assert pickle.loads(pickle.dumps(Point(3))) == Point(3)

            x = read()[0]["x"]
            out = []
            thread = threading.Thread(target=lambda: out.append(json.dumps(tensor(x))))
            thread.start()
            atexit.register(lambda: sys.stdout.write(out[0]))
            print("a note", file=sys.stderr)
            sys.exit()
    """)
    outcomes = ws.run(ws.program("script", script, argv=("--fast",)), 3)
    assert slugs(outcomes) == ["ok"] * 3, outcomes[0]


def test_scripts_may_leave_an_executor_idle(ws: Workspace) -> None:
    script = PROTOCOL + dedent("""
        from concurrent.futures import ThreadPoolExecutor
        x = read()[0]["x"]
        pool = ThreadPoolExecutor(2)
        print(pool.submit(lambda: json.dumps(tensor(x))).result())
    """)
    assert slugs(ws.run(ws.program("script", script, timeout=600), 3)) == ["ok"] * 3


def test_settings_that_a_program_changes_are_put_back(ws: Workspace) -> None:
    source = """
    import os, sys
    import numpy as np
    def op(x):
        assert os.path.basename(os.getcwd()) != "elsewhere" and len(sys.path) < 900
        assert np.geterr()["over"] == "warn" and sys.getrecursionlimit() < 9000
        os.makedirs("elsewhere", exist_ok=True)
        os.chdir("elsewhere")
        sys.path.extend(["/nowhere"] * 1000)
        np.seterr(all="raise")
        sys.setrecursionlimit(10000)
        return x
    """
    program = ws.program("callable", source, isolation="warm")
    assert slugs(ws.run(program, 3)) == ["ok"] * 3


def test_the_global_generators_are_seeded_per_case(ws: Workspace) -> None:
    """Not by what ran before: the same case gives the same values in another order, or alone."""
    source = """
    import random
    import numpy as np
    def op(x):
        return np.append(np.random.rand(3), random.random())
    """
    program = ws.program("callable", source)
    cases = [make_case(i) for i in range(3)]
    together = {o.index: o.blob for o in ws.run(program, cases)}
    backwards = {o.index: o.blob for o in ws.run(program, cases[::-1])}
    assert together == backwards
    assert len(set(together.values())) == 3


def test_the_environment(ws: Workspace) -> None:
    source = """
    import os
    import numpy as np
    def op(x):
        names = ("GPUEMU_TEST", "OMP_NUM_THREADS")
        return np.frombuffer(",".join(os.environ.get(n, "") for n in names).encode(), np.uint8)
    """
    for isolation in ("fork", "spawn"):
        env = {"GPUEMU_TEST": "yes", "OMP_NUM_THREADS": "3"}
        program = ws.program("callable", source, env=env, isolation=isolation)
        (outcome,) = ws.run(program)
        assert ws.outputs(outcome)["result"].tobytes() == b"yes,3"
    (outcome,) = ws.run(ws.program("callable", source))
    assert ws.outputs(outcome)["result"].tobytes() == b",1"


def test_a_wider_input_type(ws: Workspace) -> None:
    source = "import numpy as np\ndef op(x): return x.astype(np.float64) * 3"
    program = ws.program("callable", source)
    narrow = make_case(0, dtype="bfloat16")
    (outcome,) = ws.pool.run(
        program, [Request(narrow, "float64")], checks=NO_CHECKS, publish=ws.publish
    )
    x = materialise(narrow)["x"]
    assert x.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(ws.outputs(outcome)["result"], x.astype(np.float64) * 3)
    whole = make_case(1, dtype="int32")
    kinds = ws.program("callable", "def op(x): return x")
    (outcome,) = ws.pool.run(
        kinds, [Request(whole, "float64")], checks=NO_CHECKS, publish=ws.publish
    )
    assert ws.outputs(outcome)["result"].dtype == np.int32


def test_another_interpreter_without_this_package(ws: Workspace) -> None:
    """Stands for a foreign Python: the command line is that of one that lacks the package."""
    base = {"python": sys.executable, "kwargs": {"alpha": 2.0}}
    function = "def op(x, alpha):\n    print('noise')\n    return {'a': alpha * x, 'b': x}"
    program = ws.program("callable", function, output_names=("a", "b"), **base)
    outputs = ws.outputs(ws.run(program)[0])
    np.testing.assert_array_equal(outputs["a"], 2 * outputs["b"])
    mapping = ws.program("script", "def reference(inputs, alpha): return inputs['x']", **base)
    assert slugs(ws.run(mapping)) == ["ok"]
    script = ws.program("script", ECHO_SCRIPT, python=sys.executable)
    assert slugs(ws.run(script)) == ["ok"]
    missing = ws.program("script", ECHO_SCRIPT, python="/no/such/python")
    assert slugs(ws.run(missing)) == ["op-not-loadable"]


def test_memory_of_earlier_cases_is_given_back(ws: Workspace) -> None:
    """A script's functions and its globals refer to each other; the worker must not keep them."""
    script = PROTOCOL + dedent("""
        import os
        def keep():
            return ballast
        ballast = np.ones(4 << 20, np.uint8)
        pages = int(open("/proc/self/statm").read().split()[1])
        x = read()[0]["x"]
        print(json.dumps(tensor(np.array(pages * os.sysconf("SC_PAGE_SIZE")))))
    """)
    outcomes = ws.run(ws.program("script", script), 40)
    resident = [int(ws.outputs(outcome)["result"]) for outcome in outcomes]
    assert resident[-1] - resident[4] < 64 << 20


@pytest.mark.parametrize("reading", ["json.load(sys.stdin)", "json.loads(sys.stdin.buffer.read())"])
def test_ways_to_read_and_print(ws: Workspace, reading: str) -> None:
    script = f"""
    import base64, json, sys
    import numpy as np
    request = {reading}
    t = request["inputs"]["x"]
    x = np.frombuffer(base64.standard_b64decode(t["data"]), t["dtype"]).reshape(t["shape"])
    out = {{"shape": t["shape"], "dtype": t["dtype"],
           "data": base64.standard_b64encode(x).decode("ascii")}}
    sys.stdout.buffer.write(json.dumps(out, separators=(",", ":")).encode())
    """
    case = make_case(0, (50, 60))
    (outcome,) = ws.run(ws.program("script", script), [case])
    assert same_bits(ws.outputs(outcome)["result"], materialise(case)["x"])


def test_a_shorter_response_after_a_longer_one(ws: Workspace) -> None:
    """The stdin and stdout files are used again without being emptied."""
    cases = [make_case(i, shape) for i, shape in enumerate([(300, 40), (1,), (), (50, 50), (0,)])]
    outcomes = ws.run(ws.program("script", ECHO_SCRIPT, isolation="warm"), cases)
    for outcome, case in zip(outcomes, cases, strict=True):
        assert same_bits(ws.outputs(outcome)["result"], materialise(case)["x"])
