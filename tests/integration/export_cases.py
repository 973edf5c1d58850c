"""Ops with one bug each, and the same ops mended: what exported tests must tell apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from export_bug import Bug, ramp

from gpuemu_flow.numerics.checked_output import Policy
from gpuemu_flow.numerics.dtypes import numpy_dtype
from gpuemu_flow.types import FailureKind, Tolerance

PROTOCOL = """
    import base64, json, sys
    import numpy as np

    request = json.load(sys.stdin)
    x = request["inputs"]["x"]
    x = np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"])
    y = BUG
    data = base64.b64encode(np.ascontiguousarray(y).tobytes()).decode()
    print(json.dumps({"outputs": {"y": {"shape": y.shape, "dtype": "f32", "data": data}}}))
    """

BUGS = [
    Bug(
        "tail",
        FailureKind.TOLERANCE,
        """
        import numpy as np
        from helper import whole

        def op(a, b, *, alpha):
            out = alpha * (a + b)
            BUG
            return out.astype(np.float32)
        """,
        "out[..., a.shape[-1] // 4 * 4:] = 0",
        "out = whole(out)",
        {"a": ramp(3, 5), "b": -ramp(3, 5) / 3},
        lambda a, b: 2.0 * (a + b),
        program={"kwargs": {"alpha": 2.0}},
    ),
    Bug(
        "nan_swallowed",
        FailureKind.NAN,
        "import numpy as np\ndef op(x):\n    return BUG\n",
        "np.where(x > 0, x, np.float32(0))",
        "np.where(np.isnan(x), x, np.maximum(x, np.float32(0)))",
        {"x": np.array([1.0, np.nan, -2.0, np.inf], np.float32)},
        lambda x: np.maximum(x, 0),
        tolerance={"float32": Tolerance(0.0, 0.0)},
    ),
    Bug(
        "infinity",
        FailureKind.INF,
        "import numpy as np\ndef op(x):\n    return BUG\n",
        "np.minimum(x, np.float32(3e38))",
        "x + np.float32(0)",
        {"x": np.array([1.0, np.inf, -np.inf], np.float32)},
        lambda x: x,
        tolerance={"float32": Tolerance(1.0, 1.0)},
    ),
    Bug(
        "shape",
        FailureKind.SHAPE,
        "def op(x):\n    return x.sum(axis=0, keepdims=BUG)\n",
        "True",
        "False",
        {"x": ramp(3, 2)},
        lambda x: x.sum(axis=0),
    ),
    Bug(
        "dtype",
        FailureKind.DTYPE,
        "def op(x):\n    return x.astype('BUG')\n",
        "float64",
        "float32",
        {"x": ramp(3)},
        lambda x: x,
    ),
    Bug(
        "half_overflow",
        FailureKind.TOLERANCE,
        "def op(x):\n    return (x.astype('float32') * BUG).astype('float16')\n",
        "40000",
        "4",
        {"x": np.array([1.0, 2.0, 30000.0], np.float16)},
        lambda x: x * 4,
        tolerance={"float16": Tolerance(0.0, 2e-3)},
    ),
    Bug(
        "scalar",
        FailureKind.TOLERANCE,
        "def op(x):\n    return x + BUG\n",
        "1",
        "2",
        {"x": np.float32(1.5).reshape(())},
        lambda x: x + 2,
    ),
    Bug(
        "integers",
        FailureKind.TOLERANCE,
        "import numpy as np\ndef op(x):\n    return (x.argmax(axis=-1) + BUG).astype(np.int32)\n",
        "1",
        "0",
        {"x": ramp(4, 3)},
        lambda x: x.argmax(axis=-1).astype(np.int32),
    ),
    Bug(
        "input_modified",
        FailureKind.INPUT_MODIFIED,
        "def op(x):\n    y = BUG\n    y *= 2\n    return y\n",
        "x",
        "x.copy()",
        {"x": ramp(5)},
        lambda x: 2 * x,
    ),
    Bug(
        "returns_nothing",
        FailureKind.TOLERANCE,
        "def op(x, w):\n    w -= BUG * x\n",
        "0.5",
        "0.25",
        {"x": ramp(5), "w": ramp(5)},
        lambda x, w: w - 0.25 * x,
        program={"mutates": ("w",)},
    ),
    Bug(
        "returns_one_of_two",
        FailureKind.TOLERANCE,
        "def op(x, w):\n    w -= BUG * x\n    return w + 1\n",
        "0.5",
        "0.25",
        {"x": ramp(5), "w": ramp(5)},
        lambda x, w: {"y": w - 0.25 * x + 1, "w": w - 0.25 * x},
        program={"mutates": ("w",), "output_names": ("y", "w")},
    ),
    Bug(
        "out_of_bounds",
        FailureKind.OUT_OF_BOUNDS,
        """
        from numpy.lib.stride_tricks import as_strided

        def op(x):
            y = x + 1
            BUG
            return y
        """,
        "as_strided(x, (x.shape[0] + 1,), x.strides)[-1] = 7",
        "y.sum()",
        {"x": ramp(5)},
        lambda x: x + 1,
        layout="strided",
    ),
    Bug(
        "strides_ignored",
        FailureKind.TOLERANCE,
        """
        import numpy as np
        from numpy.lib.stride_tricks import as_strided

        def op(x):
            return BUG + np.float32(1)
        """,
        "as_strided(x, x.shape, (x.shape[1] * 4, 4))",
        "x",
        {"x": ramp(3, 4)},
        lambda x: x + 1,
        layout="transposed",
    ),
    Bug(
        "cached_by_shape",
        FailureKind.TOLERANCE,
        """
        SEEN = {}

        def op(x):
            key = BUG
            if key not in SEEN:
                SEEN[key] = x * 3
            return SEEN[key]
        """,
        "x.shape",
        "x.tobytes()",
        {"x": ramp(6)},
        lambda x: x * 3,
    ),
    Bug(
        "random",
        FailureKind.NON_DETERMINISTIC,
        "import numpy as np\ndef op(x):\n    return x + np.float32(BUG)\n",
        "(np.random.default_rng().random() > 0.5) * 1e-7",
        "0",
        {"x": ramp(6) / 100},
        lambda x: x,
    ),
    Bug(
        "unwritten",
        FailureKind.UNWRITTEN,
        """
        import numpy as np

        def op(x):
            y = np.empty_like(x)
            y[:BUG] = 0
            return y
        """,
        "1000",
        "None",
        {"x": ramp(40000)},
        lambda x: 0 * x,
    ),
    Bug(
        "unwritten_small",
        FailureKind.UNWRITTEN,
        "import numpy as np\ndef op(x):\n    y = np.empty_like(x)\n    y[BUG] = 0\n    return y\n",
        ":8",
        "...",
        {"x": ramp(9)},
        lambda x: 0 * x,
    ),
    Bug(
        "raises",
        FailureKind.EXECUTION,
        "def op(x):\n    return x[BUG:]\n",
        "len(x) / 0",
        "0",
        {"x": ramp(3)},
        lambda x: x,
    ),
    Bug(
        "crashes",
        FailureKind.EXECUTION,
        "import os, signal\ndef op(x):\n    BUG\n    return x + 0\n",
        "os.kill(os.getpid(), signal.SIGSEGV)",
        "pass",
        {"x": ramp(3)},
        lambda x: x,
    ),
    Bug(
        "leaves",
        FailureKind.EXECUTION,
        "import os\ndef op(x):\n    BUG\n    return x + 0\n",
        "os._exit(0)",
        "pass",
        {"x": ramp(3)},
        lambda x: x,
    ),
    Bug(
        "hangs",
        FailureKind.EXECUTION,
        "import time\ndef op(x):\n    BUG\n    return x + 0\n",
        "time.sleep(3600)",
        "pass",
        {"x": ramp(3)},
        lambda x: x,
    ),
    Bug(
        "takes_all_memory",
        FailureKind.EXECUTION,
        "import numpy as np\ndef op(x):\n    return x + np.zeros(BUG, np.float32)[0]\n",
        "1 << 31",
        "1 << 10",
        {"x": ramp(3)},
        lambda x: x,
        program={"memory_limit": 1 << 30},
    ),
    Bug(
        "script",
        FailureKind.TOLERANCE,
        PROTOCOL,
        "x * 2",
        "x * 3",
        {"x": ramp(2, 3)},
        lambda x: {"y": x * 3},
        program={"kind": "script", "function": "", "output_names": ("y",)},
    ),
    Bug(
        "script_exit_code",
        FailureKind.EXECUTION,
        PROTOCOL,
        "sys.exit(3)",
        "x * 3",
        {"x": ramp(2, 3)},
        lambda x: {"y": x * 3},
        program={"kind": "script", "function": "", "output_names": ("y",)},
    ),
    Bug(
        "reference",
        FailureKind.TOLERANCE,
        "def reference(inputs, scale=1):\n    return {'y': inputs['x'] * BUG}\n",
        "1",
        "scale",
        {"x": ramp(2, 3)},
        lambda x: x * 5,
        program={"kind": "script", "function": "", "kwargs": {"scale": 5}},
    ),
    Bug(
        "module",
        FailureKind.TOLERANCE,
        "class Ops:\n    @staticmethod\n    def twice(*, x):\n        return x * BUG\n",
        "3",
        "2",
        {"x": ramp(2, 3)},
        lambda x: x * 2,
        program={"path": "", "module": "ops.module", "function": "Ops.twice"},
    ),
    Bug(
        "two_outputs",
        FailureKind.TOLERANCE,
        "def op(x):\n    return x.max(axis=1), BUG\n",
        "x.sum(axis=0)",
        "x.sum(axis=1)",
        {"x": ramp(3, 3)},
        lambda x: {"max": x.max(axis=1), "sum": x.sum(axis=1)},
        program={"output_names": ("max", "sum")},
    ),
    Bug(
        "bfloat",
        FailureKind.TOLERANCE,
        """
        import numpy as np

        def op(x):
            return (x.astype(np.float32) * BUG).astype(x.dtype)
        """,
        "1.5",
        "1.25",
        {"x": ramp(2, 3, dtype="bfloat16")},
        lambda x: x * 1.25,
        tolerance={"bfloat16": Tolerance(0.0, 1e-2)},
    ),
    Bug(
        "tiny_float",
        FailureKind.TOLERANCE,
        """
        import numpy as np

        def op(x):
            return (x.astype(np.float32) * BUG).astype(x.dtype)
        """,
        "0.25",
        "1000",
        {"x": np.array([0.25, 448.0, -448.0], np.float32).astype(numpy_dtype("float8_e4m3fn"))},
        lambda x: x * 1000,
        tolerance={"float8_e4m3fn": Tolerance(0.0, 0.1)},
    ),
    Bug(
        "negative",
        FailureKind.INVARIANT,
        "import numpy as np\ndef op(x):\n    return (x - x) BUG np.float32(1e-7)\n",
        "-",
        "+",
        {"x": ramp(4)},
        lambda x: 0 * x,
        policy=Policy(invariants=("non_negative", "finite", "no_nan", "no_inf")),
    ),
    Bug(
        "unnormalized",
        FailureKind.INVARIANT,
        "import numpy as np\ndef op(x):\n    return x * 0 + np.float32(BUG / x.shape[-1])\n",
        "1.1",
        "1.0",
        {"x": ramp(2, 4)},
        lambda x: 0 * x + 0.25,
        policy=Policy(invariants=("normalized",)),
        tolerance={"float32": Tolerance(0.05, 0.0)},
    ),
    Bug(
        "asymmetric",
        FailureKind.INVARIANT,
        """
        import numpy as np

        def op(x):
            lower = np.tri(3) - np.tri(3).T
            return ((x + x.T) * (1 + BUG * lower)).astype(x.dtype)
        """,
        "0.009",
        "0",
        {"x": ramp(3, 3)},
        lambda x: x + x.T,
        policy=Policy(invariants=("symmetric",)),
        tolerance={"float32": Tolerance(0.0, 0.01)},
    ),
    Bug(
        "strict_nan",
        FailureKind.NAN,
        "import numpy as np\ndef op(x):\n    return np.BUG(x - x) / (x - x + 1)\n",
        "log(-1 - x) + np.abs",
        "abs",
        {"x": ramp(3)},
        lambda x: 0 * x,
        policy=Policy(nan_policy="strict"),
    ),
    Bug(
        "hostile",
        FailureKind.TOLERANCE,
        "def op(inputs):\n    (x,) = inputs.values()\n    return x + BUG\n",
        "1",
        "2",
        {"'] = __import__('os').system('touch pwned') #\n\"\"\"": ramp(3)},
        lambda **inputs: next(iter(inputs.values())) + 2,
        op='"""\nimport os; os.system(\'touch pwned\')\n""" \\N{BULLET} \u202e é',
    ),
]

# Minimised as far as it goes: the values of the call that comes first must differ all the same.
(CACHED,) = [bug for bug in BUGS if bug.name == "cached_by_shape"]
BUGS.append(replace(CACHED, name="cached_zeros", inputs={"x": np.zeros(3, np.float32)}))
