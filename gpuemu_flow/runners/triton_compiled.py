"""A stand-in for the compiled kernel that a launch returns to host code."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Compiled:
    """A stand-in for a compiled kernel that reports to use few resources, and can be launched."""

    n_regs = 32
    n_spills = 0
    function = 0

    def __init__(self, form: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._form = form
        names = form.arg_names
        self._given = {**dict(zip(names, args, strict=False)), **kwargs}
        self._given = {name: v for name, v in self._given.items() if name in names}
        self._given = {n: v for n, v in self._given.items() if not hasattr(v, "data_ptr")}
        self.name = form.fn.__name__
        self.asm: dict[str, str] = {}
        self.metadata = SimpleNamespace(
            shared=1024, num_warps=kwargs.get("num_warps", 4), num_ctas=1, name=self.name
        )

    def _init_handles(self) -> None: ...

    def _constants(self) -> list[str]:
        annotations = getattr(self._form.fn, "__annotations__", {})
        names: list[str] = self._form.arg_names
        return [name for name in names if "constexpr" in str(annotations.get(name, ""))]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            names, constants = self._form.arg_names, self._constants()
            if len(args) == len(names) - len(constants):  # the constants are in the compiled code
                names = [name for name in names if name not in constants]
            given = dict(zip(names, args, strict=False))
            self._form.run(grid=grid, warmup=False, **{**self._given, **given, **kwargs})

        return launch
