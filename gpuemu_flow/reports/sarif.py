"""Write lint findings as SARIF 2.1.0, which code review services show at the line.

Source: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from urllib.parse import quote

from gpuemu_flow import __version__
from gpuemu_flow.artifacts.kernel import KernelRecord, Violation
from gpuemu_flow.artifacts.rules import RULES
from gpuemu_flow.errors import Problem
from gpuemu_flow.results.model import RunReport
from gpuemu_flow.types import Json

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def lint_to_sarif(report: RunReport) -> dict[str, Json]:
    """Return a report's lint findings as a SARIF log with one run.

    Accepted findings are included, with their justification.
    """
    index = {rule.id: number for number, rule in enumerate(RULES)}
    results: dict[str, dict[str, Json]] = {}
    for kernel in report.kernels:
        for entry in kernel.entries:
            for found in entry.violations:
                result = _result(found, entry, index)
                # If a source is built for several architectures, a line is reported once.
                results.setdefault(repr(result), result)
    failed = any(not problem.warning for problem in report.problems)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpuemu-flow",
                        "version": __version__,
                        "rules": [
                            {
                                "id": rule.id,
                                "shortDescription": {"text": rule.what},
                                "fullDescription": {"text": rule.why},
                                "help": {"text": rule.instead},
                                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                            }
                            for rule in RULES
                        ],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not failed,
                        "toolExecutionNotifications": [_notice(p) for p in report.problems],
                    }
                ],
                "results": list(results.values()),
            }
        ],
    }


def _result(found: Violation, entry: KernelRecord, index: Mapping[str, int]) -> dict[str, Json]:
    # GitHub refuses a result without a line, so unknown lines get one.
    location = physical_location(found.file or entry.file, found.line or 1)
    location["logicalLocations"] = [{"name": entry.name, "kind": "function"}]
    result: dict[str, Json] = {
        "ruleId": found.rule,
        "level": _LEVELS[found.severity],
        "message": {"text": f"{entry.name}: {found.message}"},
        "locations": [location],
    }
    if found.rule in index:
        result["ruleIndex"] = index[found.rule]
    if found.allowed:
        result["suppressions"] = [{"kind": "external", "justification": found.allowed}]
    return result


def physical_location(file: str, line: int) -> dict[str, Json]:
    """Return a SARIF location: a file as URI, and a line if it is known."""
    path = PurePath(file)
    uri = uri_path(path.as_posix())
    if path.is_absolute():
        uri = f"file://{uri}"
    physical: dict[str, Json] = {"artifactLocation": {"uri": uri}}
    if line:
        physical["region"] = {"startLine": line}
    return {"physicalLocation": physical}


def uri_path(path: str) -> str:
    """Convert a path to the path of a URI, even if it is not valid UTF-8."""
    try:
        return quote(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return quote(path.encode("utf-8", "replace"))


def _notice(problem: Problem) -> dict[str, Json]:
    notice: dict[str, Json] = {
        "level": "warning" if problem.warning else "error",
        "message": {"text": f"{problem.slug}: {problem.message}"},
    }
    if problem.file:
        notice["locations"] = [physical_location(problem.file, problem.line)]
    return notice
