"""``gpuemu-flow init``: what it writes passes at once; all or nothing; nothing is overwritten."""

from __future__ import annotations

import importlib.util
import json
import resource
import shutil
from pathlib import Path

import pytest
import tomli
from mini_workspace import Mini

import gpuemu_flow
from gpuemu_flow.lint.toolchain import find_tools

NEEDS = {
    "numpy": [],
    "pytorch": ["torch"],
    "jax": ["jax"],
    "tensorflow": ["tensorflow"],
    "triton": ["torch", "triton"],
    "cuda": [],
}
PLAIN = {
    ".gitignore",
    ".gpuemu/gpuemu.schema.json",
    "gpuemu.toml",
    "scripts/softmax.py",
    "scripts/softmax_ref.py",
}


def lacks(framework: str) -> list[str]:
    return [name for name in NEEDS[framework] if importlib.util.find_spec(name) is None]


@pytest.fixture
def empty(tmp_path: Path) -> Mini:
    """A folder with nothing in it."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    found = Mini(folder)
    found.env = {"HOME": str(tmp_path / "home")}
    return found


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("framework", NEEDS)
def test_what_is_written_is_a_valid_workspace(empty: Mini, framework: str) -> None:
    said = empty.command("init", "-f", framework, "--with-examples").stdout
    for name in lacks(framework):
        (line,) = [line for line in said.splitlines() if "not installed here" in line]
        assert name in line
    assert ("not installed" in said) == bool(lacks(framework))
    assert empty.command("config", "check", "--strict").stdout == "gpuemu.toml: ok\n"
    config = tomli.loads((empty.root / "gpuemu.toml").read_text())
    assert [op["name"] for op in config["ops"]] == ["softmax", "matmul"]
    sources = [p for p in content(empty.root) if p.endswith(".py")]
    assert len(sources) == (3 if framework == "cuda" else 4)
    for path in sources:
        compile((empty.root / path).read_bytes(), path, "exec")


SLOW = ("pytorch", "jax", "tensorflow", "triton", "cuda")


@pytest.mark.parametrize(
    "framework",
    [pytest.param(f, marks=pytest.mark.ci) if f in SLOW else f for f in NEEDS],
)
def test_it_passes_at_once_and_a_bug_does_not(empty: Mini, framework: str) -> None:
    if lacks(framework):
        pytest.skip(f"not installed: {', '.join(lacks(framework))}")
    if framework == "cuda" and "nvcc" not in find_tools(names=["nvcc"]).tools:
        pytest.skip("needs nvcc")
    empty.command("init", "-f", framework, "--with-examples")
    empty.edit("gpuemu.toml", "cases = 24", "cases = 3")
    found = empty.run("--dtype", "float32")
    assert [r["verdict"] for r in found["results"]] == ["passed"] * 2
    path = empty.root / "scripts" / "softmax.py"
    if framework == "cuda":
        path = empty.root / "scripts" / "kernels" / "softmax.cu"
    text = path.read_text()
    forms = ("weights / weights", "weights / tl", "weights / tf", "expf(row[i] - largest) / total")
    divided = next(w for w in forms if w in text)
    first = divided.split(" / ")[0]
    path.write_text(
        text.replace(
            divided,
            divided.replace(
                first, f"0.99f * {first}" if framework == "cuda" else f"0.99 * {first}", 1
            ),
        )
    )
    assert {
        r["verdict"] for r in empty.run("softmax", "--dtype", "float32", code=1)["results"]
    } == {"failed"}


def test_one_op_without_examples_and_no_workflow(empty: Mini) -> None:
    said = empty.command("init").stdout
    assert set(content(empty.root)) == PLAIN
    assert said.splitlines() == [*(f"wrote {p}" for p in sorted(PLAIN)), "next: gpuemu-flow run"]
    assert [r["verdict"] for r in empty.run()["results"]] == ["passed", "passed"]


def test_editors_find_the_schema(empty: Mini) -> None:
    empty.command("init")
    first = (empty.root / "gpuemu.toml").read_text().splitlines()[0]
    directive, _, path = first.partition(" ")
    assert directive == "#:schema" and path.startswith("./")
    schema = json.loads((empty.root / path).read_text())
    assert schema["title"] == "gpuemu.toml"
    import jsonschema

    jsonschema.validate(tomli.loads((empty.root / "gpuemu.toml").read_text()), schema)


def test_names(empty: Mini) -> None:
    def name() -> str:
        return str(tomli.loads((empty.root / "gpuemu.toml").read_text())["project"]["name"])

    empty.command("init")
    assert name() == "fresh"
    for arguments, expected in (
        (("--name", 'a "quoted" \\ nämé 🙂'), 'a "quoted" \\ nämé 🙂'),
        (("positional",), "positional"),
    ):
        empty.command("init", "--force", *arguments)
        assert name() == expected
        assert empty.command("config", "check", "--strict").returncode == 0
    empty.command("init", "--force", "--name", "two\nlines", code=2)
    empty.command("init", "--force", "--name", "n" * 201, code=2)
    assert name() == "positional"


@pytest.mark.parametrize("name", [".", "..", "ops/softmax"])
def test_a_folder_is_no_name(empty: Mini, name: str) -> None:
    assert "--target-dir" in empty.command("init", name, code=2).stderr
    assert not list(empty.root.iterdir())


def test_short_names_of_frameworks(empty: Mini) -> None:
    empty.command("init", "-f", "torch")
    assert 'framework = "pytorch"' in (empty.root / "gpuemu.toml").read_text()
    assert "numpy" in empty.command("init", "-f", "nunpy", code=2).stderr


def test_a_target_is_made(empty: Mini) -> None:
    said = empty.command("init", "-t", "deep/er folder").stdout
    assert set(content(empty.root / "deep" / "er folder")) == PLAIN
    assert said.splitlines()[-1] == "next: cd 'deep/er folder' && gpuemu-flow run"
    assert {p.name for p in empty.root.iterdir()} == {"deep"}


def test_nothing_is_overwritten(empty: Mini) -> None:
    empty.write("gpuemu.toml", "mine")
    empty.write("scripts/softmax.py", "mine, too")
    before = content(empty.root)
    done = empty.command("init", code=2)
    assert done.stderr.splitlines() == [
        "scripts/softmax.py: init-exists: the file exists already; "
        "--force replaces it; -t writes elsewhere",
        "gpuemu.toml: init-exists: the file exists already; "
        "--force replaces it; -t writes elsewhere",
    ]
    assert content(empty.root) == before
    empty.command("init", "--force")
    assert set(content(empty.root)) == PLAIN
    assert b"mine" not in (empty.root / "gpuemu.toml").read_bytes()


def test_again_is_harmless(empty: Mini) -> None:
    empty.command("init")
    before = content(empty.root)
    said = empty.command("init").stdout
    assert said.count("unchanged: ") == len(PLAIN) and "wrote" not in said
    assert content(empty.root) == before
    (empty.root / "gpuemu.toml").unlink()
    assert "wrote gpuemu.toml" in empty.command("init").stdout
    assert content(empty.root) == before


def test_a_gitignore_is_added_to(empty: Mini) -> None:
    (empty.root / ".gitignore").write_bytes(b"\xff own\n__pycache__/\nlast")
    empty.command("init")
    lines = (empty.root / ".gitignore").read_bytes().splitlines()
    assert lines[:4] == [b"\xff own", b"__pycache__/", b"last", b"# gpuemu-flow"]
    assert b".gpuemu-cache/" in lines and lines.count(b"__pycache__/") == 1
    assert "unchanged: .gitignore" in empty.command("init").stdout
    assert (empty.root / ".gitignore").read_bytes().splitlines() == lines


def test_links_are_not_followed_out_of_the_target(empty: Mini, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (empty.root / "scripts").symlink_to(outside)
    (tmp_path / "ignore").write_text("kept")
    (empty.root / ".gitignore").symlink_to(tmp_path / "ignore")
    for force in ((), ("--force",)):
        assert "init-not-a-folder" in empty.command("init", *force, code=2).stderr
        assert not list(outside.iterdir())
        assert {p.name for p in empty.root.iterdir()} == {"scripts", ".gitignore"}
    (empty.root / "scripts").unlink()
    assert "note: .gitignore is left as it is" in empty.command("init").stdout
    assert (tmp_path / "ignore").read_text() == "kept"


@pytest.mark.parametrize("name", ["scripts", "gpuemu.toml"])
def test_a_file_for_a_folder_and_a_folder_for_a_file(empty: Mini, name: str) -> None:
    if name == "scripts":
        empty.write(name, "a file")
    else:
        (empty.root / name).mkdir()
    before = content(empty.root)
    for force in ((), ("--force",)):
        assert "init-not-a-folder" in empty.command("init", *force, code=2).stderr
        assert content(empty.root) == before
        assert [p.name for p in empty.root.iterdir()] == [name]


def test_a_full_disk_leaves_nothing(empty: Mini) -> None:
    """A limit on file sizes stands for it: small files can be written, the schema cannot."""
    limit = (16384, 16384)
    process = empty.popen(
        "init", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    )
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 3, errors
    assert "init-not-writable" in errors and "Traceback" not in errors
    assert list(empty.root.iterdir()) == []


def test_a_workflow_belongs_to_the_root_of_the_repository(empty: Mini) -> None:
    (empty.root / ".git").mkdir()
    assert "reads workflows" not in empty.command("init", "--ci", "github").stdout
    said = empty.command("init", "-t", "sub", "--ci", "gitlab").stdout
    assert f"note: gitlab reads workflows from the repository's root, {empty.root}" in said


def test_a_workspace_that_is_there_gets_the_workflow_alone(empty: Mini) -> None:
    empty.command("init", "-f", "jax")
    empty.edit("gpuemu.toml", "cases = 24", "cases = 5")
    before = content(empty.root)
    said = empty.command("init", "--ci", "github").stdout
    assert "wrote .github/workflows/gpuemu.yml" in said
    assert said.splitlines()[-1] == "next: gpuemu-flow ci quick"
    path = ".github/workflows/gpuemu.yml"
    after = content(empty.root)
    assert "python -m pip install jax\n" in after.pop(path).decode()
    assert after == before
    assert f"unchanged: {path}" in empty.command("init", "--ci", "github").stdout
    empty.command("init", "--ci", "gitlab", "-f", "pytorch")
    assert "pip install torch " in (empty.root / ".gitlab-ci.yml").read_text()

    (empty.root / path).write_text("mine")
    assert "init-exists" in empty.command("init", "--ci", "github", code=2).stderr
    for words in (("--with-examples",), ("--name", "other"), ("other",)):
        assert "init-exists" in empty.command("init", "--ci", "gitlab", *words, code=2).stderr
    empty.write("gpuemu.toml", "[project\n")
    assert "gpuemu.toml:1: config-syntax" in empty.command("init", "--ci", "github", code=2).stderr
    assert (empty.root / path).read_text() == "mine"


def test_an_installation_that_no_runner_can_repeat_is_said(empty: Mini, tmp_path: Path) -> None:
    record = tmp_path / "site" / "gpuemu_flow-9.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: gpuemu-flow\nVersion: 9\n")
    (record / "direct_url.json").write_text('{"url": "file:///no/where", "dir_info": {}}')
    empty.env["PYTHONPATH"] = str(record.parent)
    assert "note" not in empty.command("init").stdout, "there is no workflow"
    (note,) = [
        line
        for line in empty.command("init", "--ci", "gitlab").stdout.splitlines()
        if line.startswith("note: ")
    ]
    asked = f"gpuemu-flow=={gpuemu_flow.__version__}"
    assert f"the workflow installs {asked} from the package index" in note
    assert "/no/where" in note
    text = (empty.root / ".gitlab-ci.yml").read_text()
    assert f"python -m pip install {asked}\n" in text
    assert "image: python:3.12-slim\n" in text


def test_a_missing_nvcc_is_said(empty: Mini) -> None:
    if shutil.which("nvcc") is None:
        assert "note: nvcc was not found" in empty.command("init", "-f", "cuda").stdout
    else:
        said = empty.command("init", "-f", "cuda").stdout
        assert "nvcc" not in said
