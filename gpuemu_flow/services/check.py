"""Judge one op against one reference, with no workspace: the way of ``check`` and of agents.

A copy of the sources in a temporary folder is a workspace; its only op is fuzzed as by ``fuzz``.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.config.programs import imported_packages
from gpuemu_flow.fuzz.failures import recorded_reason
from gpuemu_flow.fuzz.fuzzing import FuzzOptions
from gpuemu_flow.fuzz.session import fuzz_ops
from gpuemu_flow.judge.fuzz_results import CauseGroup, FuzzReport
from gpuemu_flow.judge.results import Minimal
from gpuemu_flow.judge.verdicts import EXCEPTION
from gpuemu_flow.model.decoding import plain
from gpuemu_flow.model.errors import ConfigError, Problem, UsageError, did_you_mean, nearest
from gpuemu_flow.model.syntax import C_COMMENT, parse_python, read_signature
from gpuemu_flow.model.types import FailureKind, Json, Verdict, canonical_dtype
from gpuemu_flow.report.fuzz_text import exit_code
from gpuemu_flow.report.minimal import with_shown
from gpuemu_flow.report.text import Style, described, duration, minimal_lines, plural, printable
from gpuemu_flow.services.problems.importing import table_text

CASES = 24
FAILURES = 8
"""Failures after which a check ends: more tell nothing new."""
PROBED = 4
"""Number of cases that decide whether the programs take inputs of other shapes."""
SECONDS = 10.0
SHRINK_SECONDS = 3.0
CASE_SECONDS = 10.0
"""Least limit of one case; `Request.seconds` is another, so that a user can raise it."""
START_UP = 60.0
FEWEST = 8
"""Least number of cases of which a pass says something."""
OF_ANY_SHAPE = frozenset(("AttributeError", "NameError", "UnboundLocalError"))
"""Exceptions that inputs of other shapes do not spare a program."""
CHECKING = "GPUEMU_CHECKING"
"""Set in the workers of a check, where a script that checks itself must not do so again."""
OF_MODEL = ("those of get_inputs()",)
SHIM = "gpuemu_check_{}.py"
WEIGHTS = frozenset(("weight", "w", "gamma", "g", "scale", "bias", "beta", "b"))
"""Names of inputs that usually have one axis, the last of the first input."""
ATTENTION = frozenset(("q", "k", "v", "query", "key", "value"))
"""Names of inputs that usually have the same shape."""
PLACES = frozenset(("index", "indices", "idx", "ids"))
"""Names of inputs that usually hold places along the first axis of the first input."""
MOST_FILES = 3000
MOST_BYTES = 64 << 20
LARGEST_FILE = 8 << 20
_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist", "site-packages"}
_KINDS = (("triton", "triton"), ("torch", "torch"), ("jax", "jax"))
_SHAPED = re.compile(r"(?:([A-Za-z]\w*)\s*)?\[(.*)\]", re.DOTALL)
_ANNOTATED = re.compile(r"(\w+)\[[^\[\]]*,\s*['\"]([^'\"]*)['\"]\s*\]")
_MUTATES = re.compile(r'`mutates = \["(\w+)"\]`')
_KERNEL = re.compile(r"__global__[^;{]*?\b(\w+)\s*\([^()]*\)\s*\{")
_HOST = re.compile(r'extern\s+"C"\s+void\s+(\w+)\s*\([^()]*\)\s*\{')
_SIZES = {1: (4200, 1), 2: (1100, 40), 3: (260, 17), 4: (70, 9)}
"""Largest sizes of the last and of the other dims of a tensor, by its rank."""


class Parameter(Struct, frozen=True):
    """One parameter of a function, or what ``--input`` says of it."""

    name: str
    needed: bool = True
    dims: tuple[str, ...] | None = None
    dtype: str = ""
    scalar: str = ""  # the name of its type, where the annotation says that it is no tensor
    pointer: str = ""  # of a CUDA kernel: ``in`` or ``out``
    value: Json = None  # of ``--input``
    has_value: bool = False


class Target(Struct, frozen=True):
    """The op or the reference, as it was named and as it was found."""

    text: str
    path: Path | None = None
    module: str = ""
    function: str = ""
    parameters: tuple[Parameter, ...] | None = None  # None where there is no signature to read
    is_class: bool = False
    line: int = 0
    multiplies: bool = False  # matrices
    launches: bool = False  # a host function of a ``.cu`` file

    @property
    def kind(self) -> str:
        """Return the framework whose tensors it takes; empty for numpy's arrays."""
        if self.path is None:
            root = self.module.partition(".")[0]
            return root if root in ("torch", "jax") else ""
        found = imported_packages(self.path)
        return next((kind for package, kind in _KINDS if package in found), "")

    @property
    def is_cuda(self) -> bool:
        """Tell whether it is a kernel in CUDA C++."""
        return self.path is not None and self.path.suffix in (".cu", ".cuh")


class Request(Struct, frozen=True):
    """What is to be checked, as the command line or a caller in Python says it."""

    op: str
    reference: str
    inputs: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    seconds: float = SECONDS
    seed: int = 42
    grid: str = ""
    block: str = ""
    mutates: tuple[str, ...] = ()
    kwargs: Mapping[str, Json] = {}

    @property
    def command(self) -> str:
        """Return the command line that does the same."""
        words = ["gpuemu-flow", "check", self.op, self.reference]
        given = [*self.inputs, *(f"{name}={json.dumps(v)}" for name, v in self.kwargs.items())]
        words += [word for text in given for word in ("--input", text)]
        words += [word for dtype in self.dtypes for word in ("--dtype", dtype)]
        words += [word for name in self.mutates for word in ("--mutates", name)]
        words += ["--grid", self.grid] * bool(self.grid) + ["--block", self.block] * bool(
            self.block
        )
        words += ["--seconds", f"{self.seconds:g}"] * (self.seconds != SECONDS)
        return shlex.join([*words, *(["--seed", str(self.seed)] * (self.seed != 42))])


class CheckFailure(Struct, frozen=True):
    """One kind of failure: what is shown of it first, and what else is known."""

    kind: str
    cases: int
    dtype: str
    minimal: Minimal
    message: str
    drawn: str = ""
    """The case that the notes are on, if it is another than the minimal one."""
    notes: tuple[str, ...] = ()


class Check(Struct, frozen=True):
    """The verdict of a check; true if the op passed. Printed, it is what the command prints."""

    verdict: str
    op: str
    reference: str
    inputs: tuple[str, ...]
    cases: int
    passed: int
    inconclusive: int = 0
    failures: tuple[CheckFailure, ...] = ()
    reason: str = ""
    hint: str = ""
    tolerance_used: float = 0.0
    seed: int = 42
    seconds: float = 0.0
    command: str = ""
    exit_code: int = 0

    def __bool__(self) -> bool:
        return self.verdict == Verdict.PASSED.value

    def __str__(self) -> str:
        return self.text(Style())

    def text(self, style: Style) -> str:
        """Return the verdict as text: first the smallest inputs, both values, place, command."""
        verdict = style.verdict(Verdict(self.verdict))
        against = f"{self.op} against {self.reference}"
        counted = f"{self.passed} of {plural(self.cases, 'case')} passed"
        counted += f", no verdict on {self.inconclusive}" if self.inconclusive else ""
        lines = [f"{verdict}  {printable(against)}: {counted} in {duration(self.seconds)}"]
        for failure in self.failures:
            where = f"{failure.kind} in {plural(failure.cases, 'case')} ({failure.dtype})"
            lines += ["", *minimal_lines(failure.minimal), f"  {where}"]
            if failure.minimal.expected is not None:  # otherwise it has been said
                lines += [f"  {line}" for line in printable(failure.message).splitlines()]
            drawn = [f"drawn as: {failure.drawn}"] if failure.drawn and failure.notes else []
            lines += [f"  {printable(line)}" for line in (*drawn, *failure.notes)]
        lines += [""] * bool(self.failures)
        if self.reason:
            lines.append(f"  {printable(self.reason)}")
        if self:
            lines.append(f"  worst error: {self.tolerance_used:.0%} of the tolerance")
        others = "" if self.inputs == OF_MODEL else "; --input says others"
        lines.append(f"  inputs: {printable('  '.join(self.inputs))}{others}")
        lines += [f"  {printable(self.hint)}"] * bool(self.hint)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Json]:
        """Return one JSON object with all that is needed to act."""
        found: dict[str, Json] = plain(asdict(self))
        return {"schema_version": 1, **found}


def check(
    op: Callable[..., Any] | str,
    reference: Callable[..., Any] | str,
    *,
    inputs: Mapping[str, str] | None = None,
    dtypes: Sequence[str] = (),
    seconds: float = SECONDS,
    seed: int = 42,
    mutates: Sequence[str] = (),
    **kwargs: Any,
) -> Check:
    """Judge an op by a reference on many cases; ``print(check(op, reference))`` tells the verdict.

    Both are functions of a file, or texts such as ``"op.py:f"``, as on the command line. They run
    in sandboxed processes, and get arrays, or tensors of the framework that their file imports.

    Parameters
    ----------
    inputs : mapping of str to str, optional
        What is not clear from the signature, such as ``{"a": "float32[M,K]", "b": "[K,N]"}``.
    dtypes : sequence of str, optional
        By default float32.
    seconds : float
        Time for the cases.
    mutates : sequence of str, optional
        Inputs that the op may change; one that returns nothing gives them as its outputs.
    kwargs
        Further arguments of both.

    Raises
    ------
    UsageError
        It is not clear what to run, or with what; the message says what to add.
    """
    if os.environ.get(CHECKING):
        text = "the file calls gpuemu_flow.check when it is imported, and check imports the file"
        hint = 'put the call under `if __name__ == "__main__":`'
        raise UsageError(Problem("check-in-check", text, hint))
    given = tuple(f"{name}={text}" for name, text in (inputs or {}).items())
    return run_check(
        Request(
            op if isinstance(op, str) else named(op),
            reference if isinstance(reference, str) else named(reference),
            given,
            tuple(dtypes),
            seconds,
            seed,
            mutates=tuple(mutates),
            kwargs=kwargs,
        )
    )


def run_check(request: Request) -> Check:
    """Make a workspace of an op and a reference, fuzz the op, and return the verdict."""
    begin = time.perf_counter()
    op, reference = find_target(request.op), find_target(request.reference, "Model")
    if (op.path, op.module, op.function) == (reference.path, reference.module, reference.function):
        text = f"{request.op} is both the op and the reference: it would pass whatever it does"
        raise UsageError(Problem("check-one-program", text, "name a reference of its own"))
    with tempfile.TemporaryDirectory(prefix="gpuemu-check-") as name:
        scratch = Scratch(Path(os.path.realpath(name)), op, reference, request)
        if op.is_class and reference.is_class:
            scratch.write_model()
            found = _fuzz(scratch.root, request)
            return _check(request, scratch, found, OF_MODEL, "", begin)
        found, tables = _first_taken(scratch, request, _attempts(request, op, reference))
        hint = _hint(found, tables)
        return _check(request, scratch, found, tuple(_shown(tables)), hint, begin)


def _first_taken(
    scratch: Scratch, request: Request, attempts: Iterator[dict[str, Json]]
) -> tuple[FuzzReport, dict[str, Json]]:
    """Fuzz the op with the first inputs that the programs take, or else with the likeliest."""
    end = time.perf_counter() + 3 * request.seconds
    likeliest = next(attempts)
    scratch.write(request, likeliest)
    first = _fuzz(scratch.root, request)
    if not _refused(first):
        return first, likeliest
    for tables in attempts:
        if time.perf_counter() > end:
            break
        scratch.write(request, tables)
        probe = _fuzz(scratch.root, request, PROBED)
        if not _refused(probe):
            found = _fuzz(scratch.root, request)
            if not _refused(found):
                return found, tables
        elif _type_errors(probe) == _type_errors(first) != {""}:
            break  # a call that is wrong whatever the shapes
    return first, likeliest


def _fuzz(root: Path, request: Request, probed: int = 0) -> FuzzReport:
    """Fuzz the only op of a scratch workspace, or a few cases of it."""
    environ = {k: v for k, v in os.environ.items() if k != "GPUEMU_CONFIG"}
    try:
        workspace = Workspace(root, environ=environ)
    except ConfigError as error:  # the user has no such file
        raise UsageError(*(replace(p, file="", line=0) for p in error.problems)) from None
    counts = probed or CASES * max(1, len(request.dtypes))
    options = FuzzOptions(
        iterations=counts,
        seed=request.seed,
        time_limit=request.seconds,
        start_up=START_UP,
        jobs=workspace.settings.jobs,
        confirm=False,
        enough=FAILURES,
    )
    seconds = SHRINK_SECONDS
    (report,) = fuzz_ops(workspace, (), options, minimize=not probed, minimize_seconds=seconds)
    report = with_shown(workspace, report)
    workspace.close()
    return report


def _check(
    request: Request,
    scratch: Scratch,
    report: FuzzReport,
    inputs: tuple[str, ...],
    hint: str,
    begin: float,
) -> Check:
    failures = []
    for group in report.groups:
        shown = group.minimized or group.failures[0]
        place, command = scratch.place(group.shown.place), request.command
        minimal = replace(group.shown, place=place, command=command, id="")
        failures.append(
            CheckFailure(
                group.kind,
                len(group.failures),
                ", ".join(dict.fromkeys(one.dtype for one in group.failures)),
                minimal,
                scratch.original(shown.message),
                _drawn(group),
                tuple(map(scratch.original, group.notes)),
            )
        )
    verdict, reason = report.verdict, report.reason or report.stopped_early
    if verdict is Verdict.PASSED and report.passed < FEWEST:
        verdict = Verdict.INCONCLUSIVE
        reason = f"{report.passed} cases say too little; give more time with --seconds"
    return Check(
        verdict=verdict.value,
        op=request.op,
        reference=request.reference,
        inputs=inputs,
        cases=report.iterations,
        passed=report.passed,
        inconclusive=report.inconclusive,
        failures=tuple(failures),
        reason=scratch.original(reason),
        hint=hint,
        tolerance_used=report.worst_margin,
        seed=request.seed,
        seconds=time.perf_counter() - begin,
        command=request.command,
        exit_code=exit_code([replace(report, verdict=verdict)]),
    )


def _drawn(group: CauseGroup) -> str:
    if group.telling is not None:
        return described(group.telling.case)
    return "" if group.minimized is None else described(group.failures[0].case)


def _refused(report: FuzzReport) -> bool:
    """Tell whether the inputs are not what the programs take: other shapes may be."""
    of_reference = any(group.kind == FailureKind.REFERENCE.value for group in report.groups)
    raised = all(
        group.shown.inputs
        and f"{EXCEPTION}: " in group.failures[0].message
        and recorded_reason(group.failures[0]).rpartition(":")[2] not in OF_ANY_SHAPE
        for group in report.groups
    )
    return of_reference or (raised and report.errors == report.iterations > 0)


def _type_errors(report: FuzzReport) -> set[str]:
    """Return the texts of the TypeErrors that a report shows; of anything else, an empty one."""
    return {said if "TypeError" in (said := group.shown.says) else "" for group in report.groups}


def _hint(report: FuzzReport, tables: Mapping[str, Json]) -> str:
    if not _refused(report):
        return ""
    names = list(tables["inputs"])
    shapes = ["[M,K]", "[K,N]"] if len(names) == 2 else ["[M,N]"] * len(names)
    said = " ".join(f"--input {n}={s}" for n, s in zip(names, shapes, strict=True))
    return f"if these shapes are not meant, say which are, such as {said}"


# Find the op and the reference.


def find_target(text: str, model: str = "ModelNew") -> Target:
    """Return the function, class or kernel that a text such as ``op.py:f`` names.

    If the text names none, it is the only one, or one of a usual name, such as `model`.

    Raises UsageError: There is no such file or function, or the file has several.
    """
    file, _, function = text.partition(":") if ".py:" in text or ".cu" in text else (text, "", "")
    path = Path(file)
    if path.suffix in (".py", ".cu", ".cuh"):
        if not path.is_file():
            best = nearest(path.stem, [each.stem for each in path.parent.glob(f"*{path.suffix}")])
            hint = f"did you mean {str(path.with_stem(best))!r}?" if best else ""
            raise UsageError(Problem("check-no-file", f"there is no {file}", hint))
        path = path.absolute()
        if path.suffix == ".py":
            return _python(text, path, function, model)
        return _kernel(text, path, function)
    module, _, function = text.partition(":")
    if Path(f"{module}.py").is_file():
        return find_target(f"{module}.py:{function}".rstrip(":"), model)
    if not function or not all(part.isidentifier() for part in (*module.split("."), function)):
        hint = "FILE.py:FUNCTION, KERNEL.cu:ENTRY or pkg.module:FUNCTION"
        raise UsageError(Problem("check-no-target", f"{text!r} names no program", hint))
    return Target(text, None, module, function)


def _python(text: str, path: Path, function: str, model: str) -> Target:
    try:
        tree = parse_python(path.read_bytes(), str(path))
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(Problem("check-unreadable", f"{path.name}: {error}")) from None
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = {node.name: node for node in tree.body if isinstance(node, kinds)}
    bound = {
        name
        for node in tree.body
        for name in (
            [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else [alias.asname or alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    if not function:
        lambdas = [
            ast.unparse(node.targets[0])
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda)
        ]
        public = [name for name in (*defined, *lambdas) if not name.startswith("_")]
        usual = [n for n in (path.stem, "op", "kernel", "reference", model) if n in defined]
        chosen = public if len(public) == 1 else usual[:1]
        if not chosen:
            named_ones = ", ".join(public[:8]) or "none"
            hint = f"write {text}:{public[0] if public else 'FUNCTION'}"
            said = f"which function of {path.name}? It defines {named_ones}"
            raise UsageError(Problem("check-which-function", said, hint))
        function = chosen[0]
    node = defined.get(function)
    if node is None and function not in bound:
        said = f"{path.name} defines no {function!r}"
        raise UsageError(Problem("check-no-function", said, did_you_mean(function, list(defined))))
    shown = text if ":" in text else f"{text}:{function}"
    if not isinstance(node, ast.FunctionDef):
        is_class, line = isinstance(node, ast.ClassDef), 0 if node is None else node.lineno
        found = Target(shown, path, "", function, None, is_class, line)
        if is_class and found.kind != "torch":
            said = f"{shown} is a class; of classes, only PyTorch modules are taken"
            hint = "name a function that makes one and calls it"
            raise UsageError(Problem("check-class", said, hint))
        return found
    parameters = tuple(_parameters(node))
    return Target(shown, path, "", function, parameters, False, node.lineno, _multiplies(node))


def _multiplies(node: ast.AST) -> bool:
    """Tell whether a function multiplies matrices."""
    return any(
        isinstance(each, ast.MatMult)
        or (isinstance(each, ast.Attribute) and each.attr in ("matmul", "mm", "dot", "bmm"))
        for each in ast.walk(node)
    )


def _parameters(node: ast.FunctionDef) -> Iterator[Parameter]:
    given = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(given) - len(node.args.defaults)) + list(node.args.defaults)
    keywords = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    for argument, default in [*zip(given, defaults, strict=True), *keywords]:
        annotation = "" if argument.annotation is None else ast.unparse(argument.annotation)
        shaped = _ANNOTATED.search(annotation)
        dims = tuple(_named_dims(shaped[2])) if shaped else None
        words = re.findall(r"\w+", annotation.lower())
        dtype = next((found for word in words if (found := canonical_dtype(word))), "")
        scalar = annotation if annotation in ("int", "float", "bool", "str") else ""
        if scalar:
            dtype = ""
        yield Parameter(argument.arg, default is None, dims, dtype, scalar)


def _named_dims(text: str) -> Iterator[str]:
    """Read the dims of a jaxtyping annotation, such as ``"batch 3 *rest"``."""
    for word in text.split():
        name, _, size = word.lstrip("*#?_").partition("=")
        if name:
            yield size or name


def _kernel(text: str, path: Path, entry: str) -> Target:
    """Find a kernel, or the function that launches the kernels of a file."""
    source = path.read_text(errors="replace")
    plain = C_COMMENT.sub(" ", source)
    hosts = _HOST.findall(plain)
    found = [*hosts, *_KERNEL.findall(plain)]
    entry = entry or (hosts[0] if len(hosts) == 1 else found[0] if len(found) == 1 else "")
    if entry not in found:
        names = ", ".join(found) or "no __global__ function"
        hint = f"write {path.name}:{next(iter(found), 'ENTRY')}"
        said = f"which kernel of {path.name}? It has {names}"
        raise UsageError(Problem("check-which-function", said, hint))
    declared = read_signature(source, entry) or ()
    pointers = [p.name for p in declared if p.pointer]
    inputs = {p.name for p in declared if p.constant} or {*pointers[:-1]}
    parameters = tuple(
        Parameter(p.name, dtype=p.dtype, scalar="" if p.pointer else p.dtype,
                  pointer="" if not p.pointer else "in" if p.name in inputs else "out")
        for p in declared
    )  # fmt: skip
    shown = text if ":" in text else f"{text}:{entry}"
    return Target(shown, path, "", entry, parameters, launches=entry in hosts)


def named(function: Callable[..., Any]) -> str:
    """Return the text by which a function is found again in another process.

    Raises UsageError: It is defined in no file, or inside of another function.
    """
    inner = inspect.unwrap(getattr(function, "fn", function))
    name, module = getattr(inner, "__qualname__", ""), sys.modules.get(inner.__module__ or "")
    name = name or getattr(inner, "__name__", "")
    code = getattr(inner, "__code__", None)
    file = code.co_filename if code is not None else getattr(module, "__file__", None)
    if inspect.isclass(inner):
        file = getattr(module, "__file__", None)
    of_file = code is not None or inspect.isclass(inner)
    if of_file and name.isidentifier() and file and Path(file).is_file():
        path = Path(file)
        inside = path.is_relative_to(Path.cwd())
        return f"{path.relative_to(Path.cwd()) if inside else path}:{name}"
    for place in _homes(inner):
        held = sys.modules.get(place)
        if held is not None and getattr(held, name.rpartition(".")[2], None) is inner:
            return f"{place}:{name.rpartition('.')[2]}"
    text = f"{getattr(function, '__name__', function)!r} is no function of a file"
    hint = "define it at the top level of a .py file: check runs it in a process of its own"
    raise UsageError(Problem("check-not-importable", text, hint))


def _homes(function: Any) -> list[str]:
    own = [str(function.__module__)] if getattr(function, "__module__", None) else []
    return [*own, "numpy", "torch", "torch.nn.functional", "torch.special", "scipy.special",
            "jax.numpy", "jax.nn", "jax.lax"]  # fmt: skip


# Say what the inputs are.


def parse_input(text: str) -> Parameter:
    """Read ``x=float32[M,N]``, ``x=[M,N]``, ``x=int32`` or a value, such as ``eps=1e-5``.

    Raises UsageError: ``check-bad-input``.
    """
    name, equals, said = (part.strip() for part in text.partition("="))
    if not name.isidentifier() or not equals or not said:
        hint = "write NAME=DTYPE[DIMS], as x=float32[M,N], or NAME=VALUE, as eps=1e-5"
        raise UsageError(Problem("check-bad-input", f"{text!r} describes no input", hint))
    shaped = _SHAPED.fullmatch(said)
    dtype = canonical_dtype(shaped[1] if shaped and shaped[1] else said) or ""
    if shaped and (dtype or not shaped[1]) and not _is_list(said):
        dims = tuple(part.strip() for part in shaped[2].split(",") if part.strip())
        return Parameter(name, dims=dims, dtype=dtype)
    if shaped and shaped[1]:
        hint = "such as float32, bfloat16 or int32"
        raise UsageError(Problem("check-bad-input", f"{text!r}: no dtype {shaped[1]!r}", hint))
    if dtype:
        return Parameter(name, dtype=dtype)
    try:
        return Parameter(name, value=json.loads(said), has_value=True)
    except ValueError:
        return Parameter(name, value=said, has_value=True)


def _is_list(said: str) -> bool:
    """Tell whether a text is a list of floats or texts, and so no shape."""
    try:
        return any(not isinstance(one, int) for one in json.loads(said))
    except (ValueError, TypeError):
        return False


def _attempts(request: Request, op: Target, reference: Target) -> Iterator[dict[str, Json]]:
    """Yield what the op's table says of its inputs, likeliest first.

    There are several only where no shapes are known: then the reference tells which it takes.
    """
    given = {one.name: one for one in map(parse_input, request.inputs)}
    given |= {name: Parameter(name, value=v, has_value=True) for name, v in request.kwargs.items()}
    signature = reference.parameters if reference.parameters is not None else op.parameters
    if op.is_cuda:
        signature = op.parameters
    values = {name: one.value for name, one in given.items() if one.has_value}
    tensors = {name: one for name, one in given.items() if not one.has_value}
    known = {p.name: p for p in (*(signature or ()), *(op.parameters or ()))}
    unknown = [name for name in given if known and name not in known]
    if unknown:
        said = f"neither the op nor the reference has a parameter {unknown[0]!r}"
        raise UsageError(
            Problem("check-unknown-input", said, did_you_mean(unknown[0], list(known)))
        )
    names = [
        p.name
        for p in signature or ()
        if p.name not in values
        and (p.needed or p.name in tensors)
        and not (p.scalar and p.name not in tensors)
        and p.pointer != "out"
    ]
    if signature is None:
        names = list(tensors)
    lacking = [p for p in signature or () if p.scalar and p.needed and p.name not in given]
    if lacking and not op.is_cuda:
        said = f"what is {lacking[0].name}, of type {lacking[0].scalar}?"
        hint = f"add --input {lacking[0].name}=VALUE"
        raise UsageError(Problem("check-value-needed", said, hint))
    if not names:
        said = f"the inputs of {request.reference} are not clear from its signature"
        hint = "name them, such as --input x=float32[M,N]"
        raise UsageError(Problem("check-inputs-needed", said, hint))
    of_signature, none = {p.name: p for p in signature or ()}, Parameter("")
    told = {name: (tensors.get(name, none), of_signature.get(name, none)) for name in names}
    dims = {name: own.dims if own.dims is not None else p.dims for name, (own, p) in told.items()}
    dtypes = {name: own.dtype or p.dtype for name, (own, p) in told.items()}
    asked = [canonical_dtype(name) or name for name in request.dtypes]
    own = [found for found in dtypes.values() if "float" in found]
    dtype = ",".join(asked or own[:1] or ["float32"])
    named = {name for name in names[1:] if name.lower() in PLACES and not op.is_cuda}
    dtypes |= {name: dtypes[name] or "int64" for name in named}
    integers = {name for name in names[1:] if "int" in dtypes[name]}
    for places in [named, integers] if integers != named else [named]:
        plain = [name for name in names if name not in places]
        one_dim = {name: dims[name] or ("K",) for name in names if name in places}
        for axes in _shapes(plain, dims, one_dim=op.is_cuda, multiplies=reference.multiplies):
            both = {**axes, **one_dim}
            yield {"inputs": {name: both[name] for name in names}, "dtypes": dtypes,
                   "dtype": dtype, "kwargs": values, "places": places}  # fmt: skip


def _shapes(
    names: Sequence[str],
    known: Mapping[str, tuple[str, ...] | None],
    *,
    one_dim: bool,
    multiplies: bool,
) -> Iterator[Mapping[str, tuple[str, ...]]]:
    """Yield shapes of all inputs; those that nobody said are guessed, likeliest first."""
    unknown = [name for name in names if known[name] is None]
    if not unknown:
        yield {name: dims for name, dims in known.items() if dims is not None}
        return
    if len(unknown) < len(names):
        told = next(dims for dims in known.values() if dims is not None)
        rest = [told, told[-1:]]
        for dims in reversed(rest) if WEIGHTS.intersection(map(str.lower, unknown)) else rest:
            yield {name: dims if own is None else own for name, own in known.items()}
        return
    if one_dim:
        yield dict.fromkeys(names, ("N",))
        return
    every: list[tuple[str, ...]] = [("M", "N"), ("B", "S", "H"), ("N",), ("B", "H", "S", "D")]
    likely: list[Mapping[str, tuple[str, ...]]] = [dict.fromkeys(names, dims) for dims in every]
    if len(names) in (2, 3):
        rows = {**dict.fromkeys(names, ("N",)), names[0]: ("M", "N")}
        product = {**rows, names[0]: ("M", "K"), names[1]: ("K", "N")}
        alike = ATTENTION.issuperset(map(str.lower, names))
        likely.insert(0 if multiplies and not alike else 1, product)
        likely.insert(0 if names[1].lower() in WEIGHTS and not multiplies else 2, rows)
    yield from likely


def _shown(tables: Mapping[str, Json]) -> Iterator[str]:
    for name, dims in tables["inputs"].items():
        of = f" (places in {next(iter(tables['inputs']))})" if name in tables["places"] else ""
        yield f"{name}={tables['dtypes'][name] or tables['dtype']}[{','.join(dims)}]{of}"
    yield from (f"{name}={json.dumps(value)}" for name, value in tables["kwargs"].items())


# Write the workspace.


class Scratch:
    """A temporary workspace with a copy of the sources; nothing of the user's is changed."""

    def __init__(self, root: Path, op: Target, reference: Target, request: Request) -> None:
        self.root = root
        self._grid, self._block = request.grid, request.block
        self._op, self._reference = op, reference
        files = [target.path for target in (op, reference) if target.path is not None]
        cwd = Path.cwd()
        self._base = cwd
        if files and not all(file.is_relative_to(cwd) for file in files):
            self._base = Path(os.path.commonpath([file.parent for file in files]))
        if files:
            self._copy(files)

    def _copy(self, files: Sequence[Path]) -> None:
        """Copy the sources of the base folder; of a huge one, only the folders of the programs."""
        found, size = [], 0
        for folder, inner, names in os.walk(self._base):
            inner[:] = [
                n
                for n in inner
                if not n.startswith(".") and n not in _LEFT_OUT
                and not Path(folder, n, "pyvenv.cfg").exists()
            ]  # fmt: skip
            for each in names:
                path = Path(folder, each)
                with contextlib.suppress(OSError):
                    length = path.stat().st_size
                    if path.is_file() and length <= LARGEST_FILE:
                        found.append(path)
                        size += length
            if len(found) > MOST_FILES or size > MOST_BYTES:
                beside = (p for file in files for p in file.parent.iterdir())
                found = [p for p in beside if p.is_file() and p.stat().st_size <= LARGEST_FILE]
                break
        for path in dict.fromkeys((*found, *files)):
            if path.name != "gpuemu.toml":
                goal = self.root / path.relative_to(self._base)
                goal.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, goal)

    def original(self, text: str) -> str:
        """Return a text with paths as they were before the copy, and the option for a key."""
        there = "" if self._base == Path.cwd() else f"{self._base}/"
        text = text.replace(f"{self.root}/", there).replace("`timeout` of the op", "--seconds")
        text = text.replace("as in `input_names`", "as the reference does")
        return _MUTATES.sub(r"`--mutates \1`", text)

    def place(self, text: str) -> str:
        """Return a place in the sources; of what is written here for the op, the op's place."""
        ours = self._op.is_class and text.startswith("problems/")
        if ours or SHIM.format("op") in text:
            return f"{self._op.text.partition(':')[0]}:{self._op.line}"
        return self.original(text)

    def relative(self, target: Target) -> str:
        """Return a target's path in the workspace."""
        assert target.path is not None  # noqa: S101 - only asked of files
        return target.path.relative_to(self._base).as_posix()

    def write(self, request: Request, tables: Mapping[str, Json]) -> None:
        """Write the configuration: one op, with these inputs."""
        dtypes = tables["dtype"].split(",")
        table: dict[str, Json] = {
            "name": "checked",
            "op": self._program(self._op, tables),
            "reference": self._program(self._reference, tables),
            "input_names": list(tables["inputs"]),
            "dtypes": dtypes,
            "timeout": max(CASE_SECONDS, request.seconds),
            "env": {CHECKING: "1"},
            "mutates": list(request.mutates),
        }
        if tables["kwargs"] and not self._op.is_cuda:
            table["kwargs"] = tables["kwargs"]
        axes: Mapping[str, tuple[str, ...]] = tables["inputs"]
        explicit = {n: d for n, d in tables["dtypes"].items() if d and d != dtypes[0]}
        table["schema"] = {
            "dims": _ranges(axes.values()),
            "inputs": {
                name: {
                    "dims": _axes(dims),
                    **({"dtype": explicit[name]} if name in explicit else {}),
                    **(
                        {"kind": "indices", "of": next(iter(axes))}
                        if name in tables["places"]
                        else {}
                    ),
                }
                for name, dims in axes.items()
            },
        }
        text = table_text("[project]", {"name": "check"}) + table_text("[[ops]]", table)
        (self.root / "gpuemu.toml").write_text(text)

    def write_model(self) -> None:
        """Write the workspace that ``import kernelbench`` makes of `Model` and `ModelNew`."""
        from gpuemu_flow.services.problems.kernelbench import import_kernelbench  # noqa: PLC0415
        from gpuemu_flow.services.problems.model import Options  # noqa: PLC0415

        model, candidate = self._reference.path, self._op.path
        assert model is not None and candidate is not None  # noqa: S101 - both are classes of files
        files: dict[str, bytes] = {}
        if model == candidate:  # of one file: the problem is what remains without the candidate
            text = re.sub(r"^class ModelNew\b", "class ModelHere", model.read_text(), flags=re.M)
            model = self.root / "problem.py"
            model.write_text(text)
            files = {model.name: text.encode()}
        options = Options((candidate,), small=True, cases=CASES, into=self.root)
        outcome = import_kernelbench(model, options, lambda _: None)
        if not any(taken.source.candidates for taken in outcome.taken):
            said = "; ".join(f"{Path(one.what).name}: {one.reason}" for one in outcome.left)
            hint = "a problem has Model, get_inputs and get_init_inputs; the op is ModelNew"
            raise UsageError(Problem("check-no-model", said or "no problem was found", hint))
        shutil.rmtree(self.root)
        for name, content in {**outcome.files, **files}.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_bytes(content)

    def _program(self, target: Target, tables: Mapping[str, Json]) -> Json:
        names = list(tables["inputs"])
        if target.is_cuda:
            return self._launch(target, tables)
        if target.path is None:
            if not target.kind:
                return f"{target.module}:{target.function}"
            return {"kind": target.kind, "module": target.module, "function": target.function}
        file, function = self.relative(target), target.function
        same = self._op.path == target.path == self._reference.path
        if target is self._reference and same:  # an op must not be able to read its reference
            file = str(Path(file).with_name(SHIM.format("reference_of")))
            shutil.copyfile(target.path, self.root / file)
        if target.is_class:
            return {"kind": "torch", "file": file, "module_class": function}
        mine = [p.name for p in target.parameters or () if p.needed]
        if target.parameters is not None and len(mine) == len(names) and set(mine) != set(names):
            file, function = self._shim(target, file, names), "call"
        if not target.kind:
            return f"{file}:{function}"
        return {"kind": target.kind, "file": file, "function": function}

    def _shim(self, target: Target, file: str, names: Sequence[str]) -> str:
        """Write a function that takes the inputs by their names, and passes them on in order."""
        role = "op" if target is self._op else "reference"
        place = Path(file).with_name(SHIM.format(role))
        module = Path(file).stem
        if not module.isidentifier():
            said = f"the parameters of {target.text} are named otherwise than the reference's"
            hint = f"name them {', '.join(names)}"
            raise UsageError(Problem("check-parameter-names", said, hint))
        packages = "".join(f"import {p}\n" for p, kind in _KINDS if kind == target.kind)
        passed = ", ".join(names)
        (self.root / place).write_text(
            f"{packages}from {module} import {target.function} as _given\n\n\n"
            f"def call({passed}, **more):\n    return _given({passed}, **more)\n"
        )
        return place.as_posix()

    def _launch(self, target: Target, tables: Mapping[str, Json]) -> Json:
        """Return the program of CUDA; by default, each thread of a kernel has one element."""
        axes = tables["inputs"]
        first = next(iter(axes.values()))
        elements = "*".join(first) or "1"
        numbers = [p for p in target.parameters or () if not p.pointer]
        dims = {dim.lower(): dim for shape in axes.values() for dim in shape}
        counts = [p for p in numbers if "int" in p.dtype]
        arguments: list[Json] = []
        for p in target.parameters or ():
            if p.pointer:
                arguments.append(p.name)
                continue
            value = tables["kwargs"].get(p.name)
            if value is None and "int" in p.dtype:
                value = dims.get(p.name.lower()) or (elements if len(counts) == 1 else None)
            if value is None:
                said = f"what is {p.name} of the kernel {target.function}?"
                hint = f"add --input {p.name}=VALUE, a number or an expression of dims"
                raise UsageError(Problem("check-value-needed", said, hint))
            arguments.append({re.sub(r"([uif])[a-z]+", r"\1", p.dtype or "int32"): value})
        outputs = {
            p.name: {"dims": list(first), "dtype": p.dtype}
            for p in target.parameters or ()
            if p.pointer == "out"
        }
        table = {
            "kind": "cuda",
            "file": self.relative(target),
            "args": arguments,
            "outputs": outputs,
        }
        if target.launches:
            return {**table, "function": target.function}
        block = self._block or "256"
        grid = (self._grid or f"({elements} + {block} - 1) // {block}").split(",")
        launch = {"grid": grid, "block": [int(each) for each in block.split(",")]}
        return {**table, "entry": target.function, **launch}


def _axes(dims: Sequence[str]) -> list[int | str]:
    return [int(dim) if dim.isdecimal() else dim for dim in dims]


def _ranges(shapes: Iterable[Sequence[str]]) -> dict[str, Json]:
    """Return a range of sizes for each dim: the last dims of tensors are long."""
    found: dict[str, int] = {}
    for dims in shapes:
        for number, dim in enumerate(dims, 1):
            if dim.isidentifier():
                last, others = _SIZES.get(len(dims), (17, 5))
                largest = last if number == len(dims) else others
                found[dim] = max(found.get(dim, 0), largest)
    return {dim: {"min": 1, "max": largest} for dim, largest in found.items()}
