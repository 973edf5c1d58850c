"""Load a solution of FlashInfer-Bench from its JSON file, which holds the text of its modules.

``gpuemu-flow import flashinfer-bench`` copies this module into the workspace, so it needs nothing
of gpuemu-flow.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

LANGUAGES = ("python", "triton", "pytorch", "torch")


class SolutionError(Exception):
    """Raised if a file is not a solution that can run here."""


@dataclass(frozen=True)
class Solution:
    """The content of a solution's file."""

    # Source texts by path.
    sources: Mapping[str, str]
    # The entry point.
    file: str
    function: str
    # True if the caller allocates the outputs and passes them after the inputs.
    destination: bool
    # True if the solution asks for a GPU, and does not launch Triton kernels.
    gpu: bool
    # True if it builds CUDA, which runs on an emulated GPU.
    cuda: bool


def read(path: str, definition: str) -> Solution:
    """Read a solution.

    `definition`: Name of the definition that the solution must implement.

    Raises SolutionError.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        spec, given = content["spec"], content["sources"]
        sources = {str(PurePosixPath(one["path"])): str(one["content"]) for one in given}
        language = str(spec.get("language", "")).lower()
        file, _, function = str(spec["entry_point"]).partition("::")
        named, after = content.get("definition", definition), spec.get("destination_passing_style")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        text = f"{Path(path).name} is no solution of FlashInfer-Bench"
        raise SolutionError(f"{text}: {type(error).__name__}: {error}") from None
    if language not in LANGUAGES:
        raise SolutionError(f"GPU-only code: its language is {language[:40]!r}")
    if named != definition:
        raise SolutionError(f"it solves {str(named)[:80]!r}, and not {definition!r}")
    if file not in sources or not file.endswith(".py") or not function.isidentifier():
        raise SolutionError("its entry point is no function of its sources")
    words = "\n".join(sources.values())
    gpu = "triton" not in words and any(word in words for word in ("cuda", "hip", "xpu"))
    cuda = "cpp_extension" in words
    return Solution(sources, file, function, after is not False, gpu and not cuda, cuda)


def loaded(path: str, solution: Solution) -> ModuleType:
    """Execute the module of a solution's entry point, and return this module.

    The module can import the other modules of the solution. `path` is the solution's file.
    """
    finder = _Sources(path, solution.sources)
    sys.meta_path.insert(0, finder)
    spec = importlib.util.spec_from_loader("solution", _Loader("solution", finder, solution.file))
    assert spec is not None  # noqa: S101 - it has a loader
    assert spec.loader is not None  # noqa: S101
    module = importlib.util.module_from_spec(spec)
    sys.modules["solution"] = module
    spec.loader.exec_module(module)
    return module


class _Sources(importlib.abc.MetaPathFinder):
    def __init__(self, path: str, sources: Mapping[str, str]) -> None:
        self.path = path
        self.sources = sources

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        place = name.replace(".", "/")
        for file, package in ((f"{place}/__init__.py", True), (f"{place}.py", False)):
            if file in self.sources:
                loader = _Loader(name, self, file)
                return importlib.util.spec_from_loader(name, loader, is_package=package)
        if any(file.startswith(f"{place}/") for file in self.sources):
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [f"{self.path}/{place}"]
            return spec
        return None


class _Loader(importlib.abc.SourceLoader):
    """Loader that makes a module from its text, and gives the text to Triton and to tracebacks."""

    def __init__(self, name: str, finder: _Sources, file: str) -> None:
        self._name = name
        self._finder = finder
        self._file = file

    def get_filename(self, fullname: str) -> str:
        return f"{self._finder.path}/{self._file}"

    def is_package(self, fullname: str) -> bool:
        return fullname == self._name and self._file.endswith("/__init__.py")

    def get_data(self, path: str | bytes) -> bytes:
        if path != self.get_filename(self._name):
            raise OSError(f"no source is {path!r}")
        return self._finder.sources[self._file].encode()
