"""Import problems of GPU MODE: `ref_kernel` becomes a reference, each `custom_kernel` an op."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from gpuemu_flow.cases.generated_values import MOST_BYTES
from gpuemu_flow.model.errors import Problem, RunnerError, UsageError
from gpuemu_flow.model.syntax import parse_python
from gpuemu_flow.model.types import DTYPES, Json
from gpuemu_flow.services.problems.found import (
    defined_names,
    files_named,
    named_home,
    parsed,
    plain_name,
    python_files,
    read_source,
    unique_name,
)
from gpuemu_flow.services.problems.importing import (
    Collection,
    ImportAttempt,
    candidate_files,
    import_each,
    json_file,
)
from gpuemu_flow.services.problems.model import (
    SEED,
    Argument,
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    Options,
    ProblemFacts,
    ProblemSource,
    ReferenceOutput,
    SkippedProblem,
    halved,
)
from gpuemu_flow.services.problems.probing import ProbeError, Prober, described, open_prober
from gpuemu_flow.services.problems.sizes import (
    CachedAttempts,
    VariableSizes,
    largest,
    same_but_shapes,
    vary,
    with_given,
)
from gpuemu_flow.workers.pool import Pool

MOST_TESTS = 64
TASK = "task.yml"
_THEIRS = ("reference.py", "eval.py")
_DEFAULTS = {"rtol": 1e-5, "atol": 1e-8}
_PLAIN = (str, int, float, bool)


class Task(msgspec.Struct, frozen=True):
    """A problem, and the facts that its files state before anything runs."""

    source: ProblemSource
    # Modules that the reference and submissions import, by name.
    support: Mapping[str, bytes] = {}
    # Arguments of `generate_input`, without the seed.
    tests: tuple[Mapping[str, Json], ...] = ()
    # ``rtol`` and ``atol`` if the problem's check compares with `ref_kernel` by
    # ``make_match_reference``; None for any other check.
    tolerance: Mapping[str, float] | None = None


def find_gpumode(
    path: Path, candidates: tuple[Path, ...] = ()
) -> tuple[list[Task], list[SkippedProblem]]:
    """Return the problems in a folder, each with its submissions, and the skipped items."""
    tasks: list[Task] = []
    left: list[SkippedProblem] = []
    for file in _task_files(path):
        try:
            task = _read(file, [one.source.name for one in tasks])
        except (YamlError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            left.append(SkippedProblem(str(file.parent), str(error) or type(error).__name__))
            continue
        tasks.append(task)
    for folder in candidates:
        for file in python_files(folder):
            at = named_home(file, [task.source.name for task in tasks])
            if at is None:
                left.append(SkippedProblem(str(file), "no problem is named like it or its folder"))
                continue
            _add(tasks, at, file, left)
    for at, task in enumerate(tasks):
        for file in python_files(task.source.path.parent):
            if file.name not in (*_THEIRS, *task.support):
                _add(tasks, at, file, left)
    return tasks, left


def _task_files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(
            Problem("import-not-found", f"there is no {path}", "give a file or folder")
        )
    if path.is_file():
        return [path]
    return files_named(TASK, path)


def _read(file: Path, taken: list[str]) -> Task:
    described = read_yaml(read_source(file))
    if not isinstance(described, dict):
        raise YamlError("task.yml holds no mapping")
    if str(described.get("lang", "py")) not in ("py", "python"):
        text = f"GPU-only code: its language is {str(described['lang'])[:40]!r}"
        raise YamlError(f"{text}; a custom_kernel in Python that calls load_inline is taken")
    if described.get("multi_gpu") or described.get("num_gpus", 1) != 1:
        raise YamlError("GPU-only code: it needs several devices")
    support = _support(file, described.get("files"))
    reference = support.pop("reference.py", None)
    if reference is None:
        raise YamlError("its `files` name no reference.py")
    _add_imported(support, reference, file.parent)
    tree = parse_python(reference, "reference.py")
    missing = {"generate_input", "ref_kernel", "check_implementation"} - _bound(tree)
    if missing:
        raise YamlError(f"its reference.py defines no {', '.join(sorted(missing))}")
    name = unique_name(plain_name(file.parent.name), taken)
    source = ProblemSource(name, file.parent / "reference.py", reference)
    return Task(source, support, _tests(described), _tolerance(tree))


def _support(file: Path, listed: Json) -> dict[str, bytes]:
    """Return a task's Python modules by name.

    Raises YamlError: A file is missing, has a name that a file of a workspace must not have, or
    lies outside of the folder that holds the task's folder.
    """
    folder = file.parent
    sources = {"reference.py": "reference.py", "task.py": "task.py", "utils.py": "../utils.py"}
    needed = {"reference.py"}
    if isinstance(listed, list):
        pairs = [one for one in listed if isinstance(one, dict)]
        sources = {str(one.get("name")): str(one.get("source")) for one in pairs}
        needed = set(sources)
    group = folder.resolve().parent
    found = {}
    for name, where in sources.items():
        if where == "@SUBMISSION@" or name == "eval.py" or not name.endswith(".py"):
            continue
        if plain_name(name) != name:
            raise YamlError(f"it names a file {name[:80]!r}")
        place = folder / where
        if not place.resolve().is_relative_to(group):
            raise YamlError(f"its file {name} lies outside of its group: {where[:80]!r}")
        if not place.is_file():
            if name in needed:
                raise YamlError(f"its file {name} is missing: {where[:80]!r}")
            continue
        found[name] = read_source(place)
    return found


def _add_imported(support: dict[str, bytes], reference: bytes, folder: Path) -> None:
    """Add the modules beside the task that its own ones import and `files` does not list."""
    sources = [reference, *support.values()]
    while sources:
        for node in ast.walk(parse_python(sources.pop(), "a module of the task")):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                file = f"{name}.py"
                if not name.isidentifier() or file in (*support, *_THEIRS):
                    continue
                places = [each / file for each in (folder, folder.parent)]
                found = next((place for place in places if place.is_file()), None)
                if found is not None:
                    support[file] = read_source(found)
                    sources.append(support[file])


def _bound(tree: ast.Module) -> set[str]:
    assigned = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.asname or alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return defined_names(tree) | assigned | imported


def _tests(described: Mapping[str, Json]) -> tuple[Mapping[str, Json], ...]:
    listed = described.get("tests") or described.get("benchmarks") or [{}]
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise YamlError("its tests are no list of arguments")
    found = []
    for one in listed[:MOST_TESTS]:
        arguments = {key: value for key, value in one.items() if key != "seed"}
        for key, value in arguments.items():
            if not key.isidentifier() or not _is_plain(value):
                raise YamlError(f"an argument of its tests is {key[:80]!r}")
        found.append(arguments)
    return tuple(found)


def _is_plain(value: Json) -> bool:
    if isinstance(value, list):
        return len(value) < 1000 and all(_is_plain(one) for one in value)
    if type(value) is int:
        return abs(value) < 1 << 53
    return value is None or type(value) in _PLAIN


def _tolerance(tree: ast.Module) -> dict[str, float] | None:
    """Return the tolerance of ``check_implementation = make_match_reference(ref_kernel, …)``.

    Returns None if the check has another form.
    """
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if "check_implementation" not in [ast.unparse(target) for target in node.targets]:
            continue
        call = node.value
        if ast.unparse(call.func).rpartition(".")[2] != "make_match_reference":
            return None
        if [ast.unparse(one) for one in call.args] != ["ref_kernel"]:
            return None
        found = dict(_DEFAULTS)
        for key in call.keywords:
            if key.arg not in found or not isinstance(key.value, ast.Constant):
                return None
            value = key.value.value
            if not isinstance(value, (int, float)) or not 0 <= value < 1e6:
                return None
            found[key.arg] = float(value)
        return found
    return None


def _add(tasks: list[Task], at: int, file: Path, left: list[SkippedProblem]) -> None:
    """Add the submission in a file to the candidates of ``tasks[at]``.

    A submission that cannot run is added to `left` instead. A file without `custom_kernel` is
    ignored.
    """
    content = read_source(file)
    tree = parsed(content, file, left)
    if tree is None:
        return
    if "custom_kernel" not in _bound(tree):
        return
    source = tasks[at].source
    name = unique_name(plain_name(file.stem), [one.name for one in source.candidates])
    taken = CandidateProgram(name, file, content)
    tasks[at] = replace(tasks[at], source=replace(source, candidates=(*source.candidates, taken)))


MOST_VARIANTS = 16
MOST_ELEMENTS = 1 << 17
"""Limit on elements of one input, to stay below 4 MiB; with more, sizes are halved further."""
_CAPS = (128, 64, 32, 16)
_ODD = (1, 7, 33)
TYPES = "data_types.py"
"""The classes of a reference whose objects its data hold; as the adapter names it, too."""
_RUNTIME = ("gpumode.py", "files.py", "stand_in.py", "tensors.py")
_ENTRY_POINTS = """\
_gpuemu_folder = str(_GpuemuPath(__file__).parent)
gpuemu_reference = _gpuemu_gpumode.reference(globals(), _gpuemu_folder)
gpuemu_generate = _gpuemu_gpumode.generator(globals(), _gpuemu_folder)
gpuemu_check = _gpuemu_gpumode.checker(globals(), _gpuemu_folder)
"""
_COLLECTION = Collection(
    "gpumode",
    _RUNTIME,
    "gpumode",
    "`custom_kernel` of a candidate's file",
    "no candidate: no file with a custom_kernel",
    skip_if=("from reference import ref_kernel",),
)


def import_gpumode(path: Path, options: Options, announce: Callable[[str], None]) -> ImportOutcome:
    """Make a workspace from problems of GPU MODE and their submissions.

    Raises UsageError: ``import-not-found``, ``import-too-many``, ``import-unreadable``. A problem
    that cannot be imported does not raise an error; `ImportOutcome.left` lists it.
    """
    tasks, left = find_gpumode(path, options.candidates)
    attempts = [
        ImportAttempt(
            task.source.name,
            str(task.source.path.parent),
            partial(_take, task, options, left),
        )
        for task in tasks
    ]
    return import_each(_COLLECTION, attempts, left, options, announce)


def _take(
    task: Task, options: Options, left: list[SkippedProblem], pool: Pool
) -> tuple[ImportedProblem, dict[str, bytes]]:
    modules = {"reference.py": task.source.source, **task.support}
    problem = {f"problem/{name}": content for name, content in modules.items()}
    with open_prober("gpumode_probe.py", _RUNTIME, problem, pool) as prober:
        base, about = _base(prober, task, options)
        numbers = {name: value for name, value in base.items() if type(value) is int}
        tries = CachedAttempts(lambda constants: _ask(prober, {**base, **constants}))
        varied = VariableSizes({}, about.shapes)
        if options.varied:
            wanted = {name: _wanted(task.tests, name, options) for name in numbers}
            varied = vary(tries, numbers, {}, about, wanted)
            given = {name: _largest(task.tests, name) for name in numbers}
            most = MOST_BYTES // max(DTYPES[one.dtype].itemsize for one in about.tensors)
            varied = with_given(tries, given, {}, varied, most)
        calls = _calls(prober, task, base, about, varied, options, left)
    scaled = {}
    for name in numbers:
        tried = max(_largest(calls, name), *varied.dims.get(name, (0,)))
        if tried < _largest(task.tests, name):
            scaled[name] = (_largest(task.tests, name), tried)
    dtype = next((one.dtype for one in about.tensors if one.floating), "float32")
    classes: set[str] = set()

    def noted(part: dict[str, Json]) -> dict[str, Json]:
        classes.add(str(part.get("class", "")))
        return part

    data = json.loads(str(about.arguments[-1].value), object_hook=noted)
    names = {one.removeprefix("reference:") for one in classes if one.startswith("reference:")}
    types = {TYPES: _definitions(task.source.source, names)} if names else {}
    source = replace(task.source, candidates=_readable(task, types, left))
    task = replace(task, source=source)
    packed = task.tolerance is None and len(about.outputs) > 1
    taken = ImportedProblem(
        task.source,
        _with_rules(task, about, dtype, packed=packed),
        varied.dims,
        varied.axes,
        scaled,
        dtype=dtype,
        notes=() if task.tolerance else ("judged by its own check_implementation",),
        schema={"constraints": list(varied.limits)} if varied.limits else {},
    )
    axes = {name: _axis(name, about, varied) for name in base}
    content: dict[str, Json] = {
        "calls": calls,
        "inputs": [{"name": one.name, "dtype": one.dtype} for one in about.tensors],
        "axes": {name: place for name, place in axes.items() if place is not None},
        "data": data,
        "packed": packed,
        "scaled": {name: list(pair) for name, pair in scaled.items()},
        "sha256": hashlib.sha256(task.source.source).hexdigest(),
    }
    return taken, {**_files(task, content), **types}


def _readable(
    task: Task, types: Mapping[str, bytes], left: list[SkippedProblem]
) -> tuple[CandidateProgram, ...]:
    """Return the candidates that import no more of the reference than they can read."""
    known = _bound(parse_python(types.get(TYPES, b""), TYPES))
    found = []
    for one in task.source.candidates:
        wanted = {
            alias.name
            for node in ast.walk(parse_python(one.source, one.name))
            if isinstance(node, ast.ImportFrom) and node.module == "reference"
            for alias in node.names
        }
        if wanted <= known:
            found.append(one)
        else:
            text = "it calls the reference, which candidates cannot read"
            left.append(SkippedProblem(str(one.path), text))
    return tuple(found)


def _definitions(source: bytes, wanted: set[str]) -> bytes:
    """Return the imports of a module, and its definitions that `wanted` names or they need."""
    body = [
        (node, _bound(ast.Module([node], []))) for node in parse_python(source, "reference.py").body
    ]
    needed, before = set(wanted), 0
    while before != len(needed):
        before = len(needed)
        for node, bound in body:
            if bound & needed and not isinstance(node, ast.ImportFrom):
                needed |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    if "ref_kernel" in needed:
        raise ProbeError("a class of its data calls ref_kernel, which candidates cannot read")
    kept = (
        node
        for node, bound in body
        if isinstance(node, (ast.Import, ast.ImportFrom)) or bound & needed
    )
    return "\n\n\n".join(map(ast.unparse, kept)).encode() + b"\n"


def _base(prober: Prober, task: Task, options: Options) -> tuple[dict[str, Json], ProblemFacts]:
    """Choose the base arguments of `generate_input`: those of the first test, or smaller ones."""
    first = dict(task.tests[0])
    if options.small:
        for cap in _CAPS:
            base = {name: halved(value, cap) for name, value in first.items()}
            try:
                about = _ask(prober, base, check=True)
            except ProbeError:
                continue
            if largest(about) <= MOST_ELEMENTS:
                return base, about
    about = _ask(prober, first, check=True)
    if largest(about) > MOST_ELEMENTS * 8:
        raise ProbeError("its inputs are too large for a CPU, and smaller ones do not run")
    return first, about


def _largest(calls: Sequence[Any], name: str) -> int:
    """Return the largest number that any of some sets of arguments has under a name."""
    return max((int(one[name]) for one in calls if type(one.get(name)) is int), default=0)


def _ask(prober: Prober, arguments: Mapping[str, Json], *, check: bool = False) -> ProblemFacts:
    request: dict[str, Json] = {
        "arguments": dict(arguments), "seed": SEED, "check": check, "dtypes": list(DTYPES)
    }  # fmt: skip
    return described(prober.ask_json(request))


def _wanted(tests: Sequence[Mapping[str, Json]], name: str, options: Options) -> tuple[int, ...]:
    """Return the sizes to try for an argument: those in the tests, sorted.

    If the tests use an odd size above 1, some more odd sizes are included. Of sizes that are
    scaled down, twice the scaled one is: kernels loop over blocks of as many.
    """
    theirs = [test[name] for test in tests if type(test.get(name)) is int]
    sizes = {halved(value, _CAPS[0]) if options.small else value for value in theirs}
    if max(theirs, default=0) > max(sizes, default=0):
        sizes.add(2 * max(sizes))
    if any(value % 2 for value in theirs if value > 1):
        sizes.update(_ODD)
    return tuple(sorted(int(size) for size in sizes))


def _calls(
    prober: Prober,
    task: Task,
    base: Mapping[str, Json],
    about: ProblemFacts,
    varied: VariableSizes,
    options: Options,
    left: list[SkippedProblem],
) -> list[Json]:
    """Return the sets of arguments to check: the base arguments, then those of further tests.

    In the arguments of a test, the sizes in `varied` are replaced by those of the base arguments.
    The test is left out if its arguments then equal an earlier set.

    Tests that do not run, or whose inputs have other shapes than the base inputs, are added to
    `left` instead.
    """
    found: list[Json] = [dict(base)]
    tried = {json.dumps(base, sort_keys=True)}
    for test in task.tests:
        changed = {
            key: halved(value, _CAPS[0]) if options.small else value for key, value in test.items()
        }
        changed |= {key: base[key] for key in base if key in varied.dims or key not in test}
        text = json.dumps(changed, sort_keys=True)
        if text in tried or len(tried) >= MOST_VARIANTS:
            continue
        tried.add(text)
        try:
            other = _ask(prober, changed)
        except ProbeError as error:
            left.append(SkippedProblem(f"{task.source.name}: test {text}", str(error)))
            continue
        if same_but_shapes(about, other) and about.shapes == other.shapes:
            found.append(changed)
        else:
            left.append(
                SkippedProblem(f"{task.source.name}: test {text}", "its inputs have other shapes")
            )
    return found


def _axis(name: str, about: ProblemFacts, varied: VariableSizes) -> list[Json] | None:
    for tensor, axes in zip(about.tensors, varied.axes, strict=True):
        if name in axes:
            return [tensor.name, axes.index(name)]
    return None


def _with_rules(task: Task, about: ProblemFacts, dtype: str, *, packed: bool) -> ProblemFacts:
    program = f"problems/{task.source.name}/reference.py"
    arguments = tuple(_generated(one, dtype, program) for one in about.tensors)
    outputs = (ReferenceOutput(1, floating=False),) if packed else about.outputs
    return replace(
        about, arguments=arguments, outputs=tuple(_judged(one, task, program) for one in outputs)
    )


def _generated(one: Argument, dtype: str, program: str) -> Argument:
    own = {} if one.floating and one.dtype == dtype else {"dtype": one.dtype}
    return replace(one, generate=f"{program}:gpuemu_generate", rules=own)


def _judged(one: ReferenceOutput, task: Task, program: str) -> ReferenceOutput:
    if task.tolerance is None:
        return replace(one, rules={"compare": f"{program}:gpuemu_check"})
    return replace(one, rules={"tolerance": dict(task.tolerance)} if one.floating else {})


def _files(task: Task, content: Mapping[str, Json]) -> dict[str, bytes]:
    source = task.source
    original = repr(source.path.name)
    return {
        "reference.py": _COLLECTION.with_reference(source.source, original, _ENTRY_POINTS),
        "problem.json": json_file(content),
        **task.support,
        **candidate_files(source.candidates),
    }


# Read YAML that somebody else wrote: plain data, of limited size and depth, without aliases.


LARGEST = 1 << 20
DEEPEST = 20
MOST_NODES = 50_000


class YamlError(Exception):
    """Raised for invalid or unsupported YAML; the message says why, in one line."""


def read_yaml(data: bytes) -> Json:
    """Parse YAML to plain data: mappings, lists, texts, numbers, booleans and None.

    Aliases are refused because a few lines of them can expand to gigabytes. Tags other than those
    of plain data are refused, too.

    Raises YamlError. Raises RunnerError: ``import-needs-yaml``.
    """
    try:
        import yaml  # noqa: PLC0415
    except ImportError:
        text = "task.yml is YAML, and PyYAML is not installed"
        hint = "python -m pip install 'gpuemu-flow[gpumode]'"
        raise RunnerError(Problem("import-needs-yaml", text, hint)) from None
    if len(data) > LARGEST:
        raise YamlError(f"it has more than {LARGEST} bytes")
    try:
        _look(yaml, yaml.parse(data, Loader=yaml.SafeLoader))
        found = yaml.load(data, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise YamlError(f"it is no YAML{where}") from None
    except (ValueError, OverflowError, RecursionError, MemoryError, TypeError, KeyError) as error:
        raise YamlError(f"it is no YAML that can be read: {type(error).__name__}") from None
    return _plain(found)


def _look(yaml: Any, events: Any) -> None:
    """Raise YamlError for text with aliases, or text that is too long or too deeply nested."""
    depth = 0
    for count, event in enumerate(events):
        if isinstance(event, yaml.events.AliasEvent):
            raise YamlError(f"it has an alias in line {event.start_mark.line + 1}")
        depth += isinstance(event, yaml.events.CollectionStartEvent)
        depth -= isinstance(event, yaml.events.CollectionEndEvent)
        if depth > DEEPEST or count > MOST_NODES:
            raise YamlError("it is too deep or too long")


def _plain(value: Any) -> Json:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if value is None or type(value) in (str, bool, int, float):
        return value
    return str(value)  # dates
