"""Wrong quantisers fail, and right ones pass however they scale, on every strategy of inputs.

The suite takes one seed, smaller tensors, and of the right and the wrong ones a sample that has
each family and each way to scale; all right ones are run on extremes: see `whole`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import Mini
from whole import WHOLE, sample

pytestmark = pytest.mark.timeout(900)

REFERENCES = """
import ml_dtypes
import numpy as np

def scale(x, axis, steps):
    found = np.abs(x).max(axis, keepdims=True) / steps
    return np.where(found == 0, 1.0, found)

def kept(values):
    return np.clip(values, -128, 127).astype(np.int8)

def rows(x):
    return kept(np.rint(x / scale(x, -1, 127.0)))

def tensor(x):
    return kept(np.rint(x / scale(x, None, 127.0)))

def with_scale(x):
    return rows(x), scale(x, -1, 127.0).astype(np.float32)

def fake(x):
    found = scale(x, -1, 127.0)
    return np.clip(np.rint(x / found), -128, 127) * found

def float8(x):
    return np.clip(x / scale(x, -1, 448.0), -448, 448).astype(ml_dtypes.float8_e4m3fn)

def zero_point(x, axis):
    low = np.minimum(x.min(axis, keepdims=True), 0.0)
    found = (np.maximum(x.max(axis, keepdims=True), 0.0) - low) / 255.0
    found = np.where(found == 0, 1.0, found)
    zero = np.clip(np.rint(-low / found), 0, 255)
    return np.clip(np.rint(x / found) + zero, 0, 255).astype(np.uint8)

def rows_from(x):
    return zero_point(x, -1)

def tensor_from(x):
    return zero_point(x, None)
"""
OPS = """
import ml_dtypes
import numpy as np
F = np.float32

def scale(x, axis=-1, steps=127):
    found = np.abs(x).max(axis, keepdims=True) / F(steps)
    return np.where(found == 0, F(1), found).astype(F)

def inverse(x, axis=-1, steps=127):
    largest = np.abs(x).max(axis, keepdims=True)
    return F(steps) / np.where(largest == 0, F(steps), largest)

def kept(values, low=-128, high=127):
    return np.clip(values, low, high).astype(np.int8)

def rows_divides(x):
    return kept(np.rint(x / scale(x)))

def rows_multiplies(x):
    return kept(np.rint(x * (F(1) / scale(x))))

def rows_inverts(x):
    return kept(np.rint(x * inverse(x)))

def rows_flushes(x):
    least = np.finfo(F).smallest_normal
    x = np.where(np.abs(x) < least, F(0), x)
    found = scale(x)
    return kept(np.rint(np.where(found < least, F(0), x / found)))

def tensor_divides(x):
    return kept(np.rint(x / scale(x, None)))

def tensor_multiplies(x):
    return kept(np.rint(x * (F(1) / scale(x, None))))

def tensor_inverts(x):
    return kept(np.rint(x * inverse(x, None)))

def with_scale_divides(x):
    return rows_divides(x), scale(x)

def with_scale_multiplies(x):
    return rows_multiplies(x), scale(x)

def fake_divides(x):
    return np.clip(np.rint(x / scale(x)), -128, 127) * scale(x)

def fake_multiplies(x):
    return np.clip(np.rint(x * (F(1) / scale(x))), -128, 127) * scale(x)

def to_float8(values):
    return np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn)

def float8_divides(x):
    return to_float8(x / scale(x, -1, 448))

def float8_multiplies(x):
    return to_float8(x * (F(1) / scale(x, -1, 448)))

def bounds(x, axis=-1):
    low = np.minimum(x.min(axis, keepdims=True), F(0))
    found = (np.maximum(x.max(axis, keepdims=True), F(0)) - low) / F(255)
    return low, np.where(found == 0, F(1), found).astype(F)

def byte(values, high=255):
    return np.clip(values, 0, high).astype(np.uint8)

def rows_from_divides(x, axis=-1):
    low, found = bounds(x, axis)
    return byte(np.rint(x / found) + np.clip(np.rint(-low / found), 0, 255))

def rows_from_multiplies(x, axis=-1):
    low, found = bounds(x, axis)
    times = F(1) / found
    return byte(np.rint(x * times) + np.clip(np.rint(-low * times), 0, 255))

def tensor_from_divides(x):
    return rows_from_divides(x, None)

def tensor_from_multiplies(x):
    return rows_from_multiplies(x, None)

def rows_WRONG_half_up(x):
    return kept(np.floor(x / scale(x) + F(0.5)))

def rows_WRONG_half_away(x):
    q = x / scale(x)
    return kept(np.trunc(q + np.copysign(F(0.5), q)))

def rows_WRONG_truncates(x):
    return kept(np.trunc(x / scale(x)))

def rows_WRONG_high(x):
    return kept(np.rint(x / scale(x)), high=126)

def rows_WRONG_low(x):
    return kept(np.rint(x / scale(x)), low=-126)

def rows_WRONG_wraps(x):
    return np.rint(x / scale(x, -1, 128)).astype(np.int32).astype(np.int8)

def rows_WRONG_steps(x):
    return kept(np.rint(x / scale(x, -1, 128)))

def rows_WRONG_axis(x):
    return kept(np.rint(x / scale(x, 0)))

def rows_WRONG_tensor(x):
    return kept(np.rint(x / scale(x, None)))

def rows_WRONG_no_abs(x):
    found = x.max(-1, keepdims=True) / F(127)
    return kept(np.rint(x / np.where(found == 0, F(1), found)))

def rows_WRONG_eps(x):
    return kept(np.rint(x / (np.abs(x).max(-1, keepdims=True) / F(127) + F(1e-3))))

def tensor_WRONG_truncates(x):
    return kept(np.trunc(x / scale(x, None)))

def tensor_WRONG_rows(x):
    return kept(np.rint(x / scale(x)))

def tensor_WRONG_high(x):
    return kept(np.rint(x / scale(x, None)), high=126)

def with_scale_WRONG_no_eps(x):
    found = np.abs(x).max(-1, keepdims=True) / F(127)
    return kept(np.nan_to_num(np.rint(x / found))), found

def fake_WRONG_no_eps(x):
    found = np.abs(x).max(-1, keepdims=True) / F(127)
    return np.clip(np.rint(x / found), -128, 127) * found

def fake_WRONG_half_away(x):
    q = x / scale(x)
    return np.clip(np.trunc(q + np.copysign(F(0.5), q)), -128, 127) * scale(x)

def fake_WRONG_half_up(x):
    return np.clip(np.floor(x / scale(x) + F(0.5)), -128, 127) * scale(x)

def fake_WRONG_truncates(x):
    return np.clip(np.trunc(x / scale(x)), -128, 127) * scale(x)

def float8_WRONG_no_eps(x):
    return to_float8(x / (np.abs(x).max(-1, keepdims=True) / F(448)))

def float8_WRONG_clamp(x):
    return to_float8(np.clip(x / scale(x, -1, 448), -240, 240))

def rows_from_WRONG_zero(x):
    low, found = bounds(x)
    return byte(np.rint(x / found) + np.clip(np.trunc(-low / found), 0, 255))

def rows_from_WRONG_high(x):
    low, found = bounds(x)
    return byte(np.rint(x / found) + np.clip(np.rint(-low / found), 0, 255), 254)

def rows_from_WRONG_truncates(x):
    low, found = bounds(x)
    return byte(np.trunc(x / found) + np.clip(np.rint(-low / found), 0, 255))

def rows_from_WRONG_rounds_once(x):
    low, found = bounds(x)
    return byte(np.rint(x / found - low / found))

def rows_from_WRONG_positive(x):
    low = x.min(-1, keepdims=True)
    found = (x.max(-1, keepdims=True) - low) / F(255)
    found = np.where(found == 0, F(1), found)
    return byte(np.rint(x / found) + np.clip(np.rint(-low / found), 0, 255))

def tensor_from_WRONG_high(x):
    low, found = bounds(x, None)
    return byte(np.rint(x / found) + np.clip(np.rint(-low / found), 0, 255), 254)

def tensor_from_WRONG_truncates(x):
    low, found = bounds(x, None)
    return byte(np.trunc(x / found) + np.clip(np.rint(-low / found), 0, 255))
"""
FAMILIES = ("rows_from", "tensor_from", "with_scale", "float8", "fake", "rows", "tensor")
HELPERS = ("scale", "inverse", "kept", "to_float8", "bounds", "byte")
NAMES = [line[4:].split("(")[0] for line in OPS.splitlines() if line.startswith("def ")]
QUANTISERS = [name for name in NAMES if name not in HELPERS]
RIGHT = [name for name in QUANTISERS if "_WRONG_" not in name]
WRONG = [name for name in QUANTISERS if "_WRONG_" in name]
ROWS, COLUMNS = (64, 300) if WHOLE else (12, 140)


def family_of(name: str) -> str:
    return next(each for each in FAMILIES if name.startswith(f"{each}_"))


def way_of(name: str) -> str:
    return name.rpartition("_")[2]


def verdicts(
    folder: Path, names: list[str], seed: int, validation: str = "", *, exit_code: int
) -> dict[str, str]:
    """Run a workspace of some of them."""
    (folder / "ref.py").write_text(REFERENCES)
    (folder / "ops.py").write_text(OPS)
    lines = ['[project]\nname = "quantisers"\nversion = "1"']
    lines.append(f'[validation]\nseed = {seed}\ndtypes = ["float32"]\n{validation}')
    for name in names:
        family = family_of(name)
        scales = ', s = ["M", 1]' if family == "with_scale" else ""
        lines.append(
            f'[[ops]]\nname = "{name}"\nop = "ops.py:{name}"\nreference = "ref.py:{family}"\n'
            'input_names = ["x"]\n[ops.schema]\n'
            f"dims = {{ M = {{ min = 1, max = {ROWS} }}, N = {{ min = 2, max = {COLUMNS} }} }}\n"
            f'inputs = {{ x = ["M", "N"] }}\noutputs = {{ y = ["M", "N"]{scales} }}'
        )
    (folder / "gpuemu.toml").write_text("\n".join(lines))
    results = Mini(folder).run("--no-confirm", code=exit_code)["results"]
    return {each["op"]: each["verdict"] for each in results}


@pytest.mark.parametrize("seed", [1, 42] if WHOLE else [42])
@pytest.mark.ci
def test_wrong_quantisers_fail_and_right_ones_pass(tmp_path: Path, seed: int) -> None:
    names = [*sample(RIGHT, 3, family_of, way_of), *sample(WRONG, 4, family_of)]
    found = verdicts(tmp_path, names, seed, exit_code=1)
    wanted = {name: "failed" if "_WRONG_" in name else "passed" for name in names}
    assert found == wanted


@pytest.mark.ci
def test_right_quantisers_pass_where_only_extremes_are_drawn(tmp_path: Path) -> None:
    validation = f'strategies = ["extremes"]\ncases = {40 if WHOLE else 12}'
    found = verdicts(tmp_path, RIGHT, 7, validation, exit_code=0)
    assert found == dict.fromkeys(RIGHT, "passed")
