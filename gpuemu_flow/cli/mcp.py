"""``gpuemu-flow mcp``: serve agents by the Model Context Protocol."""

from __future__ import annotations

import click

from gpuemu_flow.model.errors import Problem, RunnerError


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
