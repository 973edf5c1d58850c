"""A fork server started before it is needed: used once, by whoever needs just that, or ended."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuemu_flow.inputs import plan
from gpuemu_flow.runners import early
from gpuemu_flow.runners.process import ServerHandle

pytestmark = pytest.mark.usefixtures("cold_servers")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    early.drop()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which servers make theirs."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_handle_takes_the_server_and_starts_workers_with_it(temporary: Path) -> None:
    early.start(os.environ)
    pid = early._started[0].pid
    handle = ServerHandle({})
    try:
        assert handle.pid == pid
        worker = handle.open_worker(fresh=False)
        assert Path(f"/proc/{worker.pid}/status").read_text().count(f"PPid:\t{pid}\n") == 1
        worker.close()
        other = ServerHandle({})
        assert other.pid != pid, "one server is handed out once"
        other.close()
    finally:
        handle.close()
    assert not is_alive(pid)
    assert list(temporary.iterdir()) == []


def test_its_process_is_that_of_a_server_started_the_usual_way(
    temporary: Path, tmp_path: Path
) -> None:
    """The same command, folder, variables and session; no file that the front had open."""
    with (tmp_path / "left open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        usual = ServerHandle({})
        early.start(os.environ)
        handle = ServerHandle({})
        try:
            for one in (usual, handle):
                one.open_worker(fresh=False).close()  # so that both have started
            assert facts(handle.pid) == facts(usual.pid)
            assert file.name not in open_files(handle.pid)
        finally:
            handle.close()
            usual.close()


def facts(pid: int) -> dict[str, object]:
    place = Path(f"/proc/{pid}")
    command = place.joinpath("cmdline").read_bytes().split(b"\0")
    return {
        "command": [word for word in command if not word.isdigit()],  # but the socket's number
        "folder": place.joinpath("cwd").readlink(),
        "variables": sorted(place.joinpath("environ").read_bytes().split(b"\0")),
        "leads a session": os.getsid(pid) == pid,
        "streams": [str(place.joinpath("fd", str(n)).readlink()) for n in range(3)],
    }


def open_files(pid: int) -> set[str]:
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the server closes what it gave a worker
            found.add(str(entry.readlink()))
    return found


@pytest.mark.parametrize("how", ["variables", "framework", "around"])
def test_a_handle_with_settings_starts_its_own(temporary: Path, how: str) -> None:
    early.start(os.environ)
    pid = early._started[0].pid
    if how == "variables":
        handle = ServerHandle({"OMP_NUM_THREADS": "2"})
    elif how == "framework":
        handle = ServerHandle({}, framework="torch")
    else:
        handle = ServerHandle({}, around=("/usr/bin/env",))
    try:
        assert handle.pid != pid
    finally:
        handle.close()
    early.drop()
    assert not is_alive(pid)


@pytest.mark.parametrize("serving", [False, True])
def test_a_server_that_nobody_takes_leaves_nothing(temporary: Path, *, serving: bool) -> None:
    early.start(os.environ)
    server = early._started[0]
    while serving and not any(temporary.iterdir()):
        assert server.poll() is None, "it makes its folder and serves until it is dropped"
    early.drop()
    assert not is_alive(server.pid)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("workers", [False, True])
def test_only_a_plan_that_names_workers_and_no_longer_holds_expects_work(
    tmp_path: Path, *, workers: bool
) -> None:
    source, path, environ = tmp_path / "op.py", tmp_path / "plan", {"HOME": "/nowhere"}
    source.write_text("one")
    found = source.stat()
    stamp = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
    content = plan.render(
        identity_text=plan.identity(environ, str(tmp_path.resolve())),
        summary="fine",
        files={str(source): stamp},
        absent=(),
        folders={},
        workers=workers,
    )
    assert content is not None
    path.write_bytes(content)
    assert plan.look(str(path), environ) == ("fine", False, False)
    source.write_text("another")
    assert plan.look(str(path), environ) == (None, workers, False)
    assert plan.look(str(path), {"HOME": "/elsewhere"}) == (None, False, False)
    path.unlink()
    assert plan.look(str(path), environ) == (None, False, False)
