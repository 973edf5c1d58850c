"""The calls and regular expressions of the published VS Code extension, replayed on our command."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
import tomli
from mini_workspace import Mini, make_mini

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).resolve().parents[2]

# As the extension has them.
FAILURE_LINE = re.compile(r"^(\d+)\s+(\S+)\s+(.+)$")
KIND = re.compile(r"\[(\w+)\]")
DTYPE = re.compile(r"dtype:\s*(\S+)")
SHAPE = re.compile(r"shape:\s*\[([^\]]+)\]")
MAX_DIFF = re.compile(r"max_diff:\s*([\d.eE+-]+)")
SEED_IN_MESSAGE = re.compile(r"seed:\s*(\d+)")
VERSION = re.compile(r"v([\d.]+)")
UPTIME = re.compile(r"uptime (\d+)s")
PROBLEM = re.compile(r"^\[FAIL\]\s+(\S+)\s+\(seed:\s*(\d+)\):\s+(.+)$")


def parse_int(text: str) -> str:
    """``String(parseInt(text))`` in JavaScript, for integers below 1e21."""
    number = float(int(text))
    return text if number == int(text) and number < 2**53 else str(int(Decimal(repr(number))))


class Extension:
    """Calls the binary as the extension does, in the first workspace folder.

    The binary is what is installed as ``gpuemu-vscode``; no other command is on ``PATH``.
    """

    def __init__(self, mini: Mini, entry: str = "gpuemu-vscode") -> None:
        self.mini = mini
        folder = mini.root.parent / "bin"
        folder.mkdir(exist_ok=True)
        project = tomli.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))[
            "project"
        ]
        module, _, function = project["scripts"][entry].partition(":")
        self.binary = folder / entry
        self.binary.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\n{function}()\n"
        )
        self.binary.chmod(0o755)
        mini.env["PATH"] = "/usr/bin:/bin"

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.binary, *arguments],
            cwd=self.mini.root,
            env=self.mini.environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def code(self, *arguments: str) -> int:
        return self._run(*arguments).returncode

    def call(self, *arguments: str) -> str:
        """``execFile``: standard output, or a rejection where the exit code is not 0."""
        done = self._run(*arguments)
        assert done.returncode == 0, f"rejected: {done.stdout}\n{done.stderr}"
        return done.stdout

    def failures(self, limit: int) -> list[dict[str, str]]:
        """Its failures, as diagnostics and the tree have them."""
        found = []
        for line in self.call("failures", "--limit", str(limit)).splitlines():
            match = FAILURE_LINE.match(line)
            if match is None:
                continue
            rest = match[3]
            fields = {"seed": parse_int(match[1]), "op": match[2], "message": rest}
            for name, pattern in (("kind", KIND), ("dtype", DTYPE), ("shape", SHAPE),
                                  ("max_diff", MAX_DIFF)):  # fmt: skip
                value = pattern.search(rest)
                fields[name] = value[1] if value else ""
            found.append(fields)
        return found

    def test_items(self, text: str, ops: list[str]) -> dict[str, bool]:
        """Return for each test item whether it passed."""
        lines = text.splitlines()
        return {
            op: not any(op in line and ("FAIL" in line or "failed" in line) for line in lines)
            for op in ops
        }


@pytest.fixture(scope="module")
def extension() -> Iterator[Extension]:
    """A workspace in which one op of three is wrong; a socket's path must be short."""
    with tempfile.TemporaryDirectory(prefix="ge-") as folder:
        mini = make_mini(Path(folder) / "w")
        mini.edit("scripts/scale.py", "* 3", "* 3.01")
        found = Extension(mini)
        found.call("test")
        yield found


@pytest.mark.ci
def test_only_a_failed_check_is_no_breakdown(extension: Extension) -> None:
    """And the other command keeps the exit codes that a CI needs."""
    plain = Extension(extension.mini, "gpuemu-flow")
    for arguments, ours, theirs in (
        (("test",), 1, 0),
        (("run", "scale"), 1, 0),
        (("run", "total"), 0, 0),
        (("run", "nothing"), 2, 2),
        (("--no-such-option",), 2, 2),
        (("reproduce", "1"), 2, 2),
    ):
        codes = [found.code(*arguments) for found in (plain, extension)]
        assert codes == [ours, theirs], arguments


def test_the_binary_is_detected(extension: Extension) -> None:
    assert extension.call("--version")


def test_tests_fail_and_pass_as_they_should(extension: Extension) -> None:
    for arguments in (("test",), ("test", "--quick")):
        text = extension.call(*arguments)
        items = extension.test_items(text, ["scale", "total", "relu"])
        assert items == {"scale": False, "total": True, "relu": True}
        problems = [match for line in text.splitlines() if (match := PROBLEM.match(line))]
        assert problems and {match[1] for match in problems} == {"scale"}


@pytest.mark.ci
def test_failures_are_read_whole_and_each_can_be_reproduced(extension: Extension) -> None:
    found = extension.failures(100)
    assert len({failure["seed"] for failure in found}) == 4  # one may have been shrunk, too
    assert len(extension.failures(2)) == 2
    for failure in found:
        assert failure["op"] == "scale" and failure["kind"] == "ToleranceExceeded"
        assert failure["dtype"] == "float32"
        assert [int(size) for size in failure["shape"].split(",")]
        assert float(failure["max_diff"]) > 0
        assert SEED_IN_MESSAGE.search(failure["message"])
    # What a JavaScript number is exact for would be luck with seeds of 64 bits.
    rounded = [f for f in found if f["seed"] not in f["message"]]
    assert rounded
    shown = extension.call("reproduce", rounded[0]["seed"], "--verbose")
    assert "still fails" in shown and "input x float32" in shown
    assert "minimized:" in extension.call("minimize", rounded[0]["seed"])


def test_an_index_in_a_message_is_not_taken_for_the_kind(extension: Extension) -> None:
    found = extension.failures(100)
    assert any("worst at [" in f["message"] for f in found)
    assert {f["kind"] for f in found} == {"ToleranceExceeded"}


@pytest.mark.ci
def test_the_status_bar_follows_the_daemon(extension: Extension) -> None:
    assert "running" not in extension.call("status")
    extension.call("daemon", "start", "--background")
    try:
        text = extension.call("status")
        assert "running" in text
        version = VERSION.search(text)
        assert version and f"version {version[1]}" in extension.call("--version")
        assert UPTIME.search(text)
    finally:
        extension.call("daemon", "stop")
    assert "running" not in extension.call("status")


@pytest.mark.ci
def test_the_terminal_commands_are_understood(extension: Extension, tmp_path: Path) -> None:
    extension.call("fuzz", "--iterations", "2", "--op", "total")
    extension.call("fuzz", "--iterations", "1")
    empty = Extension(Mini(tmp_path / "new"))
    empty.mini.root.mkdir()
    empty.call("init", "--name", "fresh", "--framework", "pytorch")
    assert (empty.mini.root / "gpuemu.toml").exists()


def test_a_saved_kernel_is_linted(extension: Extension) -> None:
    """By its source, through its committed PTX, where no compiler is installed."""
    mini = extension.mini
    before = (mini.root / "gpuemu.toml").read_text()
    kernels = REPOSITORY / "scripts" / "kernels"
    source = mini.write("softmax.cu", (kernels / "softmax.cu").read_text())
    mini.write("softmax.ptx", (kernels / "sm_80" / "softmax.ptx").read_text())
    entry = '\n[[kernels]]\nname = "k"\nsource = "softmax.cu"\nptx = "softmax.ptx"\n'
    try:
        mini.write("gpuemu.toml", before + entry)
        extension.call("lint", str(source))
    finally:
        mini.write("gpuemu.toml", before)
