"""``gpuemu-flow artifacts``: the figures of the kernels, with their sources."""

from __future__ import annotations

import click

from gpuemu_flow.cli.lint import lint_report, print_json, split_words
from gpuemu_flow.cli.options import format_option
from gpuemu_flow.cli.say import say, wants_color
from gpuemu_flow.model.types import Verdict


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
        from gpuemu_flow.report import lint_text, text  # noqa: PLC0415

        say(lint_text.render_artifacts(report, text.Style(wants_color())))
    # Showing figures succeeds even if they violate the policy.
    failed = any(result.verdict is Verdict.ERROR for result in report.kernels)
    raise SystemExit(130 if report.interrupted else 3 if failed else 0)
