"""Test that an op's standard error is shown once, with paths relative to the workspace."""

from __future__ import annotations

import re

import pytest
from mini_workspace import Mini

OPTIONS = ("--strategy", "special")

CAUSES = False


def test_the_judged_calls_words_alone_are_shown(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import sys

        def scale(x):
            print("about to fail", file=sys.stderr)
            raise ValueError("no")
        """,
    )
    shown = mini.command("fuzz", "scale", "-n", "1", code=3).stdout
    assert shown.count("about to fail") == 1
    assert 'File "scripts/scale.py", line 5' in shown
    assert str(mini.root) not in shown


def test_the_place_of_a_failure_to_load_is_relative(mini: Mini) -> None:
    mini.write("scripts/scale.py", "import nothing_of_this_name\n")
    shown = mini.command("fuzz", "scale", "-n", "1", code=3).stdout
    assert "op-not-loadable" in shown
    assert 'File "scripts/scale.py", line 1' in shown
    assert str(mini.root) not in shown


@pytest.mark.parametrize(
    ("expression", "keys", "code"),
    [
        ("np.nan_to_num(3 * x, nan=0.0, posinf=np.inf, neginf=-np.inf)", ["nan_policy"], 0),
        # So many elements are ignored then that more than a fifth of the cases have no verdict.
        pytest.param("np.clip(3 * x, -3e38, 3e38)", ["inf_policy"], 4, marks=pytest.mark.ci),
    ],
)
def test_where_only_nan_and_inf_differ_a_policy_excuses_it_but_is_not_named(
    mini: Mini, expression: str, keys: list[str], code: int
) -> None:
    mini.write(
        "scripts/scale.py", f"import numpy as np\n\ndef scale(x):\n    return {expression}\n"
    )
    given = [*OPTIONS, "--dtype", "float32", "-n", "30"]
    shown = mini.command("fuzz", "scale", *given, code=1).stdout
    assert "_policy" not in shown and "this passes" not in shown  # what would hide a bug
    config = (mini.root / "gpuemu.toml").read_text()
    lines = "".join(f'{key} = "ignore"\n' for key in keys)
    mini.write("gpuemu.toml", config.replace('name = "scale"\n', f'name = "scale"\n{lines}', 1))
    shown = mini.command("fuzz", "scale", *given, code=code).stdout
    assert "failed" not in shown
    # A pass says of how many cases it says nothing.
    unjudged = re.search(r"(\d+) inconclusive", shown)
    assert unjudged is not None, shown
    told = f"no verdict on {unjudged[1]} of 30 cases; an op passes with up to 20 % of them"
    assert (told in shown) is (code == 0)
