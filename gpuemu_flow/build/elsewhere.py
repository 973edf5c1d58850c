"""The cache that machines share, and tasks that run on other machines."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from msgspec import Struct

from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.signals import on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import StageContext

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace
    from gpuemu_flow.store.remote_cache import CacheAccess

FAR_STAGES = (stages.GENERATE, stages.OP, stages.REFERENCE, stages.COMPARE)


class Unit(Struct, frozen=True):
    """The tasks of an op in one dtype, up to the comparison; one worker runs all of them."""

    op: str
    dtype: str

    @property
    def task(self) -> str:
        return f"{stages.COMPARE}:{self.op}:{self.dtype}"

    def halves(self) -> None:
        """Return None: a unit cannot be divided."""


class Elsewhere(Protocol):
    """The interface to other machines that run tasks for this machine."""

    def run_units(
        self, workspace: Workspace, units: Sequence[Unit], remote: str, cancel: Event
    ) -> list[Unit]:
        """Run units on other machines, which store the results in the shared cache `remote`."""


def units_of(graph: Graph, todo: set[str]) -> list[Unit]:
    """Return the units whose comparison is in `todo` and that need no build. Other machines can run
    only such units."""
    found = []
    for name, spec in graph.tasks.items():
        if spec.stage != stages.COMPARE or name not in todo:
            continue
        if all(graph.tasks[each].stage in FAR_STAGES for each in graph.upstream([name])):
            found.append(Unit(spec.subject, spec.dtype))
    return found


@contextmanager
def far_results(
    workspace: Workspace, elsewhere: Elsewhere | None, todo: set[str], context: StageContext
) -> Iterator[dict[str, Problem]]:
    """Have other machines run tasks, and provide their results through a shared cache. The shared
    cache is the configured one if it is writable. Otherwise, a temporary one is made in the
    workspace's cache, and removed when this context manager ends. Until then, the stage context
    `context` reads results from the shared cache."""
    units = [] if elsewhere is None else units_of(workspace.graph, todo)
    if elsewhere is None or not units:
        yield {}
        return
    from gpuemu_flow.store.remote_cache import open_shared  # noqa: PLC0415 - few have one

    cache, settings = workspace.cache, workspace.settings
    before, folder = context.shared, cache.folder / "cluster" / secrets.token_hex(8)
    remote = settings.remote if before is not None and before.writes else ""
    try:
        if not remote:
            cache.files.make(folder)
            remote = f"file://{quote(str(folder))}"
            named = {"GPUEMU_CACHE_REMOTE": remote, "GPUEMU_CACHE_MODE": "read"}
            context.shared = open_shared(remote, "read", named, cache, context.cancel)
        with on_signals(context.cancel.set):
            lost = elsewhere.run_units(workspace, units, remote, context.cancel)
        yield {
            name: _died(unit)
            for unit in lost
            for name in workspace.graph.downstream({f"{stages.OP}:{unit.op}:{unit.dtype}"}) & todo
        }
    finally:
        if context.shared is not before:
            if context.shared is not None:
                context.shared.finish()
            context.shared = before
            cache.files.remove_tree(folder)


def _died(unit: Unit) -> Problem:
    text = f"{unit.task}: each worker of the cluster that was given it alone died"
    hint = "a worker's log says why; `fuzz --executor dask` finds the case"
    return Problem("cluster-worker-died", text, hint)


# Open the cache that several machines share, for a run or a command.


@contextmanager
def shared(workspace: Workspace, context: StageContext) -> Iterator[None]:
    """Let the context use the shared cache that the configuration or the environment names."""
    settings = workspace.settings
    if not settings.remote and not os.environ.get("GPUEMU_CACHE_REMOTE"):
        yield
        return
    from gpuemu_flow.store.remote_cache import open_shared  # noqa: PLC0415 - few have one

    context.shared = open_shared(
        settings.remote, settings.remote_mode, os.environ, workspace.cache, context.cancel
    )
    try:
        yield
    finally:
        if context.shared is not None:
            context.shared.finish()
            context.shared = None


def place_for(workspace: Workspace, *, writing: bool = False) -> CacheAccess:
    """Return the shared cache that a workspace or its environment configures. Raises UsageError:
    ``cache-remote-none`` if no shared cache is configured, or if `writing` and it is read-only;
    ``cache-remote-value`` if its URL is invalid."""
    from gpuemu_flow.store.remote_cache import WRITE, place_of  # noqa: PLC0415 - few have one

    settings = workspace.settings
    place = place_of(settings.remote, settings.remote_mode, os.environ)
    if place is None:
        text = "no shared cache is named"
        hint = "set [cache] remote, or GPUEMU_CACHE_REMOTE in the environment"
        raise UsageError(Problem("cache-remote-none", text, hint))
    if writing and place.mode != WRITE:
        named = " and GPUEMU_CACHE_REMOTE" if place.problems else ""
        hint = f"set GPUEMU_CACHE_MODE=write{named}"
        raise UsageError(Problem("cache-remote-none", f"{place.url} is set to be read only", hint))
    return place
