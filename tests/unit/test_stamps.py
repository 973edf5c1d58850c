"""The stamps of a clean run: they say "nothing changed" only when nothing did."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from for_each import for_each

from gpuemu_flow.build import stamps
from gpuemu_flow.build.files import FileTable, stamp_of
from gpuemu_flow.build.stamps import (
    ABSENT,
    DATABASE,
    FILE,
    FOLDER,
    INSERT,
    LINK,
    LOOK,
    SCHEMA,
    SELECT,
    VARIABLE,
    Row,
    checksum_of,
    clean_summary,
    row_of,
)

ENVIRON = {"HOME": "/nowhere", "PATH": "/bin"}
SUMMARY = 'up to date: 3 tasks; 1 passed – "quoted" ü\nC:\\new \\\\n\n'
ODD = ("a\nb.py", "tab\t.py", "feed\f.py", "\udcff.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "sub/c.json", *ODD):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("content")
    (tmp_path / "link").symlink_to("a.py")
    return tmp_path


def store(folder: Path, *rows: Row) -> Path:
    """Store the rows as those of a clean run."""
    database = folder / stamps.CACHE_NAME / DATABASE
    database.parent.mkdir(parents=True, exist_ok=True)
    database.unlink(missing_ok=True)
    identity = stamps.identity(ENVIRON, str((folder / stamps.CACHE_NAME).resolve()))
    with sqlite3.connect(database) as connection:
        connection.executescript(SCHEMA)
        connection.executemany(INSERT, rows)
        checksum = checksum_of(connection.execute(SELECT), SUMMARY, identity)
        connection.execute("INSERT INTO clean_run VALUES (?, ?, ?)", (SUMMARY, identity, checksum))
    connection.close()
    return database


def stamped(kind: str, path: Path, name: str = "") -> Row:
    stamp = stamp_of(path)
    assert stamp is not None
    return row_of(kind, name or str(path), stamp)


def written(folder: Path) -> Path:
    """Store what a run rests on: all files of a folder, by relative and by absolute paths."""
    files = [p for p in folder.rglob("*.*") if p.is_file() and stamps.CACHE_NAME not in p.parts]
    return store(
        folder,
        *(stamped(FILE, path) for path in files),
        *(stamped(FILE, path, str(path.relative_to(folder))) for path in files),
        stamped(FOLDER, folder / "sub"),
        row_of(ABSENT, str(folder / "user.toml")),
        row_of(LINK, str(folder / "link"), state="a.py"),
        row_of(LOOK, str(folder / "sub"), state=stamps.look_of(str(folder / "sub"))),
    )


def said(folder: Path, environ: dict[str, str] | None = None) -> str | None:
    return clean_summary(str(folder), ENVIRON if environ is None else environ)


def restored(folder: Path) -> None:
    """Edit a file, and give it its size and its time of modification back."""
    target = folder / "a.py"
    before = target.stat()
    target.write_text("CONTENT")
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert target.stat().st_mtime_ns == before.st_mtime_ns


def replaced(folder: Path) -> None:
    before = (folder / "b.py").stat()
    (folder / "sub.py").write_text("content")
    os.utime(folder / "sub.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    (folder / "sub.py").replace(folder / "b.py")


def led_elsewhere(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("b.py")


def linked(folder: Path) -> None:
    """Put a link to the very folder in its place: all files keep their stamps."""
    (folder / "sub").rename(folder / "aside")
    (folder / "sub").symlink_to("aside")


CHANGES: dict[str, Callable[[Path], object]] = {
    "edit": lambda f: (f / "a.py").write_text("b.py"),
    "edit with a restored time and size": restored,
    "delete": lambda f: (f / "sub/c.json").unlink(),
    "appear": lambda f: (f / "user.toml").write_text(""),
    "new entry": lambda f: (f / "sub/new").write_text(""),
    "touch": lambda f: os.utime(f / "b.py"),
    "move": lambda f: (f / "b.py").rename(f / "sub/b.py"),
    "replace": replaced,
    "another target": led_elsewhere,
    "no link": lambda f: (f / "link").unlink(),
    "a link to the folder": linked,
    "mode": lambda f: (f / "sub").chmod(0o500),
    **{f"odd name {name!r}": lambda f, n=name: (f / n).write_text("x") for name in ODD},  # type: ignore[misc]
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_is_noticed(folder: Path, change: Callable[[Path], object]) -> None:
    written(folder)
    assert said(folder) == SUMMARY
    change(folder)
    assert said(folder) is None


def test_another_process_environment_is_noticed(folder: Path) -> None:
    written(folder)
    assert said(folder, {**ENVIRON, "HOME": "/elsewhere"}) is None
    assert said(folder, {**ENVIRON, "PATH": "/elsewhere"}) == SUMMARY


@pytest.mark.parametrize("name", ["SCALE", "SC**", stamps.ALL_NAMED])
def test_a_variable_that_programs_read_is_noticed_and_not_stored(name: str, folder: Path) -> None:
    before = {**ENVIRON, "SCALE": "hunter2"}
    path = store(folder, row_of(VARIABLE, name, state=stamps.variable_digest(before, name)))
    assert b"hunter2" not in path.read_bytes()
    assert said(folder, before) == SUMMARY
    assert said(folder, {**before, "SHLVL": "7"}) == SUMMARY
    assert said(folder, {**before, "SCALE": "3"}) is None
    assert said(folder) is None


LOGINS = (
    "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_AGENT_INFO", "GPG_TTY", "SSH_AUTH_SOCK",
    "SSH_CONNECTION", "TERM_PROGRAM", "TERM_SESSION_ID", "TMUX", "TMUX_PANE",
    "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
    "XDG_SESSION_TYPE", "WAYLAND_DISPLAY", "WINDOWID", "STY",
)  # fmt: skip


@for_each("name", LOGINS)
def test_another_login_is_no_change_for_what_was_given_the_whole_environment(name: str) -> None:
    whole = stamps.variable_digest(ENVIRON, stamps.ALL_VARIABLES)
    assert stamps.variable_digest({**ENVIRON, name: "another"}, stamps.ALL_VARIABLES) == whole


@pytest.mark.parametrize("name", ["DISPLAY", "TMUX", "GPG_AGENT_INFO", "VSCODE_PID"])
def test_a_session_s_variable_counts_where_it_is_read_by_name(name: str) -> None:
    unset = stamps.variable_digest(ENVIRON, name)
    assert stamps.variable_digest({**ENVIRON, name: "another"}, name) != unset


@for_each(
    "name",
    ["CUDA_VISIBLE_DEVICES", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ", "USER"],
)
def test_no_other_variable_is_left_out_of_the_whole_environment(name: str) -> None:
    whole = stamps.variable_digest(ENVIRON, stamps.ALL_VARIABLES)
    assert stamps.variable_digest({**ENVIRON, name: "another"}, stamps.ALL_VARIABLES) != whole


@pytest.mark.parametrize("name", ["HOME", "SESSION", "TERMINAL_SCALE", "XDG_CONFIG_HOME"])
def test_what_reaches_no_program_counts_where_a_configuration_names_it(name: str) -> None:
    another = {**ENVIRON, name: "another"}
    for whole, counts in ((stamps.ALL_VARIABLES, False), (stamps.ALL_NAMED, True)):
        changed = stamps.variable_digest(another, whole) != stamps.variable_digest(ENVIRON, whole)
        assert changed is counts


def test_damage_is_never_believed(folder: Path) -> None:
    """Neither a flipped bit nor a missing end gives another summary, or hides a change."""
    path = written(folder)
    content = path.read_bytes()
    for position in range(0, len(content), 31):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        assert said(folder) in (None, SUMMARY)
    (folder / "a.py").write_text("changed")
    for position in range(0, len(content), 31):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        assert said(folder) is None
    for length in (0, 1, 20, len(content) - 1):
        path.write_bytes(content[:length])
        assert said(folder) is None
    path.unlink()
    assert said(folder) is None


def test_a_missing_row_is_noticed(folder: Path) -> None:
    path = written(folder)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM stamps WHERE path = ?", (b"a.py",))
    connection.close()
    assert said(folder) is None


@pytest.mark.parametrize("place", ["", "state", "state/cache.db"])
def test_a_link_in_the_way_is_not_followed(place: str, folder: Path) -> None:
    written(folder)
    linked = folder / stamps.CACHE_NAME / place
    linked.rename(folder / "aside")
    linked.symlink_to(folder / "aside")
    assert said(folder) is None


def test_a_copy_says_nothing(folder: Path) -> None:
    """It names the files of the original, which are as they were."""
    path = written(folder)
    copy = folder / "other" / stamps.CACHE_NAME / DATABASE
    copy.parent.mkdir(parents=True)
    copy.write_bytes(path.read_bytes())
    assert said(folder) == SUMMARY
    assert said(folder / "other") is None


def test_the_workspace_is_found_upward(folder: Path) -> None:
    assert stamps.find_workspace(str(folder / "sub")) is None
    (folder / "gpuemu.toml").write_text("")
    assert stamps.find_workspace(str(folder / "sub")) == str(folder)


def test_digests_are_computed_again_only_when_the_stamp_moved(folder: Path) -> None:
    table = FileTable(folder)
    first = table.digest("a.py")
    assert table.digest("a.py") == first
    assert table.moved(["a.py", "b.py"]) == ["b.py"], "b.py was not known before"
    table.digest("b.py")
    (folder / "a.py").write_text("changed")
    assert table.refresh() == {"a.py"}
    os.utime(folder / "b.py")
    assert table.moved() == ["b.py"]
    assert table.refresh() == set()
    (folder / "a.py").unlink()
    assert table.refresh() == {"a.py"}
    assert table.digest("sub") == "", "a folder is no file"
