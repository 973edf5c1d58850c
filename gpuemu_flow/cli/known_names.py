"""Read the names in a workspace for completion, without compiling or running anything."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuemu_flow.build import snapshot, stamps
from gpuemu_flow.build.graph import SETS, STAGES
from gpuemu_flow.build.snapshot import Snapshot
from gpuemu_flow.config.read import read_included, read_source
from gpuemu_flow.store.baselines import BaselineStore
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import FailureStore

MOST = 2_000


class KnownNames:
    """The names in the workspace of one configuration; no names if the configuration is broken."""

    def __init__(self, config: Path) -> None:
        self._root = config.parent
        project = read_source(config, config.name, root=config.parent.resolve())
        self._tree = project.tree
        self._trees = [project.tree, *(s.tree for s in read_included(project).sources)]

    @property
    def ops(self) -> list[str]:
        return self._names("ops")

    @property
    def kernels(self) -> list[str]:
        return self._names("kernels")

    @property
    def rules(self) -> list[str]:
        return self._names("rules")

    def _names(self, key: str) -> list[str]:
        return [name for tree in self._trees for name in _names(tree.get(key))][:MOST]

    @property
    def groups(self) -> list[str]:
        """Return the words for `run` besides tasks: ops, kernels, rules, stages, targets."""
        targets = self._tree.get("targets")
        named = list(targets) if isinstance(targets, dict) else []
        return [*self.ops, *self.kernels, *self.rules, *named, *STAGES, "quick", "all", *SETS]

    @property
    def tasks(self) -> list[str]:
        """Return the names of the tasks in the last run's graph."""
        known = self._last()
        return list(known.graph.tasks)[:MOST] if known is not None else []

    @property
    def failures(self) -> list[str]:
        cache = self._cache()
        if not (cache.folder / "failures").is_dir():
            return []
        return [record.id for record in FailureStore(cache).list(limit=MOST)]

    @property
    def baselines(self) -> list[str]:
        return [found.tag for found in BaselineStore(self._cache()).list()]

    def _last(self) -> Snapshot | None:
        home = WorkspaceCache(self._root / stamps.CACHE_NAME)
        try:
            return snapshot.load(home, self._root)
        finally:
            home.close()

    def _cache(self) -> WorkspaceCache:
        known = self._last()
        folder = known.settings.cache_dir if known is not None else None
        return WorkspaceCache(Path(folder) if folder else self._root / stamps.CACHE_NAME)


def _names(tables: Any) -> list[str]:
    found: Iterable[Any] = tables if isinstance(tables, list) else ()
    named = [table.get("name") for table in found if isinstance(table, dict)]
    return [name for name in named if isinstance(name, str)][:MOST]
