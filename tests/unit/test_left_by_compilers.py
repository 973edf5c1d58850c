"""Files that a compiler left, which ran code of the kernel's: links, pipes and damaged answers."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from gpuemu_flow.tasks import compilers

KERNEL = {"path": "k.py", "kernel": "k"}
CHILD = """
import os, sys
os.write(os.open(sys.argv[1] + "/answer.json", os.O_CREAT | os.O_WRONLY), {answer!r})
open(sys.argv[1] + "/kernel.cubin", "w").write("cubin")
"""


def test_only_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"made")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    found = {p.name: compilers._bytes(p) for p in tmp_path.iterdir()}
    assert found == {"file": b"made", "link": None, "pipe": None, "folder": None}


@pytest.mark.parametrize(
    "answer",
    [b"{", b"[]", b"[" * 5000, b"{}", b'{"error": "no", "line": "x"}', b'{"launch": 3}', b"\xff"],
)
def test_an_answer_of_any_kind_is_no_traceback(
    tmp_path: Path, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = tmp_path / "triton_child.py"
    child.write_text(CHILD.format(answer=answer))
    monkeypatch.setattr(compilers, "__file__", str(tmp_path / "compilers.py"))
    folder = tmp_path / "build"
    folder.mkdir()
    result = compilers.triton(
        KERNEL, "sm_80", folder, root=tmp_path, python=sys.executable, cancel=threading.Event()
    )
    assert result.problems or result.output == b"cubin"
    assert result.launch is None
