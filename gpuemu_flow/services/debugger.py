"""The debugger: its commands, what is selected, what is shown of tensors, and its terminal."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from gpuemu_flow.build.signals import TerminatedError, cancel_on_signals
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz import failures
from gpuemu_flow.fuzz.exporting import export_pytest
from gpuemu_flow.fuzz.minimizing import minimise_failure
from gpuemu_flow.judge.fuzz_results import Reproduction
from gpuemu_flow.model.errors import CancelledRunError, FlowError, Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import Shape, Verdict
from gpuemu_flow.numerics.dtypes import to_float64
from gpuemu_flow.report import failure_text
from gpuemu_flow.report.failure_text import outcome_of
from gpuemu_flow.report.minimal import minimal_of
from gpuemu_flow.report.pictures import heat_map
from gpuemu_flow.report.text import Style, note_lines, number, plural, printable, share
from gpuemu_flow.store.failures import FailureRecord, FailureStore

# Tensors in the debugger: their names and slices, what is shown of them, and its errors.


def unknown_command(word: str, known: tuple[str, ...]) -> UsageError:
    hint = did_you_mean(word, known)
    return UsageError(Problem("debug-unknown-command", f"no command {word!r}", hint))


def bad_arguments(usage: str) -> UsageError:
    return UsageError(Problem("debug-bad-arguments", f"it is used as: {usage}"))


def nothing_selected() -> UsageError:
    hint = "`list` lists failures, `show SEED` selects one"
    return UsageError(Problem("debug-no-failure", "no failure is selected", hint))


def bad_slice(text: str, reason: str) -> UsageError:
    hint = "NAME[1, 0:4, ::2] with integers only"
    return UsageError(Problem("debug-bad-slice", f"{text!r}: {reason}", hint))


def unknown_tensor(name: str, known: tuple[str, ...]) -> UsageError:
    hint = did_you_mean(name, known)
    return UsageError(Problem("debug-unknown-tensor", f"no tensor {name!r}", hint))


def shapes_differ(first: object, second: object) -> UsageError:
    message = f"tensors of the shapes {first} and {second} cannot be compared"
    return UsageError(Problem("debug-shapes-differ", message, "take slices of one shape"))


Index: TypeAlias = "int | slice | EllipsisType"

_WORD = re.compile(r"(?P<name>[^\[\]\s]+)(?:\s*\[(?P<parts>[^\[\]]*)\])?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def parse_tensors(text: str) -> list[tuple[str, tuple[Index, ...]]]:
    """Return the names in a text, each with its indices or (). Raises UsageError."""
    found = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _WORD.match(text, position)
        if match is None:
            raise bad_slice(text, "a bracket without its partner")
        parts = match["parts"]
        found.append((match["name"], () if parts is None else _parse_parts(match[0], parts)))
        position = match.end()
        rest = text[position:]
        if rest and not rest[0].isspace():
            lone = "a bracket without its partner"
            raise bad_slice(text, lone if rest[0] in "[]" else f"unexpected {rest[0]!r}")
        position += len(rest) - len(rest.lstrip())
    return found


def _parse_parts(text: str, parts: str) -> tuple[Index, ...]:
    if not parts.strip():
        raise bad_slice(text, "nothing between the brackets")
    indices = tuple(_parse_part(text, part.strip()) for part in parts.split(","))
    if sum(index is ... for index in indices) > 1:
        raise bad_slice(text, "more than one ellipsis")
    return indices


def _parse_part(text: str, part: str) -> Index:
    if part == "...":
        return ...
    if ":" not in part:
        return _integer(text, part)
    bounds = [_integer(text, b.strip()) if b.strip() else None for b in part.split(":")]
    if len(bounds) > 3:
        raise bad_slice(text, f"{part!r} has more than start:stop:step")
    if len(bounds) == 3 and bounds[2] == 0:
        raise bad_slice(text, "a step of 0")
    return slice(*bounds)


def _integer(text: str, part: str) -> int:
    if not _INTEGER.fullmatch(part):
        raise bad_slice(text, f"{part!r} is no integer" if part else "an empty index")
    return int(part)


def check_slice(text: str, indices: tuple[Index, ...], shape: Shape) -> None:
    """Raise an error if a tensor of this shape does not have these indices. Slices may exceed the
    shape, as in numpy. `text` is only for the message."""
    given = [index for index in indices if index is not ...]
    if len(given) > len(shape):
        raise bad_slice(text, f"{len(given)} indices for the shape {list(shape)}")
    before = indices.index(...) if ... in indices else len(indices)
    sizes = (*shape[:before], *shape[len(shape) - (len(given) - before) :])
    for index, size in zip(given, sizes, strict=False):
        if isinstance(index, int) and not -size <= index < size:
            raise bad_slice(text, f"{index} is out of range for a dim of {size}")


Array = NDArray[Any]

SHOWN = 400
_LEVELS = " .:-=#!"
_LEGEND = (
    "'#' over 1/10 of the largest difference, '=' over 1/100, '-' over 1/1000, ':' over 1/10000, "
    "'.' less, ' ' equal, '!' NaN or Inf in one of them only"
)
_DECADES = (1e-4, 1e-3, 1e-2, 1e-1)
_SHARES = (0.05, 0.3, 0.9, 5.0, 100.0)  # one value for each level that `heat_map` draws
_NEVER_EQUAL = np.inf


def describe(name: str, array: Array) -> str:
    """Describe a tensor in one line: dtype, shape, range, mean, and numbers of NaN and Inf. Strides
    are shown, too, unless they are in C order."""
    words = f"{printable(name)}  {array.dtype.name}{list(array.shape)}"
    if array.size > 1 and not array.flags.c_contiguous:
        steps = [step // array.itemsize for step in array.strides]
        words += f"  strides {steps}"
    values = to_float64(array)
    finite = values[np.isfinite(values)]
    if finite.size:
        low, high, mean = float(finite.min()), float(finite.max()), float(finite.mean())
        words += f"  min {low:.9g}  max {high:.9g}  mean {mean:.9g}"
    for what, count in (
        ("NaN", np.isnan(values).sum()),
        ("Inf", np.isinf(values).sum()),
    ):
        words += f"  {count} {what}" if count else ""
    return words


def value_lines(array: Array) -> list[str]:
    """Return a tensor's values as lines of text; of very many, the first and last of each dim."""
    shown = to_float64(array) if array.dtype.kind == "V" else array
    digits = 5 if array.itemsize <= 2 else 17 if array.itemsize == 8 else 9
    with np.printoptions(threshold=SHOWN, edgeitems=4, linewidth=100, precision=digits):
        return str(np.asarray(shown)).splitlines()


def difference_lines(names: tuple[str, str], first: Array, second: Array) -> list[str]:
    """Return lines of text that compare two tensors. They show the number of elements that differ,
    the largest difference, and a map of all differences. Raises UsageError:
    ``debug-shapes-differ``."""
    if first.shape != second.shape:
        raise shapes_differ(list(first.shape), list(second.shape))
    heading = f"{printable(' against '.join(names))}, {list(first.shape)}"
    if not first.size:
        return [f"{heading}: no elements"]
    a, b = to_float64(first), to_float64(second)
    with np.errstate(all="ignore"):
        error = np.array(np.abs(a - b))  # otherwise a 0-d difference is no array
    error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
    error[np.isnan(error)] = _NEVER_EQUAL
    differ = int((error > 0).sum())
    if not differ:
        return [f"{heading}: equal"]
    worst = np.unravel_index(int(error.argmax()), error.shape)
    place = [int(i) for i in worst]
    finite = error[np.isfinite(error)]
    largest = float(finite.max()) if finite.size else 0.0
    share = np.zeros(error.shape)
    if largest > 0:
        level = np.searchsorted(np.array(_DECADES), error / largest, side="left")
        share = np.where(error > 0, np.array(_SHARES)[level], 0.0)
    share[~np.isfinite(error)] = 1e9
    rows, fold = heat_map(share)
    return [
        f"{heading}: {differ} of {error.size} elements differ",
        f"largest {number(float(error[worst]))} at {place}: {a[worst]:.9g} against {b[worst]:.9g}",
        fold,
        *("|" + "".join(_LEVELS[int(c)] for c in row) + "|" for row in rows),
        _LEGEND,
    ]


# The debugger's commands: what each says, one line after the other, and what is selected.

# Show the stages that a case goes through, and the result of each for the selected failure.


STAGES = ("generate", "op", "reference", "compare")


def stage_lines(stage: str, steps: DebugSession) -> Iterator[str]:
    """Yield lines of text about one stage: the name of its task, then its result."""
    record = steps.selected
    assert record is not None, "the session selects a failure first"  # noqa: S101
    yield steps.style.paint(f"{stage}:{record.op}:{record.dtype}", "1")
    yield from (f"  {line}" for line in _TELL[stage](record, steps))


def _generate(record: FailureRecord, steps: DebugSession) -> Iterator[str]:
    case = record.case
    target = f" of {case.target}" if case.target else ""
    yield f"seed {case.seed}  strategy {case.strategy}{target}  layout {case.layout}"
    if case.dims:
        yield "dims " + "  ".join(f"{name} = {size}" for name, size in dict(case.dims).items())
    yield from (describe(name, array) for name, array in steps.inputs().items())


def _op(record: FailureRecord, steps: DebugSession) -> Iterator[str]:
    yield from _outputs(steps.reproduction().actual, steps)


def _reference(record: FailureRecord, steps: DebugSession) -> Iterator[str]:
    yield from _outputs(steps.reproduction().expected, steps)


def _outputs(tensors: Mapping[str, NDArray[Any]], steps: DebugSession) -> Iterator[str]:
    if tensors:
        yield from (describe(name, array) for name, array in tensors.items())
        return
    yield "no outputs"
    for failure in steps.reproduction().result.failures:
        yield from printable(failure.message).splitlines()


def _compare(record: FailureRecord, steps: DebugSession) -> Iterator[str]:
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


class Command(Struct, frozen=True):
    """A command of the debugger."""

    name: str
    aliases: tuple[str, ...]
    usage: str
    summary: str


COMMANDS = (
    Command("list", ("ls",), "list [LIMIT]", "failures, newest first"),
    Command("show", ("s",), "show [SEED|ID]", "one failure; it is then the selected one"),
    Command("reproduce", ("repro", "r"), "reproduce [SEED|ID]", "run it again as the op is now"),
    Command("step", ("n", "next"), f"step [{'|'.join(STAGES)}|all]",
            "the next stage of the pipeline, and what came out of it"),
    Command("tensor", ("t",), "tensor [NAME[SLICE]]", "values, as in `tensor actual[0, 1:4]`"),
    Command("diff", ("d",), "diff [A B]", "a map of where two tensors differ"),
    Command("minimize", ("min",), "minimize [SEED|ID]", "the smallest case that fails alike"),
    Command("export", ("e",), "export [SEED|ID] [FILE]", "a test file that needs numpy alone"),
    Command("status", (), "status", "the workspace and the selected failure"),
    Command("refresh", (), "refresh", "read failures anew and forget what was run"),
    Command("clear", (), "clear", "clear the screen"),
    Command("help", ("h", "?"), "help", "this list"),
    Command("quit", ("exit", "q"), "quit", "leave; so does the end of the input"),
)  # fmt: skip
BY_WORD = {word: c for c in COMMANDS for word in (c.name, *c.aliases)}


LISTED = 20
MINIMIZE_RUNS = 2000


@contextmanager
def _cancellable() -> Iterator[Event]:
    """Yield an event that is set by Ctrl-C, to cancel the work inside the context. When the work
    ends as cancelled, KeyboardInterrupt is raised."""
    with cancel_on_signals() as cancel:
        try:
            yield cancel
        except CancelledRunError:
            raise KeyboardInterrupt from None


class Quit(Exception):  # noqa: N818 - not an error
    """Raised by the command that ends the session."""


class DebugSession(Struct):
    """One debugging session in one workspace."""

    # The op to whose failures the commands are limited; None for all ops.
    op: str | None = None
    style: Style = field(default_factory=Style)
    # The failure to which commands without a seed or id refer.
    selected: FailureRecord | None = None
    _inputs: Mapping[str, NDArray[Any]] | None = None
    _found: Reproduction | None = None
    _stage: int = 0

    @property
    def prompt(self) -> str:
        chosen = self.selected
        return f"{printable(chosen.op)} {chosen.seed}> " if chosen else "gpuemu-flow> "

    @property
    def exit_code(self) -> int:
        return 4 if self._found is None else self._found.exit_code

    @property
    def has_outputs(self) -> bool:
        found = self._found
        return found is not None and any(name in found.expected for name in found.actual)

    def execute(self, line: str) -> Iterator[str]:
        word, _, rest = line.strip().partition(" ")
        if not word:
            return
        command = BY_WORD.get(word)
        if command is None:
            raise unknown_command(word[:80], tuple(BY_WORD))
        yield from getattr(self, f"_{command.name}")(rest.strip())

    def _records(self) -> tuple[FailureRecord, ...]:
        return FailureStore(Workspace().cache).list(self.op)

    def _select(self, word: str) -> FailureRecord:
        if word:
            record = failures.find_failure(Workspace(), word, self.op)
            if self.selected is None or record.id != self.selected.id:
                self._forget()
            self.selected = record
        if self.selected is None:
            raise nothing_selected()
        return self.selected

    def _forget(self) -> None:
        self._inputs, self._found, self._stage = None, None, 0

    def inputs(self) -> Mapping[str, NDArray[Any]]:
        record = self._select("")
        if self._inputs is None:
            self._inputs = failures.stored_inputs(FailureStore(Workspace().cache), record)
        return self._inputs

    def reproduction(self) -> Reproduction:
        """Return the result of running the selected failure again. The failure is run on first use,
        and the result is kept. The command `reproduce` or `refresh` discards it, and so does the
        selection of another failure."""
        record = self._select("")
        if self._found is None:
            with _cancellable() as cancel:
                (self._found,) = failures.reproduce(Workspace(), [record], cancel=cancel)
        return self._found

    def _list(self, rest: str) -> Iterator[str]:
        if rest and not (rest.isascii() and rest.isdecimal() and int(rest[:9]) > 0):
            raise bad_arguments(BY_WORD["list"].usage)
        records = self._records()
        shown = records[: int(rest[:9]) if rest else LISTED]
        yield from (failure_text.failure_row(record) for record in shown)
        of = f" of {self.op}" if self.op else ""
        more = f", {len(shown)} shown" if len(shown) < len(records) else ""
        yield f"{plural(len(records), 'failure')}{of}{more}"

    def _show(self, rest: str) -> Iterator[str]:
        record = self._select(rest)
        yield failure_text.render_failure(record, minimal_of(Workspace(), record), self.style)

    def _reproduce(self, rest: str) -> Iterator[str]:
        self._select(rest)
        self._forget()
        found = self.reproduction()
        minimal = minimal_of(Workspace(), found.record)
        yield failure_text.render_reproduction(found, minimal, self.style, verbose=False)

    def _step(self, rest: str) -> Iterator[str]:
        self._select("")
        if rest and rest != "all" and rest not in STAGES:
            raise bad_arguments(BY_WORD["step"].usage)
        stages = STAGES if rest == "all" else (rest or STAGES[self._stage],)
        for stage in stages:
            yield from stage_lines(stage, self)
            self._stage = (STAGES.index(stage) + 1) % len(STAGES)

    def _tensor(self, rest: str) -> Iterator[str]:
        self._select("")
        named = parse_tensors(rest)
        if not named:
            yield from (describe(name, array) for name, array in self.inputs().items())
            found = self.reproduction()
            for side, tensors in (("actual", found.actual), ("expected", found.expected)):
                yield from (describe(f"{side}.{name}", array) for name, array in tensors.items())
        for name, indices in named:
            part = self._part(name, indices)
            yield describe(name, part)
            yield from (f"  {line}" for line in value_lines(part))

    def _diff(self, rest: str) -> Iterator[str]:
        self._select("")
        named = parse_tensors(rest)
        if len(named) not in (0, 2):
            raise bad_arguments(BY_WORD["diff"].usage)
        if not named:
            output = self._failing_output()
            named = [(f"actual.{output}", ()), (f"expected.{output}", ())]
        first, second = named
        yield from difference_lines((first[0], second[0]), self._part(*first), self._part(*second))

    def _failing_output(self) -> str:
        found = self.reproduction()
        both = [name for name in found.actual if name in found.expected]
        wrong = [f.output for f in found.result.failures if f.output in both]
        if not both:
            raise unknown_tensor("actual", tuple(self.inputs()))
        return wrong[0] if wrong else both[0]

    def _part(self, name: str, indices: tuple[Index, ...]) -> NDArray[Any]:
        array = self._named(name)
        check_slice(name, indices, array.shape)
        part: NDArray[Any] = array[indices] if indices else array
        return part

    def _named(self, name: str) -> NDArray[Any]:
        inputs = self.inputs()
        if name.removeprefix("input.") in inputs:
            return inputs[name.removeprefix("input.")]
        found = self.reproduction()
        for side, tensors in (("actual", found.actual), ("expected", found.expected)):
            if name == side and len(tensors) == 1:
                return next(iter(tensors.values()))
            if name.startswith(f"{side}.") and name.partition(".")[2] in tensors:
                return tensors[name.partition(".")[2]]
        raise unknown_tensor(name, self._tensor_names())

    def _tensor_names(self) -> tuple[str, ...]:
        """Return the names of the failure's tensors; outputs once the failure was reproduced."""
        names = list(self.selected.shapes) if self.selected else []
        found = self._found
        for side, tensors in (
            ("actual", found.actual if found else {}), ("expected", found.expected if found else {})
        ):  # fmt: skip
            names += [f"{side}.{name}" for name in tensors]
            names += [side] if len(tensors) == 1 or found is None else []
        return tuple(names)

    def _minimize(self, rest: str) -> Iterator[str]:
        record = self._select(rest)
        workspace = Workspace()
        with _cancellable() as cancel:
            found = minimise_failure(
                workspace, record, strategy="all", budget=MINIMIZE_RUNS, cancel=cancel
            )
        smaller = found.minimized
        minimal = None if smaller is None else minimal_of(workspace, smaller)
        yield failure_text.render_minimization(found, minimal, self.style)
        if found.minimized is not None:
            self._forget()
            self.selected = found.minimized

    def _export(self, rest: str) -> Iterator[str]:
        try:
            words = shlex.split(rest)
        except ValueError:
            words = [rest] * 3
        if len(words) > 2:
            raise bad_arguments(BY_WORD["export"].usage)
        record = self._select(words[0] if words else "")
        output = Path(words[1]) if len(words) > 1 else None
        yield f"wrote {export_pytest(Workspace(), record, output)}"

    def _status(self, rest: str) -> Iterator[str]:
        workspace = Workspace()
        yield f"workspace  {workspace.root}"
        of = f" of {self.op}" if self.op else ""
        yield f"failures   {len(FailureStore(workspace.cache).list(self.op))}{of}"
        if self.selected is None:
            yield "selected   none"
            return
        record = self.selected
        yield f"selected   {record.id}: {record.op} {record.dtype} {record.kind}"
        yield f"next stage {STAGES[self._stage]}"

    def _refresh(self, rest: str) -> Iterator[str]:
        self._forget()
        if self.selected is not None:
            try:
                self.selected = FailureStore(Workspace().cache).get(self.selected.id)
            except FlowError:
                self.selected = None
        yield f"{plural(len(self._records()), 'failure')} kept"

    def _clear(self, rest: str) -> Iterator[str]:
        if self.style.color:
            yield "\x1b[2J\x1b[H"

    def _help(self, rest: str) -> Iterator[str]:
        width = max(len(c.usage) for c in COMMANDS)
        for command in COMMANDS:
            aliases = f" ({', '.join(command.aliases)})" if command.aliases else ""
            yield f"{command.usage:{width}}  {command.summary}{aliases}"
        yield "tensors: an input's name, actual.NAME, expected.NAME; slices as numpy has them"

    def _quit(self, rest: str) -> Iterator[str]:
        raise Quit
        yield  # a generator, as all actions are


# Read commands from a terminal or from a pipe.


def run_repl(
    session: DebugSession,
    write: Callable[[str], None],
    complain: Callable[[str], None],
    *,
    typed: bool,
) -> int:
    """Execute the lines of standard input until it ends; ask for them if they are `typed`."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - arrow keys; absent from some builds of Python
    code = 0
    while True:
        try:
            line = input(session.prompt) if typed else sys.stdin.readline()
            if not (line or typed):
                return code
            for answer in session.execute(line):
                write(answer)
        except (Quit, EOFError):
            return code
        except FlowError as error:
            code = code or error.exit_code
            for problem in error.problems:
                complain(printable(str(problem)))
        except KeyboardInterrupt as stop:
            if not typed or isinstance(stop, TerminatedError):
                raise
            complain("\ninterrupted")
