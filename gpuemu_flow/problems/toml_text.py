"""Write the configuration of an imported workspace."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from gpuemu_flow.problems.model import Argument, Taken
from gpuemu_flow.quick_dataclass import dataclass


@dataclass(frozen=True)
class OpTable:
    """One ``[[ops]]`` of the configuration.

    Attributes
    ----------
    name : str
        ``PROBLEM/CANDIDATE``.
    op, function : str
        File and function of the candidate's adapter.
    reference : str
    triton : bool
    taken : Taken
        The problem.
    """

    name: str
    op: str
    function: str
    reference: str
    triton: bool
    taken: Taken


def workspace_text(project: str, ops: Sequence[OpTable], cases: int) -> str:
    """Return the text of ``gpuemu.toml``."""
    parts = [
        "# Written by gpuemu-flow import; yours to change.\n"
        f"[project]\nname = {_text(project)}\n\n"
        "[validation]\n"
        f"cases = {cases}\n"
        'dtypes = ["float32"]\n'
        "# These problems promise their kernels contiguous tensors and finite values.\n"
        'layouts = ["contiguous"]\nstrategies = ["core"]\n'
    ]
    parts += [_op(one) for one in ops]
    return "\n".join(parts)


def _op(one: OpTable) -> str:
    program = f"{one.op}:{one.function}"
    op = _text(program)
    if one.triton:
        op = f'{{ kind = "triton", file = {_text(one.op)}, function = {_text(one.function)} }}'
    about = one.taken.about
    lines = [
        "[[ops]]",
        f"name = {_text(one.name)}",
        f"op = {op}",
        f"reference = {_text(one.reference)}",
        'isolation = "warm"',  # importing torch takes seconds: not for each case that fails
        "[ops.schema]",
    ]
    dims = {name: list(sizes) for name, sizes in one.taken.dims.items()}
    if dims:
        inner = ", ".join(f"{name} = {sizes}" for name, sizes in dims.items())
        lines.append(f"dims = {{ {inner} }}")
    for tensor, axes in zip(about.tensors, one.taken.axes, strict=True):
        lines.append(f"inputs.{tensor.name} = {_input(tensor, axes, tensor.name in about.free)}")
    ranks = [["?"] * output.rank for output in about.outputs]
    if len(ranks) == 1:
        lines.append(f"output = {json.dumps(ranks[0])}")
    else:
        inner = ", ".join(f"out{at} = {json.dumps(rank)}" for at, rank in enumerate(ranks))
        lines.append(f"outputs = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def _input(tensor: Argument, axes: tuple[int | str, ...], free: bool) -> str:
    keys = [f"dims = {json.dumps(list(axes))}"]
    if not tensor.floating:
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


def _text(value: str) -> str:
    """Return a TOML string; JSON's escapes are TOML's, too."""
    return json.dumps(value)
