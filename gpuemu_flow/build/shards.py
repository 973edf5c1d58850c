"""Split a workspace's ops into shards, in the same way on all machines with the same files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from statistics import median

from msgspec import Struct

from gpuemu_flow.build.files import FileTable
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec

DURATIONS_NAME = "gpuemu.durations.json"
MAX_BYTES = 16 << 20
MAX_SHARDS = 10_000


class Shard(Struct, frozen=True):
    """One of `count` parts of a workspace; `index` is counted from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def subjects(graph: Graph) -> set[str]:
    """Return the names of a graph's ops, kernels and rules, even of those that cannot run here."""
    return {spec.subject for spec in graph.tasks.values()} | {skip.op for skip in graph.skips}


def split(names: Iterable[str], seconds: Mapping[str, float], count: int) -> dict[str, int]:
    """Assign each name to a shard, a number from 1 to `count`.

    The result depends only on the arguments, so that all machines get the same split. Names are
    assigned in order of duration, the longest first, each to the shard with the smallest total. If
    the duration of a name is unknown, the median of the known ones is used. If none is known, the
    shard of a name depends only on the name, so that adding a name moves no other name.
    """
    names = sorted(names)
    known = [seconds[name] for name in names if name in seconds]
    if not known:
        return {name: _hash(name) % count + 1 for name in names}
    usual = median(known)
    loads = [0.0] * count
    found = {}
    for name in sorted(names, key=lambda n: (-seconds.get(n, usual), n)):
        place = loads.index(min(loads))
        loads[place] += seconds.get(name, usual)
        found[name] = place + 1
    return found


def _hash(name: str) -> int:
    data = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big")


def assignment(graph: Graph, root: Path, count: int) -> dict[str, int]:
    """Return the shard of each op, kernel and rule of a workspace.

    Raises UsageError: ``durations-unreadable``.
    """
    return split(subjects(graph), read_durations(root / DURATIONS_NAME), count)


def owned(graph: Graph, root: Path, shard: Shard) -> set[str]:
    """Return the names of the ops, kernels and rules in a shard."""
    every = assignment(graph, root, shard.count)
    return {name for name, place in every.items() if place == shard.index}


def split_digest(graph: Graph, root: Path, count: int) -> str:
    """Return a digest of the assignment of all names to shards."""
    return digest_json(assignment(graph, root, count))


def remember_split(state: JsonStore, graph: Graph, root: Path, shard: Shard) -> list[Problem]:
    """Record how the ops were split for this shard; warn if another shard ran with another split.

    The list has one warning or none. The warning is given if the other split was made from other
    durations, or only one of the two was made from durations: an op may then be in no shard. It is
    not given if the splits differ only because ops were added or removed.
    """
    seconds = read_durations(root / DURATIONS_NAME)
    mine = [digest_json(seconds) if seconds else "", split_digest(graph, root, shard.count)]
    key = f"shards:{shard.count}"
    stored = state.get(key)
    known: dict[str, list[str]] = stored if isinstance(stored, dict) else {}
    if known.get(str(shard.index)) != mine:
        state.put(key, {**known, str(shard.index): mine})
    apart = [
        int(index)
        for index, (durations, split) in known.items()
        if index != str(shard.index) and durations != mine[0] and split != mine[1]
    ]
    if not apart:
        return []
    by = f"with the durations in {DURATIONS_NAME}" if seconds else f"without {DURATIONS_NAME}"
    shown = ", ".join(f"{n}/{shard.count}" for n in sorted(apart))
    message = f"{shard} is split {by}, {shown} last was not: an op may be in none of them"
    hint = f"run all shards with one {DURATIONS_NAME}"
    return [Problem("shards-apart", message, hint, warning=True)]


_JUDGED = (stages.GENERATE, stages.COMPARE)
"""Stages whose parameters decide the cases and how they are judged."""


def settings_digests(graph: Graph, *, drawn: bool) -> dict[str, str]:
    """Return, for each op, a digest of the settings that decide its cases and their verdicts."""
    left_out = {"seed"} if drawn else set()
    found: dict[str, list[Json]] = {}
    for _, spec in sorted(graph.tasks.items()):
        if spec.stage in _JUDGED:
            params = spec.params.items()
            deciding = {name: value for name, value in params if name not in left_out}
            found.setdefault(spec.subject, []).append([spec.stage, spec.dtype, deciding])
    return {op: digest_json(settings)[:16] for op, settings in found.items()}


_OF_MACHINE = frozenset(("python", "sandbox", "tools", "unusable", "triton_version", "kind"))
"""Parameters of tasks that depend on the machine and not on the commit."""


def code_digests(graph: Graph, files: FileTable, top: Path) -> dict[str, str]:
    """Return, for each op, kernel and rule, a digest of the code that is known before a run.

    The digest of an op, for example, covers the sources and parameters of its programs, and of the
    rules and kernels that it needs. Sources include the files that globs of the configuration
    match. Outputs of rules, and files outside of the repository, are left out. The digest is
    therefore equal on all machines with the same commit.
    """
    left_out = {output for spec in graph.tasks.values() for output in spec.outputs}
    # Each machine has a different interpreter.
    left_out |= {spec.params.get("python", "") for spec in graph.tasks.values()}
    members: dict[str, list[str]] = {}
    for name, spec in graph.tasks.items():
        # Compiled code comes from a build only if there is a compiler.
        if spec.stage != stages.CODE:
            members.setdefault(spec.subject, []).append(name)
    return {
        subject: digest_json(
            [
                _code_of(spec, files, top, left_out)
                for name in sorted(graph.upstream(names))
                if (spec := graph.tasks[name]).stage != stages.CODE
            ]
        )[:16]
        for subject, names in members.items()
    }


def _code_of(spec: TaskSpec, files: FileTable, top: Path, left_out: Collection[str]) -> Json:
    """Return the digests of a task's sources, and the task's parameters.

    Parameters that depend on the machine are left out, and so are sources that are in `left_out` or
    outside of the folder `top`. No parameters are returned for the stages that generate or compare
    cases.
    """
    sources = {
        os.path.relpath(files.root / path, files.root): files.digest(path)
        for path in spec.sources
        if path not in left_out and Path(os.path.normpath(files.root / path)).is_relative_to(top)
    }
    params = {} if spec.stage in _JUDGED else spec.params
    return [sources, {name: value for name, value in params.items() if name not in _OF_MACHINE}]


def durations_text(seconds: Mapping[str, float]) -> str:
    """Return the content of a file of durations, as `read_durations` reads it."""
    rounded = {name: round(value, 3) for name, value in sorted(seconds.items())}
    return json.dumps({"schema_version": 1, "seconds": rounded}, indent=2)


def read_durations(path: Path) -> dict[str, float]:
    """Return the seconds of each op in a file of durations; empty if there is no file.

    Raises UsageError: ``durations-unreadable``. If the file were ignored, this machine would split
    the ops differently from others.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from None
    if len(data) > MAX_BYTES:
        raise _unreadable(path, f"it has more than {MAX_BYTES >> 20} MiB")
    try:
        found = json.loads(data)
        given = found["seconds"]
        if found["schema_version"] != 1:
            raise _unreadable(path, "it is of another version")
        pairs = [(str(name), value) for name, value in given.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise _unreadable(path, "it is not what `list --durations` writes") from None
    for name, value in pairs:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 <= value < 1e9:
            raise _unreadable(path, f"the seconds of {name[:80]!r} are no number of seconds")
    return {name: float(value) for name, value in pairs}


def _unreadable(path: Path, reason: str) -> UsageError:
    hint = f"write it anew: gpuemu-flow list --durations > {path.name}"
    return UsageError(Problem("durations-unreadable", reason, hint, file=path.name))
