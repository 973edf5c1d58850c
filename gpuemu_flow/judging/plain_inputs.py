"""Make the inputs on which the traits of an op are decided."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuemu_flow.cases.generate import materialise
from gpuemu_flow.types import DTYPES, Case


def plain_inputs(case: Case) -> dict[str, NDArray[Any]]:
    """Make inputs in a case's shapes, but with plain values: those of the strategy ``normal``.

    All inputs are contiguous, and floats have the dtype float32. An input that a user's function
    makes keeps the values that it has in the case.
    """
    plain = tuple(
        replace(spec, layout="contiguous")
        if spec.rule is not None and spec.rule.generate  # only its function knows valid values
        else replace(
            spec,
            strategy="normal",
            layout="contiguous",
            dtype="float32" if DTYPES[spec.dtype].kind == "float" else spec.dtype,
        )
        for spec in case.inputs
    )
    made = materialise(replace(case, inputs=plain))
    floats = {spec.name for spec in plain if spec.is_generated and spec.dtype != "float32"}
    floats -= {spec.name for spec in plain if DTYPES[spec.dtype].kind != "float"}
    return {n: a.astype(np.float32) if n in floats else a for n, a in made.items()}
