"""Store all results of a workspace in the cache that machines share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuemu_flow.build import session
from gpuemu_flow.build.elsewhere import place_for, shared
from gpuemu_flow.build.events import Listener
from gpuemu_flow.build.run import Executor
from gpuemu_flow.build.session import RunOutcome
from gpuemu_flow.build.workspace import Workspace
from gpuemu_flow.store.private_files import RunLock

if TYPE_CHECKING:
    from gpuemu_flow.store.remote_cache import TransferCounts


def push(
    workspace: Workspace, words: Sequence[str] = (), listener: Listener | None = None
) -> tuple[RunOutcome, TransferCounts | None]:
    """Bring tasks up to date, then store all their results in the shared cache.

    Raises UsageError: ``cache-remote-none``, and the errors that `session.run` raises.
    """
    place_for(workspace, writing=True)
    outcome = session.run(workspace, session.RunOptions(tuple(words)), listener)
    if outcome.interrupted:
        return outcome, None
    cache, quiet, counts = workspace.cache, Listener(), None
    told = len(cache.problems)
    done = [name for name, status in outcome.ordered_status().items() if status != "failed"]
    with RunLock(cache.lock_path, (listener or quiet).on_wait):
        try:
            with (
                session.open_context(workspace, outcome.options, 1, quiet, None) as context,
                shared(workspace, context),
            ):
                states = workspace.states()
                Executor(workspace.graph, context, states, quiet, jobs=1).store_again(done)
                counts = None if context.shared is None else context.shared.counts
                outcome.interrupted = context.cancel.is_set()
            outcome.problems += cache.problems[told:]
        finally:
            cache.close()
    return outcome, counts
