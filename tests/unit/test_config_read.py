"""Every key of gpuemu.toml decides something, or whoever writes it is told that it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuemu_flow.config.fields import Key, Table, keys_of, rows_of, table_of
from gpuemu_flow.config.load import check_config
from gpuemu_flow.config.tables import File


def unread(table: type[Table], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Keys that say of themselves that nothing follows from them, in every table of the file."""
    for key in keys_of(table).values():
        here = (*path, key.name)
        if key.unread:
            yield here, key
        inner = table_of(key.type) or rows_of(key.type)
        if inner:
            yield from unread(inner, here)


def test_what_is_unread_is_known_and_says_what_to_do() -> None:
    found = {".".join(path) for path, _ in unread(File)}
    assert found == {
        "kernels.reference", "kernels.tolerances", "kernels.invariants",
    }  # fmt: skip
    assert all(len(key.unread) > 20 for _, key in unread(File))


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
