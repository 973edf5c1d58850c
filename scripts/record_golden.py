"""Record what the emulator's test kernels compute on a real GPU, under tests/gold/gpu/.

Reads the launches of tests/unit/emulated_kernels.py. Loads each kernel's PTX with the CUDA driver,
launches it with the same arguments, and writes what its buffers hold afterwards, with the name of
the GPU and the driver's version. Needs a GPU and its driver, nothing else of CUDA.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "gold" / "gpu"
LIBRARY = "libcuda.so.1"
NO_GPU = 3
SEED, SIZE = 1, 100
"""Seed and size of the launches that are recorded."""
_ATTRIBUTE_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


class DriverError(Exception):
    """The driver is missing, or answered with an error."""


class Driver:
    """The CUDA driver API by ctypes: one context, memory and launches.

    Parameters
    ----------
    library : str
        Name of the shared library.

    Raises
    ------
    DriverError
        The library or a GPU is missing.
    """

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._cuda = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(f"{library} cannot be loaded: {error}") from None
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name, version = ctypes.create_string_buffer(256), ctypes.c_int()
        self.call("cuDeviceGetName", name, 256, device)
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.name, self.version = name.value.decode(), version.value

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of the driver; raise DriverError if it fails."""
        status = getattr(self._cuda, function)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise DriverError(f"{function}: {(text.value or b'unknown error').decode()}")

    def function(self, ptx: bytes, entry: str) -> ctypes.c_void_p:
        """Compile PTX, and find one of its kernels."""
        module, found = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx + b"\0"))
        self.call("cuModuleGetFunction", ctypes.byref(found), module, entry.encode())
        return found

    def launch(
        self, function: ctypes.c_void_p, grid: tuple[int, ...], block: tuple[int, ...],
        shared: int, arguments: list[Any],
    ) -> list[np.ndarray | None]:  # fmt: skip
        """Launch once; return the content of each buffer afterwards, and None for each number.

        Parameters
        ----------
        arguments : list of BufferArgument or ScalarArgument
        """
        places: list[ctypes.c_uint64 | None] = []
        values: list[Any] = []
        for argument in arguments:
            data = getattr(argument, "data", None)
            if isinstance(data, bytes):
                places.append(None)
                values.append(ctypes.create_string_buffer(data, len(data)))
                continue
            given = np.ascontiguousarray(data)
            place = ctypes.c_uint64()
            self.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(max(1, given.nbytes)))
            self.call("cuMemcpyHtoD_v2", place, given.ctypes.data_as(ctypes.c_void_p),
                      ctypes.c_size_t(given.nbytes))  # fmt: skip
            places.append(place)
            values.append(place)
        pointers = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in values]
        table = (ctypes.c_void_p * len(pointers))(*pointers)
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", function, _ATTRIBUTE_SHARED, shared)
        sizes = [*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3]]
        self.call("cuLaunchKernel", function, *map(ctypes.c_uint, sizes), ctypes.c_uint(shared),
                  None, table, None)  # fmt: skip
        self.call("cuCtxSynchronize")
        results: list[np.ndarray | None] = []
        for place, argument in zip(places, arguments, strict=True):
            if place is None:
                results.append(None)
                continue
            after = np.empty_like(np.ascontiguousarray(argument.data))
            self.call("cuMemcpyDtoH_v2", after.ctypes.data_as(ctypes.c_void_p), place,
                      ctypes.c_size_t(after.nbytes))  # fmt: skip
            self.call("cuMemFree_v2", place)
            results.append(after)
        return results


def record(driver: Driver, folder: Path = FOLDER) -> list[str]:
    """Run every test kernel and write its buffers; return the names of the launches.

    Raises
    ------
    DriverError
        A kernel cannot be launched.
    """
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    import emulated_kernels as kernels  # noqa: PLC0415 - of the tests

    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for case in kernels.all_cases(SEED, SIZE):
        function = driver.function((kernels.FOLDER / case.file).read_bytes(), case.entry)
        arguments = [kernels.as_argument(argument) for argument in case.arguments]
        after = driver.launch(function, tuple(case.grid), tuple(case.block), case.shared, arguments)
        # As bytes: numpy's files know no bfloat16 and no 8-bit floats.
        kept = {str(n): data.view(np.uint8) for n, data in enumerate(after) if data is not None}
        name = f"{len(names):02}-{case.entry}"
        np.savez_compressed(folder / f"{name}.npz", **kept)
        names.append(name)
    about = {"gpu": driver.name, "driver": driver.version, "launches": names}
    (folder / "about.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    return names


def main(arguments: list[str]) -> int:
    """Record the launches; return 3 and print a sentence if there is no GPU."""
    try:
        driver = Driver(arguments[0] if arguments else LIBRARY)
        names = record(driver)
    except DriverError as error:
        print(f"no golden outputs were recorded: {error}", file=sys.stderr)
        return NO_GPU
    print(f"{len(names)} launches recorded on {driver.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
