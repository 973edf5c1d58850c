"""Convert the checked keys of plain tables, such as ``[project]``, to the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpuemu_flow.config import model, tables
from gpuemu_flow.config.paths import WorkspacePaths
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.presence import ExpectedFiles
from gpuemu_flow.config.report import Reporter
from gpuemu_flow.config.tables_sandbox import SANDBOX
from gpuemu_flow.config.vocabulary import STRATEGY_SET
from gpuemu_flow.numerics.contract import PartialTolerance, resolve
from gpuemu_flow.types import Json, Shape

MAX_ELEMENTS = 2**30  # the same bound as for the schema of an op
DEFAULT_REGRESSION = 0.1
GROWTH_MEANING_UP_TO = 0.25  # of warn_threshold, which has two documented meanings

Table = Mapping[str, Json]


def partial_tolerances(table: Table) -> dict[str, PartialTolerance]:
    """Convert a table of tolerances, which has already been checked.

    The keys of the table and of the result are canonical names of dtypes.
    """
    return {dtype: PartialTolerance(**given) for dtype, given in table.items()}


def policy_of(table: Table, kind: str) -> str | None:
    """Return a table's policy for `kind`, which is ``nan`` or ``inf``.

    For ``nan``, the keys are ``nan_policy`` and ``check_nan``. If both are set, ``nan_policy``
    decides. If neither is set, the result is None.
    """
    policy: str | None = table.get(f"{kind}_policy")
    check = table.get(f"check_{kind}")
    if policy is None and check is not None:
        return "strict" if check else "match"
    return policy


def report_policy_conflict(table: Table, kind: str, where: KeyPath, out: Reporter) -> None:
    """Warn of ``check_nan`` or ``check_inf`` if it contradicts the table's policy."""
    policy, check = table.get(f"{kind}_policy"), table.get(f"check_{kind}")
    if policy is None or check is None or policy == ("strict" if check else "match"):
        return
    text = f"check_{kind} = {str(check).lower()} and {kind}_policy = {policy!r} differ"
    hint = f"{kind}_policy decides; drop check_{kind}"
    out.add("config-conflict", (*where, f"check_{kind}"), text, hint, warning=True)


def project(table: Table, out: Reporter) -> model.Project:
    if "name" not in table and ("project", "name") not in out.positions.lines:
        text = "[project] lacks a name; it is called 'unnamed'"
        out.add("config-missing-key", ("project",), text, warning=True)
    return model.Project(**tables.PROJECT.values(table))


def shapes(table: Table | None, out: Reporter) -> model.PlainShapes | None:
    """Parse ``[validation.shapes]``, which sets sizes for ops without a schema.

    The result is None if the file sets no sizes.
    """
    where = ("validation", "shapes")
    if not table:
        return None
    edge_cases: list[Shape] = [
        (case,) if isinstance(case, int) else tuple(case) for case in table.get("edge_cases", [])
    ]
    lists = {n: tuple(table.get(n, ())) for n in ("batch_sizes", "sequence_lengths", "hidden_dims")}
    smallest = tuple(min(sizes) for sizes in lists.values() if sizes)
    for name, shape in [("", smallest), *(("edge_cases", case) for case in edge_cases)]:
        too_large(shape, (*where, name) if name else where, out)
    if not edge_cases and not smallest:
        return None
    return model.PlainShapes(**lists, edge_cases=tuple(edge_cases))


def too_large(shape: Shape, where: KeyPath, out: Reporter) -> None:
    """Report a shape that has too many elements to be run."""
    count = 1
    for size in shape:
        count *= size
    if count > MAX_ELEMENTS:
        text = f"the shape {list(shape)} has {count} elements; at most {MAX_ELEMENTS} are possible"
        out.add("schema-too-large", where, text)


def validation(table: Table, out: Reporter) -> model.Validation:
    values = tables.VALIDATION.values(table)
    partial = partial_tolerances(table.get("tolerances", {}))
    explicit = {dtype: resolve(dtype, None, partial) for dtype in partial}
    for kind in ("nan", "inf"):
        report_policy_conflict(table, kind, ("validation",), out)
    strategies = STRATEGY_SET.check(values["strategies"], (), Reporter(""))
    return model.Validation(
        dtypes=tuple(values["dtypes"]),
        seed=values["seed"],
        tolerance=values["tolerance"] or ("explicit" if explicit else "auto"),
        tolerances=explicit,
        precision=values["precision"],
        nan_policy=policy_of(table, "nan") or "match",
        inf_policy=policy_of(table, "inf") or "match",
        shapes=shapes(table.get("shapes"), out),
        layouts=tuple(values["layouts"]),
        strategies=tuple(strategies),
        cases=values["cases"],
        fuzz_iterations=values["fuzz_iterations"],
        cause_budget=values["cause_budget"],
    )


def policies(table: Table, ci_table: Table, out: Reporter) -> model.Policies:
    """Parse ``[policies]``.

    The key ``warn_threshold`` has two documented meanings. A value above `GROWTH_MEANING_UP_TO` is
    a share of the tolerance. Any other value is a relative growth, and is used as the
    ``regression_threshold`` if none is set here or in `ci_table`, the table ``[ci]``.
    """
    values = tables.POLICIES.values(table)
    warn, regression = values["warn_threshold"], values["regression_threshold"]
    if regression is None:
        regression = ci_table.get("regression_threshold")
    if warn <= GROWTH_MEANING_UP_TO:
        text = f"warn_threshold = {warn:g} is read as relative growth (regression_threshold)"
        hint = "a share of the tolerance lies above 0.25; 0.8 is used"
        where = ("policies", "warn_threshold")
        out.add("config-warn-threshold", where, text, hint, warning=True)
        regression = warn if regression is None else regression
        warn = tables.POLICIES.by_name["warn_threshold"].default
    registers, spills, local = (values[n] or {} for n in ("registers", "spills", "local_memory"))
    return model.Policies(
        fail_on_regression=values["fail_on_regression"],
        warn_threshold=warn,
        regression_threshold=DEFAULT_REGRESSION if regression is None else regression,
        registers=model.Limits(registers.get("max"), registers.get("warn_above")),
        spills=model.Limits(spills.get("max"), spills.get("warn_above")),
        local_memory=model.Limits(local.get("max_bytes"), local.get("warn_above")),
        rules=values["rules"],
    )


def ci(table: Table, out: Reporter) -> model.Ci:
    values = tables.CI.values(table)
    quick = values["quick"] or {}
    quick_shapes = tuple(tuple(shape) for shape in values["quick_shapes"])
    for shape in quick_shapes:
        too_large(shape, ("ci", "quick_shapes"), out)
    return model.Ci(
        quick_dtypes=tuple(quick.get("dtypes") or values["quick_dtypes"]),
        quick_shapes=quick_shapes,
        quick_fuzz_iterations=quick.get("fuzz_iterations"),
        fuzz_iterations=values["fuzz_iterations"],
        thorough_timeout=float(values["thorough_timeout"]),
        parallel_jobs=values["parallel_jobs"],
        seed=0 if values["seed"] == "random" else values["seed"],
    )


def execution(table: Table, base: Path, home: Path) -> model.ExecutionConfig:
    values = tables.EXECUTION.values(table)
    python: str | None = values["python_path"]
    return model.ExecutionConfig(
        python_path=None if python is None else program(python, base, home),
        parallel=values["parallel"],
        max_parallel_refs=values["max_parallel_refs"],
        reference_timeout=float(values["reference_timeout"]),
        timeout_grows="reference_timeout" not in table,
        tools={name: program(path, base, home) for name, path in values["tools"].items()},
        env=tuple(values["env"]),
    )


def program(written: str, base: Path, home: Path) -> str:
    """Return the path by which a configured program can be called, or its name on ``PATH``.

    Parameters
    ----------
    written : str
        The program as the configuration names it; a name on ``PATH`` if it has no slash.
    base : Path
        The folder that a relative path starts from.
    home : Path
        The folder that a path starts from if it begins with ``~/``.
    """
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
) -> model.SandboxConfig:
    """Parse ``[sandbox]``; `outs` maps each key to the reporter of the file that sets it.

    A missing path is an error only if the project's file names it. In the user's own file, which
    applies to all workspaces, it is a warning.
    """
    values = SANDBOX.values(table)
    where = ("sandbox", "writable")
    found = [workspace.resolve(path, where, outs["writable"]) for path in values["writable"]]
    hidden = [
        workspace.resolve(path, ("sandbox", "hidden"), outs["hidden"], anywhere=True)
        for path in values["hidden"]
    ]
    writable = tuple(path for path in found if path is not None)
    out = outs["apart"]
    apart = workspace.globs(values["apart"], ("sandbox", "apart"), out)
    for pattern, place in apart.items():
        presence.check_apart(pattern, place, out, mild=out is not project)
    named = zip(values["hidden"], hidden, strict=True)
    existing = [(written, path) for written, path in named if path is not None]
    out = outs["hidden"]
    presence.check_hidden(existing, writable, out, mild=out is not project)
    return model.SandboxConfig(
        values["mode"], writable, tuple(path for _, path in existing), tuple(apart)
    )


def cache(table: Table, workspace: WorkspacePaths, out: Reporter) -> model.Cache:
    values = tables.CACHE.values(table)
    folder = values["dir"]
    if folder is not None:
        found = workspace.resolve(folder, ("cache", "dir"), out)
        folder = None if found is None else found.resolve()
    return model.Cache(
        size_limit=values["size_limit"],
        dir=folder,
        remote=values["remote"] or "",
        remote_mode=values["remote_mode"],
    )


def daemon(table: Table, workspace: WorkspacePaths, out: Reporter) -> model.Daemon:
    values = tables.DAEMON.values(table)
    path = values["socket_path"]
    if path is not None:
        path = workspace.resolve(path, ("daemon", "socket_path"), out, anywhere=True)
    return model.Daemon(path, values["log_level"], values["max_connections"])


def storage(table: Table, workspace: WorkspacePaths, out: Reporter) -> model.Storage:
    values = tables.STORAGE.values(table)
    path = values["db_path"]
    if path is not None:
        path = workspace.resolve(path, ("storage", "db_path"), out, anywhere=True)
    return model.Storage(
        path, values["max_results"], values["max_baselines"], values["retention_days"]
    )
