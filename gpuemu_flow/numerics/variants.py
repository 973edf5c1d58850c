"""Variants of a case's outputs: the outputs of other executions that hardware permits.

Until they are judged, they are kept among the op's own outputs, under distinct names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

_MARK = " ~ "
WITH_GRADIENTS = "inputs that require gradients"
"""The label of the outputs that the op returns in training, which must be right, too."""

Arrays = Mapping[str, NDArray[Any]]


def variant_name(output: str, label: str) -> str:
    """Return the name under which a variant's output is kept among the op's outputs.

    `label` names the variant.
    """
    return f"{output}{_MARK}{label}"


def split_variants(outputs: Arrays) -> tuple[dict[str, NDArray[Any]], dict[str, Arrays]]:
    """Separate the op's own outputs from those of its variants."""
    own = {name: array for name, array in outputs.items() if _MARK not in name}
    changed: dict[str, dict[str, NDArray[Any]]] = {}
    for name, array in outputs.items():
        output, mark, label = name.partition(_MARK)
        if mark:
            changed.setdefault(label, {})[output] = array
    return own, {label: {**own, **arrays} for label, arrays in changed.items()}
