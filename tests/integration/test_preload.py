"""A package is imported before workers are forked only if it is installed and starts no thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.workers.api import Program
from gpuemu_flow.workers.imports import framework_of, identity
from gpuemu_flow.workers.process import ServerHandle

pytestmark = pytest.mark.ci

TRIED = """
import os, sys
from gpuemu_flow.workers import imports
try:
    imports.preload("torch")
except imports.PreloadError as refused:
    print("refused:", refused)
else:
    made = imports.preloaded_names()
    print(*sorted({"helper_of_torch", "not_there", "torch.part"} & made))
"""
PACKAGES = {
    "fine": (
        "import helper_of_torch\nfrom torch import part\ntry:\n    import not_there\n"
        "except ImportError: pass\n",
        "helper_of_torch not_there\n",
    ),
    "broken": ("raise OSError('no such library')\n", "refused: OSError: no such library"),
    "leaves": ("raise SystemExit(3)\n", "refused: SystemExit: 3"),
    "threads": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
        "refused: torch starts threads",
    ),
    "elsewhere": (
        "import sys\nfrom pathlib import Path\n"
        "sys.path.append(str(Path(__file__).parents[4] / 'elsewhere'))\nimport not_installed\n",
        "refused: not_installed was loaded from ",
    ),
}


def _installed(folder: Path, text: str) -> Path:
    site = folder / "lib/python3.11/site-packages"
    (folder / "pyvenv.cfg").write_text("")
    (site / "torch").mkdir(parents=True)
    (site / "torch/__init__.py").write_text(text)
    (site / "torch/part.py").write_text("")
    (site / "helper_of_torch.py").write_text("")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere/not_installed.py").write_text("")
    return site


@pytest.mark.parametrize("name", PACKAGES)
def test_an_installed_package_is_imported_or_refused(tmp_path: Path, name: str) -> None:
    text, said = PACKAGES[name]
    site = _installed(tmp_path, text)
    done = subprocess.run(
        [sys.executable, "-c", TRIED],
        env={"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith(said), done.stdout + done.stderr


def test_a_package_on_another_path_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("raise SystemExit('its code ran')\n")
    code = TRIED.replace('"torch"', '"helper"')
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "refused: helper is not installed as a package\n", done.stderr


def test_a_server_that_cannot_import_its_package_serves_without_it(tmp_path: Path) -> None:
    site = _installed(tmp_path, PACKAGES["broken"][0])
    server = ServerHandle({"PYTHONPATH": str(site)}, framework="torch")
    try:
        worker = server.open_worker(fresh=False)
        assert worker.pid > 0
        worker.close()
        assert "no such library" in server.stderr_tail()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("name", "framework"),
    [
        ("beside.py", "torch"),
        ("queue.py", ""),
        ("numpy/", ""),
        ("numpy.so", ""),
        ("queue.txt", "torch"),
    ],
)
def test_a_framework_is_not_imported_where_it_would_hide_modules(
    tmp_path: Path, name: str, framework: str
) -> None:
    path = tmp_path / "sub" / name
    path.mkdir(parents=True) if name.endswith("/") else path.parent.mkdir()
    if not path.is_dir():
        path.write_text("")
    program = Program("callable", root=str(tmp_path), path=str(tmp_path / "sub/op.py"),
                      input_names=("x",), framework="torch")  # fmt: skip
    assert framework_of(program) == framework


@pytest.mark.parametrize(
    "more",
    [
        {"isolation": "spawn"},
        {"python": "/usr/bin/python3"},
        {"framework": "jax"},
        {"framework": ""},
    ],
)
def test_only_forked_workers_of_known_frameworks_get_one(
    tmp_path: Path, more: dict[str, str]
) -> None:
    words = {"framework": "torch", **more}
    program = Program("callable", root=str(tmp_path), input_names=(), **words)  # type: ignore[arg-type]
    assert framework_of(program) == ""


def test_what_is_not_installed_has_no_identity() -> None:
    assert identity("no_such_package_anywhere") == ""
    assert "numpy/__init__.py:" in identity("numpy")
