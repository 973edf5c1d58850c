"""A reference that refuses dtypes is treated, and quoted, alike by every command."""

from __future__ import annotations

import json
import re

import pytest
from mini_workspace import Mini

pytestmark = pytest.mark.ci

CAUSES = False

REFUSES = """
def reference(x):
    raise TypeError(f"no {x.dtype} here")
"""


def test_run_and_fuzz_tell_the_same_refusal(mini: Mini) -> None:
    mini.write("ref.py", REFUSES)
    mini.edit("gpuemu.toml", '"scripts/scale_ref.py:reference"', '"ref.py:reference"')
    run = mini.command("run", "scale", "--format", "json", code=None)
    fuzz = mini.command("fuzz", "scale", "-n", "3", "--format", "json", code=None)
    told = {tuple(sorted(set(re.findall(r"no float\d+ here", d.stdout)))) for d in (run, fuzz)}
    assert told == {("no float32 here",)}
    assert json.loads(run.stdout)["results"][0]["verdict"] == "error"
