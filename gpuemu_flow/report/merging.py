"""Merge the reports of a workspace's shards into one report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import ValidationError

from gpuemu_flow.judge.results import RunReport, TaskCounts
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.report.document import Report, ShardPart, TaskState
from gpuemu_flow.report.shard_document import rebuilt, violation

MAX_BYTES = 512 << 20
MAX_FILES = 20_000
_ALIKE = "merge shards of one commit, run with the same words and options"
_ACTED = ("failed", "ran", "restored", "pending", "current", "")
"""Actions on a task; of the actions in several shards, the first in this order is kept."""


def merged_report(paths: Sequence[Path]) -> Report:
    """Read the reports of all shards, and return the report of the whole workspace. Raises
    UsageError: ``merge-unreadable``; ``merge-mismatch`` if the reports are not shards of one
    workspace, or were made with other options; ``merge-incomplete`` if a shard or an op is
    missing."""
    found: list[tuple[Path, Report]] = []
    for path in paths:
        if path.is_dir():
            listed = sorted(each for each in path.rglob("*.json") if each.is_file())
            if len(listed) > MAX_FILES:
                raise _unreadable(path, f"it holds more than {MAX_FILES} JSON files")
            inside = ((each, _read(each, strict=False)) for each in listed)
            found += [(each, report) for each, report in inside if report is not None]
        else:
            report = _read(path, strict=True)
            if report is not None:
                found.append((path, report))
    if not found:
        message = "there is no report of a shard in what --merge names"
        hint = "`gpuemu-flow ci --shard 1/2 -o shard-1.json` writes one"
        raise UsageError(Problem("merge-incomplete", message, hint))
    _check_parts(found)
    return _joined([report for _, report in sorted(found, key=lambda pair: _part(pair[1]).index)])


def _part(report: Report) -> ShardPart:
    assert report.shard is not None, "only such reports are read"  # noqa: S101
    return report.shard


def _read(path: Path, *, strict: bool) -> Report | None:
    """Read the report of a shard from a JSON file. If the file has other JSON, return None; if
    `strict`, raise UsageError instead."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        raise _unreadable(path, "it is no JSON") from None
    shard = content.get("shard") if isinstance(content, dict) else None
    if shard is None and not strict:
        return None
    if shard is None:
        raise _unreadable(path, "it is no report of a shard")
    return _rebuilt(path, shard)


def _rebuilt(path: Path, shard: Json) -> Report:
    wrong = violation(shard)
    if not wrong and shard["index"] > shard["count"]:
        wrong = f"shard.index: {shard['index']} is more than the count, {shard['count']}"
    if wrong:
        raise _damaged(path, wrong)
    given = {name: shard[name] for name in shard if name != "document"}
    part = ShardPart(**{**given, "selected": tuple(shard["selected"])})
    try:
        return rebuilt(part, shard["document"])
    except (ValueError, ValidationError) as error:
        raise _damaged(path, f"shard.document: {error}") from None


def _unreadable(path: Path, reason: str, hint: str = "") -> UsageError:
    return UsageError(Problem("merge-unreadable", reason, hint, file=str(path)))


def _damaged(path: Path, wrong: str) -> UsageError:
    reason = f"it is damaged, or another version of gpuemu-flow wrote it: {wrong}"
    return _unreadable(
        path, reason, "write it again with `gpuemu-flow ci --shard I/N -o FILE.json`"
    )


def _check_parts(found: Sequence[tuple[Path, Report]]) -> None:
    first_path, first = found[0]
    seen: dict[int, Path] = {}
    for path, report in found:
        part = _part(report)
        for what, one, other in (
            ("number of shards", part.count, _part(first).count),
            ("split", part.split, _part(first).split),
            ("project", report.project, first.project),
            ("selection", report.mode, first.mode),
            ("version of gpuemu-flow", report.version, first.version),
        ):
            if one != other:
                message = f"{first_path} and {path} differ in their {what}: {other!r} and {one!r}"
                raise UsageError(Problem("merge-mismatch", message[:500], _ALIKE))
        _check_alike((first_path, _part(first)), (path, part))
        _check_options((first_path, _part(first)), (path, part))
        if part.index in seen:
            message = f"{seen[part.index]} and {path} are both shard {part.index}/{part.count}"
            raise UsageError(Problem("merge-mismatch", message, "give each shard once"))
        seen[part.index] = path
    count = _part(first).count
    missing = [f"{n}/{count}" for n in range(1, count + 1) if n not in seen]
    if missing:
        shown = ", ".join(missing[:20])
        more = f" and {len(missing) - 20} more" if len(missing) > 20 else ""
        message = f"the reports of these shards are missing: {shown}{more}"
        hint = "what they would have found is not known, so that there is no verdict on the whole"
        raise UsageError(Problem("merge-incomplete", message, hint))
    _check_whole([report for _, report in found])


def _check_whole(reports: Sequence[Report]) -> None:
    if any(report.run.interrupted for report in reports):
        return  # the exit code says that results are missing
    told = {result.op for report in reports for result in report.run.results}
    told |= {kernel.kernel for report in reports for kernel in report.run.kernels}
    lost = sorted({name for report in reports for name in _part(report).selected} - told)
    if lost:
        more = f" and {len(lost) - 3} more" if len(lost) > 3 else ""
        message = f"no report has a result of {', '.join(lost[:3])[:400]}{more}"
        hint = "each shard selects them; run all shards again with the same options and tools"
        raise UsageError(Problem("merge-incomplete", message, hint))


def _check_options(first: tuple[Path, ShardPart], other: tuple[Path, ShardPart]) -> None:
    """Raise UsageError if an option that decides the selection or the exit code differs."""
    (one_path, one), (path, part) = first, other
    for name in sorted(one.options.keys() | part.options.keys()):
        known, found = one.options.get(name, ""), part.options.get(name, "")
        if known != found:
            message = f"{one_path} and {path} were run with other options: {name}"
            values = f"{known[:100] or 'none'} and {found[:100] or 'none'}"
            raise UsageError(Problem("merge-mismatch", f"{message[:500]} is {values}", _ALIKE))


def _check_alike(first: tuple[Path, ShardPart], other: tuple[Path, ShardPart]) -> None:
    """Raise UsageError if the code or settings of an op, kernel or rule differ between shards."""
    (one_path, one), (path, part) = first, other
    for what, known, found in (
        ("code", one.code, part.code),
        ("settings", one.settings, part.settings),
    ):
        differ = sorted(name for name in known.keys() & found.keys() if known[name] != found[name])
        if differ:
            more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
            message = f"{one_path} and {path} were run with other {what} of {', '.join(differ[:3])}"
            raise UsageError(Problem("merge-mismatch", message[:500] + more, _ALIKE))


def _joined(reports: Sequence[Report]) -> Report:
    runs = [report.run for report in reports]
    states = _joined_states(task for report in reports for task in report.tasks)
    counts = Counter(task.status for task in states)
    seeds = {run.drawn_seed for run in runs}
    run = RunReport(
        tasks=TaskCounts(
            total=len(states),
            **{name: counts[name] for name in ("current", "ran", "restored", "failed")},
            skipped=sum(run.tasks.skipped for run in runs),
        ),
        executed=tuple(dict.fromkeys(name for run in runs for name in run.executed)),
        results=tuple(sorted((r for run in runs for r in run.results), key=lambda r: r.op)),
        problems=tuple(dict.fromkeys(problem for run in runs for problem in run.problems)),
        changes=tuple(change for run in runs for change in run.changes),
        duration_s=max(run.duration_s for run in runs),
        interrupted=any(run.interrupted for run in runs),
        kernels=tuple(sorted((k for run in runs for k in run.kernels), key=lambda k: k.kernel)),
        drawn_seed=seeds.pop() if len(seeds) == 1 else None,
        build_only=all(run.build_only or run.nothing_due for run in runs),
        nothing_due=all(run.nothing_due for run in runs),
        minima={key: shown for run in runs for key, shown in run.minima.items()},
        known={key: known for run in runs for key, known in run.known.items()},
    )
    first = reports[0]
    return Report(
        run=run,
        project=first.project,
        project_version=first.project_version,
        mode=first.mode,
        created=max(report.created for report in reports),
        version=first.version,
        cases=tuple(
            sorted((case for report in reports for case in report.cases), key=lambda c: c.op)
        ),
        places={op: place for report in reports for op, place in report.places.items()},
        kernel_places={k: p for report in reports for k, p in report.kernel_places.items()},
        prefix=first.prefix,
        regressions=tuple(worse for report in reports for worse in report.regressions),
        fail_on_regression=any(report.fail_on_regression for report in reports),
        timed_out=any(report.timed_out for report in reports),
        require_all=any(report.require_all for report in reports),
        tasks=tuple(states),
        edges=tuple(dict.fromkeys(edge for report in reports for edge in report.edges)),
    )


def _joined_states(tasks: Iterable[TaskState]) -> list[TaskState]:
    """Return each task once, although several shards may report a task that all of them need. Of
    several statuses of a task, the first in `_ACTED` is kept."""
    found: dict[str, TaskState] = {}
    rank = {status: place for place, status in enumerate(_ACTED)}
    for task in tasks:
        known = found.get(task.name)
        last = len(_ACTED)
        if known is None or rank.get(task.status, last) < rank.get(known.status, last):
            found[task.name] = task
    return list(found.values())
