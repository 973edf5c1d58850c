"""``gpuemu-flow completion``: real shells take the scripts, and bash completes with its own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from mini_workspace import Mini


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(mini: Mini, shell: str) -> None:
    script = mini.command("completion", shell).stdout
    assert "_GPUEMU_FLOW_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=60)


def test_bash_completes_commands_and_options(mini: Mini) -> None:
    """The function that the script defines, called as bash calls it."""
    folder = mini.root.parent / "bin"
    folder.mkdir()
    command = folder / "gpuemu-flow"
    # argv[0] is what click derives the variable's name from, as with the installed command.
    command.write_text(
        f"#!{sys.executable}\nimport sys\nfrom gpuemu_flow.front import main\n"
        "sys.argv[0] = 'gpuemu-flow'\nmain()\n"
    )
    command.chmod(0o755)
    script = mini.command("completion", "bash").stdout

    def complete(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in words)
        call = (
            f"complete() {{ :; }}; {script}\n"
            f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}\n"
            '_gpuemu_flow_completion gpuemu-flow\nprintf "%s\\n" "${COMPREPLY[@]}"'
        )
        environment = mini.environment()
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        done = subprocess.run(
            ["bash", "-c", call], cwd=mini.root, env=environment, capture_output=True, text=True,
            timeout=60, check=True,
        )  # fmt: skip
        return done.stdout.split()

    assert complete("gpuemu-flow", "minim") == ["minimize"]
    assert {"run", "init", "watch", "debug", "completion"} <= set(complete("gpuemu-flow", ""))
    assert complete("gpuemu-flow", "init", "--with-") == ["--with-examples"]
    assert complete("gpuemu-flow", "init", "--ci", "git") == ["github", "gitlab"]


def test_an_unknown_shell(mini: Mini) -> None:
    assert "fish" in mini.command("completion", "tcsh", code=2).stderr
