"""A run names the listed sizes that no case had, since an op may be wrong for these alone."""

from __future__ import annotations

from mini_workspace import Mini

CONFIG = """\
[project]
name = "sizes"

[validation]
dtypes = ["float32"]
cases = 4

[[ops]]
name = "scale"
op = "scale.py:scale"
reference = "ref.py:scale"
schema = { dims = { N = [5, 9] }, inputs = { x = ["N"] }, output = ["N"] }
"""


def write(mini: Mini) -> None:
    mini.write("gpuemu.toml", CONFIG)
    mini.write("scale.py", "def scale(x):\n    return x * 3 + (len(x) > 5)\n")
    mini.write("ref.py", "def scale(x):\n    return x * 3\n")


def test_a_pass_names_the_sizes_that_no_case_had(mini: Mini) -> None:
    write(mini)
    shown = mini.command("run").stdout
    (result,) = mini.run()["results"]
    assert result["verdict"] == "passed" and result["cached"]
    assert result["untried"] == ["N = 9"]
    line = "not tried: scale with N = 9; raise `cases`, or list fewer sizes"
    assert line in shown
    assert line in mini.command("report").stdout
    mini.edit("gpuemu.toml", "cases = 4", "cases = 8")
    report = mini.run(code=1)
    (result,) = report["results"]
    assert (result["verdict"], result["untried"]) == ("failed", [])


def test_many_ops_share_one_line(mini: Mini) -> None:
    write(mini)
    head, mark, op = CONFIG.partition("[[ops]]")
    ops = [mark + op.replace('"scale"', f'"scale_{number}"', 1) for number in range(4)]
    mini.write("gpuemu.toml", head + "".join(ops))
    shown = mini.command("run").stdout
    assert shown.count("not tried: ") == 1
    assert "not tried: some listed sizes of 4 ops (scale_0, scale_1, scale_2, …); raise" in shown
