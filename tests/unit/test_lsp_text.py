"""Test the language server's places, fixes and completions for a text, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tomli
from for_each import for_each

from gpuemu_flow.config.fields import key_at, keys_of, names_of, table_at, words_of
from gpuemu_flow.config.tables import File
from gpuemu_flow.model.errors import Hint, Rename, did_you_mean
from gpuemu_flow.services.lsp.document import completions_at, outline, text_findings
from gpuemu_flow.services.lsp.server import Latest

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIG = (REPOSITORY / "gpuemu.toml").read_text(encoding="utf-8")


def test_every_op_of_a_real_file_is_found_where_it_stands() -> None:
    found = outline(CONFIG)
    assert [op.name for op in found.ops] == [op["name"] for op in tomli.loads(CONFIG)["ops"]]
    for op in found.ops:
        assert found.lines[op.header] == "[[ops]]"
        span = op.place
        assert found.lines[span.line][span.start : span.end] == op.name


def test_ops_are_found_before_and_behind_a_place_where_somebody_types() -> None:
    """A string or list that somebody is still typing does not hide the ops before and behind it."""
    names = {op.name for op in outline(CONFIG).ops}
    for end in range(0, len(CONFIG), 97):
        found = {op.name for op in outline(CONFIG[:end] + '\nx = ["\n' + CONFIG[end:]).ops}
        assert found >= {op.name for op in outline(CONFIG[:end]).ops if op.name in names}, end
        after = CONFIG[end:].partition("\n[[ops]]\n")[2]
        assert not after or after.split('"')[1] in found, end


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (("validation", "layouts"), {"contiguous", "offset"}),
        (("ops", 3, "isolation"), {"fork", "warm"}),
        (("ops", "nan_policy"), {"match", "strict", "ignore"}),
        (("ops", 0, "deterministic"), {"true", "false"}),
        (("ops", 0, "timeout"), set()),
        (("ci", "quick", "dtypes"), {"float32"}),
    ],
)
def test_words_of_a_key(path: tuple[str | int, ...], words: set[str]) -> None:
    key = key_at(File, path)
    assert key is not None
    found = set(words_of(key.type))
    assert found >= words and bool(found) == bool(words)


def test_every_table_with_known_keys_is_found_by_its_path() -> None:
    assert table_at(File, ()) is File
    for path in (("ops",), ("ops", 0, "op"), ("validation", "tolerances", "float32"),
                 ("ops", "tolerances", "f16"), ("ci", "quick"), ("kernels", 1)):  # fmt: skip
        assert table_at(File, path) is not None, path
    for free in (("targets",), ("ops", "env"), ("ops", "kwargs"), ("nothing",), ("ops", "x", "y")):
        assert table_at(File, free) is None, free
    assert key_at(File, ()) is None and key_at(File, (0,)) is None


def test_a_hint_holds_its_edit_and_no_other_text_does() -> None:
    for name in ("reference", "it's", 'say "x"', "a b", "did you mean 'x'?"):
        hint = did_you_mean(name + "x", [name])
        assert isinstance(hint, Hint) and hint.edit == Rename(name + "x", name)
    assert not isinstance(did_you_mean("zzz", ["reference", "other"]), Hint)


def mended(text: str) -> set[str]:
    """The text after each fix that is offered for it."""
    found = set()
    for fix in (f.fix for f in text_findings(outline(text), None, {}) if f.fix is not None):
        lines = text.split("\n")
        line = lines[fix.span.line]
        lines[fix.span.line] = line[: fix.span.start] + fix.text + line[fix.span.end :]
        found.add("\n".join(lines))
    return found


def test_a_fix_changes_the_last_part_of_a_dotted_key_only() -> None:
    assert mended("[ci]\nquick.dtpyes = ['float32']") == {"[ci]\nquick.dtypes = ['float32']"}
    assert mended("[ci]\nquick_dtypes = ['Flaot32']") == {"[ci]\nquick_dtypes = ['float32']"}


def test_words_within_a_message_make_no_fix() -> None:
    """A value that holds the words of a message is no hint of a key."""
    text = "[[ops]]\nname = \"lacks the key 'zzz'; did you mean 'yyy'?\"\n"
    assert mended(text) == {text.replace("]]", ']]\nreference = ""', 1)}


def test_each_suggestion_of_a_mistyped_key_mends_it() -> None:
    """Every key of every table: mistyped, found, and mended by its fix."""
    tables = {"[project]": keys_of(File)["project"], "[validation]": keys_of(File)["validation"],
              "[ci]": keys_of(File)["ci"], "[[ops]]": keys_of(File)["ops"]}  # fmt: skip
    count = 0
    for header, holder in tables.items():
        section = table_at(File, (holder.name,))
        assert section is not None
        for key in keys_of(section).values():
            wrong = key.name[:2] + "q" + key.name[2:]
            text = f"{header}\n{wrong} = 0\n"
            fixes = [f.fix for f in text_findings(outline(text), None, {})
                     if f.code == "config-unknown-key"]  # fmt: skip
            assert len(fixes) == 1, wrong
            (fix,) = fixes
            if fix is None:
                continue
            span = fix.span
            line = text.split("\n")[span.line]
            mended = line[: span.start] + fix.text + line[span.end :]
            assert mended.split(" ")[0] in names_of(section)
            count += mended == f"{key.name} = 0"
    assert count > 50


@for_each(
    ("text", "offered"),
    [
        ("[", "validation"),
        ("[[op", "ops"),
        ("[ci]\n", "parallel_jobs"),
        ("[ci]\nqui", "quick_dtypes"),
        ('[ci]\nquick_dtypes = ["', "float32"),
        ("[ci]\nquick_dtypes = [", '"float32"'),
        ('[[ops]]\nname = "x"\n[ops.tolerances.float32]\n', "atol"),
        ("[policies]\nfail_on_regression = ", "true"),
        ('[targets]\nx = ["', None),
        ("# nothing [", None),
        ("", "ops"),
    ],
)
def test_completions(text: str, offered: str | None) -> None:
    found = outline(text)
    line = len(found.lines) - 1
    words = {each.label for each in completions_at(found, line, len(found.lines[line]))}
    if offered == "ops" and not text:  # arrays of tables have headers and are no plain keys
        assert "validation" in words and "ops" not in words
    elif offered is None:
        assert not words
    else:
        assert offered in words


def test_latest_runs_once_more_for_what_was_asked_meanwhile_and_outlives_errors() -> None:
    seen: list[int] = []
    errors: list[Exception] = []

    async def scene() -> None:
        latest = Latest(errors.append)
        gate = asyncio.Event()

        async def action() -> None:
            seen.append(len(seen))
            await gate.wait()
            if len(seen) == 1:
                raise ValueError("first")

        task = latest.ask("a", action)
        await asyncio.sleep(0)
        for _ in range(5):
            assert latest.ask("a", action) is task is latest.running("a")
        gate.set()
        await task
        assert latest.running("a") is None
        await latest.ask("a", action)

    asyncio.run(scene())
    assert len(seen) == 3 and len(errors) == 1
