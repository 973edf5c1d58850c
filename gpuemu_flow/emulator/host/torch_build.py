"""Build PyTorch's device and a CUDA_HOME, with which PyTorch builds extensions as ever."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import msgspec

from gpuemu_flow.emulator.host.build import (
    HEADERS,
    MOST_RUNTIMES,
    NATIVE,
    Toolkit,
    cache_folder,
    compilers,
    cxx_compiler,
    digest,
    find_toolkit,
    keep_newest,
    problem,
    run_tool,
    runtime_folder,
)

_SLIM = NATIVE / "slim"
_WRAPPER = Path(__file__).parent / "compiler_wrapper.py"
_EMPTY = ("libc10_cuda.so", "libtorch_cuda.so")
"""Libraries that PyTorch links extensions with, which our device stands for."""


class Home(msgspec.Struct, frozen=True):
    """What a process with PyTorch needs."""

    folder: Path
    runtime: Path
    device: Path
    extensions: Path
    toolkit: Toolkit
    cuda: str
    arch: str

    def tools(self) -> list[str]:
        """Name the compilers' present state; a sandboxed build is seen to depend on them."""
        return compilers(self.toolkit)


def make_home(torch: Path) -> Home:
    """Build the device for the PyTorch in a folder, and a CUDA_HOME, both at the first use. Raises
    FlowError if there is no toolkit or compiler, or if the PyTorch is one for CUDA."""
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise problem(
            "exec-torch", "this PyTorch is built for CUDA and wants a driver",
            "install the CPU build: pip install torch --index-url "
            "https://download.pytorch.org/whl/cpu",
        )  # fmt: skip
    toolkit = find_toolkit()
    runtime = runtime_folder(toolkit)
    version = (torch / "version.py").read_text(errors="replace")
    sources = sorted([*HEADERS.rglob("*.h"), *_SLIM.rglob("*.h"), _WRAPPER, Path(__file__)])
    key = digest(
        (NATIVE / "torch.cpp").read_bytes(), runtime.name, str(torch), version, toolkit.nvcc,
        sys.executable, *(path.read_bytes() for path in sources),
    )  # fmt: skip
    root = cache_folder() / f"torch-{key}"
    if root.is_dir():
        os.utime(root)
    else:
        keep_newest(cache_folder(), "torch-", MOST_RUNTIMES - 1)
        with tempfile.TemporaryDirectory(dir=cache_folder()) as name:
            made = Path(name) / "made"
            _build_device(torch, toolkit, runtime, made)
            _make_cuda_home(torch, toolkit, runtime, made / "home", root)
            try:
                made.rename(root)
            except OSError:  # another process was quicker
                if not root.is_dir():
                    raise
    arch = int(os.environ.get("GPUEMU_ARCH", "80"))
    return Home(
        root / "home", runtime, root / "libgpuemu_torch.so", root / f"extensions-{arch}",
        toolkit, f"{toolkit.major}.{toolkit.version % 1000 // 10}",
        f"{arch // 10}.{arch % 10}",
    )  # fmt: skip


def _build_device(torch: Path, toolkit: Toolkit, runtime: Path, made: Path) -> None:
    made.mkdir()
    print("gpuemu-flow: building PyTorch's device (once, about half a minute)", file=sys.stderr)
    include = [NATIVE, toolkit.include, HEADERS, torch / "include"]
    include.append(torch / "include" / "torch" / "csrc" / "api" / "include")
    command = [
        cxx_compiler(), "-std=c++20", "-O1", "-fPIC", "-shared", "-w", *(f"-I{i}" for i in include),
        str(NATIVE / "torch.cpp"), f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch",
        f"-L{runtime}", "-lcudart", str(runtime / "libgpuemu.so"), f"-Wl,-rpath,{runtime}",
        f"-Wl,-rpath,{torch / 'lib'}", "-Wl,-soname,libgpuemu_torch.so",
        "-o", str(made / "libgpuemu_torch.so"),
    ]  # fmt: skip
    run_tool(command, "building PyTorch's device")


def _make_cuda_home(torch: Path, toolkit: Toolkit, runtime: Path, home: Path, root: Path) -> None:
    """Make a folder like a CUDA toolkit: its headers, our libraries, wrappers of the compilers."""
    for part in ("bin", "include", "lib64"):
        (home / part).mkdir(parents=True)
    for header in toolkit.include.iterdir():
        (home / "include" / header.name).symlink_to(header)
    for stub in HEADERS.rglob("*.h"):
        target = home / "include" / stub.relative_to(HEADERS)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            target.symlink_to(stub)
    for library in runtime.iterdir():
        (home / "lib64" / library.name).symlink_to(library)
    for name in _EMPTY:
        (home / "lib64" / name).symlink_to(root / "libgpuemu_torch.so")
    text = _WRAPPER.read_text()
    for name, tool in (("nvcc", toolkit.nvcc), ("c++", cxx_compiler())):
        marks = {"@REAL@": tool, "@SLIM@": str(_SLIM), "@TORCH@": str(torch), "@HOME@": str(root)}
        body = text
        for mark, value in marks.items():
            body = body.replace(mark, value)
        wrapper = home / "bin" / name
        wrapper.write_text(f"#!{sys.executable} -S\n{body}")
        wrapper.chmod(0o755)
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump:
        (home / "bin" / "cuobjdump").symlink_to(cuobjdump)
