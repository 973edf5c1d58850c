"""Write tolerances of an op into the text of a gpuemu.toml, and leave the rest unchanged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import tomli

from gpuemu_flow.config.report import Statement, scan
from gpuemu_flow.model.errors import ConfigError, Problem, did_you_mean
from gpuemu_flow.model.types import Tolerance, canonical_dtype

_TOLERANCES = ("ops", "tolerances")


def write_tolerances(
    text: str, op: str, tolerances: Mapping[str, Tolerance], file: str = ""
) -> str:
    """Set the tolerances of some dtypes for one op, and return the new text. Values that the op
    already has for these dtypes are replaced in place, in every allowed spelling. Other values are
    added to the op's ``[ops.tolerances]``, or to a new table at the end of the op. Comments, order,
    blank lines and line ends are kept. Raises ConfigError: ``config-syntax``, ``unknown-op``, or
    ``config-not-editable`` for a form that is not supported, such as ``ops = [{ ... }]``. The hint
    then shows the text to add."""
    before = _parse(text, file)
    index = _op_index(before, op, file)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += newline
    after = text
    try:
        for dtype, tolerance in tolerances.items():
            lines = _Editor(lines, index).set(dtype, tolerance, newline)
        after = "".join(lines)
        edited = tomli.loads(after)
    except (ValueError, RecursionError, _NotEditableError, IndexError):
        edited = None
    if edited is None or not _only_changed(before, edited, index, tolerances):
        wanted = ", ".join(f"{dtype} = {_written(t)}" for dtype, t in tolerances.items())
        message = f"the tolerances of {op!r} cannot be written into this file automatically"
        hint = f"add to the op: tolerances = {{ {wanted} }}"
        raise ConfigError(Problem("config-not-editable", message, hint, file))
    return after


class _NotEditableError(Exception):
    """Raised for an op written in a form that the editor does not support."""


def _parse(text: str, file: str) -> dict[str, Any]:
    try:
        return tomli.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(Problem("config-syntax", str(error), "", file)) from None


def _op_index(config: Mapping[str, Any], op: str, file: str) -> int:
    ops = config.get("ops")
    names = [o.get("name") for o in ops if isinstance(o, dict)] if isinstance(ops, list) else []
    templates = ops if isinstance(ops, list) else []
    if op not in names and any(isinstance(o, dict) and "foreach" in o for o in templates):
        message = f"{op!r} is written as a template, which stands for other ops, too"
        hint = "add the tolerances to the template, for all of them"
        raise ConfigError(Problem("config-not-editable", message, hint, file))
    if op not in names:
        hint = did_you_mean(op, [name for name in names if isinstance(name, str)])
        raise ConfigError(Problem("unknown-op", f"there is no op {op!r}", hint, file))
    return names.index(op)


def _only_changed(
    before: Mapping[str, Any], after: dict[str, Any], index: int, wanted: Mapping[str, Tolerance]
) -> bool:
    """Tell whether two configurations differ only in the wanted tolerances of one op."""
    old, new = before["ops"][index], after["ops"][index]
    found = {canonical_dtype(name): value for name, value in new.get("tolerances", {}).items()}
    if len(found) != len(new.get("tolerances", {})):
        return False  # a dtype appears under two names
    for dtype, tolerance in wanted.items():
        value = found.pop(dtype, None)
        whole = {"atol": tolerance.atol, "rtol": tolerance.rtol}
        if value != whole and (tolerance.rtol or value != tolerance.atol):
            return False
    kept = {
        canonical_dtype(name): value
        for name, value in old.get("tolerances", {}).items()
        if canonical_dtype(name) not in wanted
    }
    rest = {name: value for name, value in new.items() if name != "tolerances"}
    same = rest == {name: value for name, value in old.items() if name != "tolerances"}
    others = [*after["ops"][:index], *after["ops"][index + 1 :]]
    same = same and others == [*before["ops"][:index], *before["ops"][index + 1 :]]
    return same and found == kept and {**after, "ops": 0} == {**before, "ops": 0}


class _Editor:
    """One change to the lines of a file."""

    def __init__(self, lines: Sequence[str], op_index: int) -> None:
        self._lines = list(lines)
        statements = scan("".join(lines)).statements
        starts = [s for s in statements if s.header and s.path == ("ops",)]
        first = starts[op_index] if op_index < len(starts) else None
        if first is None:
            raise _NotEditableError
        place = statements.index(first)
        self._own = [first]
        for statement in statements[place + 1 :]:
            if statement.header and (statement.path[0] != "ops" or statement in starts):
                break
            self._own.append(statement)

    def set(self, dtype: str, tolerance: Tolerance, newline: str) -> list[str]:
        value = _written(tolerance)
        mine = [s for s in self._own if s.path[:2] == _TOLERANCES]
        keys = [s for s in mine if not s.header]
        inline = next((s for s in keys if s.path == _TOLERANCES), None)
        same = [s for s in mine if len(s.path) > 2 and canonical_dtype(s.path[2]) == dtype]
        if inline is not None:
            self._in_inline_table(inline, dtype, value)
        elif same:
            self._replace(same, tolerance, newline)
        else:
            self._insert(mine, f"{dtype} = {value}", newline)
        return self._lines

    def _in_inline_table(self, statement: Statement, dtype: str, value: str) -> None:
        _, text, _ = self._parts(statement)
        table = tomli.loads(f"value = {text}")["value"]
        if not isinstance(table, dict):
            raise _NotEditableError
        entries = {name: _toml_value(old) for name, old in table.items()}
        spelled = next((name for name in table if canonical_dtype(name) == dtype), dtype)
        entries[spelled] = value
        inner = ", ".join(f"{_toml_key(name)} = {entry}" for name, entry in entries.items())
        self._rewrite(statement, f"{{ {inner} }}" if inner else "{}")

    def _replace(self, statements: Sequence[Statement], tolerance: Tolerance, newline: str) -> None:
        whole = next((s for s in statements if not s.header and len(s.path) == 3), None)
        if whole is not None:
            self._rewrite(whole, _written(tolerance))
            return
        members = {s.path[3]: s for s in statements if len(s.path) == 4 and not s.header}
        header = next((s for s in statements if s.header), None)
        added = []
        values = (("rtol", tolerance.rtol), ("atol", tolerance.atol))
        for member, text in ((name, repr(float(value))) for name, value in values):
            if member in members:
                self._rewrite(members[member], text)
            elif header is not None:
                added.append((header.stop, f"{member} = {text}{newline}"))
            else:
                sibling = next(iter(members.values()))
                line = self._lines[sibling.start]
                key = line.split("=", 1)[0].rstrip().rpartition(".")[0]
                added.append((sibling.stop, f"{key}.{member} = {text}{newline}"))
        for place, line in added:
            self._lines.insert(place, line)

    def _insert(self, mine: Sequence[Statement], entry: str, newline: str) -> None:
        """Add an entry to the op's tolerances, in a new table if necessary. `mine` holds the
        statements that set the op's tolerances so far."""
        header = next((s for s in mine if s.header and s.path == _TOLERANCES), None)
        if header is not None:
            inside = [header]
            for statement in self._own[self._own.index(header) + 1 :]:
                if statement.header:
                    break
                inside.append(statement)
            indent = self._indent(inside[-1])
            self._lines.insert(inside[-1].stop, f"{indent}{entry}{newline}")
            return
        dotted = [s for s in mine if not s.header and not self._below_header(s)]
        if dotted:
            self._lines.insert(dotted[-1].stop, f"tolerances.{entry}{newline}")
            return
        indent = self._indent(self._own[0])
        table = [f"{indent}[ops.tolerances]{newline}", f"{indent}{entry}{newline}"]
        self._lines[self._own[-1].stop : self._own[-1].stop] = table

    def _below_header(self, statement: Statement) -> bool:
        """Tell whether a key is under a separate header and not directly under ``[[ops]]``."""
        place = self._own.index(statement)
        return any(other.header for other in self._own[1:place])

    def _indent(self, statement: Statement) -> str:
        line = self._lines[statement.start]
        return line[: len(line) - len(line.lstrip())]

    def _rewrite(self, statement: Statement, value: str) -> None:
        """Set a key to another value; keep the key's spelling and a comment at the line's end."""
        before, _, after = self._parts(statement)
        self._lines[statement.start : statement.stop] = [f"{before}{value}{after}"]

    def _parts(self, statement: Statement) -> tuple[str, str, str]:
        text = "".join(self._lines[statement.start : statement.stop])
        start, end = statement.value or (0, 0)
        return text[:start], text[start:end], text[end:]


def _written(tolerance: Tolerance) -> str:
    if not tolerance.rtol:
        return repr(float(tolerance.atol))
    return f"{{ atol = {float(tolerance.atol)!r}, rtol = {float(tolerance.rtol)!r} }}"


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml_key(name)} = {_toml_value(v)}" for name, v in value.items())
        return f"{{ {inner} }}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _NotEditableError
    return repr(value)


def _toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
