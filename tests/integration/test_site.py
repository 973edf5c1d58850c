"""The documentation site: it builds without a warning, and what it links to is there."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).resolve().parents[2]
LOADING = {"link", "script", "img", "iframe", "source", "video", "audio", "embed", "object", "use"}
# The theme fetches the programs for these from another host as soon as it sees one.
FETCHED_FOR = {"mermaid", "asciinema"}


class Page(HTMLParser):
    """Links, anchors, loaded resources and paragraphs of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.loaded: list[str] = []
        self.classes: set[str] = set()
        self.prose: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors.add(values.get("id", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in LOADING:
            self.loaded += [values[name] for name in ("href", "src", "data") if name in values]
        self.classes |= set(values.get("class", "").split())
        if tag == "p":
            self.prose.append("")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if "p" in self._open and not {"code", "pre"} & set(self._open):
            self.prose[-1] += data


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and does not tell of it."""

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
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
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@pytest.fixture(scope="module")
def site(built: Path) -> dict[str, Page]:
    """Every page of the site by its path in it."""
    found = {str(path.relative_to(built)): Page(path) for path in built.rglob("*.html")}
    for schema in (REPOSITORY / "schemas").glob("*.json"):
        copied = built / "schemas" / schema.name
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


def test_pages_load_nothing_from_elsewhere(site: dict[str, Page], built: Path) -> None:
    for name, page in site.items():
        foreign = [url for url in page.loaded if re.match(r"(\w+:)?//", url)]
        assert not foreign, name
        assert not page.classes & FETCHED_FOR, name
    for path in built.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')]*)", path.read_text(encoding="utf-8"))
        assert not [url for url in urls if re.match(r"(?!data:)(\w+:)?//", url)], path.name


def test_a_browser_asks_no_other_host_for_anything(
    site: dict[str, Page], built: Path, tmp_path: Path
) -> None:
    """Every page, with its search, as a reader without a network has it."""
    pytest.importorskip("selenium", reason="selenium is not installed")
    from chromium import chromium, requested

    names = sorted(name for name in site if name.endswith(".html"))
    with served(built) as home, chromium(tmp_path) as browser:
        urls = []
        for name in names:
            browser.get(f"{home}/{name}")
            urls += requested(browser)
        browser.get(f"{home}/index.html?q=minimize")
        wait_until(browser, "return document.querySelectorAll('.md-search-result__item').length")
        browser.get(f"{home}/architecture.html")
        wait_until(browser, "return document.querySelector('img[src$=\"graph.svg\"]').naturalWidth")
        urls += requested(browser)
    assert len(urls) > 3 * len(names)
    # `chrome:` is the browser's own first page.
    own = (f"{home}/", "chrome:", "data:", "blob:")
    assert not {url for url in urls if not url.startswith(own)}


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a web server of this machine that shows a folder."""
    handler = partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def wait_until(browser: Any, script: str) -> None:
    """Wait until a script in the page gives something that is true."""
    waiting = importlib.import_module("selenium.webdriver.support.wait")
    waiting.WebDriverWait(browser, 60).until(lambda b: b.execute_script(script))


def test_lists_and_tables_are_seen_as_such(site: dict[str, Page]) -> None:
    """The site's Markdown wants a blank line before a list, the repository's does not."""
    for name, page in site.items():
        for text in page.prose:
            assert not re.search(r"\n(?:[-*] |\d+\. |\|)", text), f"{name}: {text[:200]}"
            assert "```" not in text, f"{name}: {text[:200]}"
