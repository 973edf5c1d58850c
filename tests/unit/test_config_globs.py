"""Test globs of the configuration that name no usable set of files, and those outside."""

from __future__ import annotations

from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace

from gpuemu_flow.build.files import glob_files, glob_folders

NAMED = '[project]\nname = "x"\n'
OP = '[[ops]]\nname = "f"\nreference = "bin/reference"\n'
PLACES = {
    "depends": NAMED + OP + 'depends = ["{glob}"]\n',
    "shared": NAMED + OP + 'shared = ["{glob}"]\n',
    "apart": NAMED + '[sandbox]\napart = ["{glob}"]\n' + OP,
}
FILES = OP.replace('"f"', '"f/{{c}}"') + 'foreach.c = {{ files = "{glob}" }}\n'


def check(workspace: ConfigWorkspace, place: str, glob: str) -> list[str]:
    text = PLACES[place].replace("{glob}", glob)
    return [problem.message for problem in workspace.check(text)]


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("glob", [".", "./", "bin/.."])
def test_the_workspace_itself_is_no_glob(tmp_path: Path, place: str, glob: str) -> None:
    (message,) = check(ConfigWorkspace(tmp_path), place, glob)
    assert message.endswith("is the whole workspace")


@pytest.mark.parametrize("glob", [".", "./"])
def test_the_workspace_itself_is_not_included(tmp_path: Path, glob: str) -> None:
    (problem,) = ConfigWorkspace(tmp_path).check(f'include = ["{glob}"]\n{NAMED}{OP}')
    assert problem.slug == "config-include"
    assert "is the workspace itself" in problem.message


@pytest.mark.parametrize("glob", ["a\\u0000b/*.py", "a\\nb/*.py", "\\u0000*"])
def test_files_of_a_template_have_no_control_characters(tmp_path: Path, glob: str) -> None:
    (problem,) = ConfigWorkspace(tmp_path).check(NAMED + FILES.format(glob=glob))
    assert problem.slug == "config-foreach"
    assert "holds control characters" in problem.message


@pytest.mark.parametrize("glob", ["{out}/*.json", "{out}/a.json", "{out}/**/a.json"])
def test_files_outside_of_the_root_match(tmp_path: Path, glob: str) -> None:
    root, out = tmp_path / "work", tmp_path / "out"
    root.mkdir()
    out.mkdir()
    (out / "a.json").write_text("1")
    pattern = glob.format(out=out)
    assert glob_files(root, pattern) == [str(out / "a.json")]
    assert out in glob_folders(root, pattern)
    (root / "b.json").write_text("1")
    assert glob_files(root, f"{root}/*.json") == ["b.json"]


def test_two_stars_stand_for_links_to_folders_too(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for path in (root / "src/deep", root / "other/below", outside):
        path.mkdir(parents=True)
    for path in (
        root / "src/deep/a.c",
        root / "other/b.c",
        root / "other/below/c.c",
        outside / "d.c",
    ):
        path.write_text("")
    (root / "src/link").symlink_to("../other")
    (root / "other/away").symlink_to(outside)
    (root / "src/deep/up").symlink_to("..")
    (outside / "loop").symlink_to(root)
    found = glob_files(root, "src/**/*.c")
    assert found == ["src/deep/a.c", "src/link/away/d.c", "src/link/b.c", "src/link/below/c.c"]
    assert glob_files(root, "src/**/deep/*.c") == ["src/deep/a.c"]
    listed = {str(path.relative_to(root)) for path in glob_folders(root, "src/**/*.c")}
    assert {"src", "src/deep", "src/link", "src/link/away", "src/link/below"} <= listed
    assert glob_files(root, "src/*.c") == []
