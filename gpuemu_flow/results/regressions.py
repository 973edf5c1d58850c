"""Regressions since the last run or a baseline, as data for all writers."""

from __future__ import annotations

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.types import Json


@dataclass(frozen=True)
class Regression:
    """One figure or verdict of an op or of a kernel that got worse.

    Attributes
    ----------
    op, dtype : str
        Empty for a kernel.
    kernel, arch : str
        The configured kernel, and the architecture of the entry; empty for an op.
    entry : str
        Name of the kernel in the artifact; it may differ from the configured name.
    what : str
        ``verdict``, ``max_abs`` or the name of a kernel's figure.
    old, new : JSON
        The figure before and now; None if the rule gives no figure.
    message : str
        Sentence of the rule that judged a kernel; empty for an op.
    baseline : str
        Tag of the baseline; empty if the comparison was with the last run.
    """

    op: str = ""
    dtype: str = ""
    kernel: str = ""
    arch: str = ""
    entry: str = ""
    what: str = ""
    old: Json = None
    new: Json = None
    message: str = ""
    baseline: str = ""

    @property
    def subject(self) -> str:
        """Return the op and dtype, or the kernel and architecture, as text."""
        words = (self.op, self.dtype) if not self.kernel else ("kernel", self.entry, self.arch)
        return " ".join(filter(None, words))

    @property
    def sentence(self) -> str:
        """Describe in a sentence what got worse, by how much, and since when."""
        change = (
            self.message if self.kernel else f"{self.what} {_named(self.old)} -> {_named(self.new)}"
        )
        since = f"against {self.baseline}" if self.baseline else "since the last run"
        return f"{self.subject}: {change} {since}"

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON, including `sentence`."""
        return {**vars(self), "sentence": self.sentence}


def _named(value: Json) -> Json:
    return "none" if value is None else value
