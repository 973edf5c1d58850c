"""Write reports: choose formats by name or file suffix, write files, and inform CI services."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.cli.options import AliasedChoice, F
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.reports import formats

if TYPE_CHECKING:
    from gpuemu_flow.results.document import Report

FORMATS = tuple(formats.FORMATS)
ALIASES = {alias: name for name, form in formats.FORMATS.items() for alias in form.aliases}
ENDINGS = {ending: name for name, form in formats.FORMATS.items() for ending in form.endings}


def report_format_option(*names: str) -> Callable[[F], F]:
    """Make the option ``--format``, whose choices are `names`; the first name is the default."""
    return click.option(
        "--format",
        "output_format",
        type=AliasedChoice(names, ALIASES),
        default=names[0],
        show_default=True,
        help="Format of standard output, and of files without a known ending.",
    )


def output_option(function: F) -> F:
    """Add the option ``-o``, which names a file for the report and may be repeated."""
    return click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        type=click.Path(path_type=Path, dir_okay=False),
        help="Also write this file, its format by its ending; may be repeated.",
    )(function)


def format_of(path: Path, default: str) -> str:
    """Return the format of a file by its suffix; `default` if the suffix is unknown."""
    return ENDINGS.get(path.suffix.lower(), default)


def wants_pictures(outputs: Sequence[Path], output_format: str) -> bool:
    """Tell whether an output contains drawings of failures."""
    return "html" in {output_format, *(format_of(path, output_format) for path in outputs)}


def check_outputs(outputs: Sequence[Path]) -> None:
    """Raise an error for files that cannot be written, before the reports in them are made."""
    problems = []
    for path in outputs:
        folder = path.resolve().parent
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            problems.append(_not_writable(path, f"{folder} is no folder to write to"))
    if problems:
        raise UsageError(*problems)


def _not_writable(path: Path, reason: str) -> Problem:
    hint = "name a file in a folder that you may write to"
    return Problem("report-not-writable", f"cannot write the report: {reason}", hint, str(path))


def render(report: Report, name: str, *, color: bool = False, warn_threshold: float = 1.0) -> str:
    """Return a report in the format `name`; `color` allows colours in text."""
    look = formats.ReaderOptions(color, warn_threshold)
    return formats.FORMATS[name].writer.write(report, look)


def write_file(path: Path, text: str) -> None:
    """Write a report to a file, either completely or not at all.

    Raises UsageError: ``report-not-writable``.
    """
    from gpuemu_flow.errors import StoreError  # noqa: PLC0415
    from gpuemu_flow.store.atomic import write_atomic  # noqa: PLC0415

    data = text.encode("utf-8", "replace")
    try:
        if path.exists() and not path.is_file():  # a pipe or /dev/stdout is no file to replace
            path.write_bytes(data)
            return
        write_atomic(path, data)
        # Unlike the cache's files, which only the user may read, reports are for others, too.
        mask = os.umask(0)
        os.umask(mask)
        path.chmod(0o666 & ~mask)
    except (OSError, StoreError) as error:
        raise UsageError(_not_writable(path, str(error))) from None


def publish(
    report: Report,
    outputs: Sequence[Path],
    output_format: str,
    *,
    warn_threshold: float,
    to_text: Callable[[Report], str] | None = None,
) -> None:
    """Write a report to files, then print it."""
    written = set()
    for path in outputs:
        name = format_of(path, output_format)
        write_file(path, render(report, name, warn_threshold=warn_threshold))
        written.add(name)
    shown = "text" if output_format in written else output_format
    if shown == "text" and to_text is not None:
        out = to_text(report)
    else:
        color = shown == "text" and wants_color()
        out = render(report, shown, color=color, warn_threshold=warn_threshold)
    say(out, nl=not out.endswith("\n"))


def tell_ci(report: Report, environ: Mapping[str, str] = os.environ) -> None:
    """Print annotations and write the job summary, inside a GitHub workflow.

    Annotations go to standard error because standard output may contain JSON; GitHub reads both.
    """
    summary = environ.get("GITHUB_STEP_SUMMARY")
    if environ.get("GITHUB_ACTIONS") != "true" and not summary:
        return
    from gpuemu_flow.reports import github, markdown  # noqa: PLC0415

    if environ.get("GITHUB_ACTIONS") == "true":
        sys.stdout.flush()
        for line in github.workflow_commands(report):
            click.echo(line, err=True)
    if summary:
        text = markdown.report_to_markdown(report, limit=github.MAX_SUMMARY_BYTES)
        # A summary is optional, so failing to write it is no error.
        with contextlib.suppress(OSError), Path(summary).open("ab") as file:
            file.write(b"\n" + text.encode("utf-8", "replace"))
