"""Make subjects for requests on the wire, in any dtype, also for ops that cannot be run."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct, field, structs

from gpuemu_flow.build.compile import Compiler
from gpuemu_flow.build.files import FileTable, Stamp, stamp_of
from gpuemu_flow.build.graph import Graph
from gpuemu_flow.build.unordered import RuleOutputs
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.cases.op_schema import OpSchema
from gpuemu_flow.cases.plan import iterate_cases
from gpuemu_flow.config.model import OpConfig, Overrides
from gpuemu_flow.fuzz.subjects import OpTasks, build_code, make_subject, tasks_of
from gpuemu_flow.judge.subject import Subject
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import FlowError, Problem, UsageError
from gpuemu_flow.model.types import (
    IN_PROCESS,
    PRECISIONS,
    Case,
    ConfiguredEnv,
    InputSpec,
    Json,
    Observation,
    Tolerance,
)
from gpuemu_flow.store.failures import SUBMITTED
from gpuemu_flow.store.keys import Discovered, KnownInputs, Lookup, digest_json
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import TaskSpec
from gpuemu_flow.workers.api import DEFAULT_OUTPUT, Program
from gpuemu_flow.workers.script import kwarg_text

"""Kind of program for ops whose outputs clients send; no runner can run it."""


MAX_MADE = 1000
"""Maximum number of subjects per op and dtype, since each set of kwargs makes one."""

MOST_REMEMBERED = 64
"""Number of remembered observations of a program, since each of its warm workers has its own."""


class Query(Struct, frozen=True):
    """The op that a request asks for, and the changes that the request makes to it."""

    op: str
    dtype: str
    kwargs: Mapping[str, Json]
    tolerance: tuple[float, float] | None = None
    input_names: tuple[str, ...] = ()
    precision: str = ""

    def key(self) -> tuple[object, ...]:
        kwargs = tuple((name, repr(value)) for name, value in sorted(self.kwargs.items()))
        return (self.op, self.dtype, kwargs, self.tolerance, self.input_names, self.precision)


class WireInputs:
    """Files, variables and other inputs that one op's warm programs were seen to use.
    Thread-safe."""

    def __init__(
        self, known: KnownInputs, lookup: Lookup, names: Discovered, others: RuleOutputs
    ) -> None:
        self._known = known
        self._others = others
        self._lookup = lookup
        self._last: dict[str, deque[Observation]] = {}  # observations of several warm workers
        self._lock = threading.Lock()
        self._moved = False
        self._stored: Discovered | None = None
        self._digests: dict[str, tuple[dict[str, str], str]] = {}
        self.begun = lookup.now()
        self.names = names
        self.parts = lookup.parts(names)

    def learn(self, who: str, seen: Observation, given: ConfiguredEnv) -> bool:
        """Add the inputs that the program `who` was seen to use so far. `given` holds the
        environment variables that the program's configuration determines. Raises RunnerError:
        ``needs-missing``."""
        with self._lock:
            names = self.names
            last = self._last.setdefault(who, deque(maxlen=MOST_REMEMBERED))
            if not any(each is seen for each in last):
                used = self._lookup.discover(seen, given)
                self._others.refuse(used)
                last.append(seen)
                names |= used
            self._moved = self._moved or bool(self._lookup.moved(names, self.begun))
            if self._moved:
                return False
            parts = self._lookup.parts(names)
            if names == self.names:
                unchanged = parts == self.parts
            else:
                unchanged = self._lookup.parts(self.names) == self.parts
                self._moved = not unchanged  # the new parts do not match the loaded programs
                self.names, self.parts = names, parts
            if names != self._stored:  # also after an edit, which changes the key
                self._known.add(names)
                self._stored = names
            return unchanged

    def refuse(self, observed: Mapping[str, Observation]) -> None:
        """Raise an error if a program used the output of a rule that it does not wait for."""
        self._others.refuse_seen(observed, self._lookup)

    def digest_with(self, base: str) -> str:
        """Return the digest of `base` and of the states of all inputs."""
        known = self._digests.get(base)
        if known is None or known[0] is not self.parts:
            known = self._digests[base] = self.parts, digest_json([base, self.parts])
        return known[1]

    @property
    def moved(self) -> bool:
        return self._moved

    def hold(self) -> bool:
        """Tell whether all inputs are unchanged since the programs were loaded."""
        with self._lock:
            return not self._moved and self._lookup.parts(self.names) == self.parts


class WireSubject(Struct, frozen=True):
    """A subject with the digests of everything that it was made from."""

    subject: Subject
    key: str
    base: str
    seen: WireInputs

    @property
    def judged_by(self) -> str:
        """Return a digest of all facts known so far that decide a verdict, except the case. If an
        input was written to after observation began, the digest is unique, since the program may
        have read content that the input no longer has."""
        if self.seen.moved:
            return digest_json([self.base, "moved", self.seen.begun])
        return self.seen.digest_with(self.base)

    def learn(self, observed: Mapping[str, Observation]) -> bool:
        """Add the inputs that the programs ``op`` and ``reference`` were seen to use."""
        unchanged = [
            self.seen.learn(who, seen, self.subject.program(who).given)
            for who, seen in observed.items()
        ]
        return bool(unchanged) and all(unchanged)

    @property
    def output_name(self) -> str:
        names = self.subject.reference.output_names
        return names[0] if names else DEFAULT_OUTPUT


class _Compiled(Struct, frozen=True):
    """One op in one dtype, as compiled from the configuration at one time. `stamps` and `digests`
    hold the states that the op's files had at that time."""

    subject: Subject
    stamps: tuple[tuple[str, Stamp | None], ...]
    digests: tuple[str, ...]
    seen: WireInputs
    made: dict[tuple[object, ...], WireSubject] = field(default_factory=dict)


class Subjects:
    """Makes subjects (ops under test, with their settings) for requests on one configuration. An op
    is compiled again if one of its files has changed."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._config = workspace.config
        self._cache = workspace.cache
        self._root = workspace.root
        self._lookup = workspace.inputs
        self._environment = dict(workspace.environment)
        self._version = workspace.snapshot.basis.own_code
        self._compiled: dict[tuple[str, str], _Compiled] = {}
        self._lock = threading.Lock()

    def op(self, name: str) -> OpConfig:
        return self._config.op(name)

    def judged_by_table(self, name: str) -> bool:
        """Tell whether an op is judged by the documented table instead of a measured tolerance."""
        return self._config.op(name).tolerance != "auto"

    def make(self, query: Query, case: Case) -> WireSubject:
        compiled = self._current(query.op, query.dtype)
        key = query.key()
        samples = compiled.subject.samples
        plain = not query.kwargs and not query.input_names
        if not (plain and stand_for(self._config.op(query.op).schema, samples, case)):
            key = (*key, tuple(spec.shape for spec in case.inputs))
            samples = [case]
        known = compiled.made.get(key)
        if known is None:
            if len(compiled.made) >= MAX_MADE:
                compiled.made.clear()
            known = compiled.made[key] = self._make(query, compiled, key, samples)
        return known

    def judged_by(self, query: Query) -> str:
        compiled = self._current(query.op, query.dtype)
        return digest_json(
            [self._base(query, compiled, self._as_queried(query, compiled)), compiled.seen.parts]
        )

    def stamps(self, op: str, dtype: str) -> dict[str, Stamp | None]:
        """Map the path of each file that `judged_by` depends on to its stamp; None if missing."""
        compiled = self._current(op, dtype)
        names, lookup = compiled.seen.names, self._lookup
        paths = [lookup.path(member) for member in (*names.files, *names.missed)]
        return {**{path: stamp_of(path) for path in paths}, **dict(compiled.stamps)}

    def _base(self, query: Query, compiled: _Compiled, subject: Subject) -> str:
        parts = [
            msgspec.to_builtins(subject.reference),
            msgspec.to_builtins(subject.op),
            plain(subject.compare),
        ]
        samples = [case.identity() for case in subject.samples]
        made_of = [compiled.digests, self._environment, self._version, samples]
        return digest_json([repr(query.key()[1:]), *parts, *made_of])  # without the op's name

    def _as_queried(self, query: Query, compiled: _Compiled) -> Subject:
        """Return the op's subject, changed as `query` requests."""
        op, subject = self._config.op(query.op), compiled.subject
        kwargs = _typed(query.kwargs, op.kwargs, subject.reference.kind)
        names = query.input_names or subject.reference.input_names
        compare = subject.compare
        reference_dtype = subject.reference_dtype
        if query.tolerance is not None:
            atol, rtol = query.tolerance
            reference_dtype = op.reference_dtype
            explicit = {query.dtype: {"atol": atol, "rtol": rtol}}
            compare = msgspec.structs.replace(
                compare,
                tolerances=explicit,
                tolerances_from="call",
                reference_dtype=reference_dtype,
            )
        if query.precision:
            compare = msgspec.structs.replace(compare, precision=query.precision)

        def changed(program: Program) -> Program:
            return msgspec.structs.replace(
                program, kwargs={**op.kwargs, **kwargs}, input_names=names
            )

        return msgspec.structs.replace(
            subject,
            op=changed(subject.op),
            reference=changed(subject.reference),
            compare=compare,
            reference_dtype=reference_dtype,
        )

    def _make(
        self,
        query: Query,
        compiled: _Compiled,
        key: tuple[object, ...],
        samples: Sequence[Case],
    ) -> WireSubject:
        subject = self._as_queried(query, compiled)
        base = self._base(query, compiled, subject)
        # The time is part of the key: programs that were loaded before an edit are not used again,
        # even if the edit is undone.
        loaded = digest_json([repr(key), base, compiled.seen.begun])
        subject = msgspec.structs.replace(subject, samples=samples)
        return WireSubject(subject, loaded, base, compiled.seen)

    def _current(self, name: str, dtype: str) -> _Compiled:
        with self._lock:
            known = self._compiled.get((name, dtype))
            if (
                known is None
                or any(stamp_of(path) != stamp for path, stamp in known.stamps)
                or known.seen.moved
                or not known.seen.hold()
            ):
                known = self._compiled[name, dtype] = self._compile(self._config.op(name), dtype)
            return known

    def _compile(self, op: OpConfig, dtype: str) -> _Compiled:
        """Compile an op in one dtype as the graph's compiler does, even if the op cannot be run."""
        stand_in = structs.replace(op, op=op.op or op.reference, dtypes=(dtype,), skip_reason="")
        config = structs.replace(self._config, ops=(stand_in,), targets={})
        graph = Compiler(config, self._cache, Overrides(), self._version).graph()
        tasks = tasks_of(graph, op.name, dtype)
        subject = make_subject(tasks, planned_samples(tasks))
        if op.op is None:
            made = subject.op
            made = Program(SUBMITTED, root=made.root, input_names=made.input_names)
            subject = msgspec.structs.replace(subject, op=made)
        code = self._compiled_code(graph, (tasks.op, tasks.reference))
        sources = (*tasks.generate.sources, *tasks.op.sources, *tasks.reference.sources)
        files = sorted({*sources, *code})
        table = FileTable(self._root)
        digests = tuple(table.digest(path) for path in files)
        # Without the op's name, so that a renamed op keeps its digest.
        programs = [msgspec.to_builtins(subject.op), msgspec.to_builtins(subject.reference)]
        static = digest_json(["wire", programs, dtype, files, digests, self._version])
        inputs = KnownInputs(self._cache.actions, static, self._lookup)
        earlier = self._compiled.get((op.name, dtype))
        names = Discovered() if earlier is None else earlier.seen.names
        others = RuleOutputs.not_awaited(graph, self._root, op.name)
        for known in inputs.sets()[:1]:
            others.refuse(known)  # stored verdicts may be older than the rule
            names |= known
        return _Compiled(
            subject,
            tuple((str(self._root / path), stamp_of(self._root / path)) for path in files),
            digests,
            WireInputs(inputs, self._lookup, names, others),
        )

    def _compiled_code(self, graph: Graph, specs: Iterable[TaskSpec]) -> set[str]:
        """Build files that the tasks' programs need; return paths of sources, outputs and PTX."""
        found: set[str] = set()
        for spec in specs:
            build_code(self._workspace, spec, graph)
            for source in spec.inputs:
                if stages.is_needed(source.role):
                    for name in graph.upstream([source.task]):
                        found.update(graph.tasks[name].sources)
                        found.update(graph.tasks[name].outputs)
                if source.role == stages.CODE:
                    found.add(spec.settings["path"])
        return found


def _typed(given: Mapping[str, Json], configured: Mapping[str, Json], kind: str) -> dict[str, Json]:
    """Convert a request's keyword arguments from strings to other types where this is safe. The
    text of a number, a boolean or None is converted, unless `configured` sets the same argument to
    a string. A program whose kind is not in `IN_PROCESS` must receive the text that was sent. For
    such a program, a text is converted only if `kwarg_text` turns the value back into it."""
    typed = {}
    for name, value in given.items():
        typed[name] = value
        if isinstance(value, str) and not isinstance(configured.get(name), str):
            parsed = _parse(value)
            if kind in IN_PROCESS or kwarg_text(parsed) == value:
                typed[name] = parsed
    return typed


_MOST_SHOWN = 60
_WORDS: Mapping[str, Json] = {"True": True, "False": False, "None": None}


def _parse(text: str) -> Json:
    if text in _WORDS:
        return _WORDS[text]
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        return value if value - value == 0 else text
    return text


def tolerance_of(
    kwargs: dict[str, Json], op: OpConfig
) -> tuple[tuple[float, float] | None, dict[str, Json]]:
    """Take ``atol`` and ``rtol`` out of a request's kwargs, unless they name arguments of the op.
    The published client's adapters send tolerances in this way. The upstream daemon passes them on
    to the script, which then fails. The first result is (atol, rtol), or None if the request has
    neither. Raises ValueError: A tolerance is neither None nor a finite number of 0 or more."""
    rest = dict(kwargs)
    found = {}
    for name in ("atol", "rtol"):
        if name in rest and name not in op.kwargs:
            value = rest.pop(name)
            parsed = _parse(value) if isinstance(value, str) else value
            if parsed is None:
                continue
            number = isinstance(parsed, (int, float)) and not isinstance(parsed, bool)
            if not number or not 0 <= parsed < math.inf:
                shown = repr(value)[:_MOST_SHOWN]
                raise ValueError(f"{name} must be a finite number of 0 or more, not {shown}")
            found[name] = float(parsed)
    if not found:
        return None, rest
    default = Tolerance(0.0, 0.0)
    return (found.get("atol", default.atol), found.get("rtol", default.rtol)), rest


def precision_of(kwargs: Mapping[str, Json], op: OpConfig) -> tuple[str, dict[str, Json]]:
    """Take ``precision`` out of a request's kwargs, unless it names an argument of the op. The
    returned precision is empty if the request has none, or asks for the configured one. A value
    that names no precision stays in the kwargs, since some references have an argument called
    ``precision``."""
    rest = dict(kwargs)
    if "precision" in op.kwargs or rest.get("precision") not in PRECISIONS:
        return "", rest
    precision = str(rest.pop("precision"))
    return ("" if precision == op.precision else precision), rest


# Choose the cases on which an op's traits are found if a client sends inputs of its own.


TINY = 64
"""Number of elements below which a case shows no traits: softmax of one element is exact."""


def planned_samples(tasks: OpTasks) -> list[Case]:
    """Plan the cases on which ``run`` decides an op's traits, such as exactness. Return an empty
    list if the op's schema allows no such cases."""
    try:
        return tasks.samples()
    except FlowError:
        return []


def stand_for(schema: OpSchema, own: Sequence[Case], case: Case) -> bool:
    """Tell whether traits that were found on sample cases also hold for another case. The traits
    hold if the case's inputs fit the op's schema, or are too small to have other traits. If there
    are no sample cases (`own` is empty), the result is False."""
    return bool(own) and (fits(schema, case.inputs) or case.numel < TINY)


def fits(schema: OpSchema, inputs: Sequence[InputSpec]) -> bool:
    """Tell whether inputs match a schema's names, ranks and dims, each dim having only one size."""
    if [spec.name for spec in inputs] != [tensor.name for tensor in schema.inputs]:
        return False
    shapes = {spec.shape for spec in inputs}
    if len(shapes) == 1 and shapes <= set(schema.fixed_shapes):
        return True
    sizes: dict[str, int] = {}
    derived = {dim.name for dim in schema.derived}
    for spec, tensor in zip(inputs, schema.inputs, strict=True):
        if tensor.rule is not None and tensor.rule.optional and not any(spec.shape):
            continue  # the optional input is None
        if len(spec.shape) != len(tensor.dims):
            return False
        for size, dim in zip(spec.shape, tensor.dims, strict=True):
            wanted = dim if isinstance(dim, int) else sizes.setdefault(dim, size)
            if size != wanted:
                return False
    free = {name: size for name, size in sizes.items() if name not in derived}
    if schema.derived and free.keys() == {dim.name for dim in schema.dims}:
        return schema.allows(free) and sizes.items() <= schema.all_sizes(free).items()
    return True


# Look up the cases of an op by number, in the order in which ``run`` and ``fuzz`` use them.


MAX_SEQUENCES = 32
"""Maximum number of remembered sequences; others are planned again."""
MAX_INDEX = 200_000


class _Planned(Struct):
    """The cases of a sequence that have been planned so far, and an iterator for more."""

    more: Iterator[Case]
    cases: list[Case] = field(default_factory=list)


class PlannedCases:
    """Finds cases by op, sequence and number. Thread-safe."""

    def __init__(self) -> None:
        self._planned: OrderedDict[tuple[object, ...], _Planned] = OrderedDict()
        self._lock = threading.Lock()

    def case(
        self,
        op: OpConfig,
        index: int,
        *,
        dtype: str,
        seed: int,
        strategies: Sequence[str] = (),
        layouts: Sequence[str] = (),
    ) -> Case:
        """Return the case at `index` in the sequence of an op's cases. Raises UsageError:
        ``unknown-dtype``, ``unknown-strategy``, ``unknown-layout``, ``case-out- of-range``."""
        if not 0 <= index <= MAX_INDEX:
            text = f"there is no case {index} of {op.name}; they go up to {MAX_INDEX}"
            raise UsageError(Problem("case-out-of-range", text))
        what = tuple(strategies or op.strategies), tuple(layouts or op.layouts)
        key = (op.name, repr(op.schema), dtype, seed, *what)
        with self._lock:
            planned = self._planned.get(key)
            if planned is None:
                more = iterate_cases(
                    op.schema, seed=seed, dtype=dtype, strategies=what[0], layouts=what[1]
                )
                planned = self._planned[key] = _Planned(more)
                while len(self._planned) > MAX_SEQUENCES:
                    self._planned.popitem(last=False)
            else:
                self._planned.move_to_end(key)
            while len(planned.cases) <= index:
                planned.cases.append(next(planned.more))
            return planned.cases[index]
