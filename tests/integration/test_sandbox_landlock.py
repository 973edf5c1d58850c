"""Files that a list of rules opens, tried in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gpuemu_flow.workers.sandbox import filters

pytestmark = [pytest.mark.ci, pytest.mark.skipif(not filters.version(), reason="no Landlock")]

_PROGRAM = """
import json, os, sys
from gpuemu_flow.workers.sandbox import filters

def deed(act, *arguments):
    try:
        act(*arguments)
        return True
    except OSError:
        return False

def read(path):
    os.close(os.open(path, os.O_RDONLY))

def write(path):
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT))

folder, readable, writable, tried = json.loads(sys.argv[1])
libc = filters.library()
filters.prctl(libc, filters.NO_NEW_PRIVS, 1)
rules = filters.Ruleset(libc, filters.version())
rules.allow(("/",), filters.READ_DIR)
rules.allow(readable, filters.READ)
rules.allow(writable, filters.WRITE)
rules.enforce()
found = {path: [deed(read, path), deed(write, path)] for path in tried}
print(json.dumps([found, deed(os.listdir, folder)]))
"""


def allowed(
    folder: Path, readable: list[str], writable: list[str], tried: list[str]
) -> dict[str, tuple[bool, bool]]:
    """Return whether each path can be read and written under these rules."""
    here = [[str(folder / name) for name in names] for names in (readable, writable, tried)]
    command = [sys.executable, "-c", _PROGRAM, json.dumps([str(folder), *here])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, listed = json.loads(done.stdout)
    assert listed
    return {name: tuple(found[str(folder / name)]) for name in tried}


def test_each_rule_opens_what_lies_below_it_and_nothing_else(tmp_path: Path) -> None:
    for name in ("deep/file", "other/file", "plain", "hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert allowed(
        tmp_path,
        ["deep", "plain", "missing"],
        ["other"],
        ["deep/file", "plain", "hidden", "other/file", "other/new", "deep/new"],
    ) == {
        "deep/file": (True, False),
        "plain": (True, False),
        "hidden": (False, False),
        "other/file": (True, True),
        "other/new": (False, True),
        "deep/new": (False, False),
    }


def test_a_file_that_may_be_written_needs_no_rule_for_its_folder(tmp_path: Path) -> None:
    for name in ("log", "hidden"):
        (tmp_path / name).touch()
    found = allowed(tmp_path, [], ["log"], ["log", "hidden", "new"])
    assert found == {"log": (True, True), "hidden": (False, False), "new": (False, False)}


@pytest.mark.parametrize("where", ["readable", "writable"])
def test_a_rule_for_a_link_opens_nothing(where: str, tmp_path: Path) -> None:
    (tmp_path / "hidden").touch()
    (tmp_path / "link").symlink_to("hidden")
    lists = {"readable": [], "writable": [], where: ["link"]}
    found = allowed(tmp_path, lists["readable"], lists["writable"], ["link", "hidden"])
    assert found == {"link": (False, False), "hidden": (False, False)}
