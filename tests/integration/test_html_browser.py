"""The HTML report in a real browser: clicked through, and held against the JSON report."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium, webdriver
from mini_workspace import Mini, make_mini

pytestmark = pytest.mark.ci

CONTRAST = """
const lum = (color) => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(Number).slice(0, 3).map((v) => {
    v /= 255;
    return v <= 0.03928 ? v / 12.92 : Math.pow((v + 0.055) / 1.055, 2.4);
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = (node) => {
  for (let n = node; n; n = n.parentElement) {
    const color = getComputedStyle(n).backgroundColor;
    if (!/, 0\\)$/.test(color) && color !== "transparent") return color;
  }
  return "rgb(255, 255, 255)";
};
const bad = [];
for (const node of document.querySelectorAll("main *, header *, footer *")) {
  if (node instanceof SVGElement && node.tagName !== "text") continue;
  const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
  if (!own || !node.getClientRects().length) continue;
  const style = getComputedStyle(node);
  const a = lum(node.tagName === "text" ? style.fill : style.color), b = lum(ground(node));
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (ratio < 4.5) bad.push([node.tagName, node.className, node.textContent.slice(0, 40), ratio]);
}
return bad;
"""
CLIPPED = """
const edge = document.documentElement.clientWidth;
return [...document.querySelectorAll("main *, header *")].filter((n) => {
  if (n.closest(".scroll, pre, .panel, .hide, svg") || !n.getClientRects().length) return false;
  const box = n.getBoundingClientRect();
  return box.right > edge + 1 || box.left < -1 || n.scrollWidth > n.clientWidth + 1
    && getComputedStyle(n).overflowX === "hidden";
}).map((n) => n.outerHTML.slice(0, 120));
"""
UNNAMED = """
return [...document.querySelectorAll('[role="img"], button, input, [role="region"], section')]
  .filter((n) => !(n.getAttribute("aria-label") || n.textContent.trim()
    || n.getAttribute("aria-labelledby") || n.closest("label")))
  .map((n) => n.outerHTML.slice(0, 100));
"""


SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "kernels" / "sm_80"
SHARED = re.compile(r"(\.shared .*)\[(\d+)\]")
KERNELS_CONFIG = """
[[kernels]]
name = "tiled"
ptx = "k/a.ptx"

[[kernels]]
name = "spills"
ptx = "k/b.ptx"
cubin = "k/b.cubin"
artifact_checks = { max_spills = 0 }

[targets]
"""


def give_kernels(mini: Mini, shared: int = 1) -> None:
    """A kernel that takes so many times its shared memory, and one that spills."""
    (mini.root / "k").mkdir(exist_ok=True)
    text = (SCRIPTS / "matmul_tiled.ptx").read_text()
    text, found = SHARED.subn(lambda m: f"{m[1]}[{int(m[2]) * shared}]", text)
    assert found
    (mini.root / "k/a.ptx").write_text(text)
    for suffix in ("ptx", "cubin"):
        shutil.copy(SCRIPTS / f"forced_spills.{suffix}", mini.root / "k" / f"b.{suffix}")


@dataclass
class Shown:
    """The page in the browser, and the JSON report of the same run."""

    browser: Any
    report: dict[str, Any]
    url: str

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.browser.find_element("css selector", selector)

    def click(self, node: Any) -> None:
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", node)
        node.click()

    def script(self, text: str, *arguments: Any) -> Any:
        return self.browser.execute_script(text, *arguments)

    def open(self, width: int = 1280, colours: str = "light") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": colours},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.browser.get(self.url)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def shown(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """A run in which the ops pass, a baseline of it, and one in which they do not."""
    mini = make_mini(tmp_path_factory.mktemp("html") / "workspace")
    mini.edit("gpuemu.toml", "\n[targets]\n", KERNELS_CONFIG)
    give_kernels(mini)
    mini.command("run", code=1)
    mini.command("baseline", "store", "good", code=None)
    give_kernels(mini, 2)
    mini.edit("scripts/total.py", "acc += widen(x[:, start:start + 16])",
              "acc += widen(x[:, start:start + 15])")  # fmt: skip
    mini.edit("scripts/relu.py", "x = read()", "x = read()\nassert x.size < 7, '<i>no</i>'")
    mini.command("ci", "--baseline", "good", "-o", "r.html", "-o", "r.json", code=1)
    report = json.loads((mini.root / "r.json").read_text())
    return Shown(browser, report, (mini.root / "r.html").as_uri())


@pytest.mark.ci
def test_the_page_shows_what_the_json_says(shown: Shown) -> None:
    shown.open()
    report = shown.report
    assert shown.one("#verdict").text == report["verdict"] == "failed"
    tiles = {t.get_attribute("data-total"): t.text.split()[0] for t in shown.all(".tiles li")}
    names = ("passed", "failed", "errors", "inconclusive", "skipped")
    assert tiles == {"total": str(report["total_tests"]), **{n: str(report[n]) for n in names}}
    rows = {
        (row.find_element("css selector", "th").text, cells[0].text): [c.text for c in cells]
        for row in shown.all("#summary tbody tr")
        for cells in [row.find_elements("css selector", "td")]
    }
    assert len(rows) == len(report["results"])
    for result in report["results"]:
        cells = rows[result["op"], result["dtype"]]
        assert cells[1] == result["verdict"]
        assert cells[2] == f"{result['passed']}/{result['cases']}"
        worst = 0.0 if cells[3] == "0" else float(cells[3])
        assert worst == pytest.approx(result["max_abs"], rel=0.01)
    by_name = {f["name"]: f for f in report["failures"]}
    cards = shown.all(".card")
    assert {c.get_attribute("data-name") for c in cards} <= set(by_name)
    kinds = {(f["op"], f["dtype"], f["kind"]) for f in report["failures"]}
    assert len(cards) == len(kinds) == 3
    for card in cards:
        failure = by_name[card.get_attribute("data-name")]
        if card.get_attribute("open") is None:
            shown.click(card.find_element("css selector", "summary"))
        text = card.text
        for word in (failure["seed_str"], failure["message"], failure["reproduce"], failure["id"],
                     failure["cause"], f"{failure['file']}:{failure['line']}"):  # fmt: skip
            assert word in text
        drawn = card.find_elements("css selector", ".heat svg")
        several = not failure["message"].startswith("1 of 1 elements")
        assert bool(drawn) == (several and failure["verdict"] == "failed")
        assert card.find_elements("css selector", "pre.first"), "inputs and values come first"


def test_the_matrix_counts_as_the_json_does(shown: Shown) -> None:
    shown.open()
    cases = shown.report["cases"]
    for kind, field in (("strategies", "strategy"), ("classes", "shape_class")):
        shown.click(shown.one(f'input[value="{kind}"]'))
        heads = [head.text for head in shown.all("#grid thead th")][1:]
        seen = {}
        for row in shown.all("#grid tbody tr"):
            op, dtype = row.find_element("css selector", "th").text.split()
            for head, cell in zip(heads, row.find_elements("css selector", "td"), strict=True):
                if cell.text:
                    seen[op, dtype, head] = cell.text.removeprefix("✗ ")
        wanted: dict[tuple[str, str, str], list[bool]] = {}
        for case in cases:
            key = (case["op"], case["dtype"], case[field])
            wanted.setdefault(key, []).append(case["verdict"] == "passed")
        assert seen == {key: f"{sum(found)}/{len(found)}" for key, found in wanted.items()}
    button = shown.one("#grid button.failed")
    shown.click(button)
    panel = shown.one("#cell")
    assert panel.is_displayed()
    label = button.get_attribute("aria-label")
    assert button.text in label, "who speaks to a browser says what is seen"
    assert label.split(":")[0].rsplit(" ", 1)[0] in panel.text
    assert "failed" in panel.text
    shown.click(shown.one("#matrix-bad"))
    assert {row.text.split()[0] for row in shown.all("#grid tbody tr")} == {"total", "relu"}


def test_ops_can_be_found_and_commands_copied(shown: Shown) -> None:
    shown.open()

    def visible() -> set[str]:
        return {
            r.get_attribute("data-op") for r in shown.all("#summary tbody tr") if r.is_displayed()
        }

    shown.one("#find").send_keys("SCA")
    assert visible() == {"scale"}
    assert shown.one("#found").text == "1 shown"
    shown.one("#find").clear()
    shown.one("#find").send_keys(" ")
    shown.click(shown.one("#only-bad"))
    assert visible() == {"total", "relu"}
    shown.browser.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]}
    )
    button = shown.one(".card[open] .copy")
    shown.click(button)
    waiting = importlib.import_module("selenium.webdriver.support.wait")
    assert waiting.WebDriverWait(shown.browser, 10).until(lambda _: button.text == "Copied")


@pytest.mark.ci
def test_it_can_be_used_by_keyboard(shown: Shown) -> None:
    keys = webdriver.Keys
    shown.open()
    shown.one("body").send_keys(keys.TAB)
    assert shown.browser.switch_to.active_element.text == "Skip to the results"
    shown.browser.switch_to.active_element.send_keys(keys.ENTER)
    assert shown.script("return document.activeElement.id") == "main"
    reached = set()
    for _ in range(200):
        shown.browser.switch_to.active_element.send_keys(keys.TAB)
        node = shown.browser.switch_to.active_element
        reached.add((node.tag_name, node.get_attribute("class"), node.get_attribute("id")))
        if node.tag_name == "body":
            break
    assert {tag for tag, _, _ in reached} >= {"input", "a", "summary", "button", "pre"}
    assert {("button", "failed", ""), ("input", "", "find")} <= reached
    cells = [node for node in reached if node[0] == "button" and node[1] in ("failed", "passed")]
    assert len(cells) == 1, "one stop for all cells of the matrix"
    cell = shown.one("#grid button.failed")
    cell.send_keys(keys.ENTER)
    assert shown.one("#cell").is_displayed()
    place = (
        "const c = document.activeElement.closest('td');"
        "return [c.cellIndex, c.parentNode.rowIndex];"
    )
    cell.send_keys(keys.HOME)
    assert shown.script(place) == [1, 1]
    seen = [[1, 1]]
    for key in (keys.ARROW_RIGHT, keys.ARROW_DOWN, keys.ARROW_LEFT, keys.ARROW_UP, keys.ARROW_UP):
        shown.browser.switch_to.active_element.send_keys(key)
        seen.append(shown.script(place))
    assert seen == [[1, 1], [2, 1], [2, 2], [1, 2], [1, 1], [1, 1]]
    assert (
        shown.script("return document.querySelectorAll('#grid button[tabindex=\"0\"]').length") == 1
    )
    summary = shown.one(".card summary")
    before = shown.one(".card").get_attribute("open")
    summary.send_keys(keys.ENTER)
    assert shown.one(".card").get_attribute("open") != before


def test_it_says_at_once_what_is_wrong(shown: Shown) -> None:
    """Within the first screen: which ops and kernels, in how many cases, and by what."""
    shown.open()
    report = shown.report
    wrong = sum(r["verdict"] in ("failed", "error") for r in report["results"])
    outcome = shown.one(".outcome").text
    assert outcome.startswith(
        f"{wrong} of {len(report['results'])} ops by dtype and 1 of 2 kernels"
    )
    assert f"{len(report['regressions'])} regression" in outcome
    first, *_ = shown.all("main section")
    assert first.get_attribute("id") == "failures"
    (beside, worse) = shown.all(".besides li")
    assert "spill" in beside.text
    assert report["regressions"][0] in worse.text
    shown.script("document.querySelectorAll('.card').forEach((card) => { card.open = false; })")
    cards = shown.all(".card summary")
    assert all(len(card.text.splitlines()) >= 2 for card in cards), "a folded card says something"
    assert all(card.rect["y"] + card.rect["height"] < 900 for card in cards)
    shown.click(shown.all("#summary tbody th a")[-1])
    target = shown.script("return location.hash.slice(1)")
    assert shown.one(f"#{target}").get_attribute("open") is not None, "a link opens its card"


def test_kernels_are_as_the_json_says(shown: Shown) -> None:
    shown.open()
    report = shown.report
    rows = {
        row.get_attribute("data-kernel"): [c.text for c in row.find_elements("css selector", "td")]
        for row in shown.all("#kernels tr[data-kernel]")
    }
    entries = {entry["name"]: entry for kernel in report["kernels"] for entry in [kernel]}
    assert set(rows) == set(entries)
    for name, entry in entries.items():
        arch, verdict, registers, spills, _, shared, *_ = rows[name]
        metrics = entry["metrics"]
        assert (arch, verdict) == (entry["arch"], entry["verdict"])
        assert registers.lstrip("~") == str(metrics["registers"])
        assert shared.lstrip("~") == str(metrics["shared_bytes"])
        none = metrics["spill_instructions"] is None
        assert spills == ("-" if none else str(metrics["spill_instructions"]))
        reached = metrics["occupancy"]
        assert f"{round(reached['fraction'] * 100)} %" in rows[name][7]
    findings = shown.one("#kernels .findings").text
    for entry in entries.values():
        for violation in entry["violations"]:
            assert violation["message"] in findings
    diff = {d["name"]: d for d in report["baseline"]["kernels"]}
    bars = [row.text for row in shown.all("#kernels .deltas tr")]
    assert len(bars) == sum(len(d["changes"]) for d in diff.values()) > 0
    assert any(bar.startswith("shared_bytes") and "+100.0 %" in bar for bar in bars)
    drawn = shown.script("return [...document.querySelectorAll('.deltas rect, .occupancy rect')]"
                         ".every((r) => r.getBBox().width >= 0)")  # fmt: skip
    assert drawn


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.ci
def test_a_checker_of_accessibility_finds_nothing(shown: Shown, width: int, colours: str) -> None:
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    shown.open(width, colours)
    shown.script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    shown.click(shown.one("#grid button.failed"))
    shown.script((Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8"))
    check = """
        const done = arguments[arguments.length - 1];
        axe.run(document, { resultTypes: ["violations"],
                            rules: { "label-content-name-mismatch": { enabled: true } } })
          .then((found) => done([found.passes.length, found.violations.map(
            (v) => [v.id, v.nodes.length, v.nodes[0].html.slice(0, 200)])]))
          .catch((error) => done([0, String(error)]));
    """
    passes, violations = shown.browser.execute_async_script(check)
    assert violations == []
    assert passes > 20, "it did look"
    shown.script("document.querySelector('#theme').removeAttribute('aria-label');"
                 "document.querySelector('#theme').textContent = '';")  # fmt: skip
    _, violations = shown.browser.execute_async_script(check)
    assert [v[0] for v in violations] == ["button-name"], "it would have found something"


@pytest.mark.parametrize("width", [400, 1280])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_fits_and_can_be_read(shown: Shown, width: int, colours: str) -> None:
    shown.open(width, colours)
    shown.script("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert shown.script("return document.documentElement.scrollWidth") <= width
    assert shown.script(CONTRAST) == []
    assert shown.script(UNNAMED) == []
    assert shown.script(CLIPPED) == [], "what must be scrolled to is in a region of its own"
    red = int(
        shown.script("return getComputedStyle(document.body).backgroundColor")[4:].split(",")[0]
    )
    assert (red < 60) == (colours == "dark")
    shown.click(shown.one("#theme"))
    red = int(
        shown.script("return getComputedStyle(document.body).backgroundColor")[4:].split(",")[0]
    )
    assert (red < 60) == (colours == "light"), "the button turns the colours round"
    assert shown.script(CONTRAST) == []


def test_it_asks_nothing_of_the_network_and_breaks_nothing(shown: Shown) -> None:
    shown.browser.get_log("performance")
    shown.browser.get_log("browser")
    shown.open()
    assert shown.browser.get_log("browser") == []
    messages = [json.loads(e["message"])["message"] for e in shown.browser.get_log("performance")]
    asked = [
        m["params"]["request"]["url"]
        for m in messages
        if m["method"] == "Network.requestWillBeSent"
    ]
    assert asked == [shown.url]
    assert Path(shown.url.removeprefix("file://")).stat().st_size < 200_000
