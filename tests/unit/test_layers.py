"""The house keeps its floors: imports lead downward only, and never in a circle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli
from import_graph import PACKAGE, ROOT, Import, cycles, read_imports, source_files

LAYERS = (
    ("__main__", "front", "pytest_plugin"),
    ("cli", "testing"),
    ("daemon", "debug", "init", "lsp", "problems", "watch"),
    ("reporting",),
    ("cluster",),
    ("fuzz",),
    ("engine",),
    ("selection",),
    ("graph",),
    ("inputs",),
    ("reports",),
    ("results",),
    ("tasks",),
    ("judging",),
    ("artifacts", "emulator", "runners", "store", "cases", "config", "wire"),
    ("numerics",),
    (
        "types",
        "errors",
        "",
        "observed",
        "schemas",
        "syntax",
        "verdicts",
        "kernel_findings",
        "let_through",
        "expressions",
        "in_place",
        "installed",
        "value_rules",
        "plain_text",
        "shown_values",
    ),
    ("quick_dataclass",),
)
"""From the top; the empty name is the package's own ``__init__`` with the version."""

BESIDE = {
    # Op schemas are parsed and checked where cases are planned; these modules need no numpy.
    # How a compiled kernel is launched is checked with the rest of a configuration.
    "config": (
        "gpuemu_flow.cases.grouped",
        "gpuemu_flow.cases.schema",
        "gpuemu_flow.cases.op_schema",
        "gpuemu_flow.cases.output_contracts",
        "gpuemu_flow.emulator.described",
    ),
    # Workers make a case's tensors themselves, and run compiled kernels.
    "runners": (
        "gpuemu_flow.lint.ptx.source",
        "gpuemu_flow.cases.generate",
        "gpuemu_flow.emulator.cases",
        "gpuemu_flow.emulator.described",
        "gpuemu_flow.emulator.findings",
        "gpuemu_flow.emulator.launch",
        "gpuemu_flow.emulator.tensor_maps",
        "gpuemu_flow.emulator.variants",
    ),
    # One generator of cases, and one interpreter of Triton kernels, in the house and outside of it.
    "fuzzing": ("gpuemu_flow.cases.protocol_v1", "gpuemu_flow.cases.protocol_v1"),
    "frameworks": (
        "gpuemu_flow.workers.triton_interpreter",
        "gpuemu_flow.workers.triton_runner",
        "gpuemu_flow.workers.triton_memory",
    ),
    # The emulator reads PTX with the parser of the linter.
    "emulator": (
        "gpuemu_flow.lint.ptx",
        "gpuemu_flow.lint.ptx.parser",
        "gpuemu_flow.lint.ptx.model",
        "gpuemu_flow.lint.ptx.opcode",
        "gpuemu_flow.lint.ptx.opcode",
        "gpuemu_flow.lint.ptx.opcode",
        # Compiled kernels are kept in the user's cache.
        "gpuemu_flow.store.user_cache",
    ),
    "__main__": ("gpuemu_flow.front",),
    "errors": ("gpuemu_flow.model.types",),
    "types": (
        "gpuemu_flow.model.errors",
        "gpuemu_flow.model.kernel_findings",
        "gpuemu_flow.model.value_rules",
    ),
    "observed": ("gpuemu_flow.model.types",),
    "shown_values": ("gpuemu_flow.model.types",),
    "verdicts": ("gpuemu_flow.model.types",),
}
"""Modules that a package may import from another package on its own floor."""

FROM_OUTSIDE = ("client", "frameworks", "fuzzing", "rng", "tolerances", "validate", "validation")
"""Used in other people's processes: they see only what the wire needs."""
FOR_OUTSIDE = (
    "wire", "numerics", "types", "errors", "syntax", "verdicts", "in_place", "installed", "",
    *FROM_OUTSIDE
)  # fmt: skip

PUBLIC = ("gpuemu_flow", "gpuemu_flow.client", "gpuemu_flow.frameworks")
"""Packages whose names docs/daemon.md tells people to import; they are loaded when asked for, and
named for type checkers."""
CHEAP = ("typing", "importlib")

THIRD_PARTY = {
    "doit": ("engine",),
    "diskcache": ("store",),
    "pynng": ("daemon",),
    "click": ("cli",),
    "rich": ("cli",),
    "watchfiles": ("watch",),
    "pygls": ("lsp",),
    "lsprotocol": ("lsp",),
    "jsonschema": ("results",),
    "tomli": ("config",),
    "dask": ("cluster",),
    "distributed": ("cluster",),
}
"""Packages that one place alone may use; without a word here, a package is free."""

ALWAYS_THERE = {*sys.stdlib_module_names, PACKAGE, "adapters"}
"""``adapters`` are our own files, copied into an imported workspace."""


def part_of(module: str) -> str:
    """The package or top module that a module belongs to: ``engine`` for its ``build.run``."""
    return module.removeprefix(PACKAGE).removeprefix(".").partition(".")[0]


def floor(part: str) -> int:
    """Return the number of a part's layer, from the top; AssertionError for a part without one."""
    for number, names in enumerate(LAYERS):
        if part in names:
            return number
    raise AssertionError(f"{PACKAGE}.{part} stands in no layer; give it one here and in the docs")


def breaches(imports: list[Import]) -> list[str]:
    """Imports of ours that do not lead downward."""
    found = []
    for item in imports:
        if item.target.partition(".")[0] != PACKAGE or named_for_checkers(item):
            continue
        source, target = part_of(item.module), part_of(item.target)
        if source == target:
            continue
        if source in FROM_OUTSIDE:
            allowed = target in FOR_OUTSIDE or item.target in BESIDE.get(source, ())
        elif target in FROM_OUTSIDE:
            allowed = floor(source) <= floor("cli")
        else:
            downward = floor(source) < floor(target)
            allowed = downward or item.target in BESIDE.get(source, ())
        if not allowed:
            found.append(str(item))
    return found


def named_for_checkers(item: Import) -> bool:
    """A name that a public package gives on, loaded when someone asks for it."""
    return item.module in PUBLIC and item.type_checking


def foreign(imports: list[Import]) -> list[str]:
    """Imports of packages that only another place may use."""
    return [
        str(item)
        for item in imports
        if not item.type_checking
        and part_of(item.module) not in THIRD_PARTY.get(item.target.partition(".")[0], ())
        and item.target.partition(".")[0] in THIRD_PARTY
    ]


@pytest.fixture(scope="module")
def imports() -> list[Import]:
    found = read_imports(source_files())
    assert len(found) > 300, "the scan does not see the package"
    assert any(item.module.startswith("gpuemu_flow.tasks.") for item in found)
    return found


def test_imports_lead_downward(imports: list[Import]) -> None:
    assert breaches(imports) == []


def test_no_module_imports_itself_by_way_of_others(imports: list[Import]) -> None:
    edges: dict[str, set[str]] = {}
    for item in imports:
        if item.target.partition(".")[0] == PACKAGE and not named_for_checkers(item):
            edges.setdefault(item.module, set()).add(item.target)
    assert cycles(edges) == []


def test_third_party_packages_stay_in_their_place(imports: list[Import]) -> None:
    assert foreign(imports) == []


def test_third_party_packages_are_declared(imports: list[Import]) -> None:
    project = tomli.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    wanted = [*project["dependencies"], *(name for extra in extras for name in extra)]
    declared = {name.split("[")[0].split(">")[0].split("<")[0].strip() for name in wanted}
    used = {item.target.partition(".")[0] for item in imports if not item.type_checking}
    declared |= {"yaml"} if "pyyaml" in declared else set()  # its module has another name
    assert used - ALWAYS_THERE <= {name.replace("-", "_") for name in declared}


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("from gpuemu_flow.cli import main\n", "store/bad.py", "breach"),
        ("from gpuemu_flow.store import keys\n", "runners/bad.py", "breach"),
        ("def f():\n    import gpuemu_flow.build.run\n", "tasks/bad.py", "breach"),
        ("if TYPE_CHECKING:\n    from gpuemu_flow.tasks.base import TaskSpec\n", "cases/bad.py",
         "breach"),
        ("from ..engine import run\n", "numerics/bad.py", "breach"),
        ("import doit.task\n", "tasks/bad.py", "foreign"),
        ("def f():\n    from diskcache import Cache\n", "engine/bad.py", "foreign"),
        ("from gpuemu_flow.cases.generate import materialise\n", "config/bad.py", "breach"),
    ],
)  # fmt: skip
def test_a_breach_is_seen(tmp_path: Path, text: str, name: str, problem: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(text)
    files = source_files()
    module = f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')}"
    mine = read_imports({**files, module: path}, [module])
    assert len(breaches(mine)) == (problem == "breach")
    assert len(foreign(mine)) == (problem == "foreign")


def test_types_may_be_imported_from_anywhere_for_checking_only(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("if TYPE_CHECKING:\n    from doit.task import Task\n")
    assert foreign(read_imports({"gpuemu_flow.tasks.bad": path})) == []


def test_a_circle_is_seen() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"a"}}) == [["a"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}}) == []
