"""A cache server in Bazel's layout as a process of its own, which can be made to misbehave.

``python cache_server.py FOLDER [FAULT]`` prints its port. Objects lie at ``FOLDER/ac`` and
``FOLDER/cas``; each request is a line of ``FOLDER/log``.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

FAULTS = (
    "stalls", "drips", "lies", "swaps", "truncates", "500", "500-puts", "429", "429-twice", "loses",
    "403", "403-puts", "redirects", "garbage", "endless", "closes", "encodes", "bomb",
)  # fmt: skip


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    folder = Path()
    fault = ""
    seen: ClassVar[dict[str, int]] = {}
    lock = threading.Lock()

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except OSError:
            self.close_connection = True

    def _note(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        with self.lock, (self.folder / "log").open("a") as log:
            log.write(json.dumps([self.command, self.path, headers]) + "\n")
            self.seen[self.path] = self.seen.get(self.path, 0) + 1

    def _path(self) -> Path:
        return self.folder / self.path.lstrip("/")

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _misbehave(self) -> bool:
        """Give the wrong answer of the fault; False where it has none here."""
        fault, writing = self.fault, self.command == "PUT"
        if fault == "stalls":
            threading.Event().wait()
        elif fault == "drips":
            while True:
                self.wfile.write(b"H")
                self.wfile.flush()
                threading.Event().wait(0.2)
        elif fault in ("500", "429", "403"):
            self._answer(int(fault), b"no", Retry_After="0")
        elif fault in ("500-puts", "403-puts") and writing:
            self._answer(int(fault[:3]), b"no")
        elif fault == "429-twice" and self.seen[self.path] % 3:
            self._answer(429, b"later", Retry_After="0")
        elif fault == "loses" and not writing and int(self.path[-1], 16) % 2:
            self._answer(404)
        elif fault == "redirects":
            self._answer(302, Location="http://127.0.0.1:9/")
        elif fault == "garbage":
            self.wfile.write(b"\0\1\2 no HTTP at all\r\n\r\n")
            self.close_connection = True
        elif fault == "closes":
            self.close_connection = True
        else:
            return False
        return True

    def do_GET(self) -> None:
        self._note()
        if self._misbehave():
            return
        path = self._path()
        if not path.is_file():
            self._answer(404, b"not here")
            return
        body = path.read_bytes()
        if self.fault == "lies":
            body = bytes(len(body))
        elif self.fault == "swaps":
            others = sorted(path.parent.iterdir())
            body = others[(others.index(path) + 1) % len(others)].read_bytes()
        if self.fault == "truncates":
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif self.fault == "endless":
            self.send_response(200)
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(bytes(1 << 20))
        elif self.fault == "bomb":
            self._answer(200, b"", Content_Range="bytes 0-1/2")
        elif self.fault == "encodes":
            self._answer(200, body, Content_Encoding="gzip")
        else:
            self._answer(200, body)

    def do_HEAD(self) -> None:
        self._note()
        if not self._misbehave():
            self._answer(200 if self._path().is_file() else 404)

    def do_PUT(self) -> None:
        self._note()
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self._misbehave():
            return
        path = self._path()
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_name(f".{path.name}-{threading.get_ident()}")
        staged.write_bytes(data)
        staged.replace(path)
        self._answer(200)


@contextmanager
def served(folder: Path, fault: str = "") -> Iterator[str]:
    """Serve a folder from a process of its own; yield the URL."""
    folder.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder), fault], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def requests(folder: Path) -> list[tuple[str, str, dict[str, str]]]:
    """Return method, path and headers of each request so far."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(json.loads(line)) for line in lines]


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    Handler.fault = sys.argv[2]
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
