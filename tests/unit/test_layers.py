"""The house keeps its floors: imports lead downward only, and never in a circle."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli
from import_graph import PACKAGE, ROOT, Import, cycles, read_imports, source_files

LAYERS = (
    ("__main__",),
    ("front", "pytest_plugin"),
    ("validate",),
    ("cli", "validation", "fuzzing"),
    ("services",),
    ("report",),
    ("fuzz",),
    ("build",),
    ("tasks",),
    ("judge",),
    ("frameworks",),
    ("workers",),
    ("config",),
    ("emulator",),
    ("lint",),
    ("store",),
    ("client",),
    ("wire",),
    ("cases",),
    ("tolerances", "rng"),
    ("numerics",),
    ("model",),
    ("",),
)
"""From the top; the empty name is the package's own ``__init__`` with the version."""

PUBLIC = ("gpuemu_flow", "gpuemu_flow.client", "gpuemu_flow.frameworks")
"""Packages whose names docs/daemon.md tells people to import; they are loaded when asked for, and
named for type checkers."""
CHEAP = ("typing", "importlib")

THIRD_PARTY = {
    "doit": ("build",),
    "diskcache": ("store",),
    "pynng": ("services",),
    "click": ("cli",),
    "rich": ("cli",),
    "pygls": ("services",),
    "lsprotocol": ("services",),
    "jsonschema": ("report",),
    "tomli": ("config",),
    "dask": ("services",),
    "distributed": ("services",),
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
        allowed = floor(source) < floor(target)
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


pytestmark = pytest.mark.ci


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
        if item.target.partition(".")[0] == PACKAGE and item.eager:
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
        ("from gpuemu_flow.build import plan\n", "workers/bad.py", "breach"),
        ("def f():\n    import gpuemu_flow.build.run\n", "tasks/bad.py", "breach"),
        ("if TYPE_CHECKING:\n    from gpuemu_flow.tasks.base import TaskSpec\n", "cases/bad.py",
         "breach"),
        ("from ..build import run\n", "numerics/bad.py", "breach"),
        ("import doit.task\n", "tasks/bad.py", "foreign"),
        ("def f():\n    from diskcache import Cache\n", "build/bad.py", "foreign"),
        ("from gpuemu_flow.workers.pool import Pool\n", "config/bad.py", "breach"),
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
