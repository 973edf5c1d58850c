"""Check whether the code of a submission changed, by comparing the files that the client ran."""

from __future__ import annotations

import os
from collections.abc import Iterable

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.inputs.files import FileTable, stamp_of
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.store.result_records import StoredResult
from gpuemu_flow.store.results import ResultStore

LARGEST = 1 << 30
"""Maximum size in bytes of a file of code; a larger file is not read, and counts as changed."""
SHOWN = 3
_LOST = "files that are not recorded any more"


@dataclass(frozen=True)
class ChangedFiles:
    """Files of a submission's code that changed since the code was run.

    Attributes
    ----------
    edited, gone : tuple of str
        Paths of edited and of deleted files, relative to the workspace if they are in it.
    """

    edited: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.edited or self.gone)


class ClientCode:
    """Finds the files of submissions that changed since the client ran them.

    Each file is read only once.

    Parameters
    ----------
    workspace : Workspace
        The workspace. The files that were examined are registered there, so that the stored plan
        becomes void if one of them changes.
    store : ResultStore
    """

    def __init__(self, workspace: Workspace, store: ResultStore) -> None:
        self._workspace = workspace
        self._store = store
        self._table = FileTable(workspace.root)
        self._known: dict[str, ChangedFiles] = {"": ChangedFiles()}

    def moved(self, stored: StoredResult) -> ChangedFiles:
        """Return the files of a submission's code that changed since the client ran the code."""
        if stored.files not in self._known:
            self._known[stored.files] = self._look(stored)
        return self._known[stored.files]

    def _look(self, stored: StoredResult) -> ChangedFiles:
        files = self._store.files_of(stored)
        if files is None:
            return ChangedFiles(gone=(_LOST,))
        edited, gone = [], []
        for path, digest in sorted(files.items()):
            full = os.path.join(self._workspace.root, path)  # noqa: PTH118 - may be absolute
            stamp = stamp_of(full)
            self._workspace.watch({full: stamp})
            if stamp is None:
                gone.append(path)
            elif stamp[2] > LARGEST or self._table.digest(path) != digest:
                edited.append(path)
        return ChangedFiles(tuple(edited), tuple(gone))


def name_files(moved: Iterable[ChangedFiles]) -> str:
    """Return a text with the first few files that were edited or deleted."""
    moved = list(moved)
    edited = sorted({path for one in moved for path in one.edited})
    gone = sorted({path for one in moved for path in one.gone} - {*edited})
    words = [*edited, *(f"{path} (gone)" for path in gone)]
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return ", ".join(words[:SHOWN]) + more
