"""The file of a compiled graph: a head with an outline of every task, then the tasks in blocks.

Most commands use only a few of the many tasks. Therefore, only the head is read when the file is
opened. A block is read and checked when one of its tasks is requested. The head contains the
blocks' digests. The file is named after the digest of its head, and is never changed; see
`snapshot`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from gpuemu_flow.errors import Problem, StoreError
from gpuemu_flow.graph.graph import Graph, Skip, TaskOutline
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.types import Json

T = TypeVar("T")
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_TASKS_OF_BLOCK = 64
_SIZE_DIGITS = 12
_BEGIN = _SIZE_DIGITS + 1
"""Bytes before the head: its size in decimal digits, and a line end."""

Repair = Callable[[str], Mapping[str, TaskSpec]]
"""Called with a reason if a part of the graph's file is damaged; returns all tasks of the graph."""


class _File:
    """An open file, closed when this object is no longer used."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, begin: int, end: int) -> bytes:
        return os.pread(self._descriptor, end - begin, begin)


class _Blocks:
    """The blocks of tasks in a file; each block is checked when it is read.

    Parameters
    ----------
    file : _File
    begin : int
        Offset of the first block.
    sizes : list of int
        Size of each block in bytes.
    digests : list of str
        Expected digest of each block.
    """

    def __init__(self, file: _File, begin: int, sizes: list[int], digests: list[str]) -> None:
        self._file = file
        self._places = list(itertools.accumulate(sizes, initial=begin))
        self._digests = digests
        self._last = -1, b""

    def __len__(self) -> int:
        return len(self._digests)

    def read(self, number: int) -> bytes:
        """Return a block.

        Raises
        ------
        ValueError
            The block is damaged or cannot be read.
        """
        known, block = self._last
        if known == number:
            return block
        begin, end = self._places[number : number + 2]
        try:
            block = self._file.read(begin, end)
        except OSError as error:
            raise ValueError(str(error)) from error
        if _digest(block) != self._digests[number]:
            raise ValueError(f"block {number} of the tasks is damaged")
        self._last = number, block
        return block


class StoredTasks(Mapping[str, TaskSpec]):
    """The tasks of a stored graph, in graph order; each task is parsed when it is requested.

    Parameters
    ----------
    outlines : dict of str to TaskOutline
    sizes : list of int
        Size of each task's JSON in bytes. A block contains the JSON of consecutive tasks.
    blocks : _Blocks
    of_block : int
        Number of tasks per block; the last block may have fewer.
    repair : callable
        Called at the first damaged block; see `Repair`.
    """

    def __init__(
        self,
        outlines: dict[str, TaskOutline],
        sizes: list[int],
        blocks: _Blocks,
        of_block: int,
        repair: Repair,
    ) -> None:
        self.outlines = outlines
        self._sizes = sizes
        self._blocks = blocks
        self._of_block = of_block
        self._repair = repair
        self._numbers = dict(zip(outlines, range(len(outlines)), strict=True))
        self._parsed: dict[str, TaskSpec] = {}
        self._mended: Mapping[str, TaskSpec] | None = None
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> TaskSpec:
        found = self._parsed.get(name)
        if found is None:
            found = self._parsed[name] = self._read(name)
        return found

    def _read(self, name: str) -> TaskSpec:
        number = self._numbers[name]
        block, place = divmod(number, self._of_block)
        begin = sum(self._sizes[number - place : number])
        if self._mended is None:
            try:
                content = self._blocks.read(block)
                return TaskSpec.from_json(json.loads(content[begin : begin + self._sizes[number]]))
            except ValueError as error:
                with self._lock:
                    if self._mended is None:
                        self._mended = self._repair(str(error))
        return self._mended[name]

    def check(self) -> None:
        """Read all blocks; raise ValueError if one is damaged."""
        for number in range(len(self._blocks)):
            self._blocks.read(number)

    def __iter__(self) -> Iterator[str]:
        return iter(self.outlines)

    def __len__(self) -> int:
        return len(self.outlines)

    def __contains__(self, name: object) -> bool:
        return name in self.outlines


class _StoredGroups(Mapping[str, tuple[str, ...]]):
    """The groups of a stored graph, all parsed when the first group is requested."""

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
    """Return the content of the file that stores a graph."""
    numbers = {name: number for number, name in enumerate(graph.tasks)}
    outlines = graph.outlines.values()
    tasks = [_COMPACT.encode(spec.to_json()).encode() for spec in graph.tasks.values()]
    blocks = [b"".join(part) for part in _parts_of(tasks, _TASKS_OF_BLOCK)]
    index: dict[str, Json] = {
        "names": list(numbers),
        **{name: [getattr(o, name) for o in outlines] for name in TaskOutline._fields},
        "reads": [[numbers[task] for task in outline.reads] for outline in outlines],
        "sizes": list(map(len, tasks)),
        "of_block": _TASKS_OF_BLOCK,
        "blocks": list(map(_digest, blocks)),
        "skips": [[s.op, s.dtype, s.reason] for s in graph.skips],
    }
    groups = {g: [numbers[name] for name in members] for g, members in graph.groups.items()}
    head = b"\n".join(_COMPACT.encode(part).encode() for part in (index, groups))
    return b"".join((f"{len(head):0{_SIZE_DIGITS}}\n".encode(), head, *blocks))


def _parts_of(values: list[T], number: int) -> Iterator[list[T]]:
    for begin in range(0, len(values), number):
        yield values[begin : begin + number]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(content: bytes) -> str:
    """Return the digest of the head in a file's content; the file is named after this digest."""
    return _digest(content[_BEGIN : _BEGIN + int(content[:_SIZE_DIGITS])])


def refuse(reason: str) -> Mapping[str, TaskSpec]:
    """Raise StoreError ``cache-damaged`` instead of restoring the tasks of a damaged graph file.

    This is the `Repair` of graphs that cannot be compiled again.
    """
    raise StoreError(Problem("cache-damaged", f"the stored graph: {reason}", "run again"))


def parse(descriptor: int, digest: str, repair: Repair) -> Graph:
    """Rebuild the graph from a file that contains the result of `render`.

    Parameters
    ----------
    descriptor : int
        The open file. The graph takes it over and closes it.
    digest : str
        Result of `digest_of`.
    repair : callable
        Called when a damaged block of tasks is read; see `Repair`.

    Raises
    ------
    OSError
    ValueError, KeyError, TypeError, IndexError
        The file does not have this digest, or has an unknown format.
    """
    file = _File(descriptor)
    size = file.size()
    begin = _BEGIN + min(int(file.read(0, _SIZE_DIGITS)), size)
    head = file.read(_BEGIN, begin)
    if _digest(head) != digest:
        raise ValueError("tasks of another graph, or damaged ones")
    end = head.index(b"\n")
    index = json.loads(head[:end])
    names, sizes, of_block = index["names"], index["sizes"], index["of_block"]
    index["reads"] = [[names[n] for n in numbers] for numbers in index["reads"]]
    columns = zip(*(index[f] for f in TaskOutline._fields), strict=True)
    # `TaskOutline._make` is written in Python, and is called for each of ten thousand tasks.
    made = map(tuple.__new__, itertools.repeat(TaskOutline), columns)
    outlines = dict(zip(names, made, strict=True))
    of_blocks = [sum(part) for part in _parts_of(sizes, of_block)]
    fit = min(sizes, default=0) >= 0 and begin + sum(of_blocks) == size
    if not fit or len(of_blocks) != len(index["blocks"]):
        raise ValueError("the tasks are not those of the outlines")
    blocks = _Blocks(file, begin, of_blocks, index["blocks"])
    tasks = StoredTasks(outlines, sizes, blocks, of_block, repair)
    groups = _StoredGroups(head[end + 1 :], names)
    return Graph(tasks, groups, tuple(Skip(*s) for s in index["skips"]))


def check(graph: Graph) -> None:
    """Read all tasks of a stored graph, so that damage is found before one of them is used.

    Raises
    ------
    ValueError
        A part of the graph's file is damaged.
    """
    if isinstance(graph.tasks, StoredTasks):
        graph.tasks.check()
