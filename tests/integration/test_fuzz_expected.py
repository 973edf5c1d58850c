"""After an edit of the op, a slow reference is not run again on the cases that it was run on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.fuzzing import Fuzzer, FuzzOptions
from gpuemu_flow.fuzz.judged import Judged
from gpuemu_flow.fuzz.outcome import OpFuzzOutcome
from gpuemu_flow.types import Verdict

CASES = 12


@pytest.fixture
def slow(mini: Mini) -> Mini:
    """A reference that takes a while, and writes down on how many cases it was run in float64."""
    mini.write(
        "scripts/scale_ref.py",
        """
        import time

        def reference(x):
            if x.dtype.itemsize == 8:
                with open("calls", "a") as calls:
                    calls.write("x")
            time.sleep(0.006)
            return x * 3
        """,
    )
    return mini


def fuzzed(
    mini: Mini, on_case: Callable[[Judged], None] = lambda _: None, **options: object
) -> OpFuzzOutcome:
    workspace = Workspace(mini.root, environ={"HOME": str(mini.root)})
    workspace.cache.create()
    try:
        asked = FuzzOptions(iterations=CASES, **options)  # type: ignore[arg-type]
        return Fuzzer(workspace, "scale", asked, on_case=on_case).run()
    finally:
        workspace.cache.close()


def calls(mini: Mini) -> int:
    """Count the calls of the reference since the last count."""
    path: Path = mini.root / "calls"
    count = len(path.read_text()) if path.exists() else 0
    path.unlink(missing_ok=True)
    return count


def test_an_edited_op_is_judged_without_its_reference(slow: Mini) -> None:
    judged: list[Judged] = []
    first = fuzzed(slow, judged.append)
    assert first.count(Verdict.PASSED) == CASES
    before = calls(slow)
    slow.edit("scripts/scale.py", "* 3", "* 3 * 1")
    judged_again: list[Judged] = []
    again = fuzzed(slow, judged_again.append)
    assert again.cached == 0
    assert [j.result for j in judged_again] == [j.result for j in judged]
    assert calls(slow) <= before - CASES, "what is left looks for the tolerance's traits"
    assert not list((slow.root / ".gpuemu-cache/staging").iterdir())


@pytest.mark.long
def test_a_wrong_op_fails_on_kept_outputs_as_on_fresh_ones(slow: Mini) -> None:
    fuzzed(slow)
    slow.edit("scripts/scale.py", "* 3", "* 3.01")
    judged: list[list[Judged]] = [[], []]
    kept = fuzzed(slow, judged[0].append)
    fuzzed(slow, judged[1].append, force=True)
    assert [j.result for j in judged[0]] == [j.result for j in judged[1]]
    assert kept.failures


def test_an_edited_reference_is_run_again(slow: Mini) -> None:
    fuzzed(slow)
    before = calls(slow)
    slow.edit("scripts/scale_ref.py", "x * 3", "x * 4")
    again = fuzzed(slow)
    assert again.failures
    assert calls(slow) >= before - CASES
    assert calls(slow) == 0
