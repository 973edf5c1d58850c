"""The cache folder of one workspace: its paths, and its stores, opened on first use."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.let_through import user_cache_of
from gpuemu_flow.store.blobs import BlobStore
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import digest_bytes
from gpuemu_flow.store.private_files import PrivateFolder

_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This folder is gpuemu-flow's cache; it can be deleted at any time.\n"
    b"# See https://bford.info/cachedir/ for what this file tells backup programs.\n"
)
_VOLUME = "volume of blobs"
DEFAULT_ACTIONS_LIMIT = 512 * 1024 * 1024


def damaged(message: str, path: Path) -> Problem:
    """Return the warning about a damaged part of the cache."""
    return Problem("cache-damaged", message, file=str(path), warning=True)


def artifact_path(folder: Path, kernel: str, arch: str, kind: str) -> Path:
    """Return where a cache keeps a kernel's compiled code; `kind` is ``ptx`` or ``cubin``."""
    name = quote(kernel, safe="") + (f"@{arch}" if arch else "")
    return folder / "artifacts" / f"{name}.{kind}"


class WorkspaceCache:
    """Paths and stores below ``.gpuemu-cache``."""

    def __init__(self, folder: Path, *, actions_limit: int = DEFAULT_ACTIONS_LIMIT) -> None:
        self.folder = folder
        self.files = PrivateFolder(folder)
        self.problems: list[Problem] = []
        self.lost: set[str] = set()  # tasks whose stored results proved to be damaged
        self._actions_limit = actions_limit

    def create(self) -> None:
        """Make the folder with its .gitignore and CACHEDIR.TAG, if it does not exist.

        Raises StoreError: The folder cannot be made, or is not writable.
        """
        self.files.make(self.folder)
        for name, content in ((".gitignore", b"*\n!.gitignore\n"), ("CACHEDIR.TAG", _TAG)):
            if not os.path.lexists(self.folder / name):
                self.files.write(self.folder / name, content)

    @property
    def lock_path(self) -> Path:
        """Return the file of the run lock."""
        return self.folder / "lock"

    @property
    def staging(self) -> Path:
        """Return the folder for files being written, on the same file system as the blobs."""
        path = self.folder / "staging"
        self.files.make(path)
        return path

    def keep_references(self, references: Collection[str]) -> str:
        """Write down the references of all ops, for the sandboxes of other ops.

        Return the file's path; empty if it cannot be written, as in a workspace that is read only.
        """
        listed = os.fsencode("\0".join(sorted(references)))
        path = self.folder / f"references-{digest_bytes(listed)[:16]}"
        try:
            if not path.is_file():
                self.create()
                self.files.write(path, listed)
        except StoreError:
            return ""
        return str(path)

    def log_path(self, task: str) -> Path:
        """Return the log file of a task."""
        return self.folder / "logs" / f"{quote(task, safe='')}.log"

    @cached_property
    def state(self) -> JsonStore:
        """Return the store of task states, which are never evicted."""
        return JsonStore(self.folder / "state", self.set_aside)

    @cached_property
    def actions(self) -> JsonStore:
        """Return the action cache: results by action key. Least recently used ones are evicted."""
        return JsonStore(
            self.folder / "actions", self.set_aside, size_limit=self._actions_limit, evict=True
        )

    @cached_property
    def failures_db(self) -> JsonStore:
        """Return the store of failure records, which are never evicted; see `store.failures`."""
        return JsonStore(self.folder / "failures", self.set_aside)

    @cached_property
    def blobs(self) -> BlobStore:
        """Return the store of tensor files, named by content."""
        return BlobStore(self.folder / "blobs", self.set_aside)

    def limit_blobs(self, limit: int, keep: Callable[[], Iterable[str]]) -> None:
        """Delete the least recently used blobs if they are larger than `limit` together.

        To measure them takes as long as a small run, so only what was added is counted until the
        sum reaches the limit. What other commands add is measured then.
        """
        known = self.state.get(_VOLUME)
        volume = known + self.blobs.written if isinstance(known, int) else limit + 1
        if volume > limit:
            self.blobs.collect(limit, keep())
            volume = self.blobs.volume()
        self.state.put(_VOLUME, volume)

    def set_aside(self, path: Path, reason: str) -> None:
        """Move a damaged `path` to ``quarantine/``, and record the reason."""
        quarantine = self.folder / "quarantine"
        with contextlib.suppress(OSError):
            self.files.check(path.parent)
            self.files.make(quarantine)
            for n in itertools.count(1):
                target = quarantine / f"{path.name}.{n}"
                if not os.path.lexists(target):
                    path.rename(target)
                    break
        shown = (
            path.relative_to(self.folder.parent)
            if path.is_relative_to(self.folder.parent)
            else path
        )
        self.problems.append(damaged(f"{reason}; set aside and made again when needed", shown))

    def clear_staging(self) -> None:
        """Delete unfinished files of killed runs. Call this only while holding the run lock."""
        staging = self.folder / "staging"
        with contextlib.suppress(FileNotFoundError):
            self.files.check(staging)
            for entry in os.scandir(staging):
                self.files.remove_tree(Path(entry.path))

    def close(self) -> None:
        """Close the databases that were opened."""
        for name in ("state", "actions", "failures_db"):
            store = self.__dict__.get(name)
            if isinstance(store, JsonStore):
                store.close()


# The user's own cache folder, for results computed outside of any workspace.


LIMIT = 64 << 20
"""Largest size of the cached results in bytes; the least recently used ones are dropped first."""


def user_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return ``$XDG_CACHE_HOME/gpuemu-flow``, or ``~/.cache/gpuemu-flow`` if that is unset."""
    return Path(user_cache_of(environ) or Path.home() / ".cache" / "gpuemu-flow")


def open_user_cache() -> WorkspaceCache | None:
    """Return the user's cache; None if it is not writable, which is no error."""
    try:
        cache = WorkspaceCache(user_cache_folder(os.environ), actions_limit=LIMIT)
        cache.create()
        _ = cache.actions  # opens it
    except (StoreError, OSError, RuntimeError):  # RuntimeError: no home folder
        return None
    return cache
