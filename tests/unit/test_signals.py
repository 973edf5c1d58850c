"""Signals that ask a command to end are alike, whatever sends them."""

from __future__ import annotations

import signal
import sys
import threading

import pytest

from gpuemu_flow.build.signals import (
    TerminatedError,
    cancel_on_signals,
    handled,
    terminating_as_interrupting,
)
from gpuemu_flow.cli.main import INTERRUPTED, exit_code_of
from gpuemu_flow.services.debugger import run_repl

ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CATCHABLE = (signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("number", ALL)
def test_each_cancels(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with cancel_on_signals() as cancel:
        signal.raise_signal(number)
        assert cancel.is_set()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", ALL)
def test_each_ends_a_command_with_130(number: signal.Signals) -> None:
    assert exit_code_of(lambda: signal.raise_signal(number)) == INTERRUPTED


class SignalledAsItEnds:
    """An object during whose finalizer, in which Python ignores exceptions, a signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __del__(self) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", ALL)
def test_one_that_arrives_in_a_finalizer_ends_a_command(number: signal.Signals) -> None:
    hook = sys.unraisablehook

    def waits() -> None:
        SignalledAsItEnds(number)
        threading.Event().wait()

    def ends_at_once() -> int:
        SignalledAsItEnds(number)
        return 0

    def exits_at_once() -> None:
        SignalledAsItEnds(number)
        raise SystemExit(0)

    for command in (waits, ends_at_once, exits_at_once):
        assert exit_code_of(command) == INTERRUPTED
    assert sys.unraisablehook is hook


class SignalledAsItIsNamed:
    """A field at whose naming, whose exceptions Python may wrap, a signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number

    def __set_name__(self, owner: type, name: str) -> None:
        signal.raise_signal(self._number)


@pytest.mark.parametrize("number", ALL)
def test_one_that_arrives_while_a_class_is_made_ends_a_command(number: signal.Signals) -> None:
    assert exit_code_of(lambda: type("C", (), {"f": SignalledAsItIsNamed(number)})) == INTERRUPTED


def test_other_errors_while_a_class_is_made_are_raised() -> None:
    class Broken:
        def __set_name__(self, owner: type, name: str) -> None:
            raise ValueError("broken")

    with pytest.raises((RuntimeError, ValueError)):
        exit_code_of(lambda: type("C", (), {"f": Broken()}))


def test_other_errors_in_finalizers_are_reported_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda ignored: told.append(ignored.exc_value))
    assert exit_code_of(lambda: Broken() and 0) == 0
    assert [str(error) for error in told] == ["broken"]


def test_only_a_hangup_may_come_again() -> None:
    with cancel_on_signals(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    with terminating_as_interrupting():
        with pytest.raises(TerminatedError):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    with handled(signal.SIG_IGN, signal.SIGHUP):
        with cancel_on_signals() as cancel, terminating_as_interrupting():
            signal.raise_signal(signal.SIGHUP)
        assert not cancel.is_set()


class Signalled:
    """A debugger's session at whose first prompt a signal arrives."""

    def __init__(self, number: signal.Signals) -> None:
        self._number = number
        self.prompts = 0

    @property
    def prompt(self) -> str:
        self.prompts += 1
        if self.prompts == 1:
            signal.raise_signal(self._number)
        raise EOFError


@pytest.mark.parametrize(("number", "prompts"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_only_ctrl_c_leads_back_to_the_prompt(number: signal.Signals, prompts: int) -> None:
    session = Signalled(number)
    code = exit_code_of(
        lambda: run_repl(session, print, print, typed=True)  # type: ignore[arg-type]
    )
    assert (code, session.prompts) == (0 if number is signal.SIGINT else INTERRUPTED, prompts)
