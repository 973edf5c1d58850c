"""Describe a change to something that a program used, such as a file, package or variable."""

from __future__ import annotations

from collections.abc import Callable

from gpuemu_flow.types import Json

UNSET = "unset"


def observed_line(name: str, old: Json, new: Json) -> str:
    """Describe a changed input by its name, such as ``file lib/table.npy``, and its two states.

    The state None means that the input was not among the observed inputs. An empty state means that
    the input does not exist.
    """
    kind, _, rest = name.partition(" ")
    words = _WORDS.get(kind)
    return f"observed {name} changed" if words is None else words(rest, old, new)


def _file(path: str, old: Json, new: Json) -> str:
    if not new:
        return f"observed file {path} is gone"
    return f"observed file {path} {'changed' if old else 'is there now'}"


def _link(path: str, _old: Json, new: Json) -> str:
    return f"link {path} now leads to {new}" if new else f"{path} is no link any more"


def _missing(path: str, _old: Json, _new: Json) -> str:
    return f"{path}, which was looked for in vain, is there now"


def _folder(path: str, _old: Json, new: Json) -> str:
    return f"the names in folder {path} changed" if new else f"folder {path} is gone"


def _look(path: str, old: Json, new: Json) -> str:
    if not new:
        return f"{path}, which was looked for, is gone"
    return f"{path} is of another kind or mode" if old else f"{path} is there now"


def _package(name: str, old: Json, new: Json) -> str:
    was, now = (
        str(state or "").lstrip(", ").partition(",")[0].partition(" ")[0] for state in (old, new)
    )
    if not now:
        return f"package {name} {was} is not installed any more"
    if not was:
        return f"package {name} {now}, which was asked for in vain, is installed now"
    return f"package {name} {was} -> {now}" if was != now else f"package {name} {now}: other files"


def _python(folder: str, _old: Json, _new: Json) -> str:
    return f"the interpreter of {folder} changed"


def _variable(name: str, old: Json, new: Json) -> str:
    label = f"environment variable{'s' if name.endswith('*') else ''} {name}"
    label = "the environment" if name == "*" else label
    if UNSET in (old, new):
        return f"{label}: {'unset' if new == UNSET else 'set'}"
    return f"{label}: changed"


_WORDS: dict[str, Callable[[str, Json, Json], str]] = {
    "file": _file,
    "link": _link,
    "missing": _missing,
    "folder": _folder,
    "look": _look,
    "package": _package,
    "python": _python,
    "variable": _variable,
}
