"""The table of ``docs/public-kernels.md``: ``python tests/public_kernels/table.py RESULTS.json``.

RESULTS.json is what ``gpuemu-flow run --format json`` says in a copy of this folder.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "public-kernels.md"
BEGIN, END = "<!-- table -->\n", "<!-- /table -->"
LIBRARIES = {
    "liger": "liger-kernel 0.8.5",
    "fla": "fla-core 0.6.0",
    "gems": "flag-gems 5.0.2",
}
_CAST = "operands of `tl.dot` are cast, as tensor cores need: the default `precision` allows that"
_ROUNDED = '`precision = "input"`: intermediates are rounded to the input\'s dtype'
REMARKS = {
    **dict.fromkeys(
        ("fla.attention", "fla.forgetting_attention", "fla.gla_chunk", "fla.linear_attn_chunk",
        ), _CAST),
    **dict.fromkeys(("fla.delta_rule", "liger.group_norm"), _ROUNDED),
    "fla.retention_chunk": f"{_CAST}; float16 gives -inf where -29,103 is expected, in 5 of 448 "
    "elements of 1 of 4 cases",
    "liger.geglu_backward": "float16 multiplies `dy` by `b` first: Inf beyond 65,504, and NaN "
    "times a derivative of 0, where the gradient is 0",
    "liger.rms_norm_backward": "bfloat16 with `precision = 'input'`: `d_weight` is off by up to "
    "twice the tolerance in 1 of 4 cases",
    "liger.poly_norm": "float16: see the bugs below",
    "liger.poly_norm_backward": "float16: see the bugs below",
    "liger.dyt_backward": "values near 1: `1 - tanh²` cancels beyond",
    "fla.logsigmoid": "values up to 4: `log(1 + e^-x)` cancels beyond",
    "liger.rope": "two steps and more: see the bugs below",
    "liger.sparsemax": "no verdict in 1 case, with a row of 33 times -99,840: float32 rounds its "
    "sum by more than the result",
    "gems.mm": "through the library's own tuner and launcher",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One op in one dtype."""

    library: str
    op: str
    dtype: str
    cases: int
    verdict: str

    def line(self) -> str:
        """As a line of the table."""
        remark = REMARKS.get(f"{self.library}.{self.op}", "")
        cells = [LIBRARIES[self.library], f"`{self.op}`", self.dtype, self.cases, self.verdict]
        return "| " + " | ".join(map(str, [*cells, remark])) + " |"


def rows_of_results(report: dict[str, Any]) -> list[Row]:
    """Rows of a report of ``run``."""
    found = []
    for result in report["results"]:
        library, _, op = result["op"].partition(".")
        cases = result["cases"]
        found.append(Row(library, op, result["dtype"], cases, result["verdict"]))
    return _sorted(found)


def rows_of_page() -> list[Row]:
    """Rows of the page as it is."""
    table = PAGE.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0]
    names = {name: key for key, name in LIBRARIES.items()}
    found = []
    for line in table.splitlines()[2:]:
        library, ops, dtype, cases, verdict = (c.strip() for c in line.split("|")[1:6])
        for op in ops.split(", "):
            name, _, own = op.removeprefix("`").partition("`")
            found.append(Row(names[library], name, dtype or own.strip(), int(cases), verdict))
    return _sorted(found)


def _sorted(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (list(LIBRARIES).index(row.library), row.op, row.dtype))


def lines_of(rows: list[Row]) -> list[str]:
    """Return a line for each row with a remark, or that did not pass, then one for each library."""
    lines = ["| Library | Op | dtype | Cases | Verdict | Remark |", "|---|---|---|---|---|---|"]
    plain: dict[tuple[str, int], list[str]] = {}
    for row in rows:
        if row.verdict == "passed" and f"{row.library}.{row.op}" not in REMARKS:
            plain.setdefault((row.library, row.cases), []).append(f"`{row.op}` {row.dtype}")
        else:
            lines.append(row.line())
    for (library, cases), ops in plain.items():
        lines.append(f"| {LIBRARIES[library]} | {', '.join(ops)} | | {cases} | passed | |")
    return lines


def write(rows: list[Row]) -> None:
    """Put rows into the page."""
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    table = "\n".join(lines_of(rows)) + "\n"
    PAGE.write_text(head + BEGIN + table + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    write(rows_of_results(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
