"""The seeded fuzzer under its documented name: shapes, dtypes, layouts and tensors from a seed."""

from gpuemu_flow.frameworks.seeded import (
    BATCH_SIZES,
    DTYPES,
    EDGE_CASES,
    HIDDEN_DIMS,
    LAYOUTS,
    SEQ_LENGTHS,
    FuzzConfig,
    SeededFuzzer,
    TestCase,
    fuzz_dtypes,
    fuzz_dtypes_seeded,
    fuzz_layouts,
    fuzz_layouts_seeded,
    fuzz_shapes,
    fuzz_shapes_seeded,
    generate_random_tensor,
)

__all__ = [
    "BATCH_SIZES",
    "DTYPES",
    "EDGE_CASES",
    "HIDDEN_DIMS",
    "LAYOUTS",
    "SEQ_LENGTHS",
    "FuzzConfig",
    "SeededFuzzer",
    "TestCase",
    "fuzz_dtypes",
    "fuzz_dtypes_seeded",
    "fuzz_layouts",
    "fuzz_layouts_seeded",
    "fuzz_shapes",
    "fuzz_shapes_seeded",
    "generate_random_tensor",
]
