"""Exported tests, really run by pytest: they fail while the bug is there, and pass without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from export_bug import LOOSE, Bug, ramp
from export_cases import BUGS

from gpuemu_flow.errors import UsageError
from gpuemu_flow.numerics.checked_output import Policy
from gpuemu_flow.numerics.envelope import build_envelope
from gpuemu_flow.reports import pytest_export
from gpuemu_flow.reports.pytest_export import Expectation, render
from gpuemu_flow.reports.python_source import literal
from gpuemu_flow.runners.api import Program
from gpuemu_flow.types import FailureKind

pytestmark = pytest.mark.ci

FLOAT32 = {"result": ("float32",)}
WITH_NUMPY_ALONE = """
import runpy, sys
for name in ("gpuemu_flow", "pytest", "safetensors", "ml_dtypes", "pybase64", "torch"):
    sys.modules[name] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def run_pytest(folder: Path, *names: str) -> dict[str, str]:
    """File stem to ``passed`` or ``failed`` with the message, of one pytest process."""
    report = folder / "report.xml"
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null",
         f"--rootdir={folder}", f"--junitxml={report}", *names],
        cwd=folder,
        capture_output=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = case.find("failure")
        assert case.find("error") is None, ElementTree.tostring(case)
        text = "passed" if wrong is None else f"failed: {wrong.get('message')}\n{wrong.text}"
        found[str(case.get("name"))] = text
    return found


@dataclass(frozen=True)
class Answers:
    """Results of all exported tests, before and after the op was mended."""

    before: dict[str, str]
    after: dict[str, str]
    root: Path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """All bugs in one workspace and one pytest process: they must not disturb one another."""
    root = tmp_path_factory.mktemp("workspace")
    folder = root / "tests" / "repro"
    folder.mkdir(parents=True)
    (root / "helper.py").write_text("def whole(values):\n    return values\n")
    patch = pytest.MonkeyPatch()
    for bug in BUGS:
        bug.write(root, mended=False)
        if bug.name == "hangs":  # it is waited for in vain
            patch.setattr(pytest_export, "START_SECONDS", 1.0)
        bug.export(root, folder).write(folder)
        patch.undo()
    before = run_pytest(folder)
    for bug in BUGS:
        bug.write(root, mended=True)
        bug.export(root, folder).write(folder)
    return Answers(before, run_pytest(folder), root)


def test_name(bug: Bug) -> str:
    return f"test_repro_{bug.record().id}"


test_name.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_fails_before_the_mend_and_passes_after(bug: Bug, answers: Answers) -> None:
    assert answers.before[test_name(bug)].startswith("failed: ")
    assert answers.after[test_name(bug)] == "passed"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tail", "3 of 15 elements of 'result' are wrong; at [0, 4]: actual 0.0, expected 3.33"),
        ("shape", "has shape (1, 2), expected (2,)"),
        ("dtype", "has dtype float64"),
        ("input_modified", "the op wrote to input 'x'"),
        ("out_of_bounds", "the op wrote to input 'x'"),
        ("random", "another call changed 'result'"),
        ("unwritten", "actual 6.1743466e+16, expected 0.0"),
        ("unwritten_small", "1 of 9 elements of 'result' are wrong; at [8]: actual 6.1743466e+16"),
        ("raises", "ZeroDivisionError"),
        ("crashes", "exit code -11"),
        ("hangs", "TimeoutExpired"),
        ("takes_all_memory", "MemoryError"),
        ("script_exit_code", "exit code 3"),
        ("negative", "has elements below zero"),
        ("unnormalized", "does not sum to 1"),
        ("asymmetric", "is not symmetric"),
    ],
)
def test_the_failure_says_what_is_wrong(name: str, words: str, answers: Answers) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == name]
    assert words in answers.before[test_name(bug)]


def test_no_text_of_a_case_is_ever_code(answers: Answers) -> None:
    assert not list(answers.root.rglob("pwned"))
    (bug,) = [bug for bug in BUGS if bug.name == "hostile"]
    text = bug.export(answers.root, answers.root).text
    assert text.isascii()
    constants = {
        node.targets[0].id: node.value
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    facts = ast.literal_eval(constants["FAILURE"])
    assert facts["op"] == bug.op
    assert list(ast.literal_eval(constants["INPUTS"])) == list(bug.inputs)


@pytest.mark.parametrize("name", ["tail", "script", "module"])
def test_numpy_alone_suffices(name: str, tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == name]
    (tmp_path / "helper.py").write_text("def whole(values):\n    return values\n")
    for mended in (False, True):
        bug.write(tmp_path, mended=mended)
        path = bug.export(tmp_path, tmp_path).write(tmp_path)
        done = subprocess.run(
            [sys.executable, "-c", WITH_NUMPY_ALONE, path.name],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert (done.returncode == 0) is mended, done.stderr
        assert ("the case passes" in done.stdout) is mended


def test_the_workspace_may_move_with_the_test(tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "scalar"]
    old = tmp_path / "old"
    bug.write(old, mended=True)
    export = bug.export(old, old / "repro")
    assert str(tmp_path) not in export.text
    export.write(old / "repro")
    new = old.rename(tmp_path / "new")
    assert set(run_pytest(new / "repro").values()) == {"passed"}


def test_a_test_outside_the_workspace_names_it(tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "scalar"]
    root, folder = tmp_path / "workspace", tmp_path / "elsewhere"
    bug.write(root, mended=True)
    folder.mkdir()
    bug.export(root, folder).write(folder)
    assert set(run_pytest(folder).values()) == {"passed"}


def test_another_file_name_keeps_the_two_files_together(tmp_path: Path) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == "scalar"]
    bug.write(tmp_path, mended=True)
    program = Program(
        "callable",
        root=str(tmp_path),
        path=str(tmp_path / bug.file),
        function="op",
        input_names=("x",),
    )
    export = render(
        bug.record(), program, bug.inputs, bug.expectation(), folder=tmp_path,
        file_name="test_softmax_tail.py",
    )  # fmt: skip
    assert export.write(tmp_path) == tmp_path / "test_softmax_tail.py"
    assert export.tensors_name == "test_softmax_tail.safetensors"
    assert set(run_pytest(tmp_path, "test_softmax_tail.py").values()) == {"passed"}


@pytest.mark.ci
def test_the_auto_tolerance_is_written_out(tmp_path: Path) -> None:
    """The envelope of a sum: accumulation in float32 passes, a lost element fails."""
    values = np.random.default_rng(3).normal(size=(4, 300)).astype(np.float32) * 100
    bug = Bug(
        "total",
        FailureKind.TOLERANCE,
        "import numpy as np\ndef op(x):\n    return x[:, BUG:].sum(axis=1, dtype=np.float32)\n",
        "1",
        "0",
        {"x": values},
        lambda x: x.sum(axis=1),
    )

    def evaluate(inputs: dict[str, np.ndarray], *, shadow: bool = False) -> dict[str, np.ndarray]:
        return {"result": inputs["x"].sum(axis=1)}

    expected = {"result": values.astype(np.float64).sum(axis=1)}
    envelope = build_envelope(
        bug.inputs, expected, evaluate, dtype="float32", seed=1, exact_op=False, weak=False
    )
    exported = exported_of(bug, Expectation(expected, envelope, dtypes=FLOAT32), tmp_path)
    assert "failed" in exported(mended=False)
    assert exported(mended=True) == "passed"


def exported_of(bug: Bug, expectation: Expectation, root: Path) -> Callable[..., str]:
    """Export a test, and return a function that runs it on the op, wrong or mended."""
    program = Program(
        "callable",
        root=str(root),
        path=str(root / bug.file),
        function="op",
        input_names=("x",),
    )
    render(bug.record(), program, bug.inputs, expectation, folder=root).write(root)

    def run(*, mended: bool) -> str:
        bug.write(root, mended=mended)
        (found,) = run_pytest(root).values()
        return found

    return run


@pytest.mark.parametrize(
    "policy",
    [Policy(nan_policy="strict"), Policy(invariants=("no_nan",))],
    ids=["strict", "no_nan"],
)
def test_what_fails_without_a_verdict_fails_the_exported_test(
    policy: Policy, tmp_path: Path
) -> None:
    """Rounding alone decides the deviation of the first row, where nothing but NaN is wrong."""
    values = np.random.default_rng(0).standard_normal((20, 37))
    values[0] = 3000 + 0.1 * values[0]
    source = """
        import numpy as np

        def op(x):
            y = np.sqrt(np.maximum((x * x).mean(-1) - x.mean(-1) ** 2, 0))
            y[0] = BUG
            return y
        """
    inputs = {"x": values.astype(np.float32)}
    bug = Bug("deviation", FailureKind.NAN, source, "np.nan", "0.5", inputs, np.sqrt)

    def evaluate(inputs: dict[str, np.ndarray], *, shadow: bool = False) -> dict[str, np.ndarray]:
        x = inputs["x"]
        return {"result": np.sqrt(np.maximum((x * x).mean(-1) - x.mean(-1) ** 2, 0))}

    expected = evaluate({"x": inputs["x"].astype(np.float64)})
    envelope = build_envelope(
        inputs, expected, evaluate, dtype="float32", seed=1, exact_op=False, weak=False
    )
    exported = exported_of(bug, Expectation(expected, envelope, policy, FLOAT32), tmp_path)
    assert "failed" in exported(mended=False)
    assert exported(mended=True) == "passed"


def test_a_failing_reference_cannot_be_exported(tmp_path: Path) -> None:
    bug = replace(BUGS[0], kind=FailureKind.REFERENCE)
    with pytest.raises(UsageError, match="export-no-reference"):
        bug.export(tmp_path, tmp_path)


def test_without_expected_values_only_running_is_tested(tmp_path: Path) -> None:
    program = Program("callable", root="/", path="/a.py", function="op", input_names=("x",))
    for kind, possible in ((FailureKind.EXECUTION, True), (FailureKind.NAN, False)):
        record = replace(BUGS[0], kind=kind).record()
        arguments = (record, program, {"x": ramp(3)}, Expectation({}, LOOSE))
        if possible:
            assert "EXPECTED = {}" in render(*arguments, folder=tmp_path).text
        else:
            with pytest.raises(UsageError, match="export-no-reference"):
                render(*arguments, folder=tmp_path)


def test_a_value_without_a_literal_is_refused(tmp_path: Path) -> None:
    bug = replace(BUGS[0], program={"kwargs": {"alpha": object()}})
    with pytest.raises(UsageError, match="export-value"):
        bug.export(tmp_path, tmp_path)


@pytest.mark.parametrize(
    "value",
    [
        None, True, -7, 2**64 - 1, 0.1, "a'b\"c\\d\ne\u202e\udc80", [1, [2.5, "x" * 90], {}],
        {"a": {"b" * 50: [1] * 40}, "": "é"},
    ],
)  # fmt: skip
def test_literals_read_back(value: object) -> None:
    text = literal(value)
    assert text.isascii()
    assert ast.literal_eval(text) == value


def test_non_finite_literals() -> None:
    assert eval(literal([float("inf"), float("-inf")])) == [float("inf"), float("-inf")]
    assert np.isnan(eval(literal(float("nan"))))
