"""The front's file: was everything as it is now when the last run ended clean?

Read before anything heavy is imported, so it is plain text that needs no parser, and only ``os``
and ``sys`` are used here. It can only ever say "nothing changed"; any doubt means the long way.
"""

from __future__ import annotations

import os
import sys

from gpuemu_flow import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = "gpuemu-flow plan 1"
CONFIG_NAME = "gpuemu.toml"
CACHE_NAME = ".gpuemu-cache"
PLAN_NAME = "plan"
_VARIABLES = ("GPUEMU_CONFIG", "HOME", "XDG_CONFIG_HOME")

Stamp = tuple[int, int, int, int]


def identity(environ: Mapping[str, str]) -> str:
    """What of the process itself a plan depends on."""
    values = [__version__, sys.version, sys.executable]
    values += [environ.get(name, "") for name in _VARIABLES]
    return repr(values)


def _checksum(body: bytes) -> str:
    from zlib import crc32  # noqa: PLC0415 - cheaper than hashlib; guards against damage only

    return f"{crc32(body):08x}"


def render(
    *,
    identity_text: str,
    summary: str,
    files: Mapping[str, Stamp],
    absent: Iterable[str],
    folders: Mapping[str, Stamp],
) -> bytes | None:
    """The plan file's content.

    Parameters
    ----------
    identity_text : str
        `identity` of the run that ends.
    summary : str
        What to print when nothing changed.
    files : mapping of absolute path to stamp
        (mtime_ns, ctime_ns, size, inode) of every source and manifest.
    absent : iterable of absolute paths
        Files whose appearance would change the configuration.
    folders : mapping of absolute path to stamp
        Folders whose listing matters.

    Returns
    -------
    bytes or None
        None when a path holds a character that the format cannot, and so no plan can be kept.
    """
    by_folder: dict[str, list[str]] = {}
    for path, stamp in files.items():
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, []).append("\t".join((name, *map(str, stamp))))
    lines = [f"identity {identity_text}", f"summary {summary!r}"]
    lines += [f"absent {path}" for path in absent]
    lines += ["\t".join((f"folder {path}", *map(str, s))) for path, s in folders.items()]
    sections = ["\n".join(lines)]
    sections += ["\n".join((folder, *entries)) for folder, entries in sorted(by_folder.items())]
    text = "\f".join(sections)
    paths = (*files, *absent, *folders)
    if any(c in path for path in paths for c in "\n\t\f"):
        return None
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return None
    return f"{FORMAT} {_checksum(body)}\n".encode() + body


def up_to_date(plan_path: str, environ: Mapping[str, str]) -> str | None:
    """The summary to print when the plan holds and nothing changed since; None in any doubt."""
    try:
        with open(plan_path, "rb") as file:  # noqa: PTH123 - pathlib is an import too many here
            head, _, body = file.read().partition(b"\n")
        if head != f"{FORMAT} {_checksum(body)}".encode():
            return None
        sections = body.decode().split("\f")
        summary = _check_head(sections[0].split("\n"), identity(environ))
        if summary is None:
            return None
        for section in sections[1:]:
            folder, _, entries = section.partition("\n")
            if not set(entries.split("\n")) <= _listing(folder):
                return None
    except (OSError, ValueError, IndexError):
        return None
    return summary


def is_damaged(plan_path: str) -> bool:
    """Whether there is a plan whose bytes are not those that were written."""
    try:
        with open(plan_path, "rb") as file:  # noqa: PTH123 - as above
            head, _, body = file.read().partition(b"\n")
    except OSError:
        return False
    return head != f"{FORMAT} {_checksum(body)}".encode()


def _listing(folder: str) -> set[str]:
    found = set()
    # By descriptor: the kernel then need not walk the whole path again for every file.
    descriptor = os.open(folder or "/", os.O_RDONLY)
    try:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                s = entry.stat()
                found.add(
                    f"{entry.name}\t{s.st_mtime_ns}\t{s.st_ctime_ns}\t{s.st_size}\t{s.st_ino}"
                )
    finally:
        os.close(descriptor)
    return found


def _check_head(lines: list[str], identity_text: str) -> str | None:
    if lines[0] != f"identity {identity_text}":
        return None
    for line in lines[2:]:
        kind, _, rest = line.partition(" ")
        if kind == "absent":
            if os.path.lexists(rest):
                return None
        elif kind == "folder":
            path, *stamp = rest.split("\t")
            s = os.stat(path)  # noqa: PTH116
            if [int(v) for v in stamp] != [s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino]:
                return None
        else:
            return None
    return _unquote(lines[1].partition(" ")[2])


def _unquote(text: str) -> str:
    """Inverse of repr for the summary, without importing ast."""
    return text[1:-1].encode().decode("unicode_escape").encode("latin-1").decode()


def find_workspace(start: str) -> str | None:
    """The nearest folder from `start` upward that holds a configuration."""
    folder = start
    while True:
        if os.path.isfile(os.path.join(folder, CONFIG_NAME)):  # noqa: PTH113, PTH118
            return folder
        parent = os.path.dirname(folder)  # noqa: PTH120
        if parent == folder:
            return None
        folder = parent
