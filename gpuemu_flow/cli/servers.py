"""``gpuemu-flow lsp`` and ``mcp``: serve editors and agents over standard input and output."""

from __future__ import annotations

import os
import sys

import click

from gpuemu_flow.model.errors import Problem, RunnerError

# ``gpuemu-flow lsp``: run the language server for gpuemu.toml on standard input and output.


@click.command(short_help="Serve an editor over standard input and output.")
@click.option("--stdio", is_flag=True, help="Ignored: standard input and output are always used.")
def lsp(stdio: bool) -> None:
    """Serve an editor: show errors of gpuemu.toml as it is typed, show results, run commands.

    Editors start it; see docs/editor.md. Needs the extra `lsp`. Exit code 1 if the editor
    disconnects without `shutdown`.
    """
    try:
        from gpuemu_flow.services.lsp.server import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pygls", "lsprotocol", "cattrs", "attrs"):
            raise
        text = f"the language server needs the package {error.name!r}"
        hint = "pip install 'gpuemu-flow[lsp]'"
        raise RunnerError(Problem("lsp-not-installed", text, hint)) from None
    # Other output on standard output must not get between the messages.
    messages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    code = serve(sys.stdin.buffer, messages)
    # All commands have ended. A thread that still waits for a file system must not keep the process
    # alive.
    sys.stderr.flush()
    os._exit(code)


# ``gpuemu-flow mcp``: serve agents by the Model Context Protocol.


@click.command(short_help="Serve an agent over standard input and output.")
def mcp() -> None:
    """Serve an agent: tools `check`, `run`, `explain_failure`, `emulate` and `lint`.

    Agents start it; see docs/agents.md. Needs the extra `mcp`.
    """
    try:
        from gpuemu_flow.services.mcp import serve  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mcp":
            raise
        text, hint = "serving agents needs the package mcp", "pip install 'gpuemu-flow[mcp]'"
        raise RunnerError(Problem("mcp-not-installed", text, hint)) from None
    serve()
