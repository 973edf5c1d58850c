"""Store the plan, with which the next plain ``run`` finds quickly that nothing changed."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.inputs import plan
from gpuemu_flow.inputs.environment import NUMERIC_PACKAGES
from gpuemu_flow.inputs.files import Stamp, stamp_of
from gpuemu_flow.inputs.globs import glob_folders
from gpuemu_flow.quick_dataclass import dataclass
from gpuemu_flow.runners.sandbox.spec import lacks
from gpuemu_flow.store.private_files import PrivateFolder
from gpuemu_flow.tasks import stages

_OPS_LOOKED_AT = 3


def save_plan(workspace: Workspace, summary: str) -> None:
    """Store the plan, with which the next plain ``run`` finds quickly that nothing changed.

    Call this only if all tasks are current and all results passed. No plan is stored if an input of
    the results changed during the run. No plan is stored either if the sandbox is incomplete, since
    a system with a complete sandbox must not reuse the results.
    """
    if lacks(workspace.snapshot.basis.sandbox):
        return
    root, join = str(workspace.root), os.path.join
    files, manifests = _listed(workspace)
    absent = [join(root, path) for path in workspace.snapshot.basis.absent]
    for name, digest in workspace.snapshot.basis.config:
        stamp = stamp_of(name)
        if digest and stamp is not None:
            files[name] = stamp
        else:
            absent.append(name)
    graph = workspace.graph
    # The outline tells which tasks may have such packages; the others are not parsed for that.
    wavering = (graph.tasks[name] for name, outline in graph.outlines.items() if outline.wavers)
    unseen = {
        package
        for spec in wavering
        if spec.stage not in stages.OBSERVED
        for package in spec.packages
    }
    for path in (*_package_files(), *filter(None, map(_record_file, sorted(unseen)))):
        stamp = stamp_of(path)
        if stamp is not None:
            files[path] = stamp
    needed = workspace.snapshot.observed.needed(workspace.inputs)
    absent += needed.absent
    of_kernels = _InputsOfKernels.of(workspace)
    seen = {**of_kernels.tools, **workspace.watched}
    absent += [*of_kernels.absent, *(path for path, stamp in seen.items() if stamp is None)]
    files.update({path: stamp for path, stamp in seen.items() if stamp is not None})
    folders, links = dict(needed.folders), {**needed.links, **dict(workspace.snapshot.basis.links)}
    listed = set(of_kernels.folders)
    for pattern, _ in workspace.snapshot.basis.globs:
        listed |= glob_folders(workspace.root, pattern)
    for folder in listed:
        stamp = stamp_of(folder)
        if stamp is not None:
            folders[str(folder)] = stamp
        else:
            absent.append(str(folder))
    own = _folders_of_manifests(workspace, manifests)
    if own is None:
        return
    _settle(workspace, (*files.values(), *folders.values(), *own.values()))
    content = plan.render(
        identity_text=workspace.identity,
        summary=summary,
        files=files,
        absent=absent,
        folders=folders,
        links=links,
        variables={**needed.variables, **of_kernels.variables},
        looks={**dict(workspace.snapshot.basis.looks), **needed.looks},
        own=own,
        workers=_shares_workers(workspace),
    )
    # After taking the stamps: a change before that would otherwise count as already judged.
    if content is not None and workspace.is_as_judged:
        PrivateFolder(workspace.plan_path.parent).write(workspace.plan_path, content)


@dataclass(frozen=True)
class _InputsOfKernels:
    """Inputs of the compilation of kernels, besides the files of their tasks.

    Attributes
    ----------
    tools : mapping of str to Stamp or None
        Stamp of each path where a tool is looked for; None if no file exists there.
    absent : list of str
        Paths where a header was looked for and no file exists.
    folders : list of Path
        Folders where a new header would affect the compilation.
    variables : mapping of str to str
        Digests of the environment variables that determine which tools are found.
    """

    tools: Mapping[str, Stamp | None] = field(default_factory=dict)
    absent: Sequence[str] = ()
    folders: Sequence[Path] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, workspace: Workspace) -> _InputsOfKernels:
        """Collect the inputs from the workspace's snapshot, which recorded them."""
        kernels = workspace.snapshot.basis.kernels
        if kernels is None:
            return cls()
        includes = [found for _, _, found in kernels.includes]
        return cls(
            {path: None if stamp is None else tuple(stamp) for path, stamp in kernels.tool_files},
            [str(workspace.root / path) for found in includes for path in found["absent"]],
            [workspace.root / path for found in includes for path in found["folders"]],
            {"PATH": plan.variable_digest(os.environ, "PATH")},
        )


def _listed(workspace: Workspace) -> tuple[dict[str, Stamp], dict[str, list[str]]]:
    """Split the table of files into manifests and other files.

    Returns
    -------
    files : dict of str to Stamp
        Stamps of all files except manifests, by absolute path.
    manifests : dict of str to list of str
        For each folder with manifests (absolute), its manifests as the table lists them.
    """
    root, table, join = str(workspace.root), workspace.snapshot.files, os.path.join
    within = f"{workspace.cache.manifests}{os.sep}"
    files: dict[str, Stamp] = {}
    manifests: dict[str, list[str]] = {}
    for folder, paths in table.folders().items():
        place = join(root, folder)
        if place.startswith(within):
            manifests[place] = paths
            continue
        for path in paths:
            stamp = table.stamp(path)
            if stamp is not None:
                files[join(root, path)] = stamp
    return files, manifests


def _folders_of_manifests(
    workspace: Workspace, manifests: Mapping[str, list[str]]
) -> dict[str, Stamp] | None:
    """Return the stamps of the folders that contain manifests; None if a manifest was replaced.

    The plan stores the stamps of these folders. To store a stamp for each manifest would double
    the number of files in the plan. The folders suffice, because a manifest is only ever replaced
    as a whole, which changes its folder's stamp. The result includes the common parent of all these
    folders, in order to detect that the parent was replaced by a link.

    Parameters
    ----------
    manifests : mapping of str to list of str
        For each folder (absolute), the paths of its manifests as they are written in the table of
        files.
    """
    places = {folder.rstrip("/") for folder in manifests}
    if places:
        places.add(str(workspace.cache.manifests))
    own = {f: stamp for f in places if (stamp := stamp_of(f)) is not None}
    # Check manifests after taking the folders' stamps, or one could be replaced in between.
    every = itertools.chain.from_iterable(manifests.values())
    return None if workspace.snapshot.files.moved(every) else own


def _shares_workers(workspace: Workspace) -> bool:
    """Tell whether one of the graph's ops can share a worker with other ops.

    Only the first few ops are looked at.
    """
    graph = workspace.graph
    names = (name for name, outline in graph.outlines.items() if outline.stage == stages.OP)
    ops = (graph.tasks[name].settings for name in names)
    return any(
        not (op["env"] or op["env_names"] or op["framework"])
        for op in itertools.islice(ops, _OPS_LOOKED_AT)
    )


def _settle(workspace: Workspace, stamps: Iterable[plan.Stamp]) -> None:
    """Wait until the file system's clock has passed the newest stamp.

    A file changed twice within one tick of that clock (4 ms is common) would look unchanged.
    """
    newest = max((s for stamp in stamps for s in stamp[:2]), default=0)
    probe = workspace.cache.staging / f"clock-{os.getpid()}"
    try:
        for _ in range(100):
            workspace.cache.files.touch(probe)
            if probe.stat().st_mtime_ns > newest:
                break
            time.sleep(0.001)
    finally:
        workspace.cache.files.remove(probe)


def _package_files() -> list[str]:
    """Return the files that change when a package that affects all results is reinstalled."""
    import importlib.util  # noqa: PLC0415

    found = []
    for name in NUMERIC_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            found.append(spec.origin)
    return found


def _record_file(package: str) -> str:
    """Return the path of a package's ``RECORD``, which every installation rewrites, or ``""``."""
    import importlib.metadata  # noqa: PLC0415

    try:
        files = importlib.metadata.distribution(package).files or ()
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return next((str(file.locate()) for file in files if file.name == "RECORD"), "")
