"""Processes that die or hang, files in the way, two daemons at once: nothing kept is lost."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from daemon_workspace import Served, normal
from runner_workspace import wait_until

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.client import ClientError, DaemonUnreachableError
from gpuemu_flow.services.daemon import lifecycle
from gpuemu_flow.services.daemon.control import describe, running, stop_daemon
from gpuemu_flow.services.daemon.files import make_place
from gpuemu_flow.wire import DaemonNotStartedError, start_daemon, workspace_stem

NOBODY = 65534


def processes_below(folder: Path) -> list[int]:
    """Processes whose working directory lies in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                place = (entry / "cwd").readlink()
            except OSError:
                continue
            if place.is_relative_to(folder.resolve()):
                found.append(int(entry.name))
    return found


def test_a_reference_that_hangs(daemon: Served) -> None:
    """It is ended after the op's time; others are served meanwhile."""
    x = normal(3)
    results: list[object] = []

    def hang() -> None:
        with daemon.client() as client:
            try:
                client.validate_op("hostile", {"x": np.full(2, 13, np.float32)}, normal(2))
            except ClientError as error:
                results.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    with daemon.client() as client:
        for _ in range(10):
            assert client.validate_op("double", {"x": x}, x * 2).passed
    assert results == []
    thread.join(600)
    (error,) = results
    assert isinstance(error, ClientError)
    assert error.code == "ReferenceScriptFailed"
    assert "timeout" in str(error) or "2 s" in str(error)


def test_a_reference_that_crashes(daemon: Served) -> None:
    with daemon.client() as client:
        for _ in range(2):
            with pytest.raises(ClientError) as caught:
                client.validate_op("hostile", {"x": np.full(2, 14, np.float32)}, normal(2))
            assert caught.value.code == "ReferenceScriptFailed"
        assert client.validate_op("hostile", {"x": normal(2)}, normal(2) * 2).passed


def test_killed_in_mid_fuzz(unserved: Served) -> None:
    unserved.start()
    seeds = []
    errors: list[ClientError] = []

    def fuzz() -> None:
        with unserved.client() as client:
            try:
                client.fuzz_op("gated_op", seed=1, iterations=3)
            except ClientError as error:
                errors.append(error)

    thread = threading.Thread(target=fuzz)
    thread.start()
    assert wait_until(lambda: unserved.entered() > 0)
    x = normal(4)
    with unserved.client() as client:
        seeds = [client.validate_op("double", {"x": x}, x * (2 + n % 2)).seed for n in range(20)]
    unserved.kill()
    thread.join(600)
    assert isinstance(errors[0], DaemonUnreachableError)
    assert wait_until(lambda: processes_below(unserved.root) == []), "workers outlive the daemon"
    assert Path(unserved.socket).exists(), "a killed daemon leaves its socket behind"
    unserved.start()
    with unserved.client() as client:
        assert {r.seed for r in client.list_results(100)} == set(seeds)
        assert {r.seed for r in client.list_failures(100)} == set(seeds[1::2])


def test_results_survive_an_orderly_end(unserved: Served) -> None:
    unserved.start()
    x = normal(4)
    with unserved.client() as client:
        seed = client.validate_op("double", {"x": x}, x * 2).seed
        client.store_baseline("kept")
        exchange = Path(client.ping()["exchange"])
        client.shutdown()
    assert wait_until(lambda: running(unserved.root, unserved.environ) is None)
    assert not Path(unserved.socket).exists()
    assert not exchange.exists()
    assert wait_until(lambda: processes_below(unserved.root) == [])
    unserved.start()
    with unserved.client() as client:
        assert client.get_result(seed) is not None
        assert not client.compare_baseline("kept").has_regressions


def test_a_case_of_a_daemon_that_was_killed(unserved: Served) -> None:
    """It is made again from what is kept of it; a seed that nobody was given is none."""
    unserved.start()
    with unserved.client() as client:
        case, *_ = client.get_test_batch("double", 3, seed=8, dtypes=["bfloat16"])
        planned = client.get_test_batch("matmul", 3, seed=8)[2]
    unserved.kill()
    unserved.start()
    with unserved.client() as client:
        x = case.inputs["x"]
        result = client.submit_output("double", case.inputs, x * 2, case.seed)
        assert result.passed and result.notes == []
        assert result.repro_info is not None
        assert result.repro_info.dtype == "bfloat16"
        assert result.repro_info.layout == case.layout.capitalize()
        other = client.submit_output("double", {"x": x + 1}, x * 2 + 2, case.seed)
        assert other.failures[0].kind == "InputModified"
        a, b = planned.inputs.values()
        assert client.submit_output("matmul", planned.inputs, a @ b, planned.seed).notes == []
        assert client.submit_output("double", {"x": x}, x * 2, 12345).repro_info is None


def test_an_end_does_not_wait_for_work(unserved: Served) -> None:
    unserved.start()
    errors: list[ClientError] = []

    def wait_for_gate() -> None:
        with unserved.client() as client:
            try:
                client.validate_op("gated", {"x": normal(2)}, normal(2))
            except ClientError as error:
                errors.append(error)

    thread = threading.Thread(target=wait_for_gate)
    thread.start()
    assert wait_until(lambda: unserved.entered() > 0)
    assert stop_daemon(unserved.root, unserved.environ) == unserved.info["pid"]
    thread.join(600)
    assert len(errors) == 1
    assert wait_until(lambda: processes_below(unserved.root) == [])


def test_two_started_at_once(unserved: Served) -> None:
    for _ in range(3):
        with ThreadPoolExecutor(3) as threads:
            started = list(
                threads.map(lambda _: start_daemon(unserved.root, unserved.environ), range(3))
            )
        (info,) = [one for one in started if one]
        found = running(unserved.root, unserved.environ)
        assert found is not None
        assert found.pid == info["pid"]
        assert describe(unserved.root, unserved.environ).answers
        unserved.stop()


def test_two_workspaces_at_once(unserved: Served) -> None:
    """Each has its own socket; the default one stays with the first."""
    unserved.start()
    other = unserved.folder / "other"
    unserved.root.joinpath("scripts").rename(unserved.folder / "scripts")
    (other / "scripts").parent.mkdir(exist_ok=True)
    (unserved.folder / "scripts").rename(other / "scripts")
    (other / "gpuemu.toml").write_text((unserved.root / "gpuemu.toml").read_text())
    info = start_daemon(other, unserved.environ)
    try:
        default = str(unserved.home / ".gpuemu" / "gpuemu.sock")
        assert info["socket"] != unserved.socket
        assert unserved.info["sockets"] == [unserved.socket, default]
        assert info["sockets"] == [info["socket"]]
    finally:
        stop_daemon(other, unserved.environ)


def test_a_stale_socket_and_a_stale_lock(unserved: Served) -> None:
    folder = unserved.home / ".gpuemu"
    folder.mkdir(mode=0o755)
    stem = workspace_stem(unserved.root)
    for name in (f"{stem}.sock", "gpuemu.sock"):
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(folder / name))
    (folder / f"{stem}.lock").write_text("1\n")
    (folder / f"{stem}.json").write_text("junk")
    unserved.start()
    assert len(unserved.info["sockets"]) == 2
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700, "closed to others, though it was open"
    assert unserved.ask({"type": "Ping"})["type"] == "Pong"


def test_a_file_where_the_socket_belongs(unserved: Served) -> None:
    """It is somebody's: never deleted, and said."""
    folder = unserved.home / ".gpuemu"
    folder.mkdir(mode=0o700)
    (folder / "gpuemu.sock").write_text("precious")
    unserved.start()
    assert len(unserved.info["sockets"]) == 1
    assert "no socket" in unserved.log
    unserved.stop()
    own = folder / f"{workspace_stem(unserved.root)}.sock"
    own.write_text("precious")
    with pytest.raises(DaemonNotStartedError, match="no socket"):
        unserved.start()
    assert own.read_text() == (folder / "gpuemu.sock").read_text() == "precious"


def test_a_daemon_that_dies_as_it_starts_is_told_from_one_that_is_slow(unserved: Served) -> None:
    """Its end of the pipe closes a moment before it has ended."""
    unserved.environ["PYTHONHOME"] = str(unserved.folder / "nothing")
    for _ in range(30):
        with pytest.raises(DaemonNotStartedError, match="it ended with code 1"):
            unserved.start()


def test_a_socket_path_that_is_too_long(unserved: Served) -> None:
    unserved.environ["GPUEMU_SOCKET"] = str(unserved.folder / ("x" * 120))
    with pytest.raises(DaemonNotStartedError, match="bytes"):
        unserved.start()


def test_a_home_that_cannot_be_written(unserved: Served) -> None:
    """The socket goes to the runtime folder, and clients find it there."""
    runtime = unserved.folder / "run"
    runtime.mkdir()
    unserved.environ |= {"HOME": "/proc/self", "XDG_RUNTIME_DIR": str(runtime)}
    unserved.start()
    assert Path(unserved.socket).is_relative_to(runtime)
    assert unserved.ask({"type": "Ping"})["type"] == "Pong"
    assert describe(unserved.root, unserved.environ).answers


def test_a_home_with_a_long_path(unserved: Served) -> None:
    runtime = unserved.folder / "run"
    runtime.mkdir()
    home = unserved.folder / ("h" * 100)
    home.mkdir()
    unserved.environ |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(runtime)}
    unserved.start()
    assert Path(unserved.socket).is_relative_to(runtime)


def test_no_folder_at_all(unserved: Served) -> None:
    unserved.environ |= {"HOME": "/proc/self", "TMPDIR": str(unserved.folder)}
    blocked = unserved.folder / f"gpuemu-flow-{os.getuid()}"
    blocked.write_text("in the way")
    with pytest.raises(DaemonNotStartedError, match="XDG_RUNTIME_DIR"):
        unserved.start()


def test_a_wrong_configuration_at_the_start(unserved: Served) -> None:
    unserved.write("gpuemu.toml", "[[ops]]\nname = 3\n")
    with pytest.raises(DaemonNotStartedError) as caught:
        unserved.start()
    assert caught.value.problems[0].file == "gpuemu.toml"
    assert running(unserved.root, unserved.environ) is None


def test_modes(daemon: Served) -> None:
    for path in map(Path, daemon.info["sockets"]):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    with daemon.client() as client:
        exchange = Path(client.ping()["exchange"])
    assert stat.S_IMODE(exchange.stat().st_mode) == 0o700
    assert not exchange.is_relative_to("/dev/shm"), "ops may write there"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("folder_open", [False, True])
def test_another_user_cannot_connect(daemon: Served, folder_open: bool) -> None:
    """Neither through the closed folder nor, if someone opens it, through the socket's own mode."""
    socket_path = Path(daemon.socket)
    opened = [daemon.folder, daemon.home, *([socket_path.parent] if folder_open else [])]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in opened}
    try:
        for path in opened:
            path.chmod(0o755)
        assert connects_as(NOBODY, str(socket_path)) == "refused"
        assert connects_as(0, str(socket_path)) == "connected"
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def connects_as(user: int, path: str) -> str:
    """Try to connect as another user, in a new process: nng aborts in a forked one."""
    words = [sys.executable, "-I", "-S", "-c", CONNECTING, str(user), path]
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()


CONNECTING = """
import os, socket, sys
user = int(sys.argv[1])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
try:
    socket.socket(socket.AF_UNIX).connect(sys.argv[2])
    print("connected")
except PermissionError:
    print("refused")
"""


def test_the_folder_of_another_user_is_not_used(unserved: Served) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    folder = unserved.home / ".gpuemu"
    folder.mkdir()
    os.chown(folder, NOBODY, NOBODY)
    runtime = Path(tempfile.mkdtemp(dir=unserved.folder))
    unserved.environ["XDG_RUNTIME_DIR"] = str(runtime)
    unserved.start()
    assert Path(unserved.socket).is_relative_to(runtime)
    assert len(unserved.info["sockets"]) == 1
    assert "another user" in unserved.log


def test_the_log_is_rotated(unserved: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that has much to tell keeps a few files of it."""
    monkeypatch.setattr(lifecycle, "LOG_BYTES", 400)
    place = make_place(unserved.root, unserved.environ)
    config = Workspace(unserved.root, environ=unserved.environ).config
    for path in (place.lock, place.log):
        path.touch()
    with lifecycle._logging(place, config, to_stderr=False):
        for number in range(30):
            lifecycle.log.info("line %d of a daemon that has much to tell", number)
    files = sorted(path.name for path in place.folder.glob(f"{place.stem}.log*"))
    assert files == [f"{place.stem}.log{suffix}" for suffix in ("", ".1", ".2", ".3")]


def test_a_daemon_that_nobody_asks_ends(unserved: Served) -> None:
    """As those do, after hours, that a client started."""
    unserved.start(idle_seconds=0.1)
    assert wait_until(lambda: running(unserved.root, unserved.environ) is None)
    assert "nothing was asked" in unserved.log
