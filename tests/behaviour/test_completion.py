"""``gpuemu-flow completion``: real shells take the scripts, and bash completes with its own."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest
from mini_workspace import Mini, make_mini
from terminal import terminal

SHELLS = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
    "fish": ("fish", "--no-config", "-i", "-C", "function fish_prompt; echo -n 'ready> '; end"),
}
ENABLED = {
    "bash": 'eval "$(gpuemu-flow completion bash)"',
    "zsh": 'eval "$(gpuemu-flow completion zsh)"',
    "fish": "gpuemu-flow completion fish | source",
}
TYPED = {
    "gpuemu-flow minim\t": "minimize",
    "gpuemu-flow init --with-\t": "init --with-examples",
    "gpuemu-flow run sca\t": "run scale",
    "gpuemu-flow run bo\t": "run both",
    "gpuemu-flow list comp\t": "list compare",
    "gpuemu-flow explain compare:sca\t": "explain compare:scale:float32",
    "gpuemu-flow fuzz --op re\t": "fuzz --op relu",
    "gpuemu-flow run --dtype bf\t": "run --dtype bfloat16",
    "gpuemu-flow diff bes\t": "diff best",
    "gpuemu-flow lint scripts/prot\t": "lint scripts/protocol.py",
}


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """A workspace after a run with a failure, and on PATH a command that notes what it is told."""
    mini = make_mini(tmp_path_factory.mktemp("completion") / "workspace")
    mini.edit("scripts/scale.py", "* 3", "* 3.01")
    mini.run("scale", code=1)
    mini.command("baseline", "store", "best")
    folder = mini.root.parent / "bin"
    folder.mkdir()
    command = folder / "gpuemu-flow"
    command.write_text(
        "#!/bin/sh\n"
        f'[ -n "$_GPUEMU_FLOW_COMPLETE" ] || [ "$1" = completion ] || '
        f'{{ echo "$*" >> "{folder}/told"; exit; }}\n'
        f'exec "{folder}/real/gpuemu-flow" "$@"\n'
    )
    real = folder / "real" / "gpuemu-flow"
    real.parent.mkdir()
    # argv[0] is what click derives the variable's name from, as with the installed command.
    real.write_text(
        f"#!{sys.executable}\nimport sys\nfrom gpuemu_flow.front import main\n"
        "sys.argv[0] = 'gpuemu-flow'\nmain()\n"
    )
    for path in (command, real):
        path.chmod(0o755)
    mini.env["PATH"] = f"{folder}:/usr/local/bin:/usr/bin:/bin"
    return mini


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.ci
def test_a_person_types_and_presses_tab(used: Mini, shell: str) -> None:
    """The shell completes the beginning that was typed and runs the whole word."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    told = used.root.parent / "bin" / "told"
    told.unlink(missing_ok=True)
    failure = used.command("failures", "--limit", "1").stdout.splitlines()[1].split()[0]
    typed = {**TYPED, f"gpuemu-flow reproduce {failure[:9]}\t": f"reproduce {failure}"}
    with terminal(used, program=SHELLS[shell], PS1="ready> ", HISTFILE="") as screen:
        screen.wait_for(lambda text: "ready> " in text)
        screen.type(f"{ENABLED[shell]} && gpuemu-flow enabled\r")
        for keys in typed:
            screen.type(f"{keys}\r")
        screen.type("gpuemu-flow that was it\r")
        screen.wait_for(lambda _: told.exists() and "that was it" in told.read_text())
    assert told.read_text().splitlines() == ["enabled", *typed.values(), "that was it"]


@pytest.mark.parametrize(
    "config",
    ["ops = 3\n", *(pytest.param(c, marks=pytest.mark.ci) for c in ("[[ops]]\nname =", None))],
)
def test_names_of_a_broken_workspace_are_left_out(mini: Mini, config: str | None) -> None:
    """Nothing is said about it between two keys; and no program of an unknown folder is run."""
    trap = mini.write("python", "#!/bin/sh\ntouch trapped\nexit 1\n")
    trap.chmod(0o755)
    (mini.root / "gpuemu.toml").unlink()
    if config is not None:
        mini.write("gpuemu.toml", f'{config}\n[execution]\npython_path = "./python"\n')
    mini.write(".gpuemu-cache/state/cache.db", "{")
    for words in ("run s", "reproduce a", "diff a"):
        mini.env = {
            "_GPUEMU_FLOW_COMPLETE": "bash_complete",
            "COMP_WORDS": f"gpuemu-flow {words}",
            "COMP_CWORD": str(len(words.split())),
        }
        done = subprocess.run(
            [sys.executable, "-c", "import sys; sys.argv[0] = 'gpuemu-flow'\n"
             "from gpuemu_flow.front import main; main()"],
            cwd=mini.root, env=mini.environment(), capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.stderr == ""
        assert done.stdout.strip() == "", words
    assert not (mini.root / "trapped").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_takes_its_script(mini: Mini, shell: str) -> None:
    script = mini.command("completion", shell).stdout
    assert "_GPUEMU_FLOW_COMPLETE" in script
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=600)


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
            timeout=600, check=True,
        )  # fmt: skip
        return done.stdout.split()

    assert complete("gpuemu-flow", "minim") == ["minimize"]
    assert {"run", "init", "watch", "debug", "completion"} <= set(complete("gpuemu-flow", ""))
    assert complete("gpuemu-flow", "init", "--with-") == ["--with-examples"]
    assert complete("gpuemu-flow", "init", "--ci", "git") == ["github", "gitlab"]


def test_an_unknown_shell(mini: Mini) -> None:
    assert "fish" in mini.command("completion", "tcsh", code=2).stderr
