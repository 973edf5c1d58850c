"""A workspace in a temporary folder for the configuration tests."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from gpuemu_flow.config.load import check_config, load_config
from gpuemu_flow.config.model import Config
from gpuemu_flow.model.errors import Problem

DATA = Path(__file__).parent.parent / "data" / "config"
VALID = sorted((DATA / "valid").glob("*.toml"))
INVALID = sorted((DATA / "invalid").glob("*.toml"))

_EXPECTED = re.compile(r"# (error|warning): ([a-z-]+)")

SOFTMAX = """
[project]
name = "test"
[[ops]]
name = "softmax"
op = "scripts/softmax.py:softmax"
reference = "scripts/ref_softmax.py"
"""


class ConfigWorkspace:
    """The committed example scripts, a home folder, and a gpuemu.toml to be written."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        self.home = folder / "home"
        self.home.mkdir()
        shutil.copytree(DATA / "workspace", self.root)
        self.environ = {"HOME": str(self.home)}

    def write(self, text: str, name: str = "gpuemu.toml") -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("@ROOT@", str(self.root)))
        return path

    def write_home(self, name: str, text: str) -> Path:
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def load(self, text: str | None = None, **options: bool) -> Config:
        if text is not None:
            self.write(text)
        return load_config(start=self.root, environ=self.environ, **options)

    def check(self, text: str | None = None, **options: bool) -> list[Problem]:
        if text is not None:
            self.write(text)
        return check_config(start=self.root, environ=self.environ, **options)

    def errors(self, text: str | None = None) -> list[tuple[int, str]]:
        return [(p.line, p.slug) for p in self.check(text) if not p.warning]


def expected(text: str) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Errors and warnings that a file says, in comments, it has: (line, slug) each."""
    found: dict[str, list[tuple[int, str]]] = {"error": [], "warning": []}
    for number, line in enumerate(text.splitlines(), start=1):
        for kind, slug in _EXPECTED.findall(line):
            found[kind].append((number, slug))
    return found["error"], found["warning"]
