"""Build what a CUDA program needs to run here: our libcudart, and with nvcc the program itself."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import msgspec

from gpuemu_flow.emulator.native.compiler import _make_private
from gpuemu_flow.lint import toolchain
from gpuemu_flow.model.decoding import known
from gpuemu_flow.model.errors import FlowError, Problem
from gpuemu_flow.store.private_files import user_cache_folder

NATIVE = Path(__file__).parent / "native"
MOST_RUNTIMES, MOST_PROGRAMS = 4, 200
"""Largest numbers of runtimes (of several CUDA versions) and of programs in the cache."""

HEADERS = NATIVE / "include"
"""Headers of libraries that a toolkit may lack."""

COMPILE_SECONDS = 1800
_SOURCES = ("core.cpp", "runtime.cpp", "driver.cpp", "cublas.cpp", "device.h", "gpuemu.h")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w", "-fvisibility=default")
_STRINGS = {
    0: "no error", 1: "invalid argument", 2: "out of memory", 3: "initialization error",
    9: "invalid configuration argument", 12: "invalid pitch argument",
    13: "invalid device symbol", 21: "invalid copy direction for memcpy",
    35: "CUDA driver version is insufficient for CUDA runtime version",
    52: "__global__ function call is not configured", 98: "invalid device function",
    100: "no CUDA-capable device is detected", 101: "invalid device ordinal",
    200: "device kernel image is invalid", 201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    218: "a PTX JIT compilation failed", 400: "invalid resource handle",
    500: "named symbol not found", 600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch", 702: "the launch timed out and was terminated",
    710: "device-side assert triggered", 716: "misaligned address",
    719: "unspecified launch failure", 720: "too many blocks in cooperative launch",
    800: "operation not permitted", 801: "operation not supported", 999: "unknown error",
}  # fmt: skip
"""Texts of errors, as CUDA has them."""


class Toolkit(msgspec.Struct, frozen=True):
    """CUDA's headers, and nvcc where there is one."""

    include: Path
    version: int
    nvcc: str = ""

    @property
    def major(self) -> int:
        """Return the number in libcudart.so.13."""
        return self.version // 1000


def problem(slug: str, text: str, hint: str = "") -> FlowError:
    return FlowError(Problem(slug, text, hint))


def no_nvcc(what: str) -> FlowError:
    """Make the error of a source that cannot be compiled."""
    return problem(
        "exec-no-nvcc", f"nvcc is not on PATH, which compiles {what}",
        "install it (for example nvidia-cuda-nvcc), or build elsewhere, with "
        "nvcc -cudart shared -lineinfo -g",
    )  # fmt: skip


@cache
def find_toolkit() -> Toolkit:
    """Find CUDA's headers: by CUDA_HOME, CUDA_PATH, nvcc on PATH, or /usr/local/cuda."""
    nvcc = shutil.which("nvcc") or _packaged_nvcc()
    homes = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    if nvcc:
        homes += [str(Path(os.path.realpath(nvcc)).parent.parent), *_top_of(nvcc)]
    homes.append("/usr/local/cuda")
    for home in homes:
        for part in ("include", "targets/x86_64-linux/include"):
            include = Path(home) / part
            header = include / "cuda_runtime_api.h"
            if not header.is_file():
                continue
            found = re.search(
                r"#define\s+CUDART_VERSION\s+(\d+)", header.read_text(errors="replace")
            )
            own = Path(home) / "bin" / "nvcc"
            if found:
                tool = nvcc or (str(own) if own.is_file() else "")
                return Toolkit(include.resolve(), int(found[1]), tool)
    raise problem(
        "exec-no-cuda", "CUDA's headers were not found",
        "install a CUDA toolkit (no GPU is needed), or the packages nvidia-cuda-nvcc and "
        "nvidia-cuda-runtime, and set CUDA_HOME",
    )  # fmt: skip


def _packaged_nvcc() -> str:
    tool = toolchain.find_tools().first("nvcc")
    return tool.path if isinstance(tool, toolchain.Tool) else ""


def _top_of(nvcc: str) -> list[str]:
    """Ask nvcc where its toolkit is; a file on PATH may be a script that calls it."""
    try:
        done = subprocess.run(
            [nvcc, "--dryrun", "-x", "cu", "-E", "/dev/null"], capture_output=True, text=True,
            timeout=60, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    found = re.search(r"^#\$ TOP=(.+)$", done.stderr, re.M)
    return [found[1].strip()] if found else []


@cache
def cxx_compiler() -> str:
    """Find the C++ compiler once: later, CXX may name our own, which stands for it."""
    for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++"):
        path = shutil.which(name) if name else None
        if path:
            return path
    raise problem(
        "exec-no-compiler", "no C++ compiler is on PATH", "install g++; nvcc needs it, too"
    )


def cache_folder() -> Path:
    """Return the folder for what is built here, which is private to the user."""
    folder = user_cache_folder(os.environ) / "cuda"
    _make_private(folder)
    return folder


BUILD_FOLDER = "GPUEMU_BUILD"
"""Variable with the folder for what a sandboxed program builds, in place of `cache_folder`."""


def compilers(toolkit: Toolkit) -> list[str]:
    """Name the compilers, each with its present size and time; open each, which a listener sees."""
    found = []
    cicc = toolkit.include.parent / "nvvm" / "bin" / "cicc"
    for tool in (toolkit.nvcc, str(cicc), cxx_compiler()):
        try:
            with Path(os.path.realpath(tool)).open("rb") as file:
                state = os.fstat(file.fileno())
        except OSError:
            continue
        found.append(f"{tool} {state.st_size} {state.st_mtime_ns}")
    return found


def runtime_library(folder: Path) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    """Load our libcudart and its core from the runtime's folder, for all libraries to come."""
    name = next(path.name for path in folder.glob("libcudart.so.*"))
    runtime = ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    core = ctypes.CDLL(str(folder / "libgpuemu.so"))
    core.gpuemu_report.restype = ctypes.c_void_p
    core.gpuemu_unwritten.restype = ctypes.c_size_t
    return runtime, core


def keep_newest(folder: Path, prefix: str, most: int) -> None:
    """Remove the folders of a prefix that were used longest ago, beyond `most` of them."""
    found = [(e.stat().st_mtime, e.path) for e in os.scandir(folder) if e.name.startswith(prefix)]
    for _, path in sorted(found)[: max(0, len(found) - most)]:
        shutil.rmtree(path, ignore_errors=True)


def digest(*parts: bytes | str) -> str:
    made = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        made.update(len(data).to_bytes(8, "little") + data)
    return made.hexdigest()[:32]


class Ran(msgspec.Struct):
    """How a compiler ended, and what it said."""

    code: int
    said: str


def run_here(command: Sequence[str], folder: str | None) -> Ran:
    """Run a compiler as a child of this process."""
    ran = toolchain.run_tool(command, timeout=COMPILE_SECONDS, cwd=folder)
    if ran.status is None:
        return Ran(1, f"{command[0]} was {ran.stopped}")
    return Ran(ran.status, (ran.stdout + ran.stderr).decode(errors="replace").strip())


run_by: list[Callable[[Sequence[str], str | None], Ran]] = [run_here]
"""What runs compilers: the last one; a worker's own process has each open of a file recorded."""


def run_tool(command: Sequence[str], what: str, folder: Path | None = None) -> None:
    ran = run_by[-1](command, str(folder) if folder else None)
    if ran.code:
        raise problem("exec-build", f"{what} failed:\n{ran.said[-4000:]}")


def runtime_folder(toolkit: Toolkit) -> Path:
    """Return the folder with our libcudart, libcuda and their core; build them at the first use."""
    header = toolkit.include / "cuda_runtime_api.h"
    types = toolkit.include / "driver_types.h"
    cxx = cxx_compiler()
    key = digest(
        *((NATIVE / name).read_bytes() for name in _SOURCES), header.read_bytes(),
        types.read_bytes(), cxx, Path(__file__).read_bytes(),
    )  # fmt: skip
    folder = cache_folder() / f"runtime-{key}"
    if folder.is_dir():
        os.utime(folder)
        return folder
    keep_newest(cache_folder(), "runtime-", MOST_RUNTIMES - 1)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as name:
        made, work = Path(name) / "lib", Path(name) / "work"
        made.mkdir()
        work.mkdir()
        _build_runtime(toolkit, cxx, made, work)
        try:
            made.rename(folder)
        except OSError:  # another process was quicker
            if not folder.is_dir():
                raise
    return folder


def _build_runtime(toolkit: Toolkit, cxx: str, made: Path, work: Path) -> None:
    include = [f"-I{NATIVE}", f"-I{work}", f"-I{toolkit.include}"]
    origin = "-Wl,-rpath,$ORIGIN"
    core = made / "libgpuemu.so"
    compile_ = [cxx, *_FLAGS, *include]
    what = "building the runtime"
    linker = ["-Wl,-soname,libgpuemu.so", "-o", str(core)]
    run_tool([*compile_, str(NATIVE / "core.cpp"), *linker], what)
    types = (toolkit.include / "driver_types.h").read_text(errors="replace")
    codes = types[types.index("cudaSuccess") :]
    codes = codes[: codes.index("};")]
    pairs = re.findall(r"\b(cuda(?:Error\w+|Success))\s*=\s*(\d+)", codes)
    names = "".join(f'{{{code}, "{name}"}},\n' for name, code in pairs)
    strings = "".join(f'{{{code}, "{text}"}},\n' for code, text in _STRINGS.items())
    (work / "names.inc").write_text(
        f"static const struct {{ int code; const char* name; }} names_[] = {{\n{names}}};\n"
        f"static const struct {{ int code; const char* text; }} strings_[] = {{\n{strings}}};\n"
    )
    soname = f"libcudart.so.{toolkit.major}"
    header = (toolkit.include / "cuda_runtime_api.h").read_text(errors="replace")
    known = sorted(set(re.findall(r"CUDARTAPI\w*\s+(cuda\w+)\s*\(", header)))
    threaded = set(re.findall(r"__CUDART_API_(PTDS|PTSZ)\((cuda\w+)\)", header))
    aliases = [f"-Wl,--defsym={name}_{kind.lower()}={name}" for kind, name in sorted(threaded)
               if name in known]  # fmt: skip
    _stubs(work / "stubs.cpp", known, "gpuemu_missing")
    (work / "version.map").write_text(f"{soname} {{ global: cuda*; __cuda*; local: *; }};\n")
    run_tool([cxx, "-w", "-O1", "-fPIC", "-c", "stubs.cpp", "-o", "stubs.o"], what, work)
    parts = [str(NATIVE / "runtime.cpp"), "stubs.o", str(core), origin, *aliases]
    linker = ["-Wl,--version-script=version.map", f"-Wl,-soname,{soname}"]
    run_tool([*compile_, *parts, *linker, "-o", str(made / soname)], what, work)
    (made / "libcudart.so").symlink_to(soname)
    header = (toolkit.include / "cuda.h").read_text(errors="replace")
    renamed = dict(re.findall(r"^#define\s+(cu\w+)\s+(cu\w+_v\d)\s*$", header, re.M))
    known = sorted({*re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", header), *renamed.values()})
    _stubs(work / "stubs.cpp", known, "gpuemu_driver_missing")
    run_tool([cxx, "-w", "-O1", "-fPIC", "-c", "stubs.cpp", "-o", "stubs.o"], what, work)
    parts = [str(NATIVE / "driver.cpp"), "stubs.o", str(core), origin, "-ldl"]
    linker = ["-Wl,-soname,libcuda.so.1", "-o", str(made / "libcuda.so.1")]
    run_tool([*compile_, *parts, *linker], what, work)
    (made / "libcuda.so").symlink_to("libcuda.so.1")
    soname = f"libcublas.so.{toolkit.major}"
    (work / "version.map").write_text(f"{soname} {{ global: cublas*; local: *; }};\n")
    parts = [f"-I{HEADERS}", str(NATIVE / "cublas.cpp"), str(core), origin]
    linker = ["-Wl,--version-script=version.map", f"-Wl,-soname,{soname}"]
    run_tool([*compile_, *parts, *linker, "-o", str(made / soname)], what, work)
    (made / "libcublas.so").symlink_to(soname)


def _stubs(path: Path, names: Sequence[str], missing: str) -> None:
    """Write weak functions that say that they are missing; ours replace those that exist."""
    lines = [f'__attribute__((weak)) int {n}(void) {{ return {missing}("{n}"); }}' for n in names]
    declared = f"int {missing}(const char *);"
    path.write_text('extern "C" {\n' + "\n".join([declared, *lines]) + "\n}\n")


# -------------------------------------------------------------------- programs
class _Built(msgspec.Struct):
    inputs: dict[str, str]


class Kept:
    """What was built from some inputs; a digest names those that are known before the build."""

    def __init__(self, kind: str, key: str) -> None:
        given = os.environ.get(BUILD_FOLDER)
        self.folder = (Path(given) if given else cache_folder()) / kind / key
        self._note = self.folder / "inputs.json"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let one process at a time build it; the others find it afterwards."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keep_newest(self.folder.parent, "", MOST_PROGRAMS)
        with (self.folder / "lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def is_current(self) -> bool:
        try:
            built = msgspec.json.decode(self._note.read_bytes(), type=known(_Built))
        except (OSError, msgspec.DecodeError):
            return False
        os.utime(self.folder)
        return all(_file_digest(path) == before for path, before in built.inputs.items())

    def own(self, headers: Iterable[str]) -> list[str]:
        """Leave out the headers of compilers, CUDA and PyTorch, whose versions are in the key."""
        given = (str(find_toolkit().include), "/usr/", str(cache_folder()), str(NATIVE.parent))
        return [h for h in headers if not h.startswith(given) and "/site-packages/torch/" not in h]

    def keep(self, made: Path, inputs: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Move a file that was built here, with the digests of what went into it. Headers that
        would be found first in one of the include `folders` must stay absent."""
        used = [os.path.normpath(path) for path in self.own(inputs)]
        around = [os.path.normpath(folder) for folder in folders]
        names = {os.path.relpath(p, f) for p in used for f in around if p.startswith(f"{f}/")}
        used += [f"{folder}/{name}" for folder in around for name in sorted(names)]
        self._note.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            moved = Path(shutil.move(made, name))
            moved.replace(self.folder / made.name)
            note = Path(name) / "note"
            note.write_bytes(
                msgspec.json.encode(_Built({path: _file_digest(path) for path in used}))
            )
            note.replace(self._note)


def nvcc_flags(arch: int) -> list[str]:
    return [
        "-cudart",
        "shared",
        "-lineinfo",
        "-g",
        "-gencode",
        f"arch=compute_{arch},code=compute_{arch}",
    ]


def build_program(sources: Sequence[Path], flags: Sequence[str], arch: int) -> Path:
    """Compile a program of ``.cu`` files; an unchanged one is taken from the cache."""
    toolkit = find_toolkit()
    if not toolkit.nvcc:
        raise no_nvcc(str(sources[0]))
    places = [str(path.resolve()) for path in sources]
    options = [
        *([] if any(f.startswith("-O") for f in flags) else ["-O1"]),
        *nvcc_flags(arch),
        *flags,
    ]
    kept = Kept("programs", digest(*compilers(toolkit), *options, "\0", *places))
    program = kept.folder / "program"
    with kept.alone(), tempfile.TemporaryDirectory() as name:
        if kept.is_current():
            return program
        made, depends = Path(name) / "program", Path(name) / "depends"
        command = [toolkit.nvcc, *options, *_libraries(toolkit, places), *places, "-o", str(made)]
        if len(places) == 1:
            command += ["-MD", "-MF", str(depends)]
        run_tool(command, f"nvcc {' '.join(str(s) for s in sources)}")
        inputs = [*places, *(str(Path(flag).resolve()) for flag in flags if Path(flag).is_file())]
        if depends.is_file():
            text = depends.read_text(errors="replace").replace("\\\n", " ").partition(":")[2]
            inputs += re.findall(r"(?:[^\s\\]|\\.)+", text)
        folders = [*(str(Path(place).parent) for place in places), *_include_folders(flags)]
        kept.keep(made, inputs, folders)
    return program


def _include_folders(flags: Sequence[str]) -> list[str]:
    """List the folders that flags such as ``-Iinclude`` and ``-I include`` name."""
    words = " ".join(flags).replace("-I ", "-I").split()
    return [str(Path(word[2:]).absolute()) for word in words if word.startswith("-I")]


def _libraries(toolkit: Toolkit, sources: Sequence[str]) -> list[str]:
    """Return flags for the libraries that sources include headers of."""
    text = "".join(Path(source).read_text(errors="replace") for source in sources)
    flags = [f"-L{runtime_folder(toolkit)}"]
    if re.search(r"#\s*include\s*[<\"]cublas", text):
        flags.append("-lcublas")
        if not (toolkit.include / "cublas_v2.h").is_file():
            flags.append(f"-I{HEADERS}")
    if re.search(r"#\s*include\s*[<\"]cuda\.h[>\"]", text):
        flags.append("-lcuda")
    return flags


def _file_digest(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
