"""Private paths that no op needs: credentials, histories, other people's files.

They are hidden in addition to the files that a workspace names. They are listed by name, so the
list cannot be complete.
"""

from __future__ import annotations

import glob
import os
import pwd
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

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
_VERSION_CONTROL = (".git", ".hg", ".svn", ".jj", ".bzr", ".sl")
"""Folders that contain copies of the reference's sources."""
_BACKUP_ENDS = ("~", ".bak", ".orig", ".old", ".save", ".rej", ".swp", ".tmp")
_MOST_BYTES = 4096
_FEW = 8


def private_paths(root: str, home: str) -> Iterator[str]:
    """Yield the paths that no op needs, such as those of credentials, if they exist.

    The paths are absolute, and links in them are not resolved.
    """
    yield from filter(os.path.lexists, _OF_SYSTEM)
    homes = {home, own_home()} - {"", "/"}
    for folder in homes:
        for name in (*OF_USER, *_OF_EDITORS):
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                yield path
    yield from _others_homes(homes, root)
    yield from (path for path in (f"{root}/.env", f"{root}/.envrc") if os.path.isfile(path))  # noqa: PTH113
    yield from _histories((Path(root), *Path(root).parents))


def forget() -> None:
    """Clear the caches of folders, so that the next sandbox is made from their present state."""
    for remembered in (_names_in, _working_trees, _history):
        remembered.cache_clear()


def own_home() -> str:
    """Return the user's home folder from the system's list of users; empty if it lists none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _others_homes(own: set[str], root: str) -> Iterator[str]:
    """Yield other users' home folders if this process runs as root, else nothing.

    Without root's rights, a process cannot enter these folders anyway.
    """
    if os.geteuid():
        return
    found = ["/root"]
    try:
        found += [entry.path for entry in os.scandir("/home")]
    except OSError:
        pass
    real = {os.path.realpath(folder) for folder in own} | own
    for folder in found:
        if folder not in real and os.path.isdir(folder) and not _is_below(root, folder):  # noqa: PTH112
            yield folder


def copies_of(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield existing files that are copies of hidden files of the workspace.

    Copies are backups by editors, bytecode, the history of a repository inside of the workspace,
    and the same file in other working trees of the workspace's repository.
    """
    names_of = dict[str, list[str]]()
    for path in paths:
        folder, _, name = path.rpartition("/")
        names_of.setdefault(folder, []).append(name)
    for folder, names in names_of.items():
        yield from _copies_beside(folder, names)
        above = (Path(folder), *Path(folder).parents)
        if not _is_below(f"{folder}/", f"{root}/"):
            yield from _histories(above)  # a checkout from which the workspace was made
            continue
        yield from _histories(outer for outer in above if _is_below(str(outer), root))
        yield from _built_copies([f"{folder}/{name}" for name in names], root)
        for tree, here in _working_trees(Path(root)):
            other = f"{tree}/{os.path.relpath(folder, here)}"
            yield from filter(os.path.lexists, (f"{other}/{name}" for name in names))


def _copies_beside(folder: str, names: Iterable[str]) -> Iterator[str]:
    """Yield backups and bytecode of files of a folder."""
    names = list(names)
    # In a folder with thousands of files, testing a few names costs less than listing it.
    there = _names_in(folder) if len(names) > _FEW else frozenset[str]()
    for name in names:
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        for other in (
            *(f"{name}{end}" for end in _BACKUP_ENDS),
            f".{name}.swp", f".{name}.swo", f".{name}.un~", f"#{name}#", f".#{name}", f"{stem}.pyc",
            f".ipynb_checkpoints/{stem}-checkpoint{suffix}",
        ):  # fmt: skip
            path = f"{folder}/{other}"
            if (not there or other.partition("/")[0] in there) and os.path.lexists(path):
                yield path


def _built_copies(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield build output in the workspace that may contain copies of some files.

    Build output means packages, folders of package builders, and coverage reports with source code.
    """
    names = _names_in(root)
    for path in paths if "build" in names else ():
        parts = os.path.relpath(path, root).split("/")
        for at in range(len(parts)):
            inner = glob.escape("/".join(parts[at:]))
            yield from map(str, Path(root, "build").glob(f"lib*/{inner}"))
    if "dist" in names:
        for pattern in ("*.whl", "*.tar.gz", "*.zip"):
            yield from map(str, Path(root, "dist").glob(pattern))
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
    """Return the repository's other working trees, sorted, each paired with our own tree."""
    above = (root, *root.parents)
    here = next((folder for folder in above if os.path.lexists(folder / ".git")), None)
    if here is None:
        return ()
    pointed = [Path(path) for path in _worktree(here / ".git")]
    common = Path(os.path.normpath(pointed[-1])) if pointed else here / ".git"
    found = {common.parent} if common.name == ".git" else set()
    try:
        names = sorted(os.listdir(common / "worktrees"))  # noqa: PTH208
    except OSError:
        names = []
    for name in names:
        try:
            with (common / "worktrees" / name / "gitdir").open("rb") as stream:
                found.add(Path(os.fsdecode(stream.read(_MOST_BYTES)).strip()).parent)
        except (OSError, ValueError):
            continue
    return tuple((tree, here) for tree in sorted(found - {here}))


def _histories(folders: Iterable[Path]) -> Iterator[str]:
    """Yield the version control data of these folders."""
    for folder in folders:
        yield from _history(folder)


@lru_cache(maxsize=4096)
def _history(folder: Path) -> tuple[str, ...]:
    """Return the version control data of one folder, such as ``.git``.

    This also works in a folder that cannot be listed. In a git worktree, ``.git`` is a file, and
    the folders that it names are returned, too.
    """
    found: list[str] = []
    for name in _VERSION_CONTROL:
        path = folder / name
        if os.path.lexists(path):
            found += [str(path), *_worktree(path)]
    return tuple(found)


def _worktree(path: Path) -> Iterator[str]:
    """Yield the folders that belong to a git worktree but lie outside of it."""
    try:
        with path.open("rb") as stream:
            text = os.fsdecode(stream.read(_MOST_BYTES))
        if not text.startswith("gitdir:"):
            return
        folder = path.parent / text.removeprefix("gitdir:").strip()
        yield str(folder)
        with (folder / "commondir").open("rb") as stream:
            yield str(folder / os.fsdecode(stream.read(_MOST_BYTES)).strip())
    except (OSError, ValueError):
        return


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
