"""A published gpuemu workspace is hostile text: translated key by key, and never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli

from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.services.problems.gpuemu import import_gpuemu
from gpuemu_flow.services.problems.model import ImportOutcome, Options

OP = "[[ops]]\nname = 'a'\nreference = 'ref.py'\nop_script = 'op.py'\n"
META: dict[str, Any] = {
    "kernel": "kernel.py",
    "reference": "ref.py",
    "op_schema": {
        "dims": [{"name": "N", "candidates": [1, 7]}],
        "inputs": [{"name": "x", "dims": ["N"]}],
    },
    "tolerances": {"f32": 1e-3},
}


def imported(root: Path, text: str | None, into: Path | None = None) -> ImportOutcome:
    for name in ("ref.py", "op.py"):
        (root / name).write_text(f"raise SystemExit({name!r})\n")
    if text is not None:
        (root / "gpuemu.toml").write_text(text)
    return import_gpuemu(root, Options(into=into or root), lambda _: None)


def corpus(root: Path, about: object, kernel: str = "def run(inputs): ...\n") -> ImportOutcome:
    (root / "op").mkdir()
    (root / "op" / "meta.json").write_text(about if isinstance(about, str) else json.dumps(about))
    (root / "op" / "kernel.py").write_text(kernel)
    return imported(root, None)


def config(found: ImportOutcome) -> dict[str, Any]:
    return tomli.loads(found.files["gpuemu.toml"].decode())


def reasons(found: ImportOutcome) -> str:
    return "\n".join(f"{one.what}: {one.reason}" for one in found.left)


@pytest.mark.parametrize(
    ("head", "keys", "dtypes", "expected"),
    [
        ("", "", ["float32"], {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-3}),
        ("[validation]\n", "", ["float32"], {"float32": 1e-5}),
        ("[validation]\ndtypes = ['f16', 'f32']\n", "", ["float16", "float32"],
         {"float16": 1e-5, "float32": 1e-5}),
        ("[validation.tolerances]\nfloat32 = 0.5\n", "", ["float32"], {"float32": 0.5}),
        ("[validation.tolerances]\nfloat32 = 0.5\n", "tolerances = { f16 = 0.25 }",
         ["float16", "float32"], {"float16": 0.25, "float32": 0.5}),
    ],
)  # fmt: skip
def test_an_op_is_judged_by_the_tolerances_that_it_had(
    tmp_path: Path, head: str, keys: str, dtypes: list[str], expected: dict[str, float]
) -> None:
    found = config(imported(tmp_path, head + OP + keys))
    op = found["ops"][0]
    assert op.get("dtypes", found["validation"]["dtypes"]) == dtypes
    shared, own = found["validation"].get("tolerances", {}), op.get("tolerances", {})
    assert {**shared, **own} == {key: {"atol": at, "rtol": 0.0} for key, at in expected.items()}
    assert found["validation"]["check_nan"] is found["validation"]["check_inf"] is True


def test_keys_without_a_meaning_are_named_with_their_line(tmp_path: Path) -> None:
    text = OP + "frameworks = ['pytorch']\nxla_compatible = false\ncolour = 'red'\ntimeout = 'no'\n"
    found = imported(tmp_path, text)
    said = reasons(found)
    for line, key in ((5, "frameworks"), (6, "xla_compatible"), (7, "colour"), (8, "timeout")):
        assert f"gpuemu.toml:{line}: " in said
        assert key in said
    assert set(config(found)["ops"][0]) == {"name", "reference", "op", "tolerances"} - {
        "tolerances"
    }


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("[[ops]]\nname = 'a'\nreference = 'gone.py'\n", "there is no file gone.py"),
        ("[[ops]]\nname = 'a'\n", "no reference"),
        ("[[ops]]\nreference = 'ref.py'\n", "no name"),
        ("[[ops]]\nname = 'quick'\nreference = 'ref.py'\n", "rename it"),
        ("[[ops]]\nname = 'a'\nreference = '../out.py'\n", "lies outside"),
        ("[[ops]]\nname = 'a'\nreference = 'link.py'\n", "lies outside"),
        ("[[ops]]\nname = 'a'\nreference = 'ref.py'\nop_script = 'python ref.py'\n", "would pass"),
        ("[[ops]]\nname = 'a'\nreference = 'ref.py'\ninput_names = ['x', 'x']\n", "one name"),
        (OP + OP, "of this name already"),
        ("[[kernels]]\nname = 'k'\nsource = 'gone.ptx'\n", "gone.ptx"),
        ("[[kernels]]\nname = 'k'\n", "names no file"),
    ],
)
def test_an_op_that_cannot_be_had_is_left_out(tmp_path: Path, op: str, reason: str) -> None:
    root = tmp_path / "inside"
    root.mkdir()
    (tmp_path / "out.py").write_text("")
    (root / "link.py").symlink_to(tmp_path / "out.py")
    found = imported(root, op)
    assert reason in reasons(found)
    assert len(found.taken) == (1 if op == OP + OP else 0)


def test_what_only_a_client_runs_is_kept_for_it(tmp_path: Path) -> None:
    found = imported(tmp_path, OP + "[[ops]]\nname = 'b'\nreference = 'ref.py'\n")
    assert [one["name"] for one in config(found)["ops"]] == ["a", "b"]
    assert [one.source.name for one in found.taken] == ["a"]
    assert "kept for clients" in reasons(found)


def test_absolute_paths_of_another_machine_are_found_by_their_ends(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other.py").write_text("")
    text = OP.replace("'ref.py'", "'/home/someone/corpus/deep/other.py'")
    assert config(imported(tmp_path, text))["ops"][0]["reference"] == "deep/other.py"


def test_programs_below_the_new_workspace_are_read_in_place(tmp_path: Path) -> None:
    root = tmp_path / "old"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "mod.py").write_text("")
    found = imported(root, OP.replace("'ref.py'", "'pkg.mod:f'"), into=tmp_path)
    assert set(found.files) == {"gpuemu.toml"}
    op = config(found)["ops"][0]
    assert (op["op"], op["reference"]) == ("old/op.py", "old/pkg/mod.py:f")


def test_copies_are_whole_files_and_the_new_workspace_is_none_of_them(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "mine.py").write_text("")
    (tmp_path / ".gpuemu").mkdir()
    (tmp_path / ".gpuemu" / "db").write_text("")
    (tmp_path / "large.bin").write_bytes(b"0" * (1 << 21))
    found = imported(tmp_path, OP, into=tmp_path / "work")
    assert set(found.files) == {"ref.py", "op.py", "gpuemu.toml"}
    assert "large.bin" in reasons(found)


@pytest.mark.parametrize("text", ["[", "a = 1\n\x00", "[validation]\n[validation]\n"])
def test_a_file_that_is_no_toml_is_an_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        imported(tmp_path, text)
    assert caught.value.problems[0].line >= 0


def test_an_op_of_the_corpus_is_taken(tmp_path: Path) -> None:
    about = {**META, "name": "rows/good", "description": "rows", "seeds": [4], "odd": 1}
    found = corpus(tmp_path, about)
    op = config(found)["ops"][0]
    assert (op["name"], op["op"], op["reference"]) == ("rows/good", "op/kernel.py:run", "ref.py")
    assert op["schema"] == {"dims": {"N": [1, 7]}, "inputs": {"x": ["N"]}}
    assert op["tolerances"] == {"float32": {"atol": 1e-3, "rtol": 0.0}}
    said = reasons(found)
    assert "seeds: stored cases" in said
    assert "odd: no meaning" in said
    assert "description" not in said


def test_a_kernel_that_asks_for_a_gpu_gets_a_stand_in(tmp_path: Path) -> None:
    triton = "import triton\ndef run(inputs): ...\n"
    found = corpus(tmp_path, {**META, "requires_gpu": True}, triton)
    op = config(found)["ops"][0]
    assert op["op"]["triton_if"] == ["triton"]
    assert op["op"]["path"] in found.files
    assert "adapters/stand_in.py" in found.files


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ("[", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "no object"),
        ('{"kernel": NaN}', "no JSON"),
        ({**META, "kernel": 3}, "names no kernel"),
        ({**META, "kernel": "/etc/passwd"}, "outside"),
        ({**META, "kernel": "../../../../../../../etc/passwd"}, "outside"),
        ({**META, "reference": "gone.py"}, "there is no file"),
        ({**META, "op_schema": None}, "no op_schema"),
        ({**META, "op_schema": {"inputs": 3}}, "no lists"),
        ({**META, "op_schema": {"dims": [], "inputs": [{"name": "x", "dims": ["N"]}]}}, "N"),
        ({**META, "tolerances": {"float32": "big"}}, "tolerances"),
        ({**META, "tolerances": {"float33": 1.0}}, "tolerances"),
    ],
)
def test_a_corpus_that_cannot_be_read_is_left_with_a_reason(
    tmp_path: Path, about: object, reason: str
) -> None:
    found = corpus(tmp_path, about)
    assert not found.taken
    assert "gpuemu.toml" not in found.files
    assert reason in reasons(found)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("def other(inputs): ...", "no function run"),
        ("def (", "does not parse"),
    ],
)
def test_a_kernel_that_cannot_run_here_is_left_with_a_reason(
    tmp_path: Path, kernel: str, reason: str
) -> None:
    assert reason in reasons(corpus(tmp_path, META, kernel))
