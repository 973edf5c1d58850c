"""The language server, which checks open texts and answers an editor's requests."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from lsprotocol import types
from msgspec import Struct, field
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path
from pygls.workspace import PositionCodec

from gpuemu_flow import __version__
from gpuemu_flow.report.last_results import NOTHING, LastResults, last_results
from gpuemu_flow.services.lsp.findings import (
    Diagnosis,
    result_findings,
    source_findings,
    text_findings,
)
from gpuemu_flow.services.lsp.outline import Outline, Span, outline


class Latest:
    """Runs one action at a time per key; requests during a run cause one more run afterwards."""

    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error
        self._running: dict[Hashable, asyncio.Task[None]] = {}
        self._again: set[Hashable] = set()

    def ask(self, key: Hashable, action: Callable[[], Awaitable[None]]) -> asyncio.Task[None]:
        """Start `action`; if one of `key` is still running, repeat that one afterwards instead.

        All actions of a key must therefore do the same.
        """
        if key in self._running:
            self._again.add(key)
        else:
            self._running[key] = asyncio.ensure_future(self._run(key, action))
        return self._running[key]

    def running(self, key: Hashable) -> asyncio.Task[None] | None:
        """Return the running job of `key`; None if there is none.

        The job does not end before all runs that were requested so far have ended.
        """
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
    """A server for open texts of gpuemu.toml.

    Slow work runs in threads or in separate processes; the event loop only passes messages.
    """

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
        """Return environment variables that make `path` the configuration."""
        kept = {name: value for name, value in os.environ.items() if name != "GPUEMU_CONFIG"}
        if path is not None and path.name != "gpuemu.toml":
            kept["GPUEMU_CONFIG"] = path.name
        return kept

    def tell_error(self, error: Exception) -> None:
        """Write an internal error to the editor's log."""
        message = f"{type(error).__name__}: {error}"
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, message))

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def opened(self, item: types.TextDocumentItem) -> None:
        """Handle a text that was opened."""
        self._languages[item.uri] = item.language_id
        self.changed(item.uri, item.text, item.version)
        document = self.documents.get(item.uri)
        if document is not None:
            self.refresh(document)

    def changed(self, uri: str, text: str, version: int | None) -> None:
        """Handle a change of an open text."""
        before = self.documents.get(uri)
        if uri not in self._languages or not is_config(uri, self._languages[uri], text):
            if before is not None:
                self._forget(uri)
            return
        findings = before.findings if before is not None else []
        self.documents[uri] = Document(uri, path_of(uri), text, version, findings=findings)
        self._checks.ask(uri, lambda: self._check(uri))

    def saved(self, uri: str) -> None:
        """Handle a saved text; the files that it names may have been saved, too."""
        document = self.documents.get(uri)
        if document is not None:
            self._checks.ask(uri, lambda: self._check(uri))
            self.refresh(document)

    def closed(self, uri: str) -> None:
        """Handle a text that was closed."""
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
        """Read the last results of a document's workspace again."""
        root = document.root
        return None if root is None else self._reads.ask(root, lambda: self._read(root))

    def refresh_all(self) -> None:
        """Read the last results of every workspace that has an open document."""
        for document in tuple(self.documents.values()):
            self.refresh(document)

    async def outlined(self, document: Document) -> Outline:
        """Return the document's outline; parse the text on first use."""
        if document.outline is None:
            document.outline = await self.in_thread(lambda: outline(document.text))
        return document.outline

    async def settled(self, uri: str) -> Document | None:
        """Wait until the newest text of a document has been checked, and return the document.

        Returns None if the document is not open.
        """
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
        """Return the last results of a document's workspace."""
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
        """Convert a finding to the protocol's form."""
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
        """Return the folder of the workspace that the text configures."""
        return self.path.parent if self.path is not None else None


def path_of(uri: str) -> Path | None:
    """Return the absolute path of a ``file:`` URI, or None for any other URI."""
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
    """Convert a span in characters to a range in the client's units."""
    line = lines[span.line]
    return types.Range(
        types.Position(span.line, codec.client_num_units(line[: span.start])),
        types.Position(span.line, codec.client_num_units(line[: span.end])),
    )


def to_column(position: types.Position, lines: list[str], codec: PositionCodec) -> int:
    """Convert a client's position to a column in characters."""
    if not 0 <= position.line < len(lines):
        return 0
    seen = 0
    for column, char in enumerate(lines[position.line]):
        if seen >= position.character:
            return column
        seen += codec.client_num_units(char)
    return len(lines[position.line])
