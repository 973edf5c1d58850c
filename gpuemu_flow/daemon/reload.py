"""Provide the current configuration, or the last valid one if the files have errors."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.errors import FlowError
from gpuemu_flow.fuzz.wire_ops import Subjects
from gpuemu_flow.inputs.files import stamp_of
from gpuemu_flow.inputs.globs import glob_folders
from gpuemu_flow.inputs.plan import look_of
from gpuemu_flow.quick_dataclass import dataclass

log = logging.getLogger("gpuemu_flow.daemon")


@dataclass(frozen=True)
class Configured:
    """A valid configuration."""

    workspace: Workspace
    subjects: Subjects


class Reloading:
    """Provides the current configuration; checks its files at each call. Thread-safe.

    Raises FlowError: Raised only by the constructor, when there is no earlier valid configuration.
    """

    def __init__(self, start: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._start = start
        self._environ = environ
        self._lock = threading.Lock()
        self._error: FlowError | None = None
        self._current = self._load()
        self._stamps = self._look()

    def _load(self) -> Configured:
        workspace = Workspace(self._start, environ=self._environ)
        return Configured(workspace, Subjects(workspace))

    def _look(self) -> list[tuple[Callable[[str], object], str, object]]:
        """Examine each path that decides the configuration."""
        workspace = self._current.workspace
        config = workspace.config
        paths = [str(file.path) for file in (*config.files, *config.looked_into)]
        for pattern in config.include:  # a file may appear there
            paths += sorted(map(str, glob_folders(workspace.root, pattern)))
        seen: list[tuple[Callable[[str], object], str]] = [(stamp_of, path) for path in paths]
        seen += [(look_of, str(path)) for path in config.looked_at]
        return [(look, path, look(path)) for look, path in seen]

    @property
    def root(self) -> Path:
        """Return the workspace's folder."""
        return self._current.workspace.root

    @property
    def error(self) -> FlowError | None:
        """Return the error that keeps the present files from being used; None if they are used."""
        return self._error

    def current(self) -> Configured:
        """Return the last valid configuration."""
        with self._lock:
            if any(look(path) != seen for look, path, seen in self._stamps):
                self._reload()
            return self._current

    def _reload(self) -> None:
        stamps = self._look()
        try:
            self._current = self._load()
            self._error = None
            stamps = self._look()
            log.info("the configuration changed and was read again")
        except FlowError as error:
            self._error = error
            log.warning("the configuration is wrong; the last good one stays in use: %s", error)
        self._stamps = stamps
