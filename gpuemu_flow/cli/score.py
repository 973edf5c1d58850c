"""``gpuemu-flow score``: print the verdict, error and cause for each problem and candidate."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NoReturn

import click

from gpuemu_flow.build.session import RunOptions, count_jobs
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import NO_CONFIRM, SEED, format_option, say, wants_color
from gpuemu_flow.cli.progress import make_listener, say_looking
from gpuemu_flow.cli.watch import WatchState, watch_with
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.fuzz.causes import cause_budget, with_causes
from gpuemu_flow.judge.case_evaluator import SESSIONS_PER_EVALUATOR
from gpuemu_flow.report import json_writer, text
from gpuemu_flow.report.report import run_and_report
from gpuemu_flow.services.problems.score import scaled_sizes, scores_of
from gpuemu_flow.tasks import stages
from gpuemu_flow.workers.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuemu_flow.judge.results import RunReport
    from gpuemu_flow.model.errors import Problem
    from gpuemu_flow.services.problems.score import Score, Scores


_HEAD = ("problem", "candidate", "verdict", "passed", "worst error", "tolerance", "cause")


@click.command(short_help="Score the candidates of each problem.")
@click.argument("words", nargs=-1, metavar="[OP|TARGET]...")
@click.option("-j", "--jobs", type=click.IntRange(0), help="Tasks at a time; 0: one per CPU.")
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@NO_CONFIRM
@format_option("text", "json", "html")
@click.option("--watch", "watching", is_flag=True, help="Score again at every save.")
def score(
    words: tuple[str, ...],
    jobs: int | None,
    seed: int | None,
    confirm: bool,
    output_format: str,
    watching: bool,
) -> None:
    """Validate what changed, and print a score for each problem and candidate.

    A file that is added to a folder of candidates becomes a candidate; with --watch, immediately.

    Exit codes: 0 each candidate was judged, right or wrong; 4 some were not; 130 interrupted.
    """
    if watching:
        if output_format != "text":
            raise click.UsageError("--watch prints text only")
        _watch(words, jobs, seed, confirm=confirm)
    workspace = Workspace(overrides=Overrides(seed=seed))
    options = RunOptions(words=words, jobs=jobs)
    sessions = max(count_jobs(workspace, options), SESSIONS_PER_EVALUATOR)
    with (
        make_listener(live=wants_color() and output_format == "text") as listener,
        # Keep workers of both: importing a framework takes longer than running a problem.
        Pool(sessions) as pool,
    ):
        outcome, report = run_and_report(workspace, options, listener, pool)
        budget = cause_budget(workspace, confirm=confirm)
        report = with_causes(workspace, report, budget=budget, announce=say_looking, pool=pool)
    tasks = (outcome.graph.tasks[name] for name in outcome.graph.tasks if name in outcome.selected)
    asked = dict.fromkeys(spec.subject for spec in tasks if spec.stage == stages.COMPARE)
    scores = scores_of(report, asked, scaled_sizes(workspace))
    if output_format == "json":
        say(json_writer.dumps(scores.to_json()))
    elif output_format == "html":
        from gpuemu_flow.report.html_writer import scores_to_html  # noqa: PLC0415

        say(scores_to_html(_HEAD, _rows(scores), _summary(scores)))
    else:
        say(text.printable(_table(scores)))
    _tell_problems(report, workspace.settings.warnings)
    raise SystemExit(scores.exit_code)


def _tell_problems(report: RunReport, configured: Sequence[Problem]) -> None:
    for problem in report.problems:
        if not problem.warning or problem in configured:
            say(text.printable(str(problem)), err=True)


def _watch(
    words: tuple[str, ...], jobs: int | None, seed: int | None, *, confirm: bool
) -> NoReturn:
    class ScoreWatch(WatchState):
        """A watch that prints scores."""

        configured: Sequence[Problem] = ()
        scaled: Mapping[str, str] = MappingProxyType({})

        def least_sessions(self) -> int:
            return SESSIONS_PER_EVALUATOR

        def explained(self, workspace: Workspace, report: RunReport, pool: Pool) -> RunReport:
            self.configured = workspace.settings.warnings
            self.scaled = scaled_sizes(workspace)
            budget = cause_budget(workspace, confirm=confirm)
            return with_causes(workspace, report, budget=budget, announce=say_looking, pool=pool)

        def show(self, report: RunReport, *, first: bool) -> None:
            say(text.printable(_table(scores_of(report, (), self.scaled))))
            _tell_problems(report, self.configured)

    watch_with(ScoreWatch, RunOptions(words=words, jobs=jobs), seed)


def _table(scores: Scores) -> str:
    if not scores.rows:
        return _summary(scores)
    rows = [_HEAD, *_rows(scores)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    lines = [
        "  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]))
        for row in rows
    ]
    lines.append(_summary(scores))
    return "\n".join(line.rstrip() for line in lines)


def _rows(scores: Scores) -> list[tuple[str, ...]]:
    return [
        (
            one.problem,
            one.candidate,
            one.word,
            f"{one.passed}/{one.cases}",
            f"{one.max_abs:.3g}",
            f"{one.tolerance_used:.0%}" if one.tolerance_used < 100 else "> 100 x",
            " ".join(one.cause.split())[:120] or _untried(one),
        )
        for one in scores.rows
    ]


def _untried(score: Score) -> str:
    """Return what a correct candidate was not tried with; empty if there is nothing."""
    count = score.inconclusive
    left = f"no verdict in {count} case{'s' * (count != 1)}" if count else ""
    return "; ".join(filter(None, (left, score.up_to)))


def _summary(scores: Scores) -> str:
    if not scores.rows:
        return "nothing was selected that could be scored"
    judged = [one for one in scores.rows if one.correct is not None]
    right = sum(one.correct is True for one in judged)
    missing = len(scores.rows) - len(judged)
    return f"{right} correct, {len(judged) - right} wrong" + f", {missing} not judged" * bool(
        missing
    )
