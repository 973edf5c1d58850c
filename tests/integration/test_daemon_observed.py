"""Test that a file which the reference uses may change while the daemon runs: the next submission
sees the change."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from daemon_workspace import Served, normal
from runner_workspace import wait_until

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import ClientError, calls
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report.submissions import submitted_results

pytestmark = pytest.mark.ci


CONFIG = """\
[project]
name = "observed"

[validation]
dtypes = ["float32"]
cases = 2

[[ops]]
name = "scale"
reference = "scripts/scale.py:reference"
input_names = ["x"]
execution_mode = "client_side"
"""


def array(path: Path, factor: int) -> None:
    np.save(path, np.float32(factor))


def text(path: Path, factor: int) -> None:
    path.write_text(f"{factor}\n")


def factor_file(served: Served, factor: int) -> Path:
    """Write the factor that a reference reads, and return the path of its file."""
    path = served.root / "data" / "factor.txt"
    path.parent.mkdir()
    text(path, factor)
    return path


def module(path: Path, factor: int) -> None:
    path.write_text(f"FACTOR = {factor}\n")


Write = Callable[[Path, int], None]

WAYS: dict[str, tuple[str, Write, str]] = {
    "np.load": ("data/weights.npy", array, "import numpy as np\nload = lambda: np.load({path!r})"),
    "open": ("data/factor.txt", text, "load = lambda: int(open({path!r}).read())"),
    "at import": ("data/factor.txt", text, "FACTOR = int(open({path!r}).read())\n"
                  "load = lambda: FACTOR"),
}  # fmt: skip


def in_place(path: Path, write: Write, factor: int) -> None:
    write(path, factor)


def by_renaming(path: Path, write: Write, factor: int) -> None:
    beside = path.with_name(f"new-{path.name}")
    write(beside, factor)
    beside.replace(path)


def with_the_old_time(path: Path, write: Write, factor: int) -> None:
    status = path.stat()
    write(path, factor)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def prepare(served: Served, way: str) -> tuple[Path, Write]:
    name, write, loading = WAYS[way]
    path = served.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, 2)
    served.write("gpuemu.toml", CONFIG)
    code = loading.format(path=str(path), folder=str(path.parent))
    (served.root / "scripts" / "scale.py").write_text(
        f"{code}\n\ndef reference(x):\n    return (x * load()).astype(x.dtype)\n"
    )
    served.start()
    return path, write


def counted(served: Served) -> tuple[Verdict, int]:
    workspace = Workspace(served.root, environ=served.environ)
    result = submitted_results(workspace, workspace.graph.skips)["scale", "float32"]
    return result.verdict, result.cases


EDITS = [
    *((way, in_place) for way in WAYS),
    *(("open", edit) for edit in (by_renaming, with_the_old_time)),
]


@pytest.mark.parametrize(("way", "edit"), EDITS)
def test_the_next_submission_is_judged_anew(
    unserved: Served, way: str, edit: Callable[[Path, Write, int], None]
) -> None:
    path, write = prepare(unserved, way)
    x = normal(3)
    with unserved.client() as client:
        for _ in range(2):  # a fresh reference, and one that was kept warm
            assert client.submit_output("scale", {"x": x}, x * 2, 7).passed
            assert not client.submit_output("scale", {"x": x}, x * 5, 8).passed
        client.submit_output("scale", {"x": x}, x * 2, 8)
        assert counted(unserved) == (Verdict.PASSED, 2)
        edit(path, write, 5)
        assert counted(unserved) == (Verdict.SKIPPED, 0), "the old reference judged these"
        assert not client.submit_output("scale", {"x": x}, x * 2, 7).passed
        assert client.submit_output("scale", {"x": x}, x * 5, 8).passed
        assert counted(unserved) == (Verdict.FAILED, 2)
        edit(path, write, 2)  # back again: what was judged by it then counts no less
        assert client.submit_output("scale", {"x": x}, x * 2, 7).passed
        assert not client.submit_output("scale", {"x": x}, x * 5, 8).passed


def test_a_file_that_appears(unserved: Served) -> None:
    """It was looked for and missed; deleting it is a change, too."""
    path = unserved.root / "data" / "factor.txt"
    path.parent.mkdir()
    unserved.write("gpuemu.toml", CONFIG)
    unserved.write(
        "scripts/scale.py",
        f"""
        def reference(x):
            try:
                factor = int(open({str(path)!r}).read())
            except OSError:
                factor = 2
            return (x * factor).astype(x.dtype)
        """,
    )
    unserved.start()
    x = normal(3)
    with unserved.client() as client:
        assert client.submit_output("scale", {"x": x}, x * 2, 7).passed
        text(path, 5)
        assert not client.submit_output("scale", {"x": x}, x * 2, 7).passed
        assert client.submit_output("scale", {"x": x}, x * 5, 7).passed
        path.unlink()
        assert client.submit_output("scale", {"x": x}, x * 2, 7).passed


def test_a_refusal_by_a_reference_that_has_changed_since_is_not_repeated(
    unserved: Served,
) -> None:
    path = factor_file(unserved, 0)
    unserved.write("gpuemu.toml", CONFIG)
    unserved.write(
        "scripts/scale.py",
        f"""
        FACTOR = int(open({str(path)!r}).read())

        def reference(x):
            if not FACTOR:
                raise ValueError("no factor")
            return (x * FACTOR).astype(x.dtype)
        """,
    )
    unserved.start()
    x = normal(3)
    with unserved.client() as client:
        for _ in range(2):
            with pytest.raises(ClientError, match="no factor"):
                client.validate_op("scale", {"x": x}, x * 2)
        text(path, 2)
        assert client.validate_op("scale", {"x": x}, x * 2).passed


def test_an_exception_of_the_op_is_recorded_for_the_present_inputs(unserved: Served) -> None:
    path = factor_file(unserved, 2)
    unserved.write("gpuemu.toml", CONFIG)
    unserved.write(
        "scripts/scale.py",
        f"""
        def reference(x):
            return (x * int(open({str(path)!r}).read())).astype(x.dtype)
        """,
    )
    unserved.start()
    x = normal(3)
    with unserved.client() as client:
        assert client.submit_output("scale", {"x": x}, x * 2, 7).passed
        text(path, 5)
        client._do(calls.raised("scale", {"x": x}, "ValueError: no memory", {}, seed=7, client={}))
        assert counted(unserved) == (Verdict.ERROR, 1)


def test_an_edit_and_back_while_it_is_judged(unserved: Served) -> None:
    """A file that differs only while the reference reads it must not leave a stored result
    behind."""
    path = factor_file(unserved, 2)
    unserved.write("gpuemu.toml", CONFIG + "timeout = 600\n")
    lock, entered = (
        unserved.write("lock", "held while the file is edited"),
        unserved.root / "entered",
    )
    unserved.write(
        "scripts/scale.py",
        f"""
        import fcntl

        def reference(x):
            open({str(entered)!r}, "w").close()
            with open({str(lock)!r}) as held:
                fcntl.flock(held, fcntl.LOCK_SH)
                return (x * int(open({str(path)!r}).read())).astype(x.dtype)
        """,
    )
    unserved.start()
    x = normal(3)
    with unserved.client(timeout_ms=600_000) as client, ThreadPoolExecutor(1) as threads:
        assert client.submit_output("scale", {"x": x}, x * 2, 7).passed
        assert counted(unserved) == (Verdict.PASSED, 1)
        entered.unlink()
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            waiting = threads.submit(client.submit_output, "scale", {"x": x}, x * 5, 8)
            assert wait_until(entered.exists)
            text(path, 5)
        waiting.result()
        text(path, 2)
        assert counted(unserved) == (Verdict.PASSED, 1), "the second one was judged by another file"
        assert not client.submit_output("scale", {"x": x}, x * 5, 8).passed
        assert counted(unserved) == (Verdict.FAILED, 2)
