"""Test which cases a run executes, and their inputs, from the command to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.store.workspace_cache import WorkspaceCache
from gpuemu_flow.types import DTYPES

COUNTED = """
import os
def {name}(x):
    with open({log!r}, "a") as file:
        file.write("call\\n")
    return x * 3
"""


def executed_cases(root: Path, task: str) -> int:
    cache = WorkspaceCache(root / ".gpuemu-cache")
    try:
        record = cache.state.get(f"task:{task}")
        return int(record["values"]["executed"])
    finally:
        cache.close()


def test_from_24_to_48_cases_the_24_new_ones_run(mini: Mini, tmp_path: Path) -> None:
    """Counted twice: by the task, and by the op itself."""
    log = tmp_path / "calls"
    mini.unfence()
    mini.write("scripts/scale.py", COUNTED.format(name="scale", log=str(log)))
    mini.edit("gpuemu.toml", "cases = 4", "cases = 24")
    mini.run("scale")
    first = len(log.read_text().splitlines())
    mini.edit("gpuemu.toml", "cases = 24", "cases = 48")
    report = mini.run("scale")
    (result,) = report["results"]
    assert (result["cases"], result["passed"]) == (48, 48)
    # A case takes three calls at least: a decoy, the judged one and a repetition.
    assert 3 * 24 <= len(log.read_text().splitlines()) - first < 3 * 48
    for stage in ("op", "compare"):
        assert executed_cases(mini.root, f"{stage}:scale:float32") == 24
    # The reference is called once more than there are cases, in the op's own dtype; that case
    # stays in the cache as well.
    assert executed_cases(mini.root, "reference:scale:float32") == 24
    calls = log.read_text()
    mini.edit("gpuemu.toml", "cases = 48", "cases = 24")
    fewer = mini.run("scale")
    assert fewer["results"][0]["cases"] == 24
    assert log.read_text() == calls


ALL_DTYPES = """
[project]
name = "dtypes"

[validation]
dtypes = {dtypes}
cases = 6

[[ops]]
name = "copy"
op = "scripts/copy.py:copy"
reference = "scripts/copy_ref.py:copy"
input_names = ["x"]
schema = {{ dims = {{ M = [0, 1, 17], N = [5, 33] }}, inputs = {{ x = ["M", "N"] }}, output = ["M", "N"] }}

[[ops]]
name = "scalar"
op = "scripts/echo.py"
reference = "scripts/copy_ref.py:copy"
input_names = ["x"]
schema = {{ dims = {{}}, inputs = {{ x = [] }}, output = [] }}
"""  # noqa: E501


@pytest.mark.ci
def test_every_dtype_empty_and_without_dims(mini: Mini) -> None:
    mini.write("gpuemu.toml", ALL_DTYPES.format(dtypes=json.dumps(list(DTYPES))))
    mini.write(
        "scripts/copy.py",
        "import numpy as np\n\n"
        "def copy(x):\n    out = np.empty(x.shape, x.dtype)\n    out[...] = x\n    return out\n",
    )
    mini.write("scripts/copy_ref.py", "def copy(x):\n    return x.copy()\n")
    mini.write(
        "scripts/echo.py",
        "import json, sys\nprint(json.dumps(json.load(sys.stdin)['inputs']['x']))\n",
    )
    results = mini.run()["results"]
    assert {r["dtype"] for r in results} == set(DTYPES)
    assert len(results) == 2 * len(DTYPES)
    # One of the copies is empty: nothing of it can be judged.
    passed = {"copy": 5, "scalar": 6}
    assert {(r["op"], r["verdict"], r["cases"], r["passed"]) for r in results} == {
        (op, "passed", 6, number) for op, number in passed.items()
    }
    mini.write(
        "scripts/copy.py",
        """
        import numpy as np

        def copy(x):
            out = x.copy().reshape(-1)
            if out.size:
                last = out[-1:]
                out[-1:] = ~last if x.dtype.kind in "biu" else np.where(last == 0, 1, -last)
            return out.reshape(x.shape)
        """,
    )
    wrong = mini.run("copy", code=1)["results"]
    assert {r["verdict"] for r in wrong} == {"failed"}
    counts = {(r["failed"], r["inconclusive"]) for r in wrong}
    assert counts == {(5, 1)}, "a case without elements has nothing wrong, and nothing right"
