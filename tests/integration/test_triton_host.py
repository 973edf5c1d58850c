"""Host code of Triton kernels asks for much of a GPU: all of it is answered on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

torch = pytest.importorskip("torch", reason="no torch")
pytest.importorskip("triton", reason="no triton")

from gpuemu_flow.frameworks import triton as triton_cpu  # noqa: E402

KERNEL = """
import functools
import torch
import triton
import triton.language as tl


@triton.jit
def twice(y, x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)


def launch(kernel, x):
    y = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(meta["n"], meta["B"]),)](y, x, x.numel(), B=4)
    return y
"""

HOSTS = {
    "plain": "def run(x):\n    return launch(twice, x)\n",
    "torch.compile": """
@torch.compile(dynamic=True)
def inner(x):
    return launch(twice, x)


def run(x):
    return torch.compile(inner, mode="max-autotune")(x)
""",
    "generator": """
def run(x):
    made = torch.Generator(device="cuda")
    made.manual_seed(3)
    assert isinstance(made, torch.Generator)
    noise = torch.rand(4, device="cuda", generator=made)
    again = torch.rand(4, device="cuda", generator=torch.Generator("cuda").manual_seed(3))
    assert torch.equal(noise, again)
    return launch(twice, x)
""",
    "autocast": """
def run(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")).dtype \\
            == torch.bfloat16
    with torch.cuda.amp.autocast(enabled=False):
        assert (torch.ones(4, 4) @ torch.ones(4, 4)).dtype == torch.float32
    return launch(twice, x)
""",
    "streams and events": """
def run(x):
    stream, start, stop = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True),) * 2
    with torch.cuda.stream(stream), torch.cuda.device(x.device):
        start.record(stream)
        y = launch(twice, x.cuda())
        stop.record()
    stream.wait_event(stop)
    torch.cuda.current_stream().wait_stream(stream)
    assert stop.query() and start.elapsed_time(stop) >= 0
    assert torch.cuda.mem_get_info()[1] > 0 and torch.cuda.memory_allocated() == 0
    assert torch.cuda.is_bf16_supported() and torch.version.cuda
    return y
""",
    "a wrapper that looks for the compiled function": """
class Entry(triton.KernelInterface):
    def __init__(self, fn):
        self.fn, self.seen = fn, {}
        while not isinstance(fn, triton.runtime.JITFunction):
            fn = fn.fn
        self.names = [p.name for p in fn.params if not p.is_constexpr]

    def run(self, *args, grid, warmup=False, **kwargs):
        key = tuple(getattr(a, "dtype", a) for a in args)
        if key not in self.seen:
            self.seen[key] = self.fn.run(*args, grid=grid, warmup=warmup, **kwargs)
            return
        shape = grid({**dict(zip(self.fn.arg_names, args)), **kwargs})
        self.seen[key][(*shape, 1, 1)[:3]](*args)


ENTRY = Entry(triton.heuristics({})(twice))


def run(x):
    launch(ENTRY, x)
    return launch(ENTRY, x)
""",
    "kernels that no module names": """
def made():
    @triton.jit
    def inner(y, x, n, B: tl.constexpr):
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)
    return {"key": functools.partial(launch, inner)}


def run(x):
    return made()["key"](x)
""",
    "an object that only looks like a tensor": """
class View:
    def __init__(self, tensor):
        self.tensor, self.dtype = tensor, tensor.dtype

    def data_ptr(self):
        return self.tensor.data_ptr()


def run(x):
    y = torch.empty_like(x)
    twice[(3,)](View(y), View(x), x.numel(), B=4)
    return y
""",
    "a custom op": """
@torch.library.custom_op("gpuemu_test::twice", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return launch(twice, x)


def run(x):
    return op(x)
""",
}


@pytest.mark.parametrize("name", HOSTS)
def test_host_code(name: str, tmp_path: Path) -> None:
    path = tmp_path / "host.py"
    path.write_text(KERNEL + HOSTS[name])
    returned, found = triton_cpu.load(f"{path}:run").run(torch.arange(9.0))
    assert returned.tolist() == [2.0 * i for i in range(9)]
    assert found == []


def test_torch_s_compiler_can_be_imported_first_in_host_code(tmp_path: Path) -> None:
    """It keeps tables by function, so that no two names of `torch.cuda` may share one."""
    path = tmp_path / "host.py"
    path.write_text(KERNEL + "import torch._dynamo\n" + HOSTS["plain"])
    script = f"""
import torch
from gpuemu_flow.frameworks.triton import load
assert load({str(path) + ":run"!r})(torch.ones(3)).tolist() == [2, 2, 2]
assert not torch.cuda.is_available() and torch.version.cuda is None
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == "fine\n", done.stderr[-2000:]
