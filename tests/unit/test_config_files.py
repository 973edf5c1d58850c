"""Whole example files: what is right loads, what is wrong is all reported, each with its line."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import tomli
from config_workspace import INVALID, VALID, ConfigWorkspace, expected
from for_each import for_each

from gpuemu_flow.config.fields import Table, keys_of, rows_of, table_of
from gpuemu_flow.config.tables import File
from gpuemu_flow.model.errors import ConfigError

REPOSITORY = Path(__file__).parent.parent.parent
SCHEMA = json.loads((REPOSITORY / "schemas" / "gpuemu.schema.json").read_text())


@pytest.fixture
def workspace(tmp_path: Path) -> ConfigWorkspace:
    return ConfigWorkspace(tmp_path)


@for_each("path", VALID)
def test_valid_files_load_with_the_warnings_they_announce(
    path: Path, workspace: ConfigWorkspace
) -> None:
    text = path.read_text()
    config = workspace.load(text)
    warnings = [(p.line, p.slug) for p in config.warnings]
    assert warnings == expected(text)[1]
    tree = tomli.loads(text)
    assert [op.name for op in config.ops] == [op["name"] for op in tree.get("ops", [])]
    assert [k.name for k in config.kernels] == [k["name"] for k in tree.get("kernels", [])]


@for_each("path", INVALID)
def test_invalid_files_report_every_error_with_its_line(
    path: Path, workspace: ConfigWorkspace
) -> None:
    text = path.read_text()
    errors, warnings = expected(text)
    problems = workspace.check(text)
    assert sorted((p.line, p.slug) for p in problems if not p.warning) == sorted(errors)
    assert sorted((p.line, p.slug) for p in problems if p.warning) == sorted(warnings)
    with pytest.raises(ConfigError) as raised:
        workspace.load()
    assert raised.value.exit_code == 2
    assert [p for p in problems if not p.warning] == list(raised.value.problems)
    for problem in problems:
        assert problem.file == "gpuemu.toml"
        assert problem.message.isprintable()


def test_a_message_reads_as_file_line_slug_what_and_hint(workspace: ConfigWorkspace) -> None:
    problems = workspace.check('[project]\nname = "x"\n[validation]\nlayouts = ["strid"]\n')
    assert [str(p) for p in problems] == [
        "gpuemu.toml:4: config-unknown-layout: unknown layout 'strid' in validation.layouts[0]; "
        "did you mean 'strided'?"
    ]


@for_each("path", VALID)
def test_the_json_schema_accepts_what_loads(path: Path) -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(tomli.loads(path.read_text()))


@for_each("path", INVALID)
def test_the_json_schema_rejects_what_has_a_wrong_type_or_value(path: Path) -> None:
    """Files say in their first line whether a schema can see what is wrong with them."""
    text = path.read_text()
    verdict = text.splitlines()[0]
    assert verdict in ("# schema: rejects", "# schema: accepts")
    valid = jsonschema.Draft7Validator(SCHEMA).is_valid(tomli.loads(text))
    assert valid == (verdict == "# schema: accepts")


@for_each(
    "path",
    [p for p in INVALID if p.read_text().startswith("# schema: rejects")],
)
def test_each_single_wrong_value_is_one_that_the_json_schema_rejects(path: Path) -> None:
    """Line by line: a schema that missed one of them would hide behind the others."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    lines = path.read_text().splitlines()
    wrong = {line for line, _ in expected("\n".join(lines))[0]}
    unseen = []
    for number in sorted(wrong):
        others = wrong - {number}
        kept = [line for i, line in enumerate(lines, start=1) if i not in others or line[:1] == "["]
        try:
            tree = tomli.loads("\n".join(kept))
        except tomli.TOMLDecodeError:
            continue
        if validator.is_valid(tree):
            unseen.append(lines[number - 1])
    # JSON knows neither NaN nor dates, and a schema cannot see them.
    assert [line for line in unseen if "nan" not in line and "1979" not in line] == []


def test_the_json_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_every_key_is_exercised_by_the_valid_examples() -> None:
    """A key that no example has could break unseen."""
    trees = [tomli.loads(path.read_text()) for path in VALID]
    unused: list[str] = []

    def look(table: type[Table], nodes: list[dict[str, object]], where: str) -> None:
        for key in keys_of(table).values():
            names = (key.name, *key.aliases)
            found = [node[name] for node in nodes for name in names if name in node]
            missing = [n for n in names if not any(n in node for node in nodes)]
            unused.extend(f"{where}{name}" for name in missing)
            inner = [f for f in found if isinstance(f, dict)]
            own, row = table_of(key.type), rows_of(key.type)
            if own:
                look(own, inner, f"{where}{key.name}.")
            elif row:
                rows = [each for f in found if isinstance(f, list) for each in f]
                look(row, rows, f"{where}{key.name}.")

    look(File, trees, "")
    assert unused == []
