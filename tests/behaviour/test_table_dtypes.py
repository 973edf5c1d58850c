"""Under ``tolerance = "table"`` the reference runs in the case's dtype, and numpy may widen it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import make_one_op

SCHEMA = """
    dims = { M = [1, 5], K = [3, 8] }
    inputs = { a = ["M", "K"], b = ["K", "M"] }
    output = ["M", "M"]
    """


@pytest.mark.parametrize(
    ("dtype", "returned", "verdict"),
    [
        ("bfloat16", "a.dtype", "passed"),
        ("bfloat16", "np.float64", "error"),
        ("float16", "np.float32", "error"),  # numpy's own product is float16
    ],
)
def test_a_product_may_have_the_dtype_of_the_case(
    tmp_path: Path, dtype: str, returned: str, verdict: str
) -> None:
    mini = make_one_op(
        tmp_path / "w",
        takes="a, b",
        op=f"return (a.astype(np.float32) @ b.astype(np.float32)).astype({returned})",
        reference="return a @ b",
        schema=SCHEMA,
        strategy="normal",
    )
    mini.edit("gpuemu.toml", 'dtypes = ["float32"]', f'dtypes = ["{dtype}"]\ntolerance = "table"')
    (result,) = mini.run(code=None)["results"]
    assert result["verdict"] == verdict
    fuzzed = mini.command("fuzz", "-n", "4", code=None)
    assert (fuzzed.returncode == 0) == (verdict == "passed")
    assert ("DTypeMismatch" in fuzzed.stdout) == (verdict == "error")
