"""Inputs that a function of the user's returns, from the configuration to the verdict and back."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini

CONFIG = """
[project]
name = "generated"

[validation]
cases = 6
cause_budget = 0

[[ops]]
name = "route"
op = "scripts/op.py:gather"
reference = "scripts/ref.py:gather"
[ops.schema]
dims = { T = { min = 1, max = 30 }, E = [3, 4], K = [1, 2] }
inputs.x = ["T", "E"]
inputs.routes = { dims = ["T", "K"], dtype = "int64", generate = "scripts/gen.py:routes" }
"""
GENERATOR = """
from low import lowest


def routes(rng, shape, dims, dtype, own=0):
    return rng.integers(lowest(), dims["E"], shape).astype(dtype)
"""
FILES = {
    "gpuemu.toml": CONFIG,
    "scripts/gen.py": GENERATOR,
    "scripts/low.py": """
        def lowest():
            return 0
        """,
    "scripts/op.py": """
        import numpy as np


        def gather(x, routes):
            return np.take_along_axis(x, routes, axis=1)
        """,
    "scripts/ref.py": """
        import numpy as np


        def gather(x, routes):
            return x[np.arange(x.shape[0])[:, None], routes]
        """,
}
BOUNDED = "np.take_along_axis(x, np.minimum(routes, 1), axis=1)"


@pytest.fixture
def mini(tmp_path: Path) -> Mini:
    made = make_mini(tmp_path / "w")
    for name, text in FILES.items():
        made.write(name, text)
    return made


def failing(mini: Mini, body: str, slug: str) -> str:
    """Run with another generator; return what is printed once no case has passed by it."""
    mini.write("scripts/gen.py", body)
    shown = mini.command("run", code=3).stdout
    assert f"an input: {slug}: routes: scripts/gen.py:routes" in shown, shown
    assert re.search(r"route +float32 +error", shown), shown
    # It is neither the op nor the reference that failed, and no kind says so.
    assert "GeneratorError" in shown and "ReferenceError" not in shown, shown
    found = json.loads(mini.command("report", "--format", "json").stdout)["failures"]
    assert {failure["kind"] for failure in found} == {"GeneratorError"}
    return shown


def test_a_right_op_passes_run_and_fuzz(mini: Mini) -> None:
    (found,) = mini.run()["results"]
    assert found["verdict"] == "passed"
    assert mini.run()["results"][0]["cached"]
    fuzzed = mini.command("fuzz", "route", "--iterations", "20", "--seed", "5").stdout
    assert "20 passed" in fuzzed


@pytest.mark.ci
def test_a_wrong_op_is_found_shrunk_and_made_again_elsewhere(mini: Mini, tmp_path: Path) -> None:
    mini.edit("scripts/op.py", "np.take_along_axis(x, routes, axis=1)", BOUNDED)
    shown = mini.command("run", code=1).stdout
    lines = re.findall(r"gpuemu-flow (reproduce .* --case .*)", shown)
    assert lines, shown
    fresh = make_mini(tmp_path / "fresh")
    for name in FILES:
        fresh.write(name, (mini.root / name).read_text())
    assert "still fails" in fresh.command(*shlex.split(lines[0]), code=1).stdout
    first = mini.command("failures").stdout.splitlines()[1].split()[0]  # under the header
    shrunk = mini.command("minimize", first, "--op", "route", code=None).stdout
    assert "minimized from" in shrunk, shrunk
    # Values that a function returned before an edit stay those of the recorded case.
    mini.edit("scripts/low.py", "return 0", "return 2")
    assert "still fails" in mini.command("reproduce", first, "--op", "route", code=1).stdout
    mini.command("fuzz", "route", "--iterations", "20", "--seed", "5", code=1)


def test_an_edit_of_a_helper_runs_the_op_anew_where_values_change(mini: Mini) -> None:
    mini.run()
    mini.edit("scripts/low.py", "return 0", "return 0  # the first")
    assert "1 ran, 0 restored, 4 current" in mini.command("run").stdout
    mini.edit("scripts/low.py", "return 0  # the first", "return 1")
    assert not mini.run()["results"][0]["cached"]


@pytest.mark.ci
def test_a_file_that_it_reads_belongs_to_its_key(mini: Mini) -> None:
    mini.write("low.txt", "0")
    mini.write("scripts/low.py", "def lowest():\n    return int(open('low.txt').read())\n")
    mini.run()
    mini.command("fuzz", "route", "--iterations", "20", "--seed", "5")
    mini.edit("scripts/op.py", "np.take_along_axis(x, routes, axis=1)",
              "np.take_along_axis(x, routes * (routes < 3), axis=1)")  # fmt: skip
    mini.write("low.txt", "-3")
    assert not mini.run(code=None)["results"][0]["cached"]
    fuzzed = mini.command("fuzz", "route", "--iterations", "20", "--seed", "5", code=None)
    assert "cached" not in fuzzed.stdout


WRONG = [
        (
            "import os\n\n\ndef routes(shape, dtype):\n"
            "    import numpy as np\n"
            "    random = np.random.default_rng()\n"
            "    return random.integers(0, 1 << 62, shape).astype(dtype) % 3\n",
            "generate-nondeterministic",
            "different values for equal arguments",
        ),
        (
            "def routes(rng, shape):\n    return rng.normal(size=shape)\n",
            "generate-result",
            "float64",
        ),
        (
            "def routes(rng, shape, dtype):\n"
            "    return rng.integers(0, 3, 1 + shape[0]).astype(dtype)\n",
            "generate-result",
            "int64 \\[\\d+\\]; int64 \\[\\d+, \\d\\] is asked for",
        ),
        ("def routes():\n    return None\n", "generate-result", "a NoneType"),
        ("def routes(rng):\n    raise ValueError('no routes')\n", "generate-failed", "no routes"),
        ("def routes(rows):\n    return rows\n", "generate-failed", "argument 'rows'"),
        ("def other():\n    return 0\n", "generate-failed", "defines no callable"),
        (
            "import os\n\n\ndef routes():\n    os.abort()\n",
            "generate-failed",
            "killed by SIGABRT",
        ),
        (
            "def routes():\n    open('planted.txt', 'w').write('x')\n",
            "generate-failed",
            "planted.txt",
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "slug", "said"),
    [
        *WRONG[::3],
        *(pytest.param(*row, marks=pytest.mark.ci) for row in WRONG if row not in WRONG[::3]),
    ],
)
def test_what_is_wrong_with_it_costs_the_case_an_error(
    mini: Mini, body: str, slug: str, said: str
) -> None:
    shown = failing(mini, body, slug)
    assert re.search(said, shown), shown
    assert not (mini.root / "planted.txt").exists()


@pytest.mark.parametrize(
    ("body", "slug"),
    [
        ("def routes():\n    return None\n", "generate-result"),
        ("def routes():\n    import os\n\n    os.abort()\n", "generate-failed"),
    ],
    ids=["result", "crash"],
)
@pytest.mark.ci
def test_a_case_without_inputs_is_recorded_and_passes_once_they_are_made(
    mini: Mini, body: str, slug: str
) -> None:
    failing(mini, body, slug)
    seed = mini.command("failures").stdout.splitlines()[1].split()[0]  # under the header
    assert slug in mini.command("reproduce", seed, "--op", "route", code=1).stdout
    refused = mini.command("minimize", seed, "--op", "route", code=3).stderr
    assert "not-minimizable: of failure" in refused
    mini.write("scripts/gen.py", GENERATOR)
    mini.command("reproduce", seed, "--op", "route")
    assert mini.run()["results"][0]["verdict"] == "passed"


@pytest.mark.parametrize(
    ("old", "new", "slug"),
    [
        ("scripts/gen.py:routes", "../gen.py:routes", "config-path-outside"),
        ("scripts/gen.py:routes", "scripts/no.py:routes", "config-path-missing"),
        ('"scripts/gen.py:routes"', '"scripts/gen.py"', "schema-type"),
        ('"scripts/gen.py:routes"', "3", "schema-type"),
        ('generate = "', 'kind = "unique", generate = "', "schema-rule-key"),
        ('generate = "', 'range = [0, 1], generate = "', "schema-rule-key"),
        ('generate = "', 'values = [0, 1], generate = "', "schema-rule-key"),
    ],
)
def test_config_check_refuses_what_cannot_be(mini: Mini, old: str, new: str, slug: str) -> None:
    mini.edit("gpuemu.toml", old, new)
    shown = mini.command("config", "check", code=2)
    assert re.search(rf"gpuemu\.toml:\d+: {slug}: ", shown.stdout + shown.stderr), shown
