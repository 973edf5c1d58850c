"""The arguments of the plugin's mark and options, and the workspace of one pytest session."""

from __future__ import annotations

import hashlib
import os
import shlex
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct

from gpuemu_flow.model.errors import Problem, UsageError, did_you_mean
from gpuemu_flow.model.types import DTYPES, canonical_dtype

if TYPE_CHECKING:
    from gpuemu_flow.config.model import Config
    from gpuemu_flow.fuzz.own_outputs import OwnOutputs


FIXTURE = "gpuemu_case"
MARK = "gpuemu"
PER = ("case", "op")
MAX_CASES = 100_000
MAX_SEED = (1 << 64) - 1
_KNOWN = ("op", "cases", "dtypes", "strategies", "layouts", "seed", "per")


class MarkArguments(Struct, frozen=True):
    """The arguments of a mark."""

    op: str
    cases: int | None = None
    dtypes: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    seed: int | None = None
    per_op: bool = False


def read_mark(mark: pytest.Mark) -> MarkArguments:
    """Return a mark's arguments. Raises UsageError: ``pytest-bad-mark``, ``unknown-dtype``."""
    given = dict(mark.kwargs)
    if len(mark.args) > 1:
        raise bad_mark("it takes the op's name and keyword arguments")
    if mark.args:
        given.setdefault("op", mark.args[0])
    for name in given:
        if name not in _KNOWN:
            raise bad_mark(f"it has no argument {name!r}", did_you_mean(name, _KNOWN))
    op = given.get("op")
    if not isinstance(op, str) or not op:
        raise bad_mark("it names no op", '@pytest.mark.gpuemu("softmax")')
    per = given.get("per", "case")
    if per not in PER:
        raise bad_mark(f"per={per!r}", 'per="case" or per="op"')
    cases, seed = given.get("cases"), given.get("seed")
    return MarkArguments(
        op,
        None if cases is None else read_number("cases", cases, low=1, high=MAX_CASES),
        tuple(read_dtype(name) for name in _names("dtypes", given)),
        _names("strategies", given),
        _names("layouts", given),
        None if seed is None else read_number("seed", seed),
        per == "op",
    )


def bad_mark(message: str, hint: str = "") -> UsageError:
    return UsageError(Problem("pytest-bad-mark", f"the gpuemu mark: {message}", hint))


def read_number(name: str, value: Any, *, low: int = 0, high: int = MAX_SEED) -> int:
    """Return a mark's or an option's `value` as an integer in the range. Raises UsageError."""
    text = str(value)
    if isinstance(value, bool) or not text.isdecimal() or not low <= int(text) <= high:
        text = f"{name} must be an integer from {low} to {high}, not {value!r}"
        raise UsageError(Problem("pytest-bad-number", text))
    return int(text)


def _names(name: str, given: dict[str, Any]) -> tuple[str, ...]:
    value = given.get(name) or ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise bad_mark(f"{name} must be a list of names")
    return tuple(value)


def read_dtype(name: str) -> str:
    found = canonical_dtype(name)
    if found is None:
        hint = did_you_mean(name.lower(), tuple(DTYPES))
        raise UsageError(Problem("unknown-dtype", f"there is no dtype {name!r}", hint))
    return found


class Item(Struct, frozen=True):
    """The case of a test item; `index` is None for all cases of the op and dtype."""

    marked: MarkArguments
    dtype: str
    count: int
    index: int | None


class PytestSession:
    """One pytest process: its workspace, opened when a test needs it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        named = config.getoption("--gpuemu-config") or config.getini("gpuemu_config")
        self.root = Path(config.rootpath)
        self.environ = dict(os.environ)
        if named:
            base = Path.cwd() if config.getoption("--gpuemu-config") else self.root
            self.environ["GPUEMU_CONFIG"] = str((base / named).resolve())
        seed = config.getoption("--gpuemu-seed")
        self.given_seed = None if seed is None else read_number("--gpuemu-seed", seed)
        cases = config.getoption("--gpuemu-cases")
        self.given_cases = None if cases is None else read_number("--gpuemu-cases", cases, low=1)
        self.dtypes = {read_dtype(name) for name in config.getoption("--gpuemu-dtype")}
        self._opened: dict[int, OwnOutputs] = {}

    @cached_property
    def configured(self) -> Config:
        from gpuemu_flow.config.load import find_config, load_config  # noqa: PLC0415

        return load_config(find_config(self.root, self.environ), environ=self.environ)

    @property
    def outputs(self) -> OwnOutputs:
        """Return the object that makes cases and judges outputs; a forked process has its own."""
        from gpuemu_flow.fuzz.own_outputs import OwnOutputs  # noqa: PLC0415

        process = os.getpid()
        if process not in self._opened:
            self._opened[process] = OwnOutputs(self.root, self.environ)
        return self._opened[process]

    def close(self) -> None:
        opened = self._opened.pop(os.getpid(), None)
        if opened is not None:
            opened.close()

    def seed(self, marked: MarkArguments) -> int:
        """Return the command line's master seed, else the mark's, else the workspace's. If the
        workspace asks for new seeds, the result is one new seed for the whole run."""
        for given in (self.given_seed, marked.seed, self.configured.validation.seed or None):
            if given is not None:
                return given
        # The workspace asks for a new seed in each run; all workers of xdist must get the same one.
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(id(self)) + os.urandom(8).hex()
        self.given_seed = int.from_bytes(hashlib.sha256(run.encode()).digest()[:6], "big")
        return self.given_seed

    def items(self, marked: MarkArguments) -> list[tuple[str, Item]]:
        """Return the test items for a mark, each with its id, always in the same order. The dtypes
        are in the order of the mark or else of the configuration. The cases of each dtype follow
        each other."""
        op = self.configured.op(marked.op)
        count = self.given_cases or marked.cases or op.cases
        found = []
        for dtype in marked.dtypes or op.dtypes:
            if self.dtypes and dtype not in self.dtypes:
                continue
            name = f"{marked.op}-{dtype}"
            if marked.per_op:
                found.append((name, Item(marked, dtype, count, None)))
            else:
                found += [(f"{name}-{n}", Item(marked, dtype, count, n)) for n in range(count)]
        return found

    def command(self, test: str, seed: int) -> str:
        """Return the command that runs a test again on the same case."""
        words = ["pytest", test, "--gpuemu-seed", str(seed)]
        for option in ("--gpuemu-cases", "--gpuemu-config"):
            if self._config.getoption(option) is not None:
                words += [option, str(self._config.getoption(option))]
        return shlex.join(words)


SESSION = pytest.StashKey[PytestSession]()


def session_of(config: pytest.Config) -> PytestSession:
    if SESSION not in config.stash:
        config.stash[SESSION] = PytestSession(config)
    return config.stash[SESSION]


def close(config: pytest.Config) -> None:
    session = config.stash.get(SESSION, None)
    if session is not None:
        session.close()
