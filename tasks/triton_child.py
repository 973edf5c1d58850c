"""Compiles one Triton kernel in an interpreter of its own; runs as a script, needs only triton.

Reads ``request.json`` in the folder that its argument names; writes ``kernel.ptx``,
``kernel.cubin`` and ``answer.json`` there.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import traceback
from pathlib import Path
from typing import Any


def compile_kernel(request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """PTX and cubin of a kernel; what the launch must give it."""
    try:
        triton = importlib.import_module("triton")
        backend = importlib.import_module("triton.backends.compiler")
        compiler = importlib.import_module("triton.compiler")
    except ImportError as error:
        return {"missing": f"triton is not installed ({error}): pip install triton"}
    path = Path(request["root"]) / request["path"]
    sys.path[:0] = [str(path.parent), request["root"]]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        return {"error": f"{path.name} cannot be imported"}
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    function: Any = getattr(module, request["kernel"], None)
    if not hasattr(function, "arg_names"):
        return {"error": f"{request['kernel']} is no triton.jit function"}
    names = list(function.arg_names)
    constants = dict(request["constants"])
    signature = {
        name: "constexpr" if name in constants else request["signature"].get(name) for name in names
    }
    untyped = [name for name, kind in signature.items() if kind is None]
    if untyped:
        return {"error": f"signature and constants name no type of {', '.join(untyped)}"}
    source = compiler.ASTSource(fn=function, signature=signature, constexprs=constants)
    sm = int("".join(c for c in request["arch"] if c.isdigit()))
    options = {name: request[name] for name in ("num_warps", "num_stages") if request[name]}
    compiled = triton.compile(source, target=backend.GPUTarget("cuda", sm, 32), options=options)
    (folder / "kernel.ptx").write_text(compiled.asm["ptx"], encoding="utf-8")
    (folder / "kernel.cubin").write_bytes(compiled.asm["cubin"])
    metadata = compiled.metadata
    launch = {"threads": int(metadata.num_warps) * 32, "dynamic_shared_bytes": int(metadata.shared)}
    return {"launch": launch}


def main() -> int:
    """Compile, and say what happened in a file."""
    folder = Path(sys.argv[1])
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        answer = compile_kernel(request, folder)
    except Exception as error:
        wanted = str(Path(request["root"]) / request["path"])
        places = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in places if frame.filename == wanted]
        node = getattr(error, "node", None)
        line = getattr(node, "lineno", None) or (lines[-1] if lines else 0)
        answer = {"error": f"{type(error).__name__}: {error}"[:2000], "line": line}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
