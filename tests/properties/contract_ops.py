"""Ops whose outputs have contracts, right and wrong ones, for the test of one verdict."""

from __future__ import annotations

import re
from pathlib import Path

from planted_ops import PlantedOp
from whole import rotated

FOLDER = Path(__file__).parents[1] / "quality" / "output_ops"

CHOSEN = {
    "topk": ("right_heap", "bug_indices_from_one"),
    "unique": ("right_set", "bug_negatives_as_positive"),
    "masked_softmax": ("right_nan_padding", "bug_one_short"),
    "sgd": ("right_none", "bug_last_row_left"),
    "dropout": ("right_vectors", "bug_not_scaled"),
    "eigh": ("right_negated", "bug_not_scaled"),
    "clusters": ("right_by_value", "bug_last_alone"),
    "sorts": ("right_quick", "bug_by_size"),
    "cross_entropy": ("right_vectors", "bug_half"),
    "spectrum": ("right_slow", "bug_conjugate"),
}
"""Of each op a right implementation and a wrong one."""

OF_ITS_OWN_CALL = {"dropout"}
"""Ops of which a caller cannot hand over what they gave."""


def contract_ops() -> list[PlantedOp]:
    """Return the ops of `CHOSEN`: of each contract one, right and wrong in turns, or both."""
    return [
        _op(op, function)
        for turn, (op, functions) in enumerate(CHOSEN.items())
        for function in rotated(functions, 1, turn)
        if (FOLDER / f"{op}.toml").is_file()
    ]


def _op(op: str, function: str) -> PlantedOp:
    name = f"{op}_{function}"
    text = (FOLDER / f"{op}.py").read_text(encoding="utf-8")
    reference = (FOLDER / f"{op}_ref.py").read_text(encoding="utf-8")
    compare = FOLDER / f"{op}_compare.py"
    if compare.is_file():
        reference += compare.read_text(encoding="utf-8")
    table = (FOLDER / f"{op}.toml").read_text(encoding="utf-8")
    table = table.replace("\ncases = 12", "").replace(f"{op}_compare.py", f"refs/ref_{name}.py")
    first = re.search(r'dtypes = \["(\w+)"', table)
    assert first is not None
    table = re.sub(r"dtypes = \[.*\]", f'dtypes = ["{first[1]}"]', table, count=1)
    head = f'[[ops]]\nname = "{name}"\nop = "ops/{name}.py:op"\n'
    return PlantedOp(
        name,
        (first[1],),
        function,
        "none",
        op in OF_ITS_OWN_CALL,
        False,
        f"{text}\n\nop = {function}\n",
        reference,
        f'{head}reference = "refs/ref_{name}.py:reference"\n{table}',
    )
