"""The formats of a report: their names, file suffixes and writers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from gpuemu_flow.report.document import Report


class ReaderOptions(Struct, frozen=True):
    """Options of the person who reads the report; each format uses those that it supports."""

    color: bool = False
    warn_threshold: float = 1.0


class Format(Struct, frozen=True):
    """A report format. Its writer is imported on first use."""

    module: str
    endings: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    @property
    def write(self) -> Callable[[Report, ReaderOptions], str]:
        """Return the function that gives the whole file, ending with a line break."""
        module = import_module(f"gpuemu_flow.report.{self.module}")
        written: Callable[[Report, ReaderOptions], str] = module.write
        return written


FORMATS: Mapping[str, Format] = {
    "text": Format("report_text", (".txt",)),
    "json": Format("json_writer", (".json",)),
    "junit": Format("junit", (".xml",), ("xml",)),
    "sarif": Format("sarif", (".sarif",)),
    "markdown": Format("markdown", (".md", ".markdown"), ("md", "pr-comment", "pr_comment")),
    "html": Format("html_writer", (".html", ".htm")),
}
