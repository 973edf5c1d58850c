"""Check that a program does not touch forbidden files or replace the functions that check it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType

from gpuemu_flow.runners.api import Checks, OpError, Program, RunError
from gpuemu_flow.runners.guard import Guard
from gpuemu_flow.runners.integrity import Seal


class Conduct:
    """Watches one program in this process.

    Does nothing if the program has no `forbidden` paths, or runs in another process. Must be
    created before any code of the program runs.

    Parameters
    ----------
    program : Program
    """

    def __init__(self, program: Program | None = None) -> None:
        self._guard: Guard | None = None
        self._seal: Seal | None = None
        if program is None or not program.forbidden or program.kind == "command" or program.python:
            return  # a program in another process cannot be watched here
        self._seal = Seal()
        self._guard = Guard(program)
        self._guard.install(self._seal.on_setattr)

    @contextmanager
    def own_work(self) -> Iterator[None]:
        """Let this thread use forbidden files inside the context.

        No code of the program may run inside the context.
        """
        if self._guard is None:
            yield
        else:
            with self._guard.own_work():
                yield

    def violation(self) -> RunError | None:
        """Return the reason why this program's results do not count; None if they count."""
        return self._guard.violation() if self._guard is not None else None

    def loaded(self, script: CodeType | None = None) -> None:
        """Check the rules once the program's code is loaded; raise OpError as `demand` does.

        Parameters
        ----------
        script : CodeType, optional
            See `Guard.loaded`.
        """
        if self._guard is not None:
            self._guard.loaded(script)
        self.demand(Checks())

    def demand(self, checks: Checks) -> None:
        """Raise an error if the program has broken a rule; call it after each call of the program.

        Parameters
        ----------
        checks : Checks
            The checks of the call.

        Raises
        ------
        OpError
            ``op-reads-reference`` if the program accessed what is forbidden; ``op-broke-runner`` if
            it replaced functions of numpy or the runner on which one of the checks depends.
        """
        violation = self.violation()
        if violation is not None:
            raise OpError(violation)
        rests_on_us = checks.inputs_unchanged or checks.guards or checks.repeat
        replaced = self._seal.broken() if self._seal is not None and rests_on_us else ""
        if replaced:
            message = f"the program replaced {replaced} in its own process"
            hint = "leave numpy's functions and the checker's own as they are"
            raise OpError(RunError("op-broke-runner", message, hint))
