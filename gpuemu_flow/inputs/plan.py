"""The plan file, which tells whether anything changed since the last clean run.

The file is read before anything heavy is imported. Hence it is plain text that needs no parser, and
this module uses only ``os`` and ``sys``. The file can only ever say "nothing changed"; in any
doubt, the command does its full work.
"""

import os
import stat
import sys

from gpuemu_flow import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FORMAT = "gpuemu-flow plan 4"
_ANY_FORMAT = b"gpuemu-flow plan "
CONFIG_NAME = "gpuemu.toml"
CACHE_NAME = ".gpuemu-cache"
PLAN_NAME = "plan"
_VARIABLES = ("GPUEMU_ALLOW_OUTSIDE", "GPUEMU_CONFIG", "HOME", "XDG_CONFIG_HOME")

ALL_VARIABLES = "*"
ALL_NAMED = "**"
"""Ending of a pattern that stands for all names with its beginning, used for names that the
configuration lets through."""
VOLATILE = frozenset({
    "_", "COLUMNS", "GPUEMU_KWARGS", "LINES", "OLDPWD", "PWD", "PYTEST_CURRENT_TEST", "SHLVL",
    "TERM", "TERM_SESSION_ID", "WINDOWID",
})  # fmt: skip
"""Variables that differ from one terminal or process to the next."""
_SESSION = frozenset({
    "COLORTERM", "DBUS_SESSION_BUS_ADDRESS", "DBUS_STARTER_ADDRESS", "DESKTOP_STARTUP_ID",
    "DISPLAY", "GNOME_TERMINAL_SCREEN", "GNOME_TERMINAL_SERVICE", "GPG_AGENT_INFO", "GPG_TTY",
    "HISTFILE", "HISTSIZE", "INVOCATION_ID", "JOURNAL_STREAM", "LS_COLORS", "MAIL",
    "MANAGERPID", "MOTD_SHOWN", "PROMPT_COMMAND", "PS1", "PS2", "SESSION_MANAGER", "STY",
    "SYSTEMD_EXEC_PID", "TERMCAP", "TMPDIR", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "VTE_VERSION",
    "WAYLAND_DISPLAY", "WINDOW", "XAUTHORITY", "XDG_RUNTIME_DIR", "XDG_SEAT", "XDG_VTNR",
})  # fmt: skip
_SESSION_PREFIXES = (
    "ALACRITTY_", "GIO_LAUNCHED_", "GIT_ASKPASS", "ITERM_", "KITTY_", "KONSOLE_", "SSH_", "TMUX",
    "VSCODE_", "WEZTERM_", "XDG_SESSION_", "ZELLIJ",
)  # fmt: skip
UNSET = "unset"
WORKER_DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}
"""Defaults of variables that the environment leaves unset; the same as in `runners.process`."""
_WORKERS = "workers shared"
"""A line of a plan: most programs run in workers of one fork server without settings."""
_FEW = 4
_BITS = 16

Stamp = tuple[int, int, int, int]


def is_of_a_session(name: str) -> bool:
    """Tell whether a variable belongs to a session, not to the environment as a whole.

    Terminals, editors and logins set such variables, to other values in each session. Every program
    inherits them, but hardly any reads them. Therefore, a program depends on such a variable only
    if the configuration names it. Every program has a temporary folder of its own.
    """
    return name in VOLATILE or name in _SESSION or name.startswith(_SESSION_PREFIXES)


def variable_digest(environ: "Mapping[str, str]", name: str) -> str:
    """Return a digest of the value of one variable, or of all variables that a pattern names.

    A pattern is the beginning of a name, followed by one or two stars. ``OMP_*`` names those
    variables with this beginning that every program receives. ``OMP_**``, used for patterns of the
    configuration, names all variables with this beginning. A pattern of stars alone leaves out the
    variables for which `is_of_a_session` is true.

    The result is `UNSET` if a variable is not set, or if no variable has a pattern's beginning. The
    value itself, which may be a secret, is never stored.
    """
    begin, star, _ = name.partition(ALL_VARIABLES)
    if star:
        from gpuemu_flow.let_through import is_general  # noqa: PLC0415

        named = name.endswith(ALL_NAMED)
        merged = {**WORKER_DEFAULTS, **environ}
        found = sorted(
            (n, v)
            for n, v in merged.items()
            if n.startswith(begin)
            and (begin or not is_of_a_session(n))
            and (named or is_general(n))
        )
        if begin and not found:
            return UNSET
        value = repr(found)
    else:
        given = environ.get(name, WORKER_DEFAULTS.get(name))
        if given is None:
            return UNSET
        value = given
    return digest_of(value.encode("utf-8", "surrogateescape"))


def digest_of(data: bytes) -> str:
    """Return a digest of some bytes."""
    try:
        from _blake2 import blake2b  # noqa: PLC0415 - hashlib costs the front a millisecond
    except ImportError:
        from hashlib import blake2b  # noqa: PLC0415
    return blake2b(data, digest_size=_BITS).hexdigest()


def look_of(path: str) -> str:
    """Return the kind and mode that a program sees at a path; empty where there is nothing.

    A symbolic link has the kind and mode of its target, and the mark ``@``.
    """
    try:
        s, link = os.lstat(path), ""
        if s.st_mode & 0o170000 == 0o120000:
            s, link = os.stat(path), "@"  # noqa: PTH116
    except (OSError, ValueError):
        return ""
    return f"{s.st_mode:o}{link}"


def identity(environ: "Mapping[str, str]", folder: str) -> str:
    """Return the facts about the process and the folder on which a plan depends, as one text.

    Parameters
    ----------
    environ : mapping
    folder : str
        Real path of the folder that holds the plan. A copy of a workspace contains the original's
        plan and graph, which name the original's files. Because the folder differs, that plan is
        not valid in the copy.
    """
    values = [__version__, sys.version, sys.executable, folder]
    values += [environ.get(name, "") for name in _VARIABLES]
    return repr(values)


def _checksum(body: bytes) -> str:
    return digest_of(body)  # zlib would be one more module to load


def render(
    *,
    identity_text: str,
    summary: str,
    files: "Mapping[str, Stamp]",
    absent: "Iterable[str]",
    folders: "Mapping[str, Stamp]",
    links: "Mapping[str, str] | None" = None,
    variables: "Mapping[str, str] | None" = None,
    looks: "Mapping[str, str] | None" = None,
    own: "Mapping[str, Stamp] | None" = None,
    workers: bool = False,
) -> bytes | None:
    """Return the content of the plan file.

    Parameters
    ----------
    identity_text : str
        `identity` of the run that ends.
    summary : str
        Text to print if nothing has changed.
    files : mapping of absolute path to stamp
        (mtime_ns, ctime_ns, size, inode) of every source and manifest.
    absent : iterable of absolute paths
        Files whose appearance would change the configuration.
    folders : mapping of absolute path to stamp
        Folders whose listing matters.
    links : mapping of absolute path to str
        Links on the way to files, and their targets.
    variables : mapping of str to str
        `variable_digest` of the environment variables that programs read.
    looks : mapping of absolute path to str
        The result of `look_of` for each path whose existence or kind programs checked, and for
        each path that the configuration expects. It includes a file's size if a program may have
        learned the size.
    own : mapping of absolute path to stamp
        Folders of the cache, none of which may be a link.
    workers : bool
        True if some ops can run in a fork server that they share. A later command can then start
        this server early.

    Returns
    -------
    bytes or None
        None if a path contains a character that the format cannot represent: no plan can be kept.
    """
    links, variables, looks, own = links or {}, variables or {}, looks or {}, own or {}
    by_folder: dict[str, dict[str, Stamp]] = {}
    for path, stamp in sorted(files.items()):  # equal plans are equal bytes
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, {})[name] = stamp
    lines = [f"identity {identity_text}", f"summary {_quote(summary)}"]
    lines += [_WORKERS] if workers else []
    lines += [f"absent {path}" for path in sorted(absent)]
    lines += ["\t".join((f"folder {path}", *map(str, s))) for path, s in sorted(folders.items())]
    lines += ["\t".join((f"own {path}", *map(str, s))) for path, s in sorted(own.items())]
    lines += [f"link {path}\t{target}" for path, target in sorted(links.items())]
    lines += [f"look {path}\t{seen}" for path, seen in sorted(looks.items())]
    lines += [f"variable {name}\t{digest}" for name, digest in sorted(variables.items())]
    sections = []
    for folder, entries in sorted(by_folder.items()):
        if len(entries) >= _FEW:
            stamps = "\t".join(",".join(map(str, stamp)) for stamp in entries.values())
            sections.append("\n".join((folder, "/".join(entries), stamps)))
        else:
            lines += [
                "\t".join((f"file {folder}/{name}", *map(str, stamp)))
                for name, stamp in entries.items()
            ]
    sections.insert(0, "\n".join(lines))
    text = "\f".join(sections)
    paths = (*files, *absent, *folders, *own, *links, *links.values(), *variables, *looks)
    if "\f" in summary or any(c in path for path in paths for c in "\n\t\f"):
        return None
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return None
    return f"{FORMAT} {_checksum(body)}\n".encode() + body


def look(
    plan_path: str, environ: "Mapping[str, str]", seen: "dict[str, Seen] | None" = None
) -> tuple[str | None, bool, bool]:
    """Find out whether anything changed since the last clean run.

    Parameters
    ----------
    plan_path : str
    environ : mapping
    seen : dict of absolute path to Seen, optional
        An empty dict. This function adds the stamps and owners that it reads, by folder, so that
        later steps of the command need not read them again.

    Returns
    -------
    summary : str or None
        Text to print if the plan is intact and nothing changed.
    works : bool
        True if something changed, and some ops can run in a fork server that they share. It is then
        worth starting this server early.
    holds : bool
        True only if all conditions of the plan hold, except possibly those on the stamps of files.
        This exception does not include the stamps of the manifests' folders. Hence True also shows
        that no manifest was replaced.
    """
    try:
        data = read(plan_path)
    except OSError:
        return None, False, False
    seen = {} if seen is None else seen
    summary = _summary_if_up_to_date(plan_path, data, environ, seen)
    works = summary is None and _expects_workers(plan_path, data, environ)
    return summary, works, bool(seen)


def _expects_workers(plan_path: str, data: bytes, environ: "Mapping[str, str]") -> bool:
    """Tell whether a plan fits this workspace and process, and says that programs need workers."""
    head = data.partition(b"\n")[2].partition(b"\f")[0].split(b"\n")
    folder = os.path.realpath(os.path.dirname(plan_path))  # noqa: PTH120
    mine = f"identity {identity(dict(environ), folder)}".encode("utf-8", "surrogateescape")
    return head[0] == mine and _WORKERS.encode() in head


def digest_if_up_to_date(plan_path: str, environ: "Mapping[str, str]") -> str:
    """Return a digest of the plan if it is intact and nothing changed; else an empty text."""
    try:
        data = read(plan_path)
    except OSError:
        return ""
    return "" if _summary_if_up_to_date(plan_path, data, environ, {}) is None else digest_of(data)


def _summary_if_up_to_date(
    plan_path: str, data: bytes, environ: "Mapping[str, str]", seen: "dict[str, Seen]"
) -> str | None:
    try:
        head, _, body = data.partition(b"\n")
        if head != f"{FORMAT} {_checksum(body)}".encode():
            return None
        sections = body.decode().split("\f")
        folder = os.path.realpath(os.path.dirname(plan_path))  # noqa: PTH120 - hot
        summary = _check_head(sections[0].split("\n"), dict(environ), folder)  # decoded once
        if summary is None:
            return None
        for section in sections[1:]:
            folder, names, stamps = section.split("\n")
            seen[folder] = now = look_into(folder, names.split("/"))
            if "\t".join(now.stamps) != stamps:
                return None
    except (OSError, ValueError, IndexError):
        return None
    return summary


def read(plan_path: str) -> bytes:
    """Return the content of the plan, or of a cached answer in the plan's folder.

    Parameters
    ----------
    plan_path : str
        Path of the plan or of the cached answer.

    Raises
    ------
    OSError
        There is no such file, it is not a regular file, or its folder is a symbolic link.
    """
    if stat.S_ISLNK(os.lstat(os.path.dirname(plan_path)).st_mode):  # noqa: PTH120 - hot
        raise OSError("a link to the cache is looked at by the full program")
    descriptor = os.open(plan_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - pathlib is an import too many here
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a file")
        return file.read()


def is_damaged(plan_path: str) -> bool:
    """Tell whether a plan exists that is not intact; a plan of another version counts as intact."""
    try:
        head, _, body = read(plan_path).partition(b"\n")
    except OSError:
        return False
    form, _, checksum = head.rpartition(b" ")
    if form != FORMAT.encode():
        return not form.startswith(_ANY_FORMAT)
    return checksum != _checksum(body).encode()


class Seen:
    """The stamps and owners of some files of one folder.

    Attributes
    ----------
    names : list of str
    stamps : list of str
        The stamp of each file (of the target, if it is a link), as numbers with commas; empty if
        there is no file.
    owners : set of int
        Users who own one of the files, or one of the links to them.
    """

    __slots__ = ("names", "owners", "stamps")

    def __init__(self, names: list[str], stamps: list[str], owners: set[int]) -> None:
        self.names = names
        self.stamps = stamps
        self.owners = owners


def look_into(folder: str, names: list[str]) -> Seen:
    """Read the stamps and owners of some files of one folder."""
    # By descriptor: the kernel then need not walk the whole path again for every file. By name: to
    # list the folder first would cost a quarter more.
    stamps: list[str] = []
    owners: set[int] = set()
    owner = -1
    look, is_link = os.lstat, stat.S_ISLNK
    try:
        descriptor = os.open(folder or "/", os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return Seen(names, [""] * len(names), owners)
    try:
        for name in names:
            try:
                s = look(name, dir_fd=descriptor)
                if s.st_uid != owner:  # nearly all have one
                    owner = s.st_uid
                    owners.add(owner)
                if is_link(s.st_mode):
                    s = os.stat(name, dir_fd=descriptor)
                    owners.add(s.st_uid)
            except (OSError, ValueError):
                stamps.append("")
            else:
                stamps.append(f"{s.st_mtime_ns},{s.st_ctime_ns},{s.st_size},{s.st_ino}")
    finally:
        os.close(descriptor)
    return Seen(names, stamps, owners)


def _check_head(lines: list[str], environ: "Mapping[str, str]", folder: str) -> str | None:
    if lines[0] != f"identity {identity(environ, folder)}":
        return None
    if not all(holds(line, environ) for line in lines[2:]):
        return None
    return _unquote(lines[1].partition(" ")[2])


def holds(line: str, environ: "Mapping[str, str]") -> bool:
    """Tell whether the condition that one line of a plan states still holds.

    Parameters
    ----------
    line : str
        A line such as ``absent /PATH``, which states that nothing exists at this path.
    environ : mapping

    Raises
    ------
    OSError, ValueError
        The condition could not be checked, for example because a file is gone. Callers treat this
        like False.
    """
    if line == _WORKERS:
        return True
    kind, _, rest = line.partition(" ")
    if kind == "absent":
        return not os.path.lexists(rest)
    if kind in ("file", "folder", "own"):
        path, *stamp = rest.split("\t")
        s = os.lstat(path) if kind == "own" else os.stat(path)  # noqa: PTH116
        return [int(v) for v in stamp] == [s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino]
    path, _, known = rest.rpartition("\t")
    if kind == "link":
        return os.readlink(path) == known  # noqa: PTH115
    if kind == "look":
        return look_of(path) == known
    return kind == "variable" and variable_digest(environ, path) == known


def _quote(text: str) -> str:
    """Return a text as one line; `_unquote` is its inverse."""
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _unquote(line: str) -> str:
    """Return the text that `_quote` made into this line, without importing a module or a codec."""
    return "\\".join(part.replace("\\n", "\n") for part in line.split("\\\\"))


def find_workspace(start: str) -> str | None:
    """Return the nearest folder from `start` upward that holds a configuration."""
    folder = start
    while True:
        if os.path.isfile(os.path.join(folder, CONFIG_NAME)):  # noqa: PTH113, PTH118
            return folder
        parent = os.path.dirname(folder)  # noqa: PTH120
        if parent == folder:
            return None
        folder = parent
