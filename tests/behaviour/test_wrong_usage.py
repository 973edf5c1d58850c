"""Wrong usage is told with a place, a reason and a fix."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from mini_workspace import Mini

UNPRIVILEGED = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
USAGES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "a format of files": (("run", "--format", "junit"), ("report --format junit", "ci -o FILE")),
    "misspelt command": (("runn",), ("there is no command 'runn'", "did you mean 'run'?")),
    "misspelt op": (("run", "scael"), ("unknown-task: 'scael'", "did you mean 'scale'?")),
    "misspelt dtype": (("run", "--dtype", "flot32"), ("unknown-dtype", "did you mean 'float32'?")),
    "misspelt key": (
        ("run", "--config", "validation.casez=3"),
        ("config-unknown-key: unknown key 'validation.casez'", "did you mean 'cases'?"),
    ),
    "value of a wrong type": (
        ("run", "--config", "validation.cases=many"),
        ("validation.cases must be an integer", "not a string ('many')"),
    ),
    "unknown profile": (
        ("run", "--profile", "nightly"),
        ("unknown-profile", "'nightly'", "[profiles.nightly]"),
    ),
    "shard of words": (("run", "--shard", "x"), ("'--shard'", "'x' is no shard such as 2/5")),
    "shard out of range": (
        ("run", "--shard", "3/2"),
        ("'--shard'", "'3/2': the first number is one from 1 to 2"),
    ),
    "no shards": (("run", "--shard", "0/0"), ("'--shard'", "'0/0': there are 1 to ")),
    "commit without a repository": (("run", "--since", "nothere"), ("not-a-repository", "--since")),
    "missing configuration": (("-f", "no.toml", "run"), ("config-not-found", "-f names no.toml")),
    "missing kernel": (
        ("lint", "no.ptx"),
        ("no.ptx: lint-bad-file: there is no such file", "correct the path"),
    ),
    "report to a folder": (
        ("ci", "-o", "scripts"),
        ("'-o'", "'scripts' is a directory"),
    ),
    "report below a file": (
        ("ci", "-o", "gpuemu.toml/x.xml"),
        ("report-not-writable", "gpuemu.toml is no folder to write to", "name a file"),
    ),
    "command of another group": (
        ("baseline", "diff", "main"),
        ("`baseline` has no command 'diff'", "`gpuemu-flow diff TAG` compares with it"),
    ),
    "seed that is too long": (("reproduce", "1" * 5000), ("unknown-failure", "no failure has the")),
    "the same with an op": (
        ("reproduce", "1" * 5000, "--op", "scale"),
        ("unknown-failure", "no failure of op 'scale' has the seed 111"),
    ),
    "import of a file of tests": (
        ("import", "pytest", "test_kernels.py"),
        ("import-pytest", 'mark a test with @pytest.mark.gpuemu("OP")', "docs/pytest.md"),
    ),
    "report's word without an option": (
        ("report", "x.html"),
        ("`report` has no command 'x.html'", "`-o x.html`"),
    ),
}


@pytest.mark.parametrize("name", USAGES)
def test_place_reason_and_fix_are_told(mini: Mini, name: str) -> None:
    words, told = USAGES[name]
    said = mini.command(*words, code=2).stderr
    for part in told:
        assert part in said, said


def test_a_misspelt_function_is_told_with_the_most_similar_one(mini: Mini) -> None:
    mini.keep_only("scale")
    mini.without_causes()
    mini.edit("gpuemu.toml", "scripts/scale.py:scale", "scripts/scale.py:scael")
    said = mini.command("run", code=3).stdout
    assert "op-not-loadable" in said and "defines no callable 'scael'" in said
    assert "did you mean 'scale'?" in said


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root may read all files"
)
@pytest.mark.parametrize("name", ["gpuemu.toml", "scripts/scale.py", "scripts"])
def test_what_may_not_be_read_is_told_with_the_reason(mini: Mini, name: str) -> None:
    path = mini.root / name
    mode = path.stat().st_mode
    path.chmod(0)
    command = [sys.executable, "-m", "gpuemu_flow", "run"]
    try:
        done = subprocess.run(
            [*(UNPRIVILEGED if os.geteuid() == 0 else ()), *command],
            cwd=mini.root, env=mini.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        path.chmod(mode)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "cannot be read: Permission denied" in done.stderr
    assert "check the owner and the mode of the file" in done.stderr
