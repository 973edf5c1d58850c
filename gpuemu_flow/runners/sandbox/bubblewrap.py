"""Run an op's workers in namespaces of processes, network, IPC and files, made by bubblewrap.

`bwrap` starts either the fork server of an op or a compiler. Inside, the root folder is read-only.
Home folders, temporary folders and /run are empty, except for the workspace, the interpreter and
its packages. /dev, /proc and shared memory are private. Each worker is then restricted further, by
Landlock and seccomp.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import gpuemu_flow
from gpuemu_flow.runners.sandbox import enter
from gpuemu_flow.runners.sandbox.private import own_home
from gpuemu_flow.runners.sandbox.rules import PROCESSORS, outermost
from gpuemu_flow.runners.sandbox.spec import Sandbox

_NAME = "bwrap"
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin", "/run/current-system/sw/bin")
"""Folders in which `bwrap` is looked for. ``PATH`` may lead into a workspace, and is not used."""
_NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
_KEPT_CAPABILITIES = ("CAP_DAC_OVERRIDE", "CAP_FOWNER")
_EMPTIED = ("/home", "/root", "/tmp", "/var/tmp", "/run")  # noqa: S108 - none of it is used
_DEVICES = "/dev"
"""A folder that is replaced as a whole, although ``/dev/shm`` may hold a workspace."""
_TMPFS = "--tmpfs"
_SYSTEMS = ("/run/current-system", "/run/opengl-driver")
"""Programs and drivers of a system (NixOS) that are in an emptied folder."""
_OF_USER = ".local"
"""Folder in a home folder that contains programs, but also keys and histories."""
_PROBE_SECONDS = 60.0
_MOST_LINKS = 40
_REASON_CHARACTERS = 200


@cache
def program() -> str:
    """Return bubblewrap's path; empty if it is missing, or if users besides root can change it."""
    for folder in _FOLDERS:
        path = f"{folder}/{_NAME}"
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:
            continue
        safe = found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if safe and stat.S_ISREG(found.st_mode) and os.access(path, os.X_OK):
            return path
    return ""


@cache
def refusal() -> str:
    """Return the reason why namespaces cannot be made here; empty if they can."""
    if sys.platform != "linux":
        return "it needs Linux"
    path = program()
    if not path:
        return f"no `{_NAME}` in {', '.join(_FOLDERS)}"
    try:
        done = subprocess.run(
            [*_base(path), "--", path, "--version"],
            env={}, stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_PROBE_SECONDS,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"`{_NAME}` cannot be started: {error}"
    if done.returncode == 0:
        return ""
    said = done.stderr.decode("utf-8", "replace").strip().replace("\n", " ")
    return said[:_REASON_CHARACTERS] or f"`{_NAME}` failed with status {done.returncode}"


def around_server(sandbox: Sandbox, programs: Iterable[str]) -> list[str]:
    """Return the command prefix that runs an op's fork server inside of bubblewrap.

    The server becomes the first process of its namespace. When the server ends, the kernel ends all
    other processes of the namespace. They cannot stop or kill the server.

    Parameters
    ----------
    sandbox : Sandbox
        Its writable paths are created if they are missing.
    programs : iterable of str
        Paths of the op and its interpreter; empty ones are ignored.
    """
    return [*_words(sandbox, programs, ()), "--as-pid-1", "--"]


def around_tool(sandbox: Sandbox, programs: Iterable[str], folder: str) -> list[str]:
    """Return the command prefix that runs a compiler inside of bubblewrap.

    When the compiler ends, all processes that it started end, too.

    Parameters
    ----------
    sandbox : Sandbox
    programs : iterable of str
        Paths of the compiler and its interpreter; empty ones are ignored.
    folder : str
        Folder to which the compiler writes.
    """
    return [*_words(sandbox, programs, (folder,)), "--die-with-parent", "--"]


def _words(sandbox: Sandbox, programs: Iterable[str], folders: Iterable[str]) -> list[str]:
    for path in outermost(sandbox.writable):
        if not os.path.lexists(path):
            enter.make(path)
    shown = [path for path in sandbox.shown if path not in sandbox.writable]
    needed = [sandbox.root, *shown, *_interpreter(), *_SYSTEMS]
    for path in programs:
        needed += _installation(path)
    return [*_base(program()), *_mounts(sandbox.root, needed, [*sandbox.writable, *folders])]


def _base(path: str) -> list[str]:
    words = [path, *_NAMESPACES, "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    if os.geteuid() == 0:  # other users get none in their user namespace
        words += ["--cap-drop", "ALL"]
        for name in _KEPT_CAPABILITIES:
            words += ["--cap-add", name]
    return words


def _mounts(root: str, needed: Iterable[str], writable: Iterable[str]) -> list[str]:
    """Return `bwrap`'s options for everything that differs from a read-only view of the system.

    Files are mounted at their real paths, and the links that lead to them are made again, since
    `bwrap` cannot mount on a link. The options are sorted so that outer folders come first: a mount
    hides what was mounted inside its folder before.
    """
    empty = _emptied(root)
    mounts: dict[str, tuple[str, ...]] = {place: (_TMPFS, place) for place in empty}
    links = dict[str, str]()
    for path in needed:
        links.update(_links(path))
        real = os.path.realpath(path)
        if real not in mounts and any(_is_below(real, place) for place in (*empty, _DEVICES)):
            mounts[real] = ("--ro-bind-try", real, real)
    for path in outermost(writable):
        links.update(_links(path))
        real = os.path.realpath(path)
        mounts[real] = ("--bind-try", real, real)
    unseen = {
        link: ("--symlink", target, link)
        for link, target in links.items()
        if _is_unseen(link, mounts)
    }
    for device in _processors():
        mounts[device] = ("--dev-bind-try", device, device)
    return [word for _, words in sorted((mounts | unseen).items(), key=_depth) for word in words]


def _links(path: str) -> Iterator[tuple[str, str]]:
    """Yield the location and the target of each symbolic link that a path passes through.

    The location is the link's own path, in which no folder is a link. The target is the text that
    the link contains.
    """
    place, names = "/", path.split("/")[::-1]
    followed = 0
    while names and followed < _MOST_LINKS:
        name = names.pop()
        if name in ("", "."):
            continue
        if name == "..":
            place = os.path.dirname(place)  # noqa: PTH120
            continue
        here = f"{place.rstrip('/')}/{name}"
        try:
            target = os.readlink(here)  # noqa: PTH115
        except OSError:
            place = here
            continue
        yield here, target
        followed += 1
        place = "/" if target.startswith("/") else place
        names += target.split("/")[::-1]


def _is_unseen(path: str, mounts: Mapping[str, tuple[str, ...]]) -> bool:
    """Tell whether the innermost mount around a path is an empty folder, which hides the path."""
    above = [place for place in (_DEVICES, *mounts) if _is_below(path, place)]
    return bool(above) and mounts.get(max(above, key=len), (_TMPFS,))[0] == _TMPFS


def _depth(mount: tuple[str, tuple[str, ...]]) -> tuple[int, str]:
    return mount[0].count("/"), mount[0]


def _emptied(root: str) -> list[str]:
    """Return the sorted paths of the folders that the op sees as empty.

    The workspace and the interpreter's folders are not among them. Neither are home folders that
    belong to another user, since some system users have ``/`` or ``/usr/sbin`` as home folder.
    """
    homes = [path for path in (os.environ.get("HOME", ""), own_home()) if _is_own(path)]
    found = {os.path.realpath(p) for p in (*_EMPTIED, *homes, tempfile.gettempdir())}
    kept = {"/", *map(os.path.realpath, (root, sys.prefix, sys.base_prefix))}
    return sorted(place for place in found - kept if os.path.isdir(place))  # noqa: PTH112


def _is_own(path: str) -> bool:
    try:
        return bool(path) and os.stat(path).st_uid == os.geteuid()  # noqa: PTH116
    except OSError:
        return False


def _interpreter() -> Iterator[str]:
    """Yield the folders of this interpreter, of its packages, and of our own package.

    The first entry of ``sys.path`` is left out: it is a program's folder, or the current folder.
    """
    yield from (sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path[1:])
    yield str(Path(gpuemu_flow.__file__).parent.parent)
    yield from _installation(sys.executable)


def _installation(path: str) -> Iterator[str]:
    """Yield the files and folders that a program needs: itself and the folders of its installation.

    If the path is a symbolic link, the same is yielded for each file that it leads to.

    Parameters
    ----------
    path : str
        Path of the program. A name without a slash is looked for in ``PATH``. If empty, nothing is
        yielded.
    """
    path = path if "/" in path or not path else shutil.which(path) or ""
    for _ in range(_MOST_LINKS):
        if not path.startswith("/"):
            return
        yield from _with_its_folders(path)
        try:
            target = os.readlink(path)  # noqa: PTH115
        except OSError:
            break
        path = os.path.join(os.path.dirname(path), target)  # noqa: PTH118, PTH120
    yield from _with_its_folders(os.path.realpath(path))


def _with_its_folders(path: str) -> Iterator[str]:
    yield path
    above, name = os.path.split(os.path.dirname(path))  # noqa: PTH120
    if name == "bin" and os.path.basename(above) == _OF_USER:  # noqa: PTH119
        yield from (f"{above}/bin", f"{above}/lib")
    elif name == "bin":
        yield above


def _processors() -> list[str]:
    try:
        return [f"/dev/{n}" for n in sorted(os.listdir("/dev")) if n.startswith(PROCESSORS)]  # noqa: PTH208
    except OSError:
        return []


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")
