"""``gpuemu-flow debug``: commands through a pipe, and at a terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mini_workspace import Mini, make_mini
from terminal import terminal

from gpuemu_flow.store.cache import WorkspaceCache
from gpuemu_flow.store.failures import FailureStore


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """A workspace whose op forgets the last tile, with its failures recorded; only read from."""
    found = make_mini(tmp_path_factory.mktemp("debug") / "workspace")
    found.edit("scripts/total.py", "x.shape[1], 16", "x.shape[1] // 16 * 16, 16")
    found.run("total", code=1)
    return found


def records(mini: Mini, *, shrunk: bool = False) -> list[dict[str, Any]]:
    """Return the records that `failures --format json` prints, without starting a process.

    Those that were shrunk from others are among them only with `shrunk`.
    """
    store = FailureStore(WorkspaceCache(mini.root / ".gpuemu-cache"))
    found = (one for one in store.list() if shrunk or one.minimized_from is None)
    return [one.to_public_json() for one in found]


def answers(
    mini: Mini, *commands: str, options: tuple[str, ...] = (), code: int = 0
) -> tuple[str, str]:
    """Send commands to the debugger through a pipe and return its output and errors."""
    process = mini.popen("debug", *options, stdin=subprocess.PIPE)
    out, err = process.communicate("\n".join(commands) + "\n", timeout=600)
    assert "Traceback" not in err, err
    assert process.returncode == code, out + err
    return out, err


@pytest.mark.ci
def test_listing_and_selecting(failing: Mini) -> None:
    known = records(failing, shrunk=True)
    assert len(known) > 2
    out, err = answers(failing, "list 2", "ls", f"show {known[1]['id']}", "status", "q", "list")
    lines = out.splitlines()
    assert lines[2] == f"{len(known)} failures, 2 shown"
    assert lines[3 + len(known)] == f"{len(known)} failures"
    assert f"selected   {known[1]['id']}: total" in out
    assert err == ""
    assert answers(failing, "list", options=("--op", "total"))[0].splitlines()[-1] == (
        f"{len(known)} failures of total"
    )
    assert answers(failing, "list", options=("--op", "scale"))[0] == "0 failures of scale\n"
    assert "unknown-op" in failing.command("debug", "--op", "totl", code=2).stderr
    assert "unknown-failure" in failing.command("debug", "--seed", "5", code=2).stderr


def test_the_pipeline_step_by_step(failing: Mini) -> None:
    newest = records(failing)[0]
    seed, failure = newest["seed"], newest["id"]
    out, _ = answers(failing, f"s {failure}", "step", "n", "next", "step", "step", "step compare")
    heads = [line for line in out.splitlines() if not line.startswith(" ")][1:]
    dtype = records(failing)[0]["dtype"]
    stages = ["generate", "op", "reference", "compare", "generate", "compare"]
    assert heads == [f"{stage}:total:{dtype}" for stage in stages]
    assert f"seed {seed}" in out and "dims M = " in out
    assert "elements exceed the tolerance" in out
    once, _ = answers(failing, f"s {failure}", "step all")
    assert [line for line in once.splitlines() if not line.startswith(" ")][1:] == heads[:4]


def test_tensors_slices_and_the_map(failing: Mini) -> None:
    out, err = answers(
        failing,
        "tensor x[0, :2]",
        "tensor actual",
        "tensor expected.output[0:1]",
        "tensor",
        "diff",
        "diff x x",
        "diff actual x",
        options=("--repl", "--seed", str(records(failing)[0]["id"])),
        code=2,
    )
    dtype = records(failing)[0]["dtype"]
    assert f"x  {dtype}[2]" in out
    assert f"actual  {dtype}[" in out and "expected.output  float64[1]" in out
    for name in ("x", "actual.output", "expected.output"):
        assert f"\n{name}  " in out
    assert "actual.output against expected.output" in out and "|#" in out
    assert "x against x" in out and ": equal" in out
    assert err.startswith("debug-shapes-differ")


@pytest.mark.ci
def test_shrinking_and_exporting(mini: Mini) -> None:
    mini.edit("scripts/total.py", "x.shape[1], 16", "x.shape[1] // 16 * 16, 16")
    mini.run("total", "--dtype", "float32", code=1)
    out, _ = answers(
        mini, f"show {records(mini)[0]['id']}", "min", "r", "status", "export", "export",
        'export "" other.py',
    )  # fmt: skip
    assert "minimized:" in out and "still fails" in out
    smallest = next(r for r in records(mini, shrunk=True) if r["minimized_from"])
    assert f"selected   {smallest['id']}" in out
    path = mini.root / f"test_repro_{smallest['id']}.py"
    assert f"wrote {path}" in out and "wrote other.py" in out
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path],
        cwd=mini.root, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "1 failed" in done.stdout, done.stdout
    mini.edit("scripts/total.py", "x.shape[1] // 16 * 16, 16", "x.shape[1], 16")
    out, _ = answers(mini, f"show {smallest['id']}", "reproduce", "step compare", "refresh")
    assert "no longer fails" in out and "\n  passed\n" in out
    assert failing_code(mini, str(smallest["id"])) == 0


def failing_code(mini: Mini, failure: str) -> int:
    return mini.command("debug", "--seed", failure, code=None).returncode


def test_one_failure_at_once(failing: Mini) -> None:
    failure = str(records(failing)[0]["id"])
    done = failing.command("debug", "--seed", failure, "--op", "total", code=1)
    for sign in ("failed total", "generate:total", "compare:total", "against", "|#"):
        assert sign in done.stdout


@pytest.mark.ci
def test_an_op_that_crashes_has_a_pipeline_too(mini: Mini) -> None:
    mini.edit("scripts/total.py", "acc = np", "raise ValueError('\\x1b[2Jno')\n    acc = np")
    mini.run("total", "--dtype", "float32", code=3)
    done = mini.command("debug", "--seed", str(records(mini)[0]["id"]), code=1)
    assert "no outputs" in done.stdout and "ValueError" in done.stdout
    assert "\x1b" not in done.stdout
    _, err = answers(mini, "diff", "t actual", options=("--repl", "--seed",
                     str(records(mini)[0]["id"])), code=2)  # fmt: skip
    assert err.count("debug-unknown-tensor") == 2


def test_what_is_refused_goes_on(failing: Mini) -> None:
    out, err = answers(
        failing,
        "lst",
        "reproduce",
        "tensor x",
        "list many",
        "list 0",
        "show 000000000000",
        "step sideways",
        "__import__('os').system('touch owned')",
        "tensor x[__import__('os').system('touch owned')]",
        'export "',
        "\x1b[2J",
        "x" * 100_000,
        "help",
        code=2,
    )
    slugs = [line.split(":")[0] for line in err.splitlines()]
    assert slugs == [
        "debug-unknown-command", "debug-no-failure", "debug-no-failure", "debug-bad-arguments",
        "debug-bad-arguments", "unknown-failure", "debug-no-failure", "debug-unknown-command",
        "debug-no-failure", "debug-bad-arguments", "debug-unknown-command", "debug-unknown-command",
    ]  # fmt: skip
    assert "did you mean 'list'?" in err
    assert "\x1b" not in err
    assert len(out.splitlines()) == 14, "the help comes after all of them"
    assert not (failing.root / "owned").exists()


def test_bytes_that_are_no_text(failing: Mini) -> None:
    process = failing.popen("debug", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.buffer.write(b"\xff\x00\xfe\nlist 1")
    process.stdin.close()
    assert process.wait(600) == 2
    assert process.stdout is not None and process.stderr is not None
    assert len(process.stdout.read().splitlines()) == 2
    assert process.stderr.read().startswith("debug-unknown-command")
    process.stdout.close()
    process.stderr.close()


def test_an_empty_workspace(mini: Mini) -> None:
    assert answers(mini, "list", "refresh")[0] == "0 failures\n0 failures kept\n"
    (mini.root / "gpuemu.toml").unlink()
    assert "config-not-found" in mini.command("debug", code=2).stderr


def test_a_terminal(failing: Mini) -> None:
    newest = records(failing)[0]
    with terminal(failing, "debug", NO_COLOR="1") as screen:
        screen.wait_for(lambda text: text.endswith("gpuemu-flow> "))
        screen.type(f"show {newest['id']}\r")
        screen.wait_for(lambda text: text.endswith(f"total {newest['seed']}> "))
        screen.type("half a line")
        screen.wait_for(lambda text: text.endswith("half a line"))
        # CPython's readline misses a signal that comes while it deals with a key.
        screen.wait_idle()
        screen.type("\x03")
        screen.wait_for(lambda text: "interrupted" in text and text.endswith("> "))
        screen.type("\x04")
        assert screen.finish() == 0
        assert "Traceback" not in screen.text


@pytest.mark.ci
def test_interrupting_a_command_leads_back_to_the_prompt(mini: Mini, tmp_path: Path) -> None:
    mini.env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    mini.unfence()
    mini.edit("scripts/scale.py", "* 3", "* 2")
    mini.run("scale", code=1)
    mini.write(
        "scripts/scale.py",
        """
        import time

        def scale(x):
            open("begun", "w").close()
            time.sleep(100)
        """,
    )
    failure = str(records(mini)[0]["id"])
    with terminal(mini, "debug", "--repl", "--seed", failure, NO_COLOR="1") as screen:
        screen.wait_for(lambda text: text.endswith("> "))
        screen.type("reproduce\r")
        while not (mini.root / "begun").exists():
            assert screen.process.poll() is None
        screen.type("\x03")
        screen.wait_for(lambda text: text.count("> ") == 2)
        screen.type("status\r")
        screen.wait_for(lambda text: "next stage" in text)
        screen.type("q\r")
        assert screen.finish() == 0
        assert "Traceback" not in screen.text
