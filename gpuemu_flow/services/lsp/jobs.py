"""What a code lens runs: its command line, and what is told of what came out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpuemu_flow.report.last_results import LastResults
from gpuemu_flow.report.text import plural, printable

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


def outcome(command: str, op: str, out: str, err: str) -> tuple[bool, str]:
    """Tell whether a command succeeded, and describe its outcome in a sentence."""
    try:
        good, text = _TELL[command](op, json.loads(out))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        good, text = False, f"{op}: {err.strip() or 'the command ended without a report'}"
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


_TELL = {RUN: _run, REPRODUCE: _reproduce, MINIMIZE: _minimize}
