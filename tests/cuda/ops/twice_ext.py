"""An extension without PyTorch's headers, which take a minute to compile: `load`, then ctypes."""

import ctypes
from pathlib import Path

import torch
from torch.utils.cpp_extension import load

NAME = "twice_ext"
load(NAME, [str(Path(__file__).with_name("twice.cu"))], is_python_module=False)
library = ctypes.CDLL(next(
    line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines()
    if f"/{NAME}.so" in line
))  # fmt: skip


def call(x, bug):
    assert x.is_cuda
    x = x.contiguous()
    y = torch.empty_like(x)
    library.twice(*map(ctypes.c_void_p, (x.data_ptr(), y.data_ptr())), x.numel(), bug)
    return y


def right(x):
    return call(x, False)


def wrong(x):
    return call(x, True)
