"""Refuse to run other users' code, except in workspaces that the user trusts.

`gpuemu.toml` is searched from the current folder upward. A file that somebody else left in a shared
folder would therefore be run by everyone who works below it. Files that belong to the user or to
root are always run, just as ``make`` and ``pytest`` run them. This adds no risk, since the user and
root can run any code in the user's name anyway.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins

from gpuemu_flow.model.errors import Problem, UsageError
from gpuemu_flow.model.plain_text import printable
from gpuemu_flow.store.private_files import PrivateFolder

if TYPE_CHECKING:
    from gpuemu_flow.build.workspace import Workspace

TRUST_VARIABLE = "GPUEMU_TRUST"
REMEMBER = "remember"
"""Value of `TRUST_VARIABLE` that trusts the workspace like ``1`` and also stores it as trusted."""
FILE_NAME = "trusted.json"
MOST_REMEMBERED = 1000
_NAMED = 3

Ask = Callable[[str], bool]


class ForeignWorkspace(Struct, frozen=True):
    """A workspace with files of other users."""

    path: str
    owners: tuple[int, ...]
    device: int


def require_trust(
    workspace: Workspace,
    environ: Mapping[str, str] = os.environ,
    ask: Ask | None = None,
) -> None:
    """Raise an error if a workspace contains other users' files, unless the user trusts it."""
    if workspace.trusted:
        return
    root = workspace.root
    sources = {path for spec in workspace.graph.tasks.values() for path in spec.sources}
    own, inside = own_users(environ), f"{root}/".replace("//", "/")
    paths = {path if path.startswith("/") else inside + path for path in sources}
    foreign = foreign_owners(str(root), [str(workspace.config_path), *sorted(paths)], own)
    if not foreign:
        workspace.trusted = True
        return
    owners = tuple(sorted(set(foreign.values())))
    untrusted = ForeignWorkspace(str(root), owners, root.stat().st_dev)
    granted = environ.get(TRUST_VARIABLE, "")
    if granted == "1" or untrusted in remembered(environ):
        workspace.trusted = True
        return
    names = ", ".join(printable(os.path.relpath(path, root)) for path in list(foreign)[:_NAMED])
    told = f"{printable(str(root))} has files of another user ({names}; user id {owners[0]})"
    if granted != REMEMBER and not (ask or _ask_on_terminal)(f"{told}. Run its code? [y/N] "):
        hint = f"look at it, then run with --trust, or set {TRUST_VARIABLE}=1"
        raise UsageError(Problem("workspace-untrusted", f"{told}; nothing was run", hint))
    _remember(untrusted, environ)
    workspace.trusted = True


def own_users(environ: Mapping[str, str]) -> frozenset[int]:
    """Return the ids of the users whose files are always run: this user, root, sudo's caller."""
    found = {os.geteuid(), 0}
    given = environ.get("SUDO_UID", "")
    if os.geteuid() == 0 and given.isascii() and given.isdigit():
        found.add(int(given[:10]))
    return frozenset(found)


def foreign_owners(root: str, files: Iterable[str], own: frozenset[int]) -> dict[str, int]:
    """Map each path that another user owns to the owner's user id.

    Users whose ids are in `own` do not count as other users. The given files are checked, and also
    the folder `root`, unless it is sticky like ``/tmp``. A link counts as another user's if the
    link or its target is.
    """
    found: dict[str, int] = {}
    for path in (root, *files):
        try:  # no function call here: there may be thousands of the user's own files
            seen = os.lstat(path)
        except OSError:
            continue
        if seen.st_uid in own and not stat.S_ISLNK(seen.st_mode):
            continue
        for status in _statuses(path):
            # A sticky folder such as /tmp does not count, only the files inside it.
            sticky = path == root and status.st_mode & stat.S_ISVTX
            if status.st_uid not in own and not sticky:
                found[path] = status.st_uid
    return found


def _statuses(path: str) -> list[os.stat_result]:
    """Return the status of a file, and of its target if it is a link; empty if it is missing."""
    found = []
    with contextlib.suppress(OSError):
        found.append(os.lstat(path))
        if stat.S_ISLNK(found[0].st_mode):
            found.append(os.stat(path))  # noqa: PTH116 - as often as there are sources
    return found


def trusted_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's list of trusted workspaces."""
    given = environ.get("XDG_CONFIG_HOME", "")
    home = Path(environ.get("HOME") or Path.home())
    return (Path(given) if given.startswith("/") else home / ".config") / "gpuemu" / FILE_NAME


def remembered(environ: Mapping[str, str]) -> list[ForeignWorkspace]:
    """Return the workspaces that the user trusted; none if the list belongs to another user."""
    path = trusted_file(environ)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            return []
        entries = json.loads(path.read_bytes())["trusted"]
        return [
            ForeignWorkspace(str(e["path"]), tuple(int(o) for o in e["owners"]), int(e["device"]))
            for e in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _remember(untrusted: ForeignWorkspace, environ: Mapping[str, str]) -> None:
    """Add a workspace to the list of trusted workspaces, if that file can be written."""
    known = [one for one in remembered(environ) if one.path != untrusted.path]
    content = {"trusted": [to_builtins(one) for one in [*known, untrusted][-MOST_REMEMBERED:]]}
    path = trusted_file(environ)
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        PrivateFolder(path.parent).write(path, json.dumps(content, indent=1).encode())


def _ask_on_terminal(question: str) -> bool:
    """Ask the user on the terminal; return True only if the answer is yes."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    sys.stderr.write(question)
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
