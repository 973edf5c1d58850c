"""Our files held against the schemas that others published, and what GitHub asks besides."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

DATA = Path(__file__).parent / "data"
MAX_RESULTS = 25_000
"""GitHub refuses a run with more."""
# RFC 3986: nothing but these may stand in a URI, and a percent sign begins two hex digits.
_URI = re.compile(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+")


@cache
def sarif_validator() -> Draft7Validator:
    """By the schema of the standard."""
    schema = json.loads((DATA / "sarif-2.1.0.schema.json").read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    return Draft7Validator(schema)


def check_sarif(text: str) -> list[dict[str, Any]]:
    """The results of a SARIF file that is valid, that says what it may, and that GitHub shows."""
    whole = json.loads(text)
    wrong = [f"{e.json_path}: {e.message[:300]}" for e in sarif_validator().iter_errors(whole)]
    assert wrong == []
    assert whole["version"] == "2.1.0"
    (run,) = whole["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(set(rules)) == len(rules)
    results: list[dict[str, Any]] = run["results"]
    assert len(results) <= MAX_RESULTS
    for result in results:
        assert result["message"]["text"].strip()
        if "ruleIndex" in result:
            assert rules[result["ruleIndex"]] == result["ruleId"]
        (location,) = result["locations"]
        assert location["physicalLocation"]["region"]["startLine"] >= 1
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert _URI.fullmatch(uri), uri
    return results


def check_junit(text: str) -> Any:
    """The root of a JUnit file that is valid by the common schema."""
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(str(DATA / "junit-10.xsd")))
    root = etree.fromstring(text.encode(), etree.XMLParser(huge_tree=True))
    schema.assertValid(root)
    return root
