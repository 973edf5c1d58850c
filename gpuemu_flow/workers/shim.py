"""Run a Python function under the script protocol in an interpreter that lacks this package.

``python shim.py FILE MODULE FUNCTION OUTPUT,...`` needs the standard library and numpy only, and
ml_dtypes for dtypes that numpy lacks.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import inspect
import json
import os
import re
import sys
from importlib import machinery
from typing import Any

_EXTENDED = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


def _numpy_dtype(name: str) -> Any:
    import numpy as np  # noqa: PLC0415 - after sys.path is in order

    if name in _EXTENDED:
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return np.dtype(name)


class _ImportProbe:
    """The last import finder, which tests whether the files of modules exist, but finds nothing.
    The coordinator observes these tests, and so learns which files were missing. The import system
    itself does not test for them: it lists each folder of installed packages once, and does not
    look for files that the list lacks."""

    @staticmethod
    def find_spec(name: str, path: Any = None, _: Any = None) -> None:
        """Test whether a file of the module exists in any folder of installed packages. The result
        of the tests is not used, but the coordinator observes them."""
        tail = name.rpartition(".")[2]
        for folder in sys.path if path is None else path:
            if "-packages" in folder:
                for end in ("", ".py", *machinery.EXTENSION_SUFFIXES):
                    os.path.lexists(f"{folder}/{tail}{end}")

    @staticmethod
    def find_distributions(context: Any) -> Any:
        """Test whether ``NAME.dist-info`` of a distribution exists in each searched folder. The
        module `searches` records the same paths. The result of the tests is not used."""
        if context.name:
            name = re.sub(r"[-_.]+", "_", context.name).lower()
            for folder in context.path:
                os.path.lexists(os.path.join(os.path.abspath(folder), name + ".dist-info"))  # noqa: PTH100, PTH118
        return ()


def _load(path: str, module: str, function: str) -> Any:
    if path:
        sys.path.insert(0, os.path.dirname(path))  # noqa: PTH120 - no pathlib before the program
        spec = importlib.util.spec_from_file_location("gpuemu_program", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {path}")
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = loaded
        spec.loader.exec_module(loaded)
    else:
        loaded = importlib.import_module(module)
    found: Any = loaded
    for name in function.split("."):
        found = getattr(found, name)
    return found


def _takes_mapping(function: Any, inputs: dict[str, Any], kwargs: dict[str, Any]) -> bool:
    """Tell whether to pass all inputs to a function as one mapping. This is the case if it has a
    single required parameter, apart from `kwargs`, and no input has the parameter's name."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [
        p.name
        for p in parameters
        if p.kind in kinds and p.default is p.empty and p.name not in kwargs
    ]
    return len(needed) == 1 and needed[0] not in inputs


def _tensor(value: Any) -> dict[str, Any]:
    import numpy as np  # noqa: PLC0415 - after sys.path is in order

    array = np.asarray(value)
    data = base64.b64encode(array.tobytes()).decode()
    return {"shape": list(array.shape), "dtype": array.dtype.name, "data": data}


def _outputs(returned: Any, names: list[str]) -> dict[str, Any]:
    if isinstance(returned, dict):
        return {name: _tensor(value) for name, value in returned.items()}
    if isinstance(returned, (tuple, list)):
        if len(returned) != len(names):
            raise TypeError(f"{len(returned)} outputs returned where {len(names)} are declared")
        return {name: _tensor(value) for name, value in zip(names, returned)}  # noqa: B905 - 3.8
    return {names[0]: _tensor(returned)}


def main() -> None:
    """Read a request on stdin, call the function, write the response on stdout."""
    own = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != own]  # noqa: PTH100
    path, module, name, output_names = sys.argv[1:]
    import numpy as np  # noqa: PLC0415 - after sys.path is in order

    request = json.load(sys.stdin)
    typed = os.environ.get("GPUEMU_KWARGS")
    kwargs = json.loads(typed) if typed else request["kwargs"]
    inputs = {
        key: np.frombuffer(bytearray(base64.b64decode(t["data"])), _numpy_dtype(t["dtype"]))
        .reshape(t["shape"])
        for key, t in request["inputs"].items()
    }  # fmt: skip
    protocol = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the function prints must not mix with the response
    finders: Any = sys.meta_path
    finders.append(_ImportProbe)
    for start in ("sitecustomize", "usercustomize"):
        if start not in sys.modules:
            _ImportProbe.find_spec(start)
    function = _load(path, module, name)
    if _takes_mapping(function, inputs, kwargs):
        returned = function(inputs, **kwargs)
    else:
        returned = function(**inputs, **kwargs)
    names = output_names.split(",") if output_names else ["result"]
    json.dump({"outputs": _outputs(returned, names)}, protocol)
    protocol.flush()


if __name__ == "__main__":
    main()
