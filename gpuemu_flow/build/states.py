"""States of tasks. A task is current if its present key equals the key of its last success."""

from __future__ import annotations

import copy
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct, ValidationError, to_builtins
from msgspec.structs import replace

from gpuemu_flow.build.discovery import Discovery
from gpuemu_flow.build.files import ABSENT, FileTable, package_version, without_installed
from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.cache import WorkspaceCache, sealed
from gpuemu_flow.store.keys import (
    OBSERVED,
    TRIGGERS,
    BuildReason,
    Discovered,
    KeyParts,
    Lookup,
    changed_parts,
    digest_bytes,
    encoded,
)
from gpuemu_flow.tasks import stages
from gpuemu_flow.tasks.base import MADE_FROM, RECORD, RESULT, StageResult, TaskSpec, output_state

# Hide from an op the files that its reference was seen to use.
#
# The files that a reference opens, or imports by computed names, are known only after it ran. So an
# op waits for its reference if both have to run. An op that could read such a file is run again,
# without access to it, before it is judged.

_ROLE = "hidden "
_HIDDEN = "hidden"


def revealed(used: Discovered, known: Sequence[str], root: Path) -> list[str]:
    """Return the workspace files that a reference used and that are not in `known`, sorted."""
    inside = {name for name in used.files if not name.startswith(("/", "<", ".."))}
    return sorted(name for name in without_installed(inside, known) if (root / name).is_file())


def as_inputs(hidden: Sequence[str]) -> dict[str, str]:
    """Convert the names of hidden files to entries of `KeyParts.input`."""
    return {_ROLE + name: _HIDDEN for name in hidden}


def hidden_by(inputs: Mapping[str, str]) -> list[str]:
    """Return the names of the hidden files in `KeyParts.input`; the inverse of `as_inputs`."""
    return [role.removeprefix(_ROLE) for role in inputs if role.startswith(_ROLE)]


def without(settings: Json, hidden: Sequence[str], root: Path) -> Json:
    """Return a program's settings, with `hidden` added to the files that it must not read."""
    if not hidden:
        return settings
    paths = [str(root / name) for name in hidden]
    fence = settings.get("sandbox")
    if fence is None:
        return settings
    return {**settings, "sandbox": {**fence, "hidden": [*fence["hidden"], *paths]}}


def without_hidden(stage: str, settings: Json, parts: KeyParts, root: Path) -> Json:
    """Return a task's settings, changed so that the op cannot read the hidden files in `parts`."""
    hidden = hidden_by(parts.input)
    if stage == stages.OP:
        return without(settings, hidden, root)
    return {**settings, "op": without(settings["op"], hidden, root)} if hidden else settings


RECORD_VERSION = 5
_MAX_CACHED = 512
"""Number of records to keep in memory. Tasks of one op run in a row and read each other's records,
and all are looked at again at the end of a run."""


class TaskRecord(Struct, frozen=True):
    """What a task's last success gave; `digest` is that of its result."""

    digest: str
    complete: bool
    values: Mapping[str, Json]
    time: float
    version: int = RECORD_VERSION


class MadeFrom(Struct, frozen=True):
    """The parts of the key of a task's last success, and the inputs that its program used. They are
    many, and needed only for a task that may have changed: so they have a row for themselves."""

    parts: Mapping[str, Json]
    inputs: Json
    version: int = RECORD_VERSION

    @property
    def discovered(self) -> Discovered:
        """Return the inputs that the task's program was seen to use."""
        try:
            return convert(self.inputs, Discovered)
        except (KeyError, ValueError):
            return Discovered()

    @property
    def observed(self) -> Mapping[str, str]:
        """Return the states that the discovered inputs had at the last success."""
        return KeyParts(**self.parts).observed


R = TypeVar("R", TaskRecord, MadeFrom)


def _known(row: Json, kind: type[R]) -> R | None:
    try:
        found = convert(row, kind)
    except ValidationError:  # none, or of another version
        return None
    return found if found.version == RECORD_VERSION else None


class TaskStates:
    """The last success and the present key of each task."""

    def __init__(
        self,
        cache: WorkspaceCache,
        files: FileTable,
        environment: Mapping[str, str],
        triggers: Iterable[str] = TRIGGERS,
        inputs: Lookup | None = None,
    ) -> None:
        self._cache = cache
        self._files = files
        self._environment = dict(environment)
        self._triggers = tuple(triggers)
        self._inputs: Lookup = inputs or Discovery(files)
        self._versions: dict[str, str] = {}
        self._cached: dict[str, TaskRecord | MadeFrom | None] | None = None
        self._lock = threading.Lock()
        self._digests: dict[str, str] = {}

    def counting(self, triggers: Iterable[str]) -> TaskStates:
        """Return these states, where only changes of the kinds in `triggers` count."""
        found = copy.copy(self)
        found._triggers = tuple(triggers)
        return found

    def finished(self, names: Iterable[str]) -> set[str]:
        """Return those of the tasks `names` that have a record of a success."""
        recorded = {key[len(RECORD) :] for key in self._cache.state.keys_from(RECORD)}
        return recorded.intersection(names)

    def digest(self, name: str) -> str:
        """Return the digest of a task's last result; `ABSENT` without a record of a success."""
        if name not in self._digests:
            record = self.record(name)
            self._digests[name] = ABSENT if record is None else record.digest
        return self._digests[name]

    def parts(self, spec: TaskSpec) -> KeyParts:
        """Collect the present values of everything that decides whether `spec` must run."""
        made = self.made_from(spec.name) if spec.stage in stages.RECORDING else None
        static = self.static_parts(spec)
        if made is None:
            return static
        return replace(static, observed=self._inputs.parts(made.discovered))

    def static_parts(self, spec: TaskSpec) -> KeyParts:
        runs_program = bool(spec.sources or spec.packages)
        judge = self.made_from(spec.judge) if spec.judge else None
        hidden = [] if judge is None else revealed(judge.discovered, spec.known, self._files.root)
        return KeyParts(
            stage=f"{spec.stage}/{spec.version}",
            code=self.code(spec),
            params=spec.params,
            input={
                i.role: self.digest(i.task)
                for i in spec.inputs
                if not i.role.startswith(stages.AFTER)
            }
            | as_inputs(hidden),
            env={**self._environment, **self.packages(spec)} if runs_program else {},
        )

    def code(self, spec: TaskSpec) -> dict[str, str]:
        return {path: self._files.digest(path) for path in spec.sources}

    def packages(self, spec: TaskSpec) -> dict[str, str]:
        versions = ((name, self._version(name)) for name in spec.packages)
        return {name: version for name, version in versions if version}

    def _version(self, name: str) -> str:
        if name not in self._versions:
            self._versions[name] = package_version(name)
        return self._versions[name]

    def record(self, name: str) -> TaskRecord | None:
        """Return the stored record of a task's last success."""
        return self._row(RECORD + name, TaskRecord)

    def records(self, names: Iterable[str]) -> dict[str, TaskRecord]:
        """Return the stored records of those of the tasks `names` that have one."""
        stored = self._cache.state.get_many([RECORD + name for name in names])
        found = {key[len(RECORD) :]: _known(row, TaskRecord) for key, row in stored.items()}
        return {name: record for name, record in found.items() if record is not None}

    def made_from(self, name: str) -> MadeFrom | None:
        return self._row(MADE_FROM + name, MadeFrom)

    def _row(self, key: str, kind: type[R]) -> R | None:
        cached = self._cached
        if cached is None:
            return self._read(key, kind)
        with self._lock:
            if key not in cached:
                self._keep({key: self._read(key, kind)})
            return cached[key]  # type: ignore[return-value]  # by the key

    def _keep(self, rows: Mapping[str, TaskRecord | MadeFrom | None]) -> None:
        if self._cached is not None:
            self._cached |= rows
            while len(self._cached) > _MAX_CACHED:
                del self._cached[next(iter(self._cached))]

    def _read(self, key: str, kind: type[R]) -> R | None:
        return _known(self._cache.state.get(key), kind)

    @contextmanager
    def only_writer(self) -> Iterator[None]:
        """Keep each record in memory after its first read, until the context ends. The caller must
        hold the workspace's lock, so that no other process writes records."""
        self._cached = {}
        try:
            yield
        finally:
            self._cached = None

    def _drop(self, name: str, rows: Mapping[str, TaskRecord | MadeFrom]) -> None:
        """Drop what is in memory of a task; `rows` are those that the store has now."""
        with self._lock:
            self._digests.pop(name, None)
            if self._cached is not None:
                self._cached.pop(RECORD + name, None)
                self._cached.pop(MADE_FROM + name, None)
                self._keep(rows)

    def reasons(self, spec: TaskSpec, parts: KeyParts) -> list[BuildReason]:
        record, made = self.record(spec.name), self.made_from(spec.name)
        if record is None or made is None:
            return [BuildReason("state", old="never finished")]
        if not record.complete:
            return [BuildReason("state", old="some cases ended in an error, which is tried again")]
        found = _once(
            change
            for change in changed_parts(made.parts, to_builtins(parts))
            if change.trigger in (*self._triggers, "stage")
        )
        return found + self._outputs_touched(spec, record)

    def _outputs_touched(self, spec: TaskSpec, record: TaskRecord) -> list[BuildReason]:
        """Return a reason for each output in the workspace that was changed or deleted."""
        if not spec.outputs:
            return []
        made = record.values.get("outputs", {})
        found = []
        for path in spec.outputs:
            was, now = made.get(path), self.output(path)
            if was != now:
                found.append(BuildReason("output", path, was, now))
        return found

    def as_made(self, spec: TaskSpec) -> set[str]:
        """Return the outputs in the workspace that are unchanged since the task made them."""
        if not spec.outputs:
            return set()
        record = self.record(spec.name)
        made = record.values.get("outputs", {}) if record is not None else {}
        return {path for path in spec.outputs if path in made and made[path] == self.output(path)}

    def output(self, path: str) -> str | None:
        """Return the state of an output file as `output_state` does; None if it is missing."""
        digest = self._files.digest(path)
        if not digest:
            return None
        try:
            mode = (self._files.root / path).stat().st_mode
        except OSError:
            return None
        return output_state(digest, executable=bool(mode & stat.S_IXUSR))

    def save(
        self, spec: TaskSpec, parts: KeyParts, result: StageResult, values: Mapping[str, Json]
    ) -> int:
        """Store a result and the record of it; both are on disk when this returns. Return the bytes
        of the result."""
        content = encoded(result.content)
        record = TaskRecord(digest_bytes(content), result.complete, values, time.time())
        made = MadeFrom(to_builtins(parts), result.discovered.stored)
        rows: dict[str, TaskRecord | MadeFrom]
        rows = {RECORD + spec.name: record, MADE_FROM + spec.name: made}
        written = {**{key: encoded(row) for key, row in rows.items()}, RESULT + spec.name: content}
        self._cache.state.put_sealed({key: sealed(row, key) for key, row in written.items()})
        self._drop(spec.name, rows)
        return len(content)

    def forget(self, name: str) -> None:
        """Delete the record of a task, but not its last result, with which ``diff`` compares."""
        self._cache.state.delete_many([RECORD + name, MADE_FROM + name])
        self._drop(name, {})

    def save_broken(self, spec: TaskSpec, problems: Iterable[Problem]) -> None:
        """Record that a task made no target, and why; delete the record of its last success.
        Reports then do not show an older result."""
        self.forget(spec.name)
        said = [to_builtins(problem, enc_hook=str) for problem in problems]
        found = {"version": RECORD_VERSION, "key": self.parts(spec).key(), "problems": said}
        self._cache.state.put(f"broken:{spec.name}", found)

    def broken(self, spec: TaskSpec) -> list[Problem] | None:
        """Return the problems of a task that failed with its present key; else None."""
        if self.record(spec.name) is not None:
            return None
        found = self._cache.state.get(f"broken:{spec.name}")
        if not isinstance(found, dict) or found.get("version") != RECORD_VERSION:
            return None
        if found.get("key") != self.parts(spec).key():
            return None
        return [Problem(**problem) for problem in found["problems"]]

    def duration(self, name: str) -> float | None:
        """Return the last duration of a task's work in seconds; None if unknown."""
        record = self.record(name)
        seconds = None if record is None else record.values.get("duration_s")
        return float(seconds) if isinstance(seconds, (int, float)) else None

    def has_failed(self, name: str) -> bool:
        """Tell whether a task has ever failed to make its target, even if it succeeded since."""
        return isinstance(self._cache.state.get(f"broken:{name}"), dict)

    def moved(self, spec: TaskSpec) -> bool:
        """Tell whether a task has no record of a success, or has changed since that success. A task
        has changed if its key or its outputs in the workspace differ from the record. Cases that
        ended in an error do not count here, although the task will run again."""
        record, made = self.record(spec.name), self.made_from(spec.name)
        if record is None or made is None:
            return True
        changed = changed_parts(made.parts, to_builtins(self.parts(spec)))
        kinds = {change.part for change in changed}
        return not kinds.isdisjoint({*self._triggers, "stage"}) or bool(
            self._outputs_touched(spec, record)
        )


def _once(changes: Iterable[BuildReason]) -> list[BuildReason]:
    """Return the changes, but omit an observed file that also changed as a declared source."""
    found = list(changes)
    twice = {f"file {change.name}" for change in found if change.part == "code"}
    return [c for c in found if c.part != OBSERVED or c.name not in twice]
