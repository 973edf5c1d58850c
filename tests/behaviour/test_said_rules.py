"""Rules of inputs and outputs that kernels need, said in a schema, are kept in every case."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from many_ops import Op, Ran, run_once

NMS = "dims = { N = { min = 1, max = 40 } }\noutput = { dims = [], dtype = 'bool' }\n"


def holds(condition: str, schema: str, takes: str = "x") -> Op:
    """An op that is right only where a condition of its inputs holds."""
    return Op(takes, f"return np.bool_({condition})", "return np.bool_(True)", schema, "cases = 24")


def boxes(*constraints: str, more: str = "") -> str:
    said = ", ".join(f'"{each}"' for each in constraints)
    return f'{NMS}inputs.x = {{ dims = ["N", 4]{more} }}\nconstraints = [{said}]'


TOPK = """
dims = { B = [1, 3], N = [16, 33], K = [1, 4] }
inputs.x = { dims = ["B", "N"], range = [-2.0, 2.0] }
scalars = { k = { range = ["K", "K"] } }
output = { dims = ["B", "K"], dtype = "int64", ties = "any", order = "any", of = "x", axis = 1 }
"""
PICK = "i = np.argsort(-x, axis=1, kind='stable')[:, :k]\n"


def topk(body: str, verdict: str = "passed") -> Op:
    return Op("x, k", f"{PICK}{body}", f"{PICK}return i", TOPK, "cases = 24", verdict=verdict)


VALUES = (
    TOPK[: TOPK.index("output =")]
    + """
outputs.values = { dims = ["B", "K"], order = "any", axis = 1 }
outputs.index = { dims = ["B", "K"], dtype = "int64", ties = "any", of = "x", axis = 1 }
"""
)
BOTH = f"{PICK}return np.take_along_axis(x, i{{0}}, 1), i{{0}}"
FLAGS = (
    "dims = { N = { min = 1, max = 40 } }\noutput = { dims = [], dtype = 'bool' }\n"
    'inputs.x = { dims = ["N"], dtype = "int64", kind = "unique", range = [0, 99], values = [-1] }'
)
INF = (
    "dims = { N = { min = 4, max = 40 } }\noutput = { dims = [], dtype = 'bool' }\n"
    'inputs.x = { dims = ["N"], range = [-5.0, 5.0], values = [VALUES], share = 0.3 }'
)
KEPT = "x[x >= 0]"
GENERATORS = """
import numpy as np

def angle(case_seed, shape):
    return np.random.default_rng(case_seed).uniform(-9, 9, shape)

def cosine(case_seed, shape, dtype):
    return np.cos(angle(case_seed, shape)).astype(dtype)

def sine(case_seed, shape, dtype):
    return np.sin(angle(case_seed, shape)).astype(dtype)

def rows(case_seed, dims, dtype):
    x = np.random.default_rng(case_seed).normal(3, 2, (dims["B"], dims["D"]))
    return x.astype(dtype)

def mean(case_seed, dims, dtype):
    return rows(case_seed, dims, dtype).mean(1)

def order(case_seed, dims, dtype):
    return np.random.default_rng(case_seed).permutation(dims["B"] * dims["D"])

def back(case_seed, dims, dtype):
    return np.argsort(order(case_seed, dims, dtype))

def mask(case_seed, shape, dtype):
    return (np.random.default_rng(case_seed).random(shape) < 0.7).astype(dtype)

def kept(case_seed, dims, dtype):
    return mask(case_seed, (dims["B"], dims["D"]), dtype).sum(1)

def blocks(dims):
    return -(-dims["D"] // 16) * dims["B"]

def beta(dims):
    return round(1.0 - 0.9 ** dims["B"], 2)

def scale(dims):
    return round(dims["D"] ** -0.5, 3)

def shift(dims):
    return dims["D"].bit_length()
"""


def drawn_together(condition: str, takes: str, *inputs: str, scalars: str = "") -> Op:
    """An op that is right only where inputs, each made by the function of its name, agree."""
    dims = {"mean": '["B"]', "kept": '["B"], dtype = "int64"'}
    dims |= dict.fromkeys(("order", "back"), '["B*D"], dtype = "int64"')
    lines = [
        f'inputs.{each} = {{ dims = {dims.get(each, """["B", "D"]""")}, '
        f'generate = "gen.py:{each}" }}'
        for each in inputs
    ]
    head = "dims = { B = [1, 3], D = [8, 40] }\noutput = { dims = [], dtype = 'bool' }\n"
    return holds(condition, head + "\n".join([*lines, scalars]), takes)


X = 'inputs.x = ["B", "D"]\n'
TOGETHER = {
    "one_angle": drawn_together(
        "(np.abs(cosine * cosine + sine * sine - 1) < 1e-6).all() and np.ptp(sine) > 0.1",
        "cosine, sine", "cosine", "sine",
    ),
    "saved_mean": drawn_together(
        "(np.abs(rows.mean(1) - mean) < 1e-5).all()", "rows, mean", "rows", "mean"
    ),
    "order_and_its_inverse": drawn_together(
        "(order[back] == np.arange(order.size)).all()", "order, back", "order", "back"
    ),
    "mask_and_its_counts": drawn_together(
        "(mask.sum(1) == kept).all() and 0 < mask.mean() < 1", "mask, kept", "mask", "kept"
    ),
    "blocks_of_a_launch": drawn_together(
        "isinstance(blocks, int) and blocks == x.shape[0] * {8: 1, 40: 3}[x.shape[1]]",
        "x, blocks", scalars=f'{X}scalars.blocks = {{ generate = "gen.py:blocks", type = "int" }}',
    ),
    "rounded_power": drawn_together(
        "isinstance(beta, float) and beta == {1: 0.1, 3: 0.27}[x.shape[0]]", "x, beta",
        scalars=f'{X}scalars.beta = {{ generate = "gen.py:beta" }}',
    ),
    "rounded_scale": drawn_together(
        "isinstance(scale, float) and scale == {8: 0.354, 40: 0.158}[x.shape[1]]", "x, scale",
        scalars=f'{X}scalars.scale = {{ generate = "gen.py:scale" }}',
    ),
    "whole_scalar": drawn_together(
        "isinstance(shift, int) and shift == {8: 4, 40: 6}[x.shape[1]]", "x, shift",
        scalars=f'{X}scalars.shift = {{ generate = "gen.py:shift", type = "int" }}',
    ),
}  # fmt: skip
OPS = {
    "boxes": holds(
        "(x[:, 0] <= x[:, 2]).all() and (x[:, 1] <= x[:, 3]).all()",
        boxes("x[..., 0] <= x[..., 2]", "x[..., 1] <= x[..., 3]", more=", nonfinite = false"),
    ),
    "strict_integers": holds(
        "(x[:, 3] > x[:, 0]).all()",
        boxes("x[..., 3] > x[..., 0]", more=', dtype = "int32", range = [0, 3]'),
    ),
    "strict_floats": holds(
        "(x[:, 0] < x[:, 1]).all()",
        boxes("x[..., 0] < x[..., 1]", more=", range = [-1.0, 1.0]"),
    ),
    "a_chain": holds(
        "(np.diff(x, axis=1) >= 0).all()",
        boxes(
            "x[..., 0] <= x[..., 1]", "x[..., 1] <= x[..., 2]", "x[..., 2] <= x[..., 3]",
            more=", nonfinite = false",
        ),
    ),
    **{
        f"unique_with_{name}": holds(f"len(set({KEPT}.tolist())) == len({KEPT})", schema)
        for name, schema in {
            "flags": FLAGS,
            "two_flags": FLAGS.replace("[-1]", "[-1, -7]"),
            "few_flags": FLAGS.replace("values = [-1]", "values = [-1], share = 0.1"),
            "narrow_flags": FLAGS.replace('"int64"', '"int16"').replace("99]", "45]"),
        }.items()
    },
    "flags_are_drawn": holds("(x == -1).any() or len(x) < 20", FLAGS),
    "minus_inf": holds("x.min() == -np.inf and x.max() <= 5", INF.replace("VALUES", "-inf")),
    "plus_inf": holds("x.max() == np.inf and x.min() >= -5", INF.replace("VALUES", "inf")),
    "often_minus_inf": holds(
        "x.min() == -np.inf and x.max() <= 5",
        INF.replace("VALUES", "-inf").replace("0.3", "0.9"),
    ),
    "both_inf": holds(
        "np.isinf(x).any() and (np.abs(x[np.isfinite(x)]) <= 5).all()",
        INF.replace("VALUES", "-inf, inf, 0.5"),
    ),
    "topk_in_any_order": topk("return i[:, ::-1]"),
    "topk_other_of_a_tie": topk(
        "j = np.argsort(-x[:, ::-1], axis=1)[:, :k]\nreturn x.shape[1] - 1 - j[:, ::-1]"
    ),
    "topk_values_alone_unordered": Op(
        "x, k", BOTH.format("[:, ::-1]"), BOTH.format(""), VALUES.replace("[1, 4]", "[9]"),
        "cases = 24", verdict="failed",
    ),
    "topk_one_short": topk("i[:, -1] = np.argmin(x, 1)\nreturn i", "failed"),
    "topk_one_twice": topk("i[:, -1] = i[:, 0]\nreturn i", "failed"),
    **TOGETHER,
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    more = {"files": {"gen.py": GENERATORS}}
    return run_once(tmp_path_factory, "said-rules", OPS, "cases = 24", **more)


@pytest.mark.ci
@pytest.mark.parametrize("name", OPS)
def test_rules_hold_in_every_case(name: str, ran: Ran) -> None:
    results, said = ran.results[name], ran.failures.get(name, [])
    assert {r["verdict"] for r in results} == {OPS[name].verdict}, (results, said[:2])
    notes = [note for failure in said for note in failure["notes"]]
    hint = 'values may be in any order: `order = "any"` says so of index'
    assert (hint in notes) is (name == "topk_values_alone_unordered")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("constraint", "reason"),
    [
        ("x[..., 0] <= x[..., 4]", "no such places"),
        ("x[..., 0] == x[..., 1]", "no relation"),
        ("x[..., 1] < x[..., -3]", "no such places"),
        ("x[..., 0] < y[..., 1]", "no relation"),
    ],
)
def test_relations_that_cannot_be_are_refused(
    constraint: str, reason: str, ran: Ran, tmp_path: Path
) -> None:
    own = replace(ran.mini, root=tmp_path / "own")  # others read theirs meanwhile
    shutil.copytree(ran.mini.root, own.root, ignore=shutil.ignore_patterns(".gpuemu-cache"))
    config = (own.root / "gpuemu.toml").read_text()
    own.write("gpuemu.toml", config.replace("x[..., 0] < x[..., 1]", constraint))
    said = own.command("config", "check", code=2)
    assert reason in said.stderr + said.stdout
