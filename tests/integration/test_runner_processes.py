"""Timeouts, cancellation and death: nothing hangs, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from textwrap import dedent

import pytest
import runner_workspace
from runner_workspace import (
    PROTOCOL,
    Workspace,
    is_running,
    make_case,
    marked_case,
    slugs,
    wait_until,
    workspace,
)

from gpuemu_flow.errors import RunnerError
from gpuemu_flow.runners.api import MOST_TIMEOUTS
from gpuemu_flow.runners.pool import Pool

pytestmark = pytest.mark.ci

HANGS = {
    "pause": "signal.pause()",
    "stop": "os.kill(os.getpid(), signal.SIGSTOP)",
    "spin": "while True: pass",
    "ignores_signals": "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; signal.pause()",
    "lock": "lock = threading.Lock(); lock.acquire(); lock.acquire()",
    "thread": "t = threading.Thread(target=signal.pause); t.start(); t.join()",
    "child": "subprocess.run(['sleep', '1000'])",
    "pipe": "os.read(os.pipe()[0], 1)",
}

HANGING = """
import os, signal, subprocess, sys, threading

def op(x):
    if x[0, 0] == 42:
        print("going to hang", file=sys.stderr, flush=True)
        {body}
    return x
"""


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_one_timeout(ws: Workspace, name: str) -> None:
    # Who stops itself is let go on after a second, if there is still time; one that spins costs all
    # of a processor.
    limit = {"stop": 0.9, "spin": 3}.get(name, 10)
    program = ws.program("callable", HANGING.replace("{body}", HANGS[name]), timeout=limit)
    outcomes = ws.run(program, [make_case(0), marked_case(1), make_case(2)])
    assert slugs(outcomes) == ["ok", "op-timeout", "ok"]
    error = outcomes[1].error
    assert error is not None
    assert f"{limit} s" in error.message
    assert "going to hang" in error.stderr_tail


def test_what_times_out_again_and_again_is_no_longer_run(ws: Workspace) -> None:
    source = """
    import signal
    def op(x):
        with open("calls", "a") as stream:
            stream.write("x")
        signal.pause()
    """
    program = ws.program("callable", source, timeout=0.5)
    outcomes = ws.run(program, [make_case(n) for n in range(MOST_TIMEOUTS + 3)])
    assert slugs(outcomes) == ["op-timeout"] * MOST_TIMEOUTS + ["op-not-run"] * 3
    assert [o.error is not None and "not run" in o.error.message for o in outcomes] == [
        n >= MOST_TIMEOUTS for n in range(MOST_TIMEOUTS + 3)
    ]
    assert len((ws.folder / "calls").read_text()) <= MOST_TIMEOUTS


def test_a_timeout_now_and_then_ends_nothing(ws: Workspace) -> None:
    program = ws.program("callable", HANGING.replace("{body}", HANGS["pause"]), timeout=3)
    cases = [marked_case(0), marked_case(1), make_case(2), marked_case(3), marked_case(4)]
    assert slugs(ws.run(program, [*cases, make_case(5)]))[-1] == "ok"


def test_a_script_that_waits_for_its_thread_is_a_timeout(ws: Workspace) -> None:
    script = PROTOCOL + dedent("""
        import signal, threading
        inputs, kwargs = read()
        print(json.dumps(tensor(inputs["x"])))
        threading.Thread(target=threading.Event().wait).start()
    """)
    assert slugs(ws.run(ws.program("script", script, timeout=0.3))) == ["op-timeout"]


LEAVERS = {
    "fork": "subprocess.Popen(['sleep', '1000'])",
    "own_session": "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
}


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("fork", "return x"),
        ("fork", "os._exit(1)"),
        ("fork", "signal.pause()"),
        ("fork", "os.kill(os.getppid(), 9); signal.pause()"),
        ("own_session", "return x"),
        ("own_session", "os._exit(1)"),
        ("own_session", "signal.pause()"),
    ],
)
def test_what_an_op_started_does_not_outlive_it(tmp_path: Path, name: str, ending: str) -> None:
    source = f"""
    import os, signal, subprocess
    def op(x):
        child = {LEAVERS[name]}
        with open("pids", "a") as stream:
            print(child.pid, file=stream)
        {ending}
    """
    with workspace(tmp_path) as ws:
        ws.run(ws.program("callable", source, timeout=10), 2)
        pids = [int(line) for line in (ws.folder / "pids").read_text().split()]
        assert len(pids) >= 2
        assert wait_until(lambda: not any(map(is_running, pids)))


def test_a_daemonised_process_is_gone_when_the_pool_is_closed(tmp_path: Path) -> None:
    source = """
    import os, signal
    def op(x):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                with open("pid", "w") as stream:
                    stream.write(str(os.getpid()))
                signal.pause()
            os._exit(0)
        while not os.path.exists("pid") or not open("pid").read():
            pass
        return x
    """
    with workspace(tmp_path) as ws:
        assert slugs(ws.run(ws.program("callable", source))) == ["ok"]
        pid = int((ws.folder / "pid").read_text())
    assert not is_running(pid)


@pytest.mark.ci
def test_a_fork_bomb_is_cleaned_up(tmp_path: Path) -> None:
    """A bounded one: each of six generations doubles, and all go on for ever."""
    source = """
    import os, signal
    def op(x):
        for _ in range(6):
            os.fork()
        with open("pids", "a") as stream:
            stream.write(f"{os.getpid()}\\n")
        signal.pause()
    """
    with workspace(tmp_path) as ws:
        outcomes = ws.run(ws.program("callable", source, timeout=10), 2)
        assert slugs(outcomes) == ["op-timeout", "op-timeout"]
        pids = [int(line) for line in (ws.folder / "pids").read_text().split()]
        assert len(pids) > 10
        assert wait_until(lambda: not any(map(is_running, pids)))
        fine = ws.program("callable", "def op(x): return x", name="fine.py")
        assert slugs(ws.run(fine)) == ["ok"]


TWICE = {
    "call": "def op(x):\n    os.fork()\n    return x\n",
    "load": "os.fork()\ndef op(x):\n    return x\n",
    "exception": "def op(x):\n    if os.fork() == 0:\n        raise ValueError\n    return x\n",
}


@pytest.mark.parametrize("name", TWICE)
def test_an_op_that_forks_and_returns_twice_counts_once(ws: Workspace, name: str) -> None:
    outcomes = ws.run(ws.program("callable", "import os\n" + TWICE[name]), 5)
    assert slugs(outcomes) == ["ok"] * 5
    assert [o.index for o in outcomes] == list(range(5))


def test_a_script_that_forks_and_prints_twice_is_junk(ws: Workspace) -> None:
    script = PROTOCOL + dedent("""
        import os
        inputs, kwargs = read()
        text = json.dumps(tensor(inputs["x"]))
        if os.fork() == 0:
            os.write(1, text.encode())
            os._exit(0)
        os.wait()
        print(text)
    """)
    assert slugs(ws.run(ws.program("script", script), 2)) == ["op-output-junk"] * 2


def test_what_a_scripts_child_puts_into_a_queue_arrives_in_each_call(ws: Workspace) -> None:
    script = PROTOCOL + dedent("""
        import multiprocessing

        arrays, _ = read()
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=queue.put, args=(2,))
        child.start()
        print(json.dumps(tensor(arrays["x"] * queue.get())))
        child.join()
        """)
    assert slugs(ws.run(ws.program("script", script), 3)) == ["ok"] * 3


def test_cancel_kills_the_worker_and_keeps_what_is_there(ws: Workspace) -> None:
    program = ws.program("callable", HANGING.replace("{body}", "signal.pause()"), timeout=1000)
    cancel = threading.Event()
    finished = []

    def on_outcome(outcome: object) -> None:
        finished.append(outcome)
        if len(finished) == 2:
            cancel.set()

    cases = [make_case(0), make_case(1), marked_case(2), make_case(3)]
    outcomes = ws.run(program, cases, cancel=cancel, on_outcome=on_outcome)
    assert slugs(outcomes) == ["ok", "ok"]
    assert finished == outcomes


def test_cancel_during_a_hang(ws: Workspace) -> None:
    source = HANGING.replace("{body}", "open('hanging', 'w').close(); signal.pause()")
    program = ws.program("callable", source, timeout=1000)
    cancel = threading.Event()
    outcomes: list[object] = []

    def work() -> None:
        outcomes.extend(ws.run(program, [make_case(0), marked_case(1)], cancel=cancel))

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_until((ws.folder / "hanging").exists)
    cancel.set()
    thread.join(600)
    assert not thread.is_alive()
    assert len(outcomes) == 1


def test_runs_in_many_threads_at_once(ws: Workspace) -> None:
    """More threads than workers, a crash in every second run."""
    good = ws.program("callable", "def op(x): return x + 1", name="good.py")
    bad = ws.program("callable", "import os\ndef op(x): os.abort()", name="bad.py")
    results: dict[int, list[str]] = {}

    def work(number: int) -> None:
        results[number] = slugs(ws.run(bad if number % 2 else good, 3))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert results == {i: ["op-crashed" if i % 2 else "ok"] * 3 for i in range(8)}


def server_pid(pool: Pool) -> int:
    (server,) = pool._servers.values()
    return server.pid


def test_a_killed_fork_server_is_replaced(tmp_path: Path) -> None:
    with workspace(tmp_path) as ws:
        program = ws.program("callable", "def op(x): return x")
        assert slugs(ws.run(program)) == ["ok"]
        first = server_pid(ws.pool)
        os.kill(first, signal.SIGKILL)
        assert slugs(ws.run(program, 2)) == ["ok", "ok"]
        assert server_pid(ws.pool) != first


def test_an_innocent_run_survives_anothers_attack_on_the_fork_server(tmp_path: Path) -> None:
    source = """
    import os, signal
    def op(x):
        if x[0, 0] == 42:
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()
        return x
    """
    with workspace(tmp_path, workers=2) as ws:
        attacker = ws.program("callable", source, name="attacker.py")
        innocent = ws.program("callable", "def op(x): return x", name="innocent.py")
        attacks: list[str] = []
        thread = threading.Thread(
            target=lambda: attacks.extend(slugs(ws.run(attacker, [marked_case(i) for i in (0, 1)])))
        )
        thread.start()
        peaceful = slugs(ws.run(innocent, 200))
        thread.join(600)
        assert attacks == ["op-broke-runner"] * 2
        assert peaceful == ["ok"] * 200


def test_the_fork_server_has_one_thread_and_no_workspace_module(tmp_path: Path) -> None:
    source = """
    import os
    import numpy as np
    def op(x):
        tasks = len(os.listdir(f"/proc/{os.getppid()}/task"))
        return np.int64(tasks)
    """
    with workspace(tmp_path) as ws:
        (outcome,) = ws.run(ws.program("callable", source))
        assert int(ws.outputs(outcome)["result"]) == 1
        maps = Path(f"/proc/{server_pid(ws.pool)}/environ").read_bytes()
        assert b"OMP_NUM_THREADS=1\0" in maps
        assert b"OPENBLAS_NUM_THREADS=1\0" in maps


def test_a_closed_pool_refuses(tmp_path: Path) -> None:
    with workspace(tmp_path) as ws:
        program = ws.program("callable", "def op(x): return x")
    with pytest.raises(RunnerError) as caught:
        ws.run(program)
    assert caught.value.slug == "pool-closed"


COORDINATOR = """
import os, sys, threading
sys.path.insert(0, {tests!r})
from pathlib import Path
import runner_workspace
from runner_workspace import Workspace, make_case
from gpuemu_flow.runners.pool import Pool

folder = Path({folder!r})
pool = Pool(1, staging=folder)
ws = Workspace(folder, pool)
program = ws.program("callable", '''
import os, signal, subprocess
def op(x):
    child = subprocess.Popen(["sleep", "1000"])
    with open("pids.part", "w") as stream:
        stream.write(f"{{os.getpid()}} {{os.getppid()}} {{child.pid}}")
    os.rename("pids.part", "pids")
    signal.pause()
''', timeout=1000)
ws.run(program)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_a_killed_coordinator(tmp_path: Path, number: int) -> None:
    tests = Path(runner_workspace.__file__).parent
    code = COORDINATOR.format(tests=str(tests), folder=str(tmp_path))
    coordinator = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    written = tmp_path / "pids"
    try:
        assert wait_until(lambda: written.exists() or coordinator.poll() is not None)
        assert coordinator.poll() is None
        pids = [int(text) for text in (tmp_path / "pids").read_text().split()]
        assert all(map(is_running, pids))
    finally:
        coordinator.send_signal(number)
        coordinator.wait(600)
    assert wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.parametrize("isolation", ["spawn", "warm", "fork"])
def test_each_isolation_survives_trouble(ws: Workspace, isolation: str) -> None:
    source = """
    import os
    def op(x):
        if x[0, 0] == 42:
            os.abort()
        return x
    """
    program = ws.program("callable", source, isolation=isolation)
    cases = [make_case(0), marked_case(1), make_case(2), make_case(3)]
    assert slugs(ws.run(program, cases)) == ["ok", "op-crashed", "ok", "ok"]


def test_how_many_processes_each_isolation_takes(ws: Workspace) -> None:
    source = """
    import os
    import numpy as np
    def op(x):
        return np.array([os.getpid(), os.getppid()])
    """
    seen = {}
    for isolation in ("fork", "warm", "spawn"):
        outcomes = ws.run(ws.program("callable", source, isolation=isolation), 3)
        seen[isolation] = {tuple(ws.outputs(o)["result"]) for o in outcomes}
    assert {name: len(pids) for name, pids in seen.items()} == {"fork": 1, "warm": 1, "spawn": 3}


def test_a_worker_does_not_see_the_coordinators_descriptors(ws: Workspace) -> None:
    source = """
    import os
    import numpy as np
    def op(x):
        return np.array([int(name) for name in os.listdir("/dev/fd")])
    """
    with Path(os.devnull).open() as stream:
        (outcome,) = ws.run(ws.program("callable", source))
        low = [fd for fd in ws.outputs(outcome)["result"] if 2 < fd < 200]
        assert stream.fileno() >= 0
    assert len(low) <= 1  # the listing's own
