"""The types of tasks, their parameters, and the context and results of their actions."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct, field

from gpuemu_flow.judge.subject import CompareParams
from gpuemu_flow.model import decoding
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import Case, Json
from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.keys import Discovered, Lookup
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.stages import OBSERVED
from gpuemu_flow.workers.api import Program

if TYPE_CHECKING:
    import numpy as np

    from gpuemu_flow.store.remote_cache import SharedCache
    from gpuemu_flow.workers.pool import Pool

    Arrays = Mapping[str, np.ndarray]

# The parts of the configuration that affect the results of tasks, with one class per stage.


class GenerateParams(Struct, frozen=True, kw_only=True):
    """Settings from which the cases are planned."""

    schema: Json
    layouts: list[str]
    strategies: list[str]
    count: int
    seed: int
    samples_seed: int
    dtype: str


class ProgramParams(Struct, frozen=True, kw_only=True):
    """A program, and its arguments."""

    ref: Json
    input_names: list[str]
    output_names: list[str]
    kwargs: Json
    env: dict[str, str]
    env_names: list[str]
    python: str | None = None
    groups: Json = None
    gradients: Json = None


class OpParams(ProgramParams, frozen=True, kw_only=True):
    """An op under test."""

    mutates: list[str]
    deterministic: bool
    require_kernel: bool
    forbid: list[str]
    sandbox: Mapping[str, Json]
    masks: Mapping[str, Json] = field(default_factory=dict)


class ReferenceParams(ProgramParams, frozen=True, kw_only=True):
    """A reference, and the `dtype` in which to run it. If `dtype` is None, the reference is run in
    float64. Cases for which this fails are run in their own dtype."""

    dtype: str | None = None


class DiffParams(Struct, frozen=True, kw_only=True):
    """The fraction by which an error may grow without being reported."""

    regression_threshold: float


class BuildParams(Struct, frozen=True, kw_only=True):
    """The source and the options of a kernel's build."""

    kind: str
    arch: str
    tools: list[list[str]]
    unusable: list[str]
    flags: list[str]
    source: str | None = None
    ptx: str | None = None
    cubin: str | None = None
    command: list[str] | None = None
    inputs: list[str] | None = None
    triton: Json = None
    triton_version: str | None = None
    headers: str | None = None
    host_compilers: list[str] | None = None
    sandbox: Mapping[str, Json] | None = None


class RuleParams(Struct, frozen=True, kw_only=True):
    """A rule's command and its outputs."""

    command: list[str]
    shell: bool
    outputs: list[str]
    env_names: list[str]
    sandbox: Mapping[str, Json]


class CodeParams(Struct, frozen=True, kw_only=True):
    """The architecture of the code to take from a build."""

    arch: str


class LintParams(Struct, frozen=True, kw_only=True):
    """The policy of a kernel's lint."""

    entry: str
    arch: str
    policy: Json
    threads: int
    versions: list[int]
    dynamic_shared_bytes: int | None = None


class KernelDiffParams(Struct, frozen=True, kw_only=True):
    """Instructions whose first appearance is a regression."""

    forbidden: list[str]


P = TypeVar("P")


def plain(params: Struct) -> dict[str, Json]:
    """Return parameters as tasks, their keys and the stored graph contain them: as plain JSON."""
    found: dict[str, Json] = decoding.plain(params)
    if isinstance(params, CompareParams):
        return found
    return {name: value for name, value in found.items() if value is not None}


def params_of(kind: type[P], params: Mapping[str, Json]) -> P:
    """Return a task's parameters as a struct; raise an error if they are of another stage."""
    return convert(params, kind)


RECORD, MADE_FROM, RESULT = "task:", "from:", "result:"
"""What the keys of a task's three rows begin with."""


class TaskInput(Struct, frozen=True):
    """Another task whose result a task reads."""

    role: str
    task: str


class TaskSpec(Struct, frozen=True):
    """One task of the graph; `params` are the `plain` parameters of its stage."""

    name: str
    stage: str
    version: str
    subject: str
    dtype: str
    sources: tuple[str, ...]
    inputs: tuple[TaskInput, ...]
    params: dict[str, Json]
    settings: Json
    packages: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    judge: str = ""
    known: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        return [source.task for source in self.inputs]

    @property
    def wavers(self) -> bool:
        """Tell whether the task can be stale although nothing that it was seen to use changed. Its
        outputs in the workspace may be edited, or packages of an unobserved program upgraded."""
        return bool(self.outputs) or bool(self.packages and self.stage not in OBSERVED)


class Progress(Struct, frozen=True):
    """Progress of a task: `done` of `total` cases have ended; `fresh` of these were executed."""

    task: str
    done: int
    total: int
    fresh: int


MOST_TENSOR_BYTES = 64 << 20


class CaseTensors:
    """The inputs and outputs that were made last. Thread-safe; nobody may write to the arrays."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes | str, tuple[Arrays, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def drawing(self, cases: Sequence[Case]) -> Callable[[Case], Arrays]:
        """Return a function that returns the values of the inputs of one of the cases. Its first
        call draws the small ones of all, since together they are drawn faster."""
        from gpuemu_flow.cases.generate import all_values, drawn_together  # noqa: PLC0415 - numpy

        together = [*cases]

        def draw(case: Case) -> Arrays:
            if together:
                missing = {key: one for one in together if (key := _key(one)) not in self._kept}
                together.clear()
                for key, values in zip(missing, drawn_together([*missing.values()]), strict=True):
                    self._keep(key, values)
            key = _key(case)
            known = self._get(key) or {}
            if len(known) == len(case.inputs):
                return known
            return self._keep(key, all_values(case, known))

        return draw

    def keep_outputs(self, digest: str, outputs: Arrays) -> None:
        self._keep(digest, outputs)

    def outputs(self, digest: str) -> Arrays | None:
        return self._get(digest)

    def _get(self, key: bytes | str) -> Arrays | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def _keep(self, key: bytes | str, arrays: Arrays) -> Arrays:
        size = sum(array.nbytes for array in arrays.values())
        with self._lock:
            self._bytes += size - self._kept.pop(key, ({}, 0))[1]
            self._kept[key] = arrays, size
            while self._bytes > MOST_TENSOR_BYTES:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        return arrays


def _key(case: Case) -> bytes:
    return msgspec.json.encode(case)


class StageContext(Struct):
    """The tools and settings that an action gets."""

    root: Path
    cache: WorkspaceCache
    pool: Pool
    environment: Mapping[str, str]
    inputs: Lookup
    tensors: CaseTensors = field(default_factory=CaseTensors)
    packages: Mapping[str, str] = field(default_factory=dict)
    cancel: threading.Event = field(default_factory=threading.Event)
    on_progress: Callable[[Progress], None] = lambda _: None
    on_wait: Callable[[str], None] = lambda _: None
    force: bool = False
    unchanged: Callable[[], bool] = lambda: True
    shared: SharedCache | None = None
    results: dict[str, Mapping[str, object]] = field(default_factory=dict)
    """The contents that this run stored last, by task: as they were made, to be read only."""

    def result(self, task: str, stage: str) -> Mapping[str, Any]:
        """Return a task's result as `read_result` does, from memory if it was made just now."""
        made = self.results.get(task)
        return read_result(self.cache, task, stage) if made is None else made


class StageResult(Struct, frozen=True):
    """What an action returns to the engine; `content` is what other tasks and reports read, which
    may hold structs that are stored as objects."""

    content: Mapping[str, object]
    complete: bool = True
    executed: bool = True
    values: Mapping[str, Json] = field(default_factory=dict)
    discovered: Discovered = field(default_factory=Discovered)


def program_of(settings: Mapping[str, Json]) -> Program:
    """Return the program in a task's settings, with links in its path resolved; see `resolved`."""
    return resolved(convert(settings, Program))


def resolved(program: Program) -> Program:
    """Return a program with the links in its path resolved. A program of kind ``command`` is
    returned unchanged."""
    if not program.path or program.kind == "command":
        return program  # an executable may depend on the name by which it was called
    return msgspec.structs.replace(program, path=os.path.realpath(program.path))


class Interrupted(Exception):  # noqa: N818 - an event, not an error
    """Raised when the run was cancelled while this action was running."""


def output_state(digest: str, *, executable: bool) -> str:
    """Return the text that records store about an output file: its digest and executable bit."""
    return f"{digest} executable" if executable else digest


def read_result(cache: WorkspaceCache, task: str, stage: str) -> dict[str, Json]:
    """Return the stored result of a task. Raises StoreError: ``cache-result`` if there is none, or
    it belongs to another stage."""
    content = cache.state.get(RESULT + task)
    if isinstance(content, dict) and content.get("stage") == stage:
        return content
    if cache.state.among([RECORD + task]):
        cache.state.delete(RECORD + task)  # so that the task runs again
        cache.lost.add(task)
    raise StoreError(
        Problem(
            "cache-result",
            f"there is no result of {task}, or none that can be read",
            "run again; the task that makes it will",
            file=str(cache.folder),
        )
    )


def read_planned(spec: TaskSpec, context: StageContext) -> tuple[list[Case], list[Case]]:
    """Read the cases of an op and dtype."""
    source = next(i for i in spec.inputs if i.role == stages.GENERATE)
    planned = context.result(source.task, stages.GENERATE)
    return convert(planned["cases"], list[Case]), convert(planned["samples"], list[Case])
