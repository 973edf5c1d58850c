"""The schema in the tools behind two TOML editors: taplo (Even Better TOML) and Tombi."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).resolve().parents[2]
SCHEMA = REPOSITORY / "schemas" / "gpuemu.schema.json"
VALID = sorted((REPOSITORY / "tests" / "data" / "config" / "valid").glob("*.toml"))

BROKEN = {
    "a wrong type": ('name = "ok"', "name = 3"),
    "an unknown word": ('dtypes = ["float32"]', 'dtypes = ["float33"]'),
    "a value out of range": ("cases = 4", "cases = 0"),
    "a missing key": ('reference = "ref.py"', ""),
    "no array of tables": ("[[ops]]", "[ops]"),
    "a wrong element": ('layouts = ["strided"]', 'layouts = ["strided", 1]'),
}
GOOD = """\
[project]
name = "ok"
[validation]
dtypes = ["float32"]
layouts = ["strided"]
cases = 4
[[ops]]
name = "softmax"
op = "op.py"
reference = "ref.py"
kwargs = { anything = 1 }
[ops.schema]
dims = { N = [1, 2] }
inputs = { x = ["N"] }
output = ["N"]
"""


def tool(name: str) -> str:
    """Path of a command of this environment or of the machine; skips where there is none."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (pip install {name})")
    return found


def lint(name: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a linter on all TOML files of a folder."""
    command = [tool(name), "lint", "--no-cache", "--offline"] if name == "tombi" else [
        tool(name), "lint", "--no-auto-config"
    ]  # fmt: skip
    done = subprocess.run(
        [*command, *(path.name for path in sorted(folder.glob("*.toml")))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)


def put(folder: Path, name: str, text: str) -> None:
    """A file that names the schema as generated ones do."""
    (folder / ".gpuemu").mkdir(exist_ok=True)
    shutil.copy(SCHEMA, folder / ".gpuemu")
    (folder / name).write_text("#:schema .gpuemu/gpuemu.schema.json\n" + text)


def test_the_schema_has_only_words_that_draft_7_has() -> None:
    """Newer ones would be passed over by some editors, and refused by others."""
    words = {
        "$schema", "title", "description", "type", "properties", "additionalProperties", "required",
        "items", "anyOf", "allOf", "enum", "pattern", "minimum", "maximum", "exclusiveMinimum",
        "minLength", "maxLength", "minItems", "maxItems", "default", "examples", "propertyNames",
    }  # fmt: skip
    todo: list[object] = [json.loads(SCHEMA.read_text())]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        elif isinstance(part, dict):
            assert set(part) <= words, set(part) - words
            for word, value in part.items():
                if word == "properties":
                    todo += value.values()
                elif word not in ("default", "enum", "examples"):
                    todo.append(value)


@pytest.mark.parametrize("name", ["taplo", "tombi"])
def test_valid_files_are_fine(name: str, tmp_path: Path) -> None:
    put(tmp_path, "own.toml", (REPOSITORY / "gpuemu.toml").read_text().partition("\n")[2])
    put(tmp_path, "good.toml", GOOD)
    for path in VALID:
        # TOML's own integers have 63 bits and a sign; Tombi refuses the whole range of seeds.
        text = path.read_text().replace(str(2**64 - 1), str(2**63 - 1))
        put(tmp_path, path.name, text)
    code, text = lint(name, tmp_path)
    assert code == 0, text
    places = re.findall(r"at (\w+\.toml):\d+", text)
    assert set(places) <= {"unknown_keys.toml"}, text


@pytest.mark.parametrize("name", ["taplo", "tombi"])
def test_each_broken_file_is_refused_at_its_line(name: str, tmp_path: Path) -> None:
    for number, (old, new) in enumerate(BROKEN.values()):
        assert GOOD.count(old) == 1
        put(tmp_path, f"b{number}.toml", GOOD.replace(old, new))
    code, text = lint(name, tmp_path)
    assert code != 0
    missing = [what for number, what in enumerate(BROKEN) if f"b{number}.toml:" not in text]
    assert not missing, f"{missing}\n{text}"
