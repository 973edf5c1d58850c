"""Hints for ops whose own processes and programs cannot do what they want to."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import Mini

from gpuemu_flow.runners.sandbox.fence import system_level
from gpuemu_flow.runners.sandbox.spec import lacks

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(900),
]  # processes that are spawned, on whatever machine

OPS = {
    "spawned": """
def spawned(x):
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(twice, [x])[0]
""",
    "submitted": """
def submitted(x):
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(twice, x).result()
""",
    "managed": """
def managed(x):
    import multiprocessing
    with multiprocessing.get_context("fork").Manager() as manager:
        return x * manager.Value("i", 2).value
""",
    "served": """
def served(x):
    import multiprocessing
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        return pool.map(twice, [x])[0]
""",
    "started": """
def started(x):
    import subprocess
    subprocess.run(["false"], check=True)
    return x * 2
""",
    "slow": """
def slow(x):
    import time
    time.sleep(1000)
""",
    "ended": """
def ended(x):
    import multiprocessing
    import os
    from concurrent.futures import ProcessPoolExecutor
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(os._exit, 1).result()
""",
}
HINTS = {
    "spawned": "processes that `multiprocessing` spawns cannot import the op's own file",
    "submitted": "processes that `multiprocessing` spawns cannot import the op's own file",
    "managed": "a `Manager` talks over sockets",
    "served": "the start method `forkserver`",
    "started": "a program that an op starts is kept from the same as the op",
    "slow": "raise `timeout`",
    "ended": "",
}
LIMITS = {"slow": 1, "spawned": 10}
"""Seconds; the others end by themselves."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The lines about each op."""
    mini = Mini(tmp_path_factory.mktemp("helpers") / "w")
    mini.write("ref.py", "def reference(x):\n    return x * 2\n")
    mini.write("op.py", "def twice(x):\n    return x * 2\n" + "".join(OPS.values()))
    tables = [
        f'[[ops]]\nname = "{name}"\nop = "op.py:{name}"\nreference = "ref.py:reference"\n'
        f'input_names = ["x"]\ntimeout = {LIMITS.get(name, 300)}\n'
        for name in OPS
    ]
    head = '[project]\nname = "h"\n[validation]\ndtypes = ["float32"]\ncases = 1\nseed = 1\n'
    mini.write("gpuemu.toml", head + "\n".join(tables))
    text = mini.command("run", "--no-confirm", code=None).stdout
    return {part.split()[0].rstrip(":"): part for part in text.split("\nerror ")[1:]}


@pytest.mark.parametrize("name", OPS)
def test_a_hint_says_what_is_the_matter(told: dict[str, str], name: str) -> None:
    if name in ("managed", "served", "started") and lacks(system_level()):
        pytest.skip("ops have no fence here")
    hints = [line for line in told[name].splitlines() if line.startswith("    hint: ")]
    assert len(hints) == bool(HINTS[name]), told[name]
    assert HINTS[name] in told[name]
    if name == "slow":
        assert "multiprocessing" not in hints[0]


def test_a_function_of_a_module_that_the_op_imports_can_be_spawned(tmp_path: Path) -> None:
    """As the hint says."""
    mini = Mini(tmp_path / "w")
    mini.write("ref.py", "def reference(x):\n    return x * 2\n")
    mini.write("helper.py", "def twice(x):\n    return x * 2\n")
    mini.write("op.py", "from helper import twice\n" + OPS["spawned"])
    mini.write(
        "gpuemu.toml",
        '[project]\nname = "h"\n[validation]\ndtypes = ["float32"]\ncases = 1\nseed = 1\n'
        '[[ops]]\nname = "it"\nop = "op.py:spawned"\nreference = "ref.py:reference"\n'
        'input_names = ["x"]\ntimeout = 300\n',
    )
    (result,) = mini.run()["results"]
    assert result["verdict"] == "passed"
