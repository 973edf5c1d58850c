"""Describe the inputs of a case: shapes of tensors, values of scalars and indices."""

from __future__ import annotations

from gpuemu_flow.types import Case, InputSpec

_MOST_VALUES = 8


def described(case: Case) -> str:
    """Return a case's inputs as readable text: ``x[2, 300] index[3]=[0, 7, 7] k=3 causal=True``."""
    return " ".join(_one(case, spec) for spec in case.inputs)


def _one(case: Case, spec: InputSpec) -> str:
    shape = list(spec.shape)
    if spec.rule is None or not spec.has_values:
        return f"{spec.name}{shape}"
    scalar = spec.rule.kind == "scalar"
    few = spec.rule.kind == "indices" and 0 < _size(spec) <= _MOST_VALUES
    if not scalar and not few:
        return f"{spec.name}{shape}"
    from gpuemu_flow.cases.generate import input_values  # noqa: PLC0415 - brings numpy

    values = input_values(case, spec)
    if scalar and values.size == 1:
        value = values.reshape(-1)[0].item()
        choices = spec.rule.choices
        return f"{spec.name}={choices[int(value) % len(choices)] if choices else value!r}"
    return f"{spec.name}{shape}={values.tolist()}"


def _size(spec: InputSpec) -> int:
    size = 1
    for length in spec.shape:
        size *= length
    return size
