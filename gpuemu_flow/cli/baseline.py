"""``gpuemu-flow baseline`` and ``diff``: store results under a name, and compare with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import format_option, say, telling_damage, wants_color
from gpuemu_flow.cli.progress import make_listener
from gpuemu_flow.report import baselines, json_writer, lint_text, text
from gpuemu_flow.store.baselines import BaselineStore, check_tag, write_file

if TYPE_CHECKING:
    from gpuemu_flow.report.baselines import StoredBaseline
    from gpuemu_flow.store.baselines import Baseline


class _TagGroup(click.Group):
    """A command group in which ``baseline TAG`` is short for ``baseline store TAG``."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            if len(args) > 1 and not any(word.startswith("-") for word in args[:2]):
                ctx.fail(
                    f"`baseline` has no command {args[0]!r}; `gpuemu-flow baseline TAG` stores "
                    "one, `gpuemu-flow diff TAG` compares with it"
                )
            args = ["store", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=_TagGroup, short_help="Store, list and move baselines.")
def baseline() -> None:
    """Store, list, show, export and import baselines: figures of kernels and results of ops.

    `gpuemu-flow baseline TAG` stores one; `gpuemu-flow diff` compares with it.
    """


@baseline.command()
@click.argument("tag")
@format_option("text", "json")
def store(tag: str, output_format: str) -> None:
    """Bring the workspace up to date and store its figures and results as TAG.

    A baseline of that name is replaced, never merged with.
    """
    check_tag(tag)
    workspace = Workspace()
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = baselines.bring_up_to_date(workspace, listener)
    if report.interrupted:
        raise SystemExit(130)
    made = baselines.store(workspace, tag, report)
    if output_format == "json":
        facts = {"replaced": made.replaced, "dropped": made.dropped}
        _print_json({"baseline": _facts(made.baseline), **facts})
        return
    for problem in report.problems:
        say(text.printable(str(problem)), err=True)
    say(f"{_stored_line(made)}; now {text.verdicts_line(report)}")
    _say_dropped(made)


@baseline.command("list")
@format_option("text", "json")
def list_baselines(output_format: str) -> None:
    """List the baselines, newest first."""
    found = _open_store().list()
    if output_format == "json":
        _print_json({"baselines": [_facts(one) for one in found]})
    else:
        say("\n".join(_line(one) for one in found) or "there are no baselines")


@baseline.command()
@click.argument("tag")
@format_option("text", "json")
def show(tag: str, output_format: str) -> None:
    """Show the content of a baseline."""
    found = _open_store().get(tag)
    if output_format == "json":
        _print_json({"baseline": found})
        return
    lines = [_line(found)]
    for entries in found.kernels.values():
        for e in entries:
            lines.append(
                f"  {e['name']} {e['arch']}: {e['registers']} registers, "
                f"{e['spill_instructions']} spill instructions ({e['metric_source']})"
            )
    for op, dtypes in found.results.items():
        for dtype, summary in dtypes.items():
            error = text.number(float(summary["max_abs"]))
            lines.append(f"  {op} {dtype}: {summary['verdict']}, max abs {error}")
    say(text.printable("\n".join(lines)))


@baseline.command()
@click.argument("tag")
def delete(tag: str) -> None:
    """Delete a baseline."""
    _open_store().delete(tag)
    say(f"deleted {tag}")


@baseline.command()
@click.argument("tag")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def export(tag: str, file: Path) -> None:
    """Write a baseline as a JSON file, for another machine or a repository."""
    write_file(file, _open_store().get(tag))
    say(str(file))


@baseline.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--tag", default="", help="Another name than the file's.")
def import_baseline(file: Path, tag: str) -> None:
    """Import an exported baseline."""
    made = baselines.import_file(Workspace(), file, tag)
    say(_stored_line(made))
    _say_dropped(made)


def _stored_line(made: StoredBaseline) -> str:
    return f"{'replaced' if made.replaced else 'stored'} {_line(made.baseline)}"


def _say_dropped(made: StoredBaseline) -> None:
    if made.dropped:
        names = ", ".join(made.dropped)
        say(f"dropped, as storage.max_baselines leaves no room: {names}", err=True)


def _open_store() -> BaselineStore:
    return BaselineStore(telling_damage(Workspace()).cache)


def _facts(found: Baseline) -> dict[str, object]:
    return {
        "tag": found.tag,
        "created": found.created,
        "tool": found.tool,
        "kernels": sum(len(entries) for entries in found.kernels.values()),
        "results": sum(len(dtypes) for dtypes in found.results.values()),
    }


def _line(found: Baseline) -> str:
    facts = _facts(found)
    return (
        f"{found.tag}: {facts['kernels']} kernels, {facts['results']} results, "
        f"{found.created[:19].replace('T', ' ')} UTC"
    )


def _print_json(content: dict[str, object]) -> None:
    say(json_writer.dumps({"schema_version": 1, **content}))


# ``gpuemu-flow diff``: compare kernels and results with a baseline.


@click.command(short_help="Compare kernels and results with a baseline.")
@click.argument("tag", required=False)
@click.option("-b", "--baseline", "baseline_tag", metavar="TAG", help="Default: newest.")
@click.option(
    "--fail-on-regression/--no-fail-on-regression",
    default=None,
    help="Exit 1 when something got worse; default: as in [policies].",
)
@format_option("text", "json")
def diff(
    tag: str | None, baseline_tag: str | None, fail_on_regression: bool | None, output_format: str
) -> None:
    """Bring the workspace up to date and compare it with a baseline."""
    if tag is not None and baseline_tag not in (None, tag):
        raise click.UsageError("name one baseline")
    wanted = tag or baseline_tag
    workspace = telling_damage(Workspace())
    known = BaselineStore(workspace.cache)
    baseline = known.comparable(wanted) if wanted is not None else known.newest()
    with make_listener(live=wants_color() and output_format == "text") as listener:
        report = baselines.bring_up_to_date(workspace, listener, to_compare=True)
    if report.interrupted:
        raise SystemExit(130)
    found = baselines.diff(workspace, baseline, report)
    if output_format == "json":
        say(json_writer.dumps(json_writer.baseline_diff(found)))
    else:
        title = f"against {baseline.tag} of {baseline.created[:19].replace('T', ' ')} UTC"
        style = text.Style(wants_color())
        say(lint_text.render_diff(found.kernels, found.results, style, title=title))
        for problem in report.problems:
            say(text.printable(str(problem)), err=True)
    gate = fail_on_regression
    if gate is None:
        gate = workspace.settings.fail_on_regression
    if gate and found.has_regressions:
        raise SystemExit(1)
    raise SystemExit(3 if any(not problem.warning for problem in report.problems) else 0)
