"""Serve agents by the Model Context Protocol: each tool is a command, and gives its JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer

from gpuemu_flow import __version__
from gpuemu_flow.model.types import Json

INSTRUCTIONS = """\
Tells whether a GPU kernel computes the right numbers, without a GPU. Write the kernel and a plain
reference, call `check`, mend what `failures[0].minimal` shows (inputs, expected, actual, place),
and call `check` again until the verdict is `passed`. An inconclusive verdict is no pass.
In a folder with a gpuemu.toml, `run` checks all ops of it.
"""
MOST_FAILURES = 5
_KEPT = ("op", "dtype", "verdict", "passed", "cases", "max_abs", "tolerance_used", "reason")
server = MCPServer("gpuemu-flow", instructions=INSTRUCTIONS, version=__version__)


async def _command(folder: str, *words: str) -> dict[str, Json]:
    """Run a command in a folder; return the JSON that it prints, or why it printed none."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuemu_flow", *words, "--format", "json",
        cwd=Path(folder).expanduser(), stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()
        await process.wait()
        raise
    try:
        found: dict[str, Json] = json.loads(out)
    except ValueError:
        return {"exit_code": process.returncode, "error": err.decode(errors="replace").strip()}
    return {**found, "exit_code": process.returncode}


@server.tool()
async def check(
    op: str,
    reference: str,
    inputs: list[str] | None = None,
    dtypes: list[str] | None = None,
    mutates: list[str] | None = None,
    seconds: float = 10.0,
    folder: str = ".",
) -> dict[str, Any]:
    """Judge one op by one reference: "op.py:f" and "ref.py:g", or a CUDA kernel "k.cu:entry".

    Needs no configuration, and writes nothing. `inputs` says what signatures do not, such as
    ["x=float32[M,N]", "eps=1e-5"], and `mutates` which inputs the op may change. The answer holds
    the verdict and, for each failure, its smallest inputs, the expected and the actual value there,
    the line, and the command that repeats it.
    """
    words = [word for text in inputs or () for word in ("--input", text)]
    words += [word for dtype in dtypes or () for word in ("--dtype", dtype)]
    words += [word for name in mutates or () for word in ("--mutates", name)]
    return await _command(folder, "check", op, reference, *words, "--seconds", f"{seconds:g}")


@server.tool()
async def run(words: list[str] | None = None, folder: str = ".") -> dict[str, Any]:
    """Check what changed of the ops of a folder with a gpuemu.toml; `words` names some of them.

    The answer holds a line for each op and dtype, and the first failures of each with their
    smallest inputs. `explain_failure` says more of one.
    """
    found = await _command(folder, "run", *(words or ()))
    if "results" not in found:
        return found
    shown = [one for one in found["failures"] if "minimal" in one] or found["failures"]
    return {
        "exit_code": found["exit_code"],
        "results": [{name: one[name] for name in _KEPT} for one in found["results"]],
        "failures": shown[:MOST_FAILURES],
        "more_failures": max(0, len(found["failures"]) - MOST_FAILURES),
        "problems": found["problems"],
    }


@server.tool()
async def explain_failure(failure: str, folder: str = ".") -> dict[str, Any]:
    """Tell all that is known of a recorded failure of a workspace, by its id or seed.

    Its smallest inputs with the values there, the verdict with all measured errors, what is alike
    in the wrong elements, the cause, and what the program printed.
    """
    return await _command(folder, "failures", "show", failure)


@server.tool()
async def emulate(
    file: str,
    arguments: list[str],
    entry: str = "",
    grid: str = "1",
    block: str = "1",
    checks: list[str] | None = None,
    folder: str = ".",
) -> dict[str, Any]:
    """Run one compiled kernel of a PTX file on the CPU, and check its memory, races and barriers.

    `arguments` are those of the kernel in order, such as ["x=f32[8,512]", "out=f32[8,512]",
    "n=512"].
    """
    words = [word for text in arguments for word in ("--arg", text)]
    words += [word for name in checks or () for word in ("--check", name)]
    words += ["--entry", entry] if entry else []
    return await _command(folder, "emulate", file, "--grid", grid, "--block", block, *words)


@server.tool()
async def lint(files: list[str], folder: str = ".") -> dict[str, Any]:
    """Check PTX and cubin files by the lint rules: spills, occupancy, missed vector accesses."""
    return await _command(folder, "lint", *files)


def serve() -> None:
    """Serve on standard input and output, until the agent ends the connection."""
    server.run("stdio")
