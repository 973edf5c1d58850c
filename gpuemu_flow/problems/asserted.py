"""Import tests: each comparison of a kernel with a reference becomes an op with a reference."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

from gpuemu_flow.cases.schema import WARNING_SLUGS, parse_schema
from gpuemu_flow.problems.asserted_found import Comparison, Test, find_tests
from gpuemu_flow.problems.asserted_modules import LocalModules
from gpuemu_flow.problems.asserted_problem import AssertedProblem, ComparisonSide, read_comparison
from gpuemu_flow.problems.asserted_slices import ModuleText
from gpuemu_flow.problems.asserted_tolerances import tolerances_of
from gpuemu_flow.problems.asserted_values import Expander, NotUnderstoodError
from gpuemu_flow.problems.found import plain_name, python_files, read_source, unique_name
from gpuemu_flow.problems.model import (
    CandidateProgram,
    ImportedProblem,
    ImportOutcome,
    ProblemFacts,
    ProblemSource,
    SkippedProblem,
)
from gpuemu_flow.problems.options import Options
from gpuemu_flow.problems.probing import ADAPTERS
from gpuemu_flow.problems.toml_tables import table_text
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.syntax import parse_python
from gpuemu_flow.types import Json

_HEAD = "# Written by gpuemu-flow import; yours to change.\n"
_VALIDATION: dict[str, Json] = {
    "dtypes": ["float32"],
    # Tests pass contiguous and finite values to their kernels.
    "layouts": ["contiguous"],
    "strategies": ["core"],
}
_TORCH_RUNTIME = ("stand_in.py", "tensors.py")
_GPU_WORDS = ("cuda", "hip", "xpu")


@dataclass
class _Writer:
    """Collector of the files and ops of the workspace that the import makes."""

    options: Options
    files: dict[str, bytes] = field(default_factory=dict)
    ops: list[dict[str, Json]] = field(default_factory=list)
    taken: dict[str, ImportedProblem] = field(default_factory=dict)
    left: list[SkippedProblem] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def import_pytest(path: Path, options: Options, announce: Callable[[str], None]) -> ImportOutcome:
    """Make a workspace from the comparisons in tests, without running the tests.

    Parameters
    ----------
    announce : callable
        Called with each test's name.

    Raises
    ------
    UsageError
        ``import-not-found``, ``import-too-many``, ``import-unreadable``. A test that is not
        understood does not raise an error; `ImportOutcome.left` lists it.
    """
    writer = _Writer(options)
    for file in python_files(path):
        if path.is_dir() and not (file.name.startswith("test") or file.stem.endswith("_test")):
            continue
        _file(file, writer, announce)
    if writer.ops:
        text = table_text("[project]", {"name": plain_name(path.resolve().stem)})
        validation = {"cases": options.cases, **_VALIDATION}
        parts = [_HEAD + text, table_text("[validation]", validation)]
        parts += [table_text("[[ops]]", op) for op in writer.ops]
        writer.files["gpuemu.toml"] = "\n".join(parts).encode()
    return ImportOutcome(writer.files, tuple(writer.taken.values()), tuple(writer.left))


def _file(file: Path, writer: _Writer, announce: Callable[[str], None]) -> None:
    content = read_source(file)
    try:
        tree = parse_python(content, str(file))
        text = content.decode()
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        writer.left.append(
            SkippedProblem(str(file), f"no Python that parses: {type(error).__name__}")
        )
        return
    module, expander = ModuleText(text, tree), Expander(tree)
    modules = LocalModules(file)
    for test in find_tests(tree):
        announce(test.name)
        name = unique_name(plain_name(test.name), writer.problems)
        writer.problems.append(name)
        for line, reason in test.left:
            writer.left.append(SkippedProblem(f"{file}:{line}: {test.name}", reason))
        if test.left:
            continue
        if not test.comparisons:
            reason = "no comparison that can be read: assert_close, allclose or their like"
            writer.left.append(SkippedProblem(f"{file}:{test.node.lineno}: {test.name}", reason))
        for comparison in test.comparisons:
            try:
                compared = _compared(test, comparison, module, expander, writer.options)
                _write(compared, comparison, _Where(file, test, name, module, modules), writer)
            except NotUnderstoodError as error:
                where = f"{file}:{comparison.line}: {test.name}"
                writer.left.append(SkippedProblem(where, str(error)))
            except (RecursionError, MemoryError, ValueError, KeyError) as error:
                where = f"{file}:{comparison.line}: {test.name}"
                reason = f"its text cannot be read: {type(error).__name__}"
                writer.left.append(SkippedProblem(where, reason))


@dataclass(frozen=True)
class _Where:
    file: Path
    test: Test
    name: str
    module: ModuleText
    modules: LocalModules


def _write(
    compared: AssertedProblem, comparison: Comparison, where: _Where, writer: _Writer
) -> None:
    """Add the files and ops of one comparison."""
    folder = f"asserted/{where.name}"
    label = _label(comparison, compared, where)
    kernels = [
        one
        for one in compared.parameters.of_kind("callable")
        if one.name in compared.actual.needed and one.name not in compared.expected.needed
    ]
    if (
        any(one.name in compared.expected.needed for one in compared.parameters.of_kind("callable"))
        or len(kernels) > 1
    ):
        raise NotUnderstoodError("several parameters are functions")
    reference = _program(compared, compared.expected, {}, where)
    files = {f"{folder}/ref_{label}.py": reference}
    ops = []
    choices = [(kernels[0].name, one) for one in kernels[0].nodes] if kernels else [("", None)]
    candidates = []
    for name, node in choices:
        bound = {name: node} if node is not None else {}
        candidate = label
        if node is not None:
            candidate = plain_name(ast.unparse(node))
            if len(where.test.comparisons) > 1:
                candidate = f"{candidate}.{label}"
        text = _program(compared, compared.actual, bound, where)
        triton = where.modules.mention(text, "triton")
        files[f"{folder}/op_{candidate}.py"] = text
        ops.append(_table(compared, where, label, candidate, triton=triton))
        candidates.append(CandidateProgram(candidate, where.file, b"", triton))
        gpu = not triton and _asks_for_gpu(text, where.modules)
        files[f"{folder}/op_{candidate}.py"] = _ended(text, compared, gpu=gpu)
    gpu = _asks_for_gpu(reference, where.modules)
    files[f"{folder}/ref_{label}.py"] = _ended(reference, compared, gpu=gpu)
    if writer.options.keep_tolerances:
        kept, note = tolerances_of(comparison, compared, where.test)
        ops = [{**op, **({"tolerances": kept} if kept else {})} for op in ops]
        notes = (*compared.notes, *([note] if note else []))
    else:
        notes = compared.notes
    writer.files |= {path: text.encode() for path, text in files.items()}
    writer.files |= where.modules.found
    torch = any("torch" in text for text in files.values())
    runtime = ("asserted.py", *(_TORCH_RUNTIME if torch else ()))
    writer.files |= {f"adapters/{name}": (ADAPTERS / name).read_bytes() for name in runtime}
    writer.ops += ops
    source = ProblemSource(f"{where.name}/{label}", where.file, b"", {}, tuple(candidates))
    dims = {name: tuple(sizes) for name, sizes in compared.schema["dims"].items()}
    writer.taken[f"{where.name}/{label}"] = ImportedProblem(
        source, ProblemFacts((), ()), dims, scaled=compared.scaled, notes=notes
    )


def _compared(
    test: Test, comparison: Comparison, module: ModuleText, expander: Expander, options: Options
) -> AssertedProblem:
    """Return a comparison as a problem whose schema is valid.

    The sizes are varied and scaled down as `options` says. If that gives no valid schema, they are
    not varied. If that gives none either, they are neither varied nor scaled down.

    Raises
    ------
    NotUnderstoodError
        None of these gives a valid schema.
    """
    last = ""
    for one in (
        options,
        replace(options, varied=False),
        replace(options, varied=False, small=False),
    ):
        compared = read_comparison(test, comparison, module, expander, one)
        last = _fault(compared.schema)
        if not last:
            return compared
    raise NotUnderstoodError(f"its inputs: {last}")


def _fault(schema: Mapping[str, Json]) -> str:
    faults: list[str] = []

    def report(_: tuple[str | int, ...], slug: str, message: str, hint: str) -> None:
        if slug not in WARNING_SLUGS:
            faults.append(message)

    parse_schema(schema, (), report)
    return faults[0] if faults else ""


def _label(comparison: Comparison, compared: AssertedProblem, where: _Where) -> str:
    """Return a name for a compared value: its variable, or else the line of the comparison.

    The line is appended if the test compares the same expression more than once.
    """
    value = compared.actual.value
    label = value.id if isinstance(value, ast.Name) else f"line{comparison.line}"
    same = [
        one
        for one in where.test.comparisons
        if ast.unparse(one.actual) == ast.unparse(comparison.actual)
    ]
    return f"{label}_{comparison.line}" if len(same) > 1 else label


def _program(
    compared: AssertedProblem,
    side: ComparisonSide,
    bound: Mapping[str, ast.expr | None],
    where: _Where,
) -> str:
    """Return the source of a program that computes one side of a comparison in a test.

    The source lacks its last statement, which `_ended` appends. `bound` maps parameters of the test
    to the expressions whose values they get.
    """
    needed = set(side.needed)
    lines = compared.bindings(side)
    extra: set[str] = set()
    for name, node in bound.items():
        if node is not None:
            lines.append(f"{name} = {ast.unparse(node)}")
            extra |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    for one in compared.parameters.all.values():
        if one.kind in ("choice", "default") and one.name in needed:
            extra |= {n.id for e in one.nodes for n in ast.walk(e) if isinstance(n, ast.Name)}
    top, names = where.module.closure((needed | extra) - set(compared.parameters.all))
    for statement in side.body:
        drawn = "rand" in ast.unparse(statement)
        lines += [f"_given.seed({statement.lineno})"] if drawn else []
        lines += ast.unparse(statement).splitlines()
    lines.append(f"return {ast.unparse(side.value)}")
    head = f"# What line {compared.line} of {where.file.name!r} compares, by gpuemu-flow import.\n"
    above = [where.modules.imported(node, where.module.source(node, names)) for node in top]
    body = "\n".join(f"    {line}" for line in lines)
    imports = "from adapters import asserted as _gpuemu\n"
    return f"{head}{imports}{chr(10).join(above)}\n\n\ndef _compared(_given):\n{body}\n"


def _ended(text: str, compared: AssertedProblem, *, gpu: bool) -> str:
    libraries = {one.name: one.library for one in compared.inputs}
    call = f"_gpuemu.function(_compared, {libraries!r}, {compared.main!r}, gpu={gpu})"
    return f"{text}\n\nvalue = {call}\n"


def _asks_for_gpu(text: str, modules: LocalModules) -> bool:
    torch = "torch" in text
    return torch and any(modules.mention(text, word) for word in _GPU_WORDS)


def _table(
    compared: AssertedProblem,
    where: _Where,
    label: str,
    candidate: str,
    *,
    triton: bool,
) -> dict[str, Json]:
    file = f"asserted/{where.name}/op_{candidate}.py"
    program: Json = f"{file}:value"
    if triton:
        program = {"kind": "triton", "file": file, "function": "value"}
    table: dict[str, Json] = {
        "name": f"{where.name}/{candidate}",
        "op": program,
        "reference": f"asserted/{where.name}/ref_{label}.py:value",
        "isolation": "warm",
    }
    if compared.dtypes != ("float32",):
        table["dtypes"] = list(compared.dtypes)
    return {**table, "schema": compared.schema}
