"""Files that a program in a test's workspace was seen to use, relative to that workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner_workspace import Workspace, make_case

from gpuemu_flow.model.types import Observation
from gpuemu_flow.workers.api import Program


@dataclass(frozen=True)
class Seen:
    """An observation; paths below the workspace without it."""

    files: set[str]
    missed: set[str]
    listed: set[str]
    untracked: set[str]
    whole: Observation


def below(ws: Workspace, seen: Observation) -> Seen:
    """An observation as a test writes it."""
    root = f"{ws.folder}/"

    def own(paths: frozenset[str]) -> set[str]:
        return {path.removeprefix(root) for path in paths if path.startswith(root)}

    return Seen(
        own(seen.files),
        own(seen.missed),
        own(seen.listed | {f"{path}/" for path in seen.listed if f"{path}/" == root}),
        set(seen.untracked),
        seen,
    )


def observe(ws: Workspace, program: Program, cases: int = 1) -> Seen:
    """Run a program on cases and tell what it was seen to use."""
    with ws.pool.session(program) as session:
        for index in range(cases):
            _, outcome = session.call(make_case(index))
            assert outcome.ok, outcome.error
        return below(ws, session.observed())


def write_all(ws: Workspace, files: dict[str, Any]) -> None:
    """Write files of the workspace, bytes as they are."""
    for name, text in files.items():
        if isinstance(text, bytes):
            ws.write(name, "").write_bytes(text)
        else:
            ws.write(name, text)
