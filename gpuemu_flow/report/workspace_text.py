"""Facts about a workspace that are known without a run, as types and as readable text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gpuemu_flow.model.types import Json
from gpuemu_flow.report.text import Style, duration, plural, printable, table, wrapped
from gpuemu_flow.store.keys import BuildReason

# Facts about a workspace that are known without a run.


class OriginTask(Struct, frozen=True):
    """A task that would run even if none of its upstream tasks did."""

    task: str
    changes: tuple[str, ...]


class TaskExplanation(Struct, frozen=True):
    """An explanation of one task: the reasons why it would run, or none if it is current."""

    task: str
    current: bool
    key: str
    changes: tuple[BuildReason, ...]
    because: tuple[OriginTask, ...]
    reads: tuple[str, ...]


class ListedTask(Struct, frozen=True, omit_defaults=True):
    """A task of the graph; `status` is empty unless it was requested."""

    task: str
    stage: str
    subject: str
    status: str = ""


class TaskSummary(Struct, frozen=True):
    """A task in one line."""

    task: str
    state: str
    duration_s: float | None
    outputs: tuple[str, ...]


class SkippedTask(Struct, frozen=True):
    """An op and dtype, or a kernel, that has no task, and the reason."""

    op: str
    dtype: str
    reason: str


class WorkspaceListing(Struct, frozen=True):
    """The tasks of a workspace, the size of each group, and the skipped items."""

    tasks: tuple[ListedTask, ...]
    groups: Mapping[str, int]
    skipped: tuple[SkippedTask, ...]


class StatusCounts(Struct, frozen=True):
    """Numbers of tasks by state."""

    total: int
    current: int
    stale: int
    skipped: int


class CacheSize(Struct, frozen=True):
    """The cache's folder, and its present and maximum size in bytes."""

    folder: str
    blobs_bytes: int
    actions_bytes: int
    size_limit: int


class WorkspaceStatus(Struct, frozen=True):
    """The state of a workspace: task counts, verdicts and cache size."""

    root: str
    tasks: StatusCounts
    verdicts: Mapping[str, int]
    outdated: int
    cache: CacheSize


# What is shown of them.

_VALUE_WIDTH = 70
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SHOWN_DIGITS = 12  # enough digits to distinguish two digests
_PARTS = {
    "code": "source changed",
    "params": "configuration changed",
    "input": "input changed",
    "output": "its output is not what it wrote",
    "stage": "another version of gpuemu-flow",
}


MOST_ENV = 2
"""Number of changes of the environment that are named; a new interpreter changes dozens."""


def shown(value: Json) -> str:
    """Return a short text for the value of one part of a task's key."""
    if value is None:
        return "absent"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:_SHOWN_DIGITS]
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return printable(text if len(text) <= _VALUE_WIDTH else text[: _VALUE_WIDTH - 1] + "…")


def render_plan(
    status: Mapping[str, str],
    reasons: Mapping[str, Sequence[BuildReason]],
    style: Style,
    *,
    explain: bool,
) -> str:
    """List the tasks that would run, in order."""
    lines = []
    for name, state in status.items():
        if state == "pending":
            lines.append(style.paint(name, "1"))
            if explain:
                lines += [f"  {line}" for line in reason_lines(reasons.get(name, ()))]
    current = sum(state == "current" for state in status.values())
    would = sum(state == "pending" for state in status.values())
    lines.append(f"{plural(would, 'task')} may run, {current} current")
    return "\n".join(lines)


def reason_lines(reasons: Sequence[BuildReason]) -> list[str]:
    """Describe which parts of a key changed; those of the environment in one line."""
    lines = [reason_line(one) for one in reasons if one.part != "env"]
    env = [
        f"{one.name}: {shown(one.old)} -> {shown(one.new)}" for one in reasons if one.part == "env"
    ]
    if env:
        more = f", and {len(env) - MOST_ENV} more" if len(env) > MOST_ENV else ""
        lines.append(f"environment changed: {', '.join(env[:MOST_ENV])}{more}")
    return lines


def reason_line(reason: BuildReason) -> str:
    """Describe which part of a key changed, with its old and new value."""
    old, new = reason.old, reason.new
    if reason.part == "state":
        return str(old)
    if reason.part == "forced":
        return f"{new} was asked for"
    if reason.part == "follows":
        return f"may follow from {new}, which would run"
    if reason.part == "observed":
        return observed_line(reason.name, old, new)
    label = _PARTS.get(reason.part, reason.part) + (f": {reason.name}" if reason.name else "")
    return f"{label}: {shown(old)} -> {shown(new)}"


def render_explanations(found: Sequence[TaskExplanation], style: Style) -> str:
    """Describe for each task why it would run, or that it is current."""
    lines = []
    for task in found:
        word = "is current" if task.current else "would run"
        lines.append(f"{style.paint(task.task, '1')} {word}")
        lines += [f"  {line}" for line in reason_lines(task.changes)]
        if not task.current and not task.changes:
            for origin in task.because:
                changed = ", ".join(origin.changes)
                lines.append(f"  may follow from {origin.task}, which would run: {changed}")
        if task.current:
            lines.append(f"  key {shown(task.key)}")
            kinds = ("package ", "environment variable ")
            lines += [f"  reads {path}" for path in task.reads if not path.startswith(kinds)]
            for kind in kinds:
                names = [name.removeprefix(kind) for name in task.reads if name.startswith(kind)]
                lines += wrapped(f"  reads {kind}{', '.join(names)}", 4) if names else []
    return "\n".join(lines)


def render_list(found: WorkspaceListing, style: Style) -> str:
    """List tasks, then groups, then the ops that are skipped."""
    lines = []
    for task in found.tasks:
        code = "32" if task.status == "current" else "33"
        state = f"  {style.paint(task.status, code)}" if task.status else ""
        lines.append(task.task + state)
    groups = ", ".join(f"{name} ({count})" for name, count in found.groups.items() if count)
    lines += wrapped(f"groups: {groups}", len("groups: "))
    lines += [f"skipped: {s.op} {s.dtype}: {printable(s.reason)}" for s in found.skipped]
    return "\n".join(lines)


def render_summary(found: Sequence[TaskSummary]) -> str:
    """List tasks as lines: state, last duration, name, outputs."""
    rows = [
        [
            task.state,
            "-" if task.duration_s is None else duration(task.duration_s),
            printable(task.task),
            printable(" ".join(task.outputs)),
        ]
        for task in found
    ]
    return "\n".join(table(["state", "time", "task", "outputs"], rows, {0, 2, 3}))


def _outdated(count: int) -> str:
    return f"; {count} of them changed since" if count else ""


def render_status(found: WorkspaceStatus, style: Style) -> str:
    """Show the workspace in a few lines."""
    tasks, cache = found.tasks, found.cache
    verdicts = ", ".join(f"{count} {name}" for name, count in found.verdicts.items())
    return "\n".join(
        [
            f"workspace {style.paint(found.root, '1')}",
            f"tasks     {tasks.total}: {tasks.current} current, {tasks.stale} stale, "
            f"{tasks.skipped} skipped",
            f"results   {verdicts or 'none yet'}{_outdated(found.outdated)}",
            f"cache     {cache.folder}: {cache.blobs_bytes / 1e6:.1f} MB of tensors, "
            f"{cache.actions_bytes / 1e6:.1f} MB of actions, "
            f"limit {cache.size_limit / 1e6:.0f} MB",
        ]
    )


# Describe a change to something that a program used, such as a file, package or variable.

UNSET = "unset"


def observed_line(name: str, old: Json, new: Json) -> str:
    """Describe a changed input by its name, such as ``file lib/table.npy``, and its two states.

    The state None means that the input was not among the observed inputs. An empty state means that
    the input does not exist.
    """
    kind, _, rest = name.partition(" ")
    words = _WORDS.get(kind)
    return f"observed {name} changed" if words is None else words(rest, old, new)


def _file(path: str, old: Json, new: Json) -> str:
    if not new:
        return f"observed file {path} is gone"
    return f"observed file {path} {'changed' if old else 'is there now'}"


def _link(path: str, _old: Json, new: Json) -> str:
    return f"link {path} now leads to {new}" if new else f"{path} is no link any more"


def _missing(path: str, _old: Json, _new: Json) -> str:
    return f"{path}, which was looked for in vain, is there now"


def _folder(path: str, _old: Json, new: Json) -> str:
    return f"the names in folder {path} changed" if new else f"folder {path} is gone"


def _look(path: str, old: Json, new: Json) -> str:
    if not new:
        return f"{path}, which was looked for, is gone"
    return f"{path} is of another kind or mode" if old else f"{path} is there now"


def _package(name: str, old: Json, new: Json) -> str:
    was, now = (
        str(state or "").lstrip(", ").partition(",")[0].partition(" ")[0] for state in (old, new)
    )
    if not now:
        return f"package {name} {was} is not installed any more"
    if not was:
        return f"package {name} {now}, which was asked for in vain, is installed now"
    return f"package {name} {was} -> {now}" if was != now else f"package {name} {now}: other files"


def _python(folder: str, _old: Json, _new: Json) -> str:
    return f"the interpreter of {folder} changed"


def _variable(name: str, old: Json, new: Json) -> str:
    label = f"environment variable{'s' if name.endswith('*') else ''} {name}"
    label = "the environment" if name == "*" else label
    if UNSET in (old, new):
        return f"{label}: {'unset' if new == UNSET else 'set'}"
    return f"{label}: changed"


_WORDS: dict[str, Callable[[str, Json, Json], str]] = {
    "file": _file,
    "link": _link,
    "missing": _missing,
    "folder": _folder,
    "look": _look,
    "package": _package,
    "python": _python,
    "variable": _variable,
}
