"""Find the folder for results of submissions, without loading the modules that judge them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuemu_flow.wire import workspace_stem

if TYPE_CHECKING:
    from gpuemu_flow.config.model import Config
    from gpuemu_flow.store.cache import WorkspaceCache


def results_folder(config: Config, cache: WorkspaceCache) -> Path:
    """Return the folder for the results of submissions: in the cache, or at ``[storage] db_path``.
    If several workspaces name the same `db_path`, each has a separate folder there."""
    path = config.storage.db_path
    return cache.folder if path is None else path / workspace_stem(config.root)
