"""Fixtures that every folder of tests shares."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import one_thread  # noqa: F401  # before anything that loads numpy
import pytest
import warm
from mini_workspace import Mini, make_mini
from once import once

FOR_CI = {"cuda", "exploits", "faults", "properties", "public_kernels", "quality"}
"""Folders of tests that take long: CUDA programs, kills, cheats, planted bugs, random inputs."""
_ALL_FOR_CI = re.compile(r"^pytestmark = \[?pytest\.mark\.ci\b", re.MULTILINE)
_FOLDERS_TOGETHER = 32
_folder_numbers = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the test's own, as pytest's, with few others beside it.

    A sandbox names all that lies beside the folders on the way to what it hides, one by one: with
    a thousand folders of other tests there, each start of an op would take 10 ms more.
    """
    together, number = divmod(next(_folder_numbers), _FOLDERS_TOGETHER)
    name = re.sub(r"\W", "_", request.node.name)[:26]  # no longer path than pytest makes: sockets
    folder = tmp_path_factory.getbasetemp() / str(together) / f"{name}{number}"
    folder.mkdir(mode=0o700, parents=True)
    return folder


@pytest.fixture
def mini(checked_once: Mini, tmp_path: Path, request: pytest.FixtureRequest) -> Mini:
    """A small real workspace, driven through the real command.

    It was never run. Behaviour tests find its cache of actions: what is not edited is restored and
    not run, as in a clone with a shared cache. A module that is about first runs sets
    ``SEEDED = False``.
    Its commands are forked from a process that has loaded the package: see `warm`. A module that
    is about how they start sets ``WARM = False``. One whose ops fail, and that asks for no causes,
    sets ``CAUSES = False``: to look for them takes ten times as many cases as the run has.
    """
    made = make_mini(tmp_path / "workspace", warm=getattr(request.module, "WARM", True))
    if getattr(request.module, "SEEDED", request.path.parent.name == "behaviour"):
        for part in ("actions", "blobs"):
            known = checked_once.root / ".gpuemu-cache" / part
            shutil.copytree(known, made.root / ".gpuemu-cache" / part, copy_function=shutil.copy2)
    if not getattr(request.module, "CAUSES", True):
        made.without_causes()
    return made


@pytest.fixture(scope="session", autouse=True)
def warm_servers() -> Iterator[None]:
    """Fork the fork servers and daemons that tests start from loaded processes: see `warm`."""
    with pytest.MonkeyPatch.context() as patch:
        for module, replacement in warm.stand_ins():
            patch.setattr(module, "subprocess", replacement)
        yield


@pytest.fixture
def cold_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start an interpreter for each fork server and daemon: for tests of how they start."""
    for module, _ in warm.stand_ins():
        monkeypatch.setattr(module, "subprocess", subprocess)


@pytest.fixture(scope="session")
def checked_once(tmp_path_factory: pytest.TempPathFactory) -> Mini:
    """The small workspace after its first run; only to be copied."""
    return once(tmp_path_factory, "checked", _checked)


def _checked(folder: Path) -> Mini:
    checked = make_mini(folder)
    checked.run()
    return checked


@pytest.fixture
def checked_mini(checked_once: Mini, tmp_path: Path, request: pytest.FixtureRequest) -> Mini:
    """A small workspace whose first run is over, to be changed by one test."""
    shutil.copytree(checked_once.root, tmp_path / "workspace", copy_function=shutil.copy2)
    return Mini(tmp_path / "workspace", warm=getattr(request.module, "WARM", True))


@contextlib.contextmanager
def _first_alone() -> Iterator[None]:
    """Let one worker compile a new checkout's tests, while the others wait to read what it wrote.

    Each would spend three times the work of a later collection, on the same files.
    """
    compiled = Path(__file__).with_name("unit") / "__pycache__"
    if "PYTEST_XDIST_WORKER" not in os.environ or compiled.exists():
        yield
        return
    with Path(__file__).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if compiled.exists():
            fcntl.flock(file, fcntl.LOCK_UN)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: ten thousand tests are made, and all of them stay."""
    gc.disable()
    try:
        with _first_alone():
            return (yield)
    finally:
        gc.freeze()  # nor are they gone through again at each later look
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import tests that all are for CI, unless they are named: a third of all files."""
    if config.option.markexpr != "not ci":
        return None
    for argument in config.args:
        named = config.invocation_params.dir / argument.partition("::")[0]
        if collection_path in (named, *named.parents):
            return None
    if collection_path.is_dir():
        return collection_path.name in FOR_CI or None
    return bool(_ALL_FOR_CI.search(collection_path.read_text(encoding="utf-8"))) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole folders, before pytest looks which ones are wanted."""
    for item in items:
        if item.path.parent.name in FOR_CI:
            item.add_marker(pytest.mark.ci)


def pytest_configure(config: pytest.Config) -> None:
    """Undo settings of the shell that would hide faults, and leave the package as users have it.

    pytest takes the package for a plugin's, and would compile each of its modules once more, with
    asserts that cost more: in each worker, and beside the files that all other processes read.

    Programs below ``pytest &`` would not hear Ctrl-C, those below ``nohup pytest`` not that a
    terminal closed; where Python writes no bytecode, none is ever stale.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    hook = getattr(config.pluginmanager, "rewrite_hook", None)
    for name in ("_must_rewrite", "_marked_for_rewrite_cache"):  # private: may be gone one day
        marked = getattr(hook, name, None)
        if isinstance(marked, set):
            marked.discard("gpuemu_flow")
        elif isinstance(marked, dict):
            marked.clear()
