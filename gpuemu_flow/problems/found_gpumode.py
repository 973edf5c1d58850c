"""Find problems of GPU MODE's reference-kernels and their submissions; no code is run."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from gpuemu_flow.errors import Problem, UsageError
from gpuemu_flow.problems.found import (
    asks_for_gpu,
    defined_names,
    files_named,
    named_home,
    needs_compiler,
    parsed,
    plain_name,
    python_files,
    read_source,
    unique_name,
)
from gpuemu_flow.problems.model import CandidateProgram, ProblemSource, SkippedProblem
from gpuemu_flow.problems.yaml_text import YamlError, read_yaml
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import Json

MOST_TESTS = 64
TASK = "task.yml"
_THEIRS = ("reference.py", "eval.py")
_DEFAULTS = {"rtol": 1e-5, "atol": 1e-8}
_PLAIN = (str, int, float, bool)


@dataclass(frozen=True)
class Task:
    """A problem, and the facts that its files state before anything runs.

    Attributes
    ----------
    source : ProblemSource
    support : mapping of str to bytes
        Modules that the reference and submissions import, by name.
    tests : tuple of (mapping of str to JSON)
        Arguments of `generate_input`, without the seed.
    tolerance : mapping of str to float, optional
        ``rtol`` and ``atol`` if the problem's check compares with `ref_kernel` by
        ``make_match_reference``; None for any other check.
    """

    source: ProblemSource
    support: Mapping[str, bytes] = field(default_factory=dict)
    tests: tuple[Mapping[str, Json], ...] = ()
    tolerance: Mapping[str, float] | None = None


def find_gpumode(
    path: Path, candidates: tuple[Path, ...] = ()
) -> tuple[list[Task], list[SkippedProblem]]:
    """Return the problems in a folder, each with its submissions, and the skipped items.

    Parameters
    ----------
    path : Path
        The folder of problems.
    candidates : tuple of Path
        Other folders with submissions.

    Returns
    -------
    tuple of (list of Task, list of SkippedProblem)
        The second list holds the problems and submissions that cannot be used, with the reasons.
    """
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
        raise YamlError(f"GPU-only code: its language is {str(described['lang'])[:40]!r}")
    if described.get("multi_gpu") or described.get("num_gpus", 1) != 1:
        raise YamlError("GPU-only code: it needs several devices")
    support = _support(file, described.get("files"))
    reference = support.pop("reference.py", None)
    if reference is None:
        raise YamlError("its `files` name no reference.py")
    tree = parse_python(reference, "reference.py")
    missing = {"generate_input", "ref_kernel", "check_implementation"} - _bound(tree)
    if missing:
        raise YamlError(f"its reference.py defines no {', '.join(sorted(missing))}")
    name = unique_name(plain_name(file.parent.name), taken)
    source = ProblemSource(name, file.parent / "reference.py", reference)
    return Task(source, support, _tests(described), _tolerance(tree))


def _support(file: Path, listed: Json) -> dict[str, bytes]:
    """Return a task's Python modules by name.

    Raises
    ------
    YamlError
        A file is missing, has a name that a file of a workspace must not have, or lies outside
        of the folder that holds the task's folder.
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
    reason = needs_compiler(tree) or _needs_reference(tree)
    if reason:
        left.append(SkippedProblem(str(file), reason))
        return
    source = tasks[at].source
    name = unique_name(plain_name(file.stem), [one.name for one in source.candidates])
    triton = b"triton" in content
    taken = CandidateProgram(name, file, content, triton, not triton and asks_for_gpu(content))
    tasks[at] = replace(tasks[at], source=replace(source, candidates=(*source.candidates, taken)))


def _needs_reference(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "reference":
            return "it calls the reference, which candidates cannot read"
    return ""
