"""``gpuemu-flow test``: check ops, for editors and interactive use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import SEED_OR_RANDOM, seed_overrides, split_words
from gpuemu_flow.cli.progress import make_listener
from gpuemu_flow.cli.report import (
    FORMATS,
    check_outputs,
    output_option,
    publish,
    report_format_option,
    wants_pictures,
)
from gpuemu_flow.cli.reproduce import reproduce
from gpuemu_flow.cli.say import wants_color
from gpuemu_flow.report import report_text, text
from gpuemu_flow.report.ci import QUICK, THOROUGH, ReportRequest, check
from gpuemu_flow.store.failures import FailureStore

if TYPE_CHECKING:
    from gpuemu_flow.report.document import Report


@click.command(short_help="Check ops, one line each.")
@click.option("--quick", is_flag=True, help="Only the dtypes of ci.quick_dtypes.")
@click.option("--thorough", is_flag=True, help="Everything; the default.")
@SEED_OR_RANDOM
@click.option("--op", "ops", multiple=True, help="Only this op; may be repeated.")
@click.option("--kernel", "kernels", multiple=True, help="Only this kernel; may be repeated.")
@report_format_option(*FORMATS)
@output_option
def test(
    quick: bool,
    thorough: bool,
    seed: int | str | None,
    ops: tuple[str, ...],
    kernels: tuple[str, ...],
    output_format: str,
    outputs: tuple[Path, ...],
) -> None:
    """Check the ops and kernels; failing cases are shown as [FAIL] OP (seed: N): MESSAGE.

    With --seed N of a recorded failure, its case is run again, as `reproduce` does.
    """
    if quick and thorough:
        raise click.UsageError("choose one of --quick and --thorough")
    check_outputs(outputs)
    workspace = Workspace(overrides=seed_overrides(seed, QUICK if quick else THOROUGH))
    if isinstance(seed, int) and output_format == "text" and not outputs:
        op = ops[0] if len(ops) == 1 else None
        if FailureStore(workspace.cache).find(seed, op):
            click.get_current_context().invoke(reproduce, failure=str(seed), op=op)
    names = (*split_words(ops), *split_words(kernels))
    request = ReportRequest(
        names, quick=quick, limited=False, pictures=wants_pictures(outputs, output_format)
    )
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = check(workspace, request, listener)
    warn = workspace.settings.warn_threshold

    def shown(found: Report) -> str:
        return report_text.render_test(found, text.Style(wants_color()), warn_threshold=warn)

    publish(report, outputs, output_format, warn_threshold=warn, to_text=shown)
    raise SystemExit(report.exit_code)
