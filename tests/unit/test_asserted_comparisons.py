"""Tests of other projects are text: comparisons, inputs and sizes are read, nothing is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli

from gpuemu_flow.problems.asserted import import_pytest
from gpuemu_flow.problems.model import ImportOutcome
from gpuemu_flow.problems.options import Options

HEAD = "import pytest\nimport torch\nimport numpy as np\nfrom kernels import kernel, naive\n"
ROWS = '@pytest.mark.parametrize("M, N", [(4, 33), (1024, 256)])\n'


def imported(folder: Path, test: str, **options: Any) -> ImportOutcome:
    (folder / "kernels.py").write_text("raise SystemExit('imported')\n")
    (folder / "test_it.py").write_text(HEAD + test)
    return import_pytest(folder / "test_it.py", Options(**options), lambda _: None)


def test(body: str, *, rows: str = ROWS, arguments: str = "M, N") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{rows}def test_it({arguments}):\n{lines}"


test.__test__ = False  # type: ignore[attr-defined]


def op(found: ImportOutcome) -> dict[str, Any]:
    ops: list[dict[str, Any]] = tomli.loads(found.files["gpuemu.toml"].decode())["ops"]
    assert len(ops) == 1
    return ops[0]


def program(found: ImportOutcome, word: str) -> str:
    (path,) = [path for path in found.files if f"/{word}_" in path]
    return found.files[path].decode()


def reasons(found: ImportOutcome) -> str:
    return "\n".join(f"{one.what}: {one.reason}" for one in found.left)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("torch.randn(M, N, device='cuda')", {"dims": ["M", "N"], "nonfinite": False}),
        ("torch.randn((N, 2 * M))", {"dims": ["N", "2*M"], "nonfinite": False}),
        ("torch.rand(size=(M, N))", {"dims": ["M", "N"], "range": [0.0, 1.0], "nonfinite": False}),
        ("torch.rand(M, N).to(torch.float16)",
         {"dims": ["M", "N"], "range": [0.0, 1.0], "nonfinite": False}),
        ("torch.randint(0, N, (M,))", {"dims": ["M"], "dtype": "int64", "range": [0, "N-1"]}),
        ("torch.randint(7, (M, N))", {"dims": ["M", "N"], "dtype": "int64", "range": [0, 6]}),
        ("torch.randint(-3, 4, (M, N), dtype=torch.int8)",
         {"dims": ["M", "N"], "dtype": "int8", "range": [-3, 3]}),
        ("torch.randperm(M * N)", {"dims": ["M*N"], "dtype": "int64", "kind": "permutation"}),
        ("torch.ones(M, N)", {"dims": ["M", "N"], "kind": "positive"}),
        ("torch.zeros(M, N)", {"dims": ["M", "N"], "nonfinite": False}),
        ("torch.empty(M, N).uniform_(-2, 2)",
         {"dims": ["M", "N"], "range": [-2.0, 2.0], "nonfinite": False}),
        ("np.random.randn(M, N)", {"dims": ["M", "N"], "nonfinite": False}),
        ("np.random.uniform(-1.0, 3.0, size=(M, N))",
         {"dims": ["M", "N"], "range": [-1.0, 3.0], "nonfinite": False}),
        ("np.random.randint(5, size=(M, N))",
         {"dims": ["M", "N"], "dtype": "int64", "range": [0, 4]}),
        ("np.random.randint(1, N, (M,))", {"dims": ["M"], "dtype": "int64", "range": [1, "N-1"]}),
    ],
)  # fmt: skip
def test_an_input_is_read(tmp_path: Path, made: str, expected: dict[str, Any]) -> None:
    also = "y = torch.randn(M, N)\n" if "dtype" in expected or "2*M" in str(expected) else ""
    body = f"{also}x = {made}\nz = {'y' if also else 'x'}\n"
    found = imported(tmp_path, test(f"{body}assert torch.allclose(kernel(x, z), naive(x, z))"))
    assert op(found)["schema"]["inputs"]["x"] == expected, reasons(found)


def test_sizes_are_scaled_and_odd_ones_added_where_the_tests_have_some(tmp_path: Path) -> None:
    body = "x = torch.randn(M, N)\ntorch.testing.assert_close(kernel(x), naive(x))"
    found = imported(tmp_path, test(body), small=True)
    assert op(found)["schema"]["dims"] == {"M": [4, 128], "N": [1, 7, 33, 128]}
    assert found.taken[0].scaled == {"M": (1024, 128), "N": (256, 128)}
    given = imported(tmp_path, test(body), small=False, varied=False)
    assert op(given)["schema"]["dims"] == {"M": [4, 1024], "N": [33, 256]}


def test_sizes_that_are_tied_stay_tied(tmp_path: Path) -> None:
    rows = '@pytest.mark.parametrize("M, N", [(8, 4), (6, 3), (12, 2)])\n'
    body = "x = torch.randn(M, N)\ntorch.testing.assert_close(kernel(x), naive(x))"
    assert op(imported(tmp_path, test(body, rows=rows)))["schema"]["constraints"] == ["M % N == 0"]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("kernel(x)", "naive(x)"),
        ("torch.softmax(x, 0)", "kernel(x)"),
        ("y_ref", "y_tri"),
        ("y_tri", "y_ref"),
    ],
)
def test_the_actual_value_is_told_from_the_expected_one(
    tmp_path: Path, left: str, right: str
) -> None:
    body = f"""\
x = torch.randn(M, N)
y_ref = naive(x)
y_tri = kernel(x)
assert torch.allclose({left}, {right})"""
    found = imported(tmp_path, test(body))
    assert "kernel(x)" in program(found, "op")
    assert "kernel(x)" not in program(found, "ref")


def test_gradients_are_cut_apart(tmp_path: Path) -> None:
    body = """\
x = torch.randn(M, N, requires_grad=True)
dy = torch.randn_like(x)
y = kernel(x)
y.backward(dy)
dx, x.grad = x.grad.clone(), None
y_ref = naive(x)
y_ref.backward(dy)
torch.testing.assert_close(dx, x.grad)"""
    found = imported(tmp_path, test(body))
    actual, expected = program(found, "op"), program(found, "ref")
    assert "y.backward(dy)" in actual
    assert "naive" not in actual
    assert "y_ref.backward(dy)" in expected
    assert "kernel(" not in expected
    assert "_given['x'].requires_grad_(True)" in actual


def test_a_buffer_is_written_by_the_kernel_alone(tmp_path: Path) -> None:
    body = """\
x = torch.randn(M, N)
out = torch.empty_like(x)
ref = torch.zeros_like(x)
kernel(x, out)
naive(x, ref)
torch.testing.assert_close(out, ref)"""
    found = imported(tmp_path, test(body))
    assert "kernel(x, out)" in program(found, "op")
    assert "naive" not in program(found, "op")
    assert "kernel(" not in program(found, "ref")
    assert list(op(found)["schema"]["inputs"]) == ["x"]


def test_dtypes_and_choices(tmp_path: Path) -> None:
    marks = """\
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("mode", [None, "a b"])
"""
    body = "x = torch.randn(M, N).to(dtype)\nassert torch.allclose(kernel(x, flag, mode), naive(x))"
    found = imported(tmp_path, test(body, rows=marks + ROWS, arguments="M, N, dtype, flag, mode"))
    one = op(found)
    assert one["dtypes"] == ["float16", "float32"]
    assert one["schema"]["scalars"] == {"flag": [True, False], "mode_choice": [0, 1]}
    assert "mode = (None, 'a b',)[_given['mode_choice']]" in program(found, "op")
    assert "tolerances" not in one


@pytest.mark.parametrize(
    ("compared", "expected"),
    [
        ("torch.allclose(a, b, atol=1e-2, rtol=0)", {"atol": 1e-2, "rtol": 0.0}),
        ("torch.allclose(a, b, 1e-3)", {"atol": 1e-8, "rtol": 1e-3}),
        ("torch.allclose(a, b)", {"atol": 1e-8, "rtol": 1e-5}),
        ("(a - b).abs().max() < 0.5", {"atol": 0.5, "rtol": 0.0}),
        ("torch.allclose(a, b, atol=tol, rtol=tol)", {"atol": 0.25, "rtol": 0.25}),
        ("torch.allclose(a, b, atol=far)", {}),
    ],
)
def test_tolerances_are_taken_over_where_that_is_asked_for(
    tmp_path: Path, compared: str, expected: dict[str, float]
) -> None:
    made = "tol = 0.25\nfar = naive(1)\nx = torch.randn(M, N)\n"
    body = f"{made}a = kernel(x)\nb = naive(x)\nassert {compared}"
    found = imported(tmp_path, test(body), keep_tolerances=True)
    tolerances = op(found).get("tolerances")
    if not expected:
        assert tolerances is None
        assert "tolerance is not told" in str(found.taken[0].notes)
    else:
        assert tolerances == {"float32": expected}


@pytest.mark.parametrize(
    ("body", "arguments", "reason"),
    [
        ("x = torch.randn(M, N)\nkernel(x)", "M, N", "no comparison"),
        ("x = torch.randn(M, N)\nassert torch.allclose(x * 2, x + x)", "M, N", "no function"),
        ("x = torch.ones(3)\nassert torch.allclose(kernel(x), naive(M))", "M, N", "no tensor"),
        ("x = torch.randn(f())\nassert torch.allclose(kernel(x), naive(x))", "M, N", "sizes"),
        ("x = torch.randn(M)\nassert torch.allclose(kernel(x, fix), naive(x))", "M, fix",
         "fixture"),
        ("x = torch.randn(M)\ny = kernel(x)\nassert torch.allclose(y, y + naive(x))", "M, N",
         "function under test"),
        ("x = torch.randn(M*N)\nassert torch.allclose(kernel(x, N), naive(x))", "M, N",
         "axis of N"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_left_with_its_line(
    tmp_path: Path, body: str, arguments: str, reason: str
) -> None:
    found = imported(tmp_path, test(body, arguments=arguments))
    assert not found.files
    assert reason in reasons(found)
    assert "test_it.py:" in found.left[0].what


@pytest.mark.parametrize(
    "values",
    ["[1 for _ in range(10**9)]", "range(0, 10, 0)", "LOOP", "[(i, i) for i in range(9) if i]",
     "list(product(range(999), range(999), range(999)))", "open('/etc/passwd')", "[(1,)]", "[]"],
)  # fmt: skip
def test_values_that_cannot_be_read_are_left(tmp_path: Path, values: str) -> None:
    rows = f'LOOP = LOOP + LOOP\n@pytest.mark.parametrize("M, N", {values})\n'
    body = "x = torch.randn(M, N)\nassert torch.allclose(kernel(x), naive(x))"
    found = imported(tmp_path, test(body, rows=rows))
    assert not found.files
    assert found.left


@pytest.mark.parametrize("text", ["def (", "\x00", "(" * 5000, "x = " + "-" * 90_000 + "1"])
def test_a_file_that_does_not_parse_is_left(tmp_path: Path, text: str) -> None:
    (tmp_path / "test_it.py").write_text(text)
    found = import_pytest(tmp_path, Options(), lambda _: None)
    assert "parse" in reasons(found) or not found.left
    assert not found.files


def test_skips_are_said(tmp_path: Path) -> None:
    body = """\
if M > N:
    pytest.skip("tall")
x = torch.randn(M, N)
assert torch.allclose(kernel(x, M, N), naive(x))"""
    found = imported(tmp_path, test(body))
    assert found.taken[0].notes == ("line 7: not kept: skipped if M > N",)


def test_modules_beside_a_test_are_copied_with_what_they_import(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text("import triton\nfrom .more import inner\nimport far\n")
    (package / "more.py").write_text("inner = 1\n")
    (tmp_path / "far.py").write_text("")
    (tmp_path / "other.py").write_text("")
    body = "x = torch.randn(M, N)\nassert torch.allclose(kernel(x), naive(x))"
    text = HEAD.replace("from kernels", "from pkg.ops") + test(body)
    (tmp_path / "test_it.py").write_text(text)
    found = import_pytest(tmp_path, Options(), lambda _: None)
    assert {"pkg/__init__.py", "pkg/ops.py", "pkg/more.py", "far.py"} <= set(found.files)
    assert "other.py" not in found.files
    assert op(found)["op"]["kind"] == "triton"


def test_too_many_modules_are_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuemu_flow.problems.asserted_modules.MOST_MODULES", 1)
    (tmp_path / "more.py").write_text("VALUE = 1\n")
    (tmp_path / "naive.py").write_text("import more\n\ndef naive(x):\n    return x\n")
    (tmp_path / "kernels.py").write_text("import naive\n\ndef kernel(x):\n    return x\n")
    (tmp_path / "test_it.py").write_text(
        "import torch\nfrom kernels import kernel\nfrom naive import naive\n\n"
        "def test_it():\n    x = torch.randn(4, 33)\n"
        "    torch.testing.assert_close(kernel(x), naive(x))\n"
    )
    found = import_pytest(tmp_path / "test_it.py", Options(), lambda _: None)
    assert "it imports more than 1 modules of its own" in reasons(found)
    assert found.taken == ()
