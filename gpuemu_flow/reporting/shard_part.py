"""Describe the part of a workspace that a shard's report covers, for `report --merge`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gpuemu_flow.engine.session import RunOptions, selected_tasks
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.reporting.gather import repository
from gpuemu_flow.results.document import ShardPart
from gpuemu_flow.selection import shards
from gpuemu_flow.tasks import stages
from gpuemu_flow.types import Json


def shard_part(
    workspace: Workspace,
    shard: shards.Shard,
    options: RunOptions,
    deciding: Mapping[str, Json],
    environ: Mapping[str, str],
) -> ShardPart:
    """Describe the part that a shard covers, with all facts that a merge compares."""
    graph, root = workspace.graph, workspace.root
    drawn = workspace.settings.drawn_seed is not None
    return ShardPart(
        shard.index,
        shard.count,
        shards.split_digest(graph, root, shard.count),
        shards.settings_digests(graph, drawn=drawn),
        shards.code_digests(graph, workspace.snapshot.files, repository(root, environ)),
        _as_texts({**deciding, **_deciding(workspace, options)}),
        () if options.since else _selected(workspace, options),
    )


def _deciding(workspace: Workspace, options: RunOptions) -> dict[str, Json]:
    """Return those options of a run that affect the selection of tasks or the exit code.

    `--since` is returned as a commit, because a branch can differ between machines. Options that
    say where tasks run, or how many at a time, are left out.
    """
    since = ""
    if options.since:
        from gpuemu_flow.selection.since import parting_commit  # noqa: PLC0415 - seldom needed

        since = parting_commit(workspace.root, options.since)
    return {
        "--since": since,
        "dtypes": list(options.dtypes),
        "until": list(options.until),
        "forcerun": list(options.forced),
        "keep_going": not options.fail_fast,
        **{f"changed {name}": value for name, value in workspace.snapshot.basis.overrides.items()},
    }


def _as_texts(options: Mapping[str, Json]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        for name, value in options.items()
    }


def _selected(workspace: Workspace, options: RunOptions) -> tuple[str, ...]:
    """Return the sorted names of ops and kernels that the options select, ignoring the shard."""
    tasks = workspace.graph.tasks
    names = selected_tasks(workspace, replace(options, shard=None))
    judged = (stages.COMPARE, stages.LINT)
    return tuple(sorted({tasks[n].subject for n in names if tasks[n].stage in judged}))
