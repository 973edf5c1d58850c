"""Give PyTorch the imaginary GPU before it is imported; Python runs this file under `exec`."""
# Runs at the start of every Python program under `exec`: no pathlib.
# ruff: noqa: PTH120, PTH100

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))


class _TorchFinder:
    """Finds ``torch`` as Python does, and does what must happen before and after its import."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of torch with a loader that loads the device first; None for others."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None or spec.origin is None:
            return spec
        package = os.environ.get("GPUEMU_PACKAGE", "")
        if package and importlib.util.find_spec("gpuemu_flow") is None:
            sys.path.append(package)
        from gpuemu_flow.emulator.host import torch_device  # noqa: PLC0415 - after the path

        try:
            torch_device.load(os.path.dirname(spec.origin))
        except Exception as error:
            print(f"gpuemu-flow: torch runs without the emulated GPU: {error}", file=sys.stderr)
        else:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                torch_device.patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if {"GPUEMU_SOCKET", "GPUEMU_FD"} & set(os.environ):
    sys.meta_path.insert(0, _TorchFinder())
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]
_found = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
if _found is not None and _found.loader is not None:  # the one that this file hides
    _module = importlib.util.module_from_spec(_found)
    _found.loader.exec_module(_module)
