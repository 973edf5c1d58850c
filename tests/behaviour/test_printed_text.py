"""Output of programs that gave no arrays is shown, and right programs may print as they like."""

from __future__ import annotations

import pytest
from many_ops import Op, Ran, run_once

from gpuemu_flow.workers.channel import TAIL

PRINTS = "print('a line', 'of the op')"
SAID = "stdout:\na line of the op"


def wrong(body: str, **more: str) -> Op:
    return Op(op=body, verdict="error", **more)  # type: ignore[arg-type]


def right(body: str) -> Op:
    return Op(op=f"{body}\nreturn x * 2")


OPS = {
    "none": wrong(f"{PRINTS}\nreturn None"),
    "text": wrong(f"{PRINTS}\nreturn 'a text'"),
    "raises": wrong(f"{PRINTS}\nraise ValueError"),
    "while_loaded": wrong("", text=f"{PRINTS}\nraise ValueError\n"),
    "of_reference": wrong("return x", reference=f"{PRINTS}\nreturn None"),
    "beside": wrong(f"import sys\nsys.stderr.write('beside')\n{PRINTS}"),
    "much": wrong("for n in range(100_000): print('line', n)"),
    "each": wrong("print('size', x.size)"),
    "closed": wrong("import sys\nsys.stdout.close()"),
    # Right ones
    "closes": right("import sys\nsys.stdout.close()"),
    "closes_behind": right(
        "import contextlib, os\nprint('x')\nwith contextlib.suppress(OSError): os.close(1)"
    ),
    "takes_away": right("import sys\nsys.stdout = None"),
    "writes_bytes": right("import sys\nsys.stdout.buffer.write(b'\\xff')"),
    "redirects": right(
        "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as text:\n"
        "    print(2)\nreturn x * int(text.getvalue())"
    ),
    "redirects_descriptor": right(
        "import os, tempfile\nwith tempfile.TemporaryFile() as file:\n"
        "    kept = os.dup(1)\n    os.dup2(file.fileno(), 1)\n"
        "    print(2, flush=True)\n    os.dup2(kept, 1)\n    os.close(kept)\n"
        "    file.seek(0)\n    return x * int(file.read())"
    ),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_once(tmp_path_factory, "printed", OPS)


def test_each_op_gets_its_verdict(ran: Ran) -> None:
    ran.check_all(OPS)


def test_it_is_shown_with_what_gives_no_array(ran: Ran) -> None:
    for name in ("none", "text", "raises", "while_loaded", "of_reference", "beside"):
        assert SAID in ran.failures[name][0]["notes"], name


def test_the_text_of_run_and_fuzz_shows_it(ran: Ran) -> None:
    text = ran.mini.command("run", code=3).stdout
    assert "stdout:\n    | a line of the op\n" in text
    assert "stdout:\n    | a line of the op\n    stderr:\n    | beside\n" in text
    assert "a line of the op" in ran.mini.command("fuzz", "none", "-n", "2", code=3).stdout


def test_of_much_only_the_end_is_kept(ran: Ran) -> None:
    (told,) = (note for note in ran.failures["much"][0]["notes"] if note.startswith("stdout:"))
    assert told.endswith("line 99998\nline 99999")
    assert len(told) <= len("stdout:\n") + TAIL


def test_each_case_shows_its_own(ran: Ran) -> None:
    for failure in ran.failures["each"]:
        assert failure["notes"][-1] == f"stdout:\nsize {failure['shape'][0]}"


def test_a_program_that_closes_its_output_is_shown_its_error(ran: Ran) -> None:
    assert "NoneType" in ran.failures["closed"][0]["message"]


@pytest.mark.ci
def test_a_right_op_may_print_much(tmp_path_factory: pytest.TempPathFactory) -> None:
    much = {"much": right("print('x' * (1 << 27))")}
    run_once(tmp_path_factory, "prints-much", much).check("much", much["much"])
