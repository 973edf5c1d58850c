"""Run `gpuemu-flow` for a code lens: its command line, its process, and what came out of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import plural, printable

LIMIT_S = 6 * 3600.0
PATIENCE_S = 5.0
"""Seconds in which a command may end after each signal."""

MAX_OUTPUT = 32 << 20
MAX_ERRORS = 256 << 10

_PROGRESS = re.compile(r"progress (\d+)/(\d+) (.+) (\d+)/(\d+)")


class CommandProgress(Struct, frozen=True):
    """Progress of a command: numbers of tasks, and cases of the current task."""

    finished: int
    todo: int
    task: str
    done: int
    total: int

    @property
    def percent(self) -> int:
        """Return the progress in whole per cent, including a share for the current task."""
        part = self.done / self.total if self.total else 0.0
        return min(99, int(100 * (self.finished + part) / self.todo)) if self.todo else 0

    @property
    def text(self) -> str:
        cases = f" {self.done}/{self.total}" if self.total else ""
        return f"{self.finished}/{self.todo} tasks" + (
            f", {self.task}{cases}" if self.task != "-" else ""
        )


class CommandResult(Struct, frozen=True):
    """The outcome of a command; `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str
    timed_out: bool = False


async def run_command(
    arguments: Sequence[str],
    *,
    root: Path,
    environ: Mapping[str, str],
    on_progress: Callable[[CommandProgress], None],
    limit_s: float = LIMIT_S,
) -> CommandResult:
    """Run ``gpuemu-flow`` with `arguments` in a workspace. If the call is cancelled, it stops the
    command, with all that the command started, before it returns."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "gpuemu_flow",
        *arguments,
        cwd=root,
        env={**environ, "GPUEMU_PROGRESS": "lines", "NO_COLOR": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=1 << 20,
    )
    assert process.stdout is not None and process.stderr is not None  # noqa: S101 - for mypy
    reading = asyncio.gather(
        _read(process.stdout, MAX_OUTPUT), _follow(process.stderr, on_progress)
    )
    timed_out = False
    try:
        await asyncio.wait_for(asyncio.shield(process.wait()), limit_s)
    except asyncio.TimeoutError:
        timed_out = True
    finally:
        # This also happens if the call is cancelled.
        await _stop(process)
        reading_ended = asyncio.wait_for(reading, PATIENCE_S)
        out, err = "", ""
        with contextlib.suppress(asyncio.TimeoutError):
            out, err = await reading_ended
    return CommandResult(process.returncode or 0, out, err, timed_out)


async def _stop(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if number == signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(process.wait()), PATIENCE_S)


async def _read(stream: asyncio.StreamReader, most: int) -> str:
    """Return the first `most` bytes; read and discard the rest, so that the writer never waits."""
    kept = bytearray()
    while chunk := await stream.read(1 << 16):
        kept += chunk[: most - len(kept)]
    return kept.decode("utf-8", "replace")


async def _follow(
    stream: asyncio.StreamReader, on_progress: Callable[[CommandProgress], None]
) -> str:
    """Report progress lines of a command's output, and return its other lines."""
    kept: list[str] = []
    size = 0
    rest = b""
    while chunk := await stream.read(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[-MAX_ERRORS:]
        for line in lines:
            text = line.decode("utf-8", "replace")
            found = _PROGRESS.fullmatch(text)
            if found is not None:
                finished, todo, task, done, total = found.groups()
                on_progress(CommandProgress(int(finished), int(todo), task, int(done), int(total)))
            elif size < MAX_ERRORS:
                kept.append(text)
                size += len(text)
    return "\n".join([*kept, rest.decode("utf-8", "replace")]).strip("\n")


RUN, REPRODUCE, MINIMIZE = "gpuemu-flow.run", "gpuemu-flow.reproduce", "gpuemu-flow.minimize"
LENSES = {RUN: "run", REPRODUCE: "reproduce", MINIMIZE: "minimize"}
MAX_SENTENCE = 1_000


def arguments(command: str, op: str, last: LastResults) -> list[str] | None:
    """Return the command-line arguments with which a code lens runs ``gpuemu-flow`` for an op. To
    reproduce or minimize, the op needs a recorded failure in `last`, which holds the last results.
    The result is None if it has no such failure."""
    if command == RUN:
        return ["run", "--format", "json", "--", op]
    failures = last.failures.get(op, ())
    if command == MINIMIZE:  # a minimised failure cannot be minimised further
        failures = tuple(f for f in failures if not f.minimized_from)
    if not failures:
        return None
    return [LENSES[command], "--format", "json", "--", failures[0].id]


def outcome(command: str, op: str, finished: CommandResult) -> tuple[bool, str]:
    """Tell whether a command succeeded, and describe its outcome in a sentence."""
    if finished.timed_out:
        return False, f"{op}: stopped, because it ran for too long"
    try:
        found = json.loads(finished.out)
        tell = {RUN: _run, REPRODUCE: _reproduce, MINIMIZE: _minimize}[command]
        good, text = tell(op, found)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        told = finished.err.strip() or f"the command ended with {finished.code}"
        good, text = False, f"{op}: {told}"
    return good, printable(text)[:MAX_SENTENCE]


def _run(op: str, found: Mapping[str, Any]) -> tuple[bool, str]:
    results = [result for result in found["results"] if result["op"] == op]
    parts = [
        f"{r['dtype']} {r['verdict']}"
        + (f" ({r['passed']} of {plural(r['cases'], 'case')} passed)" if r["cases"] else "")
        for r in results
    ]
    verdicts = {r["verdict"] for r in results}
    good = "passed" in verdicts and verdicts <= {"passed", "skipped"}
    if not results:
        problems = "; ".join(p["message"] for p in found["problems"])
        return False, f"{op}: nothing was checked{f': {problems}' if problems else ''}"
    return good, f"{op}: {', '.join(parts)}"


def _reproduce(op: str, found: Mapping[str, Any]) -> tuple[bool, str]:
    unseen = bool(found.get("did_not_show"))
    passed = found["result"]["verdict"] == "passed" and not unseen
    word = "no longer fails" if passed else "has no verdict now"
    if unseen:
        word = "did not show again, though nothing changed: no verdict"
    if found["still_fails"]:
        word = "still fails"
    first = found["result"]["failures"][:1]
    detail = f": {first[0]['message']}" if first else ""
    return passed, f"{op}: {found['id']} {word}{detail}"


def _minimize(op: str, found: Mapping[str, Any]) -> tuple[bool, str]:
    smallest = found["minimized"]
    if smallest is None:
        return True, f"{op}: {found['original']['id']} did not fail again"
    shapes = " ".join(f"{name}{shape}" for name, shape in smallest["shapes"].items())
    steps = plural(found["steps"], "step")
    return False, f"{op}: {shapes} after {steps}: {smallest['message']}; {smallest['reproduce']}"
