"""What `exec` says at the end: a summary for people, and a report as JSON."""

from __future__ import annotations

import json

import msgspec
from msgspec import to_builtins

from gpuemu_flow.emulator.host.run import Executed


def summary(executed: Executed) -> str:
    report = executed.report
    launches = sum(use.launches for use in report.kernels.values())
    repeated = sum(use.repeated for use in report.kernels.values())
    lines = []
    if executed.signal:
        lines.append(f"the program was ended by {executed.signal}")
    if repeated:
        lines.append(
            f"{repeated:,} of {launches:,} launches repeated an earlier one: taken from it"
        )
    parts = [
        _count(len(report.findings), "finding"), _count(launches, "launch", "es"),
        _count(len(report.kernels), "kernel"),
    ]  # fmt: skip
    if report.problems:
        parts.append(_count(len(report.problems), "problem"))
    lines.append(", ".join(parts))
    return "\n".join(f"========= {line}" for line in lines)


def _count(number: int, what: str, plural: str = "s") -> str:
    return f"{number:,} {what}{'' if number == 1 else plural}"


def as_json(executed: Executed) -> str:
    report = executed.report
    return json.dumps(
        {
            "exit_code": executed.exit_code,
            "program_exit_code": executed.code,
            "findings": [
                {**to_builtins(finding), "text": str(finding)} for finding in report.findings
            ],
            "problems": report.problems,
            "kernels": {name: msgspec.to_builtins(use) for name, use in report.kernels.items()},
        },
        indent=2,
    )
