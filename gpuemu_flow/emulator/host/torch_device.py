"""PyTorch's device ``cuda`` on a CPU wheel: load it before torch, and answer for ``torch.cuda``.

It must be there before the first ``import torch``, because torch asks only once for CUDA's hooks.
"""

from __future__ import annotations

import ctypes
import importlib.util
import inspect
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuemu_flow.emulator.host.torch_build import Home, make_home
from gpuemu_flow.emulator.host.torch_cuda import cuda_patches
from gpuemu_flow.model.errors import FlowError

_loaded: list[tuple[Home, ctypes.CDLL]] = []


def load(torch_folder: str) -> bool:
    """Load the device for the PyTorch in a folder; say why not, and return False, if that fails."""
    try:
        home = make_home(Path(torch_folder))
        runtime = ctypes.CDLL(str(home.runtime / home.cudart), ctypes.RTLD_GLOBAL)
        ctypes.CDLL(f"{torch_folder}/lib/libtorch_global_deps.so", ctypes.RTLD_GLOBAL)
        ctypes.CDLL(str(home.device), ctypes.RTLD_GLOBAL)
    except (FlowError, OSError) as error:
        print(f"gpuemu-flow: PyTorch runs without the emulated device: {error}", file=sys.stderr)
        return False
    _loaded.append((home, runtime))
    os.environ["CUDA_HOME"] = str(home.folder)
    os.environ["CXX"] = str(home.folder / "bin" / "c++")
    os.environ["TORCH_CUDA_ARCH_LIST"] = home.arch
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(home.extensions))
    return True


def patch(torch: Any) -> None:
    """Make ``torch.cuda`` answer as with a GPU, and extensions build with our CUDA_HOME."""

    home, runtime = _loaded[0]
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
    from torch.utils.file_baton import FileBaton  # noqa: PLC0415

    extension.CUDA_HOME = str(_loaded[0][0].folder)
    inline = extension.load_inline

    def load_inline(
        name: str, cpp_sources: Any, cuda_sources: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Build an extension, whose findings and compile errors name the lines of the caller."""
        file = _caller()
        if cuda_sources is not None:
            cuda_sources = [_with_lines(s, file) for s in _as_list(cuda_sources)]
        cpp_sources = [_with_lines(s, file) for s in _as_list(cpp_sources)]
        return inline(name, cpp_sources, cuda_sources, *args, **kwargs)

    extension.load_inline = load_inline
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
        if "/torch/" not in frame.filename and not frame.filename.startswith("<"):
            return frame.filename
    return ""


def _with_lines(source: str, file: str) -> str:
    """Return a source whose lines are those of the Python file that holds it as a text."""
    try:
        whole = Path(file).read_text(errors="replace")
    except OSError:
        return source
    at = whole.find(source) if source.strip() else -1
    if at < 0 or re.search(r'["\n\\]', file):
        return source
    line = whole.count("\n", 0, at) + 1
    return f'#line {line} "{Path(file).absolute()}"\n{source}\n'
