"""Private paths that no op needs: credentials, histories, other people's files.

They are hidden in addition to the files that a workspace names. The list is of names, and so
cannot be complete.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
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
)  # fmt: skip
"""Below a home folder."""

_OF_SYSTEM = (
    "/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers",
    "/etc/sudoers.d", "/etc/ssh", "/etc/ssl/private", "/etc/krb5.keytab", "/etc/kubernetes",
    "/run/secrets", "/run/user", "/run/credentials", "/run/containerd", "/run/docker",
    "/var/lib/kubelet", "/var/lib/docker", "/var/lib/containerd", "/var/spool",
    "/sys/kernel/debug", "/sys/kernel/tracing", "/sys/kernel/security", "/sys/firmware",
    "/var/log", "/lost+found", "/boot",
)  # fmt: skip
_VERSION_CONTROL = (".git", ".hg", ".svn", ".jj", ".bzr", ".sl")
"""Hold the sources of the reference once more."""
_MOST_BYTES = 4096


def private_paths(root: str, home: str) -> Iterator[str]:
    """Yield the existing private paths as absolute paths, without resolving links.

    Parameters
    ----------
    root : str
        The workspace, absolute.
    home : str
        The value of ``HOME``; may be empty.
    """
    yield from filter(os.path.lexists, _OF_SYSTEM)
    homes = {home, _own_home()} - {"", "/"}
    for folder in homes:
        for name in OF_USER:
            path = f"{folder}/{name}"
            if os.path.lexists(path):
                yield path
    yield from _others_homes(homes, root)
    yield from _histories(root)


def _own_home() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def _others_homes(own: set[str], root: str) -> Iterator[str]:
    """Return other users' home folders; only root could enter them."""
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


def _histories(root: str) -> Iterator[str]:
    """Return the version control folders of the workspace and of the folders above it."""
    for folder in (Path(root), *Path(root).parents):
        for name in _VERSION_CONTROL:
            path = folder / name
            if os.path.lexists(path):
                yield str(path)
                yield from _worktree(path)


def _worktree(path: Path) -> Iterator[str]:
    """Return the folders of a git worktree outside of it."""
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
