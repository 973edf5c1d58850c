"""The driver's API by ctypes: a module of PTX text, right, and with a launch of 33 threads."""

import ctypes
import sys

import numpy as np

cu = ctypes.CDLL("libcuda.so.1")
PTX = b"""
.version 7.0
.target sm_80
.address_size 64
.visible .entry twice(.param .u64 p, .param .u32 n)
{
 .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<2>; .reg .pred %p;
 ld.param.u64 %rd0, [p]; ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x;
 setp.ge.u32 %p, %r1, %r0; @%p ret;
 mul.wide.u32 %rd1, %r1, 4; add.s64 %rd0, %rd0, %rd1;
 ld.global.f32 %f0, [%rd0]; add.f32 %f0, %f0, %f0; st.global.f32 [%rd0], %f0; ret;
}
"""
SIZE = ctypes.c_size_t(128)


def check(error: int) -> None:
    """Stop at an error."""
    assert error == 0, error


check(cu.cuInit(0))
context, module, kernel, memory = *(ctypes.c_void_p() for _ in range(3)), ctypes.c_uint64()
check(cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0))
check(cu.cuModuleLoadData(ctypes.byref(module), PTX))
check(cu.cuModuleGetFunction(ctypes.byref(kernel), module, b"twice"))
x, y = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
check(cu.cuMemAlloc_v2(ctypes.byref(memory), SIZE))
check(cu.cuMemcpyHtoD_v2(memory, x.ctypes.data_as(ctypes.c_void_p), SIZE))
count = ctypes.c_uint(33 if "bug" in sys.argv else 32)
arguments = (ctypes.c_void_p * 2)(ctypes.addressof(memory), ctypes.addressof(count))
check(cu.cuLaunchKernel(kernel, 1, 1, 1, count.value, 1, 1, 0, None, arguments, None))
check(cu.cuMemcpyDtoH_v2(y.ctypes.data_as(ctypes.c_void_p), memory, SIZE))
assert (y == 2 * x).all()
print("PASSED")
