"""The seeded fuzzer under its documented name: shapes, dtypes, layouts and tensors from a seed."""

from gpuemu_flow.frameworks.seeded import *  # noqa: F403
from gpuemu_flow.frameworks.seeded import __all__ as __all__  # noqa: PLC0414
