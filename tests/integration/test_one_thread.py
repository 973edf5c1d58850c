"""The tests' own processes compute with one thread, and leave their environment as it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import one_thread
import pytest

pytestmark = pytest.mark.ci

PROGRAM = """
import os, {module}
import numpy as np
np.ones((400, 400)) @ np.ones((400, 400))
print(len(os.listdir("/proc/self/task")), *sorted(set(os.environ) & {variables}))
"""
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def threads(module: str) -> str:
    program = PROGRAM.format(module=module, variables=set(one_thread.VARIABLES))
    environ = {k: v for k, v in os.environ.items() if k not in one_thread.VARIABLES}
    return subprocess.run(
        [sys.executable, "-c", program], cwd=Path(one_thread.__file__).parent, env=environ,
        capture_output=True, text=True, check=True, timeout=600,
    ).stdout.strip()  # fmt: skip


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.skipif(CORES < 2, reason="numpy has one thread anyway")
def test_numpy_has_one_thread_and_no_variable_stays() -> None:
    assert threads("one_thread") == "1"


def test_it_is_loaded_before_numpy() -> None:
    """Else it changes nothing: `conftest` names it first."""
    text = Path(one_thread.__file__).with_name("conftest.py").read_text()
    imports = [line for line in text.splitlines() if line.startswith(("import ", "from "))]
    own = [
        line
        for line in imports
        if line.split()[1] not in (*sys.stdlib_module_names, "__future__", "collections.abc")
    ]
    assert own[0].startswith("import one_thread"), own
