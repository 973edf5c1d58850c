"""A workspace with tests in it, and the pytest processes that run them with the plugin."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from xml.etree import ElementTree

import pytest
from warm import warm_command

from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.fuzz.failures import list_failures

CONFIG = """
[project]
name = "tested"

[validation]
dtypes = ["float32", "float16"]
cases = 3
seed = 42

[[ops]]
name = "double"
reference = "ref.py:double"
input_names = ["x"]
execution_mode = "client_side"

[[ops]]
name = "pair"
reference = "ref.py:pair"
input_names = ["a", "b"]
execution_mode = "client_side"
[ops.schema]
dims = { N = [1, 5, 8] }
inputs = { a = ["N"], b = ["N"] }
outputs = { total = ["N"], gap = ["N"] }

[[ops]]
name = "sum"
reference = "ref.py:total"
input_names = ["x"]
execution_mode = "client_side"
schema = { dims = { N = 4000 }, inputs = { x = ["N"] }, output = [] }
"""
REFERENCE = """
import numpy as np

def double(x):
    return x * 2

def pair(a, b):
    return a + b, a - b

def total(x):
    return x.astype(np.float64).sum().astype(x.dtype)
"""


@dataclass
class Ran:
    """Exit status and output of a pytest process."""

    code: int
    text: str
    folder: Path

    @property
    def counts(self) -> dict[str, int]:
        found = re.findall(r"(\d+) (passed|failed|skipped|error)s?", self.text.splitlines()[-1])
        return {word: int(number) for number, word in found}

    @property
    def junit(self) -> list[ElementTree.Element]:
        return list(ElementTree.parse(self.folder / "junit.xml").iter("testcase"))


class Place:
    """A workspace with tests in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "gpuemu.toml").write_text(CONFIG)
        (folder / "ref.py").write_text(REFERENCE)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("GPUEMU", "PYTEST"))}
        self.environ = {**kept, "HOME": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    def pytest(self, tests: str, *arguments: str, name: str = "test_ops.py") -> Ran:
        (self.folder / name).write_text("import pytest\n" + dedent(tests))
        return self.again(name, *arguments)

    def again(self, *arguments: str) -> Ran:
        done = subprocess.run(
            [
                sys.executable, "-m", "pytest", "-p", "gpuemu_flow.pytest_plugin",
                "-p", "no:cacheprovider", "--junit-xml", "junit.xml", "-rA", *arguments,
            ],
            cwd=self.folder, env=self.environ, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        return Ran(done.returncode, done.stdout + done.stderr, self.folder)

    def failures(self) -> list[dict[str, Any]]:
        workspace = Workspace(self.folder, environ=self.environ)
        try:
            return list_failures(workspace)
        finally:
            workspace.cache.close()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm_command(arguments, self.folder, self.environ)


@pytest.fixture
def tested(tmp_path: Path) -> Place:
    return Place(tmp_path)


def properties(case: ElementTree.Element) -> dict[str, str]:
    return {p.attrib["name"]: p.attrib["value"] for p in case.iter("property")}
