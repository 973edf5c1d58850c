"""Output of programs that gave no arrays is shown, and right programs may print as they like."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

from gpuemu_flow.workers.channel import TAIL

SCHEMA = """
dims = { N = { min = 1, max = 40 } }
inputs = { x = ["N"] }
output = ["N"]
"""
PRINTS = "print('a line', 'of the op')"


def one_op(folder: Path, op: str, reference: str = "return x") -> Mini:
    return make_one_op(folder, takes="x", op=op, reference=reference, schema=SCHEMA)


def notes(mini: Mini) -> list[str]:
    """The notes of the first failure that a run finds."""
    return list(mini.run(code=3)["failures"][0]["notes"])


@pytest.mark.parametrize(
    "end", ["return None", "return 'a text'", "raise ValueError", "return x +"]
)
def test_it_is_shown_with_an_op_that_gives_no_array(tmp_path: Path, end: str) -> None:
    mini = one_op(tmp_path, f"{PRINTS}\n    return None")
    if end == "return x +":  # printed while it is loaded
        mini.write("op.py", f"{PRINTS}\nraise ValueError\n")
    else:
        mini.edit("op.py", "return None", end)
    assert "stdout:\na line of the op" in notes(mini)
    text = mini.command("run", code=3).stdout
    assert "stdout:\n    | a line of the op\n" in text
    fuzzed = mini.command("fuzz", "it", "-n", "2", code=3).stdout
    assert "a line of the op" in fuzzed


def test_it_is_shown_with_a_reference(tmp_path: Path) -> None:
    mini = one_op(tmp_path, "return x", f"{PRINTS}\n    return None")
    assert "stdout:\na line of the op" in notes(mini)


def test_it_stands_beside_what_is_written_to_standard_error(tmp_path: Path) -> None:
    mini = one_op(tmp_path, f"import sys\n    sys.stderr.write('beside')\n    {PRINTS}")
    text = mini.command("run", code=3).stdout
    assert "stdout:\n    | a line of the op\n    stderr:\n    | beside\n" in text


def test_of_much_only_the_end_is_kept(tmp_path: Path) -> None:
    mini = one_op(tmp_path, "for n in range(100_000):\n        print('line', n)")
    (told,) = (note for note in notes(mini) if note.startswith("stdout:"))
    assert told.endswith("line 99998\nline 99999")
    assert len(told) <= len("stdout:\n") + TAIL


def test_each_case_shows_its_own(tmp_path: Path) -> None:
    mini = one_op(tmp_path, "print('size', x.size)")
    for failure in mini.run(code=3)["failures"]:
        assert failure["notes"][-1] == f"stdout:\nsize {failure['shape'][0]}"


RIGHT = {
    "closes it": "import sys\n    sys.stdout.close()\n    return x",
    "closes what is behind it": (
        "import contextlib, os\n    print('x')\n    with contextlib.suppress(OSError):\n"
        "        os.close(1)\n    return x"
    ),
    "takes it away": "import sys\n    sys.stdout = None\n    return x",
    "prints much": "print('x' * (1 << 27))\n    return x",
    "writes bytes": "import sys\n    sys.stdout.buffer.write(b'\\xff')\n    return x",
    "redirects it": (
        "import contextlib, io\n    with contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "        print(2)\n    return x * int(text.getvalue()) / 2"
    ),
    "redirects the descriptor": (
        "import os, tempfile\n    with tempfile.TemporaryFile() as file:\n"
        "        kept = os.dup(1)\n        os.dup2(file.fileno(), 1)\n"
        "        print(2, flush=True)\n        os.dup2(kept, 1)\n        os.close(kept)\n"
        "        file.seek(0)\n        return x * int(file.read()) / 2"
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_op_may_print_as_it_likes(tmp_path: Path, name: str) -> None:
    mini = one_op(tmp_path, RIGHT[name])
    (result,) = mini.run()["results"]
    assert result["verdict"] == "passed"
    assert "passed" in mini.command("fuzz", "it", "-n", "4").stdout


def test_a_program_that_closes_its_output_is_shown_its_error(tmp_path: Path) -> None:
    mini = one_op(tmp_path, "import sys\n    sys.stdout.close()")
    (failure, *_) = json.loads(mini.command("run", "--format", "json", code=3).stdout)["failures"]
    assert "NoneType" in failure["message"]
