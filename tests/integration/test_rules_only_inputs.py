"""Rules with `only_inputs`: of the workspace, their commands read what is declared and no more."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from built_workspace import OUTPUT, make_built
from mini_workspace import Mini

from gpuemu_flow.workers.sandbox.fence import system_level
from gpuemu_flow.workers.sandbox.spec import landlock_version

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not landlock_version(system_level()), reason="the system has no Landlock"),
]
ONLY = "only_inputs = true\n"
READS = "from pathlib import Path\n\nPath('build/factor.txt').write_text({text})\n"


@pytest.fixture
def built(tmp_path: Path) -> Mini:
    mini = make_built(tmp_path / "built")
    mini.edit("gpuemu.toml", 'outputs = ["build', f'{ONLY}outputs = ["build')
    return mini


def problem(mini: Mini) -> dict[str, str]:
    """The reason why the rule's command failed."""
    report = mini.run(code=3)
    (found,) = [p for p in report["problems"] if p["slug"] == "build-failed"]
    return dict(found)


def test_a_right_rule_is_made(built: Mini) -> None:
    report = built.run()
    assert report["results"][0]["verdict"] == "passed"
    assert report["problems"] == []
    assert built.command("run").stdout.startswith("up to date")
    built.write("src/a.txt", "# a comment\n1\n")
    assert built.run()["executed"] == ["build:table"]


@pytest.mark.parametrize("name", ["more/header.h", "build/other.txt", "gpuemu.toml", "at_top.txt"])
def test_what_is_not_declared_is_refused_by_name(built: Mini, name: str) -> None:
    if name != "gpuemu.toml":
        built.write(name, "3")
    built.write("make.py", READS.format(text=f"str(3 + 0 * len(Path({name!r}).read_text()))"))
    told = problem(built)
    assert name in told["message"]
    assert "inputs" in told["hint"]
    assert not (built.root / OUTPUT).exists()
    if name != "gpuemu.toml":
        built.edit("gpuemu.toml", 'inputs = ["src', f'inputs = ["{name}", "src')
        assert built.run()["results"][0]["verdict"] == "passed"


def test_without_it_such_a_file_is_read(built: Mini) -> None:
    """The twin: what this is for."""
    built.edit("gpuemu.toml", ONLY, "")
    built.write("more/header.h", "3")
    built.write("make.py", READS.format(text="Path('more/header.h').read_text()"))
    assert built.run()["results"][0]["verdict"] == "passed"
    built.edit("gpuemu.toml", 'outputs = ["build', f'{ONLY}outputs = ["build')
    assert "more/header.h" in problem(built)["message"], "its result is not taken over"


def test_what_it_imports_names_or_needs_is_declared(built: Mini) -> None:
    built.write("helper.py", "def total(lines):\n    return str(sum(map(int, lines)))\n")
    built.write("tools/copy.sh", "exec \"$1\" -c \"import shutil; shutil.copy('$2', '$3')\"\n")
    built.write(
        "make.py",
        "from pathlib import Path\nfrom helper import total\n\n"
        "paths = sorted(Path('src').rglob('*.txt'))\n"
        "Path('build/factor.txt').write_text(total(p.read_text() for p in paths))\n",
    )
    copy = (
        '[[rules]]\nname = "copy"\n'
        f'command = ["sh", "tools/copy.sh", {json.dumps(sys.executable)}, "build/factor.txt", '
        f'"last/factor.txt"]\n{ONLY}needs = ["table"]\noutputs = ["last/factor.txt"]\n[[ops]]'
    )
    built.edit("gpuemu.toml", "[[ops]]", copy)
    built.edit("gpuemu.toml", 'needs = ["table"]\ninput_names', 'needs = ["copy"]\ninput_names')
    built.edit("ops/it.py", '"build"', '"last"')
    assert built.run()["results"][0]["verdict"] == "passed"


def test_a_folder_of_imports_in_the_workspace_opens_nothing(built: Mini) -> None:
    built.env["PYTHONPATH"] = str(built.root / "lib")
    built.write("lib/data.txt", "3")
    built.write("make.py", READS.format(text="Path('lib/data.txt').read_text()"))
    assert "lib/data.txt" in problem(built)["message"]


def test_what_is_hidden_stays_so(built: Mini) -> None:
    built.edit("gpuemu.toml", "[[rules]]", '[sandbox]\nhidden = ["src/b.txt"]\n[[rules]]')
    assert "src/b.txt" in problem(built)["message"]


def test_where_nothing_can_be_fenced_it_is_an_error(built: Mini) -> None:
    built.edit("gpuemu.toml", "[[rules]]", '[sandbox]\nmode = "off"\n[[rules]]')
    report = built.run(code=3)
    assert "sandbox-missing" in {p["slug"] for p in report["problems"]}
    built.edit("gpuemu.toml", ONLY, "")
    assert built.run()["results"][0]["verdict"] == "passed"
