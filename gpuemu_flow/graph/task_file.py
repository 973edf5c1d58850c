"""The file that holds a compiled graph: an outline of every task, and each whole task by itself.

Most commands look at few of thousands of tasks. So the outlines are read at once, and a task is
parsed when it is asked for. The file is never changed, and named by its digest: see `snapshot`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping

from gpuemu_flow.graph.graph import Graph, Skip, TaskOutline
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.types import Json

_COMPACT = json.JSONEncoder(separators=(",", ":"))


class StoredTasks(Mapping[str, TaskSpec]):
    """The tasks of a stored graph, in its order, each parsed when it is asked for.

    Parameters
    ----------
    outlines : dict of str to TaskOutline
    content : bytes
        The file.
    begin : int
        Offset in `content` of the first task; the tasks follow each other as JSON.
    sizes : sequence of int
        Bytes of each task.
    """

    def __init__(
        self, outlines: dict[str, TaskOutline], content: bytes, begin: int, sizes: list[int]
    ) -> None:
        places = list(itertools.accumulate(sizes, initial=begin))
        if len(sizes) != len(outlines) or min(sizes, default=0) < 0 or places[-1] != len(content):
            raise ValueError("the tasks are not those of the outlines")
        self.outlines = outlines
        self._content = content
        self._places = dict(zip(outlines, itertools.pairwise(places), strict=True))
        self._parsed: dict[str, TaskSpec] = {}

    def __getitem__(self, name: str) -> TaskSpec:
        found = self._parsed.get(name)
        if found is None:
            begin, end = self._places[name]
            found = self._parsed[name] = TaskSpec.from_json(json.loads(self._content[begin:end]))
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)

    def __contains__(self, name: object) -> bool:
        return name in self.outlines


class _StoredGroups(Mapping[str, tuple[str, ...]]):
    """The groups of a stored graph, parsed when the first of them is asked for."""

    def __init__(self, text: bytes, names: list[str]) -> None:
        self._text = text
        self._names = names
        self._parsed: dict[str, tuple[str, ...]] | None = None

    @property
    def _groups(self) -> dict[str, tuple[str, ...]]:
        if self._parsed is None:
            names = self._names
            found = {g: tuple(names[n] for n in m) for g, m in json.loads(self._text).items()}
            self._parsed = found
        return self._parsed

    def __getitem__(self, name: str) -> tuple[str, ...]:
        return self._groups[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)


def render(graph: Graph) -> bytes:
    """Return the content of the file for a graph."""
    numbers = {name: number for number, name in enumerate(graph.tasks)}
    outlines = graph.outlines.values()
    tasks = [_COMPACT.encode(spec.to_json()).encode() for spec in graph.tasks.values()]
    index: dict[str, Json] = {
        "names": list(numbers),
        **{name: [getattr(o, name) for o in outlines] for name in TaskOutline._fields},
        "reads": [[numbers[task] for task in outline.reads] for outline in outlines],
        "sizes": list(map(len, tasks)),
        "skips": [[s.op, s.dtype, s.reason] for s in graph.skips],
    }
    groups = {g: [numbers[name] for name in members] for g, members in graph.groups.items()}
    heads = (_COMPACT.encode(part).encode() for part in (index, groups))
    return b"\n".join((*heads, b"".join(tasks)))


def digest_of(content: bytes) -> str:
    """Return the digest that names the file."""
    return hashlib.sha256(content).hexdigest()


def parse(content: bytes, digest: str) -> Graph:
    """Rebuild the graph from the result of `render`.

    Raises
    ------
    ValueError, KeyError, TypeError, IndexError
        The content does not have this digest, or has another form.
    """
    if digest_of(content) != digest:
        raise ValueError("tasks of another graph, or damaged ones")
    end = content.index(b"\n")
    begin = content.index(b"\n", end + 1) + 1
    index = json.loads(content[:end])
    names = index["names"]
    index["reads"] = [[names[n] for n in numbers] for numbers in index["reads"]]
    outlines = dict(
        zip(names, map(TaskOutline, *(index[f] for f in TaskOutline._fields)), strict=True)
    )
    tasks = StoredTasks(outlines, content, begin, index["sizes"])
    groups = _StoredGroups(content[end + 1 : begin - 1], names)
    return Graph(tasks, groups, tuple(Skip(*s) for s in index["skips"]))
