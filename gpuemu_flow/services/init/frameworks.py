"""The frameworks among which ``init --framework`` chooses, and the packages that they need."""

from __future__ import annotations

from importlib.util import find_spec

from msgspec import Struct

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class Framework(Struct, frozen=True):
    """One choice of ``--framework``."""

    name: str
    # Value of ``[project] framework``.
    config_name: str
    # Modules that the example ops in this framework import besides numpy.
    modules: tuple[str, ...] = ()
    # Arguments of ``python -m pip install`` that install these modules for a CPU; one entry per
    # command.
    install: tuple[str, ...] = ()
    # Extras of gpuemu-flow itself: ``cuda`` if there are kernels to build and lint.
    extras: tuple[str, ...] = ()

    def missing(self) -> list[str]:
        """Return those of `modules` that this interpreter cannot import."""
        return [name for name in self.modules if find_spec(name) is None]


_TORCH = f"torch --index-url {TORCH_CPU_INDEX}"

FRAMEWORKS = {
    f.name: f
    for f in (
        Framework("numpy", "numpy"),
        Framework("pytorch", "pytorch", ("torch",), (_TORCH,)),
        Framework("jax", "jax", ("jax",), ("jax",)),
        Framework("tensorflow", "tensorflow", ("tensorflow",), ("tensorflow",)),
        Framework("triton", "triton", ("torch", "triton"), (_TORCH, "triton")),
        Framework("cuda", "numpy", extras=("cuda",)),
    )
}
