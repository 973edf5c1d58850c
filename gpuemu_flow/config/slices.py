"""Extract each op's part of the configuration, in the canonical form for action keys."""

from __future__ import annotations

import math

from msgspec import to_builtins

from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.model.types import ACCURACIES, Json


def to_slice(op: OpConfig, dtype: str | None = None) -> dict[str, Json]:
    """Return the part of an op's configuration that decides its results, split by stage.

    The op's name, lines, files of the configuration and absolute paths are left out, since none of
    them changes a result. Programs are included by their path, not by their content.
    """
    explicit = {
        name: {"atol": t.atol, "rtol": t.rtol}
        for name, t in op.tolerances.items()
        if dtype in (None, name)
    }
    asked_for = _reference_dtype(op, dtype)
    return {
        "op": {
            "ref": _program(op.op) if op.op else None,
            "mutates": sorted(op.mutates),
            "deterministic": op.deterministic,
            "masks": masks_of(op),
            "require_kernel": op.require_kernel,
            "forbid": sorted(op.forbid),
        },
        "reference": {"ref": _program(op.reference), "dtype": asked_for},
        "program": {
            "input_names": list(op.input_names),
            "output_names": [tensor.name for tensor in op.schema.outputs],
            "kwargs": _plain(op.kwargs),
            "env": dict(op.env),
            "env_names": list(op.env_names),
            "timeout": op.timeout,
            "memory_limit": op.memory_limit,
            "isolation": op.isolation,
            **({"groups": groups_of(op)} if op.groups else {}),
            **({"gradients": gradients_of(op)} if op.gradients else {}),
        },
        "cases": {
            "schema": _plain(to_builtins(op.schema)),
            "layouts": list(op.layouts),
            "strategies": list(op.strategies),
            "count": op.cases,
        },
        "compare": {
            "tolerance": op.tolerance,
            "tolerances": explicit,
            "precision": op.precision,
            **({"accuracy": op.accuracy} if op.accuracy != ACCURACIES[0] else {}),
            "nan_policy": op.nan_policy,
            "inf_policy": op.inf_policy,
            "invariants": list(op.invariants),
            "shape_preserved_input": op.shape_preserved_input,
            "mutates": sorted(op.mutates),
            "deterministic": op.deterministic,
            "reference_dtype": asked_for,
            "outputs": to_builtins(op.outputs),
            "input_dims": {tensor.name: list(tensor.dims) for tensor in op.schema.inputs}
            if op.outputs
            else {},
            **({"gradients": list(op.gradients)} if op.gradients else {}),
        },
    }


def gradients_of(op: OpConfig) -> dict[str, Json]:
    """Return the settings of an op's gradients, in the form that its programs receive."""
    apart = [contract.name for contract in op.outputs if not contract.in_place]
    return {"inputs": list(op.gradients), "apart": apart, "masks": masks_of(op)}


def masks_of(op: OpConfig) -> dict[str, Json]:
    """Return, by output name, the masks that select the elements to compare.

    Outputs of which all elements are compared have no mask, and are left out.
    """
    said = {contract.name: to_builtins(contract) for contract in op.outputs}
    return {name: contract["only"] for name, contract in said.items() if "only" in contract}


def groups_of(op: OpConfig) -> dict[str, Json]:
    """Return the arguments that consist of several inputs."""
    return {name: to_builtins(group) for name, group in op.groups.items()}


def _reference_dtype(op: OpConfig, dtype: str | None) -> str | None:
    """Return the dtype to request from the reference; None means float64, if supported.

    If the op is judged by the documented table of tolerances, and its configuration names no dtype
    for the reference, the result is `dtype`. The table supposes a reference that computes in the
    op's own dtype: correct outputs would fail if they were compared with more precise ones.
    """
    by_table = op.tolerance == "table" and dtype is not None and dtype not in op.tolerances
    return dtype if by_table and op.reference_dtype is None else op.reference_dtype


def _program(ref: ProgramRef) -> dict[str, Json]:
    return {
        **({"loads": ref.loads_relative} if ref.loads is not None else {}),
        "kind": ref.kind,
        "path": ref.relative,
        "module": ref.module,
        "function": ref.function,
        "argv": list(ref.portable_argv),
    }


def _plain(value: Json) -> Json:
    """Convert tuples to lists, and infinities to a form that is valid and unique in JSON."""
    if isinstance(value, dict):
        return {str(name): _plain(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value
