"""The cache that machines share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.tasks.base import StageContext

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace
    from gpuemu_flow.store.remote_cache import CacheAccess


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
