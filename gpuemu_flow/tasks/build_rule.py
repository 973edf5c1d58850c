"""Stage ``rule``: run a command of ``[[rules]]``, which makes workspace files that ops need.

Writes the outputs, and a result with their digests. The result does not depend on the inputs,
so that no other task runs again if the command gives the same bytes. The outputs are also stored as
blobs, and are restored from there if the action key is known.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, ValidationError, to_builtins
from msgspec.structs import replace

from gpuemu_flow.model.decoding import convert
from gpuemu_flow.model.errors import CancelledRunError, Problem, RunnerError
from gpuemu_flow.model.let_through import let_through
from gpuemu_flow.model.types import ConfiguredEnv, Json
from gpuemu_flow.store.keys import KeyParts, KnownInputs
from gpuemu_flow.store.private_files import output_locks
from gpuemu_flow.tasks import compilers, stages
from gpuemu_flow.tasks.base import (
    Interrupted,
    RuleParams,
    StageContext,
    StageResult,
    TaskSpec,
    output_state,
    params_of,
)
from gpuemu_flow.tasks.build_kernel import placeholders
from gpuemu_flow.tasks.machine_results import (
    MOST_UNDECLARED,
    MachineResults,
    command_uses,
    machine_results,
    some,
    unlisted,
)
from gpuemu_flow.workers.listener import Recording
from gpuemu_flow.workers.sandbox.spec import landlock_version

STAGE = stages.RULE
VERSION = stages.VERSIONS[STAGE]
MAX_OUTPUT_BYTES = 1 << 30
MOST_FILES = 50_000
"""Largest number of files to check for undeclared outputs."""

_TICKS = 100
_STAGED = ".part"
_NOT_LOOKED_AT = frozenset({"__pycache__", ".git", ".gpuemu-cache"})
_numbers = itertools.count()

Stamps = dict[str, tuple[int, int, int]]


class _Output(Struct, frozen=True, array_like=True):
    """One file that a rule made."""

    digest: str
    executable: bool

    @property
    def state(self) -> str:
        return output_state(self.digest, executable=self.executable)


class _Made(Struct, frozen=True):
    """The outcome of one run of a rule's command."""

    outputs: Mapping[str, _Output]
    undeclared: tuple[str, ...]
    deleted: tuple[str, ...]
    duration_s: float
    reads: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


def _made(stored: Json, names: Sequence[str]) -> _Made | None:
    """Return a stored outcome; None if it is invalid or its outputs are not `names`."""
    try:
        made = convert(stored, _Made)
    except ValidationError:
        return None
    good = set(made.outputs) == set(names) and math.isfinite(made.duration_s)
    return made if good else None


def run(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    """Make the outputs of one rule, or restore them from the cache. Raises RunnerError:
    ``build-failed`` if the command failed; ``rule-output-missing`` if it did not make a declared
    output."""
    paths = [context.root / name for name in spec.outputs]
    try:
        with output_locks(paths, context.cancel, context.on_wait):
            return _run(spec, context, parts)
    except CancelledRunError:
        raise Interrupted from None


def _run(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    params = params_of(RuleParams, spec.params)
    environment = {
        **let_through(os.environ, params.env_names),
        "HOME": os.environ.get("HOME", ""),
    }
    program = "sh" if params.shell else params.command[0]
    uses = command_uses(program, spec.sources, context.root, environment)
    if uses is None:
        hint = "install it, put its folder on PATH, or write its path"
        text = f"{spec.name}: there is no program {program!r} on PATH"
        raise RunnerError(Problem("build-failed", text, hint, *_place(spec)))
    named = ConfiguredEnv(names=tuple(params.env_names))
    used = context.inputs.discover(uses, named)
    known = KnownInputs(context.cache.actions, parts.key(), context.inputs)
    begun = context.inputs.now()
    made = None if context.force else _restored(spec, context, known)
    executed = made is None
    shared = machine_results(spec, context)
    if made is None and shared is not None:
        made = _fetched(spec, context, shared, known.key(used))
        executed = made is None
    if made is None:
        made = _execute(spec, context, environment)
    read = (os.path.join(context.root, name) for name in made.reads)  # noqa: PTH118
    seen = context.inputs.discover(
        replace(uses, files=uses.files.union(read), untracked=frozenset(made.unseen)), named
    )
    if context.unchanged() and not context.inputs.moved(seen, begun):
        if executed:
            context.cache.actions.put(known.add(seen), to_builtins(made))
        if shared is not None:
            digests = [output.digest for output in made.outputs.values()]
            shared.store(known.key(used), to_builtins(made), digests)
    _let_the_clock_pass(context, spec)
    states = {name: output.state for name, output in made.outputs.items()}
    content = {"stage": STAGE, "version": VERSION, "outputs": states}
    return StageResult(
        content,
        executed=executed,
        values={
            "duration_s": made.duration_s,
            "outputs": states,
            "undeclared": list(made.undeclared),
            "deleted": list(made.deleted),
            "reads": list(made.reads),
        },
        discovered=seen,
    )


_SLUGS = {
    "reads": (
        "rule-undeclared-input",
        "also read {}, which its inputs do not name",
        "name it in `inputs`",
    ),
    "undeclared": (
        "rule-undeclared-output",
        "also wrote {}, which its outputs do not name",
        "name it in `outputs`: other files are neither watched nor restored",
    ),
    "deleted": (
        "rule-deleted-file",
        "deleted {}, which its outputs do not name",
        "let it delete only what it made itself: nothing puts other files back",
    ),
}


def undeclared_problems(spec: TaskSpec, values: Mapping[str, Json]) -> Iterator[Problem]:
    """Yield the warnings about files that a command used although it does not declare them."""
    for kept, (slug, text, hint) in _SLUGS.items():
        if values.get(kept):
            message = f"{spec.name} {text.format(some(values[kept]))}"
            yield Problem(slug, message, hint, *_place(spec), warning=True)


def _place(spec: TaskSpec) -> tuple[str, int]:
    return str(spec.settings["file"]), int(spec.settings["line"])


def _restored(spec: TaskSpec, context: StageContext, known: KnownInputs) -> _Made | None:
    """Restore a rule's outputs from the local cache; return None if it lacks one of them. `known`
    finds the cached outputs that were made from inputs in their present states."""
    for _, key in known.candidates():
        made = _made(context.cache.actions.get(key), spec.outputs)
        if made is not None and all(_restore(spec, context, n, o) for n, o in made.outputs.items()):
            return made
    return None


def _fetched(
    spec: TaskSpec, context: StageContext, shared: MachineResults, key: str
) -> _Made | None:
    """Fetch the outputs from a shared cache; return None if one is missing."""
    made = _made(shared.fetch(key), spec.outputs)
    if made is None:
        return None
    shared.fetch_blobs(output.digest for output in made.outputs.values())
    if all(_restore(spec, context, name, output) for name, output in made.outputs.items()):
        return made
    return None


def _restore(spec: TaskSpec, context: StageContext, name: str, output: _Output) -> bool:
    """Write one output unless it is up to date; return False if the cache lacks its content."""
    path = _checked(spec, context.root, name)
    there = _read(spec, context.root, name)
    if there is not None and output == _Output(context.cache.blobs.write(there[0]), there[1]):
        return True
    try:
        data = context.cache.blobs.read(output.digest)
    except ValueError:
        return False
    if data is None:
        return False
    try:
        _remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, data, executable=output.executable)
    except OSError as error:
        text = f"{spec.name}: cannot write {name}: {error.strerror or error}"
        raise RunnerError(Problem("build-failed", text, "", *_place(spec))) from error
    return True


def _write(path: Path, data: bytes, *, executable: bool) -> None:
    staged = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}{_STAGED}")
    mode = 0o777 if executable else 0o666
    try:
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - opened above
            file.write(data)
        staged.replace(path)
    finally:
        with contextlib.suppress(OSError):
            staged.unlink()


def _is_gone(root: Path, name: str) -> bool:
    """Tell whether a file was deleted; False for the temporary files that `_write` makes."""
    staged = os.path.basename(name).startswith(".") and name.endswith(_STAGED)  # noqa: PTH119
    return not staged and not os.path.lexists(root / name)


def _execute(spec: TaskSpec, context: StageContext, environment: Mapping[str, str]) -> _Made:
    begin = time.perf_counter()
    params = params_of(RuleParams, spec.params)
    arguments = ["sh", "-c", params.command[0]] if params.shell else params.command
    paths = [_checked(spec, context.root, name) for name in spec.outputs]
    try:
        for path in paths:
            # An old output must not be taken for a new one, even if the command keeps it.
            _remove(path)
            path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        text = f"{spec.name}: an output cannot be made: {error}"
        raise RunnerError(Problem("build-failed", text, "", *_place(spec))) from error
    before = _look(spec, context.root)
    closed = _is_closed(spec)
    with context.cache.files.temporary(context.cache.staging, prefix="rule-") as folder:
        sandbox = spec.settings["sandbox"]
        tool_sandbox = None if sandbox is None else compilers.ToolSandbox(folder, sandbox)
        with Recording() as recording, placeholders(paths, tool_sandbox):
            failure = compilers.command(
                arguments,
                context.root,
                recording=recording,
                cancel=context.cancel,
                tool_sandbox=tool_sandbox,
                environment=environment,
                timeout=spec.settings["timeout"],
                if_slow="make it faster, or raise the rule's timeout",
            )
    if failure is not None:
        message = f"{spec.name}: {failure.message}"
        place = (failure.file, failure.line) if failure.file else _place(spec)
        refused = closed and failure.hint == compilers.REFUSED_HINT
        hint = "name in `inputs` what it reads of the workspace" if refused else failure.hint
        raise RunnerError(Problem("build-failed", message, hint, *place))
    outputs = {}
    for name in spec.outputs:
        found = _read(spec, context.root, name)
        if found is None:
            text = f"{spec.name} ended well and did not make the file {name}"
            hint = "correct the command or `outputs`; a link or a folder is no output"
            raise RunnerError(Problem("rule-output-missing", text, hint, *_place(spec)))
        outputs[name] = _Output(context.cache.blobs.write(found[0]), found[1])
    listed = (*spec.sources, *spec.outputs, *spec.settings["before"], *spec.settings["scratch"])
    reads = () if closed else unlisted(recording.sightings.opened(), context, sandbox, listed)
    early = sorted({*reads} & {*spec.settings["declared"]} - {*spec.settings["waited_for"]})
    if early:
        text = f"{spec.name} read {some(early)}, and does not wait for the rule that makes it"
        hint = "name the rule in `needs`, or the file in `inputs`"
        raise RunnerError(Problem("needs-missing", text, hint, *_place(spec)))
    after = _look(spec, context.root)
    declared = {*spec.settings["declared"], *spec.sources}
    scratch = tuple(f"{name}/" for name in spec.settings["scratch"])

    def left(names: Iterable[str]) -> tuple[str, ...]:
        own = (n for n in names if n not in declared and not f"{n}/".startswith(scratch))
        return tuple(sorted(own)[:MOST_UNDECLARED])

    return _Made(
        outputs,
        left(name for name, stamp in after.items() if before.get(name) != stamp),
        left(name for name in before if name not in after and _is_gone(context.root, name)),
        time.perf_counter() - begin,
        reads,
        tuple(sorted(recording.sightings.observation().untracked)),
    )


def _is_closed(spec: TaskSpec) -> bool:
    """Tell whether a sandbox restricts the command to declared files of the workspace. Raises
    RunnerError: ``sandbox-missing`` if a sandbox is required and not available."""
    sandbox = params_of(RuleParams, spec.params).sandbox
    if not sandbox.get("closed"):
        return False
    if not landlock_version(str(sandbox["level"])):
        text = f"{spec.name} has `only_inputs`, which needs Landlock; there is {sandbox['level']}"
        hint = "run it where there is Landlock and [sandbox] mode is not off, or remove it"
        raise RunnerError(Problem("sandbox-missing", text, hint, *_place(spec)))
    return True


def _checked(spec: TaskSpec, root: Path, name: str) -> Path:
    """Return the path of an output, after checking that its folder is in the workspace. Raises
    RunnerError: ``rule-output-missing`` if a link leads out of the workspace, or the output is a
    folder."""
    path = root / name
    real = os.path.realpath(path.parent)
    fault = ""
    if real != str(root) and not real.startswith(f"{root}/"):
        fault = "a link leads out of the workspace"
    elif path.is_dir() and not path.is_symlink():
        fault = "a folder has that name"
    if fault:
        text = f"{spec.name}: {name} cannot be an output: {fault}"
        raise RunnerError(Problem("rule-output-missing", text, "name another file", *_place(spec)))
    return path


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()


def _read(spec: TaskSpec, root: Path, name: str) -> tuple[bytes, bool] | None:
    """Return an output's content, and True if it is executable; None if it does not exist."""
    path = _checked(spec, root, name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - opened above
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > MAX_OUTPUT_BYTES:
            text = f"{spec.name}: {name} has more than {MAX_OUTPUT_BYTES >> 20} MiB"
            hint = "leave it out of `outputs`"
            raise RunnerError(Problem("rule-output-missing", text, hint, *_place(spec)))
        return file.read(), bool(status.st_mode & stat.S_IXUSR)


def _look(spec: TaskSpec, root: Path) -> Stamps:
    """Return the stamp of each file in the folders of a rule's outputs and inputs, by path. A stamp
    is (mtime_ns, ctime_ns, size). The workspace's top folder is included. Only folders of outputs
    are searched at all depths. At most `MOST_FILES` files are returned."""
    made = {os.path.dirname(name) for name in spec.outputs}  # noqa: PTH120
    read = {os.path.dirname(name) for name in spec.sources if not name.startswith("/")}  # noqa: PTH120
    found: Stamps = {}
    for folder in sorted({*made, *read, ""}):
        for path in itertools.islice(_files(root / folder, deep=bool(folder) and folder in made),
                                     MOST_FILES - len(found)):  # fmt: skip
            with contextlib.suppress(OSError):
                status = path.lstat()
                stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
                found[path.relative_to(root).as_posix()] = stamp
    return found


def _files(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yield the files in a folder and, if `deep`, in all folders below it."""
    pending = [folder]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in listed:
            if entry.name in _NOT_LOOKED_AT:
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)
            elif deep:
                pending.append(Path(entry.path))


def _let_the_clock_pass(context: StageContext, spec: TaskSpec) -> None:
    """Wait until the file system's clock is later than each output's modification time. The clock
    advances in steps of some ms. If a task started in the same step in which an output was written,
    it could not tell that the output is older than its own start."""
    newest = _newest(context, spec)
    for _ in range(_TICKS):
        if context.inputs.now() > newest:
            return
        time.sleep(0.001)


def _newest(context: StageContext, spec: TaskSpec) -> int:
    found = [0]
    for name in spec.outputs:
        with contextlib.suppress(OSError):
            found.append((context.root / name).lstat().st_ctime_ns)
    return max(found)
