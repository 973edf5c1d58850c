"""Choose the environment variables that programs receive.

This is an allow-list. Kernels need no CI tokens, passwords or proxies, and results must not depend
on unknown variables. The entry point `front` loads this module at every start, so this module
imports nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ANY = "*"
"""At the end of a configured name, stands for any further characters; alone, for any name."""
USER_CACHE = "GPUEMU_USER_CACHE"
"""Variable with the path of the user's cache, for workers, whose ``HOME`` is another folder. No
program receives it."""

NAMES = frozenset({
    # what finds programs and libraries
    "PATH", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "CC", "CXX",
    # which Python, and other languages' like
    "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYENV_ROOT", "PYENV_VERSION",
    "CARGO_HOME", "RUSTUP_HOME", "RUSTUP_TOOLCHAIN", "JULIA_DEPOT_PATH", "NIX_LD",
    "NIX_LD_LIBRARY_PATH",
    # place and time
    "LANG", "LANGUAGE", "LOCPATH", "TZ", "TZDIR", "USER", "LOGNAME", "TMPDIR",
    "SOURCE_DATE_EPOCH",
    # frameworks
    "TF_DETERMINISTIC_OPS", "HF_HOME",
    # our own
    "GPUEMU_CC", "GPUEMU_TRITON_CONFIG", "GPUEMU_TRITON_ORDER",
})  # fmt: skip
PREFIXES = (
    "LC_", "LD_", "DYLD_", "MALLOC_", "GLIBC_", "PYTHON",
    # threads and linear algebra
    "OMP_", "GOMP_", "KMP_", "LIBOMP_", "OPENBLAS_", "GOTO_", "BLIS_", "MKL_", "MKLDNN_", "DNNL_",
    "ONEDNN_", "VECLIB_", "NUMEXPR_", "NPY_", "NUMPY_",
    # devices
    "CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NVCC_", "HIP_", "HSA_", "ROCM_", "ROCR_",
    # frameworks; not all of TF_, which Terraform's secrets begin with, too
    "TRITON_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_", "ATEN_", "JAX_", "XLA_",
    "TF_CPP_", "TF_CUDNN_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_", "TF_NUM_", "TF_USE_", "TF_XLA_",
    "KERAS_", "NUMBA_", "CUPY_", "FLAGGEMS_", "TILELANG_", "TVM_", "MPL",
)  # fmt: skip
_SECRET = frozenset({
    "AUTH", "CREDENTIAL", "CREDENTIALS", "KEY", "KEYS", "PASSWD", "PASSWORD", "SECRET", "SECRETS",
    "TOKEN", "TOKENS",
})  # fmt: skip
"""Words of secrets. A name with such a word is not general, even with one of the `PREFIXES`."""


def is_general(name: str) -> bool:
    """Tell whether a variable is one that every program receives."""
    if name in NAMES:
        return True
    return name.startswith(PREFIXES) and _SECRET.isdisjoint(name.upper().split("_"))


def is_named(name: str, names: "Iterable[str]") -> bool:
    """Tell whether a variable matches one of the configured `names`, such as ``MY_*``."""
    return any(
        name.startswith(known[:-1]) if known.endswith(ANY) else name == known for known in names
    )


def let_through(environ: "Mapping[str, str]", names: "Iterable[str]" = ()) -> dict[str, str]:
    """Return the part of the environment that a program receives."""
    known = tuple(names)
    return {n: v for n, v in environ.items() if is_general(n) or is_named(n, known)}


_user_cache = ""


def keep_user_cache(folder: str) -> None:
    """Make `user_cache_of` return `folder` from now on; an empty `folder` undoes this."""
    global _user_cache  # noqa: PLW0603 - a process has one
    _user_cache = folder


def user_cache_of(environ: "Mapping[str, str]") -> str:
    """Return ``$XDG_CACHE_HOME/gpuemu-flow``, else ``~/.cache/gpuemu-flow``, else an empty text."""
    if _user_cache:
        return _user_cache
    given, home = environ.get("XDG_CACHE_HOME", ""), environ.get("HOME", "")
    # The XDG specification: a relative path is to be ignored.
    if given.startswith("/"):
        return f"{given}/gpuemu-flow"
    return f"{home}/.cache/gpuemu-flow" if home else ""


def named(environ: "Mapping[str, str]", names: "Iterable[str]") -> dict[str, str]:
    """Return the environment variables that match configured `names`, such as ``MY_*``."""
    known = tuple(names)
    if not known:
        return {}
    return {name: value for name, value in environ.items() if is_named(name, known)}
