"""Output and exceptions of an op do not command the log of the job that runs ``ci``."""

from __future__ import annotations

import re

import pytest
from mini_workspace import Mini

from gpuemu_flow.cli.report import FORMATS

COMMAND = "::stop-commands::all"


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(form, marks=() if form in ("text", "junit") else pytest.mark.ci)
        for form in FORMATS
    ],
)
def test_nothing_printed_begins_with_a_command(mini: Mini, form: str) -> None:
    said = "".join(f"a{end}{COMMAND}" for end in "\n\r\x0b\x0c\x85\u2028")
    mini.edit(
        "scripts/scale.py",
        "def scale(x):",
        f"import sys\n\ndef scale(x):\n    print({said!r}, file=sys.stderr)\n"
        f"    print({said!r})\n    raise ValueError({said!r})\n",
    )
    done = mini.command("ci", "scale", "--format", form, code=3)
    for line in re.split("[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", done.stdout + done.stderr):
        assert not line.strip().startswith("::")
    assert "stop-commands" in done.stdout or form == "html"
