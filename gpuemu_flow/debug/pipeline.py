"""Show the stages that a case goes through, and the result of each for the selected failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from gpuemu_flow.debug.tensors import describe
from gpuemu_flow.reports.failure_text import outcome_of
from gpuemu_flow.reports.text import Style, note_lines, number, printable, share
from gpuemu_flow.results.fuzz_model import Reproduction
from gpuemu_flow.store.failures import FailureRecord
from gpuemu_flow.types import Case, Verdict

STAGES = ("generate", "op", "reference", "compare")


class Steps(Protocol):
    """The interface from which `stage_lines` gets the data of the selected failure."""

    @property
    def selected(self) -> FailureRecord | None: ...
    @property
    def style(self) -> Style: ...

    def inputs(self) -> Mapping[str, NDArray[Any]]: ...
    def reproduction(self) -> Reproduction: ...


def stage_lines(stage: str, steps: Steps) -> Iterator[str]:
    """Yield lines of text about one stage: the name of its task, then its result."""
    record = steps.selected
    assert record is not None, "the session selects a failure first"  # noqa: S101
    yield steps.style.paint(f"{stage}:{record.op}:{record.dtype}", "1")
    yield from (f"  {line}" for line in _TELL[stage](record, steps))


def _generate(record: FailureRecord, steps: Steps) -> Iterator[str]:
    case = Case.from_json(record.case)
    target = f" of {case.target}" if case.target else ""
    yield f"seed {case.seed}  strategy {case.strategy}{target}  layout {case.layout}"
    if case.dims:
        yield "dims " + "  ".join(f"{name} = {size}" for name, size in dict(case.dims).items())
    yield from (describe(name, array) for name, array in steps.inputs().items())


def _op(record: FailureRecord, steps: Steps) -> Iterator[str]:
    yield from _outputs(steps.reproduction().actual, steps)


def _reference(record: FailureRecord, steps: Steps) -> Iterator[str]:
    yield from _outputs(steps.reproduction().expected, steps)


def _outputs(tensors: Mapping[str, NDArray[Any]], steps: Steps) -> Iterator[str]:
    if tensors:
        yield from (describe(name, array) for name, array in tensors.items())
        return
    yield "no outputs"
    for failure in steps.reproduction().result.failures:
        yield from printable(failure.message).splitlines()


def _compare(record: FailureRecord, steps: Steps) -> Iterator[str]:
    found = steps.reproduction()
    result, stats = found.result, found.result.stats
    verdict, word = outcome_of(found)
    yield steps.style.verdict(verdict) + (f": it {word}" if found.did_not_show else "")
    if stats.count:
        yield (
            f"{stats.num_exceeding} of {stats.count} elements exceed the tolerance; the worst uses "
            f"{share(stats.tolerance_used)} of it"
        )
        yield (
            f"max abs {number(stats.max_abs)}  max rel {number(stats.max_rel)}  "
            f"max ulp {number(stats.max_ulp)}  median abs {number(stats.p50_abs)}"
        )
    for failure in result.failures:
        yield f"{failure.kind.value}:"
        yield from (f"  {line}" for line in printable(failure.message).splitlines())
    if result.verdict is not Verdict.PASSED:
        yield from note_lines(result)


_TELL = {"generate": _generate, "op": _op, "reference": _reference, "compare": _compare}
