"""One run: select tasks, find the stale ones, execute them, store the new state."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field, to_builtins

from gpuemu_flow.build.files import FileTable, own_code_digest
from gpuemu_flow.build.graph import Graph, Listener, is_set, owned, select, touched_since
from gpuemu_flow.build.states import TaskStates
from gpuemu_flow.build.workspace import Workspace, shared
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.store.keys import TRIGGERS, BuildReason
from gpuemu_flow.store.private_files import PrivateFolder, RunLock
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext
from gpuemu_flow.workers.sandbox.spec import lacks, missing_problem

if TYPE_CHECKING:
    from gpuemu_flow.build.graph import Shard
    from gpuemu_flow.build.run import Executor
    from gpuemu_flow.workers.pool import Pool


# Refuse to run other users' code, except in workspaces that the user trusts.
#
# `gpuemu.toml` is searched from the current folder upward. A file that somebody else left in a
# shared folder would therefore be run by everyone who works below it. Files that belong to the user
# or to root are always run, just as ``make`` and ``pytest`` run them. This adds no risk, since the
# user and root can run any code in the user's name anyway.

TRUST_VARIABLE = "GPUEMU_TRUST"
REMEMBER = "remember"
"""Value of `TRUST_VARIABLE` that trusts the workspace like ``1`` and also stores it as trusted."""
FILE_NAME = "trusted.json"
MOST_REMEMBERED = 1000
_NAMED = 3

Ask = Callable[[str], bool]


class ForeignWorkspace(Struct, frozen=True):
    """A workspace with files of other users."""

    path: str
    owners: tuple[int, ...]
    device: int


def require_trust(
    workspace: Workspace,
    environ: Mapping[str, str] = os.environ,
    ask: Ask | None = None,
) -> None:
    """Raise an error if a workspace contains other users' files, unless the user trusts it."""
    if workspace.trusted:
        return
    root = workspace.root
    sources = {path for spec in workspace.graph.tasks.values() for path in spec.sources}
    own, inside = own_users(environ), f"{root}/".replace("//", "/")
    paths = {path if path.startswith("/") else inside + path for path in sources}
    foreign = foreign_owners(str(root), [str(workspace.config_path), *sorted(paths)], own)
    if not foreign:
        workspace.trusted = True
        return
    owners = tuple(sorted(set(foreign.values())))
    untrusted = ForeignWorkspace(str(root), owners, root.stat().st_dev)
    granted = environ.get(TRUST_VARIABLE, "")
    if granted == "1" or untrusted in remembered(environ):
        workspace.trusted = True
        return
    names = ", ".join(printable(os.path.relpath(path, root)) for path in list(foreign)[:_NAMED])
    told = f"{printable(str(root))} has files of another user ({names}; user id {owners[0]})"
    if granted != REMEMBER and not (ask or _ask_on_terminal)(f"{told}. Run its code? [y/N] "):
        hint = f"look at it, then run with --trust, or set {TRUST_VARIABLE}=1"
        raise UsageError(Problem("workspace-untrusted", f"{told}; nothing was run", hint))
    _remember_trust(untrusted, environ)
    workspace.trusted = True


def own_users(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the ids of the users whose files are always run: this user, root, sudo's caller."""
    found = {os.geteuid(), 0}
    given = environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and given.isascii() and given.isdigit():
        found.add(int(given[:10]))
    return frozenset(found)


def foreign_owners(root: str, files: Iterable[str], own: frozenset[int]) -> dict[str, int]:
    """Map each path that another user owns to the owner's user id. Users whose ids are in `own` do
    not count as other users. The given files are checked, and also the folder `root`, unless it is
    sticky like ``/tmp``. A link counts as another user's if the link or its target is."""
    found: dict[str, int] = {}
    for path in (root, *files):
        try:  # no function call here: there may be thousands of the user's own files
            seen = os.lstat(path)
        except OSError:
            continue
        if seen.st_uid in own and not stat.S_ISLNK(seen.st_mode):
            continue
        for status in _statuses(path):
            # A sticky folder such as /tmp does not count, only the files inside it.
            sticky = path == root and status.st_mode & stat.S_ISVTX
            if status.st_uid not in own and not sticky:
                found[path] = status.st_uid
    return found


def _statuses(path: str) -> list[os.stat_result]:
    """Return the status of a file, and of its target if it is a link; empty if it is missing."""
    found = []
    with contextlib.suppress(OSError):
        found.append(os.lstat(path))
        if stat.S_ISLNK(found[0].st_mode):
            found.append(os.stat(path))  # noqa: PTH116 - as often as there are sources
    return found


def trusted_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's list of trusted workspaces."""
    given = environ.get("XDG_CONFIG_HOME", "")
    home = Path(environ.get("HOME") or Path.home())
    return (Path(given) if given.startswith("/") else home / ".config") / "gpuemu" / FILE_NAME


def remembered(environ: Mapping[str, str]) -> list[ForeignWorkspace]:
    path = trusted_file(environ)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return []
        entries = json.loads(path.read_bytes())["trusted"]
        return [
            ForeignWorkspace(str(e["path"]), tuple(int(o) for o in e["owners"]), int(e["device"]))
            for e in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _remember_trust(untrusted: ForeignWorkspace, environ: Mapping[str, str]) -> None:
    """Add a workspace to the list of trusted workspaces, if that file can be written."""
    known = [one for one in remembered(environ) if one.path != untrusted.path]
    content = {"trusted": [to_builtins(one) for one in [*known, untrusted][-MOST_REMEMBERED:]]}
    path = trusted_file(environ)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        PrivateFolder(path.parent).write(path, json.dumps(content, indent=1).encode())


def _ask_on_terminal(question: str) -> bool:
    """Ask the user on the terminal; return True only if the answer is yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


_MENDINGS = 5
"""Most times that a run makes again what it found damaged only when it read it, stage by stage."""


class RunOptions(Struct, frozen=True):
    """The options that a command passes to a run."""

    words: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    since: str = ""
    shard: Shard | None = None
    until: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()
    jobs: int | None = None
    fail_fast: bool | None = None
    force: bool = False
    dry_run: bool = False
    triggers: tuple[str, ...] = TRIGGERS
    time_limit: float | None = None

    @property
    def may_be_nothing(self) -> bool:
        """Tell whether these options may select no task without causing an error. This is so if
        there are `words` and all of them name sets, such as ``@changed``. It is also so if `since`
        or `shard` is given."""
        sets_alone = bool(self.words) and all(map(is_set, self.words))
        return sets_alone or bool(self.since) or self.shard is not None


class RunOutcome(Struct):
    """The outcome of a run."""

    graph: Graph
    options: RunOptions
    selected: set[str]
    status: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, list[BuildReason]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    interrupted: bool = False
    timed_out: bool = False
    duration_s: float = 0.0

    @property
    def executed(self) -> list[str]:
        return [name for name in self.graph.tasks if self.status.get(name) == "ran"]

    def ordered_status(self) -> dict[str, str]:
        return {name: self.status[name] for name in self.graph.tasks if name in self.status}

    @property
    def everything(self) -> bool:
        """Tell whether no option restricts the run to some of the tasks."""
        asked = self.options
        limited = asked.words or asked.dtypes or asked.until or asked.since or asked.shard
        return not limited

    def all_current(self, workspace: Workspace) -> bool:
        """Tell whether every task of the run's graph is now known to be current."""
        return set(self.graph.tasks) <= workspace.snapshot.current


def run(
    workspace: Workspace,
    options: RunOptions,
    listener: Listener | None = None,
    pool: Pool | None = None,
    conclude: Callable[[RunOutcome], None] | None = None,
) -> RunOutcome:
    """Bring the selected tasks up to date. Raises UsageError: A word of the options names nothing.
    Raises StoreError: The cache cannot be used. Raises RunnerError: ``sandbox-missing``."""
    shown = listener or Listener()
    _check_fence(workspace)
    cache = workspace.cache
    selected = selected_tasks(workspace, options)  # report wrong words before waiting for the lock
    cache.create()
    with RunLock(cache.lock_path, shown.on_wait) as lock:
        try:
            if lock.waited:
                workspace.renew()
                _check_fence(workspace)
                selected = selected_tasks(workspace, options)
            outcome = _run(workspace, options, selected, shown, pool)
            if conclude is not None:
                conclude(outcome)
            for _ in range(_MENDINGS):
                if not cache.lost or options.dry_run:
                    break
                cache.lost.clear()
                before = outcome.status
                outcome = _run(workspace, options, selected, shown, pool)
                for name, status in outcome.status.items():
                    outcome.status[name] = before[name] if status == "current" else status
                if conclude is not None:
                    conclude(outcome)
        finally:
            workspace.close()
    return outcome


def _run(
    workspace: Workspace,
    options: RunOptions,
    selected: set[str],
    shown: Listener,
    pool: Pool | None,
) -> RunOutcome:
    """Do the work of `run` while the workspace's lock is held."""
    begin = time.perf_counter()
    forced = _forced(workspace, options) & selected
    outcome = RunOutcome(workspace.graph, options, selected)
    todo = selected
    if not options.force:
        todo = workspace.stale(selected, options.triggers) | forced
    outcome.problems += _ignored_changes(workspace, options, selected - todo)
    outcome.status = dict.fromkeys(selected - todo, "current")
    shown.on_plan(len(selected), len(todo))
    if options.dry_run:
        states = workspace.states(options.triggers)
        for name in todo:
            spec = workspace.graph.tasks[name]
            outcome.status[name] = "pending"
            reasons = states.reasons(spec, states.parts(spec))
            if name in forced:
                reasons = [BuildReason("forced", new="--force" if options.force else "--forcerun")]
            elif not reasons:
                made_again = ", ".join(i.task for i in spec.inputs if i.task in todo)
                reasons = [BuildReason("follows", new=made_again)]
            outcome.reasons[name] = reasons
        outcome.problems += _unordered(workspace, outcome)
    else:
        states = workspace.states()
        with states.only_writer():
            if todo:
                _execute(workspace, options, todo, outcome, shown, pool, forced, states)
            outcome.problems += _unordered(workspace, outcome)
            _remember(workspace, outcome, states)
    outcome.problems += workspace.cache.problems
    outcome.duration_s = time.perf_counter() - begin
    return outcome


def selected_tasks(workspace: Workspace, options: RunOptions) -> set[str]:
    """Return the tasks that a run with these options covers, dependencies included."""
    graph = workspace.graph
    selected = graph.upstream(chosen_tasks(workspace, options))
    if options.until:
        selected &= graph.upstream(select(workspace, options.until))
    return selected


def chosen_tasks(workspace: Workspace, options: RunOptions) -> set[str]:
    """Return the tasks that the options select, without their dependencies. Raises UsageError: A
    word names nothing, or the commit does not exist."""
    graph = workspace.graph
    chosen = select(workspace, options.words, options.dtypes)
    if options.since:
        require_trust(workspace)  # git may run what a repository configures
        chosen &= touched_since(workspace, options.since)
    if options.shard is not None:
        mine = owned(graph, options.shard)
        chosen = {name for name in chosen if graph.tasks[name].subject in mine}
    return chosen


def _forced(workspace: Workspace, options: RunOptions) -> set[str]:
    """Return the tasks that have to run even if their results are cached."""
    graph = workspace.graph
    if options.force:
        return set(graph.tasks)
    return graph.downstream(select(workspace, options.forced)) if options.forced else set()


def count_jobs(workspace: Workspace, options: RunOptions) -> int:
    """Return the number of tasks that may run at a time."""
    jobs = options.jobs if options.jobs is not None else workspace.settings.jobs
    return jobs or os.cpu_count() or 1


def _ignored_changes(workspace: Workspace, options: RunOptions, left: set[str]) -> list[Problem]:
    """Return a warning, in a list, if tasks in `left` changed, but only in ways the run ignores."""
    if set(options.triggers) == set(TRIGGERS) or options.force:
        return []
    states, tasks = workspace.states(), workspace.graph.tasks
    differ = [n for n in left if states.reasons(tasks[n], states.parts(tasks[n]))]
    if not differ:
        return []
    ignored = ", ".join(t for t in TRIGGERS if t not in options.triggers)
    message = f"{len(differ)} tasks were not run although they changed in {ignored}"
    return [Problem("ignored-changes", message, "leave out --rerun-triggers", warning=True)]


def _check_fence(workspace: Workspace) -> None:
    """Raise RunnerError ``sandbox-missing`` if a required sandbox is not available."""
    level, mode = workspace.snapshot.basis.sandbox, workspace.settings.sandbox
    if mode == "require" and lacks(level):
        raise RunnerError(missing_problem(level))


def _execute(
    workspace: Workspace,
    options: RunOptions,
    todo: set[str],
    outcome: RunOutcome,
    listener: Listener,
    pool: Pool | None,
    forced: set[str],
    states: TaskStates,
) -> None:
    from gpuemu_flow.build.run import Executor  # noqa: PLC0415 - doit only when tasks may run

    require_trust(workspace)
    jobs = count_jobs(workspace, options)
    workspace.forget_clean()
    workspace.cache.clear_staging()
    # Changed inputs always count, whatever the triggers: else a new output would keep the verdict
    # on the old output.
    triggers = {*options.triggers, "input"}
    basis, files = workspace.snapshot.basis, workspace.snapshot.files
    config = [path for path, _ in basis.config]
    evidence = StartDigests.take(workspace.graph, todo, files, basis.own_code, config)
    with (
        open_context(workspace, options, jobs, listener, pool) as context,
        shared(workspace, context),
    ):
        executor = Executor(
            workspace.graph,
            context,
            states.counting(triggers),
            listener,
            jobs=jobs,
            fail_fast=bool(options.fail_fast),
            forced=forced,
        )
        with _time_limit(options.time_limit, executor) as limit:
            execution = executor.run(todo)
    tasks = workspace.graph.tasks
    built = [name for name in tasks if execution.status.get(name) in ("ran", "restored")]
    made = set[str]().union(*(states.as_made(tasks[name]) for name in built))
    doubts = evidence.touched(workspace.graph, states, workspace.root)
    doubts |= evidence.changed(files, made)
    for name, problem in doubts.items():
        if execution.status.get(name) in ("ran", "restored"):
            execution.status[name], execution.broken[name] = "failed", (problem,)
            execution.problems.append(problem)
    for name, problems in execution.broken.items():
        states.save_broken(workspace.graph.tasks[name], problems)
    outcome.status.update(dict.fromkeys(todo, "pending"))
    outcome.status.update(execution.status)
    outcome.problems += execution.problems
    outcome.timed_out = execution.interrupted and limit.is_set()
    outcome.interrupted = execution.interrupted and not outcome.timed_out


@contextmanager
def _time_limit(seconds: float | None, executor: Executor) -> Iterator[threading.Event]:
    """Inside the context, interrupt the execution when `seconds` have passed; None means never. The
    yielded event is set when this happens."""
    passed = threading.Event()
    if seconds is None:
        yield passed
        return

    def end() -> None:
        passed.set()
        executor.interrupt()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield passed
    finally:
        timer.cancel()


@contextmanager
def open_context(
    workspace: Workspace, options: RunOptions, jobs: int, listener: Listener, workers: Pool | None
) -> Iterator[StageContext]:
    from gpuemu_flow.workers.pool import Pool  # noqa: PLC0415 - only when tasks may run

    own = Pool(jobs, keeps=2 * jobs) if workers is None else nullcontext(workers)
    with own as pool:
        yield StageContext(
            root=workspace.root,
            cache=workspace.cache,
            pool=pool,
            environment=workspace.environment,
            inputs=workspace.inputs,
            on_progress=listener.on_progress,
            on_wait=listener.on_wait,
            force=options.force,
        )


def _unordered(workspace: Workspace, outcome: RunOutcome) -> list[Problem]:
    """Return, or refuse, what used a rule's output without waiting for the rule."""
    if all(spec.stage != stages.RULE for _, spec in workspace.graph.tasks.items()):
        return []
    from gpuemu_flow.build import unordered  # noqa: PLC0415 - few have rules

    if outcome.options.dry_run:
        return unordered.announced(workspace, outcome.status)
    return unordered.refuse_unordered(workspace, outcome.status)


def _remember(workspace: Workspace, outcome: RunOutcome, states: TaskStates) -> None:
    """Store the workspace's snapshot after updating its current tasks and observed inputs."""
    ended = {name for name, status in outcome.status.items() if status in ("ran", "restored")}
    current = workspace.snapshot.current - workspace.graph.downstream(ended)
    current -= {name for name, status in outcome.status.items() if status == "failed"}
    for name in ended:
        made = states.made_from(name)
        if made is not None and made.inputs:
            workspace.snapshot.observed.record(name, made.discovered, made.observed)
    workspace.snapshot.observed = workspace.snapshot.observed.of(workspace.graph.tasks)
    with workspace.inputs.at_once():
        for name in workspace.graph.downstream(ended):
            spec = workspace.graph.tasks[name]
            if not states.reasons(spec, states.parts(spec)):
                current.add(name)
    limit = workspace.settings.size_limit
    if limit and outcome.executed:
        workspace.cache.limit_blobs(limit, lambda: _pinned(workspace))
    workspace.save(current)


def _pinned(workspace: Workspace) -> frozenset[str]:
    """Return the blobs that recorded failures need."""
    from gpuemu_flow.store.failures import FailureStore  # noqa: PLC0415 - seldom needed

    return FailureStore(workspace.cache).pinned()


# Check that nothing on which verdicts depend changed during a run.


SLUG = "judged-by-changed"


class StartDigests(Struct, frozen=True):
    """The digests, at the beginning of a run, of everything on which its verdicts depend."""

    judge: str
    config: Mapping[str, str]
    references: Mapping[str, Mapping[str, str]]
    began: int = 0

    @classmethod
    def take(
        cls, graph: Graph, todo: Iterable[str], files: FileTable, judge: str, config: Iterable[str]
    ) -> StartDigests:
        """Take the digests of everything on which the verdicts of `todo` will depend."""
        began = time.time_ns()
        references = {
            name: {path: files.digest(path) for path in graph.tasks[name].sources}
            for name in sorted(todo)
            if graph.tasks[name].stage == stages.COMPARE
        }
        table = FileTable(files.root)  # a separate table: these files are no sources of tasks
        return cls(judge, {path: table.digest(path) for path in config}, references, began)

    def changed(self, files: FileTable, made: Collection[str]) -> dict[str, Problem]:
        """Find the comparisons whose verdicts depend on a file that changed during the run. The
        result maps the name of each such comparison task to a problem that names the file."""
        common = ""
        if own_code_digest(files) != self.judge:
            common = "gpuemu-flow's own code"
        table = FileTable(files.root)
        for path, digest in self.config.items():
            if table.digest(path) != digest:
                common = common or path
        found = {}
        for task, sources in self.references.items():
            moved = [
                path
                for path, digest in sources.items()
                if path not in made and files.digest(path) != digest
            ]
            what = common or (moved[0] if moved else "")
            if what:
                found[task] = _problem(task, what)
        return found

    def touched(self, graph: Graph, states: TaskStates, root: Path) -> dict[str, Problem]:
        found = {}
        for task in self.references:
            wall = graph.tasks[task].settings["op"].get("sandbox") or {}
            writable = [f"{path}/" for path in wall.get("writable", ())]
            files = _read_by_reference(graph, states, task) if writable else ()
            for file in sorted(files):
                path = f"{root / file}"
                if f"{path}/".startswith(tuple(writable)) and _changed_since(path, self.began):
                    found[task] = _problem(task, file)
                    break
        return found


def _read_by_reference(graph: Graph, states: TaskStates, task: str) -> set[str]:
    makers = [i.task for i in graph.tasks[task].inputs]
    makers = [name for name in makers if graph.tasks[name].stage == stages.REFERENCE]
    programs = filter(None, map(states.made_from, (task, *makers)))
    return {file for made in programs for file in made.discovered.files}


def _changed_since(path: str, began: int) -> bool:
    try:
        return Path(path).lstat().st_ctime_ns >= began
    except OSError:
        return True


def _problem(task: str, what: str) -> Problem:
    text = f"{task}: {what} changed during the run, and the verdict depends on it"
    return Problem(SLUG, text, "run again when nothing writes to it")
