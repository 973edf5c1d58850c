"""A user's file is observed whatever its name, also if Python's own library has a file so named."""

from __future__ import annotations

import textwrap

import pytest
from observed_workspace import observe
from runner_workspace import Workspace

from gpuemu_flow.observed import ALL_VARIABLES
from gpuemu_flow.runners import changes, variables
from gpuemu_flow.runners import observe as observer
from gpuemu_flow.runners.stdlib_files import FOLDER

pytestmark = pytest.mark.ci

FENCED = True

KNOWN = sorted(
    {
        name.removeprefix(f"{FOLDER}/")
        for files in (
            observer._HELPERS,
            observer._LISTS_ONLY,
            observer._MODULES_ONLY,
            observer._CTYPES,
            variables._PASSES_ON,
            variables._ASKS_FOR_SIZE,
            variables._SKIPPED,
            changes._TEMPORARY,
        )
        for name in files
        if name.startswith(f"{FOLDER}/")
    }
)
"""Files of the library that the observer treats differently from the user's, below the library."""
NAMES = [
    *KNOWN,
    *(f"k{name}" for name in KNOWN),
    "macros.py",
    "op_pathlibglob.py",
    *(f"lib/python3.11/{name}" for name in ("os.py", "glob.py")),
]
BODY = """
import os

def op(x):
    open("opened").close()
    os.path.exists("asked")
    os.listdir("listed")
    list(os.scandir("sized"))
    dict(os.environ)
    try:
        os.close(os.open("created", os.O_CREAT | os.O_RDWR, 0o600))
        open("created").close()
    except OSError:
        pass
    return x
"""


def test_every_file_that_is_treated_differently_is_tried() -> None:
    assert {"os.py", "glob.py", "subprocess.py", "tempfile.py", "ctypes/__init__.py"} <= {*KNOWN}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_named_as_one_of_python_is_observed(ws: Workspace, name: str) -> None:
    for file in ("opened", "asked", "listed/a", "sized/a"):
        ws.write(file, "")
    seen = observe(ws, ws.program("callable", BODY, name=f"ops/{name}"))
    assert {f"ops/{name}", "opened", "asked"} <= seen.files
    assert "listed" in seen.listed
    assert "sized" in seen.sized
    assert "created" in seen.missed
    assert ALL_VARIABLES in seen.variables


@pytest.mark.parametrize("name", ["ctypes/__init__.py", "kctypes/__init__.py"])
def test_such_a_file_looks_up_a_function_that_reads_variables(ws: Workspace, name: str) -> None:
    body = textwrap.dedent("""
        import ctypes

        def op(x):
            ctypes.CDLL(None).getenv
            return x
    """)
    seen = observe(ws, ws.program("callable", body, name=f"ops/{name}"))
    assert ALL_VARIABLES in seen.variables


CACHED = """
import os

def op(x):
    open("q/__pycache__/data.txt").close()
    open("q/__pycache__/data.a.txt").close()
    os.path.exists("q/__pycache__/none.txt")
    return x
"""


def test_data_beside_bytecode_is_observed(ws: Workspace) -> None:
    """Also where a module has the same name up to the first dot."""
    for file in ("q/data.py", "q/__pycache__/data.txt", "q/__pycache__/data.a.txt"):
        ws.write(file, "")
    seen = observe(ws, ws.program("callable", CACHED))
    data = {"q/__pycache__/data.txt", "q/__pycache__/data.a.txt"}
    assert seen.files == {"program.py", *data}
    assert "q/__pycache__/none.txt" in seen.missed
