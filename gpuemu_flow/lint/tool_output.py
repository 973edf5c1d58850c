"""What NVIDIA's tools print: the messages of ptxas, and the machine code that nvdisasm lists."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gpuemu_flow.model.errors import Problem

_MESSAGE = re.compile(
    r"ptxas (?:(?P<file>.*?), line (?P<line>\d{1,9}); )?(?P<level>error|fatal|warning)\s*: "
    r"(?P<text>.*)"
)
_LAUNCH_BOUNDS = re.compile(
    r"(?:for entry |entry function '?)(?P<kernel>[\w$]+).*"
    r"(?P<directive>\.(?:minnctapersm|maxntid|maxnreg|reqntid)|maxntid|minnctapersm).*ignored"
)
_UNSUPPORTED_VERSION = re.compile(r"Unsupported \.version")
MAX_MESSAGES = 50
"""Largest number of messages of one run that are kept."""


class PtxasReport(Struct):
    """What one run of ptxas said; ``unmet_bounds`` are its messages by kernel."""

    problems: list[Problem] = field(default_factory=list)
    unmet_bounds: dict[str, str] = field(default_factory=dict)


class MachineCode(Struct, frozen=True):
    """Counts of machine opcodes in the functions of one cubin, and the tool that listed them."""

    tool: str
    functions: Mapping[str, Mapping[str, int]]


def parse_ptxas_output(text: str, file: str = "") -> PtxasReport:
    """Read the standard error of ptxas."""
    report = PtxasReport()
    for line in text.splitlines():
        _message(report, line, file)
    return report


def _message(report: PtxasReport, line: str, file: str) -> None:
    match = _MESSAGE.match(line)
    if match is None or len(report.problems) >= MAX_MESSAGES:
        return
    text = match.group("text").strip()
    bounds = _LAUNCH_BOUNDS.search(text)
    if bounds is not None:
        report.unmet_bounds[bounds.group("kernel")] = text
    hint = ""
    if _UNSUPPORTED_VERSION.search(text):
        hint = "use a newer ptxas (pip install -U nvidia-cuda-nvcc) or build older PTX"
    report.problems.append(
        Problem(
            "ptxas-warning" if match.group("level") == "warning" else "ptxas-error",
            text,
            hint,
            file or match.group("file") or "",
            int(match.group("line") or 0),
            warning=match.group("level") == "warning",
        )
    )


def errors_of(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems that are errors, without the warnings."""
    return [problem for problem in problems if not problem.warning]


def parse_nvdisasm_json(text: bytes | str, file: str = "") -> dict[str, dict[str, int]] | Problem:
    """Count the opcodes of each function, except padding, in the output of ``nvdisasm -json``.

    The output has the form ``[header, [function, ...]]``. The result is a problem for other text.
    """
    try:
        counts = {
            str(function["function-name"]): Counter(
                str(item["opcode"]) for item in function["sass-instructions"]
            )
            for function in json.loads(text)[1]
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Problem(
            "sass-unreadable",
            f"not the output of nvdisasm -json ({type(error).__name__}: {error})",
            "",
            file,
        )
    for found in counts.values():
        del found["NOP"]
    return {name: dict(sorted(found.items())) for name, found in counts.items()}
