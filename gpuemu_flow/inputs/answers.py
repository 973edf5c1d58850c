"""Cached output ("answers") of read-only commands, printed again if nothing changed.

The plan is a file that tells whether anything changed since the last run; see `plan`. An answer is
stored next to the plan, but only if the plan was valid and did not change while the command ran. It
is printed again for the same command line if the plan is still the same and valid, and if the
answer's other conditions hold, such as that certain files are unchanged. Like `plan`, this module
is used before anything heavy is imported.
"""

from __future__ import annotations

import os

from gpuemu_flow.inputs import plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FORMAT = "gpuemu-flow answer 1"
PREFIX = "answer-"
MOST = 32
_JSON = ("--format", "json")
_COMMANDS = frozenset({
    ("run", *_JSON), ("list",), ("list", *_JSON), ("list", "--status"), ("status",),
    ("status", *_JSON), ("explain",), ("explain", *_JSON), ("ci",), ("ci", "quick"),
})  # fmt: skip
_VARIABLES = ("NO_COLOR", "GPUEMU_NO_COLOR", "TERM", "XDG_RUNTIME_DIR", "TMPDIR", "TEMP", "TMP")
_OF_SERVICES = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
"""Variables that CI services set. If one of them is set, `ci` writes more than it prints."""
_DURATION = '\n  "duration_s": '


class Answer:
    """The output of one command: the cached text, or the text being printed, to be cached.

    Parameters
    ----------
    root : str
        The workspace.
    arguments : sequence of str
        The words of the command.
    environ : mapping
    terminal : bool
        True if standard output is a terminal.

    Attributes
    ----------
    text : str
        The cached answer; empty if there is none.
    """

    def __init__(
        self, root: str, arguments: Sequence[str], environ: Mapping[str, str], *, terminal: bool
    ) -> None:
        self._folder = f"{root}/{plan.CACHE_NAME}"
        self._environ = dict(environ)
        seen = [environ.get(name, "") for name in _VARIABLES]
        self._key = repr([list(arguments), terminal, seen])
        self._plan = self._holding()
        self._said: list[str] = []
        self._conditions: list[str] = []
        self._discarded = not self._plan
        self.text = self._cached() if self._plan else ""

    def _holding(self) -> str:
        """Return the digest of the plan file if the plan is still valid, else an empty text.

        The plan is valid as long as nothing has changed since the last run; see `plan`.
        """
        return plan.digest_if_up_to_date(f"{self._folder}/{plan.PLAN_NAME}", self._environ)

    @property
    def _path(self) -> str:
        return f"{self._folder}/{PREFIX}{plan.digest_of(self._key.encode('utf-8', 'replace'))}"

    def _cached(self) -> str:
        """Return the cached answer if all of its conditions hold; else an empty text."""
        try:
            head, _, body = plan.read(self._path).decode().partition("\n")
            if head != f"{FORMAT} {plan.digest_of(body.encode())}":
                return ""
            conditions, _, text = body.partition("\n\n")
            first, key, *more = conditions.split("\n")
            same = first == f"plan {self._plan}" and key == f"key {self._key}"
            return text if same and all(map(self._holds, more)) else ""
        except (OSError, ValueError):
            return ""

    def _holds(self, line: str) -> bool:
        kind, _, path = line.partition(" ")
        return _is_unlocked(path) if kind == "unlocked" else plan.holds(line, self._environ)

    def record(self, text: str, *, err: bool) -> None:
        """Record a text that the command prints.

        If the text goes to standard error (`err`), the answer will not be cached.
        """
        self._said.append(text)
        self._discarded |= err

    def discard(self) -> None:
        """Do not cache this answer: it depends on something that no condition covers."""
        self._discarded = True

    def rest_on(self, folders: Iterable[str] = (), files: Iterable[str] = ()) -> None:
        """Make the answer depend on some files, and on the listings of some folders."""
        for kind, paths in (("folder", folders), ("file", files)):
            for path in paths:
                try:
                    s = os.stat(path)  # noqa: PTH116 - as the plan does
                except OSError:
                    self._conditions.append(f"absent {path}")
                    continue
                stamp = (s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino)
                self._conditions.append("\t".join((f"{kind} {path}", *map(str, stamp))))

    def rest_on_unlocked(self, paths: Iterable[str]) -> None:
        """Make the answer valid only while no process holds a lock on any file of `paths`."""
        self._conditions += [f"unlocked {path}" for path in paths]

    def keep(self) -> None:
        """Cache the recorded text if the plan was valid throughout and the cache can be written."""
        from pathlib import Path  # noqa: PLC0415 - the full program has loaded these

        from gpuemu_flow.errors import StoreError  # noqa: PLC0415
        from gpuemu_flow.store.private_files import PrivateFolder  # noqa: PLC0415

        text = "".join(self._said)
        lines = [f"plan {self._plan}", f"key {self._key}", *self._conditions]
        if self._discarded or not text or any("\n" in line for line in lines):
            return
        try:
            body = "\n".join(lines).encode() + b"\n\n" + text.encode()
            folder = Path(self._folder)
            old = [entry.name for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
            files = PrivateFolder(folder)
            for name in old if len(old) >= MOST else ():
                files.remove(folder / name)
            if self._holding() == self._plan:
                head = f"{FORMAT} {plan.digest_of(body)}\n".encode()
                files.write(Path(self._path), head + body)
        except (OSError, UnicodeEncodeError, StoreError):
            return


recording: Answer | None = None
"""The present command's answer, if it may be kept."""


def may_be_cached(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Tell whether a command's output may be cached.

    It may be cached if the command, run a second time on unchanged files, writes no files.
    """
    words = tuple(arguments)
    if words[:1] == ("ci",) and any(environ.get(name) for name in _OF_SERVICES):
        return False
    if words in _COMMANDS:
        return True
    tasks = words[1:-2] if words[-2:] == _JSON else words[1:]
    return words[:1] == ("explain",) and not any(word[:1] in ("-", "@", "") for word in tasks)


def with_duration(text: str, seconds: float) -> str:
    """Replace the duration in an answer, if it has one, by `seconds`."""
    head, mark, tail = text.rpartition(_DURATION)
    if not mark:
        return text
    return f"{head}{mark}{round(seconds, 6)},{tail.partition(',')[2]}"


def _is_unlocked(path: str) -> bool:
    """Tell whether it is certain that no process holds a lock."""
    import fcntl  # noqa: PLC0415 - for one command

    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
