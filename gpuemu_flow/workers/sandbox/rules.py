"""Convert "all but these" to a list of allowed paths, the only form that Landlock takes.

In every folder on the way from the root to an excluded path, all other entries are allowed by name.
So files that are created there later are excluded, too.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.workers.sandbox.listings import Listings
from gpuemu_flow.workers.sandbox.spec import SCRATCH, Sandbox, is_below

DEVICES = ("null", "zero", "full", "random", "urandom")
PROCESSORS = ("nvidia", "dri", "kfd", "dxg", "accel")
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 - semaphores and shared arrays lie there
_MOST_LOOKED = 200_000
_OF_TRUSTED = (SCRATCH, "torchinductor_", "gpuemu-flow-")
"""Prefixes of folders, in the folder of temporary files, that an op must not see."""


class AccessRules(Struct, frozen=True):
    """Rights of a program, by path."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    opened: Mapping[str, int] = field(default_factory=dict)


def rules_for(
    sandbox: Sandbox,
    scratch: str,
    home: str,
    compiled: Iterable[str] = (),
    listings: Listings | None = None,
) -> AccessRules:
    """List the rights of a program for the files that exist now."""
    forget()
    listings = listings or Listings()
    listings.begin()
    scratches = frozenset(_others_scratch(scratch))
    private = (*private_paths(sandbox.root, home), "/dev", *compiled)
    whole = [sandbox.root] if sandbox.closed else []
    secret = [*sandbox.hidden, *_others_references(sandbox)]
    copies = _with_copies(secret, sandbox.root)
    hidden = _Excluded(listings, [*copies, *private, *whole], scratches)
    read_only = _Excluded(listings, sandbox.read_only, hidden.paths)
    below = frozenset(path for path in hidden.paths if _is_in_memory(path))
    in_memory = _Excluded(listings, (), below)
    read = [*hidden.rest("/"), *in_memory.rest(_SHARED_MEMORY)]
    # With a closed workspace, the interpreter may be read, but not the folders on its path.
    for path in _needed(*(() if sandbox.closed else sys.path)):
        # The interpreter may be in a hidden home folder: another user's, or one that cannot be
        # listed.
        read += hidden.without_own(path)
    starts = map(os.path.realpath, outermost(sandbox.writable))
    read_only_in_memory = _Excluded(listings, sandbox.read_only, below)
    write = [
        path
        for start in starts
        for path in (read_only_in_memory if _is_in_memory(start) else read_only).rest(start)
    ]
    closed = _Excluded(listings, sandbox.read_only).paths
    opened = map(os.path.realpath, {*sandbox.shown}.intersection(sandbox.writable))
    write += [path for path in opened if path not in closed]
    # A workspace, or scratch folders, may lie there.
    owned = _Excluded(listings, (sandbox.root, *sandbox.read_only), below | scratches)
    return AccessRules(
        read=(*read, *map(os.path.realpath, sandbox.shown)),
        write=(scratch, *owned.rest(_SHARED_MEMORY), *write),
        devices=_devices(),
        opened=listings.opened,
    )


def _is_in_memory(path: str) -> bool:
    return path.startswith(f"{_SHARED_MEMORY}/")


def _others_scratch(scratch: str) -> list[str]:
    """Return the temporary folders to hide from an op, with links resolved. They hold the scratch
    folders of all workers, compiled references and, for a user without a home folder, the daemon's
    files. Folders that are created beside them later are hidden as well, since the sandbox permits
    only those entries of their parent folder that exist now."""
    folder, name = os.path.split(os.path.dirname(scratch))  # noqa: PTH120
    if not name.startswith(SCRATCH):
        return []
    try:
        with os.scandir(folder) as entries:
            found = [e for e in entries if e.name.startswith(_OF_TRUSTED)]
    except OSError:
        return [os.path.realpath(f"{folder}/{name}")]
    return [os.path.realpath(e.path) if e.is_symlink() else e.path for e in found]


def outermost(paths: Iterable[str]) -> list[str]:
    """Leave out each path that lies below another of the paths, and return the rest, sorted. The
    rights to an outer folder include all that lies below it, so the inner paths are not needed. Nor
    can they be trusted: an op that may write to the outer folder could have replaced an inner path
    by a link to another file."""
    found = sorted({os.path.normpath(path) for path in paths})
    return [p for p in found if not any(above in found for above in _above(p))]


def _needed(*packages: str) -> list[str]:
    """Return the paths of the interpreter and of packages."""
    return sorted({os.path.realpath(p) for p in (sys.prefix, sys.base_prefix, *packages) if p})


def _devices() -> tuple[str, ...]:
    """Return devices that anyone may use. Disks are left out, since they hold every file, and so
    are terminals, whose input could be forged."""
    try:
        names = sorted(os.listdir("/dev"))  # noqa: PTH208
    except OSError:
        names = []
    return tuple(f"/dev/{n}" for n in names if n in DEVICES or n.startswith(PROCESSORS))


def _others_references(sandbox: Sandbox) -> Iterator[str]:
    """Yield the references of other ops."""
    if sandbox.references:
        with open(sandbox.references, "rb") as file:  # noqa: PTH123
            listed = os.fsdecode(file.read()).split("\0")
        yield from (path for path in listed if path not in sandbox.shared)


def _with_copies(paths: Sequence[str], root: str) -> Iterator[str]:
    """Yield hidden files, their copies and bytecode, and other hard links to them."""
    linked: set[tuple[int, int]] = set()
    yield from paths
    yield from copies_of(paths, root)
    for folder in {os.path.dirname(path) for path in paths if path.endswith(".py")}:  # noqa: PTH120
        yield from (f"{folder}/__pycache__", _bytecode_folder(folder))
    for path in paths:
        found = _stat(path)
        if found is not None and found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            linked.add((found.st_dev, found.st_ino))
    if linked:
        yield from _other_names(root, linked)


def _bytecode_folder(folder: str) -> str:
    """Return the folder below ``PYTHONPYCACHEPREFIX`` for the bytecode of a folder's modules."""
    try:
        return os.path.dirname(importlib.util.cache_from_source(f"{folder}/module.py"))  # noqa: PTH120
    except (NotImplementedError, ValueError):
        return f"{folder}/__pycache__"


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _other_names(root: str, wanted: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the files in the workspace that are hard links to wanted files."""
    looked = 0
    for folder, _, names in os.walk(root):
        for name in names:
            path = f"{folder}/{name}"
            found = _stat(path)
            if found is not None and (found.st_dev, found.st_ino) in wanted:
                yield path
        looked += len(names)
        if looked > _MOST_LOOKED:
            return


class _Excluded:
    """Paths that are excluded from the allowed ones."""

    def __init__(
        self, listings: Listings, paths: Iterable[str], resolved: frozenset[str] = frozenset()
    ) -> None:
        self._listings = listings
        self.paths = resolved.union(real_paths(paths))

    @cached_property
    def _above(self) -> set[str]:
        found = set[str]()
        for path in self.paths:
            for above in _above(path):
                if above in found:
                    break  # with all that lie above it
                found.add(above)
        return found

    def rest(self, start: str) -> list[str]:
        """Return the outermost paths, at or below `start`, that contain no excluded path."""
        found: list[str] = []
        if not any(path in self.paths for path in (start, *_above(start))):
            self._add_rest(start, found)
        return found

    def without_own(self, start: str) -> list[str]:
        """Return the allowed paths at or below a path `start` that lies in an excluded folder. The
        exclusion of that folder is ignored: the result holds the outermost paths that contain no
        excluded path. It is empty if `start` itself is excluded. It is also empty if `start` lies
        in no excluded folder, since `rest` returns the paths in that case."""
        found: list[str] = []
        if start not in self.paths and any(path in self.paths for path in _above(start)):
            self._add_rest(start, found)
        return found

    def _add_rest(self, start: str, found: list[str]) -> None:
        if start not in self._above:
            found.append(start)
            return
        excluded, above = self.paths, self._above
        try:
            below = self._listings.below(start)
        except OSError:
            return
        for path in below:  # usually plain files, sometimes thousands
            if path in excluded:
                continue
            if path in above:
                self._add_rest(path, found)
            else:
                found.append(path)


def _above(path: str) -> Iterator[str]:
    """Yield all folders above an absolute path, up to the root."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


# Resolve paths.


realpath, is_folder, lexists = os.path.realpath, os.path.isdir, os.path.lexists


def real_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield paths as `realpath` returns them, looking at each folder once only."""
    folders = dict[str, str]()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if not folder.startswith("/") or name in ("", ".", ".."):
            yield realpath(path)
            continue
        if folder not in folders:
            folders[folder] = realpath(folder)
        found = f"{folders[folder].rstrip('/')}/{name}"
        yield realpath(found) if os.path.islink(found) else found  # noqa: PTH114 - hot


# Private paths that no op needs: credentials, histories, other people's files.


OF_USER = (
    ".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".password-store", ".oci",
    ".terraform.d", ".netrc", ".git-credentials", ".npmrc", ".yarnrc.yml", ".pypirc",
    ".pgpass", ".my.cnf", ".boto", ".s3cfg", ".vault-token", ".databrickscfg", ".kaggle",
    ".huggingface/token", ".jupyter",
    ".cargo/credentials", ".cargo/credentials.toml", ".gem/credentials", ".modal.toml",
    ".cache/huggingface/token", ".cache/huggingface/stored_tokens",
    ".config/gh", ".config/glab-cli", ".config/hub", ".config/gcloud", ".config/git/credentials",
    ".config/op", ".config/doctl", ".config/rclone", ".config/pip", ".config/containers",
    ".config/google-chrome", ".config/chromium", ".config/BraveSoftware", ".config/wandb",
    ".config/anthropic", ".config/openai", ".config/sops", ".config/age",
    ".mozilla", ".thunderbird", ".local/share/keyrings", ".local/share/kwalletd",
    ".bash_history", ".zsh_history", ".python_history", ".local/share/fish", ".psql_history",
    ".codex", ".claude", ".claude.json", ".gemini", ".gpuemu",
    ".gitconfig", ".config/git", ".subversion", ".hgrc", ".condarc", ".terraformrc",
    ".m2", ".gradle", ".composer", ".nuget", ".config/NuGet", ".ivy2", ".sbt", ".ansible",
    ".wgetrc", ".curlrc", ".fly", ".config/heroku", ".config/hcloud", ".config/configstore",
    ".config/gpuemu", ".Xauthority", ".ICEauthority", ".mutt", ".muttrc",
    ".mysql_history", ".sqlite_history", ".node_repl_history", ".lesshst", ".local/state/bash",
)  # fmt: skip
"""Private paths in a home folder."""
_OF_EDITORS = (
    ".viminfo",
    ".vim/undo",
    ".vim/swap",
    ".vim/backup",
    ".vim/undodir",
    ".vimbackup",
    ".vimundo",
    ".local/state/nvim",
    ".local/share/nvim",
    ".emacs.d/auto-save-list",
    ".emacs.d/backups",
    ".config/Code",
    ".config/Code - OSS",
    ".config/VSCodium",
    ".config/Cursor",
    ".vscode-server",
    ".cursor-server",
    ".cursor",
    ".cache/JetBrains",
    ".config/JetBrains",
    ".local/share/zed",
    ".config/sublime-text",
)
"""Paths in a home folder at which editors keep files, sessions and tokens."""

_OF_SYSTEM = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/krb5.keytab", "/etc/kubernetes",
    "/run/secrets", "/run/user", "/run/credentials", "/run/containerd", "/run/docker",
    "/var/lib/kubelet", "/var/lib/docker", "/var/lib/containerd", "/var/spool",
    "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware",
    "/var/log", "/lost+found", "/boot",
)  # fmt: skip
_HISTORIES = (
    ".git", ".hg", ".svn", ".jj", ".bzr", ".sl", "CVS", "RCS", "_darcs", ".pijul",
    ".history", ".idea", ".vscode", ".lh",
)  # fmt: skip
"""Folders in which version control and editors keep copies of the reference's sources."""
_CHECKPOINTS = ".ipynb_checkpoints"
_BEFORE = re.compile(r"\A(?:\.[_~#]?|#)")
_MERGED = re.compile(r"\A(.*)_(?:BACKUP|BASE|LOCAL|REMOTE)_\d+(\.\w+)\Z", re.DOTALL)
_DONOR = re.compile(rb"^\s*url\s*=\s*(?:file://)?(/.*?)\s*$", re.MULTILINE)
_MOST_BYTES = 1 << 16
_MOST_DONORS = 16


def private_paths(root: str, home: str) -> Iterator[str]:
    """Yield the paths that no op needs, such as those of credentials, if they exist. The paths are
    absolute, and links in them are not resolved."""
    yield from filter(os.path.lexists, _OF_SYSTEM)
    homes = {home, own_home()} - {"", "/"}
    for folder in homes:
        for name in (*OF_USER, *_OF_EDITORS):
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                yield path
    yield from _others_homes(homes, root)
    yield from (path for path in (f"{root}/.env", f"{root}/.envrc") if os.path.isfile(path))  # noqa: PTH113
    yield from _histories((Path(root), *Path(root).parents), root)


def forget() -> None:
    """Clear the caches of folders, so that the next sandbox is made from their present state."""
    for remembered in (_names_in, _working_trees, _history, _donors):
        remembered.cache_clear()


def own_home() -> str:
    """Return the user's home folder from the system's list of users; empty if it lists none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _others_homes(own: set[str], root: str) -> Iterator[str]:
    """Yield other users' home folders if this process runs as root, else nothing. Without root's
    rights, a process cannot enter these folders anyway."""
    if os.geteuid():
        return
    found = ["/root"]
    try:
        found += [entry.path for entry in os.scandir("/home")]
    except OSError:
        pass
    real = {os.path.realpath(folder) for folder in own} | own
    for folder in found:
        if folder not in real and os.path.isdir(folder) and not is_below(root, (folder,)):  # noqa: PTH112
            yield folder


def copies_of(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield existing files that are copies of hidden files of the workspace. Copies are backups by
    editors, bytecode, the history of a repository inside of the workspace, and the same file in
    other working trees of the workspace's repository."""
    names_of = dict[str, list[str]]()
    for path in paths:
        folder, _, name = path.rpartition("/")
        names_of.setdefault(folder, []).append(name)
    for folder, names in names_of.items():
        yield from _copies_beside(folder, names)
        above = (Path(folder), *Path(folder).parents)
        if not is_below(folder, (root,)):
            yield from _histories(above, root)  # a checkout from which the workspace was made
            continue
        yield from _histories((outer for outer in above if is_below(str(outer), (root,))), root)
        yield from _built_copies([f"{folder}/{name}" for name in names], root)
        for tree, here in _working_trees(Path(root)):
            other = f"{tree}/{os.path.relpath(folder, here)}"
            yield from filter(os.path.lexists, (f"{other}/{name}" for name in names))


def _copies_beside(folder: str, names: Iterable[str]) -> Iterator[str]:
    """Yield backups, swap files and bytecode of files of a folder. Their names are those of the
    files, with something before or after."""
    wanted = frozenset(names)
    stems = {f"{os.path.splitext(name)[0]}.pyc" for name in wanted}  # noqa: PTH122
    lengths = {len(name) for name in wanted}
    there = _names_in(folder)
    for name in wanted if _CHECKPOINTS in there else ():
        path = f"{folder}/{_CHECKPOINTS}/{'-checkpoint'.join(os.path.splitext(name))}"  # noqa: PTH122
        if os.path.lexists(path):
            yield path
    for entry in there - wanted:
        after = _BEFORE.sub("", entry, count=1)
        begins = any(
            name[:n] in wanted and not name[n : n + 1].isalnum()
            for name in {entry, after}
            for n in lengths
        )
        if begins or entry in stems or _MERGED.sub(r"\1\2", entry) in wanted:
            yield f"{folder}/{entry}"


def _built_copies(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield build output in the workspace that may contain copies of some files. Build output means
    packages, folders of package builders, and coverage reports with source code."""
    names = _names_in(root)
    built = (
        [n for n in _names_in(f"{root}/build") if n.startswith("lib")] if "build" in names else []
    )
    for path in paths if built else ():
        parts = os.path.relpath(path, root).split("/")
        inner = ("/".join(parts[at:]) for at in range(len(parts)))
        found = (f"{root}/build/{library}/{name}" for name in inner for library in built)
        yield from filter(os.path.lexists, found)
    if "dist" in names:
        ends = (".whl", ".tar.gz", ".zip")
        yield from (
            f"{root}/dist/{name}" for name in _names_in(f"{root}/dist") if name.endswith(ends)
        )
    if "htmlcov" in names:
        yield f"{root}/htmlcov"


@lru_cache(maxsize=4096)
def _names_in(folder: str) -> frozenset[str]:
    """Return the names in a folder, cached until `forget`; empty if it cannot be listed."""
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208
    except OSError:
        return frozenset()


@lru_cache(maxsize=16)
def _working_trees(root: Path) -> tuple[tuple[Path, Path], ...]:
    """Return the other working trees of the repository and its donors, each paired with our own."""
    above = (root, *root.parents)
    here = next((folder for folder in above if os.path.lexists(folder / ".git")), None)
    if here is None:
        return ()
    found = set()
    for git in _donors(here / ".git"):
        found.update({git.parent} if git.name == ".git" else set())
        try:
            names = sorted(os.listdir(git / "worktrees"))  # noqa: PTH208
        except OSError:
            names = []
        for name in names:
            pointer = _read(git / "worktrees" / name / "gitdir")
            found.update({Path(pointer.strip()).parent} if pointer else set())
    return tuple((tree, here) for tree in sorted(found - {here}))


@lru_cache(maxsize=64)
def _donors(git: Path) -> tuple[Path, ...]:
    """Return a git folder, or what a worktree's file leads to, and where its objects come from. A
    repository takes objects from the folders in ``alternates``. A local one from which it was
    cloned holds the same."""
    found = dict.fromkeys([Path(path) for path in _worktree(git)] or [git])
    pending = list(found)
    while pending and len(found) < _MOST_DONORS:
        each = pending.pop()
        lines = _read(each / "objects/info/alternates").splitlines()
        donors = [Path(os.path.normpath(each / "objects" / line)).parent for line in lines if line]
        for url in _DONOR.findall(os.fsencode(_read(each / "config"))):
            clone = Path(os.path.normpath(os.fsdecode(url)))
            donors += [p for p in (clone / ".git", clone) if (p / "objects").is_dir()][:1]
        new = [donor for donor in donors if donor not in found]
        pending += new
        found.update(dict.fromkeys(new))
    return tuple(found)


def _histories(folders: Iterable[Path], root: str) -> Iterator[str]:
    """Yield the data of version control and editors in these folders; the workspace is none."""
    for folder in folders:
        yield from (path for path in _history(folder) if not is_below(root, (path,)))


@lru_cache(maxsize=4096)
def _history(folder: Path) -> tuple[str, ...]:
    """Return the folders of one folder that hold old versions of files, such as ``.git``. This also
    works in a folder that cannot be listed."""
    found = [path for name in _HISTORIES if os.path.lexists(path := f"{folder}/{name}")]
    git = f"{folder}/.git"
    return (*found, *map(str, _donors(Path(git)))) if git in found else tuple(found)


def _worktree(path: Path) -> list[str]:
    """Return the folders that belong to a git worktree but lie outside of it."""
    text = _read(path)
    if not text.startswith("gitdir:"):
        return []
    folder = path.parent / text.removeprefix("gitdir:").strip()
    common = _read(folder / "commondir").strip()
    return [str(folder), *([os.path.normpath(folder / common)] if common else [])]


def _read(path: Path) -> str:
    """Return the beginning of a file; empty if it cannot be read."""
    try:
        with path.open("rb") as stream:
            return os.fsdecode(stream.read(_MOST_BYTES))
    except (OSError, ValueError):
        return ""
