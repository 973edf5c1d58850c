"""Write tolerances of an op into the text of a gpuemu.toml, and leave the rest unchanged."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

import tomli

from gpuemu_flow.config.report import scan
from gpuemu_flow.model.errors import ConfigError, Problem, did_you_mean
from gpuemu_flow.model.types import Tolerance, canonical_dtype


def write_tolerances(
    text: str, op: str, tolerances: Mapping[str, Tolerance], file: str = ""
) -> str:
    """Set the tolerances of some dtypes for one op, and return the new text. All tolerances of the
    op then stand in one line. Raises ConfigError, and changes nothing, if the file is not valid, or
    if the new text would mean anything else."""
    before = _parse(text, file)
    index = _op_index(before, op, file)
    given = before["ops"][index].get("tolerances", {})
    new: dict[str, Any] = {
        d: {"atol": t.atol, "rtol": t.rtol} if t.rtol else t.atol for d, t in tolerances.items()
    }
    old = {canonical_dtype(name): value for name, value in given.items()}
    wanted: dict[Any, Any] = old | new
    entry = f"tolerances = {_written(wanted)}"
    after = _edited(text, index, entry)
    expected = copy.deepcopy(before)
    expected["ops"][index]["tolerances"] = wanted
    try:
        changed = tomli.loads(after)
    except (ValueError, RecursionError):
        changed = {}
    if changed != expected:
        message = f"the tolerances of {op!r} cannot be written into this file automatically"
        raise ConfigError(Problem("config-not-editable", message, f"add to the op: {entry}", file))
    return after


def _edited(text: str, index: int, entry: str) -> str:
    """Put a line into the op's table, in place of what was written of its tolerances."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    statements = scan(text).statements
    starts = [n for n, s in enumerate(statements) if s.header and s.path == ("ops",)]
    if index >= len(starts):
        return text
    ends = (n for n, s in enumerate(statements) if n > starts[index] and s.header)
    own = statements[starts[index] : next((n for n in ends if n in starts), None)]
    old = [s for s in own if s.path[:2] == ("ops", "tolerances")]
    dropped = {number for s in old for number in range(s.start, s.stop)}
    direct = [own[0], *takewhile(lambda s: not s.header, own[1:])]
    last = [s for s in direct if s not in old][-1]
    indent = re.match(r"[ \t]*", lines[last.start])
    made = []
    for number, line in enumerate(lines):
        made += [] if number in dropped else [line]
        if number == last.stop - 1:
            made[-1] = made[-1] if made[-1].endswith("\n") else made[-1] + newline
            made.append(f"{indent[0] if indent else ''}{entry}{newline}")
    return "".join(made)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(name)} = {_written(v)}" for name, v in value.items())
        return f"{{ {inner} }}"
    return repr(value)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


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
