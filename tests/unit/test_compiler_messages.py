"""Words of compilers that fail: the error is told, not the remarks around it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from gpuemu_flow.tasks import compilers

REMARKS = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 31 registers, used 1 barriers, 1 bytes smem, 388 bytes cmem[0]
ptxas info    : Compile time = 4.223 ms
"""


def failed(tmp_path: Path, said: str, status: int = 120) -> str:
    """Return the message about a compiler that says something on stderr and fails."""
    code = f"import sys; sys.stderr.write({said!r}); sys.exit({status})"
    problem = compilers.command([sys.executable, "-c", code], tmp_path, cancel=threading.Event())
    assert problem is not None and problem.slug == "build-failed"
    return problem.message


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ptxas fatal   : Ptx assembly aborted due to errors", "Ptx assembly aborted"),
        ("ptxas /tmp/k.ptx, line 33; error   : Unknown symbol 'x'", "Unknown symbol 'x'"),
        ("ptxas error   : Entry function 'k' uses too much shared data", "too much shared data"),
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "died due to signal 9"),
        ("nvlink error   : Undefined reference to 'f' in 'k.o'", "Undefined reference"),
        ("k.cu(3): error: expected a declaration", "expected a declaration"),
        ("sh: 1: cannot create k.cubin: No space left on device", "No space left on device"),
        ("Segmentation fault while fatal handler ran", "Segmentation fault"),
    ],
)
def test_the_error_is_told_wherever_it_stands(tmp_path: Path, line: str, told: str) -> None:
    for said in (f"{line}\n{REMARKS}", f"{REMARKS}{line}\n"):
        message = failed(tmp_path, said)
        assert told in message and "registers" not in message and "Compile time" not in message


def test_remarks_alone_are_no_reason(tmp_path: Path) -> None:
    message = failed(tmp_path, REMARKS)
    assert message.endswith("exit status 120") and "ptxas" not in message


def test_the_last_lines_are_told_where_none_names_an_error(tmp_path: Path) -> None:
    assert "three / four / five" in failed(tmp_path, "one\ntwo\nthree\nfour\nfive\n", 1)
