"""Things in the way of a run: clear words and the documented exit code, never a traceback."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys

import pytest
from mini_workspace import Mini

SEEDED = False


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [
        ("state", False),
        ("lock", True),
        *(pytest.param(name, False, marks=pytest.mark.ci) for name in ("staging", "blobs")),
    ],
)
def test_something_else_where_the_cache_belongs(mini: Mini, name: str, is_folder: bool) -> None:
    path = mini.root / ".gpuemu-cache" / name
    path.parent.mkdir()
    if is_folder:
        path.mkdir()
    else:
        path.write_text("not ours")
    done = mini.command("run", "scale", code=3)
    assert "cache-not-writable" in done.stdout + done.stderr
    assert name in done.stdout + done.stderr
    path.rmdir() if is_folder else path.unlink()
    assert mini.run("scale")["results"][0]["verdict"] == "passed"


@pytest.mark.parametrize(
    ("words", "imported"),
    [(("run",), "gpuemu_flow.cli.main"), (("run", "scale"), "click")],
    ids=["plain", "words"],
)
def test_an_interrupt_while_starting_is_an_interrupt(
    mini: Mini, words: tuple[str, ...], imported: str
) -> None:
    mini.write(
        "early/sitecustomize.py",
        f"""
        import sys

        class Interrupts:
            def find_spec(self, name, path=None, target=None):
                if name == "{imported}":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Interrupts())
        """,
    )
    inherited = mini.environment().get("PYTHONPATH", "")
    mini.env["PYTHONPATH"] = f"{mini.root / 'early'}:{inherited}".rstrip(":")
    done = mini.command(*words, code=130)
    assert done.stderr == ""


@pytest.mark.ci
def test_a_path_that_no_database_has_is_said_with_its_mend(mini: Mini) -> None:
    """SQLite takes 504 bytes, a file system much more."""
    long, said = "/".join(["p" * 240] * 2), "SQLite opens none of more than 504"
    hint = "give the workspace, and [cache] dir if it is set, a shorter path"
    for folder, cache in ((long, ""), (f"{long}/{'ä' * 80}", ""), ("a", long)):
        deep = Mini(mini.root / folder)
        copied = mini.root.parent / "copied"
        shutil.copytree(mini.root, copied, ignore=shutil.ignore_patterns("p*p"))
        deep.root.parent.mkdir(parents=True, exist_ok=True)
        copied.rename(deep.root)
        if cache:
            deep.edit("gpuemu.toml", "[targets]", f'[cache]\ndir = "{cache}"\n\n[targets]')
        done = deep.command("run", "scale", code=3)
        assert said in done.stderr and hint in done.stderr and "owner" not in done.stderr
    deep.edit("gpuemu.toml", f'dir = "{cache}"', 'dir = "c"')
    assert deep.run("scale")["results"][0]["verdict"] == "passed"


@pytest.mark.ci
def test_nobody_listens(mini: Mini) -> None:
    """A job of cron may have no standard output at all."""
    for _ in range(2):  # the second answers from the stamps
        silent = [sys.executable, "-m", "gpuemu_flow", "run"]
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" >&-', "sh", *silent],
            cwd=mini.root,
            env=mini.environment(),
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")


ASKED = ("report", "status", "explain", "failures")
READ_ONLY = 'mount --bind "$PWD" "$PWD" && mount -o remount,bind,ro "$PWD" && cd "$PWD" && '


@pytest.mark.ci
@pytest.mark.parametrize("closed", [False, True], ids=["as left", "closed"])
def test_what_a_run_found_is_read_where_nothing_can_be_written(mini: Mini, closed: bool) -> None:
    """As in the artifact of a CI job, with and without SQLite's logs beside its databases."""
    may_mount = ["unshare", "-m", "sh", "-c", f'{READ_ONLY} "$@"', "sh"]
    if subprocess.run(
        [*may_mount, "true"], cwd=mini.root, capture_output=True, check=False
    ).returncode:
        pytest.skip("no mounts here")
    mini.without_causes()
    mini.edit("scripts/scale.py", "* 3", "* 3.1")
    mini.run(code=1)
    said = {words: mini.command(words, code=None).stdout for words in ASKED}
    for database in mini.root.glob(".gpuemu-cache/*/cache.db") if closed else ():
        sqlite3.connect(database).execute("PRAGMA wal_checkpoint(TRUNCATE)").connection.close()
        assert not database.with_name("cache.db-wal").exists()
    program = [sys.executable, "-m", "gpuemu_flow"]
    for words in (*ASKED, "run"):
        done = subprocess.run(
            [*may_mount, *program, words],
            cwd=mini.root, env=mini.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if words == "run":
            assert (done.returncode, "cache-not-writable" in done.stderr) == (3, True)
        else:
            assert (done.stdout, done.stderr) == (said[words], ""), words


def test_nothing_of_the_cache_is_offered_to_version_control(mini: Mini) -> None:
    """The graph stays in the workspace wherever the cache is."""
    mini.edit("gpuemu.toml", "[targets]", '[cache]\ndir = "build/cache"\n\n[targets]')
    mini.run("scale")
    for folder in (".gpuemu-cache", "build/cache"):
        assert (mini.root / folder / ".gitignore").read_text() == "*\n!.gitignore\n"
        assert (mini.root / folder / "CACHEDIR.TAG").exists()


@pytest.mark.ci
def test_an_output_that_cannot_be_written(mini: Mini) -> None:
    """The device is always full; the run itself is not lost."""
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run(
            [sys.executable, "-m", "gpuemu_flow", "run", "--format", "json"],
            cwd=mini.root,
            env=mini.environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 3
    assert done.stderr.strip().endswith("error: cannot write the output: No space left on device")
    assert "Traceback" not in done.stderr
    assert mini.run()["executed"] == []
