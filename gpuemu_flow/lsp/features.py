"""Answer an editor's requests: actions, lenses, hovers, completions, commands of lenses."""

from __future__ import annotations

from typing import Any, BinaryIO

from lsprotocol import types

from gpuemu_flow.lsp import cards, completions, jobs
from gpuemu_flow.lsp.findings import Diagnosis
from gpuemu_flow.lsp.outline import Outline
from gpuemu_flow.lsp.running import RunningCommands
from gpuemu_flow.lsp.server import WATCHED, ConfigServer, Document, to_range

MAX_OPS = 2_000
"""Maximum number of tables with lenses: more than an editor can show, but quick to send."""

_COMPLETION_KINDS = {
    "table": types.CompletionItemKind.Module,
    "key": types.CompletionItemKind.Property,
    "word": types.CompletionItemKind.EnumMember,
}


def make_server() -> ConfigServer:
    """Make a server with all of its handlers registered."""
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
        text = cards.hover(outlined, last, params.position.line, column, rich=rich)
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
        return [
            types.CompletionItem(
                each.text, kind=_COMPLETION_KINDS[each.kind], detail=each.detail or None,
                documentation=each.doc or None,
            )
            for each in completions.completions_at(outlined, params.position.line, column)
        ]  # fmt: skip


def _reads_markdown(server: ConfigServer) -> bool:
    texts = server.client_capabilities.text_document
    hovers = texts.hover if texts is not None else None
    formats = hovers.content_format if hovers is not None else None
    return types.MarkupKind.Markdown in (formats or ())


def _run_commands(server: ConfigServer) -> None:
    running = RunningCommands(server)

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
