"""Globs of the configuration: the files that match, and the folders whose listing decides that."""

from __future__ import annotations

from pathlib import Path

from gpuemu_flow.inputs.plan import CACHE_NAME


def glob_files(root: Path, pattern: str) -> list[str]:
    """Return the files that `pattern` matches, sorted: relative to `root`, absolute outside of it.

    Files in our own cache are left out, since they change with every run. A pattern that ends in a
    slash also matches entries that are no files, such as folders and broken links. The pattern is
    absolute where the configuration may name files outside of `root`.
    """
    anything = pattern.endswith("/")
    base = Path("/") if pattern.startswith("/") else root
    found = []
    for path in base.glob(pattern.strip("/")):
        name = path.relative_to(root) if path.is_relative_to(root) else path
        if (anything or path.is_file()) and CACHE_NAME not in name.parts:
            found.append(name.as_posix())
    return sorted(found)


def glob_folders(root: Path, pattern: str) -> set[Path]:
    """Return folders whose listing decides what `pattern` matches."""
    fixed = root
    for part in Path(pattern).parts[:-1]:
        if any(c in part for c in "*?["):
            break
        fixed = fixed / part
    folders = {fixed}
    if "**" in pattern or any(c in str(Path(pattern).parent) for c in "*?["):
        folders.update(
            path
            for path in fixed.rglob("*")
            if path.is_dir() and CACHE_NAME not in path.relative_to(fixed).parts
        )
    return folders
