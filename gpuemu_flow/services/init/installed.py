"""Find the requirement with which pip can install this gpuemu-flow on a CI runner."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from msgspec import Struct

import gpuemu_flow

NAME = "gpuemu-flow"
_GIT_SECONDS = 10
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Characters that need no quoting in a shell, in YAML and in a requirement; without user and
# password.
_URL = re.compile(r"https://[A-Za-z0-9.-]+(?::\d+)?(?:/[A-Za-z0-9._~+-]+)+")
_SSH = re.compile(r"(?:ssh://)?(?:[^@/]+@)?([A-Za-z0-9.-]+)(?::\d+/|[:/])([^:]+)")


class PipRequirement(Struct, frozen=True):
    """A requirement with which pip installs gpuemu-flow."""

    requirement: str
    # Reason why a CI runner possibly cannot find the package; empty if there is no doubt.
    doubt: str = ""

    def with_extras(self, extras: Sequence[str]) -> str:
        wanted = f"[{','.join(extras)}]" if extras else ""
        return f"{NAME}{wanted}{self.requirement.removeprefix(NAME)}"

    @property
    def needs_git(self) -> bool:
        return "git+" in self.requirement


def find_origin(version: str = gpuemu_flow.__version__) -> PipRequirement:
    """Return the requirement with which pip installs the same gpuemu-flow as the running one. An
    installation from a package index is identified by its version, one from a repository by the
    repository's address and commit, and one from an archive by the archive's address. For an
    installation from a folder, the repository from which the folder was cloned is used, if its
    commit has been pushed. If none of this is possible, the requirement names the version, and
    `doubt` is set."""
    pinned = f"{NAME}=={version}"
    try:
        source = _direct_url(distribution(NAME))
    except PackageNotFoundError:
        source = {}
    address = str(source.get("url", ""))
    vcs = source.get("vcs_info", {})
    if vcs.get("vcs") == "git":
        found = _from_git(address, str(vcs.get("commit_id", "")))
        return found or PipRequirement(pinned, "it came from a repository that only some can reach")
    if "archive_info" in source:
        public = _without_user(address)
        if public:
            return PipRequirement(f"{NAME} @ {public}")
        return PipRequirement(pinned, "it came from a file of this machine")
    folder = _folder(address) or _checkout()
    if folder is None:
        return PipRequirement(pinned)
    doubt = f"it came from {folder}, whose commit no https repository is known to have"
    return _from_clone(folder) or PipRequirement(pinned, doubt)


def _direct_url(installed: Distribution) -> dict[str, Any]:
    """Return the content of ``direct_url.json``, PEP 610's record of an installation's source. It
    is empty if the package came from an index."""
    try:
        found = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _folder(address: str) -> Path | None:
    parts = urlsplit(address)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _checkout() -> Path | None:
    """Return the checkout from which this package is imported; None if it is installed."""
    folder = Path(gpuemu_flow.__file__).resolve().parent.parent
    return folder if (folder / "pyproject.toml").is_file() else None


def _from_clone(folder: Path) -> PipRequirement | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if not _git(folder, "branch", "--remotes", "--contains", commit):
        return None
    return _from_git(_git(folder, "config", "--get", "remote.origin.url"), commit)


def _from_git(address: str, commit: str) -> PipRequirement | None:
    public = _without_user(address)
    if not public or not _COMMIT.fullmatch(commit):
        return None
    return PipRequirement(f"{NAME} @ git+{public}@{commit}")


def _without_user(address: str) -> str:
    """Return a repository's https address without user and password. Addresses for ssh are
    converted. Return an empty text if there is no https address."""
    if address.startswith("https://"):
        rest = address.removeprefix("https://")
        host, slash, path = rest.partition("/")
        address = f"https://{host.rpartition('@')[2]}{slash}{path}"
    elif "://" not in address or address.startswith("ssh://"):
        ssh = _SSH.fullmatch(address)
        address = f"https://{ssh[1]}/{ssh[2]}" if ssh is not None else ""
    return address if _URL.fullmatch(address) else ""


def _git(folder: Path, *arguments: str) -> str:
    if not (folder / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", folder, *arguments],
            capture_output=True, text=True, timeout=_GIT_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
