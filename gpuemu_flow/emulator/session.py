"""Run one kernel of a PTX file with arguments from the command line, and save its buffers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.emulator.arguments import NamedArgument, parse_arguments
from gpuemu_flow.emulator.coverage import KernelCoverage, cover_file
from gpuemu_flow.emulator.errors import UnsupportedError, bad_argument, bad_launch
from gpuemu_flow.emulator.findings import CHECKS, DEFAULT_CHECKS, DOUBTS
from gpuemu_flow.emulator.launch import DEFAULT_BUDGET, Kernel, LaunchResult, load_kernel
from gpuemu_flow.emulator.orders import find_order_dependence
from gpuemu_flow.emulator.variants import find_flips, make_variants
from gpuemu_flow.errors import Problem, did_you_mean

MAX_FILE = 1 << 28


class Run(Struct, frozen=True):
    """One launch of a kernel from the command line."""

    kernel: Kernel
    arguments: list[NamedArgument]
    result: LaunchResult
    seconds: float


def read_ptx_file(path: Path) -> bytes:
    """Read a PTX file; raise UsageError if that fails."""
    try:
        if path.stat().st_size > MAX_FILE:
            raise bad_launch(f"{path} has more than {MAX_FILE:,} bytes")
        return path.read_bytes()
    except OSError as error:
        raise UnsupportedError(
            Problem("emulator-no-file", f"{path} cannot be read: {error.strerror}", "", str(path))
        ) from None


def cover(path: Path) -> list[KernelCoverage]:
    """Return the coverage of each kernel of a PTX file."""
    return cover_file(read_ptx_file(path), str(path))


def run_file(
    path: Path, entry: str | None, grid: str, block: str, texts: Sequence[str], *, shared: int,
    checks: Sequence[str], seed: int, budget: int | None, backend: str = "auto",
    cluster: str | None = None,
) -> Run:  # fmt: skip
    """Launch one kernel of a PTX file, and launch it again for the checks that need more launches.

    Parameters
    ----------
    path : Path
    entry : str or None
        The kernel's name; may be None if the file has only one kernel.
    grid, block, cluster : str
        Sizes, as `parse_dimensions` reads them; no cluster if `cluster` is None.
    texts : sequence of str
        The kernel's arguments, as `parse_arguments` reads them.
    shared : int
        Bytes of dynamic shared memory.
    checks : sequence of str
        Names of checks, as `parse_checks` reads them.
    seed : int
        Seed of random arguments.
    budget : int or None
        Largest number of thread instructions per launch; None for the default.
    backend : str
        As for `Kernel.launch`.

    Returns
    -------
    Run
    """
    if entry == "":  # such as a variable of a script that is not set
        raise bad_launch("--entry '' is no name", "leave it out where the file has one kernel")
    kernel = load_kernel(read_ptx_file(path), str(path), entry or "")
    arguments = parse_arguments(texts, kernel.parameters, seed)
    names = parse_checks(checks)
    blocks, threads = parse_dimensions("grid", grid), parse_dimensions("block", block)
    together = () if cluster is None else parse_dimensions("cluster", cluster)
    given = [named.argument for named in arguments]
    limit = budget or DEFAULT_BUDGET
    start = time.perf_counter()
    result = kernel.launch(
        blocks, threads, given, shared=shared, checks=names, budget=limit, backend=backend,
        cluster=together,
    )  # fmt: skip
    if "order" in names:
        more = find_order_dependence(
            kernel, blocks, threads, given, result, shared=shared, budget=limit, cluster=together
        )
        result = replace(result, findings=(*result.findings, *more))
    variants = make_variants(kernel, names)
    if variants:
        more = find_flips(
            kernel, variants, result, given,
            lambda other: other.launch(
                blocks, threads, given, shared=shared, checks=names, budget=limit,
                cluster=together,
            ),
        )  # fmt: skip
        result = replace(result, findings=(*result.findings, *more))
    return Run(kernel, arguments, result, time.perf_counter() - start)


def exit_code(result: LaunchResult) -> int:
    """Return 0 without findings, 4 if all findings are doubts (checks in `DOUBTS`), and else 1."""
    if not result.findings:
        return 0
    return 4 if all(f.check in DOUBTS for f in result.findings) else 1


def parse_dimensions(what: str, text: str) -> tuple[int, ...]:
    """Parse the size of a grid, block or cluster, such as ``8`` or ``8,4,1``.

    `what` is the name of the option, without its dashes, for the error message.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 12 for part in parts):
        raise bad_launch(f"--{what} {text!r} is no shape", "write 8 or 8,4,1")
    return tuple(int(part) for part in parts)


def parse_checks(words: Sequence[str]) -> tuple[str, ...]:
    """Parse the names of checks; without names, return the default checks."""
    if not words:
        return DEFAULT_CHECKS
    if "all" in words:
        return CHECKS
    for word in words:
        if word not in (*CHECKS, "none"):
            raise bad_launch(f"no check {word!r}", did_you_mean(word, (*CHECKS, "all", "none")))
    return tuple(word for word in words if word != "none")


def save_buffers(
    texts: Sequence[str], arguments: Sequence[NamedArgument], result: LaunchResult
) -> None:
    """Write buffers to ``.npy`` files, one for each ``name=file``."""
    after = {n.name: d for n, d in zip(arguments, result.buffers, strict=True) if d is not None}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in after:
            raise bad_argument(
                f"--save {text!r}: no buffer {name!r}", did_you_mean(name, tuple(after))
            )
        try:
            with Path(file).open("wb") as target:
                np.save(target, after[name], allow_pickle=False)
        except OSError as error:
            raise bad_argument(f"--save: {file} cannot be written: {error.strerror}") from None
