"""`run`, `fuzz`, `ci` and `reproduce` judge a case alike: one table, seen by each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from many_ops import Op, Ran, run_ops
from once import once

SUM = (
    'dims = { M = [2, 3], N = { min = 1, max = 40 } }\ninputs = { x = ["M", "N"] }\noutput = ["M"]'
)
LABELS = (
    'dims = { N = [6, 40] }\ninputs = { x = { dims = ["N"], dtype = "int32", range = [-3, 12] } }\n'
    'output = { dims = ["N"], up_to = "permutation" }'
)
NUMBERED = "return np.unique(x, return_inverse=True)[1].reshape(x.shape).astype(np.int32)"
FAILED = {"verdict": "failed"}
OPS = {
    "right": Op(),
    "sum": Op(op="return x[:, ::-1].sum(1)", reference="return x.sum(1)", schema=SUM),
    "sum_tail": Op(op="return x[:, :16].sum(1)", reference="return x.sum(1)", schema=SUM, **FAILED),
    "row": Op(op="y = x.sum(1)\ny[0] = 0\nreturn y", reference="return x.sum(1)", schema=SUM,
              **FAILED),
    "half": Op(op="return x.astype(np.float16).sum(1).astype(x.dtype)", reference="return x.sum(1)",
               schema=SUM, **FAILED),
    "given": Op(op="return x + np.float32(0.3)", reference="return x + 0",
                keys="tolerances = { float32 = 0.25 }", **FAILED),
    "allowed": Op(op="return x + np.float32(0.2)", reference="return x + 0",
                  keys="tolerances = { float32 = 0.25 }"),
    "labels": Op(op="return np.array([(x == v).argmax() for v in x], np.int32)",
                 reference=NUMBERED, schema=LABELS, keys='dtypes = ["int32"]'),
    "labels_wrong": Op(op="return np.minimum(x, 3)", reference=NUMBERED, schema=LABELS,
                       keys='dtypes = ["int32"]', **FAILED),
    "raises": Op(op="raise ValueError('no')", verdict="error"),
    "raises_at_five": Op(op="if len(x) == 5: raise ValueError('five')\nreturn x * 2",
                         verdict="error"),
    "shape": Op(op="return (x * 2)[:-1]", verdict="error"),
    "dtype": Op(op="return (x * 2).astype(np.float64)", verdict="error"),
    "reference_raises": Op(reference="raise ValueError('no')", verdict="error"),
    "changes_input": Op(op="y = x * 2\nx[:1] = 99\nreturn y", **FAILED),
    "random": Op(op="import os\nreturn x * 2 + os.urandom(1)[0]", **FAILED),
    "script": Op(script="import numpy as np\ndef op(x): return x * 3\n", **FAILED),
}  # fmt: skip
WRONG = [name for name, op in OPS.items() if op.verdict == "failed"]
COUNTS = ("cases", "passed", "failed", "inconclusive", "errors")


@dataclass(frozen=True)
class Told:
    ran: Ran
    fuzzed: dict[str, dict[str, Any]]
    checked: dict[str, list[Any]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return once(tmp_path_factory, "entrances", tell)


def tell(folder: Path) -> Told:
    ran = run_ops(folder, OPS, "cases = 5\nseed = 3")

    def shown(*words: str) -> dict[str, Any]:
        done = ran.mini.command(*words, "--format", "json", code=None)
        return dict(json.loads(done.stdout))

    fuzzed = {report["op"]: report for report in shown("fuzz", "-n", "5")["ops"]}
    checked = {r["op"]: [r[key] for key in COUNTS] for r in shown("ci")["results"]}
    return Told(ran, fuzzed, checked)


def test_run_has_the_wanted_verdicts(told: Told) -> None:
    told.ran.check_all(OPS)


def test_ci_and_fuzz_count_as_run_does(told: Told) -> None:
    """The first cases of fuzz are those of a run."""
    for name in OPS:
        (result,) = told.ran.results[name]
        counts = [result[key] for key in COUNTS]
        assert told.checked[name] == counts, name
        fuzzed = told.fuzzed[name]
        assert [fuzzed["iterations"], *(fuzzed[key] for key in COUNTS[1:])] == counts, name


@pytest.mark.parametrize("name", WRONG)
def test_a_failure_is_reproduced_by_the_words_that_are_shown(told: Told, name: str) -> None:
    failure = told.ran.failures[name][0]
    words = failure["reproduce"].split()[1:]
    again = told.ran.mini.command(*words, "--format", "json", code=1)
    report = json.loads(again.stdout)
    assert report["still_fails"] is True
    assert report["result"]["verdict"] == failure["verdict"]
    shown = [report["failure"][key] for key in ("op", "seed", "dtype", "shapes", "layout")]
    assert shown == [failure[key] for key in ("op", "seed", "dtype", "shapes", "layout")]
    if name != "random":
        assert report["result"]["failures"][0]["message"] == failure["messages"][0]
