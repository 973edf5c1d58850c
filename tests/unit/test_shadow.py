"""The float32 shadow: what is replaced, what is left alone, and that lines stay where they were."""

from __future__ import annotations

import numpy as np
import pytest
from for_each import for_each

from gpuemu_flow.numerics.shadow import shadow_source

HEAD = "import numpy as np\n"


def maker(name: str) -> str:
    """Return the expression that a shadow calls in place of a function of numpy's."""
    return f'__import__("gpuemu_flow.numerics.single").numerics.single.MAKERS["{name}"]'


def one_line(line: str, head: str = HEAD) -> str:
    """The shadow of one line under `head`; the line itself when there is no shadow."""
    shadow = shadow_source(head + line + "\n")
    return line if shadow is None else shadow[len(head) : -1]


@for_each(
    ("line", "shadow"),
    [
        ("x = np.float64(1)", "x = np.float32(1)"),
        ("x.astype(np.float64)", "x.astype(np.float32)"),
        ("x.astype('float64')", "x.astype('float32')"),
        ('x.astype("float64", copy=False)', 'x.astype("float32", copy=False)'),
        ("x.astype(float)", "x.astype('float32')"),
        ("x.astype('f8')", "x.astype('f4')"),
        ("x.astype('<f8')", "x.astype('<f4')"),
        ("x.astype('d')", "x.astype('f')"),
        ("x.astype('double')", "x.astype('float32')"),
        ("x.astype(dtype=np.double)", "x.astype(dtype=np.float32)"),
        ("np.sum(x, dtype=float)", "np.sum(x, dtype='float32')"),
        ("np.zeros(3, float)", maker("zeros") + "(3, 'float32')"),
        ("np.full(3, 1, float)", maker("full") + "(3, 1, 'float32')"),
        ("np.asarray(x, np.float64)", maker("asarray") + "(x, np.float32)"),
        ("x * np.linspace(0, 1, 3)", f"x * {maker('linspace')}(0, 1, 3)"),
        ("f(lambda np: np.zeros(3), np.float64)", "f(lambda np: np.zeros(3), np.float32)"),
        ("np.frombuffer(b, '<f8')", "np.frombuffer(b, '<f4')"),
        ("np.dtype('>f8')", "np.dtype('>f4')"),
        ("np.fft.fft(x).astype(np.complex128)", "np.fft.fft(x).astype(np.complex64)"),
        ("t = {'float64': np.float64}", "t = {'float32': np.float32}"),
        ("np.float64(np.float64(1))", "np.float32(np.float32(1))"),
        ("é = 'ü'; x = np.float64(é)  # float64", "é = 'ü'; x = np.float32(é)  # float64"),
    ],
)
def test_replaced_in_numpy_code(line: str, shadow: str) -> None:
    assert one_line(line) == shadow


@pytest.mark.parametrize(
    ("line", "shadow"),
    [
        ("x.double()", "x.float()"),
        ("x.to(torch.float64)", "x.to(torch.float32)"),
        ("x.to(torch.double)", "x.to(torch.float32)"),
        ("x.to(float)", "x.to(torch.float32)"),
        ("torch.zeros(3, dtype=float)", "torch.zeros(3, dtype=torch.float32)"),
        ("torch.sum(x, dtype=torch.float64)", "torch.sum(x, dtype=torch.float32)"),
    ],
)
def test_replaced_in_torch_code(line: str, shadow: str) -> None:
    assert one_line(line, "import torch\n") == shadow
    renamed = one_line(line.replace("torch.", "th."), "import torch as th\n")
    assert renamed == shadow.replace("torch.", "th.")


def test_imported_names_are_replaced_with_their_imports() -> None:
    source = "from numpy import float32, float64 as wide, float64\ny = float64(wide(x))\n"
    shadow = "from numpy import float32, float32 as wide, float32\ny = float32(wide(x))\n"
    assert shadow_source(source) == shadow


@for_each(
    "line",
    [
        "x = float(y)",
        "isinstance(x, float)",
        "mode = 'd'",
        "open(path, 'd')",
        "x = np.float32(1)",
        "# np.float64",
        "'''Computed in float64.'''",
        "print('in float64 now')",
        "x = 1.0",
        "f'{x:d} float64'",
        "def f(float64): return float64",
        "x = b'float64'",
    ],
)
def test_left_alone(line: str) -> None:
    assert one_line(line) == line


@pytest.mark.parametrize("source", ["def (", "\x00", "x = '", "(" * 5000, ""])
def test_what_does_not_parse_has_no_shadow(source: str) -> None:
    assert shadow_source(source) is None


def test_lines_and_formatting_stay() -> None:
    source = (
        '"""float64 reference."""\r\n'
        "import numpy as np\r\n"
        "\r\n"
        "def softmax(\r\n"
        "    x,   # input\r\n"
        "):\r\n"
        "\tx = np.asarray(\r\n"
        "\t\tx, dtype=np.float64)\x0c\r\n"
        '\te = np.exp(x - x.max(-1, keepdims=True)); s = "\\n"\r\n'
        "\treturn e / e.sum(-1, keepdims=True)\r\n"
    )
    shadow = shadow_source(source)
    assert shadow is not None
    wanted = source.replace("np.float64", "np.float32").replace("np.asarray", maker("asarray"))
    assert shadow == wanted


def test_the_shadow_computes_in_float32() -> None:
    source = HEAD + "def f(x):\n    return np.cumsum(x.astype(np.float64)) / np.float64(3)\n"
    shadow = shadow_source(source)
    assert shadow is not None
    results = []
    for text in (source, shadow):
        namespace: dict[str, object] = {}
        exec(text, namespace)
        function = namespace["f"]
        assert callable(function)
        results.append(function(np.linspace(0, 1, 1000, dtype=np.float32)))
    assert [r.dtype for r in results] == [np.float64, np.float32]
    assert not np.array_equal(results[0].astype(np.float32), results[1])
    assert np.allclose(results[0], results[1], rtol=1e-4)
