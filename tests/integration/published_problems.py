"""Workspaces of gpuemu 0.1.0, written after its documentation: scripts, a corpus.

Each has a right candidate and four wrong ones: an expression in place of the right result.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

SCRIPT = '''\
"""{about}"""
import base64
import json
import sys

import numpy as np


def read(tensor):
    raw = base64.b64decode(tensor["data"])
    return np.frombuffer(raw, dtype=tensor["dtype"]).reshape(tensor["shape"])


def compute({names}):
    return {result}


def main():
    request = json.load(sys.stdin)
    tensors = [read(request["inputs"][name]) for name in {listed}]
    out = np.ascontiguousarray(compute(*tensors)).astype({dtype})
    data = base64.b64encode(out.tobytes()).decode()
    json.dump({{"shape": list(out.shape), "dtype": str(out.dtype), "data": data}}, sys.stdout)


if __name__ == "__main__":
    main()
'''
KERNEL = """\
import numpy as np


def run(inputs):
    {names} = {values}
    return np.asarray({result}).astype({dtype})
"""


@dataclass(frozen=True)
class Published:
    """A problem: the reference's result, another right one and four wrong ones.

    Attributes
    ----------
    right, other : str
        Expressions of numpy.
    wrong : tuple of str
    inputs : mapping of str to (tuple of str)
        With the dims of each where it stands in a corpus.
    dims : mapping of str to (tuple of int)
        Given for a problem of the corpus.
    keys : str
        More lines of each ``[[ops]]``.
    head : str
        Before the ops.
    dtype : str
        Of the result.
    """

    right: str
    other: str
    wrong: tuple[str, str, str, str]
    inputs: dict[str, tuple[str, ...]] = field(default_factory=lambda: {"x": ()})
    dims: dict[str, tuple[int, ...]] = field(default_factory=dict)
    keys: str = "tolerances = { float32 = 1e-4 }"
    head: str = "[validation]\ndtypes = ['float32']\n[validation.shapes]\nbatch_sizes = [1, 2]\n" \
        "sequence_lengths = [3, 16]\nhidden_dims = [5, 32]\n"  # fmt: skip
    dtype: str = ""

    def write(self, folder: Path, name: str, *, most: int = 4) -> None:
        """Write its files."""
        candidates = {"right": self.other}
        candidates |= {f"wrong{at + 1}": one for at, one in enumerate(self.wrong[:most])}
        (folder / "scripts").mkdir(parents=True)
        self._script(folder / "scripts" / f"ref_{name}.py", self.right, "The reference.")
        if self.dims:
            for candidate, result in candidates.items():
                self._corpus(folder, name, candidate, result)
            return
        ops = [f"[project]\nname = '{name}'\n{self.head}"]
        for candidate, result in candidates.items():
            self._script(folder / "scripts" / f"{name}_{candidate}.py", result, "A candidate.")
            ops.append(
                f"[[ops]]\nname = '{name}/{candidate}'\n"
                f"reference = 'scripts/ref_{name}.py'\n"
                f"op_script = 'python scripts/{name}_{candidate}.py'\n"
                f"input_names = {list(self.inputs)}\nexecution_mode = 'script_based'\n{self.keys}\n"
            )
        (folder / "gpuemu.toml").write_text("\n".join(ops))

    def _script(self, path: Path, result: str, about: str) -> None:
        names = list(self.inputs)
        dtype = repr(self.dtype) if self.dtype else "tensors[0].dtype"
        path.write_text(
            SCRIPT.format(
                about=about, names=", ".join(names), listed=names, result=result, dtype=dtype
            )
        )

    def _corpus(self, folder: Path, name: str, candidate: str, result: str) -> None:
        place = folder / "data" / f"{name}_{candidate}"
        place.mkdir(parents=True)
        names = ", ".join(self.inputs) + ("," if len(self.inputs) == 1 else "")
        dtype = repr(self.dtype) if self.dtype else f"inputs[{next(iter(self.inputs))!r}].dtype"
        values = ", ".join(f"inputs[{one!r}]" for one in self.inputs) + ","
        (place / "kernel.py").write_text(
            KERNEL.format(names=names, values=values, result=result, dtype=dtype)
        )
        schema = {
            "name": name,
            "dims": [{"name": key, "candidates": list(of)} for key, of in self.dims.items()],
            "inputs": [{"name": key, "dims": list(of)} for key, of in self.inputs.items()],
        }
        about = {
            "name": f"{name}/{candidate}",
            "kernel": "kernel.py",
            "reference": f"scripts/ref_{name}.py",
            "tolerances": {"float32": 1e-3},
            "requires_gpu": False,
        }
        if candidate == "right":
            (place / "op_schema.json").write_text(json.dumps(schema))
        else:
            about["op_schema"] = schema
        (place / "meta.json").write_text(json.dumps(about))


_EXP = "np.exp(x - x.max(-1, keepdims=True))"
_MEAN = "(x - x.mean(-1, keepdims=True))"
PUBLISHED = {
    "softmax": Published(
        f"{_EXP} / {_EXP}.sum(-1, keepdims=True)",
        f"1 / (1 / {_EXP} * {_EXP}.sum(-1, keepdims=True))",
        (f"{_EXP} / {_EXP}.sum()", f"{_EXP} / ({_EXP}.sum(-1, keepdims=True) + 0.01)",
         f"{_EXP} / {_EXP}.sum(1, keepdims=True)",
         f"({_EXP} / {_EXP}.sum(-1, keepdims=True)) ** 2"),
    ),
    "gelu": Published(
        "0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x ** 3)))",
        "x / (1 + np.exp(-2 * 0.7978845608 * (x + 0.044715 * x * x * x)))",
        ("x / (1 + np.exp(-1.702 * x))", "0.5 * x * (1 + np.tanh(0.8 * (x + 0.0447 * x ** 3)))",
         "np.maximum(x, 0)", "0.5 * x * (1 + np.tanh(0.7978845608 * (x + 0.044715 * x ** 2)))"),
    ),
    "add": Published(
        "a + b", "b + a", ("a - b", "a + np.abs(b)", "a", "(a.astype('f2') + b)"),
        inputs={"a": (), "b": ()},
    ),
    "layernorm": Published(
        f"{_MEAN} / np.sqrt(x.var(-1, keepdims=True) + 1e-5)",
        f"{_MEAN} / np.sqrt(({_MEAN} ** 2).mean(-1, keepdims=True) + 1e-5)",
        (f"{_MEAN} / (x.std(-1, keepdims=True) + 1e-1)",
         "x / np.sqrt(x.var(-1, keepdims=True) + 1e-5)",
         f"{_MEAN} / np.sqrt(x.var(-1, ddof=1, keepdims=True) + 1e-5)",
         f"{_MEAN} / (x.var(-1, keepdims=True) + 1e-5)"),
    ),
    "sumsq": Published(
        "(x * x).sum(-1)", "np.square(x).sum(-1)",
        ("np.abs(x).sum(-1)", "(x * x)[..., :-1].sum(-1)", "(x * x).sum(-1, keepdims=True)",
         "(x * x).mean(-1)"),
        keys="tolerances = { float32 = { atol = 1e-3, rtol = 1e-4 } }",
    ),
    "relu_halves": Published(
        "np.maximum(x, 0)", "np.where(x > 0, x, x.dtype.type(0))",
        ("x", "np.abs(x)", "np.minimum(x, 6) * (x > 0)", "np.where(x > -0.5, x, 0)"),
        keys="tolerances = { f32 = 1e-6, f16 = 1e-3 }\n[ops.invariants]\nnon_negative = true",
    ),
    "square_default": Published(
        "x * x", "x ** 2", ("x * x + 1e-4", "x * np.abs(x)", "x + x", "-x * x"), keys="", head="",
    ),
    "clip": Published(
        "np.clip(x, -1, 1)", "np.minimum(np.maximum(x, -1), 1)",
        ("np.clip(x, -1, 2)", "np.maximum(x, -1)", "np.tanh(x)", "np.clip(x, 0, 1)"),
        keys="frameworks = ['pytorch']\nxla_compatible = false\ntolerances = { float32 = 1e-6 }",
    ),
    "transpose": Published(
        "np.swapaxes(x, -1, -2)", "np.moveaxis(x, -1, -2).copy()",
        ("x.reshape(x.shape[0], x.shape[2], x.shape[1])", "np.swapaxes(x, -1, -2)[..., ::-1]",
         "x", "np.swapaxes(x, -1, -2) + 1e-3"),
        keys="invariants = ['shape_preserved']",
    ),
    "sigmoid": Published(
        "1 / (1 + np.exp(-x))", "0.5 * (np.tanh(x / 2) + 1)",
        ("np.clip(0.2 * x + 0.5, 0, 1)", "1 / (1 + np.exp(x))", "np.tanh(x)",
         "1 / (1 + np.exp(-x)) + 1e-3"),
        keys="check_nan = true\ncheck_inf = true\ninvariants = ['finite', 'non_negative']",
    ),
    "row_max": Published(
        "x.max(-1)", "np.sort(x, -1)[..., -1]",
        ("x[..., 1:].max(-1, initial=-100)", "np.abs(x).max(-1)", "x.max(1)", "x.max()"),
    ),
    "cumsum": Published(
        "np.cumsum(x, -1)", "np.add.accumulate(x, -1)",
        ("np.cumsum(x, -1) - x", "np.cumsum(x, 1)", "x", "np.cumsum(x[..., ::-1], -1)[..., ::-1]"),
        keys="tolerances = { float32 = 1e-3 }",
    ),
    "swish_gate": Published(
        "a / (1 + np.exp(-a)) * b", "b * (a * (1 / (1 + np.exp(-a))))",
        ("b / (1 + np.exp(-b)) * a", "a * b", "a / (1 + np.exp(-a)) + b", "np.maximum(a, 0) * b"),
        inputs={"a": (), "b": ()},
    ),
    "argmax": Published(
        "x.argmax(-1)", "np.argsort(-x, -1, kind='stable')[..., 0]",
        ("x.argmin(-1)", "x[..., :-1].argmax(-1) if x.shape[-1] > 1 else x.argmin(-1)",
         "np.abs(x).argmax(-1)", "x.argmax(-1) + 1"),
        dtype="int64", keys="",
    ),
    "matmul": Published(
        "a @ b", "(b.T @ a.T).T",
        ("a[:, :-1] @ b[:-1]", "a @ b + 0.01", "np.abs(a @ b)", "a.astype('f2') @ b.astype('f2')"),
        inputs={"a": ("M", "K"), "b": ("K", "N")},
        dims={"M": (1, 2, 31), "K": (1, 16, 33), "N": (1, 15, 64)},
    ),
    "outer": Published(
        "a[:, None] * b[None]", "np.multiply.outer(a, b)",
        ("a[:, None] + b[None]", "np.zeros((len(a), len(b)))", "np.abs(a[:, None] * b[None])",
         "a[:, None] * b[::-1][None]"),
        inputs={"a": ("M",), "b": ("N",)}, dims={"M": (1, 7, 32), "N": (1, 8, 33)},
    ),
    "attention": Published(
        "(lambda s: np.exp(s - s.max(-1, keepdims=True)) / np.exp(s - s.max(-1, keepdims=True))"
        ".sum(-1, keepdims=True))(q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])) @ v",
        "(lambda e: (e @ v) / e.sum(-1, keepdims=True))"
        "((lambda s: np.exp(s - s.max(-1, keepdims=True)))"
        "(np.einsum('bid,bjd->bij', q, k) / np.sqrt(q.shape[-1])))",
        ("v", "(lambda e: (e @ v) / e.sum(-1, keepdims=True))((lambda s: np.exp(s - s.max()))"
         "(q @ np.swapaxes(k, -1, -2)))", "q @ np.swapaxes(k, -1, -2) @ v",
         "np.broadcast_to(v.mean(1, keepdims=True), v.shape)"),
        inputs={"q": ("B", "S", "D"), "k": ("B", "S", "D"), "v": ("B", "S", "D")},
        dims={"B": (1, 2), "S": (1, 3, 17), "D": (8, 16)},
    ),
    "rmsnorm": Published(
        "x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * w",
        "w * x * ((x * x).sum(-1, keepdims=True) / x.shape[-1] + 1e-6) ** -0.5",
        ("x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)", "x * w",
         "x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) * w * 2",
         "x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-1) * w"),
        inputs={"x": ("B", "H"), "w": ("H",)}, dims={"B": (1, 5), "H": (1, 7, 64, 100)},
    ),
    "bias": Published(
        "x + b", "np.add(b, x)", ("x - b", "x", "x + b[0]", "x + b[::-1]"),
        inputs={"x": ("B", "H"), "b": ("H",)}, dims={"B": (1, 4), "H": (3, 33)},
    ),
    "scan_rows": Published(
        "np.cumsum(x, 0)", "np.stack([x[: i + 1].sum(0) for i in range(len(x))])",
        ("np.cumsum(x, 1)", "x", "np.cumsum(x, 0) - x", "np.cumsum(x[::-1], 0)"),
        inputs={"x": ("T", "C")}, dims={"T": (2, 9, 40), "C": (3, 8)},
    ),
}  # fmt: skip
