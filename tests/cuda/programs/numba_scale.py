"""Kernels of numba-cuda and of cuda.core, as their users launch them; with "bug" one is wrong."""

import sys

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from numba import cuda

SOURCE = """extern "C" __global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}"""


@cuda.jit(lineinfo=True)
def scale(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = 2.5 * x[i]  # line: numba


count = 100 + ("bug" in sys.argv)
x = cuda.to_device(np.arange(100, dtype=np.float32))
y = cuda.device_array_like(x)
scale[2, 64](x, y, count)
device = Device()
device.set_current()
stream = device.create_stream()
options = ProgramOptions(arch=f"sm_{device.arch}")
module = Program(SOURCE, "c++", options).compile("ptx")
buffer = device.allocate(400, stream=stream)
config = LaunchConfig(grid=2, block=64)
address = x.__cuda_array_interface__["data"][0]
launch(stream, config, module.get_kernel("scale"), address, buffer, np.float32(2), np.int32(100))
stream.sync()
print("PASSED" if (y.copy_to_host() == 2.5 * x.copy_to_host()).all() else "WRONG")
