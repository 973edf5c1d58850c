"""What the last run left behind: the compiled graph and the digests of all files it knew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpuemu_flow import __version__
from gpuemu_flow.engine.files import FileTable
from gpuemu_flow.engine.graph import Graph
from gpuemu_flow.engine.observed_sets import ObservedSets
from gpuemu_flow.store.atomic import write_atomic
from gpuemu_flow.store.cache import seal, unseal
from gpuemu_flow.types import Json

FORMAT = 7


@dataclass
class Snapshot:
    """A compiled workspace.

    Attributes
    ----------
    graph : Graph
    settings : dict
        What a run needs of the configuration besides the graph.
    basis : dict
        What the graph was compiled from: digests of configuration files, overrides, environment,
        matches of ``depends`` globs, content and imports of each script, modules that were absent.
    files : FileTable
    current : set of str
        Tasks that were current when the snapshot was taken; they still are if no file that they
        read or write changed.
    observed : ObservedSets
        What the tasks' programs were seen to use.
    """

    graph: Graph
    settings: dict[str, Json]
    basis: dict[str, Json]
    files: FileTable
    current: set[str] = field(default_factory=set)
    observed: ObservedSets = field(default_factory=ObservedSets)


def save(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot, whole or not at all."""
    entries = {p: [list(stamp), digest] for p, (stamp, digest) in snapshot.files.entries.items()}
    content = {
        "format": FORMAT,
        "tool": __version__,
        "graph": snapshot.graph.to_json(),
        "settings": snapshot.settings,
        "basis": snapshot.basis,
        "files": entries,
        "current": sorted(snapshot.current),
        "observed": snapshot.observed.to_json(),
    }
    write_atomic(path, seal(content))


def load(
    path: Path, root: Path, set_aside: Callable[[Path, str], None] = lambda *_: None
) -> Snapshot | None:
    """Read a snapshot; None when there is none, or it is damaged or of another version.

    Parameters
    ----------
    path, root : Path
    set_aside : callable
        Told a damaged file and why.
    """
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        content = unseal(data)
        if content["format"] != FORMAT or content["tool"] != __version__:
            return None
        return Snapshot(
            Graph.from_json(content["graph"]),
            content["settings"],
            content["basis"],
            FileTable(root, _entries(content["files"])),
            set(content["current"]),
            ObservedSets.from_json(content["observed"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        set_aside(path, f"damaged graph: {error}")
        return None


def _entries(data: Mapping[str, Json]) -> dict[str, tuple[tuple[int, int, int, int], str]]:
    return {
        path: ((int(s[0]), int(s[1]), int(s[2]), int(s[3])), str(digest))
        for path, (s, digest) in data.items()
    }
