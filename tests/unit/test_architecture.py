"""docs/architecture.md is true: its picture, its files, and the calls that its walk follows."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest
from import_graph import PACKAGE, ROOT, read_imports, source_files
from test_layers import FROM_OUTSIDE, LAYERS

PAGE = (ROOT.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
WALK = PAGE.partition("to a verdict, in ten files")[2].partition("\n## ")[0]
STEPS = re.findall(r"^\| `([\w/]+\.py)` \|", WALK, re.MULTILINE)
PASS_ON = ("cli/main.py", "judging/stored_batch.py")


def module_of(file: str) -> str:
    return ".".join((PACKAGE, *file.removesuffix(".py").split("/")))


def test_the_walk_has_at_most_ten_files() -> None:
    assert STEPS[0] == "front.py"
    assert STEPS[-1] == "verdicts.py"
    assert len(STEPS) <= 10
    assert all(f"`{file}`" in WALK for file in PASS_ON)


@pytest.mark.parametrize("here", range(len(STEPS) - 1))
def test_each_file_of_the_walk_leads_to_the_next(here: int) -> None:
    """By an import, or by the name of a module that is loaded later; at most one file between."""
    files = source_files()

    def leads(origin: str, target: str) -> bool:
        if any(found.target.startswith(target) for found in read_imports(files, [origin])):
            return True
        text = files[origin].read_text(encoding="utf-8")
        return f'"{target}' in text or f'"{target.removeprefix(PACKAGE + ".cli.")}"' in text

    origin, target = module_of(STEPS[here]), module_of(STEPS[here + 1])
    between = [module_of(file) for file in PASS_ON]
    assert leads(origin, target) or any(leads(origin, m) and leads(m, target) for m in between)


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = re.findall(r"`((?:[\w.]+/)*[\w.*]+\.py|(?:[\w.]+/)+)`", PAGE)
    assert len(named) > 60
    missing = [
        name
        for name in named
        if not any([*ROOT.glob(name.rstrip("/")), *ROOT.parent.glob(name.rstrip("/"))])
    ]
    assert missing == []


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """The module that draws the page's pictures."""
    spec = importlib.util.spec_from_file_location("make_graph", ROOT.parent / "docs/make_graph.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def packages(names: tuple[str, ...]) -> set[str]:
    return {name for name in names if name and (ROOT / name / "__init__.py").exists()}


def test_the_picture_of_the_house_has_the_floors_that_are_enforced(pictures: ModuleType) -> None:
    text = PAGE.partition("<!-- house -->\n```mermaid\n")[2].partition("```")[0]
    *floors, beside = pictures.read_house(text)
    boxes = [[name for name, _ in floor.boxes] for floor in floors]
    drawn = [{name for name in names if not name.endswith((".py", "…"))} for names in boxes]
    assert drawn == [packages(names) for names in LAYERS]
    assert {name for name, _ in beside.boxes} == packages(FROM_OUTSIDE)
    every = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert set.union(*drawn, {name for name, _ in beside.boxes}) == every
    for names, floor in zip(boxes, LAYERS, strict=True):
        assert set(re.findall(r"(\w+)\.py", " ".join(names))) <= set(floor)


def test_a_house_is_read_from_its_text(pictures: ModuleType) -> None:
    text = (
        'flowchart TB\n  a["a<br/>first"]\n  subgraph b["title"]\n    c["c<br/>second"]\n'
        '    d["d<br/>third"]\n  end\n  subgraph e["beside"]\n    f["f<br/>fourth"]\n  end\n'
        '  g["g<br/>fifth"]\n  a --> b\n  b --> g\n  e --> g\n'
    )
    read = [(floor.title, [name for name, _ in floor.boxes]) for floor in pictures.read_house(text)]
    assert read == [("", ["a"]), ("title", ["c", "d"]), ("", ["g"]), ("beside", ["f"])]


def test_no_box_has_a_name_that_mermaid_reserves() -> None:
    """A box called ``graph`` or ``end`` makes the text no diagram for GitHub."""
    names = set(re.findall(r'^ +(\w+)\["', PAGE, re.MULTILINE))
    assert len(names) > 30
    assert not names & {"graph", "end", "subgraph", "style", "class", "click", "default"}


def test_the_table_of_changes_is_short() -> None:
    table = PAGE.partition("## Where to change what")[2].partition("\n## ")[0]
    assert 10 <= len(re.findall(r"^\| .* \| .*`", table, re.MULTILINE)) <= 14
