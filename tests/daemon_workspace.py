"""A workspace with a daemon of its own, in a folder whose path leaves room for a socket's name."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pynng
import pytest
from numpy.typing import NDArray
from runner_workspace import wait_until

from gpuemu_flow.client import Client
from gpuemu_flow.model.types import Json
from gpuemu_flow.services.daemon.control import running, stop_daemon
from gpuemu_flow.wire import start_daemon

CONFIG = """\
[project]
name = "served"

[validation]
dtypes = ["float32"]
cases = 2
seed = 42

[daemon]
max_connections = 200

[sandbox]
writable = ["scripts/marks"]

[execution]
max_parallel_refs = 4
reference_timeout = 100

[[ops]]
name = "softmax"
reference = "scripts/softmax.py:reference"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "double"
op = "scripts/twice.py:double"
reference = "scripts/double.py:reference"
input_names = ["x"]

[[ops]]
name = "wrong"
op = "scripts/twice.py:wrong"
reference = "scripts/double.py:reference"
input_names = ["x"]

[[ops]]
name = "scaled"
reference = "scripts/scaled.py"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "matmul"
reference = "scripts/matmul.py:reference"
input_names = ["a", "b"]
execution_mode = "client_side"
schema = { dims = { M = [2, 5], K = [3], N = [4] }, inputs = { a = ["M", "K"], b = ["K", "N"] }, output = ["M", "N"] }

[[ops]]
name = "gated"
reference = "scripts/gated.py:reference"
input_names = ["x"]
execution_mode = "client_side"
timeout = 100

[[ops]]
name = "gated_op"
op = "scripts/gated.py:reference"
reference = "scripts/double.py:reference"
input_names = ["x"]
timeout = 100

[[ops]]
name = "hostile"
reference = "scripts/hostile.py:reference"
input_names = ["x"]
execution_mode = "client_side"
timeout = 2
"""  # noqa: E501

SCRIPTS = {
    "scripts/softmax.py": """
        import numpy as np

        def reference(x):
            if not x.ndim or not x.size:
                return np.ones_like(x)
            wide = x.astype(np.float64)
            powers = np.exp(wide - wide.max(-1, keepdims=True))
            return (powers / powers.sum(-1, keepdims=True)).astype(x.dtype)
        """,
    "scripts/double.py": """
        def reference(x):
            return (x * 2).astype(x.dtype)
        """,
    "scripts/twice.py": """
        def double(x):
            return (x + x).astype(x.dtype)

        def wrong(x):
            y = x * 2
            if y.ndim and y.shape[-1] > 3:
                y[..., 3:] += 1
            return y
        """,
    "scripts/scaled.py": """
        import base64, json, sys
        import numpy as np

        request = json.load(sys.stdin)
        x = request["inputs"]["x"]
        array = np.frombuffer(base64.b64decode(x["data"]), x["dtype"]).reshape(x["shape"])
        factor = request["kwargs"].get("factor", "2")
        assert isinstance(factor, str)
        out = np.ascontiguousarray(array * np.asarray(float(factor), array.dtype))
        data = base64.b64encode(out.tobytes()).decode()
        print(json.dumps({"shape": list(out.shape), "dtype": str(out.dtype), "data": data}))
        """,
    "scripts/matmul.py": """
        def reference(a, b):
            return a @ b
        """,
    "scripts/gated.py": """
        import os, time

        HERE = os.path.dirname(__file__)

        def reference(x):
            name = f"entered-{os.getpid()}-{time.monotonic_ns()}"
            open(os.path.join(HERE, "marks", name), "w").close()
            while not os.path.exists(os.path.join(HERE, "gate")):
                time.sleep(0.005)
            return x * 2
        """,
    "scripts/hostile.py": """
        import ctypes, time

        def reference(x):
            what = float(x.reshape(-1)[0])
            if what == 13:
                while True:
                    time.sleep(1)
            if what == 14:
                ctypes.string_at(0)
            if what == 15:
                raise ValueError("the reference refuses")
            return x * 2
        """,
}


class Served:
    """A workspace folder, a home folder, and the daemon between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "ws"
        self.home = folder / "home"
        self.home.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "XDG", "RUST"))}
        self.environ = {**kept, "HOME": str(self.home)}
        self.write("gpuemu.toml", CONFIG)
        for name, text in SCRIPTS.items():
            self.write(name, text)
        (self.root / "scripts" / "marks").mkdir()
        self.info: dict[str, Json] = {}

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text).lstrip("\n"))
        return path

    def start(self, **options: Any) -> None:
        self.info = start_daemon(self.root, self.environ, **options)
        assert self.info, "another daemon serves this workspace"

    def stop(self) -> None:
        stop_daemon(self.root, self.environ)

    def kill(self) -> None:
        pid = int(self.info["pid"])
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: running(self.root, self.environ) is None)

    @property
    def socket(self) -> str:
        return str(self.info["socket"])

    @property
    def log(self) -> str:
        return Path(str(self.info["log"])).read_text()

    def client(self, **options: Any) -> Client:
        return Client(self.socket, **options)

    @contextlib.contextmanager
    def raw(self, timeout_ms: int = 20_000) -> Iterator[pynng.Req0]:
        """A socket of the transport alone, as a client of another make would have it."""
        with pynng.Req0(resend_time=-1, recv_timeout=timeout_ms, send_timeout=timeout_ms) as sock:
            sock.dial(f"ipc://{self.socket}", block=True)
            yield sock

    def ask(self, message: Json, timeout_ms: int = 20_000) -> dict[str, Json]:
        """One request on a connection of its own; bytes are sent as they are."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        with self.raw(timeout_ms) as sock:
            sock.send(data)
            return dict(json.loads(sock.recv()))

    def entered(self) -> int:
        """Count the calls of the gated reference."""
        return len(list((self.root / "scripts" / "marks").glob("entered-*")))

    def close_gate(self) -> None:
        (self.root / "scripts" / "gate").unlink(missing_ok=True)
        for path in (self.root / "scripts" / "marks").glob("entered-*"):
            path.unlink()

    def open_gate(self) -> None:
        (self.root / "scripts" / "gate").touch()


@contextlib.contextmanager
def served() -> Iterator[Served]:
    """A workspace without a daemon yet; whatever daemon it has at the end is ended."""
    folder = Path(tempfile.mkdtemp(prefix="gf-"))
    workspace = Served(folder)
    try:
        yield workspace
    finally:
        with contextlib.suppress(OSError):
            workspace.open_gate()
        workspace.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def unserved() -> Iterator[Served]:
    """A workspace of the test's own, whose daemon it starts itself."""
    with served() as made:
        yield made


@pytest.fixture(scope="module")
def daemon() -> Iterator[Served]:
    """One running daemon for a module's tests."""
    with served() as made:
        made.start()
        yield made


@pytest.fixture
def at_home(unserved: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """This process lives in the workspace, as a user's does."""
    monkeypatch.setenv("HOME", str(unserved.home))
    for name in ("GPUEMU_SOCKET", "GPUEMU_CONFIG", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(unserved.root / "scripts")
    return unserved


def softmax(x: NDArray[Any]) -> NDArray[Any]:
    """Compute softmax as the op's reference does."""
    if not x.ndim or not x.size:
        return np.ones_like(x)
    wide = x.astype(np.float64)
    powers = np.exp(wide - wide.max(-1, keepdims=True))
    return np.asarray((powers / powers.sum(-1, keepdims=True)).astype(x.dtype))


def normal(*shape: int, dtype: str = "float32", seed: int = 7) -> NDArray[Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
