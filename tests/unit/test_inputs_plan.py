"""The front's file: it says "nothing changed" only when nothing did."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuemu_flow.inputs import plan
from gpuemu_flow.inputs.files import FileTable, stamp_of

ENVIRON = {"HOME": "/nowhere", "PATH": "/bin"}
SUMMARY = 'up to date: 3 tasks; 1 passed – "quoted" ü\nC:\\new \\\\n\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.py", "b.py", "sub/c.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    return tmp_path


def written(folder: Path, **changes: object) -> Path:
    files = {str(p): stamp_of(p) for p in folder.rglob("*.*") if p.is_file()}
    content = plan.render(
        identity_text=plan.identity(ENVIRON, str(folder.resolve())),
        summary=SUMMARY,
        files={**files, **changes.get("files", {})},  # type: ignore[arg-type, dict-item]
        absent=[str(folder / "user.toml")],
        folders={str(folder / "sub"): stamp_of(folder / "sub")},  # type: ignore[dict-item]
    )
    assert content is not None
    path = folder / "plan"
    path.write_bytes(content)
    return path


def test_unchanged_files_give_the_summary(folder: Path) -> None:
    path = written(folder)
    assert plan.look(str(path), ENVIRON)[0] == SUMMARY


@pytest.mark.parametrize(
    "change",
    [
        lambda f: (f / "a.py").write_text("b.py"),
        lambda f: (f / "sub/c.json").unlink(),
        lambda f: (f / "user.toml").write_text(""),
        lambda f: (f / "sub/new").write_text(""),
        lambda f: os.utime(f / "b.py"),
        lambda f: (f / "b.py").rename(f / "sub/b.py"),
    ],
    ids=["edit", "delete", "appear", "new entry", "touch", "move"],
)
def test_any_change_is_noticed(folder: Path, change: object) -> None:
    path = written(folder)
    change(folder)  # type: ignore[operator]
    assert plan.look(str(path), ENVIRON)[0] is None


def test_an_edit_with_restored_mtime_and_size_is_noticed(folder: Path) -> None:
    path = written(folder)
    target = folder / "a.py"
    before = target.stat()
    target.write_text("A.PY")
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert target.stat().st_mtime_ns == before.st_mtime_ns
    assert plan.look(str(path), ENVIRON)[0] is None


def test_a_plan_of_another_version_is_not_called_damaged(folder: Path) -> None:
    path = written(folder)
    assert not plan.is_damaged(str(path))
    path.write_bytes(path.read_bytes() + b"x")
    assert plan.is_damaged(str(path))
    path.write_bytes(b"gpuemu-flow plan 3 00c0ffee\nidentity and so on\n")
    assert not plan.is_damaged(str(path))
    path.write_bytes(b"something else\n")
    assert plan.is_damaged(str(path))


def test_another_process_environment_is_noticed(folder: Path) -> None:
    path = written(folder)
    assert plan.look(str(path), {**ENVIRON, "HOME": "/elsewhere"})[0] is None
    assert plan.look(str(path), {**ENVIRON, "PATH": "/elsewhere"})[0] == SUMMARY


def with_head(folder: Path, **more: object) -> Path:
    content = plan.render(
        identity_text=plan.identity(ENVIRON, str(folder.resolve())),
        summary=SUMMARY,
        files={str(folder / "a.py"): stamp_of(folder / "a.py")},  # type: ignore[dict-item]
        absent=(),
        folders={},
        **more,  # type: ignore[arg-type]
    )
    assert content is not None
    (folder / "plan").write_bytes(content)
    return folder / "plan"


def test_a_link_that_leads_elsewhere_is_noticed(folder: Path) -> None:
    link = folder / "link"
    link.symlink_to("a.py")
    path = with_head(folder, links={str(link): "a.py"})
    assert plan.look(str(path), ENVIRON)[0] == SUMMARY
    link.unlink()
    assert plan.look(str(path), ENVIRON)[0] is None
    link.symlink_to("b.py")
    assert plan.look(str(path), ENVIRON)[0] is None


@pytest.mark.parametrize("name", ["SCALE", "SC**", plan.ALL_NAMED])
def test_a_variable_that_programs_read_is_noticed_and_not_stored(name: str, folder: Path) -> None:
    before = {**ENVIRON, "SCALE": "hunter2"}
    path = with_head(folder, variables={name: plan.variable_digest(before, name)})
    assert b"hunter2" not in path.read_bytes()
    assert plan.look(str(path), before)[0] == SUMMARY
    assert plan.look(str(path), {**before, "SHLVL": "7"})[0] == SUMMARY
    assert plan.look(str(path), {**before, "SCALE": "3"})[0] is None
    assert plan.look(str(path), ENVIRON)[0] is None


LOGINS = (
    "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "GPG_AGENT_INFO", "GPG_TTY", "SSH_AUTH_SOCK",
    "SSH_CONNECTION", "TERM_PROGRAM", "TERM_SESSION_ID", "TMUX", "TMUX_PANE",
    "VSCODE_IPC_HOOK_CLI", "VSCODE_GIT_IPC_HANDLE", "XDG_RUNTIME_DIR", "XDG_SESSION_ID",
    "XDG_SESSION_TYPE", "WAYLAND_DISPLAY", "WINDOWID", "STY",
)  # fmt: skip


@pytest.mark.parametrize("name", LOGINS)
def test_another_login_is_no_change_for_what_was_given_the_whole_environment(
    name: str, folder: Path
) -> None:
    whole = plan.variable_digest(ENVIRON, plan.ALL_VARIABLES)
    path = with_head(folder, variables={plan.ALL_VARIABLES: whole})
    assert plan.look(str(path), {**ENVIRON, name: "another"})[0] == SUMMARY


@pytest.mark.parametrize("name", ["DISPLAY", "TMUX", "GPG_AGENT_INFO", "VSCODE_PID"])
def test_a_session_s_variable_counts_where_it_is_read_by_name(name: str, folder: Path) -> None:
    path = with_head(folder, variables={name: plan.variable_digest(ENVIRON, name)})
    assert plan.look(str(path), ENVIRON)[0] == SUMMARY
    assert plan.look(str(path), {**ENVIRON, name: "another"})[0] is None


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "LANG", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "TZ", "USER"],
)
def test_no_other_variable_is_left_out_of_the_whole_environment(name: str) -> None:
    whole = plan.variable_digest(ENVIRON, plan.ALL_VARIABLES)
    assert plan.variable_digest({**ENVIRON, name: "another"}, plan.ALL_VARIABLES) != whole


@pytest.mark.parametrize("name", ["HOME", "SESSION", "TERMINAL_SCALE", "XDG_CONFIG_HOME"])
def test_what_reaches_no_program_counts_where_a_configuration_names_it(name: str) -> None:
    another = {**ENVIRON, name: "another"}
    for whole, counts in ((plan.ALL_VARIABLES, False), (plan.ALL_NAMED, True)):
        changed = plan.variable_digest(another, whole) != plan.variable_digest(ENVIRON, whole)
        assert changed is counts


def test_few_files_of_a_large_folder_are_asked_for_one_by_one(folder: Path) -> None:
    for number in range(50):
        (folder / f"other{number}").touch()
    path = written(folder)
    assert f"file {folder}/a.py\t".encode() in path.read_bytes()
    assert plan.look(str(path), ENVIRON)[0] == SUMMARY
    (folder / "a.py").write_text("b.py")
    assert plan.look(str(path), ENVIRON)[0] is None


def test_damage_is_never_believed(folder: Path) -> None:
    path = written(folder)
    content = path.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        assert plan.look(str(path), ENVIRON)[0] in (None,)
    for length in (0, 1, 20, len(content) - 1):
        path.write_bytes(content[:length])
        assert plan.look(str(path), ENVIRON)[0] is None
    assert plan.look(str(folder / "no such file"), ENVIRON)[0] is None


@pytest.mark.parametrize("name", ["new\nline.py", "tab\t.py", "feed\f.py", "\udcff.py"])
def test_paths_that_the_format_cannot_hold_give_no_plan(folder: Path, name: str) -> None:
    content = plan.render(
        identity_text="x",
        summary="",
        files={str(folder / name): (1, 1, 1, 1)},
        absent=[],
        folders={},
    )
    assert content is None


def test_the_workspace_is_found_upward(folder: Path) -> None:
    assert plan.find_workspace(str(folder / "sub")) is None
    (folder / "gpuemu.toml").write_text("")
    assert plan.find_workspace(str(folder / "sub")) == str(folder)


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


def test_many_files_of_one_folder_are_each_looked_at(tmp_path: Path) -> None:
    """They stand in one section; whichever of them changes, goes or is replaced, is noticed."""
    names = [f"f{n}" for n in range(12)]
    for name in names:
        (tmp_path / name).write_text("x")

    def write() -> None:
        stamps = {}
        for name in names:
            s = (tmp_path / name).stat()
            stamps[str(tmp_path / name)] = s.st_mtime_ns, s.st_ctime_ns, s.st_size, s.st_ino
        content = plan.render(
            identity_text=plan.identity({}, str(tmp_path.resolve())),
            summary="fine",
            files=stamps,
            absent=[],
            folders={},
        )
        assert content is not None
        (tmp_path / "plan").write_bytes(content)

    for name in names[:: len(names) // 3]:
        file = tmp_path / name
        write()
        assert plan.look(str(tmp_path / "plan"), {})[0] == "fine"
        file.write_text("longer")
        assert plan.look(str(tmp_path / "plan"), {})[0] is None, "another size"
        write()
        (tmp_path / "new").write_text("longer")
        (tmp_path / "new").replace(file)
        assert plan.look(str(tmp_path / "plan"), {})[0] is None, "another inode"
        write()
        file.unlink()
        assert plan.look(str(tmp_path / "plan"), {})[0] is None, "gone"
        file.write_text("x")


def test_a_copy_of_a_plan_says_nothing(folder: Path) -> None:
    """It names the files of the original, which are as they were."""
    path = written(folder)
    (folder / "other").mkdir()
    copy = folder / "other/plan"
    copy.write_bytes(path.read_bytes())
    assert plan.look(str(path), ENVIRON)[0] == SUMMARY
    assert plan.look(str(copy), ENVIRON)[0] is None
