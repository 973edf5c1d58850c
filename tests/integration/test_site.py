"""The documentation site: it builds without a warning, and what it links to is there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


class Page(HTMLParser):
    """Links, anchors, loaded resources and paragraphs of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.prose: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("link", "script", "img"):
            self.loaded.append(values.get("href", values.get("src", "")))
        if tag == "p":
            self.prose.append("")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "p" in self._open and not {"code", "pre"} & set(self._open):
            self.prose[-1] += data


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """Every page of the site by its path in it."""
    for name in ("mkdocs", "material"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("mkdocs-material is not installed (extra docs)")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    found = {str(path.relative_to(folder)): Page(path) for path in folder.rglob("*.html")}
    for schema in (REPOSITORY / "schemas").glob("*.json"):
        copied = folder / "schemas" / schema.name
        assert copied.read_bytes() == schema.read_bytes()
        found[f"schemas/{schema.name}"] = Page(copied)
    return found


def test_every_page_of_the_repository_is_in_the_site(site: dict[str, Page]) -> None:
    pages = {path.with_suffix(".html").name for path in (REPOSITORY / "docs").glob("*.md")}
    assert pages | {"changelog.html"} <= set(site)


def test_every_link_leads_to_a_page_and_an_anchor_of_it(site: dict[str, Page]) -> None:
    seen = 0
    for name, page in site.items():
        for link in page.links:
            if re.match(r"\w+:", link) or name == "404.html":
                continue
            path, _, anchor = unquote(link).partition("#")
            target = os.path.normpath(Path(name).parent / path) if path else name
            if target.startswith("images/"):
                continue
            assert target in site, f"{name}: {link}"
            assert not anchor or anchor in site[target].anchors, f"{name}: {link}"
            seen += 1
    assert seen > 500


def test_pages_load_nothing_from_elsewhere(site: dict[str, Page]) -> None:
    for name, page in site.items():
        foreign = [url for url in page.loaded if re.match(r"(\w+:)?//", url)]
        assert not foreign, name


def test_lists_and_tables_are_seen_as_such(site: dict[str, Page]) -> None:
    """The site's Markdown wants a blank line before a list, the repository's does not."""
    for name, page in site.items():
        for text in page.prose:
            assert not re.search(r"\n(?:[-*] |\d+\. |\|)", text), f"{name}: {text[:200]}"
            assert "```" not in text, f"{name}: {text[:200]}"
