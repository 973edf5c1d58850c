"""The user's own cache folder, for results computed outside of any workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.model.errors import StoreError
from gpuemu_flow.model.let_through import user_cache_of
from gpuemu_flow.store.workspace_cache import WorkspaceCache

LIMIT = 64 << 20
"""Largest size of the cached results in bytes; the least recently used ones are dropped first."""


def user_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_CACHE_HOME/gpuemu-flow``, or ``~/.cache/gpuemu-flow`` if that is unset."""
    return Path(user_cache_of(environ) or Path.home() / ".cache" / "gpuemu-flow")


def open_user_cache() -> WorkspaceCache | None:
    """Return the user's cache; None if it is not writable, which is no error."""
    try:
        cache = WorkspaceCache(user_cache_folder(os.environ), actions_limit=LIMIT)
        cache.create()
        _ = cache.actions  # opens it
    except (StoreError, OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return cache
