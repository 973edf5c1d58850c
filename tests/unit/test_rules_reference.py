"""The registry of rules, and the settings that their page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from config_workspace import ConfigWorkspace
from ptx_text import REPOSITORY

from gpuemu_flow.lint import rules
from gpuemu_flow.lint.rules import RULES, RULES_BY_ID, explain

PAGE = REPOSITORY / "docs" / "lint-rules.md"


def test_rules_stand_in_order_under_unique_ids() -> None:
    assert len(RULES_BY_ID) == len(RULES) >= 20
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id) for rule in RULES)
    assert {rule.severity for rule in RULES} <= {"error", "warning", "info"}


def test_every_rule_file_is_registered() -> None:
    folder = REPOSITORY / "gpuemu_flow" / "artifacts" / "rules"
    helpers = {"__init__", "base"}
    names = {path.stem for path in folder.glob("*.py")} - helpers
    registered = {name for name in names if getattr(rules, name).RULE in RULES}
    assert names == registered


def test_every_rule_explains_itself() -> None:
    for rule in RULES:
        for text in (rule.what, rule.why, rule.example, rule.instead):
            assert text.strip()
        assert f"## {rule.id}" in explain(rule)


def settings_shown() -> list[str]:
    """List the configurations that the page shows."""
    page = PAGE.read_text(encoding="utf-8")
    kernel = '[[kernels]]\nname = "k"\nptx = "kernels/k.ptx"\n'
    blocks = [block for _, block in re.findall(r"```(toml)\n(.*?)```", page, re.DOTALL)]
    blocks = [block.replace("softmax.cu", "k.cu") for block in blocks]
    checks = re.findall(r"artifact_checks = (\{[^}]*\})", page)
    lists = re.findall(r"(?:forbidden_instructions|required_patterns) = \[[^\]]*\]", page)
    single = re.findall(r"`((?:max|min)_\w+ = \d+|\w+ = true)`", page)
    tables = [*checks, *(f"{{ {text} }}" for text in (*lists, *single))]
    return [*blocks, *(f"{kernel}artifact_checks = {table}\n" for table in tables)]


@pytest.mark.parametrize("text", settings_shown())
def test_settings_that_the_page_shows_are_accepted(text: str, tmp_path: Path) -> None:
    workspace = ConfigWorkspace(tmp_path)
    for name in ("k.ptx", "k.cu"):
        workspace.write("", f"kernels/{name}")
    assert workspace.check(f'[project]\nname = "p"\n{text}') == []


def test_the_page_shows_settings() -> None:
    assert len(settings_shown()) >= 8
