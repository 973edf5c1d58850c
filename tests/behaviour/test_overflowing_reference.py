"""A right op that fails beside a reference which overflows: the failure names the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
from mini_workspace import Mini, make_one_op

pytestmark = pytest.mark.ci

OVERFLOWS = "the reference itself overflows in float64, in `exp` of "


@pytest.fixture
def softplus(tmp_path: Path) -> Mini:
    return make_one_op(
        tmp_path,
        takes="x",
        op="return np.logaddexp(x, np.float32(0)).astype(x.dtype)",
        reference="return np.log(1 + np.exp(x))",
        schema='dims = { N = [64] }\ninputs.x = ["N"]\noutput = ["N"]',
        strategy="wide",
    )


def test_run_and_fuzz_blame_the_reference(softplus: Mini) -> None:
    assert OVERFLOWS in softplus.command("run", code=1).stdout
    assert OVERFLOWS in softplus.command("fuzz", "-n", "30", code=1).stdout
    failure = softplus.command("failures").stdout.splitlines()[1].split()[0]
    assert OVERFLOWS in softplus.command("reproduce", failure, code=1).stdout


def test_a_reference_without_the_overflow_passes(softplus: Mini) -> None:
    (file,) = [path for path in softplus.root.rglob("*.py") if "1 + np.exp" in path.read_text()]
    file.write_text(file.read_text().replace("np.log(1 + np.exp(x))", "np.logaddexp(x, 0)"))
    assert OVERFLOWS not in softplus.command("run").stdout
