"""Write the configuration of an imported workspace."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

import msgspec

from gpuemu_flow.problems.model import Argument, ImportedProblem
from gpuemu_flow.types import Json

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def table_text(heading: str, table: Mapping[str, Json]) -> str:
    """Return a table under its heading, such as ``[validation]`` or ``[[ops]]``.

    Nested tables are written inline, in braces.
    """
    lines = [heading, *(f"{_key(name)} = {toml_value(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def toml_value(value: Json) -> str:
    """Return a value as TOML, in one line."""
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {toml_value(one)}" for key, one in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(toml_value, value))}]"
    if type(value) is float:
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, too, but JSON leaves one control character as it is.
        return json.dumps(value).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)


class OpTemplate(msgspec.Struct, frozen=True):
    """One ``[[ops]]`` table of the configuration, which defines an op for each candidate."""

    # Name of the problem; the names of its ops begin with it.
    problem: str
    # Path of the program that all ops share. Its function ``load`` loads a candidate's file.
    op: str
    # Glob of the candidates' files.
    candidates: str
    reference: str
    # Words that show that a candidate needs Triton's interpreter, or that it cannot run here.
    triton_if: tuple[str, ...]
    skip_if: tuple[str, ...]
    # The imported problem, from which the table's schema and dtype are taken.
    taken: ImportedProblem
    # Files of the problem that candidates read besides their own files.
    shared: tuple[str, ...] = ()


def workspace_text(
    project: str,
    ops: Sequence[OpTemplate],
    cases: int,
    hidden: Sequence[str] = (),
    apart: Sequence[str] = (),
) -> str:
    """Return the text of ``gpuemu.toml``.

    `hidden`: Paths of files that no candidate may read: files of the problems, including
    references, and the files that candidates were copied from. `apart`: Globs of candidates'
    files: no candidate may read the file of another candidate.
    """
    parts = [
        "# Written by gpuemu-flow import; yours to change.\n"
        f"[project]\nname = {toml_value(project)}\n\n"
        "[validation]\n"
        f"cases = {cases}\n"
        'dtypes = ["float32"]\n'
        "# These problems promise their kernels contiguous tensors and finite values.\n"
        'layouts = ["contiguous"]\nstrategies = ["core"]\n'
    ]
    if hidden or apart:
        lines = "".join(f"    {toml_value(path)},\n" for path in hidden)
        parts.append(
            "# No candidate reads another's files, nor the originals, which hold references, too.\n"
            f"[sandbox]\napart = {toml_value(list(apart))}\nhidden = [\n{lines}]\n"
        )
    parts += [_op(one) for one in ops]
    return "\n".join(parts)


def _op(one: OpTemplate) -> str:
    about = one.taken.about
    program = {
        "kind": "callable",
        "path": one.op,
        "function": "load",
        "loads": one.candidates.replace("*", "{candidate}"),
        "triton_if": one.triton_if,
        "skip_if": one.skip_if,
    }
    lines = [
        "# A file that is put there is a candidate from then on.",
        "[[ops]]",
        f"name = {toml_value(one.problem + '/{candidate}')}",
        f"foreach.candidate = {toml_value({'files': one.candidates})}",
        f"op = {toml_value(program)}",
        f"reference = {toml_value(one.reference)}",
        'isolation = "warm"',  # importing torch takes seconds: not for each case that fails
    ]
    if one.taken.dtype != "float32":
        lines.append(f"dtypes = [{toml_value(one.taken.dtype)}]")
    lines += [f"shared = {toml_value(list(one.shared))}"] * bool(one.shared)
    lines.append("[ops.schema]")
    if one.taken.dims:
        lines.append(f"dims = {toml_value(one.taken.dims)}")
    for tensor, axes in zip(about.tensors, one.taken.axes, strict=True):
        lines.append(f"inputs.{tensor.name} = {_input(tensor, axes, tensor.name in about.free)}")
    lines += [f"{key} = {toml_value(value)}" for key, value in one.taken.schema.items()]
    for at, output in enumerate(about.outputs):
        keys = {"dims": output.dims or ["?"] * output.rank, **output.rules}
        lines.append(f"outputs.{output.name or f'out{at}'} = {toml_value(keys)}")
    return "\n".join(lines) + "\n"


def _input(tensor: Argument, axes: tuple[int | str, ...], free: bool) -> str:
    keys = [f"dims = {json.dumps(list(axes))}"]
    if tensor.generate or tensor.rules:
        keys += [f"{key} = {toml_value(value)}" for key, value in tensor.rules.items()]
        keys += [f"generate = {toml_value(tensor.generate)}"] * bool(tensor.generate)
    elif not tensor.floating:
        keys.append(f'dtype = "{tensor.dtype}"')
        if tensor.dtype == "bool":
            keys += ['kind = "mask"', "allow_empty_rows = true"]
        elif tensor.low is not None and tensor.high is not None:
            keys.append(f"range = [{int(tensor.low)}, {int(tensor.high)}]")
    elif tensor.kind:
        keys.append(f'kind = "{tensor.kind}"')
    else:
        if not free and tensor.low is not None and tensor.high is not None:
            # The model gives NaN or Inf for other values, or fails.
            keys.append(
                f"range = [{_float(math.floor(tensor.low))}, {_float(math.ceil(tensor.high))}]"
            )
        keys.append("nonfinite = false")
    return f"{{ {', '.join(keys)} }}"


def _float(value: int) -> str:
    return repr(float(value))
