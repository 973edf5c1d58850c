"""The entry point: answers "nothing changed" at once, and hands everything else to the CLI."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; never returns."""
    if sys.argv[1:] == ["run"] and "GPUEMU_CONFIG" not in os.environ:
        from gpuemu_flow.engine import plan  # noqa: PLC0415 - only the fast path needs it

        root = plan.find_workspace(os.getcwd())  # noqa: PTH109
        if root is not None:
            path = f"{root}/{plan.CACHE_NAME}/{plan.PLAN_NAME}"
            summary = plan.up_to_date(path, os.environ)
            if summary is not None:
                print(summary)
                sys.stdout.flush()
                os._exit(0)  # the interpreter's own tidying up costs more than the answer did
    from gpuemu_flow.cli.main import run_cli  # noqa: PLC0415 - click only when it is needed

    run_cli()
