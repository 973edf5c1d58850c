"""The language server, which checks open texts and answers an editor's requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from lsprotocol import types
from msgspec import Struct, field
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import PositionCodec

from gpuemu_flow import __version__
from gpuemu_flow.report.last_results import NOTHING, LastResults, last_results
from gpuemu_flow.services.lsp import jobs
from gpuemu_flow.services.lsp.document import (
    Diagnosis,
    Outline,
    Span,
    completions_at,
    hover_text,
    outline,
    result_findings,
    source_findings,
    text_findings,
)


class Latest:
    """Runs one action at a time per key; requests during a run cause one more run afterwards."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._again: set[Hashable] = set()

    def ask(self, key: Hashable, action: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        if key in self._running:
            self._again.add(key)
        else:
            self._running[key] = asyncio.ensure_future(self._run(key, action))
        return self._running[key]

    def running(self, key: Hashable) -> asyncio.Task[None] | None:
        """Return the running job of `key`; None if there is none. The job does not end before all
        runs that were requested so far have ended."""
        return self._running.get(key)

    async def _run(self, key: Hashable, action: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                self._again.discard(key)
                try:
                    await action()
                except Exception as error:  # an error must not end the server
                    self._on_error(error)
                if key not in self._again:
                    return
        finally:
            del self._running[key]


T = TypeVar("T")
SOURCE = "gpuemu-flow"
WATCHED = (
    "**/.gpuemu-cache/graph.json", "**/*.py", "**/*.cu", "**/*.cuh", "**/gpuemu.toml",
)  # fmt: skip
"""Files whose change may make results new or outdated."""


class ConfigServer(LanguageServer):
    """A server for open texts of gpuemu.toml. Slow work runs in threads or in separate processes;
    the event loop only passes messages."""

    def __init__(self) -> None:
        # Request whole texts: for partial edits, both sides would have to agree on line ends.
        full = types.TextDocumentSyncKind.Full
        super().__init__(SOURCE, __version__, text_document_sync_kind=full)
        self.documents: dict[str, Document] = {}
        self.last: dict[Path, LastResults] = {}
        self._languages: dict[str, str] = {}
        self._sources: dict[Path, set[str]] = {}
        self._checks = Latest(self.tell_error)
        self._reads = Latest(self.tell_error)
        self._threads = ThreadPoolExecutor(3, "gpuemu-lsp")

    def environ(self, path: Path | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name != "GPUEMU_CONFIG"}
        if path is not None and path.name != "gpuemu.toml":
            kept["GPUEMU_CONFIG"] = path.name
        return kept

    def tell_error(self, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, message))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def opened(self, item: types.TextDocumentItem) -> None:
        self._languages[item.uri] = item.language_id
        self.changed(item.uri, item.text, item.version)
        document = self.documents.get(item.uri)
        if document is not None:
            self.refresh(document)

    def changed(self, uri: str, text: str, version: int | None) -> None:
        before = self.documents.get(uri)
        if uri not in self._languages or not is_config(uri, self._languages[uri], text):
            if before is not None:
                self._forget(uri)
            return
        findings = before.findings if before is not None else []
        self.documents[uri] = Document(uri, path_of(uri), text, version, findings=findings)
        self._checks.ask(uri, lambda: self._check(uri))

    def saved(self, uri: str) -> None:
        document = self.documents.get(uri)
        if document is not None:
            self._checks.ask(uri, lambda: self._check(uri))
            self.refresh(document)

    def closed(self, uri: str) -> None:
        self._languages.pop(uri, None)
        if uri in self.documents:
            self._forget(uri)

    def _forget(self, uri: str) -> None:
        root = self.documents.pop(uri).root
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))
        if root is not None and all(left.root != root for left in self.documents.values()):
            for source in self._sources.pop(root, ()):
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(source, []))

    def refresh(self, document: Document) -> asyncio.Task[None] | None:
        root = document.root
        return None if root is None else self._reads.ask(root, lambda: self._read(root))

    def refresh_all(self) -> None:
        """Read the last results of every workspace that has an open document."""
        for document in tuple(self.documents.values()):
            self.refresh(document)

    async def outlined(self, document: Document) -> Outline:
        if document.outline is None:
            document.outline = await self.in_thread(lambda: outline(document.text))
        return document.outline

    async def settled(self, uri: str) -> Document | None:
        """Wait until the newest text of a document has been checked, and return the document.
        Returns None if the document is not open."""
        task = self._checks.running(uri)
        if task is not None:
            await asyncio.shield(task)
        return self.documents.get(uri)

    async def _check(self, uri: str) -> None:
        document = self.documents.get(uri)
        if document is None:
            return
        outlined = await self.outlined(document)
        environ = self.environ()
        found = await self.in_thread(lambda: text_findings(outlined, document.path, environ))
        if self.documents.get(uri) is document:
            document.findings, document.checked = found, True
            self._publish(document, outlined)

    async def _read(self, root: Path) -> None:
        self.last[root] = await self.in_thread(lambda: last_results(root.resolve()))
        for document in tuple(self.documents.values()):
            # When a check ends, the results are published, too.
            if document.root == root and document.checked:
                self._publish(document, await self.outlined(document))
        self._publish_sources(root)
        workspace = self.client_capabilities.workspace
        lenses = workspace.code_lens if workspace is not None else None
        if lenses is not None and lenses.refresh_support:
            self.workspace_code_lens_refresh(None)

    def _publish_sources(self, root: Path) -> None:
        """Publish findings at lines of kernels' sources, and withdraw those that no longer hold."""
        found: dict[str, list[types.Diagnostic]] = {uri: [] for uri in self._sources.get(root, ())}
        for one in source_findings(self.last[root]):
            start, end = types.Position(one.line - 1, 0), types.Position(one.line, 0)
            found.setdefault((root / one.file).as_uri(), []).append(
                types.Diagnostic(
                    range=types.Range(start, end),
                    message=one.message,
                    severity=types.DiagnosticSeverity(one.level),
                    code=one.code,
                    source=SOURCE,
                )
            )
        self._sources[root] = {uri for uri, diagnostics in found.items() if diagnostics}
        for uri, diagnostics in found.items():
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, diagnostics))

    def results(self, document: Document) -> LastResults:
        return self.last.get(document.root, NOTHING) if document.root is not None else NOTHING

    def all_findings(self, document: Document, outlined: Outline) -> list[Diagnosis]:
        """Return the findings of the text and of the last results."""
        return [*document.findings, *result_findings(outlined, self.results(document))]

    def range_of(self, finding: Diagnosis, outlined: Outline) -> types.Range:
        """Return the range of a finding, in the client's units."""
        last = len(outlined.lines) - 1
        span = finding.span if finding.span.line <= last else outlined.line_span(last)
        return to_range(span, outlined.lines, self.workspace.position_codec)

    def column(self, position: types.Position, outlined: Outline) -> int:
        """Convert a client's position to a column in characters."""
        return to_column(position, outlined.lines, self.workspace.position_codec)

    def diagnostic(self, finding: Diagnosis, outlined: Outline) -> types.Diagnostic:
        return types.Diagnostic(
            range=self.range_of(finding, outlined),
            message=finding.message,
            severity=types.DiagnosticSeverity(finding.level),
            code=finding.code,
            source=SOURCE,
        )

    def _publish(self, document: Document, outlined: Outline) -> None:
        found = self.all_findings(document, outlined)
        diagnostics = [self.diagnostic(finding, outlined) for finding in found]
        self.text_document_publish_diagnostics(
            types.PublishDiagnosticsParams(document.uri, diagnostics, document.version)
        )


# The open texts of an editor, with the findings of each.


FILE_NAME = "gpuemu.toml"
LANGUAGE = "gpuemu-toml"
_DIRECTIVE = re.compile(r"\s*#:schema\s+\S*gpuemu\.schema\.json\s*(?:\n|\r|\Z)")


class Document(Struct):
    """One version of an open text."""

    uri: str
    # None for a text that is not a file yet.
    path: Path | None
    text: str
    version: int | None = None
    # None until the text has been parsed.
    outline: Outline | None = None
    # Findings of this version; before this version is checked, those of the previous version.
    findings: list[Diagnosis] = field(default_factory=list)
    # True if `findings` belongs to this version.
    checked: bool = False

    @property
    def root(self) -> Path | None:
        return self.path.parent if self.path is not None else None


def path_of(uri: str) -> Path | None:
    try:
        if urlsplit(uri).scheme != "file":
            return None
        name = to_fs_path(uri)
    except ValueError:
        return None
    if not name or "\0" in name or not Path(name).is_absolute():
        return None
    return Path(name)


def is_config(uri: str, language: str, text: str) -> bool:
    """Tell whether a text is a configuration of this package; editors may send any TOML file."""
    path = path_of(uri)
    named = path is not None and path.name == FILE_NAME
    return named or language == LANGUAGE or _DIRECTIVE.match(text[:1000]) is not None


def to_range(span: Span, lines: list[str], codec: PositionCodec) -> types.Range:
    line = lines[span.line]
    return types.Range(
        types.Position(span.line, codec.client_num_units(line[: span.start])),
        types.Position(span.line, codec.client_num_units(line[: span.end])),
    )


def to_column(position: types.Position, lines: list[str], codec: PositionCodec) -> int:
    if not 0 <= position.line < len(lines):
        return 0
    seen = 0
    for column, char in enumerate(lines[position.line]):
        if seen >= position.character:
            return column
        seen += codec.client_num_units(char)
    return len(lines[position.line])


# Answer an editor's requests: actions, lenses, hovers, completions, commands of lenses.

MAX_OPS = 2_000
"""Maximum number of tables with lenses: more than an editor can show, but quick to send."""


def make_server() -> ConfigServer:
    server = ConfigServer()
    _follow_texts(server)
    _follow_files(server)
    _answer_actions(server)
    _answer_lenses(server)
    _answer_places(server)
    _run_commands(server)
    return server


def _follow_texts(server: ConfigServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: types.DidOpenTextDocumentParams) -> None:
        server.opened(params.text_document)

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def changed(params: types.DidChangeTextDocumentParams) -> None:
        # Each change is a whole text, as the server requested; the last one counts.
        for change in params.content_changes[-1:]:
            server.changed(params.text_document.uri, change.text, params.text_document.version)

    @server.feature(types.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: types.DidSaveTextDocumentParams) -> None:
        server.saved(params.text_document.uri)

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: types.DidCloseTextDocumentParams) -> None:
        server.closed(params.text_document.uri)


def _follow_files(server: ConfigServer) -> None:
    @server.feature(types.INITIALIZED)
    def initialized(_params: types.InitializedParams) -> None:
        workspace = server.client_capabilities.workspace
        watching = workspace.did_change_watched_files if workspace is not None else None
        if watching is not None and watching.dynamic_registration:
            watchers = [types.FileSystemWatcher(glob_pattern=pattern) for pattern in WATCHED]
            options = types.DidChangeWatchedFilesRegistrationOptions(watchers)
            method = types.WORKSPACE_DID_CHANGE_WATCHED_FILES
            registration = types.Registration("gpuemu-flow-files", method, options)
            server.client_register_capability(types.RegistrationParams([registration]))

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def files_changed(_params: types.DidChangeWatchedFilesParams) -> None:
        server.refresh_all()


def _answer_actions(server: ConfigServer) -> None:
    @server.feature(
        types.TEXT_DOCUMENT_CODE_ACTION,
        types.CodeActionOptions(code_action_kinds=[types.CodeActionKind.QuickFix]),
    )
    async def actions(params: types.CodeActionParams) -> list[types.CodeAction]:
        document = await server.settled(params.text_document.uri)
        if document is None:
            return []
        outlined = await server.outlined(document)
        first, last = params.range.start.line, params.range.end.line
        found: list[types.CodeAction] = []
        for finding in server.all_findings(document, outlined):
            if first <= finding.span.line <= last:
                found += _actions(server, document, outlined, finding)
        return found


def _actions(
    server: ConfigServer, document: Document, outlined: Outline, finding: Diagnosis
) -> list[types.CodeAction]:
    about = [server.diagnostic(finding, outlined)]
    fix = finding.fix
    if fix is not None and document.checked:
        place = to_range(fix.span, outlined.lines, server.workspace.position_codec)
        edit = types.WorkspaceEdit({document.uri: [types.TextEdit(place, fix.text)]})
        quick = types.CodeActionKind.QuickFix
        return [types.CodeAction(fix.title, quick, about, is_preferred=True, edit=edit)]
    return [
        types.CodeAction(f"{word.capitalize()} {finding.op}", types.CodeActionKind.QuickFix, about,
                         command=_command(document, name, word, finding.op))
        for name, word in jobs.LENSES.items()
        if finding.op
    ]  # fmt: skip


def _command(document: Document, name: str, title: str, op: str) -> types.Command:
    return types.Command(title=title, command=name, arguments=[document.uri, op])


def _answer_lenses(server: ConfigServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_CODE_LENS, types.CodeLensOptions(resolve_provider=False))
    async def lenses(params: types.CodeLensParams) -> list[types.CodeLens]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        outlined = await server.outlined(document)
        return [
            types.CodeLens(
                to_range(
                    outlined.line_span(table.header), outlined.lines,
                    server.workspace.position_codec,
                ),
                _command(document, name, word, table.name),
            )
            for table in outlined.ops[:MAX_OPS]
            if table.name
            for name, word in jobs.LENSES.items()
        ]  # fmt: skip


def _answer_places(server: ConfigServer) -> None:
    @server.feature(types.TEXT_DOCUMENT_HOVER)
    async def hover(params: types.HoverParams) -> types.Hover | None:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return None
        outlined = await server.outlined(document)
        rich = _reads_markdown(server)
        column = server.column(params.position, outlined)
        last = server.results(document)
        text = hover_text(outlined, last, params.position.line, column, rich=rich)
        kind = types.MarkupKind.Markdown if rich else types.MarkupKind.PlainText
        return types.Hover(types.MarkupContent(kind, text)) if text else None

    @server.feature(
        types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["[", '"'])
    )
    async def complete(params: types.CompletionParams) -> list[types.CompletionItem]:
        document = server.documents.get(params.text_document.uri)
        if document is None:
            return []
        outlined = await server.outlined(document)
        column = server.column(params.position, outlined)
        return completions_at(outlined, params.position.line, column)


def _reads_markdown(server: ConfigServer) -> bool:
    texts = server.client_capabilities.text_document
    hovers = texts.hover if texts is not None else None
    formats = hovers.content_format if hovers is not None else None
    return types.MarkupKind.Markdown in (formats or ())


def _run_commands(server: ConfigServer) -> None:
    running = Commands(server)

    # pygls tests whether the first parameter's type is a server class, which fails for Any in
    # Python 3.10.

    def runner(name: str) -> Any:
        async def run(ls: ConfigServer, uri: Any, op: Any) -> dict[str, Any]:
            return await running.run(name, uri, op)

        return run

    for name in jobs.LENSES:
        server.command(name)(runner(name))

    @server.feature(types.SHUTDOWN)
    async def end(*_: Any) -> None:
        await running.end()


def serve(stdin: BinaryIO, stdout: BinaryIO) -> int:
    """Serve one editor until it exits; return 0 if it requested a shutdown before, else 1."""
    server = make_server()
    server.start_io(stdin, stdout)
    return 0 if server.protocol._shutdown else 1


# Run the commands of lenses in the background, one at a time per workspace, with progress.


MAX_LOGGED = 200_000
PATIENCE_S = 5.0
READ_PATIENCE_S = 30.0


class Commands:
    """Runs the commands of lenses, one at a time in each workspace."""

    def __init__(self, server: ConfigServer) -> None:
        self._server = server
        self._locks: dict[Path, asyncio.Lock] = {}
        self._running: set[asyncio.subprocess.Process] = set()

    async def end(self) -> None:
        """End what runs, and refuse what waits."""
        self._locks.clear()
        for process in tuple(self._running):
            await _stop(process)

    async def run(self, command: str, uri: Any, op: Any) -> dict[str, Any]:
        """Run a lens's command to its end and show its outcome to the user."""
        document = self._server.documents.get(uri) if isinstance(uri, str) else None
        outlined = await self._server.outlined(document) if document is not None else None
        known = {table.name for table in outlined.ops} if outlined is not None else set()
        if document is None or document.path is None or op not in known or not op:
            return self._say(f"{op!r} is no op of an open gpuemu.toml that is saved as a file")
        root = document.path.parent
        async with self._locks.setdefault(root, asyncio.Lock()):
            reading = self._server.refresh(document)
            if reading is not None:  # what it reads may never come
                await asyncio.wait({reading}, timeout=READ_PATIENCE_S)
            arguments = jobs.arguments(command, op, self._server.results(document))
            if arguments is None:
                return self._say(f"{op}: no failure is recorded", types.MessageType.Info)
            if root not in self._locks:
                return self._say(f"{op}: stopped", types.MessageType.Info)
            try:
                out, err = await self._output(arguments, document.path)
            except OSError as error:
                return self._say(f"{op}: cannot be started in {root}: {error.strerror}")
        log = types.LogMessageParams(types.MessageType.Log, f"{err}\n{out}"[:MAX_LOGGED])
        self._server.window_log_message(log)
        self._server.refresh(document)
        good, text = jobs.outcome(command, op, out, err)
        if _unsaved(document.path, self._server.documents.get(uri, document).text):
            text += " (of the file as it is saved; the open text differs)"
        return self._say(text, types.MessageType.Info if good else types.MessageType.Warning)

    async def _output(self, arguments: list[str], path: Path) -> tuple[str, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gpuemu_flow",
            *arguments,
            cwd=path.parent,
            env={**self._server.environ(path), "NO_COLOR": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._running.add(process)
        try:
            out, err = await process.communicate()
        finally:
            self._running.discard(process)
            await _stop(process)
        return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")

    def _say(
        self, text: str, kind: types.MessageType = types.MessageType.Warning
    ) -> dict[str, Any]:
        self._server.window_show_message(types.ShowMessageParams(kind, text))
        return {"ok": kind is types.MessageType.Info, "message": text}


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End a command as Ctrl-C does, or else by force."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.wait()), PATIENCE_S)


def _unsaved(path: Path, text: str) -> bool:
    try:
        # Opening a pipe could wait for ever.
        return not path.is_file() or path.read_bytes() != text.encode("utf-8", "surrogatepass")
    except OSError:
        return True
