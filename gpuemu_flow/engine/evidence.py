"""Check that nothing on which verdicts depend changed during a run.

The reference, the configuration and our own code decide which ops pass. An op that changed one of
them while it ran would be judged by the changed version.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gpuemu_flow.engine.states import TaskStates
from gpuemu_flow.errors import Problem
from gpuemu_flow.graph.graph import Graph
from gpuemu_flow.inputs import own_code
from gpuemu_flow.inputs.files import FileTable
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.tasks import stages

SLUG = "judged-by-changed"


@dataclass(frozen=True)
class StartDigests:
    """The digests, at the beginning of a run, of everything on which its verdicts depend."""

    judge: str
    config: Mapping[str, str]
    references: Mapping[str, Mapping[str, str]]
    began: int = 0

    @classmethod
    def take(
        cls, graph: Graph, todo: Iterable[str], files: FileTable, judge: str, config: Iterable[str]
    ) -> StartDigests:
        """Take the digests of everything on which the verdicts of `todo` will depend."""
        began = time.time_ns()
        references = {
            name: {path: files.digest(path) for path in graph.tasks[name].sources}
            for name in sorted(todo)
            if graph.tasks[name].stage == stages.COMPARE
        }
        table = FileTable(files.root)  # a separate table: these files are no sources of tasks
        return cls(judge, {path: table.digest(path) for path in config}, references, began)

    def changed(self, files: FileTable, made: Collection[str]) -> dict[str, Problem]:
        """Find the comparisons whose verdicts depend on a file that changed during the run.

        The result maps the name of each such comparison task to a problem that names the file.
        """
        common = ""
        if own_code.digest(files) != self.judge:
            common = "gpuemu-flow's own code"
        table = FileTable(files.root)
        for path, digest in self.config.items():
            if table.digest(path) != digest:
                common = common or path
        found = {}
        for task, sources in self.references.items():
            moved = [
                path
                for path, digest in sources.items()
                if path not in made and files.digest(path) != digest
            ]
            what = common or (moved[0] if moved else "")
            if what:
                found[task] = _problem(task, what)
        return found

    def touched(self, graph: Graph, states: TaskStates, root: Path) -> dict[str, Problem]:
        """Find the comparisons whose op may have changed a file that the reference read.

        The result maps the name of each such comparison task to a problem that names the file. An
        op may have changed a file if it could write to the file, and the file changed during the
        run. The file's change time decides, since the op could restore the content.
        """
        found = {}
        for task in self.references:
            wall = graph.tasks[task].settings["op"].get("sandbox") or {}
            writable = [f"{path}/" for path in wall.get("writable", ())]
            files = _read_by_reference(graph, states, task) if writable else ()
            for file in sorted(files):
                path = f"{root / file}"
                if f"{path}/".startswith(tuple(writable)) and _changed_since(path, self.began):
                    found[task] = _problem(task, file)
                    break
        return found


def _read_by_reference(graph: Graph, states: TaskStates, task: str) -> set[str]:
    makers = [i.task for i in graph.tasks[task].inputs]
    makers = [name for name in makers if graph.tasks[name].stage == stages.REFERENCE]
    records = filter(None, map(states.record, (task, *makers)))
    return {file for record in records for file in record.discovered.files}


def _changed_since(path: str, began: int) -> bool:
    try:
        return Path(path).lstat().st_ctime_ns >= began
    except OSError:
        return True


def _problem(task: str, what: str) -> Problem:
    text = f"{task}: {what} changed during the run, and the verdict depends on it"
    return Problem(SLUG, text, "run again when nothing writes to it")
