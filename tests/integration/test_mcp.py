"""The server of agents, through the client of the protocol's own SDK, over standard streams."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from mini_workspace import make_mini

OP = """
    import numpy as np

    def scale(x):
        return (x * 3).astype(x.dtype)

    def off(x):
        return (x * 3 + (x == 2)).astype(x.dtype)
    """


def talk(folder: Path, environ: dict[str, str], *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Start the server as an agent does, and call tools; return their names and the answers."""
    mcp = pytest.importorskip("mcp")  # here: to import it takes seconds
    stdio = pytest.importorskip("mcp.client.stdio")

    async def session() -> list[Any]:
        server = mcp.StdioServerParameters(
            command=sys.executable, args=["-m", "gpuemu_flow", "mcp"], cwd=folder, env=environ
        )
        async with (
            stdio.stdio_client(server) as (read, write),
            mcp.ClientSession(read, write) as client,
        ):
            await client.initialize()
            found: list[Any] = [[tool.name for tool in (await client.list_tools()).tools]]
            for name, arguments in calls:
                answer = await client.call_tool(name, arguments)
                found.append(json.loads(answer.content[0].text))
            return found

    return asyncio.run(asyncio.wait_for(session(), 300))


def merged(whole: Any, part: Any) -> Any:
    """Return a whole answer with the parts that are given in place of its own."""
    if isinstance(part, dict):
        return {**whole, **{key: merged(whole.get(key), value) for key, value in part.items()}}
    if isinstance(part, list) and isinstance(whole, list) and len(whole) == len(part):
        return [merged(one, other) for one, other in zip(whole, part, strict=True)]
    return part


@pytest.mark.ci
def test_an_agent_repairs_a_kernel(tmp_path: Path) -> None:
    mini = make_mini(tmp_path / "workspace")
    mini.keep_only("scale")
    (mini.root / "op.py").write_text(dedent(OP))
    mini.edit("scripts/scale.py", "* 3", "* 3.5")
    ptx = Path(__file__).parents[1] / "data/docs/emulator/softmax.ptx"
    page = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", page, re.DOTALL):
        (mini.root / name).write_text(text)
    tools, told, wrong, right, unclear, run = talk(
        mini.root,
        mini.environment(),
        ("check", {"op": "row_sum.py", "reference": "row_sum_ref.py"}),
        ("check", {"op": "op.py:off", "reference": "scripts/scale_ref.py"}),
        ("check", {"op": "op.py:scale", "reference": "scripts/scale_ref.py", "folder": "."}),
        ("check", {"op": "op.py", "reference": "scripts/scale_ref.py"}),
        ("run", {}),
    )
    assert tools == ["check", "run", "explain_failure", "emulate", "lint"]
    transcript = json.loads(re.findall(r"^```json\n(.*?)```", page, re.DOTALL | re.MULTILINE)[1])
    assert told == merged(told, transcript)  # what the page says of it is so
    shown = wrong["failures"][0]["minimal"]
    assert wrong["verdict"] == "failed" and shown["inputs"]["x"]["dtype"] == "float32"
    assert (shown["expected"], shown["actual"], shown["place"]) == (6.0, 7.0, "op.py:7")
    assert right["verdict"] == "passed" and right["exit_code"] == 0
    assert unclear["exit_code"] == 2 and "write op.py:scale" in unclear["error"]
    assert run["results"][0]["verdict"] == "failed"
    failure = run["failures"][0]
    assert failure["minimal"]["id"]
    _, explained, emulated, linted = talk(
        mini.root,
        mini.environment(),
        ("explain_failure", {"failure": failure["minimal"]["id"]}),
        (
            "emulate",
            {
                "file": str(ptx), "grid": "2", "block": "256",
                "arguments": ["x=f32[2,64]", "out=f32[2,64]", "n=64"],
            },
        ),
        ("lint", {"files": [str(ptx)]}),
    )  # fmt: skip
    assert explained["failures"][0]["minimal"]["expected"] is not None
    assert emulated["exit_code"] == 0 and linted["kernels"]
