"""Find the requirement with which pip can install this gpuemu-flow on a CI runner."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution

from msgspec import Struct

import gpuemu_flow

NAME = "gpuemu-flow"
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
# Characters that need no quoting in a shell, in YAML and in a requirement; without user and
# password.
_URL = re.compile(r"https://[A-Za-z0-9.-]+(?::\d+)?(?:/[A-Za-z0-9._~+-]+)+")


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
    repository's address and commit, and one from an archive by the archive's address, if these are
    public. Otherwise, the requirement names the version, and `doubt` is set."""
    pinned = f"{NAME}=={version}"
    try:  # PEP 610's record of an installation's source
        source = json.loads(distribution(NAME).read_text("direct_url.json") or "{}")
        address = str(source.get("url", ""))
        vcs = dict(source.get("vcs_info", {}))
    except (PackageNotFoundError, ValueError, TypeError, AttributeError):
        return PipRequirement(pinned)
    if not address:
        return PipRequirement(pinned)
    commit = str(vcs.get("commit_id", ""))
    if _URL.fullmatch(address) and vcs.get("vcs") == "git" and _COMMIT.fullmatch(commit):
        return PipRequirement(f"{NAME} @ git+{address}@{commit}")
    if _URL.fullmatch(address) and "archive_info" in source:
        return PipRequirement(f"{NAME} @ {address}")
    place = f", {address}" if "@" not in address else ""  # an address may hold a password
    return PipRequirement(pinned, f"it came from where not all machines can get it{place}")
