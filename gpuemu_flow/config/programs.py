"""Parse programs: the values of ``op``, ``op_script``, ``module`` and ``reference``."""

from __future__ import annotations

import ast
import hashlib
import json
import keyword
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.model import ProgramRef
from gpuemu_flow.config.paths import WorkspacePaths, exists, is_file
from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shown
from gpuemu_flow.model.errors import AddKey, Hint
from gpuemu_flow.model.installed import is_installed
from gpuemu_flow.model.syntax import tree_of
from gpuemu_flow.model.types import FRAMEWORK_KINDS, XLA_COMPILED, XLA_STEPWISE, Json

# Read the keys ``loads``, ``triton_if`` and ``skip_if`` of a program that a loader makes.


LOADED_KEYS = ("loads", "triton_if", "skip_if")
MOST_LOADED = 4 << 20


def with_loaded(
    ref: ProgramRef,
    table: Mapping[str, Json],
    where: KeyPath,
    workspace: WorkspacePaths,
    out: Reporter,
    looked_into: dict[Path, str],
) -> ProgramRef | None:
    """Add the file that ``loads`` names to a program; return None if a problem was reported.
    Without ``loads``, the program is returned unchanged."""
    if "loads" not in table:
        for key in LOADED_KEYS[1:]:
            if key in table:
                place = (*where, key)
                text = f"{dotted(place)} has no effect without loads"
                out.add("config-unread-key", place, text, 'loads = "candidates/a.py"')
        return ref
    place = (*where, "loads")
    path = workspace.existing_file(table["loads"], place, out)
    if path is None:
        return None
    relative = workspace.relative(path)
    ref = replace(
        ref,
        loads=path,
        loads_relative=relative,
        text=f"{ref.text}({table['loads']})",
        files=(*ref.files, path),
    )
    wanted = {key: table.get(key, []) for key in LOADED_KEYS[1:]}
    if not any(wanted.values()):
        return ref
    content = _content_of(path, place, out)
    if content is None:
        return None
    looked_into[path] = hashlib.sha256(content).hexdigest()
    found = {
        key: next((word for word in words if word.encode() in content), "")
        for key, words in wanted.items()
    }
    if b"cpp_extension" in content and not found["skip_if"]:
        return ref  # it brings its kernels itself, to the emulated GPU
    if found["skip_if"]:
        ref = replace(ref, skip=f"{relative} holds {shown(found['skip_if'])} (skip_if)")
    return replace(ref, kind="triton") if found["triton_if"] else ref


def _content_of(path: Path, place: KeyPath, out: Reporter) -> bytes | None:
    fault = ""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_LOADED + 1)
    except OSError as error:
        fault = f"cannot be read: {error.strerror or error}"
    else:
        if len(content) <= MOST_LOADED:
            return content
        fault = f"has more than {MOST_LOADED >> 20} MiB"
    out.add("config-value", place, f"{dotted(place)} = {shown(path.name)} {fault}")
    return None


_INTERPRETER = re.compile(r"python(?:3(?:\.\d+)?)?\s+(?=\S)")
_FILE_FUNCTION = re.compile(r"(.+\.py):(.*)", re.DOTALL)
_MODULE_FUNCTION = re.compile(r"([^/\\:\s]+):([^/\\:\s]*)")


class Programs(Struct):
    """Parses the programs of one file."""

    workspace: WorkspacePaths
    out: Reporter
    # The keys are the program files that were searched for the words of ``triton_if`` or
    # ``skip_if``. The value is the digest of the file's content.
    looked_into: dict[Path, str] = {}

    def parse(self, value: Json, where: KeyPath) -> ProgramRef | None:
        """Parse a program from its value in the file; return None if a problem was reported."""
        if isinstance(value, dict):
            return self.of_kind(value, where) if "kind" in value else None
        if isinstance(value, list):
            return self.command(value, where)
        text = value.strip()
        stripped = _INTERPRETER.sub("", text, count=1)
        by_file = _FILE_FUNCTION.fullmatch(stripped)
        if by_file:
            return self.function_of_file(by_file[1], by_file[2], where, text)
        if stripped.endswith(".py"):
            return self.script(stripped, where, text)
        by_module = _MODULE_FUNCTION.fullmatch(stripped)
        if by_module:
            return self.function_of_module(by_module[1], by_module[2], where, text)
        return self.executable(stripped, where, text, python=stripped != text)

    def of_kind(self, table: Mapping[str, Json], where: KeyPath) -> ProgramRef | None:
        kind = table["kind"]
        compiled = kind == "triton" and table.get("mode") == "compiled"
        read = {"kind", *KEYS[kind], *(("arch", "checks") if compiled else ())}
        if "module_class" in table and "function" in table:
            read -= {"module_class"}
        if "function" in table:
            read -= {"init", "seed"}
        for key in table:
            if key not in read:
                place = (*where, key)
                fault = f"{dotted(place)} has no effect in a program of kind {kind!r}"
                hint = f"it reads {', '.join(sorted(read - {'kind'}))}"
                self.out.add("config-unread-key", place, fault, hint)
        return KINDS[kind](self, table, where)

    def ref(
        self,
        kind: str,
        where: KeyPath,
        text: str,
        path: Path | None = None,
        *,
        module: str = "",
        function: str = "",
        argv: tuple[str, ...] = (),
        files: tuple[Path, ...] = (),
    ) -> ProgramRef:
        return ProgramRef(
            kind=kind,
            path=path,
            module=module,
            function=function,
            argv=argv,
            portable_argv=tuple(map(self.portable, argv)),
            text=text,
            relative=self.workspace.relative(path) if path else "",
            files=files or ((path,) if path else ()),
            file=self.out.file,
            line=self.out.line(where),
        )

    def portable(self, argument: str) -> str:
        path = Path(argument)
        return self.workspace.relative(path) if path.is_absolute() else argument

    def with_loaded(
        self, ref: ProgramRef, table: Mapping[str, Json], where: KeyPath
    ) -> ProgramRef | None:
        return with_loaded(ref, table, where, self.workspace, self.out, self.looked_into)

    def script(self, name: str, where: KeyPath, text: str) -> ProgramRef | None:
        path = self.workspace.existing_file(name, where, self.out)
        return self.ref("script", where, text, path) if path else None

    def function_of_file(
        self, name: str, function: str, where: KeyPath, text: str
    ) -> ProgramRef | None:
        path = self.workspace.existing_file(name, where, self.out)
        if not self.identifier(function, where) or path is None:
            return None
        return self.ref("callable", where, text, path, function=function)

    def function_of_module(
        self, module: str, function: str, where: KeyPath, text: str
    ) -> ProgramRef | None:
        if not all(_is_name(part) for part in module.split(".")):
            fault = f"{dotted(where)}: {shown(module)} is no dotted module path"
            self.out.add("config-value", where, fault, "pkg.mod:function or path.py:function")
            return None
        if not all(self.identifier(part, where) for part in function.split(".")):
            return None
        path = self.module_file(module, where)
        if path is None and self.is_workspace_package(module):
            fault = f"{dotted(where)}: no module {module} in the workspace"
            self.out.add("config-path-missing", where, fault)
            return None
        return self.ref("callable", where, text, path, module=module, function=function)

    def module_file(self, module: str, where: KeyPath) -> Path | None:
        stem = Path(*module.split("."))
        for place in (stem.with_suffix(".py"), stem / "__init__.py"):
            path = self.workspace.root / place
            if is_file(path):
                return self.workspace.resolve(str(path), where, self.out)
            self.workspace.probed.add(path)
        return None

    def is_workspace_package(self, module: str) -> bool:
        top = self.workspace.root / module.split(".", maxsplit=1)[0]
        return any(map(is_file, (top.with_suffix(".py"), top / "__init__.py")))

    def identifier(self, name: str, where: KeyPath) -> bool:
        if _is_name(name):
            return True
        fault = f"{dotted(where)}: {shown(name)} is no name of a function"
        self.out.add("config-value", where, fault, "write it as path.py:function")
        return False

    def executable(
        self, name: str, where: KeyPath, text: str, *, python: bool
    ) -> ProgramRef | None:
        path = self.workspace.resolve(name, where, self.out)
        if path is None:
            return None
        if not exists(path) and any(c.isspace() for c in name):
            try:
                words = shlex.split(text)
            except ValueError:
                words = text.split()
            fault = f"{dotted(where)}: there is no file {shown(name)}"
            listed = "[" + ", ".join(f'"{w}"' for w in words) + "]"
            self.out.add("config-path-missing", where, fault, f"for arguments write {listed}")
            return None
        path = self.workspace.existing_file(name, where, self.out)
        if path is None:
            return None
        if python:
            return self.ref("script", where, text, path)
        return self.runnable(path, where, text, (str(path),))

    def runnable(
        self, path: Path, where: KeyPath, text: str, argv: tuple[str, ...]
    ) -> ProgramRef | None:
        if path not in self.workspace.made and not os.access(path, os.X_OK):
            fault = f"{dotted(where)}: {shown(text)} is not executable"
            hint = f"chmod +x {shlex.quote(self.workspace.relative(path))}"
            self.out.add("config-not-executable", where, fault, hint)
            return None
        return self.ref("command", where, text, path, argv=argv, files=(path,))

    def command(self, argv: list[str], where: KeyPath) -> ProgramRef | None:
        """Parse a command: a list of an executable and its arguments, run without a shell."""
        text = shlex.join(argv)
        if not argv[0].strip():
            self.out.add("config-value", where, f"{dotted(where)} names an empty executable")
            return None
        files = [found for found in map(self.file_argument, argv[1:]) if found]
        if "/" not in argv[0]:
            path = files[0] if files else None
            return self.ref("command", where, text, path, argv=tuple(argv), files=tuple(files))
        path = self.workspace.existing_file(argv[0], where, self.out)
        if path is None:
            return None
        ref = self.runnable(path, where, text, (str(path), *argv[1:]))
        if ref is None:
            return None
        return self.ref(
            "command", where, text, path, argv=ref.argv, files=tuple(dict.fromkeys((path, *files)))
        )

    def file_argument(self, argument: str) -> Path | None:
        """Return the workspace's file that a command's argument names; None if there is none."""
        if not argument or argument.startswith("-"):
            return None
        try:
            path = self.workspace.named(Path(argument))
            real = Path(os.path.realpath(path))
        except (OSError, ValueError):
            return None
        there = is_file(real) or path in self.workspace.made
        return path if self.workspace.inside(real) and there else None


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _script_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    if not _needs(programs, table, where, ("path",)):
        return None
    return programs.script(table["path"], (*where, "path"), table["path"])


def _callable_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    source = "path" if "path" in table else "module"
    if not _needs(programs, table, where, (source, "function")):
        return None
    parse = programs.function_of_file if source == "path" else programs.function_of_module
    text = f"{table[source]}:{table['function']}"
    ref = parse(table[source], table["function"], (*where, source), text)
    return ref and programs.with_loaded(ref, table, where)


def _command_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    if not _needs(programs, table, where, ("argv",)):
        return None
    return programs.command(table["argv"], (*where, "argv"))


def _triton_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    source = "path" if "path" in table else "file"
    if not _needs(programs, table, where, (source, "function")):
        return None
    text = f"{table[source]}:{table['function']}"
    ref = programs.function_of_file(table[source], table["function"], (*where, source), text)
    if ref is None:
        return None
    if table.get("mode", "interpreted") != "compiled":
        return programs.with_loaded(replace(ref, kind="triton"), table, where)
    arch = "sm_" + str(table.get("arch", "sm_80")).rpartition("_")[2]
    return compiled_triton(ref, arch, _checks(programs, table, where))


def compiled_triton(
    ref: ProgramRef, arch: str = "sm_80", checks: Iterable[str] | None = None
) -> ProgramRef:
    """Return a Triton program whose launches are compiled, and not interpreted.

    The mode is passed, and enters keys, as an argument. The first is reserved for commands.
    """
    argv = (
        "",
        "compiled",
        arch,
        ",".join(_launches().DEFAULT_CHECKS if checks is None else checks),
    )
    return replace(ref, kind="triton", argv=argv, portable_argv=argv, arch=arch)


def _framework_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    source = next((key for key in ("file", "path") if key in table), "module")
    name = _class_key(table, source)
    if not _needs(programs, table, where, (source, name)):
        return None
    parse = programs.function_of_module if source == "module" else programs.function_of_file
    text = f"{table[source]}:{table[name]}"
    ref = parse(table[source], table[name], (*where, source), text)
    argv = ("", _module_text(programs, table, where)) if name != "function" else ()
    return ref and replace(ref, kind=table["kind"], argv=argv, portable_argv=argv)


def _class_key(table: Mapping[str, Json], source: str) -> str:
    """Return the key of `table` that names the function or the class to call. The key is
    ``function``, unless the table defines a PyTorch module by its class. Such a table names the
    class under ``module_class``. If its code is in a file, it may use ``module`` instead. `source`
    is the key under which the table names the file or the Python module with the code."""
    if table["kind"] == "torch" and "function" not in table:
        if "module_class" in table:
            return "module_class"
        if source != "module" and "module" in table:
            return "module"
    return "function"


def _module_text(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> str:
    init = table.get("init", {})
    if not isinstance(init, (dict, list)) or not _is_plain(init):
        place = (*where, "init")
        fault = f"{dotted(place)} is no table or list of numbers, texts, booleans, lists and tables"
        programs.out.add("config-value", place, fault, 'init = { width = 64, act = "gelu" }')
        init = {}
    made = {"init": init, "seed": table.get("seed"), "shared": False}
    return json.dumps(made, sort_keys=True)


def with_shared_weights(
    op: ProgramRef, reference: ProgramRef, where: KeyPath, out: Reporter
) -> tuple[ProgramRef, ProgramRef]:
    """Give two modules the same seed, so that both draw the same weights. The seed is the one that
    is set for either module, or 0 if none is set. Two different seeds are reported as a problem at
    `where`, the place of the reference."""
    made = [json.loads(ref.argv[1]) for ref in (op, reference)]
    seeds = sorted({told["seed"] for told in made} - {None})
    if len(seeds) > 1:
        fault = f"{dotted(where)} has another seed than the op, so their weights differ"
        out.add("config-conflict", where, fault, "give only one of them a seed")
    both = {"seed": seeds[0] if seeds else 0, "shared": True}
    texts = [json.dumps({**told, **both}, sort_keys=True) for told in made]
    op, reference = (
        replace(ref, argv=("", text), portable_argv=("", text))
        for ref, text in zip((op, reference), texts, strict=True)
    )
    return op, reference


def is_module(ref: ProgramRef | None) -> bool:
    return ref is not None and ref.kind == "torch" and bool(ref.argv)


def _is_plain(value: Json) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float, bool))


def _launches() -> ModuleType:
    """Return the module that reads launches; few workspaces have any."""
    from gpuemu_flow.emulator import described  # noqa: PLC0415

    return described


def _checks(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> list[str]:
    known = _launches().DEFAULT_CHECKS
    given = table.get("checks", list(known))
    if isinstance(given, list) and all(name in known for name in given):
        return list(given)
    place = (*where, "checks")
    hint = f"of {', '.join(known)}"
    programs.out.add("config-launch", place, f"{dotted(place)} is no list of checks", hint)
    return []


def _ptx_kind(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> ProgramRef | None:
    source = "path" if "path" in table else "file"
    if not _needs(programs, table, where, (source,)):
        return None
    path = programs.workspace.existing_file(table[source], (*where, source), programs.out)
    return _launched(programs, table, where, path, str(table[source]))


def _cuda_kind(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> ProgramRef | None:
    kernel, path = str(table.get("kernel", "")), None
    source = "path" if "path" in table else "file"
    if kernel:
        for name in (source, "flags"):
            if name in table:
                fault = f"{dotted(where)} has both kernel and {name}"
                hint = "the kernel of [[kernels]] says what is compiled, and how"
                programs.out.add("config-conflict", (*where, name), fault, hint)
                return None
    elif _needs(programs, table, where, (source,)):
        path = programs.workspace.existing_file(table[source], (*where, source), programs.out)
        if path is None:
            return None
        if path.suffix != ".cu":
            fault = f"{dotted((*where, source))} = {shown(table[source])} is no .cu file"
            hint = 'kind = "ptx" runs a file of PTX'
            programs.out.add("config-value", (*where, source), fault, hint)
            return None
    else:
        return None
    ref = _launched(programs, table, where, path, str(table.get(source, kernel)))
    if ref is None:
        return None
    arch = str(table.get("arch", ""))
    arch = "sm_" + arch.rpartition("_")[2] if arch else ""
    return replace(ref, kind="cuda", kernel=kernel, arch=arch, flags=tuple(table.get("flags", ())))


def _faults(programs: Programs, where: KeyPath) -> Callable[[tuple[str, ...], str, str], None]:
    """Return a function that reports what is wrong below a key, and a hint."""

    def fault(below: tuple[str, ...], text: str, hint: str) -> None:
        place = (*where, *below)
        programs.out.add("config-launch", place, f"{dotted(place)}: {text}", hint)

    return fault


def _host_function(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    source = "path" if "path" in table else "file"
    for name in ("kernel", *_launches().LAUNCH_KEYS, "launches", "checks", "backend"):
        if name in table and name != "args":
            text = f"{dotted(where)} has both function and {name}"
            hint = "a host function launches its kernels itself"
            programs.out.add("config-conflict", (*where, name), text, hint)
            return None
    if not _needs(programs, table, where, (source,)):
        return None
    fault = _faults(programs, where)
    path = programs.workspace.existing_file(table[source], (*where, source), programs.out)
    described = _launches().read_host_call(table, fault)
    if described is None or path is None:
        return None
    kept = ("args", "outputs", "scratch", "flags")
    argv = ("", json.dumps({key: table[key] for key in kept if key in table}, sort_keys=True))
    text = f"{table[source]}:{table['function']}"
    ref = programs.ref("cuda-host", where, text, path, function=str(table["function"]))
    return replace(ref, argv=argv, portable_argv=argv)


def _launched(
    programs: Programs, table: Mapping[str, Json], where: KeyPath, path: Path | None, source: str
) -> ProgramRef | None:
    fault = _faults(programs, where)
    if not table.keys() & {"grid", "block", "args", "outputs", "launches"}:
        cuda = table["kind"] == "cuda" and "kernel" not in table
        hint = "or `function`, if a function in C launches its kernels" if cuda else ""
        fault((), "nothing says how it is launched: grid, block, args and outputs", hint)
        return None
    described = _launches().read_described(table, fault)
    if described is None or (path is None and "kernel" not in table):
        return None
    entry = table.get("entry", "")
    # The launches are passed, and enter keys, as an argument. The first argument is reserved for
    # commands.
    argv = ("", _launches().canonical_text(table))
    text = f"{source}:{entry}" if entry else source
    return replace(
        programs.ref("ptx", where, text, path, function=entry), argv=argv, portable_argv=argv
    )


def _needs(
    programs: Programs, table: Mapping[str, Json], where: KeyPath, names: tuple[str, ...]
) -> bool:
    for name in names:
        if name not in table:
            fault = f"{dotted(where)} of kind {table['kind']!r} lacks the key {name!r}"
            programs.out.add("config-missing-key", where, fault, Hint.of("", AddKey(name)))
    return all(name in table for name in names)


_FILE = ("file", "path")
_FUNCTION = (*_FILE, "module", "function")
_LAUNCHED = (
    *_FILE, "entry", "grid", "block", "cluster", "args", "shared", "symbols", "launches", "outputs",
    "scratch",
    "checks", "backend",
)  # fmt: skip
KEYS: dict[str, tuple[str, ...]] = {
    "script": ("path",),
    "callable": ("path", "module", "function", *LOADED_KEYS),
    "command": ("argv",),
    **dict.fromkeys(FRAMEWORK_KINDS, _FUNCTION),
    "torch": (*_FUNCTION, "module_class", "init", "seed"),
    "triton": (*_FILE, "function", "mode", "loads", "skip_if"),
    "ptx": _LAUNCHED,
    "cuda": (*_LAUNCHED, "function", "kernel", "arch", "flags"),
}
"""Keys that each kind of program uses, besides ``kind``."""

# A new kind of program is a name in `vocabulary.PROGRAM_KINDS` and a function here.
KINDS: dict[str, Callable[[Programs, Mapping[str, Json], KeyPath], ProgramRef | None]] = {
    "script": _script_kind,
    "callable": _callable_kind,
    "command": _command_kind,
    **dict.fromkeys(FRAMEWORK_KINDS, _framework_kind),
    "triton": _triton_kind,
    "ptx": _ptx_kind,
    "cuda": lambda *given: (_host_function if "function" in given[1] else _cuda_kind)(*given),
}


# Relate an op's programs to its table: kind by framework, key ``module``, and no program twice.

PACKAGES = {
    "pytorch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "numpy": "numpy",
    "triton": "triton",
}
_KINDS = {"pytorch": "torch", "jax": "jax", "numpy": "numpy", "triton": "triton"}
"""Kinds of functions by framework. TensorFlow has none, since its functions take numpy arrays."""
_JAX = "jax"
_EXTENSION = "torch.utils.cpp_extension"
_GLUON = "triton.experimental.gluon"
_TOLD = (_EXTENSION, _GLUON)
"""Modules whose imports decide how a program is run."""
_LARGEST = 4 << 20
Table = Mapping[str, Json]


class FrameworkKinds(Struct):
    """Chooses the kind, such as ``torch``, of functions that the configuration writes without one.
    The kind is that of the first framework that the configuration names and the function's source
    file imports."""

    out: Reporter
    # ``project.framework``; empty if it is not set.
    project: str
    # Source files whose imports were read. The configuration depends on these files.
    consulted: set[Path]
    _imports: dict[Path, frozenset[str]] = {}

    def apply(
        self, table: Table, ref: ProgramRef | None, written: Json, op: ProgramRef | None = None
    ) -> ProgramRef | None:
        """Return `ref`, with the kind of a framework if the program is written without a kind. The
        framework is the first one that the configuration names and the program's file imports;
        PyTorch if the file, or that of the reference's `op`, builds an extension of PyTorch. If
        there is none, `ref` is returned unchanged."""
        named = self._named(table)
        # An edit of these files counts by what they import, which the graph's basis holds anyway.
        if not named and any(_EXTENSION in self._imports_of(r) for r in (ref, op) if r is not None):
            named = ["pytorch"]
        if ref is not None and ref.kind == "triton" and not ref.argv:
            # Triton's interpreter does not know Gluon.
            return compiled_triton(ref) if _GLUON in self._imported(ref) else ref
        if ref is None or ref.kind != "callable" or not isinstance(written, str):
            return ref
        for framework in named or ([self.project] if self.project else []):
            if framework in _KINDS and PACKAGES[framework] in self._imported(ref):
                return self.apply(table, replace(ref, kind=_KINDS[framework]), written, op)
        return ref

    def check(
        self,
        table: Table,
        where: KeyPath,
        op: ProgramRef | None,
        reference: ProgramRef,
    ) -> None:
        """Report frameworks that an op's table names and that neither program imports. Also report
        a table that has both ``framework`` and ``frameworks``."""
        named = self._named(table)
        if table.get("framework") and table.get("frameworks"):
            place = (*where, "framework")
            text = f"both {dotted(place)} and frameworks are given"
            self.out.add("config-conflict", place, text, "keep framework")
        if not named or op is None:
            return
        key = "framework" if table.get("framework") else "frameworks"
        refs = [ref for ref in (op, reference) if ref.path is not None and not ref.argv]
        known = {name for ref in refs for name in self._imported(ref)}
        used = {ref.kind for ref in (op, reference)}
        unseen = [n for n in named if PACKAGES[n] not in known and _KINDS.get(n) not in used]
        if unseen:
            place = (*where, key)
            text = f"{dotted(place)} names {', '.join(unseen)}, which neither program imports"
            hint = "remove it, or import the framework in the file of the op"
            self.out.add("config-unread-key", place, text, hint)

    def xla(self, table: Table, where: KeyPath, op: ProgramRef | None) -> ProgramRef | None:
        """Return the op after applying its table's setting ``xla_compatible``, if it is set."""
        said = table.get("xla_compatible")
        if said is None or op is None:
            return op
        if op.kind == _JAX:
            argv = ("", XLA_COMPILED if said else XLA_STEPWISE)
            return replace(op, argv=argv, portable_argv=argv)
        if said:
            place = (*where, "xla_compatible")
            text = f"{dotted(place)} needs a function of JAX, which {shown(op.text)} is not"
            hint = 'op = { kind = "jax", file = "x.py", function = "f" }, or remove it'
            self.out.add("config-unread-key", place, text, hint)
        return op

    @staticmethod
    def _named(table: Table) -> list[str]:
        one, several = table.get("framework"), table.get("frameworks") or ()
        return [name for name in ([one] if one else several) if name in PACKAGES]

    def _imported(self, ref: ProgramRef) -> frozenset[str]:
        """Return the packages that a program's file imports; an edit of it changes the result."""
        if ref.path is not None and ref.path.suffix == ".py":
            self.consulted.add(ref.path)
        return self._imports_of(ref)

    def _imports_of(self, ref: ProgramRef) -> frozenset[str]:
        path = ref.path
        if path is None or path.suffix != ".py":
            return frozenset()
        if path not in self._imports:
            self._imports[path] = imported_packages(path)
        return self._imports[path]


def imported_packages(path: Path) -> frozenset[str]:
    """Return the top-level packages that a file imports anywhere; empty if it cannot be parsed.

    Modules that decide how a program is run are named, too.
    """
    try:
        with path.open("rb") as file:
            source = file.read(_LARGEST + 1)
        tree = tree_of(source) if len(source) <= _LARGEST else ast.Module([], [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    tops = {name.partition(".")[0] for name in names}
    told = {
        module for module in _TOLD if any(f"{name}.".startswith(f"{module}.") for name in names)
    }
    return frozenset(tops | told)


# Refuse an op that is its own reference, or that has to be able to read its reference's file.


_SLUG = "config-op-is-reference"
_EMULATED = ("ptx", "cuda")


def refuse_one_program(
    op: ProgramRef,
    reference: ProgramRef,
    place: KeyPath,
    out: Reporter,
    *,
    root: Path,
    fenced: bool,
) -> None:
    """Report an op and a reference that are one program or, in the sandbox, in one file. A program
    has to read its own file, so that no sandbox can hide a reference that is in it. A compiled
    kernel reads no files."""
    if _identity(op) == _identity(reference):
        text = f"{shown(op.text)} is the op and its reference: it would pass whatever it does"
        out.add(_SLUG, place, text, "name a reference that is written independently")
        return
    ours, theirs = list(_files(op, root)), next(_files(reference, root), None)
    if not fenced or op.kind in _EMULATED or theirs is None:
        return
    name = os.path.relpath(theirs, os.path.realpath(root))
    hint = 'put the reference in a file of its own, or set mode = "off" in [sandbox]'
    if theirs in ours:
        text = f"the op and its reference are both in {name}: the sandbox cannot hide the reference"
        out.add(_SLUG, place, text, hint)
    elif theirs.name == "__init__.py" and any(f.is_relative_to(theirs.parent) for f in ours):
        text = f"importing the op runs its reference's file, {name}: the sandbox cannot hide it"
        out.add(_SLUG, place, text, hint)


def _identity(program: ProgramRef) -> tuple[str, ...]:
    path = program.loads or program.path
    place = os.path.realpath(path) if path is not None else program.module
    if program.loads is not None:
        return (place,)
    # A flag in the arguments of a module may choose another computation.
    arguments = program.argv[1:] if program.kind == "torch" or not program.function else ()
    return (place, program.kernel, program.function, *arguments)


def _files(program: ProgramRef, root: Path) -> Iterator[Path]:
    inside = Path(os.path.realpath(root))
    files = program.files if program.loads is None else (program.loads, *program.files)
    for path in map(Path, map(os.path.realpath, files)):
        if path.is_relative_to(inside) and not is_installed(str(path)):
            yield path


# Resolve ``module = "pkg.mod"`` to a function of the workspace, without importing it.


MAX_SOURCE = 4 << 20


class Modules(Struct):
    """Finds the callables that values of ``module`` keys name."""

    programs: Programs
    # Source files that were read to find a function. The configuration depends on these
    # files.
    consulted: set[Path] = set()

    def callable_of(self, text: str, op_name: str, where: KeyPath) -> tuple[ProgramRef | None, str]:
        """Return the callable, or None with the reason why it cannot be run. ``pkg.mod:function``
        names the function itself. A dotted path without a function, such as ``pkg.mod``, is looked
        up in this order: the function in ``pkg.mod`` with the op's name, the function ``mod`` in
        ``pkg.mod``, and the attribute ``mod`` of ``pkg``."""
        if ":" in text or text.endswith(".py"):
            return self._written_out(text, where)
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text):
            self.programs.out.add(
                "config-value", where, f"module = {text!r} is no dotted module path",
                "pkg.mod, pkg.mod:function or path.py:function",
            )  # fmt: skip
            return None, ""
        path = self.programs.module_file(text, where)
        if path is not None:
            last = text.rsplit(".", 1)[-1]
            wanted = dict.fromkeys((re.split(r"\W+", op_name.strip("/.:-"))[-1], last))
            defined = self._top_level_names(path)
            for function in wanted:
                if function in defined:
                    return self.programs.function_of_module(text, function, where, text), ""
            names = " or ".join(f"{name!r}" for name in wanted)
            return None, f'module {text} defines no {names}; write module = "{text}:function"'
        parent, dot, function = text.rpartition(".")
        if dot and self.programs.module_file(parent, where) is not None:
            return self.programs.function_of_module(parent, function, where, text), ""
        hint = f'write module = "{text}:function" if it is installed'
        return None, f"module {text} is not in the workspace; {hint}"

    def _written_out(self, text: str, where: KeyPath) -> tuple[ProgramRef | None, str]:
        if ":" not in text:
            hint = f'write module = "{text}:function"'
            self.programs.out.add(
                "config-value", where, f"module = {text!r} names no function", hint
            )
            return None, ""
        return self.programs.parse(text, where), ""

    def _top_level_names(self, path: Path) -> set[str]:
        """Return the names that a file defines or imports at its top level. The result is empty if
        the file cannot be read and parsed as Python."""
        self.consulted.add(path)
        try:
            if path.stat().st_size > MAX_SOURCE:
                return set()
            tree = tree_of(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return set()
        names: set[str] = set()
        for node in tree.body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Assign):
                names.update(t.id for t in node.targets if isinstance(t, ast.Name))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names.update(a.asname or a.name for a in node.names)
        return names


def inputs_taken(path: Path, function: str) -> list[str]:
    """Return the names of the inputs that a function takes by parameters or out of one mapping.

    The result is empty if its source does not say so, or if it takes one named ``input``. A single
    parameter may be a mapping whose use the source does not show.
    """
    try:
        tree = tree_of(path.read_bytes()) if path.stat().st_size <= MAX_SOURCE else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] if tree else []
    node = next((n for n in reversed(found) if n.name == function), None)
    if node is None or node.args.posonlyargs or node.args.vararg or node.args.kwarg:
        return []
    given = node.args.args
    by_name = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    taken = [a.arg for a in given[: len(given) - len(node.args.defaults)]]
    taken += [a.arg for a, default in by_name if default is None]
    if len(taken) == 1:
        keys = [
            n.slice.value
            for n in ast.walk(node)
            if isinstance(n, ast.Subscript)
            and isinstance(n.value, ast.Name)
            and n.value.id == taken[0]
            and isinstance(n.slice, ast.Constant)
            and isinstance(n.slice.value, str)
        ]
        taken = list(dict.fromkeys(keys))
    everything = [*taken, *(a.arg for a in (*given, *node.args.kwonlyargs))]
    return [] if "input" in everything else taken
