"""Random small ops with planted faults, and their references: a grammar of source text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

DTYPES = (
    "float32", "float32", "float32", "float16", "bfloat16", "float64", "int32", "int64", "int8",
    "bool",
)  # fmt: skip

KINDS = ("one", "one", "one", "two", "two", "mask", "index", "optional", "scalar")
"""Kinds of inputs beside `x`; see `INPUTS`."""

INPUTS = {
    "one": "",
    "two": 'w = ["M", "N"]',
    "mask": 'w = { dims = ["M", "N"], dtype = "bool" }',
    "index": 'w = { dims = ["M"], dtype = "int64", range = [0, "N-1"] }',
    "optional": 'v = { dims = ["N"], optional = true }',
    "scalar": "",
}
"""The schema's entry for the second input."""

EXPRESSIONS = {
    "one": ("x * 2", "x + x * x", "abs(x)", "-x", "np.maximum(x, 0)", "x.sum(-1)", "x.max(-1)",
            "np.exp(-abs(x.astype(np.float64)))", "x - x.mean(-1, keepdims=True)", "x[..., ::-1]",
            "x.T", "x / (1 + abs(x))", "x > 0", "x.argmax(-1)", "x.cumsum(-1)"),
    "two": ("x + w", "x * w + x", "x - w * w", "np.maximum(x, w)", "(x * w).sum(-1)", "x @ w.T",
            "x / (1 + w * w)", "np.where(x > w, x, w)"),
    "mask": ("np.where(w, x, 0)", "x * w", "(x * w).sum(-1)", "np.where(w, -x, x)", "w.any(-1)"),
    "index": ("x[np.arange(len(w)), w]", "x + w[:, None]", "np.where(w[:, None] > 1, x, 2 * x)"),
    "optional": ("x if v is None else x + v", "x * (1 if v is None else v)"),
    "scalar": ("x * k", "x[..., :k]", "np.roll(x, k, -1)", "x + np.array(k, x.dtype)"),
}  # fmt: skip
"""Formulas of the ops, by the number of inputs."""

VALUE_FAULTS = {
    "none": "",
    "scaled": "y = y * 1.25",
    "shifted": "y = y + 1",
    "one element": "y = np.array(y); y.flat[-1:] = 7",
    "tail": "y = np.array(y); y.flat[y.size // 2:] = 0",
    "nan": "y = np.array(y, np.result_type(y, np.float32)); y.flat[:1] = np.nan",
    "inf": "y = np.array(y, np.result_type(y, np.float32)); y.flat[:1] = np.inf",
    "shape": "y = np.ravel(y)[:-1]",
    "rank": "y = y[None]",
    "dtype": "y = np.asarray(y).astype(np.float64)",
    "integers": "y = np.asarray(y).astype(np.int64)",
    "complex": "y = np.asarray(y).astype(np.complex64)",
    "big-endian": "y = np.asarray(y, np.float32).astype('>f4')",
    "list": "y = np.asarray(y, np.float64).tolist()",
    "nothing": "y = None",
    "text": "y = 'seven'",
    "strided": "y = np.repeat(y, 2, axis=-1)[..., ::2]",
    "bad bool": "y = np.full(np.shape(y), 2, np.uint8).view(bool)",
    "raises": "raise ValueError('planted')",
    "raises late": "if x.size > 6: raise KeyError('planted ' + str(x.shape))",
    "says and raises": "import sys; print('words', file=sys.stderr); raise RuntimeError('planted')",
    "exits": "sys = __import__('sys'); sys.exit(3)",
    "dies": "import os; os._exit(3)",
    "dies late": "if x.size > 6: __import__('os')._exit(4)",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "small only": "y = y if x.size < 9 else y * 0",
    "fortran": "y = np.asfortranarray(y)",
    "read-only": "y = np.array(y); y.flags.writeable = False",
    "view of input": "y = x[..., :]",
    "generator": "y = (row for row in np.atleast_1d(y))",
    "dict": "y = {'output': y}",
    "wrong keys": "y = {'z': y, 'b': y}",
    "nothing in a dict": "y = {'output': None}",
    "number": "y = 3.5",
    "ragged": "y = [[1, 2], [3]]",
    "object": "y = np.asarray(y).astype(object)",
    "long double": "y = np.asarray(y).astype(np.longdouble)",
    "strings": "y = np.asarray(y).astype(str)",
    "masked": "y = np.ma.masked_array(y, mask=np.ones(np.shape(y), bool))",
    "matrix": "y = np.asmatrix(y)",
    "empty": "y = np.asarray(y)[:0]",
    "broadcast": "y = np.broadcast_to(np.ravel(y)[:1].reshape(()), np.shape(y))",
    "warns": "import warnings; warnings.warn('planted')",
    "prints": "print('words')",
    "prints and raises": "print('words', flush=True); raise RuntimeError('planted')",
    "writes bytes and raises": "import os; os.write(2, b'\\xff words'); raise OSError('planted')",
    "raises odd text": "raise ValueError('two\\nlines \\x00 \\u2028 end ' * 50)",
    "raises without text": (
        "raise type('Odd', (Exception,), {'__str__': lambda self: str(1 // 0)})('planted')"
    ),
    "recurses": "f = lambda n: f(n + 1); f(0)",
    "stops": "raise StopIteration",
    "interrupts": "raise KeyboardInterrupt",
}
"""Statements between an op's result and its return."""

WATCHED_FAULTS = {
    "changes input": "x[...] = 0",
    "changes input and result": "x[...] = 0; y = y + 1",
    "returns input": "np.copyto(x, y, casting='unsafe'); y = x",
    "reshapes input": "x.shape = x.shape[::-1]",
    "keeps state": "SEEN.append(1); y = y + (len(SEEN) > 1)",
    "counts calls": "SEEN.append(1); y = y + len(SEEN)",
    "draws": (  # in proportion, or a large value of a narrow type stays as it is by chance
        "y = y + np.where(np.isfinite(y), 1 + np.abs(y) / 16, 0) * np.random.default_rng().normal()"
    ),
    "draws seeded": "y = y + np.random.normal()",
    "never writes": "y = np.empty(9999, x.dtype)[:np.size(y)].reshape(np.shape(y))",
    "remembers": "y = MEMORY.setdefault(np.shape(y), np.array(y))",
    "writes beyond": (
        "ends = tuple(-1 if step > 0 else 0 for step in x.strides);"
        " np.lib.stride_tricks.as_strided(x[ends + (None,)], (2,), (x.itemsize,))[1] = 3"
    ),
    "reads reference": "import {reference}; y = {reference}.reference(*given)",
}
"""Faults that show to who runs the op: a caller who is given its outputs sees only `CHANGES`.

A write beyond an input starts at its last element in memory. A copy of a strided input would be the
op's own memory, and what a write beyond that damages depends on the process.
"""

CHANGES = {"changes input", "changes input and result", "returns input"}
"""Faults that show to a caller who looks at the inputs, too."""

REFERENCE_FAULTS = {
    "none": "",
    "refuses": "raise TypeError(f'no {x.dtype} here')",
    "own dtype only": "assert x.dtype.name == OWN, f'not for {x.dtype}'",
    "dies in float64": "if x.dtype == np.float64: __import__('os')._exit(5)",
    "exits in float64": "if x.dtype == np.float64: __import__('sys').exit(5)",
    "dies": "import os; os._exit(6)",
    "float64 only": "assert x.dtype == np.float64",
    "float64 only if small": "assert x.dtype == np.float64 or x.size > 6",
    "large only": "assert x.size > 4, 'too small'",
    "rounds": "y = np.asarray(y).astype(OWN)",
    "float32 always": "y = np.asarray(y).astype(np.float32)",
    "float64 always": "y = np.asarray(y).astype(np.float64)",
    "nan": "y = y * np.nan",
    "zeros": "y = y * 0",
    "changes input": "x[...] = 0",
    "text": "y = 'no tensor'",
    "complex": "y = np.asarray(y).astype(np.complex64)",
    "dies in its own dtype": "if x.dtype.name == OWN: __import__('os')._exit(7)",
    "dies if small": "if x.size < 5: __import__('os')._exit(8)",
    "nothing": "y = None",
    "dict": "y = {'output': y}",
    "wrong keys": "y = {'z': y, 'b': y}",
    "list": "y = np.asarray(y, np.float64).tolist()",
    "generator": "y = (row for row in np.atleast_1d(y))",
    "another shape": "y = np.ravel(y)[:-1]",
    "empty": "y = np.asarray(y)[:0]",
    "fortran": "y = np.asfortranarray(y)",
    "read-only": "y = np.array(y); y.flags.writeable = False",
    "long double": "y = np.asarray(y).astype(np.longdouble)",
    "bool": "y = np.asarray(y).astype(bool)",
    "integers": "y = np.asarray(y).astype(np.int64)",
    "inf": "y = np.full(np.shape(y), np.inf)",
    "view of input": "y = x[..., :]",
    "prints": "print('words')",
    "warns": "import warnings; warnings.warn('planted')",
    "raises odd text": "raise ValueError('two\\nlines \\x00 \\u2028 end ' * 50)",
    "interrupts": "raise KeyboardInterrupt",
    "no moved values": "assert (x == np.asarray(x, np.float64).astype(OWN)).all(), 'moved'",
}
"""Of a reference, before its return."""


@dataclass(frozen=True)
class PlantedOp:
    """An op, its reference and its table in ``gpuemu.toml``.

    Attributes
    ----------
    name : str
    dtypes : tuple of str
    fault, reference_fault : str
    watched : bool
        The fault shows only to who runs the op.
    script : bool
        The op reads its inputs from standard input, and prints its outputs.
    op, reference, table : str
        Texts of the two files and of the table.
    """

    name: str
    dtypes: tuple[str, ...]
    fault: str
    reference_fault: str
    watched: bool
    script: bool
    op: str
    reference: str
    table: str

    def cases(self, each: int) -> int:
        """Return the number of cases in all dtypes."""
        return each * len(self.dtypes)

    def in_turn(self, dtype: str, index: int) -> bool:
        """Tell whether a case has the dtype that its number has if the dtypes take turns."""
        return self.dtypes[index % len(self.dtypes)] == dtype

    def __str__(self) -> str:
        dtypes = "/".join(self.dtypes)
        return f"{self.name} ({dtypes}, {self.fault!r}, reference {self.reference_fault!r})"


_HEAD = "import numpy as np\n\nOWN = {own!r}\nSEEN = []\nMEMORY = {{}}\n\n\n"


_SCRIPT = """

import base64, json, sys

def read(tensor):
    data = base64.b64decode(tensor["data"])
    return np.frombuffer(data, tensor["dtype"]).reshape(tensor["shape"]).copy()

def tensor(array):
    array = np.ascontiguousarray(array)
    data = base64.b64encode(array.tobytes()).decode()
    return {{"shape": list(array.shape), "dtype": str(array.dtype), "data": data}}

inputs = json.load(sys.stdin)["inputs"]
outputs = op(*(read(inputs[name]) for name in {names}))
outputs = outputs if isinstance(outputs, tuple) else (outputs,)
print(json.dumps({{"outputs": dict(zip({outputs}, map(tensor, outputs)))}}))
"""


def planted_ops(count: int, seed: int) -> list[PlantedOp]:
    """Draw ops whose faults take turns, so that few ops have one of each."""
    draw = random.Random(seed)
    faults = _in_turns([*VALUE_FAULTS, *WATCHED_FAULTS], draw)
    of_references = _in_turns(list(REFERENCE_FAULTS), draw)
    return [
        planted_op(n, next(faults), next(of_references) if n % 5 < 3 else "none", draw)
        for n in range(count)
    ]


def _in_turns(names: list[str], draw: random.Random) -> Iterator[str]:
    while True:
        yield from draw.sample(names, len(names))


def planted_op(number: int, fault: str, reference_fault: str, draw: random.Random) -> PlantedOp:
    """Draw an op with a given fault; its name says its number."""
    name = f"op_{number:03}"
    kind = draw.choice(KINDS)
    dtype = draw.choice(DTYPES)
    watched = fault in WATCHED_FAULTS
    other = draw.choice(DTYPES)
    # Of so many cases, `fuzz` watches the calls of the first alone.
    two = draw.random() < 0.15 and other != dtype and not watched
    dtypes = (dtype, other) if two else (dtype,)
    expression = draw.choice(EXPRESSIONS[kind])
    # A script's inputs are its own: what a write beyond them damages there is nobody's to tell.
    script = number % 8 == 5 and "bfloat16" not in dtypes and fault != "writes beyond"
    script = script and kind not in ("optional", "scalar")
    code = WATCHED_FAULTS[fault] if watched else VALUE_FAULTS[fault]
    second = {"one": "", "scalar": "k", "optional": "v"}.get(kind, "w")
    arguments = ", ".join(filter(None, ["x", second]))
    several = draw.random() < 0.25
    own = "float64" if dtype == "bfloat16" else dtype
    cast = "y = np.asarray(y)"
    if draw.random() < 0.7:
        cast = "y = np.asarray(y); y = y.astype(x.dtype) if y.dtype.kind == 'f' else y"

    returned = "return y, 2 * x" if several else "return y"

    def text(function: str, fault_code: str) -> str:
        planted = fault_code.replace("{reference}", f"ref_{name}")
        lines = [f"given = ({arguments},)", f"y = {expression}", cast, planted, returned]
        body = "".join(f"        {line}\n" for line in lines if line)
        # Warnings would show in the first case of a process alone.
        head = f"def {function}({arguments}):\n    with np.errstate(all='ignore'):\n"
        return _HEAD.format(own=own) + head + body

    op = text("op", code)
    if script:
        named = ["y", "b"] if several else ["output"]
        op += _SCRIPT.format(names=arguments.split(", "), outputs=named)
    outputs = '{ y = ["M", "N"], b = ["M", "N"] }' if several else ""
    shaped = ", ".join(filter(None, ['x = ["M", "N"]', INPUTS[kind]]))
    names = json.dumps([name for name in arguments.split(", ") if name != "k"])
    changes = {"nothing": 0.5, "returns input": 0.5}.get(fault, 0.1)
    rows = "[0, 1, 3]" if draw.random() < 0.15 else "[1, 3, 4]"
    # With the word `auto`, for a daemon makes milder cases where only the table is asked for.
    both = "{ atol = 0.01, rtol = 0.01 }"
    explicit = ['tolerance = "auto"', f"tolerances = {{ {dtype} = {both} }}"]
    table = [
        "[[ops]]",
        f'name = "{name}"',
        f'op = "ops/{name}.py{"" if script else ":op"}"',
        f'reference = "refs/ref_{name}.py:reference"',
        f"input_names = {names}",
        f"dtypes = {json.dumps(dtypes)}",
        *(explicit if draw.random() < 0.15 else []),
        *(['mutates = ["x"]'] if draw.random() < changes else []),
        *(["deterministic = false"] if draw.random() < 0.1 else []),
        "[ops.schema]",
        f"dims = {{ M = {rows}, N = {{ min = 1, max = 9 }} }}",
        f"inputs = {{ {shaped} }}",
        *(["scalars = { k = { range = [1, 3] } }"] if kind == "scalar" else []),
        f"outputs = {outputs}" if several else 'output = ["M", "N"]',
    ]
    return PlantedOp(
        name,
        dtypes,
        fault,
        reference_fault,
        watched and fault not in CHANGES,
        script,
        op,
        text("reference", REFERENCE_FAULTS[reference_fault]),
        "\n".join(table) + "\n",
    )
