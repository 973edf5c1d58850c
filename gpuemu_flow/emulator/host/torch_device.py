"""PyTorch's device ``cuda`` on a CPU wheel: its build, its loading, and what ``torch.cuda`` says.

It must be there before the first ``import torch``, because torch asks only once for CUDA's hooks.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuemu_flow.emulator.host.build import (
    BUILD_FOLDER,
    HEADERS,
    MOST_RUNTIMES,
    NATIVE,
    Kept,
    Toolkit,
    cache_folder,
    compilers,
    cxx_compiler,
    digest,
    find_toolkit,
    keep_newest,
    no_nvcc,
    problem,
    run_by,
    run_tool,
    runtime_folder,
    runtime_library,
)
from gpuemu_flow.emulator.host.torch_cuda import cuda_patches

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
    """Build the device for the PyTorch in a folder, and a CUDA_HOME, both at the first use.

    Raises FlowError if there is no toolkit or compiler, or if the PyTorch is one for CUDA.
    """
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


_loaded: list[tuple[Home, ctypes.CDLL, ctypes.CDLL]] = []
_NOT_IN_KEY = ("build_directory", "verbose", "with_sycl", "extra_sycl_cflags")


def load(torch_folder: str) -> None:
    """Load the device for the PyTorch in a folder, before its import. Raises FlowError or OSError:
    why that is impossible."""
    home = make_home(Path(torch_folder))
    runtime, core = runtime_library(home.runtime)
    ctypes.CDLL(f"{torch_folder}/lib/libtorch_global_deps.so", ctypes.RTLD_GLOBAL)
    # PyTorch's own brings it: extensions use it without naming it to the linker.
    ctypes.CDLL(str(home.runtime / "libcublas.so"), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(home.device), ctypes.RTLD_GLOBAL)
    _loaded.append((home, runtime, core))
    os.environ["CUDA_HOME"] = str(home.folder)
    os.environ["CXX"] = str(home.folder / "bin" / "c++")
    os.environ["TORCH_CUDA_ARCH_LIST"] = home.arch
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(home.extensions))


def import_torch() -> None:
    """Import torch with the device, unless this process has done so. Raises FlowError or OSError:
    the device cannot be loaded. Raises ImportError."""
    if _loaded:
        return
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise ImportError("no module named torch")
    load(str(Path(spec.origin).parent))
    patch(importlib.import_module("torch"))


def patch(torch: Any) -> None:
    home, runtime, _ = _loaded[0]
    major, _, minor = home.arch.partition(".")
    for owner, name, value in cuda_patches(torch, (int(major), int(minor))):
        if name != "autocast":  # the dispatch key CUDA has its own
            setattr(owner, name, value)

    def synchronize(device: object = None) -> None:
        runtime.cudaDeviceSynchronize()

    torch.cuda.synchronize = synchronize
    torch.cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    torch.cuda.set_rng_state = lambda state, device="cuda": torch.set_rng_state(state)
    torch.backends.cudnn.is_acceptable = lambda tensor: False

    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return None
        data = torch.empty(0, dtype=torch.uint8).set_(storage)
        return data.to("cuda").untyped_storage()

    torch.serialization.register_package(5, lambda _: None, restore)
    torch.version.cuda = home.cuda
    sys.meta_path.insert(0, _ExtensionFinder())


class _ExtensionFinder:
    """Changes ``torch.utils.cpp_extension`` when it is imported, which most programs never do."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's spec with a loader that changes it."""
        if name != "torch.utils.cpp_extension":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _patch_extensions(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _patch_extensions(extension: Any) -> None:
    home = _loaded[0][0]
    extension.CUDA_HOME = str(home.folder)
    inline, build = extension.load_inline, extension._write_ninja_file_and_build_library
    texts: dict[str, str] = {}

    def load_inline(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Build an extension, whose findings and compile errors name the lines of the caller."""
        file = _caller()
        if cuda_sources is not None:
            cuda_sources = [_with_lines(s, file, texts) for s in _as_list(cuda_sources)]
        cpp_sources = [_with_lines(s, file, texts) for s in _as_list(cpp_sources)]
        try:
            return inline(name, cpp_sources, cuda_sources, *args, **kwargs)
        except RuntimeError as error:
            raise RuntimeError(_with_places(str(error), texts)) from None

    def build_once(name: str, build_directory: str, **options: Any) -> None:
        """Build a library, or take it from the cache if all that went into it is unchanged."""
        options = {**options, "name": name, "build_directory": build_directory}
        if options["with_cuda"] and not home.toolkit.nvcc:
            raise no_nvcc(f"the extension {name}")
        if options["is_standalone"]:
            build(**options)
            return
        sources = [Path(source) for source in options["sources"]]
        shown = {k: v for k, v in options.items() if k not in ("sources", *_NOT_IN_KEY)}
        flags = [os.environ.get(n, "") for n in ("TORCH_CUDA_ARCH_LIST", "NVCC_APPEND_FLAGS")]
        kept = Kept("extensions", digest(
            str(home.folder), *flags, *home.tools(), repr(sorted(shown.items())),
            *(source.name for source in sources), *(source.read_bytes() for source in sources),
        ))  # fmt: skip
        made = Path(build_directory) / f"{name}.so"
        with kept.alone():
            if not kept.is_current():
                if kept.own(_headers(build_directory)):
                    for object_file in Path(build_directory).glob("*.o"):
                        object_file.unlink()  # ninja compares times, which a header may have kept
                made.unlink(missing_ok=True)
                build(**options)
                folders = {str(source.parent.absolute()) for source in sources}
                folders |= {str(Path(p).absolute()) for p in options["extra_include_paths"] or ()}
                kept.keep(made, _headers(build_directory), sorted(folders - {build_directory}))
        made.unlink(missing_ok=True)
        made.symlink_to(kept.folder / made.name)

    extension.load_inline = load_inline
    extension._run_ninja_build = _run_ninja
    extension._write_ninja_file_and_build_library = build_once
    if BUILD_FOLDER in os.environ:  # in a sandbox, where a program's own folder is not writable
        extension._get_build_directory = _scratch_folder
        for name in ("load", "load_inline"):
            setattr(extension, name, _without_folder(getattr(extension, name)))
    _patch_locks()


def _run_ninja(build_directory: str, verbose: bool, error_prefix: str) -> None:
    command = ["ninja", "-v", *(["-j", os.environ["MAX_JOBS"]] if "MAX_JOBS" in os.environ else [])]
    ran = run_by[-1](command, build_directory)
    if ran.code:
        raise RuntimeError(f"{error_prefix}: {ran.said}")
    if verbose:
        print(ran.said, file=sys.stderr)


def _patch_locks() -> None:
    from torch.utils.file_baton import FileBaton  # noqa: PLC0415

    acquire = FileBaton.try_acquire

    def try_acquire(baton: Any) -> bool:
        """Take the lock of a build folder, also from a process that was killed."""
        path = Path(baton.lock_file_path)
        if acquire(baton):
            path.write_text(str(os.getpid()))
            return True
        try:
            owner = path.read_text()
            if owner and not Path(f"/proc/{owner}").exists():
                path.unlink(missing_ok=True)
                return try_acquire(baton)
        except OSError:
            pass
        return False

    setattr(FileBaton, acquire.__name__, try_acquire)


def _as_list(sources: str | Sequence[str]) -> list[str]:
    return [sources] if isinstance(sources, str) else list(sources)


def _caller() -> str:
    for frame in inspect.stack(0)[2:]:
        if "/torch/" not in frame.filename and not frame.filename.startswith(("<", __file__)):
            return frame.filename
    return ""


def _with_lines(source: str, file: str, texts: dict[str, str]) -> str:
    """Return a source with a name, and tell where in the Python file it is held as a text. The name
    depends on the text alone: an edit elsewhere in the file leaves what was built."""
    try:
        whole = Path(file).read_text(errors="replace")
    except OSError:
        return source
    at = whole.find(source) if source.strip() else -1
    if at < 0:
        return source
    name = f"gpuemu-{digest(source)[:16]}.cu"
    texts[name] = f"{Path(file).absolute()}:{whole.count(chr(10), 0, at) + 1}"
    _loaded[0][2].gpuemu_source(name.encode(), texts[name].encode())
    return f'#line 1 "{name}"\n{source}\n'


def _with_places(said: str, texts: dict[str, str]) -> str:
    def place(found: re.Match[str]) -> str:
        file, _, line = texts.get(found[1], "").rpartition(":")
        return f"{file}:{int(line) + int(found[2]) - 1}" if file else found[0]

    return re.sub(r"(gpuemu-[0-9a-f]{16}\.cu)[:(](\d+)\)?", place, said)


def _scratch_folder(name: str, _verbose: bool) -> str:
    folder = Path(tempfile.gettempdir()) / "torch_extensions" / name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _without_folder(function: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "build_directory": None})

    return called


def _headers(folder: str) -> list[str]:
    """List the headers that were compiled in a build folder, as ninja knows them."""
    if not Path(folder, "build.ninja").exists():
        return []
    ran = run_by[-1](["ninja", "-t", "deps"], folder)
    found = [line.strip() for line in ran.said.splitlines() if line.startswith("    ")]
    return [header for header in found if not header.startswith(f"{folder}/")]
