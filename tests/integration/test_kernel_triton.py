"""Triton kernels really compiled, without a GPU. Without Triton they are skipped."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import pytest

pytestmark = pytest.mark.ci

if TYPE_CHECKING:
    from pathlib import Path

    from mini_workspace import Mini

CONFIG = """
[project]
name = "triton"

[[kernels]]
name = "add"
triton = "k/good.py:add"
signature = { x = "*fp32", n = "i32" }
constants = { BLOCK = 1024 }
arch = ["sm_80", "sm_90"]

[[kernels]]
name = "aligned"
triton = "k/good.py:add"
signature = { x = "*fp32:16", n = "i32:16" }
constants = { BLOCK = 1024 }
num_warps = 2

[[kernels]]
name = "product"
triton = "k/good.py:product"
signature = { a = "*fp16", b = "*fp16", c = "*fp32", K = "i32:1" }
constants = { SIZE = 64 }
artifact_checks = { tensor_cores = true }

[[kernels]]
name = "tuned"
triton = "k/good.py:tuned"
signature = { x = "*fp32" }
constants = { BLOCK = 128 }
"""

GOOD = """\
import triton
import triton.language as tl
from helper import plus


@triton.jit
def add(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, plus(tl.load(x + i, mask=i < n)), mask=i < n)


@triton.jit
def product(a, b, c, K, SIZE: tl.constexpr):
    m = tl.arange(0, SIZE)
    at = m[:, None] * SIZE + m[None, :]
    value = tl.dot(tl.load(a + at), tl.load(b + at)) + K
    tl.device_print("value", value)  # gpuemu: allow debug-call watched for now
    tl.store(c + at, value)


@triton.autotune(configs=[triton.Config({"BLOCK": 128})], key=[])
@triton.heuristics({"EVEN": lambda given: True})
@triton.jit
def tuned(x, BLOCK: tl.constexpr, EVEN: tl.constexpr = True):
    tl.store(x + tl.arange(0, BLOCK), 1.0)
"""

HELPER = """\
import triton


@triton.jit
def plus(x):
    # the place of an error is told in this file
    return x + 1.0
"""

BAD = """\
import triton
import triton.language as tl
import helper


@triton.jit
def range_of_100(x):
    tl.store(x + tl.arange(0, 100), 1.0)


@triton.jit
def unknown_name(x):
    i = tl.arange(0, 128)
    tl.store(x + i, nothing_of_that_name)


@triton.jit
def wrong_in_helper(x):
    tl.store(x + tl.arange(0, 128), helper.wrong(x))


def plain(x):
    pass
"""

BAD_KERNELS = {
    "range_of_100": ("k/bad.py", 8, "power of 2"),
    "unknown_name": ("k/bad.py", 14, "nothing_of_that_name"),
    "wrong_in_helper": ("k/helper.py", 12, "no_such_function"),
    "plain": ("k/bad.py", 0, "no triton.jit function"),
}


@pytest.fixture
def triton(mini: Mini, tmp_path: Path) -> Mini:
    """A workspace with Triton kernels, not built yet."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed: pip install triton")
    mini = type(mini)(tmp_path / "triton")
    mini.write("gpuemu.toml", CONFIG)
    mini.write("k/good.py", GOOD)
    mini.write("k/helper.py", HELPER)
    return mini


def of(report: dict[str, Any], kernel: str) -> list[dict[str, Any]]:
    return [dict(found) for found in report["kernels"] if found["kernel"] == kernel]


def test_kernels_are_compiled_for_their_architectures_without_a_gpu(triton: Mini) -> None:
    triton.env["TRITON_INTERPRET"] = "1"  # what runs ops on a CPU must not reach the compiler
    report = triton.run()
    assert report["problems"] == []
    assert {k["verdict"] for k in report["kernels"]} == {"passed"}
    assert {k["metric_source"] for k in report["kernels"]} == {"cubin"}
    assert [k["arch"] for k in of(report, "add")] == ["sm_80", "sm_90"]
    (scalar, _), (aligned,) = of(report, "add"), of(report, "aligned")
    assert "ld.global.x4" not in scalar["metrics"]["families"]
    assert aligned["metrics"]["families"]["ld.global.x4"] > 0
    assert aligned["metrics"]["occupancy"]["threads"] == 64
    assert not aligned["metrics"]["occupancy"]["assumed_threads"]
    (product,) = of(report, "product")
    assert product["metrics"]["families"]["tensor"] > 0
    (call,) = (v for v in product["violations"] if v["rule"] == "debug-call")
    assert (call["file"], call["allowed"]) == ("k/good.py", "watched for now")
    assert triton.run()["executed"] == []


def test_an_edit_rebuilds_what_it_concerns(triton: Mini) -> None:
    triton.run()
    triton.write("k/helper.py", HELPER + "# nothing new\n")
    report = triton.run()
    assert report["executed"]
    assert not [n for n in report["executed"] if not n.startswith("build:")]  # the same code
    assert report["tasks"]["restored"] == 0
    triton.edit("gpuemu.toml", "num_warps = 2", "num_warps = 8")
    assert triton.run()["executed"] == ["build:aligned:sm_80", "lint:aligned:sm_80", "diff:aligned"]


def test_errors_name_the_file_and_line_and_the_other_kernels_go_on(triton: Mini) -> None:
    triton.write("k/bad.py", BAD)
    wrong = "\n\n@triton.jit\ndef wrong(x):\n    return triton.language.no_such_function(x)\n"
    triton.write("k/helper.py", HELPER + wrong)
    config = CONFIG
    for name in BAD_KERNELS:
        config += f'[[kernels]]\nname = "{name}"\ntriton = "k/bad.py:{name}"\n'
        config += 'signature = { x = "*fp32" }\n'
    triton.write("gpuemu.toml", config)
    report = triton.run(code=3)
    found = {p["file"] + str(p["line"]): p["message"] for p in report["problems"]}
    assert len(found) == len(BAD_KERNELS)
    for name, (file, line, message) in BAD_KERNELS.items():
        assert message in found[f"{file}{line}"]
        assert [k["verdict"] for k in of(report, name)] == ["error"]
    assert {k["verdict"] for k in of(report, "add")} == {"passed"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('x = "*fp32:16"', 'x = "*float"', "no type 'float'"),
        ('x = "*fp32:16"', 'x = "*fp32:3"', ":1 and :16"),
        ('x = "*fp32:16", n', 'x = "*fp32:16", y', "no argument y; it has x, n, BLOCK"),
        ('x = "*fp32:16", n = "i32:16"', 'x = "*fp32:16"', "no type of n"),
    ],
)
def test_a_signature_that_does_not_fit_is_told_in_its_words(
    triton: Mini, old: str, new: str, message: str
) -> None:
    triton.edit("gpuemu.toml", old, new)
    report = triton.run("build:aligned", code=None)
    (problem,) = report["problems"]
    assert message in problem["message"]
