"""Clients in forked processes: each child has a connection of its own, none is aborted."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent

import pytest
from daemon_workspace import Served
from whole import sample

pytestmark = pytest.mark.ci

PRELUDE = """\
import asyncio, gc, os, sys, threading
import numpy as np
from gpuemu_flow.client import AsyncClient, Client, ClientError

x = np.arange(6, dtype=np.float32)
large = np.ones(1 << 20, np.float32)

def in_child(work, leave=os._exit):
    pid = os.fork()
    if not pid:
        code = 3
        try:
            code = 0 if work() else 4
        finally:
            leave(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def right(client):
    return (client.validate_op("double", {"x": x}, x * 2).passed
            and client.validate_op("double", {"x": large}, large * 2).passed
            and not client.validate_op("double", {"x": x}, x * 3).passed)
"""

SCRIPTS = {
    "a client that was connected": """
        client = Client(SOCKET)
        assert right(client)
        assert [in_child(lambda: right(client)) for _ in range(3)] == [0, 0, 0]
        assert right(client)
        """,
    "a client of the child's own": """
        Client(SOCKET).ping()
        assert in_child(lambda: right(Client(SOCKET))) == 0
        """,
    "what the parent dropped, collected in the child": """
        gc.disable()  # so that it is there at the fork, as chance would have it
        Client(SOCKET).ping()
        with Client(SOCKET) as closed: closed.ping()
        del closed
        def work():
            gc.collect()
            return right(Client(SOCKET))
        assert in_child(work) == 0
        assert in_child(work, sys.exit) == 0
        """,
    "a child that ends by an exception": """
        client = Client(SOCKET)
        client.ping()
        def work():
            assert right(client)
            gc.collect()
            raise ValueError("the end of this child")
        pid = os.fork()
        if not pid:
            work()
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
        assert right(client)
        """,
    "a child that leaves the parent's context": """
        with Client(SOCKET) as client:
            client.ping()
            pid = os.fork()
            assert right(client)
        gc.collect()
        if not pid:
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        """,
    "a library that another client loaded": """
        import pynng
        with pynng.Req0(recv_timeout=60_000) as other:
            other.dial(f"ipc://{SOCKET}", block=True)
            other.send(b'{"type": "Ping"}')
            assert b"Pong" in other.recv()
            assert in_child(lambda: right(Client(SOCKET))) == 0
        """,
    "a fork in a handler of a signal": """
        import signal
        client = Client(SOCKET)
        client.ping()
        forked = []
        def handler(*_):
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # once is enough
            if not forked:
                forked.append(None)
                forked[0] = os.fork()
        signal.signal(signal.SIGUSR1, handler)
        ended = threading.Event()
        def disturb():
            while not ended.is_set():
                os.kill(os.getpid(), signal.SIGUSR1)
        thread = threading.Thread(target=disturb)
        thread.start()
        while not forked:
            try:
                client.validate_op("double", {"x": large}, large * 2)
            except ClientError:
                assert forked == [0]  # its parent has the answer
        if forked == [0]:
            os._exit(0 if right(client) else 5)
        ended.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0
        assert right(client)
        """,
    "a fork while another thread loads a module": """
        import importlib.machinery
        reached, go_on = threading.Event(), threading.Event()
        class Slow(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                spec = super().find_spec(name, path, target)
                if threading.current_thread() is thread and spec is not None:
                    load = spec.loader.exec_module
                    def slowly(module):
                        reached.set()
                        go_on.wait()
                        load(module)
                    spec.loader.exec_module = slowly
                return spec
        client = Client(SOCKET)
        thread = threading.Thread(target=lambda: __import__("pynng"))
        sys.meta_path.insert(0, Slow)
        thread.start()
        reached.wait()
        assert in_child(lambda: right(client)) == 0
        assert in_child(lambda: right(Client(SOCKET))) == 0
        go_on.set()
        thread.join()
        """,
    "a pool of processes": """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        client = Client(SOCKET)
        client.ping()
        def work(number):
            return right(client) and right(Client(SOCKET))
        fork = multiprocessing.get_context("fork")
        with fork.Pool(2) as pool:
            assert pool.map(work, range(6)) == [True] * 6
        with ProcessPoolExecutor(2, mp_context=fork) as pool:
            assert list(pool.map(work, range(6))) == [True] * 6
        assert right(client)
        """,
    "a client that was not connected": """
        client = Client(SOCKET)
        assert in_child(lambda: right(client)) == 0
        assert right(client)
        """,
    "a child that ends as programs do": """
        client = Client(SOCKET)
        client.ping()
        def work():
            global client
            good = right(client)
            client.close()
            del client
            gc.collect()
            return good
        assert in_child(work, sys.exit) == 0
        assert right(client)
        """,
    "a child that never calls": """
        client = Client(SOCKET)
        client.ping()
        assert in_child(lambda: True, sys.exit) == 0
        assert right(client)
        """,
    "a grandchild, and threads in a child": """
        client = Client(SOCKET)
        client.ping()
        def work():
            good = []
            threads = [threading.Thread(target=lambda: good.append(right(client)))
                       for _ in range(4)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            return good == [True] * 4 and in_child(lambda: right(client)) == 0 and right(client)
        assert in_child(work) == 0
        """,
    "a fork while another thread is in a call": """
        client = Client(SOCKET)
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                client.validate_op("double", {"x": x}, x * 2)
        thread = threading.Thread(target=busy)
        thread.start()
        try:
            assert [in_child(lambda: right(client)) for _ in range(5)] == [0] * 5
        finally:
            stop.set()
            thread.join()
        """,
    "asyncio": """
        client = AsyncClient(SOCKET)
        assert asyncio.run(client.ping())
        assert in_child(lambda: asyncio.run(client.ping())["protocol_version"] == 1) == 0
        """,
    "a daemon that is not there": """
        Client(SOCKET).ping()
        def work():
            try:
                Client(SOCKET + "-none").ping()
            except ClientError as error:
                return error.problems[0].slug == "client-no-daemon"
        assert in_child(work) == 0
        """,
}


def test_a_daemon_that_was_started_anew(unserved: Served) -> None:
    """Its connections are gone; the child's next call connects again, as the parent's does."""
    unserved.start()
    script = f"""
        client = Client({unserved.socket!r})
        client.ping()
        def work():
            assert right(client)
            print("ready", flush=True)
            sys.stdin.readline()
            return right(client)
        assert in_child(work) == 0
        """
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + dedent(script)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    unserved.stop()
    unserved.start()
    _, errors = process.communicate("go on\n", timeout=600)
    assert process.returncode == 0, errors


@pytest.mark.parametrize("case", sample([*SCRIPTS], 2))
def test_forked(case: str, daemon: Served) -> None:
    script = PRELUDE + f"SOCKET = {daemon.socket!r}\n" + dedent(SCRIPTS[case])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "panic" not in done.stderr


def test_workers_of_a_data_loader(daemon: Served) -> None:
    pytest.importorskip("torch")
    script = f"""
        import torch
        client = Client({daemon.socket!r})

        class Cases(torch.utils.data.Dataset):
            def __len__(self):
                return 8

            def __getitem__(self, index):
                return client.validate_op("double", {{"x": x + index}}, (x + index) * 2).passed

        assert right(client)
        loader = torch.utils.data.DataLoader(Cases(), num_workers=2, multiprocessing_context="fork")
        assert all(bool(batch) for batch in loader)
        assert right(client)
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PRELUDE + dedent(script)],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
