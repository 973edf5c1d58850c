"""Rules of inputs and outputs that kernels need, said in a schema, are kept in every case."""

from __future__ import annotations

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


FLAGS = (
    "dims = { N = { min = 1, max = 40 } }\noutput = { dims = [], dtype = 'bool' }\n"
    'inputs.x = { dims = ["N"], dtype = "int64", kind = "unique", range = [0, 99], values = [-1] }'
)
INF = (
    "dims = { N = { min = 4, max = 40 } }\noutput = { dims = [], dtype = 'bool' }\n"
    'inputs.x = { dims = ["N"], range = [-5.0, 5.0], values = [VALUES], share = 0.3 }'
)
KEPT = "x[x >= 0]"
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
    "unique_with_flags": holds(f"len(set({KEPT}.tolist())) == len({KEPT})", FLAGS),
    "minus_inf": holds("x.min() == -np.inf and x.max() <= 5", INF.replace("VALUES", "-inf")),
    "plus_inf": holds("x.max() == np.inf and x.min() >= -5", INF.replace("VALUES", "inf")),
    "both_inf": holds(
        "np.isinf(x).any() and (np.abs(x[np.isfinite(x)]) <= 5).all()",
        INF.replace("VALUES", "-inf, inf, 0.5"),
    ),
    "topk_in_any_order": topk("return i[:, ::-1]"),
    "topk_other_of_a_tie": topk(
        "j = np.argsort(-x[:, ::-1], axis=1)[:, :k]\nreturn x.shape[1] - 1 - j[:, ::-1]"
    ),
    "topk_one_short": topk("i[:, -1] = np.argmin(x, 1)\nreturn i", "failed"),
    "topk_one_twice": topk("i[:, -1] = i[:, 0]\nreturn i", "failed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "said-rules", OPS, "cases = 24")


@pytest.mark.ci
@pytest.mark.parametrize("name", OPS)
def test_rules_hold_in_every_case(name: str, ran: Ran) -> None:
    results, said = ran.results[name], ran.failures.get(name, [])
    assert {r["verdict"] for r in results} == {OPS[name].verdict}, (results, said[:2])


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
def test_relations_that_cannot_be_are_refused(constraint: str, reason: str, ran: Ran) -> None:
    config = ran.mini.root / "gpuemu.toml"
    before = config.read_text()
    config.write_text(before.replace("x[..., 0] < x[..., 1]", constraint))
    try:
        said = ran.mini.command("config", "check", code=2)
    finally:
        config.write_text(before)
    assert reason in said.stderr + said.stdout
