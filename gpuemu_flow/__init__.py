"""gpuemu-flow: know that a GPU kernel is right, without a GPU."""

TYPE_CHECKING = False  # importing it from typing would cost every command
if TYPE_CHECKING:
    from gpuemu_flow.client import (
        AsyncClient,
        Client,
        ClientError,
        ConnectionError,  # noqa: A004 - the documented name
        FuzzResults,
        GpuemuClient,
        MinimizeResult,
        ReproduceResult,
        ReproductionInfo,
        ValidationError,
        ValidationResult,
        validate_op,
    )
    from gpuemu_flow.frameworks import (
        BaseAdapter,
        JaxAdapter,
        get_jax_adapter,
        get_pytorch_adapter,
        get_tensorflow_adapter,
    )
    from gpuemu_flow.fuzzing import (
        FuzzConfig,
        SeededFuzzer,
        fuzz_dtypes,
        fuzz_dtypes_seeded,
        fuzz_layouts,
        fuzz_layouts_seeded,
        fuzz_shapes,
        fuzz_shapes_seeded,
        generate_random_tensor,
    )
    from gpuemu_flow.rng import SeededRng, derive_seed, generate_seed
    from gpuemu_flow.services.check import check
    from gpuemu_flow.tolerances import (
        ToleranceConfig,
        ToleranceProfile,
        calibrate_tolerance,
        get_recommended_tolerance,
    )

__version__ = "0.1.0"

_PLACES = {
    "services.check": ("check",),
    "client": (
        "AsyncClient", "Client", "ClientError", "ConnectionError", "FuzzResults", "GpuemuClient",
        "MinimizeResult", "ReproduceResult", "ReproductionInfo", "ValidationError",
        "ValidationResult", "validate_op",
    ),
    "fuzzing": (
        "FuzzConfig", "SeededFuzzer", "fuzz_dtypes", "fuzz_dtypes_seeded", "fuzz_layouts",
        "fuzz_layouts_seeded", "fuzz_shapes", "fuzz_shapes_seeded", "generate_random_tensor",
    ),
    "tolerances": (
        "ToleranceConfig", "ToleranceProfile", "calibrate_tolerance", "get_recommended_tolerance",
    ),
    "rng": ("SeededRng", "derive_seed", "generate_seed"),
    "frameworks": (
        "BaseAdapter", "JaxAdapter", "get_jax_adapter", "get_pytorch_adapter",
        "get_tensorflow_adapter",
    ),
}  # fmt: skip
# Not public: what `Client.minimize` does with an op of its own process
_PLACES["fuzz.minimizing"] = ("minimise_own",)
_MODULES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = [
    "AsyncClient",
    "BaseAdapter",
    "Client",
    "ClientError",
    "ConnectionError",
    "FuzzConfig",
    "FuzzResults",
    "GpuemuClient",
    "JaxAdapter",
    "MinimizeResult",
    "ReproduceResult",
    "ReproductionInfo",
    "SeededFuzzer",
    "SeededRng",
    "ToleranceConfig",
    "ToleranceProfile",
    "ValidationError",
    "ValidationResult",
    "__version__",
    "calibrate_tolerance",
    "check",
    "derive_seed",
    "fuzz_dtypes",
    "fuzz_dtypes_seeded",
    "fuzz_layouts",
    "fuzz_layouts_seeded",
    "fuzz_shapes",
    "fuzz_shapes_seeded",
    "generate_random_tensor",
    "generate_seed",
    "get_jax_adapter",
    "get_pytorch_adapter",
    "get_recommended_tolerance",
    "get_tensorflow_adapter",
    "validate_op",
]


def __getattr__(name: str) -> object:
    """Return an object by its documented name, and load its module on first use."""
    if name == "validate":
        return __import__(f"{__name__}.validate", fromlist=[name])
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(__import__(f"{__name__}.{_MODULES[name]}", fromlist=[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
