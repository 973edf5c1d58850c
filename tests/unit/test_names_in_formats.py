"""Names of ops that look like syntax: whole and at their own place in each format."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from xml.etree import ElementTree

from for_each import for_each
from msgspec.structs import replace
from report_samples import KERNEL, failed, report_of

from gpuemu_flow.cli.report import FORMATS, render
from gpuemu_flow.judge.results import OpResult, Regression
from gpuemu_flow.model.types import Verdict
from gpuemu_flow.report import github
from gpuemu_flow.report.document import FileLine, Report
from gpuemu_flow.report.text import printable

NAMES = (
    "aten::swish", "aten::silu", "aten", "kernel", "kernel swish", "kernel:softmax_kernel", "a.b",
    "::set-output", "::set-output name=x::y", "a,b", "a: b", "with two spaces", "größe→π 数",
    "a|b`c", "[x](y)", "<q>&amp;</q>", "x%0Ay", "warning: x", "##[error]x", "-x", "'q\" q'",
    "{{ x }}",
)  # fmt: skip
DIGITS = {name: number for number, name in enumerate(NAMES, 1)}


def path_of(name: str) -> str:
    return f"scripts/op{DIGITS[name]}.py"


def named(name: str) -> Report:
    """A report in which only one op failed, another is broken, and both got worse."""
    base = report_of([failed(name, 1)])
    broken = OpResult(name, "float16", Verdict.ERROR, reason="its script is gone")
    run = replace(base.run, results=(*base.run.results, broken), kernels=(KERNEL,))
    worse = (
        Regression(name, "float32", what="verdict", old="passed", new="failed", baseline="v1"),
        Regression(
            kernel="softmax_kernel", arch="sm_80", entry=name, what="registers", old=32, new=40,
            message="32 → 40 registers", baseline="v1",
        ),
    )  # fmt: skip
    return replace(
        base,
        run=run,
        places={name: FileLine(path_of(name), DIGITS[name])},
        kernel_places={"softmax_kernel": FileLine("scripts/softmax.cu", 3)},
        regressions=worse,
        fail_on_regression=True,
    )


class _Text(HTMLParser):
    """The text of a page, piece by piece, without its style and script."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tag = tag
        assert tag != "q", "a name became markup"

    def handle_endtag(self, tag: str) -> None:
        self.tag = ""

    def handle_data(self, data: str) -> None:
        if self.tag not in ("style", "script"):
            self.pieces.append(data.strip())


def as_text(name: str) -> None:
    lines = render(named(name), "text").splitlines()
    shown = printable(name)
    assert any(line.split("]")[0] and shown in line for line in lines)
    assert any(
        line == f"regression: {shown} float32: verdict passed -> failed against v1"
        for line in lines
    )
    worse = printable(f"kernel {name} sm_80: 32 → 40 registers against v1")
    assert f"regression: {worse}" in lines
    assert not any(line.lstrip().startswith("::") or "##[" in line for line in lines)


def as_json(name: str) -> None:
    data = json.loads(render(named(name), "json"))
    assert {r["op"] for r in data["results"]} == {name}
    assert [f["op"] for f in data["failures"]] == [name]
    assert (data["failures"][0]["file"], data["failures"][0]["line"]) == (
        path_of(name), DIGITS[name],
    )  # fmt: skip
    op, kernel = data["regressed"]
    assert (op["op"], op["dtype"], op["what"], op["old"], op["new"]) == (
        name, "float32", "verdict", "passed", "failed",
    )  # fmt: skip
    assert (kernel["op"], kernel["kernel"], kernel["entry"]) == ("", "softmax_kernel", name)
    assert (kernel["old"], kernel["new"]) == (32, 40)
    assert data["regressions"] == [op["sentence"], kernel["sentence"]]


def as_junit(name: str) -> None:
    cases = list(ElementTree.fromstring(render(named(name), "junit").encode()).iter("testcase"))
    found = {(c.get("classname"), c.get("name")): [child.tag for child in c] for c in cases}
    assert len(found) == len(cases)
    assert found[f"ops.{name}", f"{name}[float32-3x5-contiguous-uniform-1]"] == ["failure"]
    assert found[f"ops.{name}", f"{name}[float16]"] == ["error"]
    assert found["regressions", f"{name} float32"] == ["failure"]
    assert found["regressions", f"kernel {name} sm_80"] == ["failure"]


def as_sarif(name: str) -> None:
    (run,) = json.loads(render(named(name), "sarif"))["runs"]
    shown = printable(name)

    def place(result: dict[str, object]) -> tuple[str, int]:
        (location,) = result["locations"]  # type: ignore[misc]
        physical = location["physicalLocation"]  # type: ignore[index]
        return physical["artifactLocation"]["uri"], physical["region"]["startLine"]

    wrong = [r for r in run["results"] if r["ruleId"] == "validation/ToleranceExceeded"]
    assert [(r["properties"]["op"], place(r)) for r in wrong] == [
        (shown, (path_of(name), DIGITS[name]))
    ]
    op, kernel = (r for r in run["results"] if r["ruleId"] == "regression")
    assert (op["properties"]["op"], place(op)) == (shown, (path_of(name), DIGITS[name]))
    assert place(kernel) == ("scripts/softmax.cu", 3)
    assert kernel["properties"]["kernel"] == "softmax_kernel"


def as_markdown(name: str) -> None:
    text = render(named(name), "markdown")
    lines = text.splitlines()
    flat = " ".join(printable(name).split())
    worse = f"{flat} float32: verdict passed -> failed against v1"
    assert worse in text or worse in html.unescape(text)
    table: int | None = None
    for line in lines:
        if not line.startswith("|"):
            table = None
            continue
        columns = len(re.findall(r"(?<!\\)\|", line))
        table = columns if table is None else table
        assert columns == table, "a name made another column"
    assert not any(line.lstrip().startswith("::") for line in lines)


def as_html(name: str) -> None:
    page = _Text()
    page.feed(render(named(name), "html"))
    said = "\n".join(page.pieces)
    assert f"{name} float32: verdict passed -> failed against v1" in said
    assert f"kernel {name} sm_80: 32 → 40 registers against v1" in said
    assert any(name in piece for piece in page.pieces)


def as_annotations(name: str) -> None:
    lines = github.workflow_commands(named(name))
    found = []
    for line in lines:
        matched = re.fullmatch(r"::error ([^:]*)::(.*)", line)
        assert matched is not None, line
        words = dict(pair.split("=", 1) for pair in matched[1].split(","))
        found.append(({key: unescaped(word) for key, word in words.items()}, unescaped(matched[2])))
    place = {"file": path_of(name), "line": str(DIGITS[name])}
    kind = "ToleranceExceeded"
    first, message = found[0]
    assert first == {**place, "title": f"gpuemu-flow: {name}: {kind}"}
    assert message.startswith(f"{name}: {kind} in 1 case: ")
    assert ({**place, "title": f"gpuemu-flow: {name}: error"}, "its script is gone") in found
    op, kernel = (pair for pair in found if pair[0]["title"] == "gpuemu-flow: regression")
    title = "gpuemu-flow: regression"
    assert op == (
        {**place, "title": title}, f"{name} float32: verdict passed -> failed against v1",
    )  # fmt: skip
    assert kernel[0] == {"file": "scripts/softmax.cu", "line": "3", "title": title}


def unescaped(text: str) -> str:
    for code, sign in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(code, sign)
    return text


CHECKS: dict[str, Callable[[str], None]] = {
    "text": as_text, "json": as_json, "junit": as_junit, "sarif": as_sarif,
    "markdown": as_markdown, "html": as_html, "annotations": as_annotations,
}  # fmt: skip


def test_every_format_is_looked_at() -> None:
    assert set(CHECKS) == {*FORMATS, "annotations"}


@for_each("form", CHECKS)
def test_a_name_comes_out_right(form: str) -> None:
    for name in NAMES:
        CHECKS[form](name)
