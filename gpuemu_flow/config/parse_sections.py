"""Make the structs of plain tables, such as ``[project]``, from their checked keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from gpuemu_flow.config.check import decoded
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.presence import ExpectedFiles
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.config.tables import (
    Cache,
    Ci,
    Daemon,
    ExecutionConfig,
    Policies,
    Project,
    SandboxConfig,
    Storage,
    Validation,
)
from gpuemu_flow.config.vocabulary import one_policy
from gpuemu_flow.model.types import Json, Shape, Tolerance
from gpuemu_flow.numerics.contract import PartialTolerance, resolve

MAX_ELEMENTS = 2**30  # the same bound as for the schema of an op
GROWTH_MEANING_UP_TO = 0.25  # of warn_threshold, which has two documented meanings

Table = Mapping[str, Json]


def partial_tolerances(table: Table) -> dict[str, PartialTolerance]:
    """Convert a table of tolerances, which has already been checked.

    The keys of the table and of the result are canonical names of dtypes.
    """
    return {dtype: PartialTolerance(**given) for dtype, given in table.items()}


def explicit_tolerances(shared: Validation) -> dict[str, Tolerance]:
    """Return the tolerances of ``[validation]``, with the documented ones for missing members."""
    own = {dtype: PartialTolerance(at.atol, at.rtol) for dtype, at in shared.tolerances.items()}
    return {dtype: resolve(dtype, None, own) for dtype in own}


def policy_of(table: Table, kind: str) -> str | None:
    """Return a table's policy for `kind`, which is ``nan`` or ``inf``; None if it sets none.

    For ``nan``, the keys are ``nan_policy`` and ``check_nan``. If both are set, ``nan_policy``
    decides.
    """
    return one_policy(table.get(f"{kind}_policy"), table.get(f"check_{kind}"))


def report_policy_conflict(table: Table, kind: str, where: KeyPath, out: Reporter) -> None:
    """Warn of ``check_nan`` or ``check_inf`` if it contradicts the table's policy."""
    policy, check = table.get(f"{kind}_policy"), table.get(f"check_{kind}")
    if policy is None or check is None or policy == ("strict" if check else "match"):
        return
    text = f"check_{kind} = {str(check).lower()} and {kind}_policy = {policy!r} differ"
    hint = f"{kind}_policy decides; drop check_{kind}"
    out.add("config-conflict", (*where, f"check_{kind}"), text, hint, warning=True)


def project(table: Table, out: Reporter) -> Project:
    if "name" not in table and ("project", "name") not in out.positions.lines:
        text = "[project] lacks a name; it is called 'unnamed'"
        out.add("config-missing-key", ("project",), text, warning=True)
    return decoded(Project, table)


def too_large(shape: Shape, where: KeyPath, out: Reporter) -> None:
    """Report a shape that has too many elements to be run."""
    count = 1
    for size in shape:
        count *= size
    if count > MAX_ELEMENTS:
        text = f"the shape {list(shape)} has {count} elements; at most {MAX_ELEMENTS} are possible"
        out.add("schema-too-large", where, text)


def validation(table: Table, out: Reporter) -> Validation:
    for kind in ("nan", "inf"):
        report_policy_conflict(table, kind, ("validation",), out)
    found = decoded(Validation, table)
    shapes = found.shapes
    if shapes is None:
        return found
    where = ("validation", "shapes")
    lists = shapes.batch_sizes, shapes.sequence_lengths, shapes.hidden_dims
    smallest = tuple(min(sizes) for sizes in lists if sizes)
    too_large(smallest, where, out)
    for case in shapes.edge_cases:
        too_large(case, (*where, "edge_cases"), out)
    return found if smallest or shapes.edge_cases else replace(found, shapes=None)


def policies(table: Table, ci_table: Table, out: Reporter) -> Policies:
    """Make ``[policies]``.

    The key ``warn_threshold`` has two documented meanings. A value above `GROWTH_MEANING_UP_TO` is
    a share of the tolerance. Any other value is a relative growth, and is used as the
    ``regression_threshold`` if none is set here or in `ci_table`, the table ``[ci]``.
    """
    found = decoded(Policies, table)
    warn = found.warn_threshold
    regression = table.get("regression_threshold", ci_table.get("regression_threshold"))
    if warn <= GROWTH_MEANING_UP_TO:
        text = f"warn_threshold = {warn:g} is read as relative growth (regression_threshold)"
        hint = "a share of the tolerance lies above 0.25; 0.8 is used"
        where = ("policies", "warn_threshold")
        out.add("config-warn-threshold", where, text, hint, warning=True)
        regression = warn if regression is None else regression
        warn = Policies().warn_threshold
    if regression is None:
        regression = found.regression_threshold
    return replace(found, warn_threshold=warn, regression_threshold=regression)


def ci(table: Table, out: Reporter) -> Ci:
    found = decoded(Ci, table)
    for shape in found.quick_shapes:
        too_large(shape, ("ci", "quick_shapes"), out)
    return found


def execution(table: Table, base: Path, home: Path) -> ExecutionConfig:
    found = decoded(ExecutionConfig, table)
    python = found.python_path
    return replace(
        found,
        python_path=None if python is None else program(python, base, home),
        timeout_grows="reference_timeout" not in table,
        tools={name: program(path, base, home) for name, path in found.tools.items()},
    )


def program(written: str, base: Path, home: Path) -> str:
    """Return the path by which a configured program can be called, or its name on ``PATH``."""
    if written.startswith("~/"):
        return str(home / written[2:])
    # Not resolved: a virtual environment's interpreter is a link that must be called as such.
    return str(base / written) if "/" in written else written


def sandbox(
    table: Table,
    workspace: WorkspacePaths,
    outs: Mapping[str, Reporter],
    presence: ExpectedFiles,
    project: Reporter,
) -> SandboxConfig:
    """Make ``[sandbox]``; `outs` maps each key to the reporter of the file that sets it.

    A missing path is an error only if the project's file names it. In the user's own file, which
    applies to all workspaces, it is a warning.
    """
    out, where = outs["writable"], ("sandbox", "writable")
    found = [workspace.resolve(path, where, out) for path in table.get("writable", ())]
    writable = tuple(path for path in found if path is not None)
    out, where = outs["apart"], ("sandbox", "apart")
    apart = workspace.globs(table.get("apart", ()), where, out)
    for pattern, place in apart.items():
        presence.check_apart(pattern, place, out, mild=out is not project)
    out, where = outs["hidden"], ("sandbox", "hidden")
    hidden = [
        (written, path)
        for written in table.get("hidden", ())
        if (path := workspace.resolve(written, where, out, anywhere=True)) is not None
    ]
    presence.check_hidden(hidden, writable, out, mild=out is not project)
    paths = tuple(path for _, path in hidden)
    return decoded(SandboxConfig, table, writable=writable, hidden=paths, apart=tuple(apart))


def cache(table: Table, workspace: WorkspacePaths, out: Reporter) -> Cache:
    found = _path(table, ("cache", "dir"), workspace, out)
    return decoded(Cache, table, dir=None if found is None else found.resolve())


def daemon(table: Table, workspace: WorkspacePaths, out: Reporter) -> Daemon:
    path = _path(table, ("daemon", "socket_path"), workspace, out, anywhere=True)
    return decoded(Daemon, table, socket_path=path)


def storage(table: Table, workspace: WorkspacePaths, out: Reporter) -> Storage:
    path = _path(table, ("storage", "db_path"), workspace, out, anywhere=True)
    return decoded(Storage, table, db_path=path)


def _path(
    table: Table,
    where: tuple[str, str],
    workspace: WorkspacePaths,
    out: Reporter,
    *,
    anywhere: bool = False,
) -> Path | None:
    """Return the absolute path that a key of `table` gives; None if there is none."""
    written = table.get(where[1])
    return None if written is None else workspace.resolve(written, where, out, anywhere=anywhere)
