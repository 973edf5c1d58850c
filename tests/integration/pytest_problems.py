"""Files of tests as people write them for kernels, each with a right kernel and four wrong ones.

Written for these tests; forms that tutorials and libraries use: parametrised sizes and dtypes,
gradients, out-parameters, shapes of other tensors, integers, several libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TestFile:
    """A problem: a test of ``kernel(...)``, and what kernels return.

    Attributes
    ----------
    signature : str
        Parameters of the kernel.
    right : str
    wrong : tuple of str
    test : str
        ``IMPL`` stands for the decorator with the kernels.
    body : str
        Statements of each kernel before it returns.
    library : str
        ``numpy``, ``torch`` or ``jax``.
    """

    __test__ = False

    signature: str
    right: str
    wrong: tuple[str, str, str, str]
    test: str
    body: str = ""
    library: str = "numpy"

    def write(self, folder: Path, name: str, *, most: int = 4) -> None:
        """Write the kernels and their test."""
        folder.mkdir(parents=True)
        head = {
            "numpy": "import numpy as np\n",
            "torch": "import torch\nimport torch.nn.functional as F\n",
            "jax": "import jax\nimport jax.numpy as jnp\n",
        }[self.library]
        kernels = {"right": self.right}
        kernels |= {f"wrong{at + 1}": one for at, one in enumerate(self.wrong[:most])}
        text = head
        for each, result in kernels.items():
            body = "".join(f"    {line}\n" for line in self.body.splitlines())
            text += f"\n\ndef {each}({self.signature}):\n{body}    return {result}\n"
        (folder / "kernels.py").write_text(text)
        names = ", ".join(f"kernels.{each}" for each in kernels)
        mark = f'@pytest.mark.parametrize("kernel", [{names}])'
        test = self.test.replace("IMPL", mark)
        (folder / f"test_{name}.py").write_text(f"import pytest\nimport kernels\n{head}\n\n{test}")


_NUMPY = """\
@pytest.mark.parametrize("rows, cols", [(4, 33), (128, 256), (1, 7)])
IMPL
def test_{name}(kernel, rows, cols):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((rows, cols)).astype(np.float32)
    expected = {expected}
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-5, atol=1e-5)
"""


def _row_test(name: str, expected: str) -> str:
    return _NUMPY.format(name=name, expected=expected)


_EXP = "np.exp(x - x.max(-1, keepdims=True))"
_MEAN = "(x - x.mean(-1, keepdims=True))"
PYTEST = {
    "softmax": TestFile(
        "x", "e / e.sum(-1, keepdims=True)",
        ("e / e.sum()", "e / (e.sum(-1, keepdims=True) + 1e-2)", "e",
         "e ** 2 / e.sum(-1, keepdims=True)"),
        _row_test("softmax", f"{_EXP} / {_EXP}.sum(-1, keepdims=True)"),
        body=f"e = {_EXP}",
    ),
    "rowsum": TestFile(
        "x", "np.einsum('ij->i', x)",
        ("x[:, :-1].sum(1)", "np.abs(x).sum(1)", "x.sum(1) + 1e-2", "x.sum(1, keepdims=True)"),
        _row_test("rowsum", "x.sum(1)"),
    ),
    "relu_squared": TestFile(
        "x", "np.where(x > 0, x * x, x.dtype.type(0))",
        ("x * x", "np.maximum(x, 0)", "np.maximum(x, 0) ** 2 + 1e-3", "np.maximum(-x, 0) ** 2"),
        _row_test("relu_squared", "np.maximum(x, 0) ** 2"),
    ),
    "layernorm": TestFile(
        "x, weight, bias", f"{_MEAN} / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias",
        (f"{_MEAN} / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight",
         f"{_MEAN} / np.sqrt(x.var(-1, keepdims=True) + 1e-1) * weight + bias",
         "x / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias",
         f"{_MEAN} / np.sqrt(x.var(-1, keepdims=True) + 1e-5) + bias"),
        '''\
def layernorm_ref(x, weight, bias, eps=1e-5):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weight + bias


@pytest.mark.parametrize("hidden", [65, 128])
@pytest.mark.parametrize("batch", [1, 8])
IMPL
def test_layernorm(batch, hidden, kernel):
    np.random.seed(1)
    x = np.random.randn(batch, hidden).astype("float32")
    weight = np.random.rand(hidden).astype("float32")
    bias = np.random.uniform(-1, 1, size=(hidden,)).astype("float32")
    out = kernel(x, weight, bias)
    ref = layernorm_ref(x, weight, bias)
    assert np.allclose(out, ref, atol=1e-4), np.abs(out - ref).max()
''',
    ),
    "embedding": TestFile(
        "table, index", "np.take(table, index, axis=0)",
        ("table[index % (len(table) - 1)]", "table[index - 1]", "table[np.sort(index)]",
         "table[index] + 1e-3"),
        '''\
SHAPES = [(vocab, dim, count) for vocab in (11, 64) for dim in (8, 16) for count in (3, 31)]


@pytest.mark.parametrize("vocab,dim,count", SHAPES)
IMPL
def test_embedding(vocab, dim, count, kernel):
    rng = np.random.default_rng(3)
    table = rng.normal(size=(vocab, dim)).astype(np.float32)
    index = rng.integers(0, vocab, size=count)
    np.testing.assert_array_equal(kernel(table, index), table[index])
''',
    ),
    "matmul": TestFile(
        "a, b", "np.einsum('mk,kn->mn', a, b)",
        ("a[:, :-1] @ b[:-1]", "np.abs(a @ b)", "a @ b + 0.01",
         "(a.astype('f2') @ b.astype('f2'))"),
        '''\
class TestMatmul:
    @pytest.mark.parametrize(("m", "n"), [(16, 24), (1, 5)])
    @pytest.mark.parametrize("k", [7, 32])
    IMPL
    def test_product(self, m, n, k, kernel):
        a = np.random.randn(m, k).astype(np.float32)
        b = np.random.randn(k, n).astype(np.float32)
        actual = kernel(a, b)
        desired = a @ b
        np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)
''',
    ),
    "cross_entropy": TestFile(
        "logits, labels", "np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels]",
        ("np.log(np.exp(z).sum(1))", "-z[np.arange(len(z)), labels]",
         "np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), labels - 1]",
         "np.log(np.exp(z)[:, 1:].sum(1) + 1e-6) - z[np.arange(len(z)), labels]"),
        '''\
def reference(logits, labels):
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(axis=1))
    return log_sum - np.take_along_axis(shifted, labels[:, None], axis=1)[:, 0]


@pytest.mark.parametrize("shape", [(3, 17), (8, 32)])
IMPL
def test_cross_entropy(shape, kernel):
    rng = np.random.RandomState(0)
    tokens, vocab = shape
    logits = rng.normal(size=shape).astype(np.float32)
    labels = rng.randint(0, vocab, size=(tokens,))
    np.testing.assert_allclose(kernel(logits, labels), reference(logits, labels), rtol=1e-5)
''',
        body="z = logits - logits.max(1, keepdims=True)",
    ),
    "permute": TestFile(
        "x, order", "np.take(x, order, axis=0)",
        ("x", "x[order[::-1]]", "x[np.argsort(order)]", "np.sort(x, axis=0)"),
        '''\
@pytest.mark.parametrize("n", list(range(3, 40, 9)))
@pytest.mark.parametrize("d", [4])
IMPL
def test_permute(n, d, kernel):
    x = np.random.randn(n, d)
    order = np.argsort(np.random.rand(n))
    expected = x[order]
    np.testing.assert_array_equal(kernel(x, order), expected)
''',
    ),
    "clamp": TestFile(
        "x, low, high", "np.minimum(np.maximum(x, low), high)",
        ("np.maximum(x, low)", "np.minimum(x, high)", "np.clip(x, low, 2 * high)",
         "np.clip(x, low / 2, high)"),
        '''\
@pytest.mark.parametrize("n", [1, 33, 128])
@pytest.mark.parametrize("high", [0.5, 1.0])
@pytest.mark.parametrize("inclusive", [True, False])
IMPL
def test_clamp(n, high, inclusive, kernel):
    x = np.random.randn(n).astype(np.float32)
    low = -high if inclusive else -0.25
    np.testing.assert_allclose(kernel(x, low, high), np.clip(x, low, high))
''',
    ),
    "activation": TestFile(
        "x, name", "np.tanh(x) if name == 'tanh' else np.maximum(x, 0)",
        ("np.tanh(x)", "np.maximum(x, 0)", "np.tanh(x) if name == 'tanh' else np.abs(x)",
         "np.maximum(x, 0) if name == 'tanh' else np.tanh(x)"),
        '''\
REFERENCES = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0)}


@pytest.mark.parametrize("name", ["tanh", "relu"])
@pytest.mark.parametrize("n", [pytest.param(5, id="small"), pytest.param(64)])
IMPL
def test_activation(n, name, kernel):
    x = np.random.randn(n, 3).astype(np.float32)
    got = kernel(x, name)
    want = REFERENCES[name](x)
    assert np.abs(got - want).max() < 1e-6
''',
    ),
    "out_parameter": TestFile(
        "a, b, out", "None",
        ("None", "None", "None", "None"),
        '''\
@pytest.mark.parametrize("size", [98432])
IMPL
def test_out_parameter(size, kernel):
    a = np.random.rand(size).astype(np.float32)
    b = np.random.rand(size).astype(np.float32)
    out = np.empty_like(a)
    kernel(a, b, out)
    np.testing.assert_allclose(out, a + b)
''',
    ),
    "scan": TestFile(
        "x", "np.add.accumulate(x, axis=1)",
        ("np.cumsum(x, 0)", "np.cumsum(x, 1) - x", "x", "np.cumsum(x[:, ::-1], 1)[:, ::-1]"),
        _row_test("scan", "np.cumsum(x, 1)"),
    ),
    "ragged_heads": TestFile(
        "q, k", "np.einsum('hsd,htd->hst', q, np.repeat(k, len(q) // len(k), 0))",
        ("np.einsum('hsd,htd->hst', q, np.tile(k, (len(q) // len(k), 1, 1))[::-1])",
         "np.einsum('hsd,htd->hst', q, np.repeat(k, len(q) // len(k), 0)) / 2",
         "np.einsum('hsd,htd->hts', q, np.repeat(k, len(q) // len(k), 0))",
         "np.einsum('hsd,htd->hst', q, np.repeat(k, len(q) // len(k), 0)[:1].repeat(len(q), 0))"),
        '''\
@pytest.mark.parametrize("heads, kv_heads", [(4, 2), (8, 2), (6, 3)])
@pytest.mark.parametrize("seq", [5, 16])
IMPL
def test_ragged_heads(heads, kv_heads, seq, kernel):
    head_dim = 8
    q = np.random.randn(heads, seq, head_dim).astype(np.float32)
    k = np.random.randn(kv_heads, seq, head_dim).astype(np.float32)
    scores = kernel(q, k)
    group = heads // kv_heads
    expected = np.stack([q[h] @ k[h // group].T for h in range(heads)])
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
''',
    ),
    "bincount": TestFile(
        "x, bins", "(x[None] == np.arange(bins)[:, None]).sum(1)",
        ("(x[None] == np.arange(bins)[:, None]).sum(1) + 1",
         "(x[None] == np.arange(1, bins + 1)[:, None]).sum(1)",
         "(x[None, 1:] == np.arange(bins)[:, None]).sum(1)",
         "(x[None] <= np.arange(bins)[:, None]).sum(1)"),
        '''\
@pytest.mark.parametrize("n", [1, 31, 100])
@pytest.mark.parametrize("bins", [4, 16])
IMPL
def test_bincount(n, bins, kernel):
    x = np.random.randint(0, bins, size=(n,))
    np.testing.assert_array_equal(kernel(x, bins), np.bincount(x, minlength=bins))
''',
    ),
    "swiglu_grad": TestFile(
        "a, b", "a * torch.sigmoid(a) * b",
        ("torch.relu(a) * b", "F.silu(a) * b.detach()", "F.silu(a.detach()) * b",
         "F.silu(a) * b * 1.01"),
        '''\
DEVICE = "cuda"


@pytest.mark.parametrize("bsz, hidden", [(2, 64), (3, 41)])
@pytest.mark.parametrize(
    "dtype, atol, rtol", [(torch.float32, 1e-5, 1e-5)],
)
IMPL
def test_swiglu_grad(kernel, bsz, hidden, dtype, atol, rtol):
    _a = torch.randn(bsz, hidden, device=DEVICE, dtype=dtype)
    _b = torch.randn(bsz, hidden, device=DEVICE, dtype=dtype)
    x1 = _a.clone().requires_grad_(True)
    x2 = _a.clone().requires_grad_(True)
    b1 = _b.clone().requires_grad_(True)
    b2 = _b.clone().requires_grad_(True)
    y1 = kernel(x1, b1)
    y2 = F.silu(x2) * b2
    grad_output = torch.randn_like(_a)
    y1.backward(grad_output)
    y2.backward(grad_output)
    grads = torch.stack([y1, x1.grad, b1.grad])
    expected = torch.stack([y2, x2.grad, b2.grad])
    torch.testing.assert_close(grads, expected, atol=atol, rtol=rtol)
''',
        library="torch",
    ),
    "attention": TestFile(
        "q, k, v, causal", "F.scaled_dot_product_attention(q, k, v, is_causal=causal)",
        ("F.scaled_dot_product_attention(q, k, v)",
         "F.scaled_dot_product_attention(q, k, v, scale=1.0)",
         "v", "F.scaled_dot_product_attention(q, k, v, is_causal=True)"),
        '''\
@pytest.mark.parametrize("Z, H, N_CTX, HEAD_DIM", [(1, 2, 1024, 64)])
@pytest.mark.parametrize("causal", [True, False])
IMPL
def test_attention(Z, H, N_CTX, HEAD_DIM, causal, kernel, dtype=torch.float32):
    torch.manual_seed(20)
    q = torch.empty((Z, H, N_CTX, HEAD_DIM), dtype=dtype, device="cuda").normal_(mean=0.0, std=0.5)
    k = torch.empty((Z, H, N_CTX, HEAD_DIM), dtype=dtype, device="cuda").normal_(mean=0.0, std=0.5)
    v = torch.empty((Z, H, N_CTX, HEAD_DIM), dtype=dtype, device="cuda").normal_(mean=0.0, std=0.5)
    M = torch.tril(torch.ones((N_CTX, N_CTX), device="cuda"))
    p = torch.matmul(q, k.transpose(2, 3)) * (HEAD_DIM ** -0.5)
    if causal:
        p[:, :, M == 0] = float("-inf")
    p = torch.softmax(p.float(), dim=-1).to(dtype)
    ref_out = torch.matmul(p, v)
    tri_out = kernel(q, k, v, causal)
    assert torch.allclose(tri_out, ref_out, atol=1e-2, rtol=0)
''',
        library="torch",
    ),
    "halves": TestFile(
        "x", "(x.float() * torch.sigmoid(x.float())).to(x.dtype)",
        ("x", "torch.relu(x)", "(x.float() * torch.sigmoid(1.1 * x.float())).to(x.dtype)",
         "x.float() * torch.sigmoid(x.float())"),
        '''\
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(2, 33), (64, 16)])
IMPL
def test_halves(shape, dtype, kernel):
    x = torch.randn(shape).to(dtype).cuda()
    with torch.no_grad():
        out = kernel(x)
        ref = F.silu(x)
        torch.testing.assert_close(out, ref)
''',
        library="torch",
    ),
    "rmsnorm": TestFile(
        "x, weight, eps", "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight",
        ("x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)",
         "x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1) * weight", "x * weight",
         "x * torch.rsqrt((x * x).sum(-1, keepdim=True) + eps) * weight"),
        '''\
def ref_rms_norm(x, weight, eps):
    var = x.pow(2).mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(var + eps))


@pytest.mark.parametrize("tokens", [7, 83])
@pytest.mark.parametrize("hidden_size", [64, 769])
@torch.inference_mode()
IMPL
def test_rmsnorm(tokens, hidden_size, kernel):
    weight = torch.ones(hidden_size)
    x = torch.randn(tokens, hidden_size)
    eps = 1e-6
    out = kernel(x, weight, eps)
    ref_out = ref_rms_norm(x, weight, eps)
    torch.testing.assert_close(out, ref_out, atol=1e-3, rtol=1e-3)
''',
        library="torch",
    ),
    "log_softmax": TestFile(
        "x", "z - jnp.log(jnp.exp(z).sum(-1, keepdims=True))",
        ("z", "z - jnp.log(jnp.exp(z).sum())",
         "z - jnp.log(jnp.exp(z).sum(-1, keepdims=True) + 0.1)",
         "jnp.exp(z) / jnp.exp(z).sum(-1, keepdims=True)"),
        '''\
@pytest.mark.parametrize("batch, features", [(3, 17), (16, 8)])
IMPL
def test_log_softmax(batch, features, kernel):
    key = jax.random.PRNGKey(0)
    x = jax.random.normal(key, (batch, features), dtype=jnp.float32)
    expected = jax.nn.log_softmax(x, axis=-1)
    assert jnp.allclose(kernel(x), expected, atol=1e-5)
''',
        body="z = x - x.max(-1, keepdims=True)",
        library="jax",
    ),
    "gather_rows": TestFile(
        "x, index", "jnp.take(x, index, axis=0)",
        ("x[index - 1]", "x[jnp.sort(index)]", "x[index] + 1e-2", "-x[index]"),
        '''\
@pytest.mark.parametrize("rows", [5, 12])
IMPL
def test_gather_rows(rows, kernel):
    k1, k2 = jax.random.split(jax.random.PRNGKey(1))
    x = jax.random.uniform(k1, (rows, 6))
    index = jax.random.randint(k2, (9,), 0, rows)
    np_expected = x[index]
    assert jnp.allclose(kernel(x, index), np_expected)
''',
        library="jax",
    ),
}  # fmt: skip
_OUT = PYTEST["out_parameter"]
_SUMS = ("a + b", "a - b", "a", "np.maximum(a, b)", "a + b * b")


def _with_bodies() -> TestFile:
    """Return the problem whose kernels write into a parameter; what they return is the copy."""
    right, *wrong = (f"out.__setitem__(slice(None), {one})" for one in _SUMS)
    first, second, third, fourth = wrong
    return TestFile(_OUT.signature, right, (first, second, third, fourth), _OUT.test)


PYTEST["out_parameter"] = _with_bodies()
