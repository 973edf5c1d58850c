"""Another user's workspace is not run unless somebody who may says so; one's own always is."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mini_workspace import Mini, make_mini

from gpuemu_flow.build import session
from gpuemu_flow.build.session import foreign_owners, own_users, require_trust, trusted_file
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.model.errors import UsageError

STRANGER = 54321
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@pytest.fixture
def foreign(tmp_path: Path) -> Mini:
    """A workspace whose op is another user's."""
    mini = make_mini(tmp_path / "workspace", warm=True)
    home = tmp_path / "home"
    home.mkdir()
    mini.env = {"HOME": str(home), "XDG_CONFIG_HOME": "", "GPUEMU_TRUST": ""}
    os.chown(mini.root / "scripts/scale.py", STRANGER, STRANGER)
    mini.edit("scripts/scale.py", "def scale(x):", "open('ran', 'w')\n\ndef scale(x):")
    return mini


@as_root
@pytest.mark.parametrize(
    "arguments",
    [("run",), ("ci",), ("test",), ("fuzz", "total"), ("calibrate", "total"), ("mutate", "total"),
     ("run", "total")],
)  # fmt: skip
def test_nothing_of_another_users_is_run(foreign: Mini, arguments: tuple[str, ...]) -> None:
    done = foreign.command(*arguments, code=2)
    assert "workspace-untrusted" in done.stderr
    assert "scripts/scale.py" in done.stderr and "--trust" in done.stderr
    assert not (foreign.root / "ran").exists()


@as_root
@pytest.mark.parametrize(
    "arguments", [("list",), ("config", "check"), ("lint",), ("graph",), ("coverage", "total")]
)
def test_what_runs_nothing_asks_for_nothing(foreign: Mini, arguments: tuple[str, ...]) -> None:
    done = foreign.command(*arguments, code=4 if arguments == ("lint",) else 0)
    assert "untrusted" not in done.stderr


@as_root
def test_trust_is_remembered_per_folder_and_owner(foreign: Mini) -> None:
    foreign.command("run", "total", "--trust")
    kept = trusted_file(foreign.env)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    (entry,) = json.loads(kept.read_text())["trusted"]
    assert entry["owners"] == [STRANGER]
    foreign.command("run", "relu")
    os.chown(foreign.root / "scripts/relu.py", STRANGER + 1, -1)
    shutil.rmtree(foreign.root / ".gpuemu-cache")
    assert "untrusted" in foreign.command("run", "relu", code=2).stderr


@as_root
def test_the_environment_grants_and_does_not_remember(foreign: Mini) -> None:
    foreign.env["GPUEMU_TRUST"] = "1"
    foreign.command("run", "total")
    foreign.env["GPUEMU_TRUST"] = ""
    assert not trusted_file(foreign.env).exists()
    assert "untrusted" in foreign.command("run", "relu", code=2).stderr


@as_root
@pytest.mark.parametrize("answer", [True, False])
def test_a_terminal_is_asked(foreign: Mini, answer: bool) -> None:
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return answer

    workspace = Workspace(foreign.root)
    if answer:
        require_trust(workspace, foreign.env, ask)
        require_trust(Workspace(foreign.root), foreign.env, ask)
    else:
        with pytest.raises(UsageError):
            require_trust(workspace, foreign.env, ask)
    assert len(asked) == 1
    assert asked[0].endswith("Run its code? [y/N] ")


@as_root
def test_a_list_of_trusted_ones_that_another_wrote_counts_not(foreign: Mini) -> None:
    foreign.command("run", "total", "--trust")
    os.chown(trusted_file(foreign.env), STRANGER, -1)
    assert session.remembered(foreign.env) == []
    for text in ("", "[]", "{", '{"trusted": [{}]}', '{"trusted": 3}'):
        trusted_file(foreign.env).unlink()
        trusted_file(foreign.env).write_text(text)
        assert session.remembered(foreign.env) == []


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder as /tmp is: anybody may make files in it."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_ones_own_files_are_run_without_a_word(mini: Mini) -> None:
    mini.env["GPUEMU_TRUST"] = ""
    mini.command("run", "total")


@as_root
def test_owners(shared: Path) -> None:
    mine, theirs = shared / "mine", shared / "theirs"
    mine.touch()
    theirs.touch()
    os.chown(theirs, STRANGER, -1)
    (shared / "link").symlink_to(theirs)

    def owners(folder: Path, files: list[Path], own: frozenset[int]) -> dict[Path, int]:
        found = foreign_owners(str(folder), map(str, files), own)
        return {Path(path): owner for path, owner in found.items()}

    own = own_users({})
    assert owners(shared, [mine], own) == {}
    assert owners(shared, [mine, theirs], own) == {theirs: STRANGER}
    assert owners(shared, [shared / "link"], own) == {shared / "link": STRANGER}
    assert owners(shared, [shared / "gone"], own) == {}
    assert owners(shared, [theirs], own_users({"SUDO_UID": str(STRANGER)})) == {}
    os.chown(shared, STRANGER, -1)
    assert owners(shared, [], own) == {}, "a shared folder says nothing of its files"
    shared.chmod(0o755)
    assert owners(shared, [], own) == {shared: STRANGER}


def test_the_file_of_a_workspace_cannot_grant_itself_paths_outside(mini: Mini) -> None:
    outside = mini.root.parent / "outside.py"
    shutil.copy(mini.root / "scripts/total.py", outside)
    shutil.copy(mini.root / "scripts/common.py", mini.root.parent / "common.py")
    mini.edit("gpuemu.toml", '"scripts/total.py:total"', '"../outside.py:total"')
    mini.edit("gpuemu.toml", 'name = "mini"', 'name = "mini"\nallow_outside = true')
    done = mini.command("run", "total", code=2)
    assert "config-outside-not-granted" in done.stderr and "--allow-outside" in done.stderr
    mini.command("run", "total", "--allow-outside")
    mini.command("run", code=2)  # also where the last run left a plan
    home = mini.root.parent / "users"
    (home / "gpuemu").mkdir(parents=True)
    (home / "gpuemu/config.toml").write_text("[project]\nallow_outside = true\n")
    mini.env["XDG_CONFIG_HOME"] = str(home)
    mini.command("run", "total")
    mini.edit("gpuemu.toml", "allow_outside = true", "allow_outside = false")
    assert "config-path-outside" in mini.command("run", "total", code=2).stderr
