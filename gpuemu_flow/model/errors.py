"""Errors and warnings for users, as data: slug, message, place and hint."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class Rename(Struct, frozen=True):
    """Edit that replaces an unknown name by a known one."""

    wrong: str
    right: str


class AddKey(Struct, frozen=True):
    """Edit that adds a required key to a table."""

    name: str


class Hint(str):
    """A hint that an editor can apply: the text, and the edit that it proposes."""

    edit: Rename | AddKey

    @classmethod
    def of(cls, text: str, edit: Rename | AddKey) -> Hint:
        made = cls(text)
        made.edit = edit
        return made


class Problem(Struct, frozen=True):
    """One diagnosis: a description of the mistake, its place, and a way to fix it."""

    slug: str
    message: str
    hint: str = ""
    file: str = ""
    line: int = 0
    warning: bool = False

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        level = "warning: " if self.warning else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{place}{level}{self.slug}: {self.message}{hint}"


class FlowError(Exception):
    """Base of all errors that are reported to a user without a traceback."""

    exit_code = 3

    def __init__(self, *problems: Problem) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))

    @property
    def slug(self) -> str:
        return self.problems[0].slug


class UsageError(FlowError):
    """Error of a command line or an API call that asks for something invalid or impossible."""

    exit_code = 2


class ConfigError(FlowError):
    """Error in a configuration file."""

    exit_code = 2


class RunnerError(FlowError):
    """Error of the machinery that runs ops. An op's own error gives the verdict ``error``."""


class StoreError(FlowError):
    """Error of a cache that cannot be used: disk full, no permission, locked."""


class CancelledRunError(Exception):
    """Raised in work that was cancelled, by Ctrl-C or because the client disconnected."""


_PACKED = 'two such values share a byte: `{ dtype = "uint8", kind = "packed" }` for the input'
_FLOAT8 = "'float8_e4m3fn' and 'float8_e5m2' are the two types of 8 bits"
MEANT = {
    **dict.fromkeys(("int4", "uint4", "fp4", "float4", "nvfp4", "mxfp4"), (_PACKED, "uint8")),
    **dict.fromkeys(("fp8", "float8", "f8"), (_FLOAT8, "float8_e4m3fn")),
}
"""What to say of names that are no dtypes, though one might think so, and a name beside them."""


MAX_NAMES = 60
"""The most names that a hint lists."""


def nearest(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return the known name that is most similar to `name`; empty if none is similar."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for an error

    others = [one for one in known if one != name]
    found = get_close_matches(name, others, n=1, cutoff=0.6)
    return found[0] if found else ""


def known_names(names: Sequence[str]) -> str:
    """Return a hint that lists names, of very many the first; empty if there are none."""
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return f"known: {', '.join(names[:MAX_NAMES])}{more}" if names else ""


def did_you_mean(name: str, known: list[str] | tuple[str, ...]) -> str:
    """Return a hint that proposes the most similar known name.

    If no name is similar, the hint lists all known names; it is empty if there are none.
    """
    said, of = MEANT.get(name.lower(), ("", ""))
    if said and of in known:
        return said
    best = nearest(name, known)
    if best:
        return Hint.of(f"did you mean {best!r}?", Rename(name, best))
    return known_names(sorted(known))
