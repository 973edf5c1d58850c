"""Every key of gpuemu.toml decides something: without it, an example means something else.

The keys are those of the schema, none is listed here. Each is taken out of the valid examples, all
of which load; what is left has to load to another model, or to errors.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
from config_workspace import DATA, ConfigWorkspace
from for_each import for_each
from msgspec.structs import replace

from gpuemu_flow.config.fields import Table, forms, keys_of, rows_of, table_of
from gpuemu_flow.config.tables import File
from gpuemu_flow.model.errors import ConfigError

KeyPath = tuple[str, ...]
ELSEWHERE = {
    # The examples' programs import no framework but one, and the key's own tests show the rest.
    ("project", "framework"): "test_config_frameworks.py",
    ("project", "allow_outside"): "test_config_programs.py",
    ("profiles",): "../behaviour/test_profiles.py",  # it counts where a command names it
    # Said of ops that cannot be run: words of a report.
    ("kernels", "reference"): "../behaviour/test_config_errors.py",
    ("kernels", "tolerances"): "../behaviour/test_config_errors.py",
    ("kernels", "invariants"): "../behaviour/test_config_errors.py",
}
"""Keys of which an example in `valid` can show nothing, and the test that shows what they do."""


def keys(table: type[Table], where: KeyPath = ()) -> Iterator[tuple[KeyPath, tuple[str, ...]]]:
    """Every key below a table by its path, with all of its spellings."""
    for key in keys_of(table).values():
        here = (*where, key.name)
        yield here, (key.name, *key.aliases)
        for form in forms(key.type) if here not in ALIKE else ():
            inner = table_of(form) or rows_of(form)
            if inner:
                yield from keys(inner, here)


ALIKE = {("ops", "op_script"), ("ops", "reference")}
"""Keys whose values are programs, as that of ``op`` is: what these tables hold is told there."""
SPELLINGS = dict(keys(File))


def owners(tree: Any, path: KeyPath, at: int = 0) -> Iterator[tuple[dict[str, Any], str]]:
    """Tables that have the last key of a path, with its spelling there."""
    if isinstance(tree, list):
        for row in tree:
            yield from owners(row, path, at)
        return
    if not isinstance(tree, dict):
        return
    here = path[: at + 1]
    names = SPELLINGS[here]
    if at + 1 == len(path):
        yield from ((tree, name) for name in names if name in tree)
        return
    through = [*names, *(alike[-1] for alike in ALIKE if here == ("ops", "op"))]
    for name in through:
        if name in tree:
            yield from owners(tree[name], path, at + 1)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(k)} = {toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return json.dumps(value)


def text(tree: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in tree.items())


def meaning(workspace: ConfigWorkspace, tree: dict[str, Any]) -> str:
    """The meaning of a file: its model without places, or its errors."""
    try:
        config = workspace.load(text(tree))
    except ConfigError as failed:
        return f"errors: {[problem.slug for problem in failed.problems]}"
    shown = repr(replace(config, files=(), warnings=()))
    return re.sub(r"\bline=\d+", "", shown)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def examples(workspace: ConfigWorkspace) -> list[tuple[dict[str, Any], str]]:
    trees = [tomli.loads(path.read_text()) for path in sorted((DATA / "valid").glob("*.toml"))]
    found = [(tree, meaning(workspace, tree)) for tree in trees]
    return [(tree, told) for tree, told in found if not told.startswith("errors")]


def test_examples_load_when_they_are_written_anew(examples: list[tuple[Any, str]]) -> None:
    assert len(examples) >= 9


@for_each("path", SPELLINGS)
def test_without_the_key_an_example_means_something_else(
    path: KeyPath, workspace: ConfigWorkspace, examples: list[tuple[dict[str, Any], str]]
) -> None:
    if path in ELSEWHERE:
        other = Path(__file__).parent / ELSEWHERE[path]
        assert re.search(rf"\b{path[-1]}\b", other.read_text())
        return
    tried = 0
    for tree, before in examples:
        for number, _ in enumerate(owners(tree, path)):
            less = copy.deepcopy(tree)
            table, name = list(owners(less, path))[number]
            del table[name]
            tried += 1
            if meaning(workspace, less) != before:
                return
    raise AssertionError(f"{tried} examples mean the same without {'.'.join(path)}")
