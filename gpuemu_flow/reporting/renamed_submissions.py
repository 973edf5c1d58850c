"""Store the submissions of renamed ops under the new names, for ops that only clients run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.results_folder import results_folder
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.result_records import StoredResult
from gpuemu_flow.store.results import FOLDER, ResultStore

if TYPE_CHECKING:
    from gpuemu_flow.fuzz.wire_ops import Subjects


def new_names(
    workspace: Workspace, subjects: Subjects, stored: Iterable[StoredResult]
) -> dict[str, str]:
    """Map the former names of ops that were renamed since the last run to their new names.

    A stored submission carries a digest of everything that decided its verdict, except the op's
    name. A removed op counts as renamed if exactly one new op has the digest of one of its
    submissions, and if this new op fits no other removed op.
    """
    moved = workspace.moved_names
    if not moved.gone or not moved.new:
        return {}
    from gpuemu_flow.fuzz.wire_ops import Query  # noqa: PLC0415 - brings numpy

    judged: dict[str, set[tuple[str, str]]] = {}
    for one in stored:
        if one.op in moved.gone:
            judged.setdefault(one.op, set()).add((one.dtype, one.judged_by))
    fits = {
        old: [
            new
            for new in sorted(moved.new)
            if any(by == subjects.judged_by(Query(new, dtype, {})) for dtype, by in sorted(pairs))
        ]
        for old, pairs in judged.items()
    }
    wanted = [new for found in fits.values() for new in found]
    return {
        old: found[0]
        for old, found in fits.items()
        if len(found) == 1 and wanted.count(found[0]) == 1
    }


def take_over_submissions(workspace: Workspace) -> None:
    """Store submissions and recorded failures of renamed ops under the new names.

    A run calls this while it holds the lock, before it stores the snapshot with the new names.
    """
    if not workspace.moved_names.new:
        return
    folder = results_folder(workspace.config, workspace.cache)
    if not (folder / FOLDER).exists():
        return
    from gpuemu_flow.fuzz.wire_ops import Subjects  # noqa: PLC0415 - brings numpy

    store = ResultStore(workspace.cache, folder, max_results=0)
    try:
        names = new_names(workspace, Subjects(workspace), store.everything())
        for old, new in names.items():
            store.rename(old, new, FailureStore(workspace.cache).rename(old, new))
    finally:
        store.close()
