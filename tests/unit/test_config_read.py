"""Every key of gpuemu.toml decides something, or whoever writes it is told that it does not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuemu_flow
from gpuemu_flow.config import model, model_kernels, model_ops
from gpuemu_flow.config.keys import Key, Section, Tables
from gpuemu_flow.config.load import check_config
from gpuemu_flow.config.lookup import section_at
from gpuemu_flow.config.tables import FILE

ROOT = Path(gpuemu_flow.__file__).parent
HELD_AS = {
    "KernelConfig": r"\bkernel",
    "OpConfig": r"\b(?:op|configured|found|self|subject|programs|_?program)",
    "Build": r"\bbuild",
    "TritonKernel": r"\btriton",
    "Project": r"\bproject",
    "Daemon": r"\bdaemon",
    "Storage": r"\bstorage",
    "Ci": r"\bci",
    "Policies": r"\bpolicies",
    "Cache": r"\bcache",
}
"""By the names that hold them in the code, so that another thing's attribute is none of theirs."""

DECIDED_IN_PARSING = {
    "OpConfig.execution_mode",  # becomes the program, or the reason why there is none
    "OpConfig.nan_policy", "OpConfig.inf_policy", "OpConfig.tolerances", "OpConfig.invariants",
    "OpConfig.shape_preserved_input", "OpConfig.tolerance",  # by `config.slices`
    "Project.allow_outside",  # by `config.paths`
    "Project.framework",  # read from the file itself by `init --ci`: the model has a default
    "KernelConfig.file", "KernelConfig.line",  # the parser's own
}  # fmt: skip


def unread(section: Section, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Keys that say of themselves that nothing follows from them, in every table of the file."""
    for key in section.keys:
        here = (*path, key.name)
        if key.unread:
            yield here, key
        kind = key.type.table if isinstance(key.type, Tables) else key.type
        if isinstance(kind, Section):
            yield from unread(kind, here)


def keys(section: Section) -> Iterator[Key]:
    for key in section.keys:
        yield key
        kind = key.type.table if isinstance(key.type, Tables) else key.type
        if isinstance(kind, Section):
            yield from keys(kind)


def code(*, config: bool) -> str:
    files = [p for p in ROOT.rglob("*.py") if (p.parent.name == "config") == config]
    files += [] if config else [*(ROOT.parent / "tasks").rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def test_every_key_is_taken_up_by_the_parser_or_says_that_it_is_unread() -> None:
    tables = {path.name for path in ROOT.joinpath("config").glob("tables*.py")}
    parsing = "\n".join(
        path.read_text(encoding="utf-8")
        for path in ROOT.joinpath("config").glob("*.py")
        if path.name not in tables
    )
    parsing += " check_nan: check_inf: "  # read as f"check_{kind}"
    forgotten = {
        key.name
        for key in keys(FILE)
        if not key.unread and not re.search(rf"[\"']{key.name}[\"']|\b{key.name}\b\s*[:=]", parsing)
    }
    assert not forgotten, "no parser reads them: read them, or give them `unread`"


@pytest.mark.parametrize("name", HELD_AS)
def test_every_field_of_the_model_is_used_outside_of_the_parser(name: str) -> None:
    made = next(getattr(m, name) for m in (model, model_ops, model_kernels) if hasattr(m, name))
    quiet = {key.name for _, key in unread(FILE)}
    text = code(config=False)
    slices = ROOT.joinpath("config", "slices.py").read_text(encoding="utf-8")
    forgotten = {
        f"{name}.{field.name}"
        for field in dataclasses.fields(made)
        if field.name not in quiet
        and f"{name}.{field.name}" not in DECIDED_IN_PARSING
        and not re.search(rf"{HELD_AS[name]}\w*\.{field.name}\b", text + slices)
    }
    assert not forgotten


def test_what_is_unread_is_known_and_says_what_to_do() -> None:
    found = {".".join(path) for path, _ in unread(FILE)}
    assert found == {
        "kernels.reference", "kernels.tolerances", "kernels.invariants",
    }  # fmt: skip
    assert all(len(key.unread) > 20 for _, key in unread(FILE))
    assert section_at(("kernels",)) is not None


CONFIG = """\
[project]
name = "p"
[[ops]]
name = "a"
reference = "ref.py"
{op}
[[kernels]]
name = "k"
ptx = "k.ptx"
{kernel}
"""


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("", 'reference = "nonexistent.py"'),
        ("", "tolerances = { float32 = 1e-6 }"),
        ("", 'invariants = ["finite"]'),
        ("", "num_warps = 4"),
        ("", 'signature = { x = "*fp32" }'),
        ('op = "op.py:f"\nframeworks = ["pytorch"]', ""),
        ('op = "op.py:f"\nframework = "jax"', ""),
        ('op = "op.py:f"\nxla_compatible = true', ""),
        ('op = { kind = "callable", path = "op.py", function = "f", grid = ["1"] }', ""),
    ],
)
def test_a_value_that_nothing_follows_from_is_an_error(
    tmp_path: Path, op: str, kernel: str
) -> None:
    for name in ("op.py", "ref.py"):
        tmp_path.joinpath(name).write_text("def f(input):\n    return input\n")
    tmp_path.joinpath("k.ptx").write_text("")
    path = tmp_path / "gpuemu.toml"
    path.write_text(CONFIG.format(op=op, kernel=kernel))
    for strict in (False, True):
        (found,) = check_config(path, strict=strict)
        assert (found.slug, found.warning) == ("config-unread-key", False)
        assert found.line
        assert found.hint


def test_the_default_written_out_is_no_claim(tmp_path: Path) -> None:
    tmp_path.joinpath("ref.py").write_text("def reference(input):\n    return input\n")
    tmp_path.joinpath("k.ptx").write_text("")
    path = tmp_path / "gpuemu.toml"
    path.write_text(
        CONFIG.format(op="xla_compatible = false\nframeworks = []", kernel='reference = ""')
    )
    assert check_config(path, strict=True) == []
