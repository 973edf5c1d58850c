"""Record in a snapshot the configuration and files from which its graph was compiled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuemu_flow.graph.dependent_references import dependent_references
from gpuemu_flow.graph.snapshot import Settings, Snapshot
from gpuemu_flow.inputs.files import ABSENT, FileTable
from gpuemu_flow.inputs.sources import SourceIndex
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.config.model import Config
    from gpuemu_flow.graph.graph import Graph


def settings_of(
    config: Config, graph: Graph, sampled: Mapping[str, Json], drawn_seed: int | None
) -> Settings:
    """Return the part of a configuration that a run needs besides the graph.

    The settings contain the warnings about the configuration, and about references that import the
    files of their ops.

    Parameters
    ----------
    config : Config
    graph : Graph
        The graph that was just compiled from it.
    sampled : mapping of str to mapping
        For each mode of ``[ci]``, its number of cases, its shapes and its seed.
    drawn_seed : int or None
        The master seed that was drawn for this graph.
    """
    return Settings(
        jobs=config.execution.parallel,
        cache_dir=str(config.cache.dir) if config.cache.dir is not None else "",
        size_limit=config.cache.size_limit,
        remote=config.cache.remote,
        remote_mode=config.cache.remote_mode,
        fail_on_regression=config.policies.fail_on_regression,
        fuzz_iterations={op.name: op.fuzz_iterations for op in config.ops},
        cause_budget=config.validation.cause_budget,
        samplings=sampled,
        warn_threshold=config.policies.warn_threshold,
        drawn_seed=drawn_seed,
        sandbox=config.sandbox.mode,
        warnings=(*config.warnings, *dependent_references(config, graph.tasks.values())),
        targets=config.target_tables,
    )


def same_imports(root: Path, known: Snapshot) -> bool:
    """Tell whether all imports of scripts still resolve to the same files as at compile time.

    If a script has changed but its imports have not, its new digest is stored in `known`.

    Parameters
    ----------
    root : Path
        The workspace.
    known : Snapshot
        Snapshot of the workspace that was taken when the graph was compiled.
    """
    if any((root / path).exists() for path in known.basis.absent):
        return False
    found, files = known.basis.imports, known.files
    moved = set(files.moved(found))
    index, apart = SourceIndex(root), FileTable(root)
    for path, (content, imports) in found.items():
        now = apart.digest(path) if path in moved else files.known_digest(path)
        if now == content:
            continue
        if now == ABSENT or index.imports_digest(root / path) != imports:
            return False
        found[path] = [now, imports]
    return True


def link_target(path: str) -> str:
    """Return the target of a symbolic link; empty if `path` is not a link."""
    try:
        return os.readlink(path)  # noqa: PTH115 - for every link of a workspace
    except OSError:
        return ""


def content_digest(path: Path) -> str:
    """Return the digest of a file's content; empty if it cannot be read."""
    try:
        return digest_bytes(path.read_bytes())
    except OSError:
        return ""


def scanned(index: SourceIndex, path: Path) -> list[str]:
    """Return two digests: of a script's content, and of the list of its imports."""
    return [index.content_digest(path), index.imports_digest(path)]
