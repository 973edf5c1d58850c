"""Run the commands of lenses in the background, one at a time per workspace, with progress."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path
from typing import Any

from lsprotocol import types

from gpuemu_flow.lsp import jobs
from gpuemu_flow.lsp.jobs import CommandProgress, CommandResult, run_command
from gpuemu_flow.lsp.server import ConfigServer, Document

MAX_WAITING = 20
MAX_LOGGED = 200_000
CREATE_PATIENCE_S = 10.0
READ_PATIENCE_S = 30.0


class RunningCommands:
    """The commands that a server's lenses have started."""

    def __init__(self, server: ConfigServer) -> None:
        self._server = server
        self._locks: dict[Path, asyncio.Lock] = {}
        self._waiting: set[tuple[str, str, str]] = set()
        self._works: set[asyncio.Future[CommandResult]] = set()
        self._idle = asyncio.Event()
        self._ending = False

    async def end(self) -> None:
        """Stop all running and waiting commands, and wait until they have ended."""
        self._ending = True
        for work in tuple(self._works):
            work.cancel()
        if self._waiting:
            await self._idle.wait()

    async def run(self, command: str, uri: Any, op: Any) -> dict[str, Any]:
        """Run a lens's command to its end and show its outcome to the user."""
        document = self._server.documents.get(uri) if isinstance(uri, str) else None
        outlined = await self._server.outlined(document) if document is not None else None
        known = {table.name for table in outlined.ops} if outlined is not None else set()
        if document is None or document.path is None or op not in known or not op:
            return self._say(f"{op!r} is no op of an open gpuemu.toml that is saved as a file")
        key = (command, uri, op)
        if key in self._waiting:
            return self._say(f"{op}: {jobs.LENSES[command]} is under way already")
        if len(self._waiting) >= MAX_WAITING:
            return self._say("too many commands wait already")
        self._waiting.add(key)
        self._idle.clear()
        try:
            lock = self._locks.setdefault(document.path.parent, asyncio.Lock())
            async with lock:
                return await self._run(command, document, document.path, op)
        finally:
            self._waiting.discard(key)
            if not self._waiting:
                self._idle.set()

    async def _run(self, command: str, document: Document, path: Path, op: str) -> dict[str, Any]:
        reading = self._server.refresh(document)
        if reading is not None:
            await asyncio.wait({reading}, timeout=READ_PATIENCE_S)
        arguments = jobs.arguments(command, op, self._server.results(document))
        if arguments is None:
            return self._say(f"{op}: no failure is recorded", types.MessageType.Info)
        if self._ending:
            return self._say(f"{op}: stopped", types.MessageType.Info)
        async with _Shown(self._server, f"{jobs.LENSES[command]} {op}") as shown:
            work = asyncio.ensure_future(
                run_command(
                    arguments,
                    root=path.parent,
                    environ=self._server.environ(path),
                    on_progress=shown.report,
                )
            )
            protocol = self._server.protocol
            # pygls cancels only its answer to a command.
            for asked in (shown.cancellation, protocol._request_futures.get(protocol.msg_id or 0)):
                if asked is not None:
                    asked.add_done_callback(lambda done: shown.stop(work, done))
            self._works.add(work)
            try:
                finished = await work
            except asyncio.CancelledError:
                if not shown.stopped and not self._ending:  # the loop itself is ending
                    raise
                self._server.refresh(document)
                return self._say(f"{op}: stopped", types.MessageType.Info)
            except OSError as error:
                return self._say(f"{op}: cannot be started in {path.parent}: {error.strerror}")
            finally:
                self._works.discard(work)
        text = self._server.documents.get(document.uri, document).text
        unsaved = await self._server.in_thread(lambda: _unsaved(path, text))
        return self._tell(command, document, op, finished, unsaved=unsaved)

    def _tell(
        self, command: str, document: Document, op: str, finished: CommandResult, *, unsaved: bool
    ) -> dict[str, Any]:
        log = "\n".join(part for part in (finished.err, finished.out) if part)[:MAX_LOGGED]
        self._server.window_log_message(types.LogMessageParams(types.MessageType.Log, log))
        self._server.refresh(document)
        good, text = jobs.outcome(command, op, finished)
        if unsaved:
            text += " (of the file as it is saved; the open text differs)"
        kind = types.MessageType.Info if good else types.MessageType.Warning
        return self._say(text, kind)

    def _say(
        self, text: str, kind: types.MessageType = types.MessageType.Warning
    ) -> dict[str, Any]:
        """Show a message to the user, and return it as the command's result."""
        self._server.window_show_message(types.ShowMessageParams(kind, text))
        return {"ok": kind is types.MessageType.Info, "message": text}


def _unsaved(path: Path, text: str) -> bool:
    """Tell whether a file is missing or differs from `text`, the text in the editor."""
    try:
        # Opening a pipe could wait for ever.
        return not path.is_file() or path.read_bytes() != text.encode("utf-8", "surrogatepass")
    except OSError:
        return True


class _Shown:
    """The display of a command in the editor, with its progress and a button to stop it."""

    def __init__(self, server: ConfigServer, title: str) -> None:
        self._server = server
        self._title = title
        self._token: str | None = None
        self._percent = 0
        self.stopped = False

    async def __aenter__(self) -> _Shown:
        window = self._server.client_capabilities.window
        if window is None or not window.work_done_progress:
            return self
        token = str(uuid.uuid4())
        with contextlib.suppress(Exception):  # without the client's support, nothing is shown
            await asyncio.wait_for(
                self._server.work_done_progress.create_async(token), CREATE_PATIENCE_S
            )
            self._token = token
            self._server.work_done_progress.begin(
                token, types.WorkDoneProgressBegin(self._title, cancellable=True, percentage=0)
            )
        return self

    @property
    def cancellation(self) -> Any:
        """Return a future that is cancelled when the user wants the command to stop."""
        return self._server.work_done_progress.tokens.get(self._token or "")

    def stop(self, work: asyncio.Future[CommandResult], asked: Any) -> None:
        """Stop `work` if the user has cancelled the future `asked`; see `cancellation`."""
        if asked.cancelled():
            self.stopped = True
            work.cancel()

    def report(self, progress: CommandProgress) -> None:
        """Report the progress of the command."""
        if self._token is not None:
            # Tasks run in parallel and report separately, but the bar must not go back.
            self._percent = max(self._percent, progress.percent)
            report = types.WorkDoneProgressReport(message=progress.text, percentage=self._percent)
            with contextlib.suppress(OSError, ValueError):
                self._server.work_done_progress.report(self._token, report)

    async def __aexit__(self, *_: object) -> None:
        if self._token is not None:
            self._server.work_done_progress.tokens.pop(self._token, None)
            with contextlib.suppress(OSError, ValueError):  # the editor may be gone
                self._server.work_done_progress.end(self._token, types.WorkDoneProgressEnd())
