"""``gpuemu-flow watch``: after each save, run the affected tasks again, until interrupted."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from msgspec import Struct, field
from msgspec.structs import replace

from gpuemu_flow.build.session import RunOptions, count_jobs, require_trust, selected_tasks
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cli.options import SEED, canonical_dtypes, say, wants_color
from gpuemu_flow.cli.progress import make_listener
from gpuemu_flow.config.load import find_config
from gpuemu_flow.config.model import Overrides
from gpuemu_flow.model.errors import ConfigError, FlowError, Problem, UsageError
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report import text
from gpuemu_flow.report.report import record_run, run_and_report
from gpuemu_flow.report.text import printable
from gpuemu_flow.services.watched_files import FileWatch, may_be_source, wait_for_save
from gpuemu_flow.workers.pool import Pool

if TYPE_CHECKING:
    from gpuemu_flow.judge.results import RunReport


_NAMED = 3


@click.command(short_help="Validate again at every save.")
@click.argument("words", nargs=-1, metavar="[OP|TASK|GROUP|TARGET]...")
@click.option("-j", "--jobs", type=click.IntRange(0), help="Tasks at a time; 0: one per CPU.")
@click.option("--seed", type=SEED, help="Master seed in place of the configuration's.")
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.")
def watch(
    words: tuple[str, ...], jobs: int | None, seed: int | None, dtypes: tuple[str, ...]
) -> None:
    """Validate what changed, now and whenever an input is saved; Ctrl-C ends it.

    After each save, the results of tasks that ran again are shown, together with results that
    still fail. Errors of the configuration are shown, too, and watching continues. Exit code 0; 130
    if a run was interrupted.
    """
    options = RunOptions(words=words, dtypes=canonical_dtypes(dtypes), jobs=jobs)
    watch_with(WatchState, options, seed)


def watch_with(make: type[WatchState], options: RunOptions, seed: int | None) -> NoReturn:
    """Run the tasks again at every save until interrupted, then exit. `make` is the class of the
    watch's state."""
    config = find_config(Path.cwd(), os.environ)
    files = FileWatch(config.parent.resolve())
    files.follow_config(config)
    loop = make(config, files, options, seed)
    try:
        with closing(loop):
            saved: set[str] = set()
            while not loop.turn(saved):
                saved = wait_for_save(files)
    except KeyboardInterrupt:
        say("")
        raise SystemExit(0) from None
    raise SystemExit(130)


class WatchState(Struct):
    """The state of a watch, which keeps the same workers for all of its runs."""

    config: Path
    files: FileWatch
    options: RunOptions
    seed: int | None
    warn_threshold: float = 0.0
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    _environment: dict[str, str] = field(default_factory=dict)
    _problems: tuple[Problem, ...] = ()
    _pool: Pool | None = None
    _sessions: int = 0

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _start_again(self) -> None:
        """Replace this process by a new one, because an installed numeric package has changed."""
        say("another numpy is installed; starting again")
        sys.stdout.flush()
        self.close()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - ourselves

    def _workers(self, workspace: Workspace, options: RunOptions) -> Pool:
        """Return the watch's workers, and start them now so that the next save need not wait."""
        require_trust(workspace)
        sessions = max(count_jobs(workspace, options), self.least_sessions())
        if self._pool is None or sessions != self._sessions:
            self.close()
            self._pool = Pool(sessions)
            self._sessions = sessions
        self._pool.start()
        return self._pool

    def turn(self, saved: set[str]) -> bool:
        """Run the tasks that saved files affect, and show results; return True if interrupted.
        Usually, the names of the saved files are printed. While the configuration has errors, they
        are printed only if one of the files may be a source or is the configuration, or if the
        errors change or vanish. Other files could be logs, even of this command's own output."""
        told = self.config.name in saved or any(map(may_be_source, saved))
        quiet = bool(self._problems and saved) and not told
        if saved and not quiet:
            _tell(saved)
        self.files.refresh()
        interrupted = False
        try:
            report = self._run()
        except FlowError as error:
            if isinstance(error, UsageError) and not saved:
                raise  # the command line is wrong; no save can fix it
            same = error.problems == self._problems
            self._problems = error.problems
            self.files.follow_config(self.config)
            if same and quiet:
                return False
            if quiet:
                _tell(saved)
            for problem in error.problems:
                say(_printable(str(problem)), err=True)
        else:
            self._problems = ()
            interrupted = report.interrupted
            if quiet:
                _tell(saved)
            self.show(report, first=not saved)
        if not interrupted:
            noun = "file" if len(self.files) == 1 else "files"
            say(f"watching {len(self.files)} {noun}; Ctrl-C ends it")
        return interrupted

    def _run(self) -> RunReport:
        if not self.config.is_file():  # otherwise a configuration further up would be used
            raise ConfigError(
                Problem(
                    "config-not-found", "the file is gone", "save it again", file=str(self.config)
                )
            )
        workspace = Workspace(
            self.files.root,
            overrides=Overrides(seed=self.seed),
        )
        if self._environment and self._environment != workspace.environment:
            self._start_again()
        self._environment = workspace.environment
        # Otherwise each save would run the forced tasks again.
        options = replace(self.options, forced=())
        selected = selected_tasks(workspace, options)
        self.files.follow(workspace, selected)
        pool = self._workers(workspace, options)
        with make_listener(live=wants_color()) as listener:
            _, report = run_and_report(workspace, options, listener, pool)
        self.files.follow(workspace, selected)
        record_run(workspace, report)
        self.warn_threshold = workspace.settings.warn_threshold
        return self.explained(workspace, report, pool)

    def least_sessions(self) -> int:
        """Return the minimum number of workers that the method `explained` needs."""
        return 1

    def explained(self, workspace: Workspace, report: RunReport, pool: Pool) -> RunReport:
        """Return the report unchanged; subclasses add the data that their `show` needs."""
        return report

    def show(self, report: RunReport, *, first: bool) -> None:
        """Print results that were computed again or have changed, and results that still fail."""
        quiet = (Verdict.PASSED,) if first else (Verdict.PASSED, Verdict.SKIPPED)
        before, self.verdicts = (
            self.verdicts,
            {
                **{(r.op, r.dtype): r.verdict for r in report.results},
                **{(k.kernel, k.arch): k.verdict for k in report.kernels},
            },
        )

        def tells(name: tuple[str, str], verdict: Verdict, *, cached: bool) -> bool:
            same = before.get(name, verdict) is verdict
            return not (cached and same and verdict in quiet)

        shown = replace(
            report,
            results=tuple(
                r for r in report.results if tells((r.op, r.dtype), r.verdict, cached=r.cached)
            ),
            kernels=tuple(
                k for k in report.kernels if tells((k.kernel, k.arch), k.verdict, cached=k.cached)
            ),
        )
        if shown.results or shown.kernels:
            style = text.Style(wants_color())
            say(text.render_run(shown, style, warn_threshold=self.warn_threshold))
            return
        for problem in report.problems:
            say(_printable(str(problem)))
        say(text.totals_line(report))


def _tell(saved: set[str]) -> None:
    names = sorted(saved)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    clock = time.strftime("%H:%M:%S")
    say(f"\n{clock} saved: {_printable(', '.join(names[:_NAMED]))}{more}")


def _printable(words: str) -> str:
    return printable(words)
