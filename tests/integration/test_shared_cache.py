"""A shared cache: what a fresh clone takes from it, and what it must not take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from built_workspace import OUTPUT, make_built
from cache_server import requests, served
from mini_workspace import Mini
from shared_workspace import clone, make_original, programs, results, slugs
from stand_in_tools import StandIns
from stored_snapshot import results as stored_results

KEY = "a signing key of some length"


@pytest.fixture
def share(tmp_path: Path) -> Path:
    folder = tmp_path / "share"
    folder.mkdir()
    return folder


@pytest.fixture
def original(tmp_path: Path, share: Path) -> Mini:
    return make_original(tmp_path / "original", f"file://{share}")


def test_a_fresh_clone_runs_no_program(original: Mini, tmp_path: Path, share: Path) -> None:
    first = original.run()
    assert set(programs(original)) == {"op", "reference"}
    other = clone(original, tmp_path / "clone")
    second = other.run()
    assert programs(other) == []
    assert results(second) == results(first)
    assert stored_results(other) == stored_results(original)
    assert second["problems"] == []
    assert other.command("run").stdout.startswith("up to date")
    assert not list((other.root / ".gpuemu-cache").glob("blobs/*/*")), "no tensor was needed"


def test_the_same_over_http(tmp_path: Path, share: Path) -> None:
    with served(share) as url:
        original = make_original(tmp_path / "original", f"{url}/a/prefix")
        first = original.run()
        assert set(programs(original)) == {"op", "reference"}
        other = clone(original, tmp_path / "clone")
        second = other.run()
    assert programs(other) == []
    assert results(second) == results(first)
    assert stored_results(other) == stored_results(original)
    assert {path.parts[-3:-1] for path in share.glob("*/*/*/*")} == {
        ("prefix", "ac"),
        ("prefix", "cas"),
    }
    puts = [path for method, path, _ in requests(share) if method == "PUT"]
    assert len(puts) == len(set(puts)), "nothing is stored twice"


CHANGES: dict[str, Callable[[Mini], object]] = {
    "a file that it read": lambda w: w.write("scripts/factor.txt", "4"),
    "a module that it imported": lambda w: w.edit("scripts/helper.py", "x * f", "x + f"),
    "a file that was not there": lambda w: w.write("scripts/negate", ""),
    "a folder that it listed": lambda w: w.write("scripts/parts/two", ""),
    "a variable that it read": lambda w: w.env.update(SCALE_BIAS="1"),
    "its own source": lambda w: w.edit("scripts/scale.py", "parts - 1", "parts + 7"),
    "the reference": lambda w: w.edit("scripts/scale_ref.py", "x * 3", "x * 5"),
    "a link in place of a file": lambda w: _link(w, "scripts/factor.txt", "5"),
    "a package in place of a module": lambda w: w.write(
        "scripts/helper/__init__.py", "def times(x, factor):\n    return x - factor\n"
    ),
}


def _link(workspace: Mini, name: str, text: str) -> None:
    path = workspace.root / name
    path.unlink()
    path.with_suffix(".other").write_text(text)
    path.symlink_to(path.with_suffix(".other").name)


def test_what_differs_in_the_clone_is_run(original: Mini, tmp_path: Path) -> None:
    assert original.run()["results"][0]["verdict"] == "passed"
    programs(original)
    for number, (change, edit) in enumerate(CHANGES.items()):
        other = clone(original, tmp_path / f"clone{number}")
        edit(other)
        assert other.run(code=None)["results"][0]["verdict"] == "failed", change
        assert programs(other), change


@pytest.mark.ci
def test_each_branch_finds_its_own(original: Mini, tmp_path: Path) -> None:
    original.run()
    other = clone(original, tmp_path / "other")
    other.write("scripts/factor.txt", "4")
    failed = other.run(code=1)
    programs(original)
    for place, source, code, known in (("a", original, 0, None), ("b", other, 1, failed)):
        found = clone(source, tmp_path / place).run(code=code)
        assert known is None or results(found) == results(known)
    assert programs(original) == []


def test_reading_stores_nothing(original: Mini, tmp_path: Path, share: Path) -> None:
    original.edit("gpuemu.toml", 'remote_mode = "write"', 'remote_mode = "read"')
    original.run()
    assert not list(share.iterdir())
    original.command("clean", "--cache")
    original.env["GPUEMU_CACHE_MODE"] = "write"
    original.run()
    assert list(share.iterdir())


def test_an_op_that_is_edited_takes_the_outputs_of_the_reference(
    original: Mini, tmp_path: Path
) -> None:
    original.run()
    other = clone(original, tmp_path / "clone")
    other.run()
    programs(original)
    other.edit("scripts/scale.py", "parts - 1", "parts - 1 + 1e-7")
    again = other.run()
    assert again["results"][0]["verdict"] == "passed"
    assert not [name for name in again["executed"] if name.startswith("reference:")]
    assert "op" in programs(other)


def test_signed_entries_count_where_a_key_is_set(original: Mini, tmp_path: Path) -> None:
    original.run()
    programs(original)
    unsigned = clone(original, tmp_path / "unsigned", GPUEMU_CACHE_KEY=KEY)
    report = unsigned.run()
    assert slugs(report) == ["cache-remote-unsigned"]
    assert set(programs(original)) == {"op", "reference"}
    # It has stored them anew, with its signature.
    signed = clone(original, tmp_path / "signed", GPUEMU_CACHE_KEY=KEY)
    assert slugs(signed.run()) == []
    assert programs(original) == []
    other_key = clone(original, tmp_path / "other-key", GPUEMU_CACHE_KEY=f"another, {KEY}")
    other_key.env["GPUEMU_CACHE_MODE"] = "read"
    assert slugs(other_key.run()) == ["cache-remote-unsigned"]
    assert set(programs(original)) == {"op", "reference"}
    no_key = clone(original, tmp_path / "no-key")
    assert slugs(no_key.run()) == []
    assert programs(original) == []


def test_a_signature_holds_under_its_own_name_only(tmp_path: Path, share: Path) -> None:
    original = make_original(tmp_path / "original", f"file://{share}", GPUEMU_CACHE_KEY=KEY)
    original.run()
    entries = sorted((share / "ac").iterdir())
    contents = [path.read_bytes() for path in entries]
    for path, data in zip(entries, contents[1:] + contents[:1], strict=True):
        path.write_bytes(data)
    programs(original)
    other = clone(original, tmp_path / "clone")
    assert slugs(other.run()) == ["cache-remote-unsigned"]
    assert set(programs(other)) == {"op", "reference"}


def test_a_wrong_blob_is_refused_and_reported_once(
    original: Mini, tmp_path: Path, share: Path
) -> None:
    original.run()
    other = clone(original, tmp_path / "clone")
    other.run()
    for path in (share / "cas").iterdir():
        path.write_bytes(path.read_bytes()[:-1] + b"\x7f")
    programs(original)
    other.edit("scripts/scale.py", "parts - 1", "parts - 1 + 1e-7")
    report = other.run()
    assert slugs(report) == ["cache-remote-damaged"]
    assert report["results"][0]["verdict"] == "passed"
    assert "reference" in programs(other)


def test_the_file_of_a_workspace_cannot_send_the_header(tmp_path: Path, share: Path) -> None:
    with served(share) as url:
        secret = "Bearer of a secret"
        original = make_original(
            tmp_path / "original", url, GPUEMU_CACHE_HEADER=f"Authorization: {secret}"
        )
        assert slugs(original.run()) == ["cache-remote-ungranted"]
        assert not any(secret in headers.values() for _, _, headers in requests(share))
        granted = clone(original, tmp_path / "clone", GPUEMU_CACHE_REMOTE=url)
        assert slugs(granted.run()) == []
    assert requests(share)[-1][2]["authorization"] == secret


def test_what_the_environment_says_wrongly(original: Mini) -> None:
    original.env = {"GPUEMU_CACHE_REMOTE": "https://user:secret@host/x"}
    done = original.command("run", code=2)
    assert "cache-remote-value" in done.stderr
    assert "secret" not in done.stderr


def test_a_share_that_is_not_mounted(tmp_path: Path) -> None:
    original = make_original(tmp_path / "original", f"file://{tmp_path}/mnt/share")
    report = original.run()
    assert report["results"][0]["verdict"] == "passed"
    assert slugs(report) == ["cache-remote-unreachable"]
    assert not (tmp_path / "mnt").exists()


def test_outputs_of_rules(tmp_path: Path, share: Path) -> None:
    original = make_built(tmp_path / "original")
    original.env |= {"GPUEMU_CACHE_REMOTE": f"file://{share}", "GPUEMU_CACHE_MODE": "write"}
    mark = f"open({str(tmp_path / 'marks')!r}, 'a').write('rule ')"
    original.edit("make.py", "lines =", f"{mark}\nlines =")
    original.edit("make.py", "str(sum", 'str(int(Path("extra").read_text()) + sum')
    original.write("extra", "0")
    config = original.root / "gpuemu.toml"
    config.write_text(config.read_text() + '\n[sandbox]\nmode = "off"\n')
    first = original.run()
    assert programs(original) == ["rule"]
    (original.root / OUTPUT).unlink()
    other = clone(original, tmp_path / "clone")
    second = other.run()
    assert programs(other) == []
    assert results(second) == results(first)
    assert (other.root / OUTPUT).read_text() == "3"
    # What the rule reads and does not name.
    (other.root / OUTPUT).unlink()
    third = clone(other, tmp_path / "third")
    third.write("extra", "1")
    assert third.run(code=1)["results"][0]["verdict"] == "failed"
    assert programs(third) == ["rule"]


def test_no_cache_is_named_and_nothing_is_imported(tmp_path: Path) -> None:
    workspace = make_original(tmp_path / "w", "file:///nowhere")
    workspace.env["GPUEMU_CACHE_REMOTE"] = ""
    config = workspace.root / "gpuemu.toml"
    config.write_text(config.read_text().partition("\n[cache]")[0])
    code = (
        "import sys; from gpuemu_flow.cli.main import run_cli; sys.argv[1:] = ['run'];\n"
        "try: run_cli()\n"
        "except SystemExit: pass\n"
        "print(sorted(m for m in sys.modules if m.startswith('gpuemu_flow.store.remote')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=workspace.root, env=workspace.environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"


def test_inputs_that_a_function_returns(tmp_path: Path, share: Path) -> None:
    original = make_original(tmp_path / "original", f"file://{share}")
    mark = f"open({str(tmp_path / 'marks')!r}, 'a').write('generator ')"
    original.write("scripts/gen.py", GENERATOR.format(mark=mark))
    original.write("scripts/low.txt", "1")
    generated = 'x = { dims = ["N"], generate = "scripts/gen.py:x" } }'
    original.edit("gpuemu.toml", 'x = ["N"] }', generated)
    first = original.run()
    assert "generator" in programs(original)
    other = clone(original, tmp_path / "clone")
    assert results(other.run()) == results(first)
    assert programs(other) == []
    assert stored_results(other) == stored_results(original)
    third = clone(original, tmp_path / "third")
    third.write("scripts/low.txt", "2")
    third.run()
    assert "generator" in programs(third)
    assert stored_results(third) != stored_results(original)


GENERATOR = """\
import os

{mark}
HERE = os.path.dirname(os.path.abspath(__file__))


def x(rng, shape, dtype):
    with open(os.path.join(HERE, "low.txt")) as file:
        low = float(file.read())
    return (rng.random(shape) + low).astype(dtype)
"""


def test_kernels_that_a_compiler_made(tmp_path: Path, share: Path) -> None:
    tools = StandIns(tmp_path / "tools")
    tools.add("nvcc")
    original = make_original(tmp_path / "original", f"file://{share}", PATH=tools.path)
    original.write("k.cu", "// makes softmax\n")
    (original.root / "link").symlink_to("nowhere")
    config = original.root / "gpuemu.toml"
    config.write_text(f'{config.read_text()}\n[[kernels]]\nname = "k"\nsource = "k.cu"\n')
    first = original.run(code=None)
    assert tools.calls() == ["nvcc"]
    other = clone(original, tmp_path / "clone")
    assert results(other.run(code=None)) == results(first)
    assert stored_results(other) == stored_results(original)
    assert tools.calls() == []
    third = clone(original, tmp_path / "third")
    third.write("k.cu", "// makes layernorm\n")
    third.run(code=None)
    assert tools.calls() == ["nvcc"]
    fourth = clone(original, tmp_path / "fourth")
    fourth.write("what/nobody/names.cuh", "")
    fourth.run(code=None)
    assert tools.calls() == ["nvcc"]
    fifth = clone(original, tmp_path / "fifth")
    (fifth.root / "link").unlink()
    (fifth.root / "link").symlink_to("elsewhere")
    fifth.run(code=None)
    assert tools.calls() == ["nvcc"]
