"""Print which extras a workspace needs: ``python -m gpuemu_flow.services.init.needs``.

The output is a requirement for pip, or nothing. A CI workflow for many workspaces can thus install
the extras of each workspace: ``... | xargs -r python -m pip install``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuemu_flow.config.load import find_config, load_config
from gpuemu_flow.model.errors import FlowError
from gpuemu_flow.services.init.installed import NAME

_OF_CACHES = {"https": "http", "http": "http", "s3": "s3"}


def needed_extras(config: Path, remote: str = "") -> tuple[str, ...]:
    """Return the extras that a workspace needs so that no part of it is skipped. `remote` is the
    shared cache that the environment names. Raises ConfigError: The configuration is invalid; the
    error lists all its problems."""
    settings = load_config(config)
    scheme = (remote or settings.cache.remote).partition("://")[0]
    extras = ("cuda" if settings.kernels else "", _OF_CACHES.get(scheme, ""))
    return tuple(filter(None, extras))


def main() -> int:
    """Print the requirement for the workspace of the current folder; return the exit code."""
    try:
        extras = needed_extras(
            find_config(Path.cwd(), os.environ), os.environ.get("GPUEMU_CACHE_REMOTE", "")
        )
    except FlowError as error:
        print(error, file=sys.stderr)
        return 2
    if extras:
        print(f"{NAME}[{','.join(extras)}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
