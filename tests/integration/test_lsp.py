"""A real editor's talk with the real language server: errors, results, lenses, fixes, hovers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from mini_workspace import Mini, make_mini

pytest.importorskip("pygls", reason="the language server needs pygls (extra lsp)")
from lsp_client import Editor

RUN, REPRODUCE, MINIMIZE = "gpuemu-flow.run", "gpuemu-flow.reproduce", "gpuemu-flow.minimize"


@pytest.fixture
def editor(mini: Mini) -> Iterator[Editor]:
    with Editor(mini) as found:
        yield found


def saved(editor: Editor) -> str:
    return (editor.mini.root / "gpuemu.toml").read_text()


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n")


def applied(text: str, edits: list[Any]) -> str:
    """A text after edits of one line each, as an editor makes them (plain ASCII lines here)."""
    lines = text.split("\n")
    for edit in edits:
        start, end = edit["range"]["start"], edit["range"]["end"]
        assert start["line"] == end["line"]
        line = lines[start["line"]]
        before, after = line[: start["character"]], line[end["character"] :]
        lines[start["line"]] = before + edit["newText"] + after
    return "\n".join(lines)


def test_errors_of_the_typed_text_stand_at_their_lines_and_quick_fixes_mend_them(
    editor: Editor,
) -> None:
    good = saved(editor)
    assert editor.open() == []
    bad = good.replace("reference =", "refrence =", 1).replace('"float16"', '"flaot16"')
    found = editor.change(bad, 2)
    places = {(d["code"], d["range"]["start"]["line"]) for d in found}
    assert places == {
        ("config-missing-key", line_of(good, "[[ops]]")),
        ("config-unknown-key", line_of(bad, "refrence")),
        ("config-unknown-dtype", line_of(bad, '"flaot16"')),
    }
    text = bad
    for code in ("config-unknown-key", "config-unknown-dtype"):
        (diagnostic,) = [d for d in found if d["code"] == code]
        actions = editor.ask(
            "textDocument/codeAction",
            editor.about(range=diagnostic["range"], context={"diagnostics": [diagnostic]}),
        )
        (action,) = [a for a in actions if a["diagnostics"][0]["code"] == code]
        text = applied(text, action["edit"]["changes"][editor.uri()])
    assert text == good
    assert editor.change(text, 3) == []


def test_an_action_asked_for_right_after_typing_is_about_the_new_text(editor: Editor) -> None:
    editor.open()
    bad = "\n\n" + saved(editor).replace("cases = 4", "casse = 4")
    editor.tell(
        "textDocument/didChange",
        {
            "textDocument": {"uri": editor.uri(), "version": 2},
            "contentChanges": [{"text": bad}],
        },
    )
    line = line_of(bad, "casse")
    place = {"start": {"line": line, "character": 0}, "end": {"line": line, "character": 0}}
    (action,) = editor.ask(
        "textDocument/codeAction", editor.about(range=place, context={"diagnostics": []})
    )
    assert "cases = 4" in applied(bad, action["edit"]["changes"][editor.uri()])


def test_broken_toml_is_an_error_at_its_line_and_lenses_stay(editor: Editor) -> None:
    text = saved(editor).replace('name = "total"', 'name = "total', 1)
    (error,) = editor.open(text)
    assert (error["code"], error["severity"]) == ("config-syntax", 1)
    assert error["range"]["start"]["line"] == line_of(text, 'name = "total')
    ops = {lens["command"]["arguments"][1] for lens in
           editor.ask("textDocument/codeLens", editor.about())}  # fmt: skip
    assert {"scale", "relu"} <= ops


def test_each_op_has_three_lenses_at_its_table(editor: Editor) -> None:
    editor.open()
    text = saved(editor)
    lenses = editor.ask("textDocument/codeLens", editor.about())
    found = [(x["range"]["start"]["line"], x["command"]["title"], x["command"]["arguments"][1])
             for x in lenses]  # fmt: skip
    headers = [n for n, line in enumerate(text.split("\n")) if line == "[[ops]]"]
    assert found == [
        (header, title, op)
        for header, op in zip(headers, ("scale", "total", "relu"), strict=True)
        for title in ("run", "reproduce", "minimize")
    ]
    assert set(editor.capabilities["executeCommandProvider"]["commands"]) == {
        x["command"]["command"] for x in lenses
    }


@pytest.mark.ci
def test_run_reproduce_and_minimize_from_the_text(editor: Editor) -> None:
    """A planted bug: run shows it at the op's name, the other two are about that failure."""
    mini = editor.mini
    mini.edit("scripts/scale.py", "* 3", "* 3.01")
    editor.open()
    asked = editor.execute(REPRODUCE, editor.uri(), "scale")
    assert asked == {"ok": True, "message": "scale: no failure is recorded"}
    since = len(editor.told)
    asked = editor.execute(RUN, editor.uri(), "scale")
    assert asked["message"] == "scale: float32 failed (0 of 4 cases passed)"
    found = editor.wait_told("textDocument/publishDiagnostics", lambda p: p["diagnostics"], since)[
        "diagnostics"
    ]
    (failure,) = found
    line = line_of(saved(editor), 'name = "scale"')
    assert failure["range"] == {
        "start": {"line": line, "character": 8}, "end": {"line": line, "character": 13}
    }  # fmt: skip
    assert (failure["severity"], failure["code"]) == (1, "ToleranceExceeded")
    assert "gpuemu-flow reproduce" in failure["message"]
    actions = editor.ask(
        "textDocument/codeAction",
        editor.about(range=failure["range"], context={"diagnostics": [failure]}),
    )
    assert [a["command"]["command"] for a in actions] == [RUN, REPRODUCE, MINIMIZE]
    assert "still fails" in editor.execute(REPRODUCE, editor.uri(), "scale")["message"]
    smallest = editor.execute(MINIMIZE, editor.uri(), "scale")["message"]
    assert "scale: x[1] after" in smallest
    command = smallest.rpartition("; gpuemu-flow ")[2].split()
    assert "still fails" in mini.command(*command, code=1).stdout


@pytest.mark.ci
def test_results_follow_the_op_in_the_text_and_the_files_on_disk(editor: Editor) -> None:
    mini = editor.mini
    mini.edit("scripts/scale.py", "* 3", "* 3.01")
    mini.run("scale", "relu", code=1)
    since = len(editor.told)
    editor.open()
    editor.wait_told("textDocument/publishDiagnostics", lambda p: p["diagnostics"], since)
    moved = "# a line more\n" + saved(editor)
    (failure,) = editor.change(moved, 2)
    line = line_of(moved, 'name = "scale"')
    assert failure["range"]["start"]["line"] == line
    for place in (line - 1, line):  # the header and the name
        shown = editor.ask("textDocument/hover", editor.at(place, 3))["contents"]
        assert shown["kind"] == "markdown"
        assert "scale  float32  failed" in shown["value"], shown["value"]
        assert "gpuemu-flow reproduce" in shown["value"]
    shown = editor.ask("textDocument/hover", editor.at(line_of(moved, 'name = "relu"'), 3))
    assert "passed" in shown["contents"]["value"]
    shown = editor.ask("textDocument/hover", editor.at(line_of(moved, 'name = "total"'), 3))
    assert "no results yet" in shown["contents"]["value"]

    mini.edit("scripts/scale.py", "* 3.01", "* 3")
    since = len(editor.told)
    changed = [{"uri": (mini.root / "scripts/scale.py").as_uri(), "type": 2}]
    editor.tell("workspace/didChangeWatchedFiles", {"changes": changed})
    hint = editor.wait_told(
        "textDocument/publishDiagnostics",
        lambda p: p["diagnostics"] and p["diagnostics"][0]["severity"] == 3,
        since,
    )["diagnostics"]
    assert "changed since" in hint[0]["message"]
    mini.run("scale")
    since = len(editor.told)
    editor.tell("textDocument/didSave", editor.about())
    editor.wait_told("textDocument/publishDiagnostics", lambda p: not p["diagnostics"], since)


def test_hover_and_completion_know_the_keys(editor: Editor) -> None:
    text = saved(editor).replace("cases = 4", 'cases = 4\ncheck_n\nlayouts = ["str')
    editor.open(text)
    shown = editor.ask("textDocument/hover", editor.at(line_of(text, "cases = 4"), 1))
    assert "Cases per op and dtype" in shown["contents"]["value"]

    def labels(line: int, column: int) -> set[str]:
        found = editor.ask("textDocument/completion", editor.at(line, column))
        return {item["label"] for item in found}

    assert {"check_nan", "check_inf", "seed"} <= labels(line_of(text, "check_n"), 7)
    assert "strided" in labels(line_of(text, 'layouts = ["str'), 15)
    op_keys = labels(line_of(text, '[[ops]]\nname = "relu"') + 1, 0)
    assert {"reference", "timeout"} <= op_keys and "cases" in op_keys and "fail_on" not in op_keys


@pytest.mark.ci
def test_a_client_of_few_abilities_is_served_too(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3", "* 3.01")
    with Editor(mini, capabilities={}) as editor:
        editor.open()
        assert not editor.execute(RUN, editor.uri(), "scale")["ok"]
        place = editor.at(line_of(saved(editor), 'name = "scale"'), 3)
        shown = editor.ask("textDocument/hover", place)["contents"]
        assert shown["kind"] == "plaintext" and "```" not in shown["value"]
        methods = {m["method"] for m in editor.told}
        assert methods <= {
            "textDocument/publishDiagnostics", "window/showMessage", "window/logMessage"
        }  # fmt: skip


SLOW = """\
import pathlib
import time

def scale(x):
    pathlib.Path("begun").touch()
    time.sleep(600)
"""


def start_slow_run(editor: Editor) -> int:
    """A run that is within its op; the number of the request."""
    editor.mini.write("scripts/scale.py", SLOW)
    editor.mini.write("gpuemu.toml", saved(editor) + '\n[sandbox]\nmode = "off"\n')
    editor.open()
    number = editor.begin(
        "workspace/executeCommand", {"command": RUN, "arguments": [editor.uri(), "scale"]}
    )
    begun = editor.mini.root / "begun"
    while not begun.exists():
        time.sleep(0.05)
    return number


def processes_of(mini: Mini) -> list[psutil.Process]:
    """Processes that work in the workspace, the test's own excepted."""
    found = []
    for process in psutil.process_iter(["cwd"]):
        cwd = process.info["cwd"]
        if cwd and Path(cwd).is_relative_to(mini.root) and process.pid != os.getpid():
            found.append(process)
    return found


def test_a_run_blocks_nothing(editor: Editor) -> None:
    start_slow_run(editor)
    bad = saved(editor).replace("cases = 4", "casse = 4")
    assert [d["code"] for d in editor.change(bad, 2)] == ["config-unknown-key"]


@pytest.mark.ci
def test_goodbye_ends_what_runs(mini: Mini) -> None:
    with Editor(mini) as editor:
        start_slow_run(editor)
    _, alive = psutil.wait_procs(processes_of(mini), timeout=600)
    assert alive == []


@pytest.mark.ci
def test_an_exit_without_a_goodbye_ends_what_runs_and_is_told_apart(mini: Mini) -> None:
    """Standard input stays open, as editors have it: the message alone must end the server."""
    editor = Editor(mini)
    with pytest.raises(InterruptedError), editor:
        start_slow_run(editor)
        editor.tell("exit", None)
        assert editor.process.wait(600) == 1
        raise InterruptedError
    _, alive = psutil.wait_procs(processes_of(mini), timeout=600)
    assert alive == []


def test_a_goodbye_alone_ends_the_server(mini: Mini) -> None:
    editor = Editor(mini)
    with pytest.raises(InterruptedError), editor:
        editor.open()
        editor.ask("shutdown", None)
        editor.tell("exit", None)
        assert editor.process.wait(600) == 0, "with standard input open"
        raise InterruptedError


@pytest.mark.ci
def test_commands_are_about_the_saved_file_and_say_so(editor: Editor) -> None:
    editor.open()
    assert "differs" not in editor.execute(RUN, editor.uri(), "relu")["message"]
    editor.change(saved(editor).replace('name = "scale"', 'name = "scaled"'), 2)
    answer = editor.execute(RUN, editor.uri(), "relu")
    assert answer["ok"] and "the open text differs" in answer["message"]
    answer = editor.execute(RUN, editor.uri(), "scaled")
    assert not answer["ok"] and "did you mean 'scale'?" in answer["message"]
    assert "the open text differs" in answer["message"]
    assert not editor.execute(RUN, editor.uri(), "scale")["ok"], "it is no op of the open text"


@pytest.mark.ci
def test_a_file_outside_of_the_opened_folder_has_its_own_workspace(
    editor: Editor, tmp_path: Path
) -> None:
    other = make_mini(tmp_path / "other")
    other.edit("scripts/scale.py", "* 3", "* 3.01")
    text, uri = (other.root / "gpuemu.toml").read_text(), (other.root / "gpuemu.toml").as_uri()
    assert editor.open(text, uri) == []
    assert "failed" in editor.execute(RUN, uri, "scale")["message"]
    editor.open()
    assert "passed" in editor.execute(RUN, editor.uri(), "scale")["message"]
    assert "still fails" in editor.execute(REPRODUCE, uri, "scale")["message"]


def test_nothing_is_left_when_the_editor_dies(mini: Mini) -> None:
    editor = Editor(mini)
    with pytest.raises(InterruptedError), editor:
        start_slow_run(editor)
        assert editor.process.stdin is not None
        editor.process.stdin.close()
        editor.process.wait(600)
        raise InterruptedError
    _, alive = psutil.wait_procs(processes_of(mini), timeout=600)
    assert alive == []


def test_without_pygls_the_command_says_what_to_install(mini: Mini) -> None:
    hidden = mini.write("hidden/pygls/__init__.py", "raise ModuleNotFoundError(name='pygls')\n")
    done = subprocess.run(
        [sys.executable, "-m", "gpuemu_flow", "lsp"],
        cwd=mini.root,
        env={**mini.environment(), "PYTHONPATH": str(hidden.parent.parent)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 3 and done.stdout == ""
    assert "lsp-not-installed" in done.stderr and "gpuemu-flow[lsp]" in done.stderr
