"""The seeded generator and the derivation of seeds, under their documented names."""

from __future__ import annotations

from gpuemu_flow.numerics.rng import SeededRng, derive_seed, generate_seed

__all__ = ["SeededRng", "derive_seed", "generate_seed"]
