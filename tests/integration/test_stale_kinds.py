"""Each way to depend on a file crossed with each way to change one: what is said is true now.

What is true is asked of ``run --force``. `STALE_KINDS=all` tries every pair, otherwise every other
way meets one kind of change, or each one: see `whole`. `test_stale_matrix` has all ways. The
command is another one for each neighbour.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mini_workspace import Mini
from stale_rows import ROWS, Row, make
from test_stale_matrix import is_up_to_date, verdict_of, watching
from whole import WHOLE

pytestmark = [
    pytest.mark.ci,
    pytest.mark.timeout(900),
]  # some commands per row, on whatever machine

Content = tuple[bool, bytes]
"""Of a path: it is a link, and its target or its bytes."""
_SKIPPED = {".gpuemu-cache", "__pycache__", "build", "home"}
_COMMANDS = ("run", "ci", "fuzz", "test")


def contents(mini: Mini) -> dict[Path, Content]:
    """Read all that the workspace and the folder beside it hold."""
    found: dict[Path, Content] = {}
    for top in (mini.root, mini.root.with_name(f"{mini.root.name}-more")):
        for folder, names, files in os.walk(top):
            links = [name for name in names if Path(folder, name).is_symlink()]
            names[:] = [name for name in names if name not in _SKIPPED and name not in links]
            for path in (Path(folder, name) for name in (*files, *links)):
                linked = path.is_symlink()
                data = os.fsencode(path.readlink()) if linked else path.read_bytes()
                found[path] = (linked, data)
    return found


def _clear(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()


def _put(path: Path, content: Content) -> None:
    linked, data = content
    path.parent.mkdir(parents=True, exist_ok=True)
    if linked:
        _clear(path)
        path.symlink_to(os.fsdecode(data))
    else:
        if path.is_symlink():
            path.unlink()
        mode = path.stat().st_mode if path.exists() else None
        path.write_bytes(data)
        if mode is not None:
            path.chmod(mode)


def edited(path: Path, content: Content) -> None:
    _put(path, content)


def edited_with_the_old_stamp(path: Path, content: Content) -> None:
    before = path.lstat() if os.path.lexists(path) else None
    _put(path, content)
    if before is not None:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns), follow_symlinks=False)


def moved_into_place(path: Path, content: Content) -> None:
    fresh = path.with_name(f"{path.name}.new")
    _put(fresh, content)
    if path.is_file() and not content[0]:
        shutil.copymode(path, fresh)
    fresh.replace(path)


def retargeted(path: Path, content: Content) -> None:
    linked, data = content
    if linked:
        _put(path, content)
        return
    real = path.parent / "elsewhere" / path.name
    real.parent.mkdir(parents=True, exist_ok=True)
    real.write_bytes(data)
    if path.is_file():
        shutil.copymode(path, real)
    _clear(path)
    path.symlink_to(real)


def deleted(path: Path, _: Content) -> None:
    _clear(path)


KINDS: tuple[Callable[[Path, Content], None], ...] = (
    edited,
    edited_with_the_old_stamp,
    moved_into_place,
    retargeted,
    deleted,
)
FILES = [row for row in ROWS if not row.in_environment]


def _pairs() -> list[tuple[Row, Callable[[Path, Content], None], str]]:
    chosen = [(row, KINDS[n % len(KINDS)]) for n, row in enumerate(FILES if WHOLE else FILES[::2])]
    if os.environ.get("STALE_KINDS") == "all":
        chosen = [(row, kind) for row in FILES for kind in KINDS]
    return [(*pair, _COMMANDS[n % len(_COMMANDS)]) for n, pair in enumerate(chosen)]


@pytest.mark.parametrize(
    ("row", "kind", "command"),
    _pairs(),
    ids=lambda v: getattr(v, "name", None) or getattr(v, "__name__", None) or v,
)
def test_what_is_said_after_a_change_is_true(
    row: Row, kind: Callable[[Path, Content], None], command: str, tmp_path: Path
) -> None:
    mini = make(row, tmp_path / "w")
    good = contents(mini)
    row.bad(mini)
    bad = contents(mini)
    row.good(mini)
    assert verdict_of(mini, command)[0] == "passed", "the row itself is right"
    verdict_of(mini, "run")
    watch = watching(mini)
    for path in sorted(good.keys() | bad.keys()):
        if path not in bad:
            _clear(path)
        elif bad[path] != good.get(path):
            kind(path, bad[path])
    changed = contents(mini) != good
    assert watch.saved() or not changed
    assert not (changed and is_up_to_date(mini))
    said = verdict_of(mini, command)[0]
    true = verdict_of(mini, "run", "--force")[0]
    assert true != "passed" or not changed or kind is deleted
    assert (said == "passed") == (true == "passed")


KERNELS = Path(__file__).resolve().parents[2] / "scripts" / "kernels" / "sm_80"
KERNEL = """
[project]
name = "linted"
[[kernels]]
name = "k"
ptx = "k/k.ptx"
cubin = "k/k.cubin"
artifact_checks = { max_spills = 0 }
"""


def kernel_files(mini: Mini, name: str, *, linked: bool) -> dict[Path, Content]:
    """The artifacts of a committed kernel, as the configuration names them."""
    found = {}
    for suffix in ("ptx", "cubin"):
        data = (KERNELS / f"{name}.{suffix}").read_bytes()
        path = mini.root / "k" / f"k.{suffix}"
        if linked:
            real = mini.root / "real" / f"{name}.{suffix}"
            real.parent.mkdir(exist_ok=True)
            real.write_bytes(data)
            found[path] = (True, os.fsencode(real))
        else:
            found[path] = (False, data)
    return found


def lint_verdict(mini: Mini) -> str:
    done = mini.command("lint", "--format", "json", code=None)
    if done.returncode == 2:
        return "refused"
    verdicts = {kernel["verdict"] for kernel in json.loads(done.stdout)["kernels"]}
    return " ".join(sorted(verdicts))


def _of_kernels() -> list[tuple[Callable[[Path, Content], None], bool]]:
    if os.environ.get("STALE_KINDS") == "all":
        return [(kind, linked) for kind in KINDS for linked in (False, True)]
    return [(kind, bool(n % 2)) for n, kind in enumerate(KINDS)]


@pytest.mark.parametrize(
    ("kind", "linked"),
    _of_kernels(),
    ids=lambda v: getattr(v, "__name__", None) or ("link" if v else "file"),
)
def test_what_lint_says_after_a_change_is_true(
    kind: Callable[[Path, Content], None], linked: bool, tmp_path: Path
) -> None:
    mini = Mini(tmp_path / "w", warm=True)
    mini.write("gpuemu.toml", KERNEL)
    bad = kernel_files(mini, "forced_spills", linked=linked)
    for path, content in kernel_files(mini, "softmax", linked=linked).items():
        _put(path, content)
    assert lint_verdict(mini) == "passed"
    mini.command("run")
    for path, content in bad.items():
        kind(path, content)
    assert not is_up_to_date(mini)
    said = lint_verdict(mini)
    shutil.rmtree(mini.root / ".gpuemu-cache")
    assert said == lint_verdict(mini) != "passed"
