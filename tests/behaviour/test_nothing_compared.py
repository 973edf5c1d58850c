"""Test that no command calls it a pass when nothing was compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

PROGRAMS = {
    "empty": ("return x[:0]", "return x[:0]"),
    "nan": ("return x * np.nan", "return x * np.nan"),
    # Too steep for `auto` to tell, but for one column; the op knows that column alone.
    "steep": (
        "y = np.zeros_like(x); y[:, 0] = x[:, 0]; return y",
        "y = np.sin(1e12 * x); y[:, 0] = x[:, 0]; return y",
    ),
}


def workspace(folder: Path, kind: str, sizes: str = "[8, 24]", strategy: str = "normal") -> Mini:
    op, reference = PROGRAMS[kind]
    schema = f"""
        dims = {{ M = {sizes}, N = [16, 40] }}
        inputs = {{ x = ["M", "N"] }}
        outputs = {{ y = ["?", "?"] }}
        """
    return make_one_op(
        folder, takes="x", op=op, reference=reference, schema=schema, strategy=strategy
    )


@pytest.mark.parametrize("kind", PROGRAMS)
def test_nothing_is_validated_and_the_share_is_told(tmp_path: Path, kind: str) -> None:
    mini = workspace(tmp_path / "w", kind)
    done = mini.command("run", "--format", "json", code=4)
    (result,) = json.loads(done.stdout)["results"]
    assert (result["verdict"], result["passed"]) == ("inconclusive", 0)
    assert result["reason"]
    assert (result["unjudged"] > 0.1) == (kind != "empty")
    fuzzed = json.loads(mini.command("fuzz", "-n", "6", "--format", "json", code=4).stdout)
    shown = fuzzed["ops"][0] if "ops" in fuzzed else fuzzed
    assert '"verdict": "inconclusive"' in json.dumps(shown)
    told = mini.command("ci", "--require-all", code=4).stdout
    assert told.startswith("NOTHING VALIDATED: 1 not validated: it float32")


@pytest.mark.parametrize(
    ("least", "verdict"), [("0", "passed"), ("1.5", "inconclusive"), ("99", "inconclusive")]
)
def test_sizes_that_the_values_decide_count_beside_values(
    tmp_path: Path, least: str, verdict: str
) -> None:
    """With 0, a fourth of the outputs is empty; with 1.5 most are."""
    mini = make_one_op(
        tmp_path / "w",
        takes="x",
        op=f"return np.sort(x[x > {least}].ravel())",
        reference=f"return x[x > {least}].ravel()",
        schema="""
        dims = { N = [1, 2, 4] }
        inputs = { x = ["N"] }
        outputs = { y = { dims = ["?"], order = "any" } }
        """,
        strategy="normal",
    )
    mini.edit("gpuemu.toml", "cases = 6", "cases = 40")
    (result,) = mini.run(code=None)["results"]
    assert result["verdict"] == verdict
    assert result["failed"] == result["errors"] == 0
    assert result["inconclusive"] > 0.2 * result["cases"]


@pytest.mark.parametrize("kind", ["empty", "nan"])
def test_mutating_nothing_is_no_success(tmp_path: Path, kind: str) -> None:
    mini = workspace(tmp_path / "w", kind)
    assert "no bug could be planted" in mini.command("mutate", "it", code=4).stdout


def test_coverage_counts_no_error_and_nothing_unjudged(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", "nan")
    mini.command("run", code=4)
    found = json.loads(mini.command("coverage", "--format", "json").stdout)
    assert [(row["cases"], row["unjudged"]) for row in found["rows"]] == [(0, 6)]
    assert found["covered"] == []


def test_cases_of_size_0_alone_are_no_pass(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", "nan", sizes="[0]")
    mini.write("op.py", "def op(x):\n    return x\n")
    mini.write("reference.py", "def reference(x):\n    return x\n")
    (result,) = json.loads(mini.command("run", "--format", "json", code=4).stdout)["results"]
    assert result["verdict"] == "inconclusive"
    assert "empty" in result["reason"]


def test_nan_that_is_fed_on_purpose_is_judged_by_its_pattern(tmp_path: Path) -> None:
    mini = workspace(tmp_path / "w", "nan", strategy="special")
    for name in ("op", "reference"):
        mini.write(f"{name}.py", f"def {name}(x):\n    return x * 2\n")
    (result,) = json.loads(mini.command("run", "--format", "json").stdout)["results"]
    assert (result["verdict"], result["passed"], result["unjudged"]) == ("passed", 6, 0)


@pytest.mark.parametrize(("body", "verdict"), [("np.sin(np.float32(1e7) * x)", "inconclusive"),
                                               ("np.zeros_like(x)", "failed")])  # fmt: skip
def test_the_few_elements_of_a_steep_reference_that_can_be_told_are_judged(
    tmp_path: Path, body: str, verdict: str
) -> None:
    """One near 0 is not too steep: what is wrong there fails, what is right is still no pass."""
    mini = workspace(tmp_path / "w", "steep")
    for name, given in (("op", body), ("reference", "np.sin(1e7 * x)")):
        text = f"y = {given}; y[:, 0] = x[:, 0]; return y"
        mini.write(f"{name}.py", f"import numpy as np\ndef {name}(x):\n    {text}\n")
    (result,) = mini.run(code=None)["results"]
    assert (result["verdict"], result["passed"]) == (verdict, 0)
    assert result["unjudged"] > 0.85  # zeros, of which cases have many, can be told


def weak(folder: Path, returned: str, tolerances: str) -> Mini:
    """A workspace whose comparison says little; the op gives what the reference does."""
    mini = workspace(folder, "nan")
    for name in ("op", "reference"):
        mini.write(f"{name}.py", f"import numpy as np\ndef {name}(x):\n    return {returned}\n")
    toml = (folder / "gpuemu.toml").read_text()
    mini.write("gpuemu.toml", toml.replace("[ops.schema]", f"{tolerances}\n[ops.schema]"))
    return mini


def told_everywhere(mini: Mini, slug: str, code: int) -> None:
    """The warning stands in each format, and again when nothing is run."""
    for _ in range(2):
        assert slug in mini.command("run", code=code).stdout
        problems = json.loads(mini.command("run", "--format", "json", code=code).stdout)["problems"]
        assert [p["slug"] for p in problems] == [slug]
    outputs = ("ci.html", "ci.md", "ci.xml", "ci.json", "ci.sarif")
    wanted = [word for name in outputs for word in ("-o", name)]
    assert slug in mini.command("ci", *wanted, code=code).stdout
    for name in outputs:
        assert slug in (mini.root / name).read_text(), name


def test_a_tolerance_that_zeros_would_pass_under_gives_no_verdict(tmp_path: Path) -> None:
    mini = weak(tmp_path / "w", "x * 2", "tolerances = { float32 = { atol = 1000.0, rtol = 0.0 } }")
    done = mini.command("run", "--format", "json", code=4)
    (result,) = json.loads(done.stdout)["results"]
    assert result["verdict"] == "inconclusive"
    assert "zeros for 'y' would pass" in result["reason"]
    told_everywhere(mini, "loose-tolerance", 4)
    fuzzed = mini.command("fuzz", "-n", "6", "--format", "json", code=4).stdout
    assert "zeros for 'y' would pass" in fuzzed


def test_a_tolerance_that_a_single_case_needs_is_none(tmp_path: Path) -> None:
    mini = weak(tmp_path / "w", "x * 2", "tolerances = { float32 = { atol = 1.0, rtol = 0.0 } }")
    assert json.loads(mini.command("run", "--format", "json").stdout)["problems"] == []


def test_a_reference_that_always_gives_one_value_is_warned_of(tmp_path: Path) -> None:
    mini = weak(tmp_path / "w", "np.minimum(x, -1e9) * 0 + 7", "")
    (result,) = json.loads(mini.command("run", "--format", "json").stdout)["results"]
    assert result["verdict"] == "passed", "what it was compared with is a value"
    told_everywhere(mini, "constant-reference", 0)


def test_zeros_as_inputs_alone_give_no_verdict(tmp_path: Path) -> None:
    """Indices into a table of one row, say: an op that ignores them passes."""
    mini = weak(tmp_path / "w", "x * 2", "")
    toml = (tmp_path / "w/gpuemu.toml").read_text()
    row = 'x = { dims = ["M", "N"], dtype = "int32", range = [0, 0] }'
    mini.write("gpuemu.toml", toml.replace('x = ["M", "N"]', row))
    (result,) = json.loads(mini.command("run", "--format", "json", code=4).stdout)["results"]
    assert result["verdict"] == "inconclusive"
    assert result["reason"] == "all inputs on which outputs were compared are zeros or NaN"
