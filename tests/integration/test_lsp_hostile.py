"""The language server under texts, files and messages that nobody sends in good faith."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import stored_snapshot
from mini_workspace import Mini
from whole import sample

from gpuemu_flow.build.stamps import DATABASE

pytest.importorskip("pygls", reason="the language server needs pygls (extra lsp)")
from lsp_client import CAPABILITIES, Editor

pytestmark = pytest.mark.ci

GOOD = '[project]\nname = "x"\n'
TEXTS = {
    "empty": "",
    "blank": "\n\n\r\n \t\n",
    "nul": 'a = "\0"\n',
    "lone surrogate": 'a = "\ud800"\n',
    "other line ends": "a = 1\x0bb = 2\u2028c = 3\rd = 4\x85[[ops]]\r\nname = 'x'\r\n",
    "unclosed string": '[[ops]]\nname = """\nop = "x"\n',
    "unclosed array": '[validation]\ndtypes = ["float32",\n[[ops]]\nname = "late"\n',
    "deep": "x = " + "[" * 5_000,
    "deep keys": ".".join("k" * 200) + " = 1\n",
    "long line": "a = '" + "é" * 300_000 + "'\n",
    "many ops": "[[ops]]\nname = 'x'\n" * 1_000,
    "many mistakes": "".join(f"key{n} = 1\n" for n in range(1_000)),
    "ops that are none": "ops = 3\n[kernels]\n",
    "inline ops": 'ops = [{ name = "a", refrence = "b" }]\n',
    "hostile name": "[[ops]]\nname = \"```\\n<script>alert(1)</script>\\u001b[31m\"\n",
    "option name": '[[ops]]\nname = "--help"\nop = "x.py"\nreference = "y.py"\n',
    "huge number": "[validation]\nseed = " + "9" * 900 + "\n",
    "escapes": '[[ops]]\n"na\\u006de" = "x"\nname = \'y\'\n',
}  # fmt: skip


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    """One server for all of them: it must outlive each."""
    from mini_workspace import make_mini

    with Editor(make_mini(tmp_path_factory.mktemp("hostile") / "workspace")) as found:
        yield found


def ask_everything(editor: Editor, uri: str, line: int, character: int) -> None:
    """All questions about a place; each must be answered without an error."""
    place = {"line": line, "character": character}
    about = editor.about(uri)
    for method, params in (
        ("textDocument/hover", {**about, "position": place}),
        ("textDocument/completion", {**about, "position": place}),
        ("textDocument/codeLens", about),
        ("textDocument/codeAction",
         {**about, "range": {"start": place, "end": place}, "context": {"diagnostics": []}}),
    ):  # fmt: skip
        editor.ask(method, params)


@pytest.mark.parametrize("name", sample([*TEXTS], 3))
def test_any_text_is_answered(editor: Editor, name: str) -> None:
    text, uri = TEXTS[name], editor.uri()
    lines = text.count("\n") + 1
    for found in editor.open(text):
        # Every range lies within the text.
        start, end = found["range"]["start"], found["range"]["end"]
        assert 0 <= start["line"] < lines and start["line"] == end["line"]
        assert 0 <= start["character"] <= end["character"]
        assert len(found["message"]) <= 2_000
    for line, character in ((0, 0), (1, 5), (lines, 10**6), (10**9, 0)):
        ask_everything(editor, uri, line, character)
    editor.change(GOOD, 2)
    editor.tell("textDocument/didClose", editor.about())


def test_columns_are_counted_as_the_client_does(editor: Editor) -> None:
    """The default is UTF-16, in which this face counts two."""
    text = GOOD + '[validation]\nlayouts = ["\U0001f600", "stridde"]\n'
    found = editor.open(text)
    (wrong,) = [d for d in found if "stridde" in d["message"]]
    column = text.split("\n")[3].index("stridde") + 1
    assert wrong["range"]["start"]["character"] == column
    assert wrong["range"]["end"]["character"] == column + len("stridde")
    editor.tell("textDocument/didClose", editor.about())


@pytest.mark.parametrize(("encoding", "units"), [("utf-8", 4), ("utf-16", 2), ("utf-32", 1)])
def test_columns_are_counted_as_was_agreed(mini: Mini, encoding: str, units: int) -> None:
    text = '[validation]\nlayouts = ["\U0001f600", "stridde"]\n'
    with Editor(mini, {**CAPABILITIES, "general": {"positionEncodings": [encoding]}}) as editor:
        assert editor.capabilities["positionEncoding"] == encoding
        (wrong,) = [d for d in editor.open(text) if "stridde" in d["message"]]
        column = text.split("\n")[1].index("stridde") - 1 + units
        assert wrong["range"]["start"] == {"line": 1, "character": column}
        offered = editor.ask("textDocument/completion", editor.at(1, column + 2))
        assert "strided" in {item["label"] for item in offered}


def test_a_text_over_the_limit_is_one_error(editor: Editor) -> None:
    (error,) = editor.open("#" * (5 << 20))
    assert error["code"] == "config-too-large"
    ask_everything(editor, editor.uri(), 0, 3)
    editor.tell("textDocument/didClose", editor.about())


def test_texts_that_are_no_files_are_checked_for_their_keys(editor: Editor) -> None:
    text = GOOD + '[validation]\ncasse = 3\n[[ops]]\nname = "a"\nop = "a.py"\nreference = "b.py"\n'
    for uri in ("untitled:Untitled-1", "vscode-vfs://github/a/b/gpuemu.toml"):
        found = editor.open(text, uri, "gpuemu-toml")
        assert [d["code"] for d in found] == ["config-unknown-key"]
        ask_everything(editor, uri, 3, 2)
        answer = editor.execute("gpuemu-flow.run", uri, "a")
        assert not answer["ok"] and "saved" in answer["message"]


def test_a_file_that_does_not_exist_yet_is_checked_where_it_will_be(editor: Editor) -> None:
    text = GOOD + '[[ops]]\nname = "a"\nop = "no.py"\nreference = "../../no.py"\n'
    uri = (editor.mini.root / "new folder" / "gpuemu.toml").as_uri()
    codes = {d["code"] for d in editor.open(text, uri)}
    assert codes and all(code.startswith(("config-", "program-")) for code in codes), codes
    assert not editor.execute("gpuemu-flow.run", uri, "a")["ok"]
    assert not (editor.mini.root / "new folder").exists()


def test_other_files_are_left_alone(editor: Editor) -> None:
    since = len(editor.told)
    for uri in (
        editor.uri("pyproject.toml"),
        "file:///x%00y/z.toml",
        "nonsense",
        "http://a/b.toml",
    ):
        document = {"uri": uri, "languageId": "toml", "version": 1, "text": "[tool.x]\ny = 1\n"}
        editor.tell("textDocument/didOpen", {"textDocument": document})
        ask_everything(editor, uri, 1, 0)
    ask_everything(editor, "file:///never/opened/gpuemu.toml", 0, 0)
    assert not [m for m in editor.told[since:] if m["method"] == "textDocument/publishDiagnostics"]


def test_commands_take_only_ops_of_open_files(editor: Editor) -> None:
    editor.open()
    for arguments in (
        [editor.uri(), "nothing"], [editor.uri(), ""], [editor.uri(), {"op": "scale"}],
        [editor.uri(), "--help"], [[], []], [None, None], ["file:///etc/passwd", "scale"],
    ):  # fmt: skip
        answer = editor.answer(
            editor.begin(
                "workspace/executeCommand",
                {"command": "gpuemu-flow.run", "arguments": arguments},
            )
        )
        assert "error" in answer or not answer["result"]["ok"], arguments
    editor.forgiving = True
    for command, arguments in (("gpuemu-flow.run", []), ("rm", ["-rf"])):
        answer = editor.answer(
            editor.begin("workspace/executeCommand", {"command": command, "arguments": arguments})
        )
        assert "error" in answer
    editor.tell("textDocument/didClose", editor.about())


def test_messages_that_are_none_are_passed_over(editor: Editor) -> None:
    for body in (b"{", b"[]", b'"x"', b"\xff\xfe", b"[" * 20_000, b'{"jsonrpc":"2.0","method":3}',
                 b'{"jsonrpc":"2.0","id":"q","result":{}}'):  # fmt: skip
        editor.send_raw(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    editor.tell("textDocument/didChange", {"textDocument": {"uri": 7}, "contentChanges": "x"})
    editor.tell("$/unknown", {"a": 1})
    editor.forgiving = True  # what is wrong with them stands in the log
    assert editor.ask("textDocument/hover", editor.at(0, 0)) is None
    assert editor.open() == []
    editor.tell("textDocument/didClose", editor.about())


def test_opening_a_folder_of_unknown_origin_runs_nothing(mini: Mini) -> None:
    trap = mini.write("python", "#!/bin/sh\ntouch trapped\nexit 1\n")
    trap.chmod(0o755)
    for name in ("scripts/scale.py", "scripts/scale_ref.py"):
        mini.write(name, "open('trapped', 'w').close()\n")
    text = (mini.root / "gpuemu.toml").read_text()
    mini.write("gpuemu.toml", text + '\n[execution]\npython_path = "./python"\n')
    with Editor(mini) as editor:
        editor.open()
        ask_everything(editor, editor.uri(), 9, 3)
        editor.tell("textDocument/didSave", editor.about())
        ask_everything(editor, editor.uri(), 9, 3)
    assert not (mini.root / "trapped").exists()


def test_results_that_never_come_hold_up_nothing(mini: Mini) -> None:
    """A pipe in place of a file: reading it waits for a writer who never comes."""
    (mini.root / ".gpuemu-cache/state").mkdir(parents=True)
    os.mkfifo(mini.root / ".gpuemu-cache" / DATABASE)
    with Editor(mini) as editor:
        assert editor.open() == []
        ask_everything(editor, editor.uri(), 9, 3)


def test_damaged_results_are_no_results(mini: Mini) -> None:
    mini.edit("scripts/scale.py", "* 3", "* 3.01")
    mini.run("scale", code=1)
    folder = mini.root / ".gpuemu-cache"
    database = folder / DATABASE
    damages = (
        lambda: stored_snapshot.damage(mini, "compare:scale:float32", lambda x: x[:99]),
        lambda: database.write_bytes(database.read_bytes()[:100] + b"\0"),
    )
    with Editor(mini) as editor:
        for number, damage in enumerate(damages, 1):
            damage()
            editor.tell("textDocument/didSave", editor.about())
            assert editor.open(GOOD) == [], number
            assert editor.open() == []
            ask_everything(editor, editor.uri(), 9, 3)
