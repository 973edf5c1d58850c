"""Choose the tests that a command runs: a sample, those that the sample leaves out, or all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from whole import WHOLE, left_out

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

_PART = "GPUEMU_SUITE_PART"
_COUNT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--left-out``."""
    parser.addoption(
        "--left-out",
        action="store_true",
        help="run the tests that a run of the whole suite leaves out, and no others",
    )


def choose_part(config: pytest.Config) -> None:
    """Decide which part of the suite runs, and tell the workers through the environment.

    A path, ``-k`` and ``-m`` ask for tests by name: then all of these run.
    """
    if hasattr(config, "workerinput"):
        return
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if config.getoption("left_out"):
        part = "left-out"
    elif named or WHOLE or config.getoption("keyword") or config.getoption("markexpr"):
        part = "all"
    else:
        part = "sample"
    os.environ[_PART] = part


def keep_part(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests that are not of the part out of what was collected."""
    part = os.environ[_PART]
    if part == "all":
        return
    rest = left_out(items)
    kept = [item for item in items if (item in rest) == (part == "left-out")]
    gone = [item for item in items if (item in rest) != (part == "left-out")]
    config.stash[_COUNT] = len(gone)
    config.hook.pytest_deselected(items=gone)
    items[:] = kept


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the number of tests that were left out from a worker to the process that reports."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash.get(_COUNT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: WorkerController) -> None:
    """Take the number from a worker: each has left out the same tests."""
    output = getattr(node, "workeroutput", {})
    node.config.stash[_COUNT] = output.get("left_out", 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say how many tests did not run because they are of the other part, and how to run them."""
    count = config.stash.get(_COUNT, 0)
    if count and os.environ[_PART] == "sample":
        terminalreporter.write_line(
            f"{count} long tests and variants of tests were left out: pytest --left-out runs them"
        )
