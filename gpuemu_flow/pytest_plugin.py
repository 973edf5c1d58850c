"""The pytest plugin's hooks, which load nothing else until a test asks for a case.

``@pytest.mark.gpuemu("softmax", cases=50)`` and the fixture ``gpuemu_case`` turn every case of an
op into a test; `gpuemu_flow.services.testing` does the work.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Generator, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gpuemu_flow.client import Client
    from gpuemu_flow.services.testing.items import GpuemuCase

FIXTURE = "gpuemu_case"
MARK = "gpuemu"


def _items() -> ModuleType:
    """Return the module that does the work, loaded on first use."""
    return importlib.import_module("gpuemu_flow.services.testing.items")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line's options, and the ini file's option for the workspace."""
    group = parser.getgroup("gpuemu", "GPU kernels validated against references")
    group.addoption(
        "--gpuemu-seed", metavar="SEED", help="Master seed of all cases; default: the workspace's."
    )
    group.addoption(
        "--gpuemu-cases", metavar="N", help="Cases per op and dtype, whatever the marks say."
    )
    group.addoption(
        "--gpuemu-dtype", metavar="DTYPE", action="append", default=[],
        help="Only cases of this dtype; may be repeated.",
    )  # fmt: skip
    group.addoption(
        "--gpuemu-config", metavar="FILE", help="The gpuemu.toml; default: the rootdir's."
    )
    parser.addini("gpuemu_config", "The gpuemu.toml, relative to the rootdir.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark ``gpuemu``."""
    config.addinivalue_line(
        "markers",
        "gpuemu(op, *, cases=None, dtypes=None, strategies=None, layouts=None, seed=None, "
        "per='case'): run the test on cases of an op; the fixture gpuemu_case is the case.",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make test items for a function with the mark or the fixture: for each case, or for each op.

    An item for a whole op covers all of its cases in one dtype.
    """
    asks = FIXTURE in metafunc.fixturenames
    marked = metafunc.definition.get_closest_marker(MARK) is not None
    if asks or marked:
        _items().parametrize(metafunc, asks=asks)


@pytest.fixture
def gpuemu_case(request: pytest.FixtureRequest) -> Iterator[GpuemuCase]:
    """Yield a case of the marked op.

    ``gpuemu_case["x"]`` is the input ``x``, and ``gpuemu_case.check(output)`` checks an output.
    """
    case = _items().make_case(request)
    yield case
    case.raise_late_failures()


@pytest.fixture(scope="session")
def gpuemu_client(pytestconfig: pytest.Config) -> Iterator[Client]:
    """Yield a client of the workspace's daemon, which is started when none runs."""
    with _items().make_client(pytestconfig) as client:
        yield client


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a marked test for which no cases were made."""
    if item.get_closest_marker(MARK) and FIXTURE not in getattr(item, "fixturenames", ()):
        _items().refuse_unused_mark(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """If a test item covers a whole op, run the test once for each case."""
    if FIXTURE not in pyfuncitem.funcargs:
        return None
    ran: bool | None = _items().call_per_op(pyfuncitem)
    return ran


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Fail a test if a check failed in it, but the exception was lost in a thread or a ``try``."""
    if FIXTURE in getattr(item, "funcargs", ()):
        _items().finish_checks(item)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Add the case to the report of a failed test, and record the case as a failure."""
    outcome = yield
    if FIXTURE in getattr(item, "funcargs", ()) and call.when == "call":
        _items().finish(item, call, outcome.get_result())


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the processes that the session started for programs."""
    work = sys.modules.get("gpuemu_flow.services.testing.session")
    if work is not None:
        work.close(config)
