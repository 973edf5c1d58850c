"""Test what is published: sdist → wheel → a fresh environment, away from the repository."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from mini_workspace import Mini

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ("pyproject.toml", "README.md", "LICENSE")


def missing_tools() -> str:
    """Return the reason why nothing can be built here without a network, or an empty string."""
    if importlib.util.find_spec("build") is None:
        return "`build` is not installed"
    try:
        version = importlib.metadata.version("setuptools")
    except importlib.metadata.PackageNotFoundError:
        return "setuptools is not installed"
    return "" if int(version.partition(".")[0]) >= 68 else f"setuptools {version} is too old"


pytestmark = [pytest.mark.ci, pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())]


def checked(*arguments: str | Path, cwd: Path) -> str:
    """The output of a program that must succeed, without this checkout on its path."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "PYTHON"))}
    done = subprocess.run(
        [str(a) for a in arguments],
        cwd=cwd,
        env=kept,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the sources, the sdist, and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("packaging")
    source = folder / "source"
    source.mkdir()
    for name in NEEDED:
        shutil.copy(REPOSITORY / name, source)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "gpuemu_flow", source / "gpuemu_flow", ignore=unwanted)
    checked(sys.executable, "-m", "build", "--no-isolation", "-o", folder, cwd=source)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.mark.ci
def test_the_wheel_holds_all_of_the_package_and_nothing_else(built: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"gpuemu_flow"}
    assert "gpuemu_flow/py.typed" in names
    source = built / "source"
    schemas = {f"gpuemu_flow/schemas/{p.name}" for p in (REPOSITORY / "schemas").glob("*.json")}
    assert schemas and schemas <= names
    modules = {
        path.relative_to(source).as_posix() for path in (source / "gpuemu_flow").rglob("*.py")
    }
    assert len(modules) > 100 and modules <= names


def test_the_sdist_builds_without_the_repository(built: Path) -> None:
    """`python -m build` made the wheel from it; what it lacks, the wheel would lack."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    assert {"pyproject.toml", "README.md", "LICENSE", "gpuemu_flow/py.typed"} <= names
    assert "gpuemu_flow/tasks/compare.py" in names
    assert "gpuemu_flow/schemas/gpuemu.schema.json" in names


def installed(product: Path, mini: Mini) -> tuple[Path, Path]:
    """Install a wheel or a source folder beside the workspace.

    Returns
    -------
    (Path, Path)
        The new environment and its Python.
    """
    environment = mini.root.parent / "venv"
    checked(sys.executable, "-m", "venv", "--without-pip", environment, cwd=mini.root)
    python = environment / "bin" / "python"
    (packages,) = environment.glob("lib/python*/site-packages")
    # The dependencies of this interpreter; .pth files below that folder, an editable install's
    # among them, are not read this way.
    own = [sysconfig.get_path("purelib"), *(p for p in sys.path if p.endswith("site-packages"))]
    (packages / "dependencies.pth").write_text("\n".join(dict.fromkeys(own)) + "\n")
    words = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--ignore-installed")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", *words)
    checked(*pip, product, cwd=mini.root)
    return environment, python


@pytest.mark.ci
def test_a_source_zip_installs_a_whole_product(mini: Mini, tmp_path: Path) -> None:
    """In a zip, as in a checkout without links, a link is a small file that names its target."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    archive = tmp_path / "source.zip"
    checked("git", "archive", "--format=zip", "-o", archive, "HEAD", cwd=REPOSITORY)
    source = tmp_path / "source"
    with zipfile.ZipFile(archive) as file:
        file.extractall(source)
    assert (source / "tasks").is_file()
    environment, python = installed(source, mini)
    where = checked(python, "-c", "import gpuemu_flow; print(gpuemu_flow.__file__)", cwd=mini.root)
    assert Path(where.strip()).is_relative_to(environment)
    assert "relu" in checked(environment / "bin" / "gpuemu-flow", "run", cwd=mini.root)


@pytest.mark.ci
def test_it_works_installed_and_from_another_folder(wheel: Path, mini: Mini) -> None:
    environment, python = installed(wheel, mini)
    where = checked(python, "-c", "import gpuemu_flow; print(gpuemu_flow.__file__)", cwd=mini.root)
    assert Path(where.strip()).is_relative_to(environment)
    command = environment / "bin" / "gpuemu-flow"
    version = importlib.metadata.version("gpuemu-flow")
    assert checked(command, "version", cwd=mini.root).startswith(f"gpuemu-flow {version}\n")
    assert "relu" in checked(command, "run", cwd=mini.root)
    assert checked(command, "run", cwd=mini.root).startswith("up to date: ")
    listing = "import os, gpuemu_flow.schemas as s; print(os.listdir(s.__path__[0]))"
    assert "run.schema.json" in checked(python, "-c", listing, cwd=mini.root)
