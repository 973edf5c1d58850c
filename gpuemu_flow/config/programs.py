"""Parse programs: the values of ``op``, ``op_script``, ``module`` and ``reference``."""

from __future__ import annotations

import hashlib
import json
import keyword
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.find import exists, is_file
from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.emulator.described import (
    DEFAULT_CHECKS,
    LAUNCH_KEYS,
    canonical_text,
    read_described,
    read_host_call,
)
from gpuemu_flow.model.errors import AddKey, Hint
from gpuemu_flow.model.types import FRAMEWORK_KINDS, Json

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

    Without ``loads``, the program is returned unchanged.
    """
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
        """Parse a table with a ``kind``; report keys that this kind does not use."""
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
        """Return an argument with paths of the workspace made relative."""
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
        """Return the file of a module in the workspace; None for an installed or missing module."""
        stem = Path(*module.split("."))
        for place in (stem.with_suffix(".py"), stem / "__init__.py"):
            path = self.workspace.root / place
            if is_file(path):
                return self.workspace.resolve(str(path), where, self.out)
            self.workspace.probed.add(path)
        return None

    def is_workspace_package(self, module: str) -> bool:
        """Tell whether the first part of a dotted path is a package or module of the workspace."""
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
    ref: ProgramRef, arch: str = "sm_80", checks: Iterable[str] = DEFAULT_CHECKS
) -> ProgramRef:
    """Return a Triton program whose launches are compiled, and not interpreted.

    The mode is passed, and enters keys, as an argument. The first is reserved for commands.
    """
    argv = ("", "compiled", arch, ",".join(checks))
    return replace(ref, kind="triton", argv=argv, portable_argv=argv, arch=arch)


def _framework_kind(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    """Parse a function that takes a framework's tensors, or a module of PyTorch."""
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
    """Return the key of `table` that names the function or the class to call.

    The key is ``function``, unless the table defines a PyTorch module by its class. Such a table
    names the class under ``module_class``. If its code is in a file, it may use ``module`` instead.
    `source` is the key under which the table names the file or the Python module with the code.
    """
    if table["kind"] == "torch" and "function" not in table:
        if "module_class" in table:
            return "module_class"
        if source != "module" and "module" in table:
            return "module"
    return "function"


def _module_text(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> str:
    """Return the arguments and the seed that construct a module, as JSON text."""
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
    """Give two modules the same seed, so that both draw the same weights.

    The seed is the one that is set for either module, or 0 if none is set. Two different seeds are
    reported as a problem at `where`, the place of the reference.
    """
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
    """Tell whether a program is a PyTorch module, which has weights."""
    return ref is not None and ref.kind == "torch" and bool(ref.argv)


def _is_plain(value: Json) -> bool:
    """Tell whether JSON can represent a value of the configuration file."""
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, (str, int, float, bool))


def _checks(programs: Programs, table: Mapping[str, Json], where: KeyPath) -> list[str]:
    """Return the names of the checks that the emulator makes on a compiled Triton kernel."""
    given = table.get("checks", list(DEFAULT_CHECKS))
    if isinstance(given, list) and all(name in DEFAULT_CHECKS for name in given):
        return list(given)
    place = (*where, "checks")
    hint = f"of {', '.join(DEFAULT_CHECKS)}"
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


def _host_function(
    programs: Programs, table: Mapping[str, Json], where: KeyPath
) -> ProgramRef | None:
    """Parse a C function of a ``.cu`` file, which itself allocates, copies and launches."""
    source = "path" if "path" in table else "file"
    for name in ("kernel", *LAUNCH_KEYS, "launches", "checks", "backend"):
        if name in table and name != "args":
            text = f"{dotted(where)} has both function and {name}"
            hint = "a host function launches its kernels itself"
            programs.out.add("config-conflict", (*where, name), text, hint)
            return None
    if not _needs(programs, table, where, (source,)):
        return None

    def fault(below: tuple[str, ...], text: str, hint: str) -> None:
        place = (*where, *below)
        programs.out.add("config-launch", place, f"{dotted(place)}: {text}", hint)

    path = programs.workspace.existing_file(table[source], (*where, source), programs.out)
    described = read_host_call(table, fault)
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
    """Parse a compiled kernel and its launches from a table."""

    # The emulator's modules are imported only for a workspace with such an op.
    def fault(below: tuple[str, ...], text: str, hint: str) -> None:
        place = (*where, *below)
        programs.out.add("config-launch", place, f"{dotted(place)}: {text}", hint)

    described = read_described(table, fault)
    if described is None or (path is None and "kernel" not in table):
        return None
    entry = table.get("entry", "")
    # The launches are passed, and enter keys, as an argument. The first argument is reserved for
    # commands.
    argv = ("", canonical_text(table))
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
