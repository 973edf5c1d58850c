"""Measure, check and clean the caches of a workspace: its own and the shared one."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.build.workspace import Workspace, place_for
from gpuemu_flow.model.errors import Problem, StoreError, UsageError
from gpuemu_flow.store.failures import FailureStore
from gpuemu_flow.store.private_files import RunLock, disk_errors
from gpuemu_flow.store.remote_cache import ACTION, CONTENT, CacheAccess, RemoteError, is_key

OnWait = Callable[[str], None]


class Size(Struct):
    """Numbers of entries and blobs in a cache, and their sizes in bytes. All are None for a cache
    on a server, which does not list its objects."""

    entries: int | None = None
    entry_bytes: int | None = None
    blobs: int | None = None
    blob_bytes: int | None = None


class CacheFacts(Struct):
    """The caches of a workspace."""

    folder: str
    own: Size
    limit: int
    remote: str = ""
    mode: str = ""
    signed: bool = False
    answers: str = ""
    shared: Size = field(default_factory=Size)


class CacheCheck(Struct):
    """The result of checking all objects in a cache."""

    entries: int = 0
    blobs: int = 0
    damaged: list[str] = field(default_factory=list)
    removed: int = 0


def cache_facts(workspace: Workspace) -> CacheFacts:
    cache = workspace.cache
    names = list(cache.files.list_files(cache.blobs.folder, "", depth=1))
    has_actions = (cache.folder / "actions").exists()
    own = Size(
        entries=sum(1 for _ in cache.actions) if has_actions else 0,
        entry_bytes=cache.actions.volume() if has_actions else 0,
        blobs=len(names),
        blob_bytes=sum(path.lstat().st_size for path in names),
    )
    facts = CacheFacts(str(cache.folder), own, workspace.settings.size_limit)
    cache.close()
    try:
        place = place_for(workspace)
    except UsageError as error:
        if error.problems[0].slug != "cache-remote-none":
            raise
        return facts
    facts.remote, facts.mode, facts.signed = place.url, place.mode, place.secret is not None
    try:
        place.transport().has(ACTION, "0" * 64)
        facts.answers = "yes"
    except RemoteError as error:
        facts.answers = str(error)
    root = _folder_of(place)
    if facts.answers == "yes" and root is not None:
        facts.shared = _size_of(root)
    return facts


def _folder_of(place: CacheAccess) -> Path | None:
    """Return the folder of a shared cache; None for a server or a bucket."""
    parts = urllib.parse.urlsplit(place.url)
    return Path(urllib.parse.unquote(parts.path)) if parts.scheme == "file" else None


def _objects(root: Path, kind: str) -> Iterator[Path]:
    """Yield the files of one kind in a shared folder, in no order; skip links and other names."""
    folder = root / kind
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        if folder.is_symlink():
            return
        for entry in entries:
            if is_key(entry.name) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def _size_of(root: Path) -> Size:
    sizes = {
        kind: [path.lstat().st_size for path in _objects(root, kind)] for kind in (ACTION, CONTENT)
    }
    return Size(
        len(sizes[ACTION]), sum(sizes[ACTION]), len(sizes[CONTENT]), sum(sizes[CONTENT])
    )  # fmt: skip


def collect(workspace: Workspace, limit: int, on_wait: OnWait | None = None) -> tuple[int, int]:
    """Delete the least recently used blobs of the workspace until at most `limit` bytes remain.
    Blobs of recorded failures are kept."""
    cache = workspace.cache
    cache.create()
    with RunLock(cache.lock_path, on_wait):
        found = cache.blobs.collect(limit, FailureStore(cache).pinned())
        cache.close()
    return found


def collect_shared(workspace: Workspace, limit: int) -> tuple[int, int]:
    """Delete the oldest objects of a shared folder until at most `limit` bytes remain. An entry
    is deleted before blobs of the same age, since it must not name a missing blob. Return the
    numbers of deleted files and bytes. Raises UsageError: ``cache-remote-unlisted``,
    ``cache-remote-none``."""
    place = place_for(workspace, writing=True)
    folder = _folder_of(place)
    if folder is None:
        text = f"{place.url} does not list what it holds"
        hint = "use its own tools, such as a rule of the bucket that deletes what is old"
        raise UsageError(Problem("cache-remote-unlisted", text, hint))
    if not folder.is_dir():
        raise StoreError(Problem("cache-not-writable", f"there is no folder {folder}", "mount it"))
    files = []
    for order, kind in enumerate((ACTION, CONTENT)):
        for path in _objects(folder, kind):
            status = path.lstat()
            files.append((status.st_mtime, order, status.st_size, path))
    left = sum(size for _, _, size, _ in files)
    deleted = freed = 0
    for _, _, size, path in sorted(files):
        if left <= limit:
            break
        with disk_errors(path):
            path.unlink(missing_ok=True)
        left, deleted, freed = left - size, deleted + 1, freed + size
    return deleted, freed


def verify(workspace: Workspace, on_wait: OnWait | None = None) -> CacheCheck:
    cache = workspace.cache
    cache.create()
    with RunLock(cache.lock_path, on_wait):
        names = cache.files.list_files(cache.blobs.folder, "", depth=1)
        checked = CacheCheck(blobs=sum(1 for _ in names))
        checked.damaged += [f"blob {digest}" for digest in cache.blobs.verify()]
        if (cache.folder / "actions").exists():
            for key in tuple(cache.actions):
                checked.entries += 1
                if cache.actions.get(key) is None:
                    checked.damaged.append(f"entry {key}")
        cache.close()
    checked.removed = len(checked.damaged)
    return checked
