"""What the documentation says is so: its examples run, its links lead somewhere, nothing drifts."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
import tomli
from mini_workspace import Mini

from gpuemu_flow.config.load import check_config

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
SETUP = [
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/gpuemu-flow run",
    ".venv/bin/python -m pytest -q -n 2",
]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*) -->\n+)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:tests|docs|schemas|benchmarks|tasks|gpuemu_flow|engine)/[\w./]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment right before it.

    The marks: ``file: PATH`` (written there), ``run`` (bash that must succeed), ``load`` (a
    configuration without problems), ``setup`` and ``graph`` (tests of their own).
    """

    page: str
    language: str
    text: str
    mark: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(page.name, m["language"], m["text"], m["mark"] or "") for m in found]


def marked(page: Path) -> list[Block]:
    return [b for b in blocks(page) if b.mark == "run" or b.mark.startswith("file: ")]


def plain_text(page: Path) -> str:
    """The page without its blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """What headings can be linked to, as GitHub names them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def shell(mini: Mini, script: str) -> subprocess.CompletedProcess[str]:
    """Bash in the workspace, with the ``gpuemu-flow`` that belongs to this interpreter."""
    command = mini.root.parent / "bin" / "gpuemu-flow"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpuemu_flow "$@"\n')
    command.chmod(0o755)
    environment = mini.environment()
    environment["PATH"] = f"{command.parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=mini.root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", [p for p in PAGES if marked(p)], ids=lambda p: p.name)
def test_examples_run(page: Path, mini: Mini) -> None:
    """All of a page's files and commands, in their order, in one workspace."""
    for block in marked(page):
        if block.mark == "run":
            assert block.language == "bash"
            done = shell(mini, block.text)
            assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
        else:
            path = mini.root / block.mark.removeprefix("file: ")
            assert path.resolve().is_relative_to(mini.root)
            path.write_text(block.text, encoding="utf-8")


def test_the_readme_op_passes_and_a_wrong_one_would_not(mini: Mini) -> None:
    for block in marked(REPOSITORY / "README.md"):
        if block.mark != "run":
            (mini.root / block.mark.removeprefix("file: ")).write_text(block.text)
    assert [r["verdict"] for r in mini.run()["results"]] == ["passed", "passed"]
    mini.edit("scripts/swish.py", "np.tanh(half)", "np.tanh(x)")
    assert {r["verdict"] for r in mini.run(code=1)["results"]} == {"failed"}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_blocks_are_what_they_claim_to_be(page: Path, mini: Mini) -> None:
    for block in blocks(page):
        assert block.language, f"{page.name}: a block without a language: {block.text[:60]!r}"
        if block.language == "toml":
            tomli.loads(block.text)
        elif block.language == "python":
            compile(block.text, page.name, "exec")
        elif block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
        if block.mark == "load":
            path = mini.write("gpuemu.toml", '[project]\nname = "docs"\n' + block.text)
            assert check_config(path, strict=True) == []


def test_every_bash_block_is_marked() -> None:
    """A command that no test runs is a command that nobody knows to work."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "bash":
                assert block.mark in ("run", "setup"), f"{page.name}: {block.text}"


def test_setup_is_the_two_commands_that_ci_takes() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    between = text.split("<!-- setup -->\n")[1].split("<!-- /setup -->")[0]
    lines = between.strip().splitlines()
    assert lines == ["```bash", *SETUP, "```"]
    assert text.count("<!-- setup -->") == text.count("<!-- /setup -->") == 1


def test_generated_pages_are_current() -> None:
    for path, text in load_script(DOCS / "generate.py").pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run docs/generate.py"


def test_the_graph_is_the_real_one(mini: Mini) -> None:
    (drawn,) = [b for b in blocks(DOCS / "architecture.md") if b.mark == "graph"]
    config = (mini.root / "gpuemu.toml").read_text()
    ops = config.split("[[ops]]")
    one = ops[0] + "[[ops]]" + ops[1].replace('"scale"', '"softmax"')
    mini.write("gpuemu.toml", one)
    assert mini.command("graph", "--format", "mermaid").stdout == drawn.text


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(plain_text(page)):
        if link.startswith(("https://", "http://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(REPOSITORY), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def test_the_index_names_every_page() -> None:
    linked = {link.partition("#")[0] for link in _LINK.findall(plain_text(DOCS / "index.md"))}
    assert {page.name for page in DOCS.glob("*.md")} - linked == {"index.md"}


def test_files_that_are_named_exist() -> None:
    for page in PAGES:
        if page.name in ("config.md", "runners.md"):
            continue  # their paths are examples
        for name in _PATH.findall(page.read_text(encoding="utf-8")):
            places = [REPOSITORY / name, REPOSITORY / "gpuemu_flow" / name]
            assert any(p.exists() for p in places), f"{page.name}: {name}"


def test_every_package_stands_in_the_house() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    for path in (REPOSITORY / "gpuemu_flow").iterdir():
        if path.is_dir() and not path.is_symlink() and (path / "__init__.py").exists():
            assert f"`gpuemu_flow/{path.name}/`" in text, path.name


def test_every_dependency_is_explained() -> None:
    project = tomli.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[<>=\[;]", text)[0].strip() for text in project["dependencies"]}
    table = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([\w-]+) \| (?!Packages|For)", table, re.MULTILINE))
    assert declared <= explained
    extras = set(re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE))
    assert extras == set(project["optional-dependencies"])


def test_no_page_names_this_machine() -> None:
    for path in [*PAGES, *DOCS.rglob("*.svg"), *DOCS.glob("*.py")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(?<![\w.])/(?:work|root|home|tmp)/", text), path.name


def test_pictures_are_self_contained() -> None:
    pictures = sorted((DOCS / "images").glob("*.svg"))
    assert pictures
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert not re.search(r"""(?:href|src)\s*=|url\((?!#)|url\(["']|@import|@font-face""", text)
