"""``gpuemu-flow fuzz`` and ``check``: try many cases of ops, or of two functions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from gpuemu_flow.build.signals import cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import (
    NO_CONFIRM,
    SEED,
    canonical_dtypes,
    config_options,
    executor_options,
    format_option,
    say,
    split_words,
    wants_color,
)
from gpuemu_flow.cli.progress import fuzz_display
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz.fuzzing import FuzzOptions
from gpuemu_flow.fuzz.session import fuzz_ops
from gpuemu_flow.report import fuzz_text, json_writer, text

if TYPE_CHECKING:
    from gpuemu_flow.cli.options import ExecutorOptions


_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, None: 1.0}


def parse_duration(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> float | None:
    """Parse a duration with the unit ms, s, m or h into seconds."""
    if value is None:
        return None
    found = _TIME.fullmatch(value.strip())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise click.BadParameter(f"{value!r} is no time such as 60s, 5m or 1h")
    return seconds


def parse_shapes(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> tuple[tuple[int, ...], ...]:
    """Parse shapes such as ``8x128x512,1x7``."""
    shapes = []
    for word in (value or "").split(","):
        if value is None:
            break
        if not re.fullmatch(r"\d{1,9}(x\d{1,9})*", word.strip()):
            raise click.BadParameter(f"{word!r} is no shape such as 8x128x512")
        shapes.append(tuple(int(d) for d in word.split("x")))
    return tuple(shapes)


@click.command(short_help="Try many seeded cases of ops.")
@click.argument("ops", nargs=-1, metavar="[OP]...")
@click.option("-o", "--op", "more_ops", multiple=True, help="An op to fuzz; may be repeated.")
@click.option("-n", "-i", "--iterations", type=click.IntRange(1), help="Cases per op.")
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.")
@click.option("--strategy", "strategies", multiple=True, help="Value strategies or groups.")
@click.option("--layout", "layouts", multiple=True, help="Memory layouts.")
@click.option(
    "--shapes",
    callback=parse_shapes,
    metavar="SHAPES",
    help="Exactly these shapes, as 8x128x512.",
)
@click.option("-x", "--fail-fast", is_flag=True, help="Stop an op at its first failure.")
@click.option(
    "--time",
    "time_limit",
    callback=parse_duration,
    metavar="TIME",
    help="Stop fuzzing an op after this time, as 60s.",
)
@click.option("--minimize", is_flag=True, help="Shrink the smallest failure of each cause.")
@click.option("-j", "--jobs", type=click.IntRange(0), help="Cases at a time; 0: one per CPU.")
@click.option("--force", is_flag=True, help="Judge every case, whatever is cached.")
@executor_options
@config_options
@NO_CONFIRM
@format_option("text", "json")
def fuzz(
    ops: tuple[str, ...],
    more_ops: tuple[str, ...],
    iterations: int | None,
    seed: int | None,
    dtypes: tuple[str, ...],
    strategies: tuple[str, ...],
    layouts: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    fail_fast: bool,
    time_limit: float | None,
    minimize: bool,
    jobs: int | None,
    force: bool,
    executor: ExecutorOptions,
    profile: str,
    settings: tuple[str, ...],
    confirm: bool,
    output_format: str,
) -> None:
    """Try many seeded cases of the named ops; without names, of all ops."""
    workspace = Workspace(overrides=Overrides(profile=profile, settings=settings))
    options = FuzzOptions(
        iterations=iterations,
        seed=seed,
        dtypes=canonical_dtypes(dtypes),
        strategies=split_words(strategies),
        layouts=split_words(layouts),
        shapes=shapes,
        fail_fast=fail_fast,
        time_limit=time_limit,
        jobs=jobs if jobs is not None else workspace.settings.jobs,
        force=force,
        confirm=confirm,
    )
    live = wants_color() and output_format == "text"
    with (
        cancel_on_signals() as cancel,
        executor.open_cluster(options.jobs, force=force) as cluster,
        fuzz_display(live=live) as display,
    ):
        reports = fuzz_ops(
            workspace,
            (*ops, *more_ops),
            options,
            minimize=minimize,
            on_start=display.start,
            on_case=display.case,
            cancel=cancel,
            cluster=cluster,
        )
    if any(report.groups for report in reports):
        from gpuemu_flow.report.minimal import with_shown  # noqa: PLC0415 - for failures

        reports = [with_shown(workspace, report) for report in reports]
    if output_format == "json":
        objects = [json_writer.fuzz_report(report) for report in reports]
        say(
            json_writer.dumps(
                objects[0] if len(objects) == 1 else {"schema_version": 1, "ops": objects}
            )
        )
    else:
        style = text.Style(wants_color())
        say("\n".join(fuzz_text.render(report, style) for report in reports))
    for problem in workspace.cache.problems:
        say(str(problem), err=True)
    raise SystemExit(fuzz_text.exit_code(reports))


# ``gpuemu-flow check``: judge one op by one reference, without a workspace.


@click.command(short_help="Judge one op by one reference, without a workspace.")
@click.argument("op", metavar="OP.py[:f]")
@click.argument("reference", metavar="REF.py[:g]")
@click.option("-i", "--input", "inputs", multiple=True, metavar="NAME=DTYPE[DIMS]|VALUE",
              help="What the signature does not say, as x=float32[M,N] or eps=1e-5.")  # fmt: skip
@click.option("--dtype", "dtypes", multiple=True, help="Dtypes of the op; default: float32.")
@click.option("--seconds", default="10", show_default=True, callback=parse_duration,
              metavar="TIME", help="Time for the cases.")  # fmt: skip
@click.option("--seed", type=SEED, default=42, show_default=True, help="Master seed.")
@click.option("--mutates", multiple=True, metavar="NAME", help="An input that the op may change.")
@click.option("--grid", default="", help="Of a CUDA kernel, as M or M,N; default: all elements.")
@click.option("--block", default="", help="Threads of a block of a CUDA kernel; default: 256.")
@format_option("text", "json")
def check(
    op: str,
    reference: str,
    inputs: tuple[str, ...],
    dtypes: tuple[str, ...],
    seconds: float,
    seed: int,
    mutates: tuple[str, ...],
    grid: str,
    block: str,
    output_format: str,
) -> None:
    """Judge OP by REF: functions, a CUDA kernel or what launches it, ModelNew beside Model.

    Nothing is written. Names, dtypes and shapes of inputs come from signatures and annotations;
    --input says what these do not. Exit codes: 0 passed, 1 failed, 2 something has to be said,
    3 the op crashed, 4 nothing was judged.
    """
    from gpuemu_flow.services.check import Request, run_check  # noqa: PLC0415

    names = canonical_dtypes(split_words(dtypes))
    found = run_check(
        Request(op, reference, inputs, names, seconds, seed, grid, block, split_words(mutates))
    )
    if output_format == "json":
        say(json_writer.dumps(found.to_json()))
    else:
        say(found.text(text.Style(wants_color())))
    raise SystemExit(found.exit_code)
