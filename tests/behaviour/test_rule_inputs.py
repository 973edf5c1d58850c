"""A rule's command that reads what its inputs do not name is told at once, and leaves no pass."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from many_ops import Op, make_ops
from mini_workspace import Mini
from once import once

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux"),
]
READ = 'import sys; open(sys.argv[1], "w").write(open(sys.argv[2]).read())'
SCHEMA = 'dims = { N = [3] }\ninputs = { x = ["N"] }\noutput = ["N"]'


@dataclass(frozen=True)
class Rule:
    """A shell command that makes `made/NAME` of `2`, until `file` holds a 3."""

    command: str
    told: str = ""
    inputs: str = "[]"
    file: str = ""
    files: dict[str, str] = field(default_factory=dict)
    more: str = ""


def copies(way: str, told: str, **more: Any) -> Rule:
    """A rule that copies `told`."""
    return Rule(way, told, file=told, files={told: "2\n"}, **more)


RULES = {
    "plain": copies("cat plain/in > made/plain", "plain/in"),
    "python": copies(f"{sys.executable} -c '{READ}' made/python py/in", "py/in"),
    "sourced": Rule(". ./sh/lib; echo $V > made/sourced", "sh/lib", file="sh/lib",
                    files={"sh/lib": "V=2\n"}),
    "started": Rule("sh -c sh/tool > made/started", "sh/tool", file="sh/tool",
                    files={"sh/tool": "#!/bin/sh\necho 2\n"}),
    "linked": copies("ln -sf $PWD/far/in made/l; cat made/l > made/linked; rm made/l", "far/in"),
    "included": Rule(
        "cc -o made/cc csrc/a.c && ./made/cc > made/included; rm made/cc", "more/size.h",
        inputs='["csrc/*"]', file="more/size.h",
        files={"csrc/a.c": '#include <stdio.h>\n#include "../more/size.h"\n'
                           'int main(void) { printf("%d", SIZE); }\n',
               "more/size.h": "#define SIZE 2\n"}),
    "declared": Rule("cat decl/in > made/declared", inputs='["decl/*"]', file="decl/in",
                     files={"decl/in": "2\n"}),
    "by_link": Rule("cat real/../by/in > made/by_link", inputs='["by/*"]', file="by/in",
                    files={"by/in": "2\n", "real/x": ""}),
    "of_a_need_s_need": Rule("cat made/declared > made/of_a_need_s_need", "made/declared",
                             file="decl/in", more='needs = ["of_a_need"]'),
    "of_a_need": Rule("cat made/declared > made/of_a_need", file="decl/in",
                      more='needs = ["declared"]'),
    "its_own": Rule("echo 2 > made/t; cat made/t > made/its_own; rm made/t"),
    "looks": Rule("test -e looked/in; ls looked > /dev/null; echo 2 > made/looks",
                  files={"looked/in": ""}),
}  # fmt: skip
TOLD = [name for name, rule in RULES.items() if rule.told]


@dataclass(frozen=True)
class Told:
    """The reports before and after an edit of all that the commands read."""

    first: dict[str, Any]
    again: dict[str, Any]
    edited: dict[str, Any]


@pytest.fixture(scope="module", params=["auto", "off"])
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    mode = str(request.param)
    return once(tmp_path_factory, f"rule-inputs-{mode}", lambda folder: tell(folder, mode))


def tell(folder: Path, mode: str) -> Told:
    mini = make(folder, mode)
    first, again = mini.run(code=None), mini.run(code=None)
    for rule in RULES.values():
        if rule.file:
            place = mini.root / rule.file
            place.write_text(place.read_text().replace("2", "3"))
    return Told(first, again, mini.run(code=None))


def make(folder: Path, mode: str) -> Mini:
    ops = {
        name: Op(op=f"return x * np.float32(open('made/{name}').read())", schema=SCHEMA,
                 keys=f'needs = ["{name}"]')
        for name in RULES
    }  # fmt: skip
    rules = "".join(
        f"[[rules]]\nname = '{name}'\nshell = true\ncommand = '''{rule.command}'''\n"
        f"inputs = {rule.inputs}\noutputs = ['made/{name}']\n{rule.more}\n"
        for name, rule in RULES.items()
    )
    files = {path: text for rule in RULES.values() for path, text in rule.files.items()}
    head = f'[sandbox]\nmode = "{mode}"\n{rules}'
    mini = make_ops(folder, ops, 'cases = 1\ntolerance = "table"', head, files)
    (mini.root / "sh/tool").chmod(0o755)
    return mini


def warnings(report: dict[str, Any]) -> dict[str, str]:
    found = [p for p in report["problems"] if p["slug"] == "rule-undeclared-input"]
    return {p["message"].partition(" ")[0].removeprefix("build:"): p["message"] for p in found}


def test_all_pass_and_the_same_is_told_while_nothing_runs(told: Told) -> None:
    assert {r["verdict"] for r in told.first["results"]} == {"passed"}
    assert told.again["executed"] == []
    assert warnings(told.again) == warnings(told.first)


@pytest.mark.parametrize("name", TOLD)
def test_what_was_read_and_not_declared_is_named_in_the_same_run(told: Told, name: str) -> None:
    assert RULES[name].told in warnings(told.first)[name]


def test_what_is_declared_or_only_looked_at_is_not_told(told: Told) -> None:
    assert set(warnings(told.first)) == set(TOLD)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.file])
def test_an_edit_of_it_leaves_no_pass(told: Told, name: str) -> None:
    if name == "included" and shutil.which("cc") is None:
        pytest.skip("no compiler here")
    (result,) = [r for r in told.edited["results"] if r["op"] == name]
    assert result["verdict"] == "failed"


def test_what_another_rule_makes_has_to_be_waited_for(tmp_path: Path) -> None:
    """Otherwise it may be the file of an earlier run."""
    op = Op(op="return x * np.float32(open('b').read())", schema=SCHEMA, keys='needs = ["b"]')
    rules = "".join(
        f"[[rules]]\nname = '{name}'\nshell = true\ncommand = '{command} > {name}'\n"
        f"inputs = []\noutputs = ['{name}']\n"
        for name, command in {"a": "echo 2", "b": "cat a"}.items()
    )
    mini = make_ops(tmp_path / "w", {"it": op}, "cases = 1", rules)
    mini.command("run", "a")
    (problem,) = [p for p in mini.run(code=3)["problems"] if p["slug"] == "needs-missing"]
    assert "build:b read a" in problem["message"]
    mini.edit("gpuemu.toml", "outputs = ['b']", "outputs = ['b']\nneeds = ['a']")
    assert mini.run()["problems"] == []
