"""The HTML report: one file that loads nothing, whose every value is text, small enough."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from html.parser import HTMLParser

import pytest
from msgspec import structs
from msgspec.structs import replace
from report_samples import HOSTILE, KERNEL, failed, hostile, passed, report_of, sample

from gpuemu_flow.judge.results import OpResult, Regression
from gpuemu_flow.model.errors import Problem
from gpuemu_flow.model.plain_text import clean
from gpuemu_flow.model.types import FailureKind, Verdict
from gpuemu_flow.model.verdicts import Cause, Counts
from gpuemu_flow.report import html_writer
from gpuemu_flow.report.document import Picture
from gpuemu_flow.report.html_writer import FailureCard, report_to_html

VOID = {"meta", "input", "link", "br", "img"}
SIZE_LIMIT = 1_000_000


class Reader(HTMLParser):
    """Parser that collects elements, their contents, and those that are not closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.whole: dict[str, str] = {}
        self.comments: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> within <{self.open[-1]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.whole[self.open[-1]] = data
        else:
            self.text.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_the_page_holds_what_the_report_says() -> None:
    found = read(report_to_html(sample()))
    text = " ".join(found.text)
    for word in (
        "softmax", "ToleranceExceeded", "gpuemu-flow reproduce 12 --op softmax", "[[1. 2.]]",
        "wrong in the last column", "RuntimeError: no", "no program for this machine",
        "40 registers, the limit is 32", "32 → 40", "+25.0 %", "50 %", "scripts/softmax.py:7",
        "verdict passed -> failed against v1", "2 of 6 elements fail",
    ):  # fmt: skip
        assert word in text, word
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = [a["href"] for tag, a in found.tags if tag == "a"]
    assert {link.removeprefix("#") for link in links} <= set(ids), "a link that leads nowhere"


def test_it_loads_nothing_and_only_its_own_script_may_run() -> None:
    page = report_to_html(hostile())
    found = read(page)
    assert not re.search(r"https?://|url\(|@import", page)
    assert not {"img", "link", "iframe", "object", "form"} & {tag for tag, _ in found.tags}
    for tag, attributes in found.tags:
        assert "src" not in attributes, tag
        assert "style" not in attributes, f"{tag}: the policy refuses inline styles"
        assert not [name for name in attributes if name.startswith("on")], tag
    (policy,) = [a["content"] for t, a in found.tags if a.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(found.whole[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy


def test_hostile_text_is_shown_as_it_is() -> None:
    page = report_to_html(hostile())
    found = read(page)
    assert found.comments == []
    assert "<script>alert" not in page
    assert not any(c in page for c in "\x00\x07\x1b\ufffe")
    assert "<script>alert('x')</script>]]>&amp;|`x`|<!-- -->" in "".join(found.text)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["ops"] == [clean(HOSTILE)]


def test_a_hundred_ops_with_failures_stay_below_a_megabyte() -> None:
    classes = ("tail", "pow2", "pow2_plus_1", "one", "prime")
    strategies = ("uniform", "normal", "small", "special", "wide", "ties")
    cases, seed = [], 10**18
    for op in range(100):
        for dtype in ("float32", "float16"):
            for n in range(24):
                seed += 1
                values = {
                    "dtype": dtype, "shape_class": classes[n % 5], "strategy": strategies[n % 6],
                    "shape": (17, 129),
                }  # fmt: skip
                make = failed if op % 4 == 0 and n % 3 == 0 else passed
                cases.append(make(f"an_op_with_a_name_{op}", seed, **values))
    report = report_of(cases)
    rows = tuple("".join(str((x * y + x) % 7) for x in range(64)) for y in range(32))
    picture = Picture("output", (17, 129), rows, "fold", 2193, 400)
    drawn = {report.key(f): picture for f in report.representatives()[:20]}
    page = report_to_html(replace(report, pictures=drawn))
    assert read(page)
    assert len(page.encode()) < SIZE_LIMIT


@pytest.mark.ci
def test_the_worst_hundred_ops_stay_below_a_megabyte_too() -> None:
    """All cases fail and say as much as they may, all pictures are noise, all kernels fail."""
    noise = random.Random(1)
    cases = [
        failed(
            f"an_op_with_a_name_{op}", 10**18 + 50 * op + n, "m" * 900,
            dtype=("float32", "float16")[n % 2], shape_class=f"class_{n % 12}",
            strategy=f"strategy_{n % 11}", shape=(17, 129), notes=("n" * 3000,),
        )
        for op in range(100)
        for n in range(48)
    ]  # fmt: skip
    report = report_of(cases)
    rows = tuple("".join(noise.choices("0123456", k=64)) for _ in range(32))
    picture = Picture("output", (17, 129), rows, "fold", 2193, 400)
    entry = structs.replace(KERNEL.entries[0], violations=KERNEL.entries[0].violations * 9)
    kernels = tuple(replace(KERNEL, kernel=f"k{n}", entries=(entry,)) for n in range(100))
    full = replace(
        report,
        run=replace(report.run, kernels=kernels),
        pictures={report.key(f): picture for f in report.representatives()[:20]},
        regressions=tuple(
            Regression(f"op {n}", "float32", what="verdict", old="passed", new="failed")
            for n in range(200)
        ),
    )
    page = report_to_html(full)
    found = read(page)
    assert len(page.encode()) < SIZE_LIMIT
    text = " ".join(found.text)
    cards = [a for tag, a in found.tags if tag == "details" and a.get("class") == "card failed"]
    assert f"the first {len(cards)} of 200, for 4800 failing cases" in text
    listed = re.search(r"(\d+) other failing cases", text)
    assert listed is not None
    assert len(cards) + int(listed[1]) == 4800, "none is lost"


def test_what_makes_a_run_red_is_said_first_though_no_case_fails() -> None:
    broken = OpResult("gone", "int8", Verdict.ERROR, reason="its script is not there")
    problem = Problem("task-broke", "no room on the disk", "", "x.bin")
    base = report_of([passed("a", 1)])
    run = replace(
        base.run, results=(*base.run.results, broken), kernels=(KERNEL,), problems=(problem,)
    )
    text = " ".join(read(report_to_html(replace(base, run=run))).text)
    begin = text.partition("Find an op")[0]
    assert "1 of 2 ops by dtype and 1 of 1 kernels failed or broke." in begin
    for word in ("its script is not there", "no room on the disk", "40 registers, the limit is 32"):
        assert word in begin
    slower = Regression("a", "float32", what="max_abs", old=1, new=2)
    worse = replace(base, regressions=(slower, slower), fail_on_regression=True)
    begin = " ".join(read(report_to_html(worse)).text).partition("Find an op")[0]
    assert "a float32: max_abs 1 -> 2 since the last run, and 1 more" in begin
    assert "2 regressions." in begin
    quiet = " ".join(read(report_to_html(base)).text)
    assert "Failures" not in quiet


def test_a_folded_failure_says_what_its_cases_share_unless_most_do_not() -> None:
    def lead(cards: list[FailureCard]) -> tuple[str, bool]:
        (card,) = cards
        return card.lead, card.common

    last = ("wrong in the last column",)
    wide = [failed("a", n, shape=(3, 200 + n), notes=last) for n in range(4)]
    narrow = [passed("a", 10 + n, shape=(3, 5 + n)) for n in range(12)]
    report = report_of([*wide, *narrow])
    assert lead(html_writer.failure_cards(report, 9)[0]) == (last[0], True), "none is stated"
    members = tuple(("float32", str(case.case.seed)) for case in wide)
    text = "fails when N is above 100, confirmed by 4 of 4 new cases inside, 0 of 4 outside"
    cause = Cause("N is above 100", text, (), Counts(4, 4, 0, 4), members)
    told = [replace(result, causes=(cause,)) for result in report.run.results]
    report = replace(report, run=replace(report.run, results=tuple(told)))
    found, common = lead(html_writer.failure_cards(report, 9)[0])
    assert common
    assert found == f"{text}: wrong in the last column"
    crashed = failed("a", 1, "line 1\nline 2", kind=FailureKind.EXECUTION, verdict=Verdict.ERROR,
                     stderr="Traceback")  # fmt: skip
    assert lead(html_writer.failure_cards(report_of([crashed]), 9)[0]) == ("line 1 line 2", True)


def test_nothing_in_a_name_turns_the_text_around_it() -> None:
    turning = "\u202e\u2066\u200f\u061c"
    page = report_to_html(report_of([failed(f"a{turning}", 1, turning)]))
    assert not set(turning) & set(page)
    assert "\\x202e" in page


def test_a_report_on_nothing_is_a_page_too() -> None:
    text = " ".join(read(report_to_html(report_of([]))).text)
    assert "nothing validated" in text
    assert "No op was checked." in text


def test_the_matrix_counts_every_case_once() -> None:
    report = sample()
    found = html_writer.matrix(report)
    assert sum(sum(cell[4:]) for cell in found["cells"]) == len(report.cases)
    softmax = [c for c in found["cells"] if found["ops"][c[0]] == "softmax"]
    assert [c[4:] for c in softmax] == [[1, 2, 0, 0]]


def test_heat_maps_cover_each_cell_once() -> None:
    picture = Picture(rows=("0011", "0666", "1010"))
    drawn = html_writer.heat_map(picture)
    seen: dict[tuple[int, int], str] = {}
    for level, path in drawn.paths:
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            for column in range(int(x), int(x) + int(width)):
                assert (column, int(y)) not in seen
                seen[column, int(y)] = level
    assert "".join(seen[x, y] for y in range(3) for x in range(4)) == "001106661010"
