"""Reports on a rule's command: the files that it deletes, and the end of its output."""

from __future__ import annotations

from pathlib import Path

import pytest
from built_workspace import MAKE, OUTPUT, make_built, slugs
from mini_workspace import Mini


@pytest.fixture
def built(tmp_path: Path) -> Mini:
    return make_built(tmp_path / "built")


def test_what_the_command_deletes_is_told_until_it_is_not(built: Mini) -> None:
    for name in ("build/precious", "build/kept"):
        built.write(name, "of somebody")
    built.write("build/more.o", "")
    built.edit("gpuemu.toml", f'["{OUTPUT}"]', f'["{OUTPUT}", "build/more.o"]')
    built.write(
        "make.py",
        MAKE
        + 'Path("build/precious").unlink()\nPath("build/more.o").write_text("")\n'
        + 'Path("build/own").write_text("")\nPath("build/own").unlink()\n',
    )
    for _ in range(2):
        (problem,) = [p for p in built.run()["problems"] if p["slug"] == "rule-deleted-file"]
        assert "deleted build/precious, which" in problem["message"]
        assert problem["file"] == "gpuemu.toml"
    assert "build/precious" in built.command("run").stdout  # the short answer, too
    built.write("make.py", MAKE + 'Path("build/more.o").write_text("")\n')
    assert slugs(built.run()) == []


def test_an_error_behind_a_very_long_line_is_shown(built: Mini) -> None:
    built.write(
        "make.py",
        'import sys\n\nsys.stderr.write("begin" + 3_000_000 * "x" + "end\\n")\n'
        'raise SystemExit("real error: foo.c:3")\n',
    )
    (problem,) = [p for p in built.run(code=3)["problems"] if p["slug"] == "build-failed"]
    assert "real error: foo.c:3" in problem["message"]
    assert "beginxxx" in problem["message"]
    assert "xxxend" in problem["message"]
    assert len(problem["message"]) < 1000
