"""A newcomer's way: an install from a repository, `init`, and the workflow's own commands.

Nothing of this checkout is on the path: gpuemu-flow is installed as the documentation and the
workflow say, by pip from a repository. Only the address of that repository leads to a local one,
and the packages it depends on are those of this interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gpuemu_flow")
ADDRESS = "https://example.invalid/team/gpuemu-flow.git"
QUICK, THOROUGH = "github.event_name == 'pull_request'", "github.event_name == 'push'"

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        importlib.util.find_spec("setuptools") is None or shutil.which("git") is None,
        reason="git and setuptools are needed to install from a repository",
    ),
]


class Machine:
    """A folder with a home, a repository on the network, and programs to be found in environments.

    Parameters
    ----------
    folder : Path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = folder / "remote.git"
        kept = ("LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH")
        self.env = {name: os.environ[name] for name in kept if name in os.environ}
        self.env |= {
            "HOME": str(folder / "home"),
            "PATH": os.environ["PATH"],
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's own spelling of yes
            "GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "n@x",
            "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "n@x",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self.remote.as_uri()}.insteadOf",
            "GIT_CONFIG_VALUE_0": ADDRESS,
        }  # fmt: skip

    def run(self, *words: str | Path, cwd: Path, code: int = 0, **env: str) -> str:
        """Run a command and return its output, standard error last."""
        done = subprocess.run(
            [str(word) for word in words], cwd=cwd, env={**self.env, **env},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def publish(self) -> None:
        """A repository with these sources, on the network."""
        work = self.folder / "work"
        work.mkdir()
        for name in SOURCES:
            if (REPOSITORY / name).is_dir():
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(REPOSITORY / name, work / name, symlinks=True, ignore=unwanted)
            else:
                shutil.copy(REPOSITORY / name, work)
        self.run("git", "init", "-q", "--bare", "-b", "main", self.remote, cwd=self.folder)
        self.run("git", "init", "-q", "-b", "main", cwd=work)
        self.run("git", "add", "--all", "--force", cwd=work)
        self.run("git", "commit", "-q", "-m", "all", cwd=work)
        self.run("git", "push", "-q", ADDRESS, "main", cwd=work)
        shutil.rmtree(work)

    def environment(self, name: str) -> dict[str, str]:
        """A new virtual environment: what finds its programs."""
        place = self.folder / name
        self.run(sys.executable, "-m", "venv", "--without-pip", place, cwd=self.folder)
        (packages,) = place.glob("lib/python*/site-packages")
        # Dependencies, pip and setuptools of this interpreter; the .pth files below that folder,
        # an editable install's among them, are not read this way.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        return {"PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def commands(workflow: Path, event: str) -> list[str]:
    """The scripts of the steps that an event reaches."""
    yaml = pytest.importorskip("ruamel.yaml", reason="comes with check-jsonschema")
    (job,) = yaml.YAML(typ="safe").load(workflow)["jobs"].values()
    return [s["run"] for s in job["steps"] if "run" in s and s.get("if") in (None, event)]


@pytest.mark.ci
def test_from_a_repository_to_green_and_with_a_bug_to_red(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.publish()

    laptop = machine.environment("laptop")
    pip = ("python", "-m", "pip", "install", "-q")
    machine.run(*pip, f"gpuemu-flow @ git+{ADDRESS}", cwd=tmp_path, **laptop)
    project = tmp_path / "project"
    project.mkdir()
    said = machine.run(
        "gpuemu-flow", "init", "--with-examples", "--ci", "github", cwd=project, **laptop
    )
    assert "note:" not in said

    runner = machine.environment("runner") | {
        "CI": "true",
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(project),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    workflow = project / ".github" / "workflows" / "gpuemu.yml"

    def step(script: str, code: int = 0) -> str:
        bash = ("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script)
        return machine.run(*bash, cwd=project, code=code, **runner)

    install, check, quick = commands(workflow, QUICK)
    commit = machine.run("git", "rev-parse", "main", cwd=machine.remote).strip()
    assert f"git+{ADDRESS}@{commit}" in install
    step(install)
    where = step("python -c 'import gpuemu_flow; print(gpuemu_flow.__file__)'").strip()
    assert Path(where).is_relative_to(tmp_path / "runner")
    step(check)
    assert "PASSED: 48 passed" in step(quick)
    (thorough,) = set(commands(workflow, THOROUGH)) - {install, check}
    assert "PASSED: 96 passed" in step(thorough)

    source = project / "scripts" / "softmax.py"
    text = source.read_text()
    source.write_text(text.replace("weights / weights", "0.99 * weights / weights"))
    line = 1 + next(n for n, t in enumerate(text.splitlines()) if t.startswith("def softmax"))
    found = [x for x in step(quick, code=1).splitlines() if x.startswith("::")]
    assert len(found) == 1
    assert found[0].startswith(f"::error file=scripts/softmax.py,line={line},title=gpuemu-flow")
    assert "❌" in (tmp_path / "summary.md").read_text()
    source.write_text(text)
    assert "PASSED: 48 passed" in step(quick)
