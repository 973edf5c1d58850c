"""A small editor: the real server as a process, messages over its pipes, nothing shared with it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from mini_workspace import Mini

Message = dict[str, Any]
PATIENCE_S = 600.0

CAPABILITIES = {
    "workspace": {
        "codeLens": {"refreshSupport": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
    },
    "window": {"workDoneProgress": True},
    "textDocument": {"hover": {"contentFormat": ["markdown", "plaintext"]}},
}


class Editor:
    """Starts the server in a workspace and talks to it; every wait has a limit."""

    def __init__(self, mini: Mini, capabilities: Message | None = None) -> None:
        self.mini = mini
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpuemu_flow", "lsp", "--stdio"],
            cwd=mini.root,
            env=mini.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._next = 0
        self.forgiving = False
        self._answers: dict[int, Message] = {}
        self.told: list[Message] = []
        self.ended = False
        self.errors = b""
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._listen_to_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.capabilities = self.ask(
            "initialize",
            {
                "processId": None,
                "rootUri": mini.root.as_uri(),
                "capabilities": CAPABILITIES if capabilities is None else capabilities,
            },
        )["capabilities"]
        self.tell("initialized", {})

    def __enter__(self) -> Editor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            if kind is None:
                self.leave()
        finally:
            self.process.kill()
            self.process.wait(PATIENCE_S)
            for thread in self._threads:
                thread.join(PATIENCE_S)
            for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
                if pipe is not None:
                    pipe.close()

    def leave(self) -> None:
        """Say goodbye as the protocol wants it; the server must end by itself."""
        self.ask("shutdown", None)
        self.tell("exit", None)
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(PATIENCE_S) == 0, self.errors.decode()
        assert self.forgiving or b"Traceback" not in self.errors, self.errors.decode()

    def send_raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def _send(self, message: Message) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        with self._sending:
            self.send_raw(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))

    def tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def begin(self, method: str, params: Any) -> int:
        """Send a request; `answer` waits for what comes of it."""
        self._next += 1
        self._send({"id": self._next, "method": method, "params": params})
        return self._next

    def answer(self, number: int) -> Message:
        self._wait(lambda: number in self._answers or self.ended, f"the answer to {number}")
        assert number in self._answers, self.errors.decode()
        return self._answers.pop(number)

    def ask(self, method: str, params: Any) -> Any:
        answer = self.answer(self.begin(method, params))
        assert "error" not in answer, answer
        return answer["result"]

    def wait_told(self, method: str, wanted: Callable[[Any], bool], since: int = 0) -> Any:
        """The parameters of the first message since `since` that is as wanted."""
        found: list[Any] = []

        def seen() -> bool:
            found[:] = [
                m["params"]
                for m in self.told[since:]
                if m["method"] == method and wanted(m["params"])
            ]
            return bool(found) or self.ended

        self._wait(seen, method)
        assert found, self.errors.decode()
        return found[0]

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(ready, PATIENCE_S), (
                f"no {what} in {PATIENCE_S} s; told: {self.told[-5:]}"
            )

    def _listen(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while True:
            length = 0
            while (line := stream.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            data = stream.read(length) if length else b""
            if not data:
                break
            message = json.loads(data)
            if "method" in message and "id" in message:  # the server asks: yes to everything
                with contextlib.suppress(OSError, ValueError):  # this side may have hung up
                    self._send({"id": message["id"], "result": None})
            with self._changed:
                if "method" in message:
                    self.told.append(message)
                else:
                    self._answers[message["id"]] = message
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _listen_to_errors(self) -> None:
        assert self.process.stderr is not None
        while chunk := self.process.stderr.read1(1 << 16):
            self.errors += chunk

    # What an editor does with texts.

    def uri(self, name: str = "gpuemu.toml") -> str:
        return (self.mini.root / name).as_uri()

    def open(
        self, text: str | None = None, uri: str | None = None, language: str = "toml"
    ) -> list[Message]:
        """Open a text, the saved one by default; the diagnostics of it."""
        path: Path = self.mini.root / "gpuemu.toml"
        document = {
            "uri": uri or self.uri(),
            "languageId": language,
            "version": 1,
            "text": path.read_text() if text is None else text,
        }
        since = len(self.told)
        self.tell("textDocument/didOpen", {"textDocument": document})
        return self.diagnostics(document["uri"], 1, since)

    def change(self, text: str, version: int, uri: str | None = None) -> list[Message]:
        """Have the text be another one; the diagnostics of it."""
        uri, since = uri or self.uri(), len(self.told)
        self.tell(
            "textDocument/didChange",
            {"textDocument": {"uri": uri, "version": version}, "contentChanges": [{"text": text}]},
        )
        return self.diagnostics(uri, version, since)

    def diagnostics(self, uri: str, version: int, since: int = 0) -> list[Message]:
        found = self.wait_told(
            "textDocument/publishDiagnostics",
            lambda p: p["uri"] == uri and p.get("version") == version,
            since,
        )
        return list(found["diagnostics"])

    def about(self, uri: str | None = None, **more: Any) -> Message:
        """Parameters of a request about a text."""
        return {"textDocument": {"uri": uri or self.uri()}, **more}

    def at(self, line: int, character: int, uri: str | None = None) -> Message:
        return self.about(uri, position={"line": line, "character": character})

    def execute(self, command: str, *arguments: Any) -> Any:
        return self.ask("workspace/executeCommand", {"command": command, "arguments": arguments})
