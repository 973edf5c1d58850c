"""``gpuemu-flow lint`` and ``artifacts``: check kernels, and show their figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option, say, wants_color
from gpuemu_flow.cli.progress import make_listener
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report import json_writer, lint_text, linting, sarif, text
from gpuemu_flow.report.linting import explain_rule, lint_files

if TYPE_CHECKING:
    from gpuemu_flow.judge.results import RunReport


_FILE_SUFFIXES = (".ptx", ".cubin", ".cu")


@click.command(short_help="Check kernels against the lint rules.")
@click.argument("words", nargs=-1, metavar="[FILE.ptx|FILE.cubin|KERNEL]...")
@click.option("-k", "--kernel", "kernels", multiple=True, help="Only this kernel; may be repeated.")
@click.option("-p", "--ptx", "files", multiple=True, help="A PTX file; may be repeated.")
@click.option("--explain", "rule", metavar="RULE", help="Describe a rule, and stop.")
@format_option("text", "json", "sarif")
def lint(
    words: tuple[str, ...],
    kernels: tuple[str, ...],
    files: tuple[str, ...],
    rule: str | None,
    output_format: str,
) -> None:
    """Check the configured kernels, or PTX and cubin files, which need no configuration."""
    if rule is not None:
        say(explain_rule(rule), nl=False)
        return
    named, names = split_words(words)
    report = lint_report([*map(Path, files), *named], (*kernels, *names), output_format)
    if output_format == "sarif":
        say(json_writer.dumps(sarif.lint_to_sarif(report)))
    elif output_format == "json":
        print_json(report)
    else:
        say(lint_text.render_lint(report, text.Style(wants_color())))
    raise SystemExit(report.exit_code)


def split_words(words: Iterable[str]) -> tuple[list[Path], list[str]]:
    files, names = [], []
    for word in words:
        if Path(word).suffix in _FILE_SUFFIXES:
            files.append(Path(word))
        else:
            names.append(word)
    return files, names


def lint_report(
    files: list[Path], names: tuple[str, ...], output_format: str, *, listing: bool = False
) -> RunReport:
    """Lint the given files, or the workspace's kernels if no compiled file is given."""
    sources = [path for path in files if path.suffix == ".cu"]
    if files and not sources:
        return lint_files(files, names, linting.open_workspace(), listing=listing)
    workspace = Workspace()
    names = (*names, *linting.names_of_sources(workspace, files))
    with make_listener(live=wants_color() and output_format == "text") as listener:
        return linting.lint_workspace(workspace, names, listener)


def print_json(report: RunReport) -> None:
    whole = json_writer.run_report(report)
    common = ("schema_version", "kernels", "problems")
    say(json_writer.dumps({name: whole[name] for name in common}))


# ``gpuemu-flow artifacts``: the figures of the kernels, with their sources.


@click.command(short_help="Show the kernels' registers, spills, occupancy, instruction mix.")
@click.argument("words", nargs=-1, metavar="[FILE.ptx|FILE.cubin|KERNEL]...")
@click.option("-k", "--kernel", "kernels", multiple=True, help="Only this kernel; may be repeated.")
@format_option("text", "json")
def artifacts(words: tuple[str, ...], kernels: tuple[str, ...], output_format: str) -> None:
    """Show the figures of the configured kernels for each architecture; build stale kernels.

    PTX files and cubins given as arguments need no configuration.
    """
    files, names = split_words(words)
    report = lint_report(files, (*names, *kernels), output_format, listing=True)
    if output_format == "json":
        print_json(report)
    else:
        say(lint_text.render_artifacts(report, text.Style(wants_color())))
    # Showing figures succeeds even if they violate the policy.
    failed = any(result.verdict is Verdict.ERROR for result in report.kernels)
    raise SystemExit(130 if report.interrupted else 3 if failed else 0)
