"""Workspaces for the benchmarks.

Per op five tasks, as ``gpuemu-flow run`` makes them: generate → op, reference → compare → diff.
Every op has two source files of its own, its script and its reference.
"""

from __future__ import annotations

import itertools
from pathlib import Path

TASKS_PER_OP = 5
SEED = 1
SOFTMAX_SHAPE = (8, 128, 512)
SOFTMAX_TOLERANCE = (1e-6, 1e-4)  # absolute, relative
SMALL_OP = "scale"
SMALL_PROGRAMS = ("scale", "scale_reference")

_OP = '''"""Op {n}: the length of a vector whose other leg is given."""

import numpy as np

LEG = {leg}


def op(x):
    return np.sqrt(x * x + LEG * LEG)
'''

_REFERENCE = '''"""Reference {n}."""

import numpy as np


def reference(x):
    return np.hypot(x, {leg})
'''

_GPUEMU_HEAD = """[project]
name = "benchmark"

[validation]
dtypes = ["float32"]
cases = 1
seed = 1

[policies]
fail_on_regression = false
"""

_GPUEMU_OP = """
[[ops]]
name = "op_{n}"
op = "scripts/op_{n}.py"
reference = "scripts/reference_{n}.py"
[ops.schema]
dims = {{ N = [8] }}
inputs = {{ x = ["N"] }}
output = ["N"]
"""


def write_scripts(folder: Path, ops: int) -> None:
    """The source files of all ops, below ``scripts/``."""
    scripts = folder / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    for n in range(ops):
        leg = 1.0 + n / 1024  # no two ops compute the same, or one would be served by the other
        (scripts / f"op_{n}.py").write_text(_OP.format(n=n, leg=leg))
        (scripts / f"reference_{n}.py").write_text(_REFERENCE.format(n=n, leg=leg))


def change_leaf(folder: Path) -> None:
    """Edit the next op's script so that its output differs in the last bits, and still passes."""
    marker = "LEG * LEG)"
    for n in itertools.count():
        path = folder / "scripts" / f"op_{n}.py"
        text = path.read_text()
        if marker in text:
            path.write_text(text.replace(marker, "LEG * LEG * (1.0 + 2.0**-22))"))
            return


def write_gpuemu(folder: Path, ops: int) -> None:
    """``gpuemu.toml``."""
    parts = (_GPUEMU_HEAD, *(_GPUEMU_OP.format(n=n) for n in range(ops)))
    (folder / "gpuemu.toml").write_text("".join(parts))


_SOFTMAX = '''"""Softmax over the last axis."""

import numpy as np


def {name}(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    e /= e.sum(axis=-1, keepdims=True)
    return e
'''

_PROTOCOL = """

import base64
import json
import sys

request = json.load(sys.stdin)
tensor = request["inputs"]["x"]
data = base64.b64decode(tensor["data"])
x = np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"])
result = {name}(x)
json.dump(
    {{
        "shape": list(result.shape),
        "dtype": result.dtype.name,
        "data": base64.b64encode(result.tobytes()).decode(),
    }},
    sys.stdout,
)
"""

_SOFTMAX_HEAD = """[project]
name = "benchmark"

[validation]
dtypes = ["float32"]
seed = {seed}
"""

_SOFTMAX_OP = """
[[ops]]
name = "{name}"
op = "softmax.py:softmax"
reference = "softmax_reference.py:softmax_reference"
{tolerances}
[ops.schema]
dims = {{ B = [{shape[0]}], M = [{shape[1]}], N = [{shape[2]}] }}
inputs = {{ x = ["B", "M", "N"] }}
output = ["B", "M", "N"]
"""


_SCALE = '''"""Multiplication by a number."""


def {name}(x):
    return x * 3
'''

_SCALE_OP = """
[[ops]]
name = "scale"
op = "scale.py:scale"
reference = "scale_reference.py:scale_reference"
{tolerances}
[ops.schema]
dims = {{ B = [4], N = [16] }}
inputs = {{ x = ["B", "N"] }}
output = ["B", "N"]
"""


def write_softmax(folder: Path) -> None:
    """Softmax and its reference, as functions and as protocol scripts, and a configuration.

    The op ``softmax`` has an explicit tolerance there, ``softmax_auto`` has not. Beside them stands
    ``scale``, an op of small cases.
    """
    for name in ("softmax", "softmax_reference"):
        function = _SOFTMAX.format(name=name)
        (folder / f"{name}.py").write_text(function)
        (folder / f"{name}_script.py").write_text(function + _PROTOCOL.format(name=name))
    atol, rtol = SOFTMAX_TOLERANCE
    explicit = f"tolerances = {{ float32 = {{ atol = {atol}, rtol = {rtol} }} }}"
    parts = [_SOFTMAX_HEAD.format(seed=SEED)]
    for name, tolerances in (("softmax", explicit), ("softmax_auto", "")):
        parts.append(_SOFTMAX_OP.format(name=name, tolerances=tolerances, shape=SOFTMAX_SHAPE))
    for name in SMALL_PROGRAMS:
        (folder / f"{name}.py").write_text(_SCALE.format(name=name))
    parts.append(_SCALE_OP.format(tolerances=explicit))
    (folder / "gpuemu.toml").write_text("".join(parts))
