"""Record, in a worker, the changes that the program makes to files, for `own_changes`."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import FrameType

from gpuemu_flow.runners import existence
from gpuemu_flow.runners.named_paths import absolute
from gpuemu_flow.runners.plain_paths import lexists
from gpuemu_flow.runners.stdlib_files import files_of

_TEMPORARY = files_of("tempfile")
Action = Callable[..., None]


class Changes:
    """Records each change to a file or folder before it happens.

    A change that is going to fail is not recorded. But if a file or folder cannot be created
    because it exists, the program has learned that it exists, and this is recorded.

    Parameters
    ----------
    note : callable
        Writes a record. Called with the record's letter and its path or paths; see `records`.
    """

    def __init__(self, note: Callable[[bytes, str], None]) -> None:
        self._note = note

    def actions(self) -> dict[str, Action]:
        """Return the method to call for each audit event, by the event's name."""
        return {
            "os.mkdir": self._on_mkdir,
            "os.rename": self._on_rename,
            "os.link": self._on_link,
            "os.symlink": self._on_symlink,
            "os.remove": self._on_remove,
        }

    def opened(self, path: str, flags: int, frame: FrameType) -> None:
        """Record that a file is opened for writing, or created."""
        while frame.f_back is not None and frame.f_code.co_filename == existence.__file__:
            frame = frame.f_back
        if not lexists(path):
            if flags & os.O_CREAT:
                # No other process knows the name of a temporary file.
                own = flags & os.O_TRUNC or frame.f_code.co_filename in _TEMPORARY
                self._note(b"w" if own else b"c", path)
        elif flags & os.O_EXCL and flags & os.O_CREAT:
            self._note(b"e", path)  # it exists, so that opening it fails
        elif flags & os.O_TRUNC:
            self._note(b"w", path)
        elif flags & os.O_WRONLY:
            self._note(b"t", path)

    def _on_mkdir(self, path: object, _mode: object = None, folder: int = -1) -> None:
        name = absolute(path, folder)
        self._note(b"f" if lexists(name) else b"d", name)  # it is there: to make it fails

    def _on_rename(self, path: object, target: object, here: int = -1, there: int = -1) -> None:
        source = absolute(path, here)
        if lexists(source):
            self._note(b"a", f"{source}//{absolute(target, there)[1:]}")

    def _on_link(self, path: object, target: object, here: int = -1, there: int = -1) -> None:
        source, name = absolute(path, here), absolute(target, there)
        if lexists(source) and not lexists(name):
            self._note(b"k", f"{source}//{name[1:]}")

    def _on_symlink(self, path: str | bytes, target: object, folder: int = -1) -> None:
        name = absolute(target, folder)
        if not lexists(name):
            source = os.path.join(os.path.dirname(name), os.fsdecode(path))  # noqa: PTH118, PTH120
            self._note(b"k", f"{absolute(source)}//{name[1:]}")

    def _on_remove(self, path: object, folder: int = -1) -> None:
        name = absolute(path, folder)
        if lexists(name):
            self._note(b"x", name)
