"""A file of the results of passed comparisons, so that a report need not read their manifests.

Each result is a row, which is valid only while the manifest has the same digest and the graph is
the same. Results that did not pass are read from their manifests each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.graph.graph import TaskOutline
from gpuemu_flow.judging.summary import WORST
from gpuemu_flow.results.model import OpResult
from gpuemu_flow.store.cache import OtherFormatError, seal, unseal
from gpuemu_flow.types import Json, Verdict, number_from_json, number_to_json

NAME = "passed.json"
VERSION = 3
_NUMBERS = frozenset(WORST)
_NAMES = ("loose", "kept_finite", "untried")
_LEFT_OUT = frozenset({
    "op", "dtype", "verdict", "cached", "failures", "passing", "causes", "absence",
})  # fmt: skip
_FIELDS = tuple(field.name for field in fields(OpResult) if field.name not in _LEFT_OUT)


class PassedRows:
    """The stored results (rows) of passed comparisons in the present graph of a workspace.

    Parameters
    ----------
    workspace : Workspace
    status : mapping of str to str
        The run's action for each task.

    Attributes
    ----------
    problems : tuple of Problem
        Problems to report if the file of rows is damaged.
    """

    def __init__(self, workspace: Workspace, status: Mapping[str, str]) -> None:
        self._files = workspace.snapshot.files
        self._cache = workspace.cache
        self._manifest = workspace.states().manifest
        self._graph = workspace.snapshot.graph_digest
        self._status = status
        known = len(self._cache.problems)
        self._rows = self._load()
        self._outdated = False
        self.problems = tuple(self._cache.problems[known:])

    def get(self, name: str, outline: TaskOutline) -> OpResult | None:
        """Return the stored result of a comparison; None if there is no valid row.

        A row is not valid if this run executed the comparison or a task that the comparison reads.

        Parameters
        ----------
        name : str
            The comparison's task.
        outline : TaskOutline
            The outline of that task.
        """
        row = self._rows.get(name)
        if row is None or any(self._status.get(n) != "current" for n in (name, *outline.reads)):
            return None
        digest, *values = row
        if not digest or self._digest(outline) != digest:
            return None
        try:
            return _result(outline, values)
        except (ValueError, KeyError, TypeError, IndexError):
            return None

    def before(self, outline: TaskOutline) -> str:
        """Return the present digest of a task's manifest, to be passed to `learn` later.

        Call this before reading the manifest.
        """
        return self._digest(outline)

    def learn(self, name: str, outline: TaskOutline, before: str, result: OpResult) -> None:
        """Add the result that was read from a manifest, if it passed and the manifest is unchanged.

        Parameters
        ----------
        before : str
            Result of the method `before`, which was called before the manifest was read.
        """
        passed = result.verdict is Verdict.PASSED and not result.failures
        if passed and before and self._digest(outline) == before:
            row = [before, *_values(result)]
            if self._rows.get(name) != row:
                self._rows[name] = row
                self._outdated = True

    def save(self) -> None:
        """Write the rows if at least one is new; the caller must hold the run lock.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        if self._outdated and self._graph:
            content = {"version": VERSION, "graph": self._graph, "rows": self._rows}
            self._cache.files.write(self._cache.folder / NAME, seal(content))

    def _digest(self, outline: TaskOutline) -> str:
        return self._files.digest(self._manifest(outline.target))

    def _load(self) -> dict[str, list[Json]]:
        try:
            content = unseal(self._cache.files.read(self._cache.folder / NAME))
            if content["version"] == VERSION and content["graph"] == self._graph and self._graph:
                return {str(name): list(row) for name, row in content["rows"].items()}
        except (OSError, OtherFormatError):
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._cache.set_aside(self._cache.folder / NAME, f"damaged results: {error}")
        return {}


def _values(result: OpResult) -> list[Json]:
    found = {name: getattr(result, name) for name in _FIELDS}
    found.update((name, number_to_json(found[name])) for name in _NUMBERS)
    found.update((name, list(found[name])) for name in _NAMES)
    found["constant"] = [list(pair) for pair in result.constant]
    return [result.verdict.value, *found.values()]


def _result(outline: TaskOutline, values: list[Json]) -> OpResult:
    verdict = Verdict(values[0])
    if verdict is not Verdict.PASSED:
        raise ValueError("only results that passed are kept")
    more = dict(zip(_FIELDS, values[1:], strict=True))
    for name in _NUMBERS:
        more[name] = number_from_json(more[name])
    more.update((name, tuple(more[name])) for name in _NAMES)
    more["constant"] = tuple((str(name), value) for name, value in more["constant"])
    return OpResult(outline.subject, outline.dtype, verdict, cached=True, **more)
