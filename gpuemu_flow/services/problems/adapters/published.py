"""Run those kernels of a published gpuemu corpus that ask for a GPU, with inputs as numpy arrays.

``gpuemu-flow import gpuemu`` copies this module into the workspace. The module needs numpy and
torch, but nothing of gpuemu-flow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from adapters import files
from adapters.stand_in import on_cpu
from adapters.tensors import as_array, as_tensor, leaves, mapped


def kernel(path: str, *, gpu: bool) -> Callable[..., Any]:
    """Load a kernel's file, and return a function that calls the file's function `run`.

    `path`: Path of the file. `gpu`: True to run GPU code on the CPU. False under Triton's
    interpreter, which already does this.
    """
    here = on_cpu if gpu else nullcontext
    with here():
        module = files.loaded("kernel", Path(path))

    def run(all_inputs: Mapping[str, Any]) -> Any:
        arrays = {name: as_array(as_tensor(value)) for name, value in all_inputs.items()}
        with torch.no_grad(), here():
            returned = module.run(arrays)
        return mapped(returned, _as_array) if len(leaves(returned)) > 1 else _as_array(returned)

    return run


def _as_array(value: Any) -> Any:
    return as_array(value) if isinstance(value, torch.Tensor) else value
