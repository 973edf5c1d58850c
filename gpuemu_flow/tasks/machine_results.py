"""Share results of commands and compilers between machines with identical workspaces.

Which files a command looked for, and which compilers it called, is no part of its key. It may use
files that its ``inputs`` do not list, and these may differ in another clone. Therefore, the key
covers all files of the workspace, the compilers on ``PATH`` and the kind of machine.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.types import Json, Observation
from gpuemu_flow.store.keys import Discovered, digest_json
from gpuemu_flow.store.private_files import user_cache_folder
from gpuemu_flow.tasks.base import StageContext, TaskSpec

if TYPE_CHECKING:
    from gpuemu_flow.store.remote_cache import SharedCache


COMPILERS = (
    "as", "c++", "cc", "clang", "clang++", "cmake", "g++", "gcc", "gfortran", "go", "hipcc", "ld",
    "make", "ninja", "nvcc", "ptxas", "rustc",
)  # fmt: skip
MOST_FILES = 20_000
MOST_BYTES = 1 << 30
MOST_UNDECLARED = 100
_NOT_LOOKED_AT = frozenset({"__pycache__", ".git", ".hg", ".gpuemu-cache", ".venv", "node_modules"})


class MachineResults(Struct, frozen=True):
    """The results of a task in a shared cache, for the present workspace and machine."""

    cache: SharedCache
    context: StageContext
    state: Json

    def fetch(self, key: str) -> Json | None:
        """Return the stored result for a local action key. Return None if there is none, or if
        stored results are to be ignored (`force`)."""
        if self.context.force:
            return None
        whole = digest_json([key, self.state])
        self.cache.fetch([whole])
        return self.context.cache.actions.get(whole)

    def fetch_blobs(self, digests: Iterable[str]) -> None:
        """Fetch those of the blobs that the workspace's cache lacks."""
        wanted = []
        for digest in digests:
            try:
                if not self.context.cache.blobs.has(digest):
                    wanted.append(digest)
            except ValueError:  # a stranger's words
                continue
        self.cache.fetch_blobs(wanted)

    def store(self, key: str, value: Json, digests: Iterable[str]) -> None:
        """Store a result, and the blobs with the given digests."""
        whole = digest_json([key, self.state])
        self.cache.store([whole], {whole: value}, digests)


def machine_results(spec: TaskSpec, context: StageContext) -> MachineResults | None:
    """Return the access to a task's shared results; None if they cannot be shared. They cannot be
    shared without a shared cache, or if the workspace is huge or not entirely readable."""
    cache = context.shared
    if cache is None:
        return None
    made = frozenset((*spec.settings.get("declared", ()), *spec.outputs))
    tree = _tree(str(context.root), made)
    if tree is None:
        return None
    found = (shutil.which(name) for name in COMPILERS)
    programs = Discovered(files=frozenset(path for path in found if path))
    state = [spec.name, tree, dict(context.environment), context.inputs.parts(programs)]
    return MachineResults(cache, context, state)


def _tree(root: str, made: frozenset[str]) -> str | None:
    """Return a digest of all files below a folder except those in `made`. Return None if there are
    too many files, they are too large, or one cannot be read."""
    found = hashlib.sha256()
    files = total = 0
    for name, status in _entries(os.path.realpath(root), "", _own_cache()):
        if name in made:
            continue
        files, total = files + 1, total + status.st_size
        if files > MOST_FILES or total > MOST_BYTES:
            return None
        kind = stat.S_IFMT(status.st_mode) | status.st_mode & stat.S_IXUSR
        found.update(f"{len(os.fsencode(name))} {kind:o} ".encode())
        found.update(os.fsencode(name))
        content = _content(os.path.join(root, name), status)  # noqa: PTH118
        if content is None:
            return None
        found.update(content)
    return found.hexdigest()


def _own_cache() -> str:
    """Return the folder of the user's own cache; empty if the user has no home folder. `_tree`
    leaves this folder out. If the home folder is the workspace, the cache lies in the workspace."""
    try:
        return os.path.realpath(user_cache_folder(os.environ))
    except RuntimeError:  # no home folder
        return ""


def _entries(root: str, folder: str, own: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the path below `root` and the status of each file or link below `folder`. The entries
    of each folder are sorted by name. The folder `own` is left out."""
    try:
        with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        name = f"{folder}/{entry.name}" if folder else entry.name
        if entry.name in _NOT_LOOKED_AT or entry.path == own:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _entries(root, name, own)
        else:
            yield name, entry.stat(follow_symlinks=False)


def _content(path: str, status: os.stat_result) -> bytes | None:
    """Return a digest of a file's content or a link's target; None if it cannot be read."""
    try:
        if stat.S_ISLNK(status.st_mode):
            return hashlib.sha256(os.fsencode(os.readlink(path))).digest()  # noqa: PTH115
        if not stat.S_ISREG(status.st_mode):
            return b"-"
        with open(path, "rb") as file:  # noqa: PTH123
            return hashlib.sha256(file.read()).digest()
    except OSError:
        return None


# Find what a user's build command depends on besides the content of its declared inputs.


def command_uses(
    program: str, inputs: Sequence[str], root: Path, environment: Mapping[str, str]
) -> Observation | None:
    """Return the dependencies of a command besides the content of its inputs. These are the file of
    its program, and which of its inputs are executable."""
    paths = (os.path.join(root, name) for name in inputs)  # noqa: PTH118
    looked = frozenset(path for path in paths if os.access(path, os.X_OK))
    if "/" in program:
        files = frozenset({os.path.join(root, program)})  # noqa: PTH118
        return Observation(files=files, looked=looked)
    missed: list[str] = []
    for folder in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(root, folder or ".", program)  # noqa: PTH118
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            files = frozenset({path})
            return Observation(files, frozenset(missed), looked=looked)
        missed.append(path)
    return None


def unlisted(
    opened: Iterable[str], context: StageContext, sandbox: Json, listed: Iterable[str]
) -> tuple[str, ...]:
    """Return the files of the workspace that a command opened and could have declared. Those in
    `listed` and below it are left out, and what `sandbox` hides from the command."""
    root = os.path.realpath(context.root)
    known = {os.path.realpath(os.path.join(root, name)) for name in listed}  # noqa: PTH118
    known.update((os.path.realpath(context.cache.folder), *(sandbox or {"hidden": ()})["hidden"]))
    found = set()
    for path in map(os.path.realpath, opened):
        name = path.removeprefix(f"{root}/")
        above = {path[:n] for n, letter in enumerate(path) if letter == "/"}
        if name == path or path in known or not known.isdisjoint(above):
            continue
        if name.endswith("/pyvenv.cfg"):  # of the interpreter
            continue
        if _NOT_LOOKED_AT.isdisjoint(name.split("/")) and not is_installed(path):
            found.add(name)
    return tuple(sorted(found)[:MOST_UNDECLARED])


def some(names: Sequence[str]) -> str:
    """Return the first names of many, for a message."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
