"""A script that compiles one Triton kernel in a separate interpreter; it imports only triton.

It reads ``request.json`` in the folder that its argument names, and writes ``kernel.ptx``,
``kernel.cubin`` and ``answer.json`` there.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LONGEST_MESSAGE = 2000
_DEF = re.compile(r"\s*def\s")


class KernelRequestError(Exception):
    """Raised if the request does not match the kernel."""


def compile_kernel(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Write a kernel's PTX and cubin to `folder`, and return the numbers that a launch needs. If
    Triton is not installed, write nothing, and return a message under the key ``missing``."""
    try:
        triton = importlib.import_module("triton")
        backend = importlib.import_module("triton.backends.compiler")
        compiler = importlib.import_module("triton.compiler")
    except ImportError as error:
        return {"missing": f"triton is not installed ({error}): pip install triton"}
    function = load_kernel(Path(request["root"]), request["path"], request["kernel"], triton)
    signature, constants, hints = arguments_of(function, request)
    source = compiler.ASTSource(fn=function, signature=signature, constexprs=constants, attrs=hints)
    sm = int("".join(c for c in request["arch"] if c.isdigit()))
    options = {name: request[name] for name in ("num_warps", "num_stages") if request[name]}
    compiled = triton.compile(source, target=backend.GPUTarget("cuda", sm, 32), options=options)
    (folder / "kernel.ptx").write_text(compiled.asm["ptx"], encoding="utf-8")
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    metadata = compiled.metadata
    launch = {"threads": int(metadata.num_warps) * 32, "dynamic_shared_bytes": int(metadata.shared)}
    return {"launch": launch}


def load_kernel(root: Path, name: str, kernel: str, triton: Any) -> Any:
    """Return the jit function from a file, without its autotuner and heuristics."""
    path = root / name
    sys.path[:0] = [str(path.parent), str(root)]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise KernelRequestError(f"{path.name} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function = getattr(module, kernel, None)
    while function is not None and not isinstance(function, triton.JITFunction):
        function = getattr(function, "fn", None)
    if function is None:
        raise KernelRequestError(f"{kernel} is no triton.jit function")
    return function


def arguments_of(
    function: Any, request: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Return the arguments' types, the compile-time values, and the divisibility hints. As in
    Triton's own ahead-of-time compiler, a requested type ends in ``:16`` if the argument is known
    to be divisible by 16, or in ``:1`` if it is known to be 1."""
    names, types = list(function.arg_names), dict(request["signature"])
    constants = dict(request["constants"])
    unknown = [name for name in (*types, *constants) if name not in names]
    if unknown:
        known = ", ".join(names)
        raise KernelRequestError(f"the kernel has no argument {', '.join(unknown)}; it has {known}")
    for parameter in inspect.signature(function.fn).parameters.values():
        has_default = parameter.default is not inspect.Parameter.empty
        if has_default and parameter.name not in types:
            constants.setdefault(parameter.name, parameter.default)
    signature, hints = {}, {}
    for place, name in enumerate(names):
        kind, _, hint = types.get(name, "").partition(":")
        if hint == "1":
            constants[name] = 1
        elif hint == "16":
            hints[(place,)] = [["tt.divisibility", 16]]
        elif hint:
            raise KernelRequestError(f"the type of {name} ends in :{hint}; known are :1 and :16")
        signature[name] = "constexpr" if name in constants else kind
    untyped = [name for name, kind in signature.items() if not kind]
    if untyped:
        raise KernelRequestError(f"signature and constants name no type of {', '.join(untyped)}")
    return signature, constants, hints


def describe(error: BaseException, request: dict[str, Any]) -> dict[str, Any]:
    """Describe an error for the user: the innermost message, and the line in a workspace file."""
    root = Path(request["root"])
    file, line = request["path"], 0
    if isinstance(error, KernelRequestError):
        return {"error": str(error), "file": file, "line": 0}
    wrong = {kind.partition(":")[0].lstrip("*k") for kind in request["signature"].values()}
    if isinstance(error, KeyError) and error.args and error.args[0] in wrong:
        return {"error": f"signature: no type {error.args[0]!r}", "file": file, "line": 0}
    innermost, message = error, f"{type(error).__name__}: {error}"
    for cause in _chain(error):
        if hasattr(cause, "node") and hasattr(cause, "src"):  # Triton's CompilationError
            innermost = cause
            said = getattr(cause, "error_message", None)
            message = f"{type(cause).__name__}: {said}" if said else message
    if isinstance(error, SyntaxError) and error.filename:
        place: tuple[str, int] | None = (error.filename, error.lineno or 0)
        message = f"SyntaxError: {error.msg}"
    else:
        place = _place_in_kernel(innermost, root) or _place_in_traceback(error, root)
    if place is not None:
        shown = Path(place[0])
        file = shown.relative_to(root).as_posix() if shown.is_relative_to(root) else str(shown)
        line = place[1]
    return {"error": message[:_LONGEST_MESSAGE], "file": file, "line": line}


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, outermost first."""
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        seen.append(current)
        current = current.__cause__ or current.__context__
    return iter(seen)


def _place_in_kernel(error: BaseException, root: Path) -> tuple[str, int] | None:
    """Return the file and line of an error in a jit function; None if it is not in one. Triton
    counts the lines of a jit function from its ``def``."""
    source, node = getattr(error, "src", None), getattr(error, "node", None)
    offset = getattr(node, "lineno", 0)
    if source is None or not offset:
        return None
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not path or not Path(path).is_relative_to(root):
            continue
        for value in vars(module).values():
            inner = value
            while inner is not None and getattr(inner, "src", None) != source:
                inner = getattr(inner, "fn", None)
            code = getattr(getattr(inner, "fn", None), "__code__", None)
            if code is not None:
                lines = Path(path).read_text(encoding="utf-8").splitlines()
                first = code.co_firstlineno - 1
                while first < len(lines) and not _DEF.match(lines[first]):
                    first += 1  # decorators stand before it
                return code.co_filename, first + offset
    return None


def _place_in_traceback(error: BaseException, root: Path) -> tuple[str, int] | None:
    """Return file and line of the innermost workspace frame in an error's traceback, or None."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    return (inside[-1].filename, inside[-1].lineno or 0) if inside else None


def main() -> int:
    """Compile the requested kernel, and write the outcome to ``answer.json``; return 0."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        answer = compile_kernel(request, folder)
    except (Exception, SystemExit) as error:
        answer = describe(error, request)
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
