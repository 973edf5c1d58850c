"""Stage ``build``: compile a kernel's source to PTX and cubin for one architecture.

Reads the source and its includes. Writes copies of the artifacts, and a result with their
digests. The only parts of the source in the result are comments that allow lint findings.
Therefore, the lint does not run again if a build gives the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from gpuemu_flow.lint.cubin import Cubin, read_cubin, without_line_table
from gpuemu_flow.lint.toolchain import MachineCode, Tool, parse_ptxas_output, tool_missing
from gpuemu_flow.model.errors import Problem, StoreError
from gpuemu_flow.model.types import ConfiguredEnv, Json
from gpuemu_flow.store.cache import artifact_path
from gpuemu_flow.store.keys import Discovered, KeyParts, digest_bytes, digest_json
from gpuemu_flow.tasks import compilers, stages
from gpuemu_flow.tasks.base import BuildParams, StageContext, StageResult, TaskSpec, params_of
from gpuemu_flow.tasks.compilers import assemble, disassemble
from gpuemu_flow.tasks.machine_results import (
    MachineResults,
    command_uses,
    machine_results,
    some,
    unlisted,
)
from gpuemu_flow.workers.listener import Recording

STAGE = stages.BUILD
VERSION = stages.VERSIONS[STAGE]
MAX_ARTIFACT_BYTES = 1 << 30

_FILE_DIRECTIVE = re.compile(rb'^([ \t]*\.file[ \t]+\d+[ \t]+)"([^"\r\n]*)"', re.MULTILINE)
_ALLOW = b"gpuemu:"
_LINES_AFTER_ALLOW = 40


class Built(Struct):
    """The result of a build."""

    ptx: bytes | None = None
    cubin: bytes | None = None
    ptx_name: str = ""
    cubin_name: str = ""
    sass: MachineCode | None = None
    launch: dict[str, Json] | None = None
    unmet_bounds: dict[str, str] = field(default_factory=dict)
    assembly: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    skipped: str = ""
    again: bool = False


def run(spec: TaskSpec, context: StageContext, parts: KeyParts) -> StageResult:
    """Build one kernel for one architecture. The task succeeds even if the compiler finds errors
    in the user's source. The errors are stored in the result, and are shown until the source is
    fixed."""
    params = params_of(BuildParams, spec.params)
    # A command's outputs are also wanted in the workspace.
    shared = None if params.kind == "command" else machine_results(spec, context)
    key = digest_json([parts.key(), spec.settings["tool_problems"]])
    cached = None if shared is None else _restored(spec, context, shared, key)
    if cached is not None:
        return StageResult(cached, executed=False)
    with context.cache.files.temporary(context.cache.staging, prefix="build-") as folder:
        built = _MAKERS[params.kind](spec, context, folder)
        if built.cubin is not None and not built.cubin_name:
            built.cubin = without_line_table(built.cubin)
        _list_instructions(spec, context, folder, built)
    built.problems += [
        replace(Problem(**problem), warning=True) for problem in spec.settings["tool_problems"]
    ]
    ptx, cubin = (_place(spec, context, kind) for kind in ("ptx", "cubin"))
    content = {
        "stage": STAGE,
        "version": VERSION,
        "skipped": built.skipped,
        "ptx": _keep(ptx, built.ptx, built.ptx_name, context),
        "cubin": _keep(cubin, built.cubin, built.cubin_name, context),
        "sass": to_builtins(built.sass),
        "launch": built.launch,
        "unmet_bounds": built.unmet_bounds,
        "assembly": built.assembly,
        "allowances": allowances(spec.sources, context.root),
        "problems": to_builtins(built.problems, enc_hook=str),
    }
    if shared is not None and not built.again and not built.skipped and context.unchanged():
        made = [context.cache.blobs.write(data) for data in (built.ptx, built.cubin) if data]
        shared.store(key, content, made)
    return StageResult(
        content,
        complete=not built.again,
        discovered=_used(spec, context, params),
    )


def _used(spec: TaskSpec, context: StageContext, params: BuildParams) -> Discovered:
    """Return the undeclared inputs of the user's build command; none if there is no command."""
    if not params.command:
        return Discovered()
    uses = command_uses(params.command[0], spec.sources, context.root, os.environ)
    return Discovered() if uses is None else context.inputs.discover(uses, ConfiguredEnv())


def _restored(
    spec: TaskSpec, context: StageContext, shared: MachineResults, key: str
) -> dict[str, Json] | None:
    """Restore artifacts from a shared cache and return the result's content. Return None if the
    shared cache lacks the build or one of its artifacts."""
    content = shared.fetch(key)
    if not isinstance(content, dict) or content.get("stage") != STAGE:
        return None
    found: dict[Path, bytes | None] = {}
    for kind in ("ptx", "cubin"):
        entry, path = content.get(kind), _place(spec, context, kind)
        if entry is None:
            found[path] = None
            continue
        place = path.relative_to(context.cache.folder).as_posix()
        if not isinstance(entry, dict) or entry.get("path") != place:
            return None
        digest = str(entry.get("digest"))
        shared.fetch_blobs([digest])
        try:
            found[path] = context.cache.blobs.read(digest)
        except ValueError:  # a stranger's digest
            return None
        if found[path] is None:
            return None
    for path, data in found.items():
        if data is None:
            context.cache.files.remove(path)
        else:
            context.cache.files.write(path, data)
    return content


def _place(spec: TaskSpec, context: StageContext, kind: str) -> Path:
    arch = params_of(BuildParams, spec.params).arch
    return artifact_path(context.cache.folder, spec.subject, arch, kind)


def _keep(path: Path, data: bytes | None, name: str, context: StageContext) -> Json:
    """Copy an artifact into the cache; return its digest, path and name as JSON. If there is no
    artifact, delete an older one of the same path, and return None."""
    if data is None:
        context.cache.files.remove(path)
        return None
    context.cache.files.write(path, data)
    stored = path.relative_to(context.cache.folder).as_posix()
    shown = path.relative_to(context.root) if path.is_relative_to(context.root) else path
    return {"digest": digest_bytes(data), "path": stored, "name": name or shown.as_posix()}


def read_artifact(entry: Json, context: StageContext) -> bytes | None:
    """Return the bytes of the artifact that a result's entry describes. Return None if `entry` is
    None, because the kernel has no such artifact. Raises StoreError: ``cache-artifact`` if the
    artifact is missing or was changed."""
    if entry is None:
        return None
    path: Path = context.cache.folder / entry["path"]
    try:
        data = context.cache.files.read(path)
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if digest_bytes(data) == entry["digest"]:
            return data
        reason = "it was changed"
    raise StoreError(
        Problem(
            "cache-artifact",
            f"cannot use a built artifact: {reason}",
            "`gpuemu-flow run --force build` makes it again",
            str(path),
        )
    )


def allowances(sources: Iterable[str], root: Path) -> dict[str, dict[str, str]]:
    """Collect the lines with ``gpuemu: allow`` comments, and the lines of code after them."""
    found: dict[str, dict[str, str]] = {}
    for name in sources:
        try:
            data = (root / name).read_bytes()
        except (OSError, ValueError):
            continue
        if _ALLOW not in data:
            continue
        lines = data.split(b"\n")
        cached: dict[str, str] = {}
        for number, text in enumerate(lines, 1):
            if _ALLOW in text:
                cached[str(number)] = text.decode("latin-1")
                following = range(number, min(number + _LINES_AFTER_ALLOW, len(lines)))
                for later in following:
                    code = lines[later].strip()
                    if code and not code.startswith((b"//", b"#", b"/*", b"*")):
                        cached.setdefault(str(later + 1), "code")
                        break
                    if code:
                        cached.setdefault(str(later + 1), "//")
        found[name] = cached
    return found


def _read(spec: TaskSpec, context: StageContext, name: str, built: Built) -> bytes | None:
    """Read a file of the workspace; return None and add a problem to `built` if that fails."""
    path = context.root / name
    try:
        if not path.is_file() and path.exists():
            raise OSError("it is no file")  # a pipe would be waited for
        if path.stat().st_size > MAX_ARTIFACT_BYTES:
            raise OSError(f"larger than {MAX_ARTIFACT_BYTES >> 20} MiB")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        command = params_of(BuildParams, spec.params).kind == "command"
        hint = "build.command ended without an error, and has to make this file" if command else ""
        text = f"cannot read the artifact: {reason}"
        built.problems.append(Problem("build-no-artifact", text, hint, name))
        built.again = True
        return None


def _existing(spec: TaskSpec, context: StageContext, folder: Path) -> Built:
    """Read the PTX and cubin that the user has built, and assemble the PTX if needed."""
    params = params_of(BuildParams, spec.params)
    built = Built()
    if params.ptx:
        built.ptx_name = params.ptx
        built.ptx = _read(spec, context, built.ptx_name, built)
    if params.cubin:
        built.cubin_name = params.cubin
        built.cubin = _read(spec, context, built.cubin_name, built)
    _complete(spec, context, folder, built)
    return built


def _complete(spec: TaskSpec, context: StageContext, folder: Path, built: Built) -> None:
    """Assemble the user's PTX if there is no cubin for the architecture of the task."""
    params = params_of(BuildParams, spec.params)
    arch = params.arch
    if built.cubin is not None and arch and built.ptx is not None:
        read = read_cubin(built.cubin, built.cubin_name)
        if isinstance(read, Cubin) and read.arch != arch:
            built.cubin, built.cubin_name = None, ""  # of another architecture: assemble our own
    if built.ptx is not None and built.cubin is None:
        _assemble(spec, context, folder, built)
    if built.ptx is not None:
        built.ptx = relative_sources(built.ptx, context.root) if not built.ptx_name else built.ptx


def _assemble(spec: TaskSpec, context: StageContext, folder: Path, built: Built) -> None:
    """Assemble the PTX in `built` if a suitable ptxas is installed, and add the cubin to `built`.
    Without a cubin, the metrics are estimated from the PTX."""
    params = params_of(BuildParams, spec.params)
    arch = params.arch
    found = assemble(
        built.ptx or b"",
        built.ptx_name,
        arch,
        tools(spec, "ptxas"),
        folder,
        context.cancel,
        _tool_sandbox(spec, folder, "tool_sandbox"),
    )
    if found is None:
        return
    built.cubin = found.cubin
    built.unmet_bounds = found.unmet_bounds
    built.problems += found.problems
    built.again = found.stopped
    if arch and found.arch:
        built.assembly[arch] = found.error


def _list_instructions(spec: TaskSpec, context: StageContext, folder: Path, built: Built) -> None:
    """Add the cubin's machine instructions to `built` if a suitable disassembler is installed."""
    if built.cubin is None:
        return
    name = built.cubin_name or built.ptx_name
    tool_sandbox = _tool_sandbox(spec, folder, "tool_sandbox")
    found = disassemble(
        built.cubin, name, tools(spec, "nvdisasm"), folder, context.cancel, tool_sandbox
    )
    if isinstance(found, Problem):
        built.problems.append(found)
    else:
        built.sass = found


def _cuda(spec: TaskSpec, context: StageContext, folder: Path) -> Built:
    params = params_of(BuildParams, spec.params)
    found = tools(spec, "nvcc")
    if not found:
        missing = tool_missing("nvcc")
        return Built(skipped=f"{missing.message}: {missing.hint}")
    result = compilers.nvcc(
        found[0],
        params.source or "",
        params.arch,
        params.flags,
        folder,
        root=context.root,
        cancel=context.cancel,
        tool_sandbox=_tool_sandbox(spec, folder),
    )
    if result.output is None:
        # Tried again by the next run: a header that was missing may be there then.
        return Built(problems=result.problems, again=True)
    built = Built(
        ptx=relative_sources(result.ptx, context.root) if result.ptx is not None else None,
        cubin=result.output,
        unmet_bounds=parse_ptxas_output(result.text).unmet_bounds,
        assembly={params.arch: ""},
    )
    unseen = sorted(set(result.reads) - set(spec.sources))
    if unseen:
        built.again = True
        built.problems.append(
            Problem(
                "build-unseen-include",
                f"the compiler also read {', '.join(unseen[:5])}, which no #include line names",
                "include it by name; until then the kernel is built by every run",
                params.source or "",
                warning=True,
            )
        )
    return built


def _command(spec: TaskSpec, context: StageContext, folder: Path) -> Built:
    params = params_of(BuildParams, spec.params)
    built = Built()
    tool_sandbox = _tool_sandbox(spec, folder)
    outputs = [context.root / name for name in (params.ptx, params.cubin) if name]
    with Recording() as recording, placeholders(outputs, tool_sandbox):
        failure = compilers.command(
            params.command or (), context.root, cancel=context.cancel, tool_sandbox=tool_sandbox,
            recording=recording,
        )  # fmt: skip
    if failure is not None:
        built.problems.append(failure)
        built.again = True
        return built
    built = _existing(spec, context, folder)
    if params.inputs is None:
        built.again = True
        built.problems.append(
            Problem(
                "build-undeclared-inputs",
                f"{spec.name}: nobody sees which files build.command reads, so every run runs it",
                'name them: `inputs = ["src/**/*"]` in `build`; `inputs = []` if it reads none',
                warning=True,
            )
        )
        return built
    sandbox = None if tool_sandbox is None else tool_sandbox.sandbox
    listed = [*spec.sources, *map(str, outputs), *(sandbox or {"writable": ()})["writable"]]
    read = unlisted(recording.sightings.opened(), context, sandbox, listed)
    if read:
        built.again = True
        text = f"{spec.name}: build.command also read {some(read)}, which `inputs` does not name"
        hint = "name it in `inputs`; until then every run runs the command"
        built.problems.append(Problem("build-undeclared-inputs", text, hint, warning=True))
    return built


@contextmanager
def placeholders(
    outputs: Iterable[Path], tool_sandbox: compilers.ToolSandbox | None
) -> Iterator[None]:
    """Create a command's missing outputs as empty files, so that the sandbox lets it write to
    them. Only outputs in folders with protected files need this, since the sandbox allows no new
    files in these folders. At the end of the context, the files that the command left untouched
    are removed."""
    made = []
    for path in outputs if tool_sandbox is not None else ():
        path.parent.mkdir(parents=True, exist_ok=True)
        if (
            tool_sandbox is not None
            and str(path) in tool_sandbox.sandbox["writable"]
            and not path.exists()
        ):
            path.touch()
            os.utime(path, (0, 0))  # so that make does not consider it newer than its source
            made.append(path)
    try:
        yield
    finally:
        for path in made:
            with suppress(OSError):
                status = path.stat()
                if not status.st_size and not status.st_mtime:  # a touched file is an output
                    path.unlink()


def _triton(spec: TaskSpec, context: StageContext, folder: Path) -> Built:
    params = params_of(BuildParams, spec.params)
    result = compilers.triton(
        params.triton,
        params.arch,
        folder,
        root=context.root,
        python=spec.settings["python"],
        cancel=context.cancel,
        tool_sandbox=_tool_sandbox(spec, folder),
    )
    if result.skipped:
        return Built(skipped=result.skipped)
    if result.output is None:
        return Built(problems=result.problems, again=True)
    ptx = relative_sources(result.ptx, context.root) if result.ptx is not None else None
    return Built(ptx=ptx, cubin=result.output, launch=result.launch, assembly={params.arch: ""})


def _tool_sandbox(
    spec: TaskSpec, folder: Path, key: str = "sandbox"
) -> compilers.ToolSandbox | None:
    """Return the sandbox that the setting `key` describes; None if it asks for no sandbox."""
    sandbox = spec.settings[key]
    return None if sandbox is None else compilers.ToolSandbox(folder, sandbox)


_MAKERS = {"cuda": _cuda, "given": _existing, "command": _command, "triton": _triton}


def tools(spec: TaskSpec, name: str) -> list[Tool]:
    return [
        Tool(tool, path, (release[0], release[1]), version, origin)
        for tool, path, release, version, origin in spec.settings["tools"]
        if tool == name
    ]


def relative_sources(ptx: bytes, root: Path) -> bytes:
    """Rewrite the PTX's ``.file`` directives so that workspace files have relative paths. The text
    is then the same in every checkout, and can be related to files of the workspace."""
    prefix = str(root).encode() + b"/"

    def shorten(match: re.Match[bytes]) -> bytes:
        return match.group(1) + b'"' + match.group(2).removeprefix(prefix) + b'"'

    return _FILE_DIRECTIVE.sub(shorten, ptx)
