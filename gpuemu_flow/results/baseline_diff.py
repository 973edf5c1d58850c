"""Differences between a workspace and one of its baselines, as data."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from msgspec import to_builtins

from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.results.regressions import Regression
from gpuemu_flow.types import Json

if TYPE_CHECKING:
    from gpuemu_flow.artifacts.diff import KernelDiff
    from gpuemu_flow.store.baselines import Baseline

NEW, MISSING, UNCHANGED, CHANGED = "new", "missing", "unchanged", "changed"
REGRESSION = "regression"
GONE = "gone"
"""Value in place of a verdict if the op or dtype is no longer configured."""


@dataclass(frozen=True)
class ResultDiff:
    """The difference of an op's result in one dtype from the baseline.

    Attributes
    ----------
    op, dtype : str
    status : str
        ``new``, ``missing``, ``unchanged``, ``changed``, ``regression`` or ``improvement``.
    what : str
        What changed: ``verdict`` or ``max_abs``; empty if nothing changed.
    old, new : JSON
        The values in the baseline and now. None if there is no value; `GONE` as `new` if the op or
        dtype no longer exists.
    was : str
        The op's name in the baseline if it was renamed since; else empty.
    """

    op: str
    dtype: str
    status: str
    what: str = ""
    old: Json = None
    new: Json = None
    was: str = ""


@dataclass
class BaselineDiff:
    """All differences between a workspace and one baseline.

    Attributes
    ----------
    baseline : Baseline
    kernels : list of (str, KernelDiff)
        Pairs of a kernel's configured name and the difference of one of its entries.
    results : list of ResultDiff
    """

    baseline: Baseline
    kernels: list[tuple[str, KernelDiff]] = field(default_factory=list)
    results: list[ResultDiff] = field(default_factory=list)

    @property
    def has_regressions(self) -> bool:
        """Tell whether anything got worse."""
        return any(diff.is_regression for _, diff in self.kernels) or any(
            result.status == REGRESSION for result in self.results
        )

    def drop_missing(self) -> None:
        """Drop the items that only the baseline has.

        Call this if only a part of the workspace was requested, since all other items then look
        missing.
        """
        self.kernels = [(name, diff) for name, diff in self.kernels if diff.status != MISSING]
        self.results = [r for r in self.results if r.status != MISSING and r.new != GONE]

    def regressions(self) -> list[Regression]:
        """Return the regressions, first of ops, then of kernels."""
        tag = self.baseline.tag
        worse = [
            Regression(r.op, r.dtype, what=r.what, old=r.old, new=r.new, baseline=tag)
            for r in self.results
            if r.status == REGRESSION
        ]
        for kernel, diff in self.kernels:
            for judgement in diff.judgements:
                if judgement.kind == REGRESSION:
                    old, new = diff.figures(judgement.metric)
                    worse.append(
                        Regression(
                            kernel=kernel,
                            arch=diff.arch,
                            entry=diff.name,
                            what=judgement.metric,
                            old=old,
                            new=new,
                            message=judgement.message,
                            baseline=tag,
                        )
                    )
        return worse

    def to_json(self) -> dict[str, Json]:
        """Return the JSON that ``diff --format json`` prints."""
        return {
            "schema_version": 1,
            "baseline": {"tag": self.baseline.tag, "created": self.baseline.created},
            "has_regressions": self.has_regressions,
            "kernels": [{"kernel": name, **to_builtins(diff)} for name, diff in self.kernels],
            "results": [vars(result) for result in self.results],
        }
