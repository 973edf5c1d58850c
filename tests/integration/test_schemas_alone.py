"""Each published schema, alone in an empty folder, judges real documents; no other file helps."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli
from daemon_workspace import Served
from mini_workspace import make_mini
from test_daemon_hostile import REQUESTS

import gpuemu_flow.schemas

pytestmark = pytest.mark.ci

SCHEMAS = sorted(Path(gpuemu_flow.schemas.__path__[0]).glob("*.json"))
# Without a registry: what the file does not hold cannot be found, and is an error.
READER = """
import json, sys
from pathlib import Path
from jsonschema import Draft7Validator
(path,) = Path.cwd().iterdir()
schema = json.loads(path.read_text(encoding="utf-8"))
Draft7Validator.check_schema(schema)
reader = Draft7Validator(schema)
for document in json.load(sys.stdin):
    wrong = [f"{one.json_path}: {one.message[:300]}" for one in reader.iter_errors(document)]
    print(json.dumps(wrong))
"""


def read_alone(name: str, folder: Path, documents: list[Any]) -> list[list[str]]:
    """List what is wrong in each document, by a schema in a folder of its own."""
    folder.mkdir()
    (source,) = [path for path in SCHEMAS if path.name == name]
    shutil.copy(source, folder)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", READER], cwd=folder, input=json.dumps(documents),
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def references(value: Any) -> Iterator[str]:
    """Every reference in a schema."""
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for one in value.values():
            yield from references(one)
    elif isinstance(value, list):
        for one in value:
            yield from references(one)


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.name)
def test_every_reference_is_found_in_the_file_itself(path: Path) -> None:
    schema = json.loads(path.read_text(encoding="utf-8"))
    for reference in set(references(schema)):
        file, _, pointer = reference.partition("#/")
        assert file == "", f"{path.name} alone cannot be read: {reference}"
        found = schema
        for word in pointer.split("/"):
            found = found[word]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """Return the output of commands in a workspace with a wrong op, a crashing one and a kernel."""
    mini = make_mini(tmp_path_factory.mktemp("alone") / "workspace")
    mini.edit("scripts/scale.py", "* 3)", "* 3 + (x.size > 8))")
    mini.edit("scripts/relu.py", "x = read()", "x = read()\nassert x.size < 7, 'as planned'")
    kernel = Path(__file__).resolve().parents[2] / "scripts/kernels/sm_80/softmax.ptx"
    shutil.copy(kernel, mini.root / "scripts" / "softmax.ptx")
    more = '\n[[kernels]]\nname = "softmax"\nptx = "scripts/softmax.ptx"\n\n[targets]\n'
    mini.edit("gpuemu.toml", "\n[targets]\n", more)

    def document(*words: str) -> Any:
        return json.loads(mini.command(*words, "--format", "json", code=None).stdout)

    runs = [document("run", "--dry-run"), document("run")]
    reports = [document("report"), document("ci", "quick")]
    mini.command("baseline", "store", "main")
    reports.append(document("ci", "--baseline", "main"))
    whole = reports[-1]
    parts = ("results", "failures", "cases", "kernels", "baseline")
    assert all(whole[part] for part in parts), {part: bool(whole[part]) for part in parts}
    config = (mini.root / "gpuemu.toml").read_text()
    return {
        "run.schema.json": runs,
        "report.schema.json": reports,
        "gpuemu.schema.json": [tomli.loads(config)],
    }


SPOILT = {
    "run.schema.json": ("results", 0, "verdict"),
    "report.schema.json": ("results", 0, "verdict"),
    "gpuemu.schema.json": ("validation", "dtypes", 0),
}
"""Place in each document where an invalid value is put; in the report, its schema is a shared
definition."""


@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.ci
def test_what_is_printed_satisfies_the_schema_alone(
    printed: dict[str, list[Any]], tmp_path: Path, name: str
) -> None:
    documents = printed[name]
    wrong = copy.deepcopy(documents[-1])
    *above, last = SPOILT[name]
    place = wrong
    for word in above:
        place = place[word]
    place[last] = "maybe"
    *fine, refused = read_alone(name, tmp_path / "alone", [*documents, wrong])
    assert fine == [[]] * len(documents)
    assert refused


def test_what_goes_over_the_wire_satisfies_the_schema_alone(daemon: Served, tmp_path: Path) -> None:
    daemon.open_gate()
    replies = [daemon.ask(request, timeout_ms=600_000) for request in REQUESTS]
    documents = [*REQUESTS, *replies]
    wrong = {**replies[-1], "type": "maybe"}
    given = [*documents, wrong]
    *fine, refused = read_alone("protocol.schema.json", tmp_path / "alone", given)
    assert fine == [[]] * len(documents)
    assert refused


def test_no_published_schema_is_left_out() -> None:
    assert {path.name for path in SCHEMAS} == {*SPOILT, "protocol.schema.json"}
