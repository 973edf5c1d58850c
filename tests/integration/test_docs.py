"""Test that the documentation is true: its examples run, its links lead somewhere, and generated
parts are current."""

from __future__ import annotations

import html
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import click
import pytest
import tomli
from for_each import for_each
from mini_workspace import Mini, make_mini
from warm import place_command

from gpuemu_flow.cli.main import cli
from gpuemu_flow.config.load import check_config

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted(DOCS.glob("*.md"))]
SETUP = [
    "python3 -m venv .venv && .venv/bin/pip install -q -e '.[test]' && .venv/bin/gpuemu-flow run",
    ".venv/bin/python -m pytest -q -n 4 --dist worksteal",
]

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>(?:(?!-->).)*?)\s*-->\n+)?```(?P<language>[\w+]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
SNIPPETS = {"bash", "sh", "console", "python", "toml", "yaml", "lua", "dockerfile"}
NOT_RUN = {
    "agents.md": 1,
    "caching.md": 2,
    "cluster.md": 1,
    "editor.md": 4,
    "emulator.md": 1,
    "init.md": 3,
    "leaderboards.md": 2,
    "quickstart.md": 1,
    "security.md": 1,
}
"""Number of blocks marked ``not run`` on each page, so that none is added unnoticed."""

TESTED_ELSEWHERE = {
    "frameworks.md": "tests/integration/test_framework_docs.py",
    "rules.md": "tests/integration/test_rules.py",
}
WORKSPACES = REPOSITORY / "tests" / "data" / "docs"

_OP = """
[[ops]]
name = "softmax"
op = "scripts/scale.py:scale"
reference = "scripts/scale_ref.py:reference"
"""
LOADED = {
    "load": '[project]\nname = "docs"\n',
    "load in op": '[project]\nname = "docs"\n' + _OP,
    "load with ops": '[project]\nname = "docs"\n'
    + _OP
    + _OP.replace("softmax", "matmul")
    + '[[kernels]]\nname = "k"\n'
    'source = "kernels/softmax.cu"\n',
}
"""Configuration that is put before a fragment, by the fragment's mark."""

API = (
    "gpuemu_flow", "gpuemu_flow.client", "gpuemu_flow.validate", "gpuemu_flow.validation",
    "gpuemu_flow.rng", "gpuemu_flow.frameworks",
)  # fmt: skip

_COMMAND = re.compile(r"^(?:! |\$ )?gpuemu-flow ([^\n#]*)", re.MULTILINE)
_INLINE = re.compile(r"`gpuemu-flow ([^`]*)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"`((?:tests|docs|schemas|benchmarks|tasks|gpuemu_flow|engine)/[\w./]*)`")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the comment right before it.

    The marks: ``file: PATH`` (written there), ``run`` (bash or Python that must succeed, in the
    folder where the block before it ended; with ``run if MODULE``, where that can be imported; with
    ``run in NAME``, in the workspace of that name below `WORKSPACES`, where ``my_kernels`` is
    imported; ``run in NAME with pytest``), ``load`` (a configuration without problems, in one of
    `LOADED`), ``not run: REASON``, ``setup`` and ``graph`` (tests of their own).
    """

    page: str
    language: str
    text: str
    mark: str


def blocks(page: Path) -> list[Block]:
    found = _BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(page.name, m["language"], m["text"], m["mark"] or "") for m in found]


def marked(page: Path) -> list[Block]:
    return [b for b in blocks(page) if is_run(b) or b.mark.startswith("file: ")]


def is_run(block: Block) -> bool:
    """Tell whether the block is a program that a test runs."""
    return block.mark == "run" or block.mark.startswith(("run if ", "run in "))


def can_run(block: Block) -> bool:
    """False where a block needs a module that is not installed."""
    module = block.mark.partition("run if ")[2]
    try:
        return not module or importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def plain_text(page: Path) -> str:
    """The page without its blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", _FENCED.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def shell(mini: Mini, script: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Bash in a folder, with the ``gpuemu-flow`` of this interpreter; and the folder it ends in."""
    place = mini.root.parent / "bin"
    place.mkdir(exist_ok=True)
    inherited = place_command(place / "gpuemu-flow")
    python = place / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    environment = mini.environment()
    environment["PATH"] = f"{place}{os.pathsep}{environment['PATH']}"
    ended = place / "folder"
    ended.write_text(str(folder))
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'{script}\npwd > "{ended}"'],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        pass_fds=[inherited],
    )
    return done, Path(ended.read_text().strip())


def run_block(mini: Mini, block: Block, folder: Path) -> Path:
    """Run a marked block, which must succeed; the folder for the next one."""
    if block.mark.startswith("file: "):
        path = folder / block.mark.removeprefix("file: ")
        assert path.resolve().is_relative_to(mini.root.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        return folder
    script = block.text
    if block.mark.startswith("run in "):
        folder = mini.root
        shutil.copytree(WORKSPACES / block.mark.split()[2], folder, dirs_exist_ok=True)
    if block.language == "python":
        before = "from my_kernels import *\n" if block.mark.startswith("run in ") else ""
        test = block.mark.endswith(" with pytest")
        name = "test_snippet.py" if test else "snippet.py"
        (folder / name).write_text(before + block.text, encoding="utf-8")
        installed = {point.value for point in entry_points(group="pytest11")}
        plugin = "" if "gpuemu_flow.pytest_plugin" in installed else "-p gpuemu_flow.pytest_plugin "
        program = f"-m pytest -q -p no:cacheprovider {plugin}" if test else ""
        script = f"python3 {program}{name}"
    done, folder = shell(mini, script, folder)
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return folder


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.ci
@pytest.mark.parametrize("page", [p for p in PAGES if marked(p)], ids=lambda p: p.name)
def test_examples_run(page: Path) -> None:
    """All of a page's files and programs, in their order, in one workspace."""
    # A daemon that a snippet asks has its socket here, whose name must be short.
    with tempfile.TemporaryDirectory(prefix="gd-") as place:
        mini = make_mini(Path(place) / "w")
        folder, left = mini.root, []
        for block in marked(page):
            if can_run(block):
                folder = run_block(mini, block, folder)
            else:
                left.append(block.mark)
        if any("in softmax" in block.mark for block in marked(page)):
            mini.command("daemon", "stop")
    if left:
        pytest.skip(f"all was run but {', '.join(left)}")


@pytest.mark.ci
def test_the_readme_op_passes_and_a_wrong_one_would_not(mini: Mini) -> None:
    for block in marked(REPOSITORY / "README.md"):
        if block.mark.startswith("file: "):
            run_block(mini, block, mini.root)
    swish = mini.root / "scripts" / "swish.py"
    right = swish.read_text()
    mini.edit("scripts/swish.py", "np.tanh(half)", "np.tanh(x)")
    assert {r["verdict"] for r in mini.run("--no-confirm", code=1)["results"]} == {"failed"}
    swish.write_text(right)
    assert [r["verdict"] for r in mini.run()["results"]] == ["passed", "passed"]


@for_each("page", PAGES)
def test_blocks_are_what_they_claim_to_be(page: Path, mini: Mini) -> None:
    for block in blocks(page):
        assert block.language, f"{page.name}: a block without a language: {block.text[:60]!r}"
        if block.language == "toml":
            tomli.loads(block.text)
        elif block.language == "python":
            compile(block.text, page.name, "exec")
        elif block.language == "bash":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
        if block.mark in LOADED:
            mini.write("kernels/softmax.cu", "")
            mini.write("scripts/softmax_ref.py", "def softmax(x):\n    return x\n")
            named = ("submissions/a.py", "scripts/tables/a.json", "../originals/a.py")
            for name in (*named, "Makefile", "src/k.in", "kernels/stencil.cu"):
                mini.write(name, "")
            mini.write("kernels/layernorm_ext.py", "def forward(x): ...\n")
            mini.write("kernels/reference.py", "def layernorm(x): ...\ndef stencil(x): ...\n")
            path = mini.write("gpuemu.toml", LOADED[block.mark] + block.text)
            assert check_config(path, strict=True) == [], f"{page.name}: {block.text}"


def test_every_snippet_is_marked_and_those_that_cannot_run_are_counted() -> None:
    """A command that no test runs is a command that nobody knows to work."""
    not_run: dict[str, int] = {}
    for page in PAGES:
        if page.name in TESTED_ELSEWHERE:
            assert page.name in (REPOSITORY / TESTED_ELSEWHERE[page.name]).read_text()
            continue
        for block in blocks(page):
            if block.language in SNIPPETS:
                known = is_run(block) or block.mark in LOADED or block.mark == "setup"
                known |= block.mark.startswith("file: ")
                reason = block.mark.removeprefix("not run: ")
                if not known:
                    assert reason not in (block.mark, ""), f"{page.name}: {block.text}"
                    not_run[page.name] = not_run.get(page.name, 0) + 1
    assert not_run == NOT_RUN, "a snippet that cannot run is the exception: count it here"


def test_a_reader_sees_which_file_a_block_is() -> None:
    """The marks are comments, which no page shows."""
    named = [b for page in PAGES for b in blocks(page) if b.mark.startswith("file: ")]
    assert len(named) > 15
    for block in named:
        path, first = block.mark.removeprefix("file: "), block.text.partition("\n")[0]
        assert path in first, f"{block.page}: {path}"


def commands_named(page: Path) -> list[str]:
    """List the words after ``gpuemu-flow`` in inline code and at the beginning of lines in
    blocks."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    found = _INLINE.findall(text)
    for block in blocks(page):
        named = [re.sub(r"\$\([^)]*\)?", "", n) for n in _COMMAND.findall(block.text)]
        # In bash a bar leads to another program; in a text it stands between alternatives.
        found += [n.split(" | ")[0] for n in named] if block.language == "bash" else named
    return found


def test_every_command_that_a_page_names_is_there_with_its_options() -> None:
    """Also in inline code and in text blocks, which no test runs."""
    cli.load_all()
    seen = 0
    for page in PAGES:
        if page.name == "CHANGELOG.md":
            continue  # it tells of commands as they were
        for named in commands_named(page):
            words = re.split(r"[\s|\[\]…;]+", named)
            holder: click.Group = cli
            group: click.Command = cli
            while isinstance(group, click.Group) and words and words[0] in group.commands:
                holder, group = group, group.commands[words.pop(0)]
            seen += 1
            unknown = group is cli and re.fullmatch(r"[a-z]+", words[0] if words else "")
            assert not unknown, f"{page.name}: no command {named!r}"
            known = {o for p in group.params for o in (*p.opts, *p.secondary_opts)}
            known |= {"--help", "-h", "--version", "-V"}
            options = {w.partition("=")[0] for w in words if re.match(r"--?[a-z]", w)}
            if " | " in named:  # several commands at once
                known |= {o for c in holder.commands.values() for p in c.params for o in p.opts}
            assert options <= known, f"{page.name}: {named!r}: {sorted(options - known)}"
    assert seen > 60


def test_setup_is_the_two_commands_that_ci_takes() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    between = text.split("<!-- setup -->\n")[1].split("<!-- /setup -->")[0]
    lines = between.strip().splitlines()
    assert lines == ["```bash", *SETUP, "```"]
    assert text.count("<!-- setup -->") == text.count("<!-- /setup -->") == 1


def test_generated_pages_are_current() -> None:
    for path, text in load_script(DOCS / "generate.py").pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run docs/generate.py"


def test_the_api_page_holds_every_public_name_and_all_that_it_takes() -> None:
    """Looked up by what can be imported, not by what the page's program believes to be public."""
    page = (DOCS / "api.md").read_text(encoding="utf-8")
    # By heading: what stands below it, up to the next one.
    parts = re.split(r"^#{3,4} (\w+)$", page, flags=re.MULTILINE)
    told: dict[str, str] = {}
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        told[name] = told.get(name, "") + text
    # A name of something that stands under another one is listed, and described there.
    modules = [importlib.import_module(name) for name in API]
    headings = {id(v): n for module in modules for n, v in inspect.getmembers(module) if n in told}
    seen = 0
    for module_name, module in zip(API, modules, strict=True):
        for name, value in inspect.getmembers(module):
            ours = getattr(value, "__module__", "").startswith("gpuemu_flow")
            listed = name in getattr(module, "__all__", [name])
            is_code = inspect.isclass(value) or inspect.isfunction(value)
            if name.startswith("_") or not (ours and listed and is_code):
                continue
            heading = headings.get(id(value), name)
            assert heading in told, f"{module_name}.{name}"
            assert name == heading or f"`{name}`" in page, f"{module_name}.{name}"
            methods = [m for m in vars(value).values() if inspect.isfunction(m)]
            for one in [value, *methods] if inspect.isclass(value) else [value]:
                if one.__name__.startswith("_") or not one.__doc__:
                    continue
                taken = set() if issubclass_of(one, Exception) else set(
                    inspect.signature(one).parameters
                ) - {"self", "cls"}  # fmt: skip
                text = told.get(headings.get(id(one), one.__name__), "")
                missing = [p for p in taken if not re.search(rf"^- `[^`]*\b{p}\b", text, re.M)]
                assert not missing, f"{module_name}.{one.__qualname__}: {missing}"
                seen += 1
    assert seen > 100


def issubclass_of(value: object, kind: type) -> bool:
    return inspect.isclass(value) and issubclass(value, kind)


def test_the_graph_is_the_real_one(mini: Mini) -> None:
    (drawn,) = [b for b in blocks(DOCS / "architecture.md") if b.mark == "graph"]
    config = (mini.root / "gpuemu.toml").read_text()
    ops = config.split("[[ops]]")
    one = ops[0] + "[[ops]]" + ops[1].replace('"scale"', '"softmax"')
    mini.write("gpuemu.toml", one)
    assert mini.command("graph", "--format", "mermaid").stdout == drawn.text


@for_each("page", PAGES)
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


def picture_lines(svg: str) -> list[str]:
    """Return the lines in a picture of a terminal, without figures, which differ between
    machines."""
    drawn: dict[str, str] = {}
    for place, words in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        drawn[place] = drawn.get(place, "") + html.unescape(words)
    lines = (re.sub(r"-?\b[\d./]+(e[+-]\d+)?\b|\binf\b| +|\b(ms|s)\b", " ", line)
             for line in drawn.values())  # fmt: skip
    return [" ".join(line.split()) for line in lines if line.strip()]


@pytest.mark.ci
def test_the_terminal_picture_shows_what_a_run_prints_now() -> None:
    """Made anew by real runs: the same commands, tables and kinds of lines, in this order."""
    drawn = (DOCS / "images" / "run.svg").read_text(encoding="utf-8")
    kept, now = (
        # What keeps the ops from everything else is up to the system.
        ["sandbox:" if line.startswith("sandbox:") else line for line in picture_lines(picture)]
        for picture in (drawn, load_script(DOCS / "make_picture.py").draw())
    )
    second = next(n for n, line in enumerate(now) if line.startswith("$ sed"))
    assert kept[: second + 4] == now[: second + 4], "run docs/make_picture.py"
    # Which elements are the worst, and so how a message wraps, is up to the processor's last bits.
    labels = ("failed ", "drawn as:", "reproduce:", "cause:")
    for label in labels:
        counts = [sum(line.startswith(label) for line in lines) for lines in (kept, now)]
        assert counts[0] == counts[1] > 0, f"{label} run docs/make_picture.py"
    assert kept[-1] == now[-1], "run docs/make_picture.py"


def test_pictures_are_self_contained() -> None:
    pictures = sorted((DOCS / "images").glob("*.svg"))
    assert pictures
    for path in pictures:
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert not re.search(r"""(?:href|src)\s*=|url\((?!#)|url\(["']|@import|@font-face""", text)
