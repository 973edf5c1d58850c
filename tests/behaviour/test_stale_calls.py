"""A call that fails only asked whether it could: what it found counts, and leaves no stale pass."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from many_ops import Op, make_ops
from mini_workspace import Mini
from once import once

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
SCHEMA = 'dims = { N = [3] }\ninputs = { x = ["N"] }\noutput = ["N"]'
HEAD = """
import ctypes, os, subprocess, sys
def tried(call, *words, **more):
    try:
        return call(*words, **more) or True
    except OSError as error:
        return False
"""


@dataclass(frozen=True)
class Way:
    """An op whose `lines` set `v` to 2, until `edit`; some change files, and cannot."""

    lines: str
    edit: Callable[[Path], object]
    files: dict[str, str] = field(default_factory=dict)


def puts(name: str, text: str = "3") -> Callable[[Path], object]:
    return lambda root: (root / name).write_text(text)


def refused(name: str, lines: str) -> Way:
    """The wall refuses a change of a file, which the op then reads."""
    return Way(f"{lines}\nv = open('{name}').read()", puts(name), {name: "2"})


CREAT = "syscall(85, b'no2/x', 0o644)" if os.uname().machine == "x86_64" else "open(b'no2/x', 65)"
"""An old call, which the C library no longer makes."""
WALLED = {
    "truncated": refused("f1", "tried(open, 'f1', 'w')"),
    "written_by_a_child": refused("f2", "subprocess.run('echo 9 > f2', shell=True, stderr=-3)"),
    "moved_there": refused("f3", "tried(os.rename, 'other', 'f3')"),
    "moved_away": refused("f4", "tried(os.rename, 'f4', 'g4')"),
    "removed": refused("f5", "tried(os.unlink, 'f5')"),
    "made_then_looked_for": Way(
        "tried(open, 'f6', 'w')\nv = 3 if os.path.exists('f6') else 2", puts("f6")),
    "appended_then_looked_for": Way(
        "tried(open, 'f7', 'a')\nv = 3 if os.path.exists('f7') else 2", puts("f7")),
    "folder_then_looked_for": Way(
        "tried(os.mkdir, 'f8')\nv = 3 if os.path.exists('f8') else 2",
        lambda root: (root / "f8").mkdir()),
    "folder_then_read": Way(
        "tried(os.mkdir, 'f9')\nv = tried(lambda: open('f9/n').read()) or 2",
        lambda root: [(root / "f9").mkdir(), puts("f9/n")(root)]),
    "linked_then_read": Way(
        "tried(os.symlink, 'other', 'f10')\nv = tried(lambda: open('f10').read()) or 2",
        puts("f10")),
    "hard_linked_then_read": Way(
        "tried(os.link, 'other', 'f11')\nv = tried(lambda: open('f11').read()) or 2", puts("f11")),
    "folder_moved_there": Way(
        "tried(os.rename, 'f12', 'f12b')\nv = tried(lambda: open('f12b/n').read()) or 2",
        lambda root: shutil.copytree(root / "f12", root / "f12b"), {"f12/n": "3"}),
}  # fmt: skip
IN_VAIN = {
    "into_no_folder": Way(
        "v = 3 if tried(open, 'no1/x', 'w') else 2", lambda root: (root / "no1").mkdir()),
    "created_in_vain": Way(
        f"v = 2 if ctypes.CDLL(None).{CREAT} < 0 else 3", lambda root: (root / "no2").mkdir()),
    "link_that_exists": Way(
        "v = 3 if tried(os.symlink, 'a', 'g2') else 2\nv == 3 and os.unlink('g2')",
        lambda root: (root / "g2").unlink(), {"g2": ""}),
    "hard_link_that_exists": Way(
        "v = 3 if tried(os.link, 'other', 'g9') else 2\nv == 3 and os.unlink('g9')",
        lambda root: (root / "g9").unlink(), {"g9": ""}),
    "pipe_that_exists": Way(
        "v = 3 if tried(os.mkfifo, 'g3') else 2\nv == 3 and os.unlink('g3')",
        lambda root: (root / "g3").unlink(), {"g3": ""}),
    "removed_in_vain": Way("v = 3 if tried(os.unlink, 'g4') else 2", puts("g4")),
    "moved_in_vain": Way("v = 3 if tried(os.rename, 'g5', 'g5b') else 2", puts("g5")),
    "linked_in_vain": Way(
        "v = 3 if tried(os.link, 'g6', 'g6b') else 2\nv == 3 and os.unlink('g6b')", puts("g6")),
    "attribute_in_vain": Way(
        "v = 2\ntry:\n    os.setxattr('g7', 'user.a', b'1')\n    v = 3\n"
        "except FileNotFoundError:\n    pass\nexcept OSError:\n    v = 3", puts("g7")),
    "removed_with_content": Way(
        "v = 3 if tried(os.rmdir, 'h1') else 2",
        lambda root: (root / "h1/x").unlink(), {"h1/x": ""}),
    "moved_onto_content": Way(
        "os.mkdir('i2')\nv = 3 if tried(os.rename, 'i2', 'h2') else 2\nv == 2 and os.rmdir('i2')",
        lambda root: (root / "h2/x").unlink(), {"h2/x": ""}),
    "not_followed": Way(
        "v = 2 if tried(os.open, 'h3', os.O_NOFOLLOW) else 3",
        lambda root: [(root / "h3").unlink(), (root / "h3").symlink_to("same")],
        {"h3": "x", "same": "x"}),
    "watched_in_vain": Way(
        "c = ctypes.CDLL(None)\nn = c.inotify_init()\n"
        "v = 2 if c.inotify_add_watch(n, b'h4', 2) < 0 else 3",
        puts("h4")),
    "link_led_back": Way(
        "for to in 'g8a', 'g8b':\n    os.symlink(to, 'l8')\n"
        "    to == 'g8b' and open('l8').read()\n    os.unlink('l8')\n"
        "os.symlink('g8a', 'l8')\nv = open('l8').read()\nos.unlink('l8')",
        puts("g8a"), {"g8a": "2", "g8b": "7"}),
}  # fmt: skip


@dataclass(frozen=True)
class Told:
    first: dict[str, Any]
    again: dict[str, Any]
    edited: dict[str, Any]


def tell(folder: Path, ways: dict[str, Way], mode: str) -> Told:
    files = {path: text for way in ways.values() for path, text in way.files.items()}
    ops = {
        name: Op(op=f"{way.lines}\nreturn x * np.float32(v)", schema=SCHEMA, head=HEAD)
        for name, way in ways.items()
    }
    head = f'[sandbox]\nmode = "{mode}"\n'
    mini: Mini = make_ops(folder, ops, 'cases = 1\ntolerance = "table"', head, files)
    for path in ("other", "out/x"):
        mini.write(path, "9")
    first, again = mini.run(code=None), mini.run(code=None)
    for way in ways.values():
        way.edit(mini.root)
    return Told(first, again, mini.run(code=None))


@pytest.fixture(scope="module")
def walled(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return once(tmp_path_factory, "stale-walled", lambda folder: tell(folder, WALLED, "auto"))


@pytest.fixture(scope="module")
def in_vain(tmp_path_factory: pytest.TempPathFactory) -> Told:
    return once(tmp_path_factory, "stale-in-vain", lambda folder: tell(folder, IN_VAIN, "off"))


def check(told: Told, name: str) -> None:
    verdicts = [[r["verdict"] for r in report["results"] if r["op"] == name]
                for report in (told.first, told.edited)]  # fmt: skip
    assert verdicts[0] == ["passed"], told.first["failures"]
    assert f"op:{name}:float32" not in told.again["executed"]
    assert verdicts[1] == ["failed"]


@pytest.mark.parametrize("name", WALLED)
def test_what_the_wall_refused_is_not_taken_for_made(walled: Told, name: str) -> None:
    if "landlock" not in walled.first["results"][0]["sandbox"]:
        pytest.skip("no fence here")
    check(walled, name)


@pytest.mark.parametrize("name", IN_VAIN)
def test_what_failed_for_what_was_there_counts(in_vain: Told, name: str) -> None:
    if name == "attribute_in_vain" and not hasattr(os, "setxattr"):
        pytest.skip("no attributes here")
    check(in_vain, name)


def test_what_cannot_be_seen_is_told(tmp_path: Path) -> None:
    ring = "ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(120))"
    lines = {
        "ring": ring,
        "narrow": "tried(subprocess.call, './narrow')",
        "root": "os.fork() or [tried(os.chroot, '.'), os._exit(0)]\nos.wait()",
    }
    ops = {
        name: Op(op=f"{line}\nreturn x * 2", schema=SCHEMA, head=HEAD)
        for name, line in lines.items()
    }
    mini = make_ops(tmp_path / "w", ops, "cases = 1", '[sandbox]\nmode = "off"\n')
    mini.write("narrow", "\x7fELF\x01").chmod(0o755)
    problems = {p["message"].partition(":")[0]: p for p in mini.run()["problems"]}
    assert {p["slug"] for p in problems.values()} == {"untracked-inputs"}
    assert "io_uring" in problems["op of ring"]["message"]
    assert "32-bit" in problems["op of narrow"]["message"]
    assert "another root" in problems["op of root"]["message"]
