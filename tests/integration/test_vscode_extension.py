"""The VS Code extension: its packages install, its types are right, it builds and loads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuemu_flow.config.load import FILE_NAME

pytestmark = pytest.mark.ci

EXTENSION = Path(__file__).resolve().parents[2] / "editors" / "vscode"
NO_NETWORK = re.compile(
    r"ENOTFOUND|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EAI_AGAIN|ENETUNREACH|EHOSTUNREACH|ENOTCACHED"
    r"|UNABLE_TO_|CERT_|ERR_SOCKET|\bE(?:401|403|5\d\d)\b"
)
# Any name that the client library extends or calls is a class here: enough to load it.
LOAD = """
const Module = require("module");
const anything = () => new Proxy(class {}, {
  get: (target, name) => name in target || typeof name === "symbol" ? target[name] : anything(),
});
const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? anything() : load(name, ...rest));
const extension = require(process.argv[1]);
console.log(JSON.stringify([typeof extension.activate, typeof extension.deactivate]));
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the committed files with its packages; skips where they cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("extension") / "vscode"
    ignored = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(EXTENSION, folder, ignore=ignored)
    done = npm(folder, "ci")
    if done.returncode and NO_NETWORK.search(done.stderr):
        pytest.skip(f"npm cannot reach its registry: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    yield folder


def npm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["npm", *arguments], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.ci
def test_the_types_are_right_and_it_builds_and_loads(installed: Path) -> None:
    for step in ("check", "build"):
        done = npm(installed, "run", step)
        assert done.returncode == 0, done.stdout + done.stderr
    built = installed / "dist" / "extension.js"
    done = subprocess.run(
        ["node", "-e", LOAD, str(built)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == '["function","function"]\n', done.stderr
    # The check can fail.
    source = installed / "src" / "extension.ts"
    source.write_text(source.read_text() + "\nconst wrong: number = ID;\n")
    assert npm(installed, "run", "check").returncode != 0


def test_the_lock_names_no_machine() -> None:
    text = (EXTENSION / "package-lock.json").read_text()
    assert "://" not in text and "resolved" not in text
    assert json.loads(text)["lockfileVersion"] == 3
    assert "omit-lockfile-registry-resolved=true" in (EXTENSION / ".npmrc").read_text()


def test_it_names_what_the_server_knows() -> None:
    pytest.importorskip("pygls", reason="the language server needs pygls (extra lsp)")
    from gpuemu_flow.services.lsp.server import LANGUAGE, is_config

    package = json.loads((EXTENSION / "package.json").read_text())
    (language,) = package["contributes"]["languages"]
    assert language["id"] == LANGUAGE and language["filenames"] == [FILE_NAME]
    assert is_config("untitled:x", LANGUAGE, "")
    settings = package["contributes"]["configuration"]["properties"]
    assert settings["gpuemu-flow.command"]["default"] == ["gpuemu-flow", "lsp"]
