"""Workspace files that a script runs, found by following its imports without running it."""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from gpuemu_flow.build.files import glob_files
from gpuemu_flow.config.model import ConfigFile, OpConfig, ProgramRef
from gpuemu_flow.model.syntax import constants_of, tree_of
from gpuemu_flow.model.types import Json
from gpuemu_flow.store.keys import digest_bytes, digest_json
from gpuemu_flow.workers.sandbox.fence import Fence, OffLimits, off_limits
from gpuemu_flow.workers.sandbox.spec import OFF

_LONGEST_FIRST_LINE = 512
_MENTIONS_IMPORT = re.compile(rb"^\s*(?:from|import)\s|import_module|__import__", re.MULTILINE)
_STDLIB = sys.stdlib_module_names
CPP_EXTENSION = "torch.utils.cpp_extension"
NO_EXTENSIONS = ("torch", "numpy", "triton", "jax", "scipy", "ml_dtypes", "torchvision")
"""Packages that are known not to be built by `CUDAExtension`; there are too many files to look."""
_CUDA_LIBRARIES = ("libcudart.so", "libc10_cuda.so", "libtorch_cuda.so", "libgpuemu_torch.so")


class Closure(Struct, frozen=True):
    """The files and packages of one program."""

    files: tuple[str, ...]
    packages: tuple[str, ...]


class SourceIndex(Struct):
    """Follows imports, reading and parsing each file once. A static scan sees ``import a.b``,
    ``from . import c`` and constant arguments of ``import_module``; files that it cannot see (those
    opened by name, computed imports) have to be named with ``depends`` in the configuration."""

    root: Path
    _parsed: dict[Path, frozenset[tuple[int, str]]] = field(default_factory=dict)
    _contents: dict[Path, str] = field(default_factory=dict)
    _constants: dict[Path, list[float]] = field(default_factory=dict)
    _closures: dict[tuple[Path, frozenset[Path]], Closure] = field(default_factory=dict)
    _absent: set[Path] = field(default_factory=set)
    _modules: dict[tuple[Path, str], list[Path]] = field(default_factory=dict)

    def closure(self, script: Path, *, without: frozenset[Path] = frozenset()) -> Closure:
        """Return all files and packages of the program that starts at `script`."""
        known = self._closures.get((script, without))
        if known is not None:
            return known
        files: set[Path] = set()
        packages: set[str] = set()
        pending = [script]
        while pending:
            path = pending.pop()
            if path in files or path in without:
                continue
            files.add(path)
            for level, name in self._imports(path):
                found = self._resolve(name, level, path, script.parent)
                pending.extend(found)
                top = name.partition(".")[0]
                if not found and level == 0 and top and top not in _STDLIB:
                    packages.add(top)
        closure = Closure(
            tuple(sorted(self.relative(path) for path in files)), tuple(sorted(packages))
        )
        self._closures[script, without] = closure
        return closure

    def uses_cuda(self, script: Path) -> bool:
        """Tell whether a program builds an extension with CUDA, or imports one that is built."""
        if script.suffix == ".json":  # a solution of FlashInfer-Bench holds its sources as text
            return b"cpp_extension" in script.read_bytes()
        closure = self.closure(script)
        names = {name for file in closure.files for _, name in self._imports(self.root / file)}
        if any(name.startswith(CPP_EXTENSION) for name in names):
            return True
        folders = (str(script.parent), str(self.root), *sys.path)
        return "torch" in closure.packages and any(
            is_cuda_package(name, folders) for name in closure.packages if name not in NO_EXTENSIONS
        )

    def can_follow(self, path: Path) -> bool:
        """Tell whether a program is a file of Python source, so that its imports can be read."""
        try:
            return _is_python(path, path.read_bytes()[:_LONGEST_FIRST_LINE])
        except OSError:
            return False

    def imports_digest(self, path: Path) -> str:
        """Return a digest of a file's imports, and of the constants that cases are made from. As
        long as this digest stays the same, the graph is assumed not to change with the file."""
        return digest_json([sorted(self._imports(path)), self._constants.get(path, [])])

    def content_digest(self, path: Path) -> str:
        self._imports(path)
        return self._contents[path]

    @property
    def absent(self) -> list[str]:
        """Return the files and folders that an import would have found first, had they existed.
        When one of them appears, the same import may mean another module."""
        return sorted(self.relative(path) for path in self._absent)

    def module_file(self, name: str) -> Path | None:
        found = self._module_files(self.root, name)
        return found[-1] if found else None

    def packages_around(self, name: str) -> list[Path]:
        """Return the ``__init__`` files that ``import name`` runs before the module's own file."""
        return self._module_files(self.root, name)[:-1]

    def relative(self, path: Path) -> str:
        """Return a path relative to the workspace if it lies inside, else unchanged."""
        if path.is_relative_to(self.root):
            return path.relative_to(self.root).as_posix()
        return path.as_posix()

    def _imports(self, path: Path) -> frozenset[tuple[int, str]]:
        known = self._parsed.get(path)
        if known is not None:
            return known
        names: frozenset[tuple[int, str]] = frozenset()
        self._contents[path] = ""
        try:
            source = path.read_bytes()
            self._contents[path] = digest_bytes(source)
            self._constants[path] = constants_of(source, suffix=path.suffix)
            if _is_python(path, source) and _MENTIONS_IMPORT.search(source):
                names = frozenset(_imported_names(tree_of(source)))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            # A script that does not parse is reported when it is run, with its own traceback.
            names = frozenset()
        self._parsed[path] = names
        return names

    def imported(self, name: str, level: int, importer: Path, script_folder: Path) -> list[Path]:
        """Return the workspace files that an import runs, the module's own file last."""
        return self._resolve(name, level, importer, script_folder)

    def _resolve(self, name: str, level: int, importer: Path, script_folder: Path) -> list[Path]:
        if level:
            base = importer.parent
            for _ in range(level - 1):
                base = base.parent
            return self._module_files(base, name)
        for base in (script_folder, self.root):
            found = self._module_files(base, name)
            if found:
                return found
        return []

    def _module_files(self, base: Path, name: str) -> list[Path]:
        """Return the files that importing the module `name` from the folder `base` would run. The
        ``__init__`` files of the packages around the module come first. The list is empty if `base`
        does not contain the module."""
        if (base, name) not in self._modules:
            self._modules[base, name] = self._find_module(base, name)
        return self._modules[base, name]

    def _find_module(self, base: Path, name: str) -> list[Path]:
        found: list[Path] = []
        folder = base
        parts = [p for p in name.split(".") if p]
        if not parts:
            init = base / "__init__.py"
            return [init] if self._is_file(init) else []
        for n, part in enumerate(parts):
            module = folder / f"{part}.py"
            package = folder / part
            init = package / "__init__.py"
            if self._is_file(init):
                found.append(init)
                folder = package
            elif self._is_file(module):
                found.append(module)
                break
            elif package.is_dir() and (n + 1 < len(parts) or found):
                folder = package
            else:
                if not package.exists():
                    self._absent.add(package)
                break
        return found

    def _is_file(self, path: Path) -> bool:
        found = path.is_file()
        if not found:
            self._absent.add(path)
        return found


def _is_python(path: Path, source: bytes) -> bool:
    """Tell whether a file is Python source, by its name or by the interpreter that it asks for."""
    first = source[:_LONGEST_FIRST_LINE].partition(b"\n")[0]
    return path.suffix == ".py" or (first.startswith(b"#!") and b"python" in first)


@functools.cache
def is_cuda_package(name: str, folders: tuple[str, ...]) -> bool:
    """Tell whether a module, or a library of a package, is linked with CUDA's runtime."""
    # Most workspaces have no such library.
    from gpuemu_flow.emulator.host.places import needed_libraries  # noqa: PLC0415

    for folder in folders:
        found = [*Path(folder).glob(f"{name}.*.so"), *Path(folder, name).glob("*.so")]
        for library in (*found, *Path(folder, name).glob("*/*.so")):
            if any(n.startswith(_CUDA_LIBRARIES) for n in needed_libraries(library) or ()):
                return True
    return False


def _imported_names(tree: ast.Module) -> set[tuple[int, str]]:
    """Return the level and dotted name of each import. The level is the number of leading dots.
    ``from a import b`` gives both ``a`` and ``a.b``."""
    names: set[tuple[int, str]] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names.add((node.level, module))
            names.update(
                (node.level, f"{module}.{alias.name}".lstrip("."))
                for alias in node.names
                if alias.name != "*"
            )
        elif isinstance(node, ast.Call) and node.args:
            function = node.func
            called = function.attr if isinstance(function, ast.Attribute) else None
            called = function.id if isinstance(function, ast.Name) else called
            argument = node.args[0]
            if (
                called in ("import_module", "__import__")
                and isinstance(argument, ast.Constant)
                and isinstance(argument.value, str)
            ):
                names.add((0, argument.value))
    return names


# List the files that an op may not read: its reference, the reference's imports, this tool's.


class ForbiddenFiles:
    """Lists the files of one workspace that its ops may not read or write."""

    def __init__(
        self, root: Path, cache: Path, config: Iterable[ConfigFile], sources: SourceIndex
    ) -> None:
        self._root = root
        self._cache = cache
        self._config = [file.path for file in config]
        self._sources = sources

    def off_limits(self, op: OpConfig, program: ProgramRef, *beside: ProgramRef) -> OffLimits:
        """List the files that the op's process must not touch."""
        judges, made_of = self._judges(op)
        alone = (self._root / path for path in self._alone(op, program, *beside))
        sources = (*(self._root / path for path in made_of), *self._config)
        return off_limits(
            program.files, (*judges, *alone), sources, cache=self._cache, root=self._root
        )

    def key(
        self, fence: Fence, op: OpConfig, program: ProgramRef, off_limits: OffLimits
    ) -> dict[str, Json]:
        """Return the sandbox's properties, as a part of the op's cache key. The key changes if a
        file that the op could read becomes part of the reference. Results of the op that were
        cached before are then not used."""
        key = fence.key()
        if key["level"] == OFF:
            return key
        starts, _ = self._judges(op)
        own = tuple(self.own(op, program))
        shared = fence.shared(own)
        imported = {
            f for start in self._starts(program) for f in self._sources.closure(start).files
        }
        references = {f for f in imported if str(self._root / f) in fence.references}
        others = references.difference(map(self._relative, shared))
        named = map(self._sources.relative, set(starts) - set(self._starts(program)))
        parts = {
            "hidden": sorted({*self._alone(op, program), *named, *others}),
            "own": [self._relative(path) for path in fence.own_apart(off_limits, own)],
            "shared": [self._relative(path) for path in shared],
        }
        return {**key, **{name: paths for name, paths in parts.items() if paths}}

    def _relative(self, path: str) -> str:
        return self._sources.relative(Path(path))

    def known(self, op: OpConfig, program: ProgramRef) -> tuple[str, ...]:
        _, found = self._judges(op)
        own = self._starts(program)
        starts = [*own, *op.reference.files, *(f for r in op.compares for f in r.files)]
        found.update(f for start in starts for f in self._sources.closure(start).files)
        found.update(map(self._sources.relative, (*self._config, *starts)))
        for pattern in (*op.depends, *op.shared):
            found.update(glob_files(self._root, pattern))
        return tuple(sorted(found))

    def own(self, op: OpConfig, *programs: ProgramRef) -> Iterator[str]:
        """Yield the absolute paths of the files that the configuration names as the op's. Files
        that the op imports are not among them, since an untrusted op could import any file."""
        for ref in programs:
            yield from map(str, ref.files)
        for pattern in (*op.depends, *op.shared):
            yield from (str(self._root / path) for path in glob_files(self._root, pattern))

    def _starts(self, program: ProgramRef) -> list[Path]:
        """Return a program's files and, for a module, the ``__init__`` files run on its import."""
        around = self._sources.packages_around(program.module) if program.module else []
        return [*program.files, *around]

    def _judges(self, op: OpConfig) -> tuple[tuple[Path, ...], set[str]]:
        """Return the files of the reference and of other judging functions, and their imports."""
        starts = tuple(start for ref in (op.reference, *op.compares) for start in ref.files)
        return starts, {f for start in starts for f in self._sources.closure(start).files}

    def _alone(self, op: OpConfig, *programs: ProgramRef) -> list[str]:
        """Return the Python files that only the judging functions of an op import, sorted.

        The judging functions are the reference and the functions in `OpConfig.compares`. Three
        kinds of files are left out:

        - the files of the judging functions themselves;
        - files that the settings ``depends`` or ``shared`` name;
        - files that one of the programs imports, unless the program reaches them only by importing
          a judging function.

        If a program is not Python source, its imports are unknown, and the result is empty.
        """
        starts, made_of = self._judges(op)
        own = {start for program in programs for start in self._starts(program)}
        if not all(map(self._sources.can_follow, own)):
            return []
        judges = frozenset(starts) - own
        seen = {f for start in own for f in self._sources.closure(start, without=judges).files}
        for pattern in (*op.depends, *op.shared):
            seen.update(glob_files(self._root, pattern))
        named = {self._sources.relative(start) for start in starts}
        return sorted(path for path in made_of - seen - named if path.endswith(".py"))
