"""``gpuemu-flow watch``: a real process, real saves; every wait is for a line that it prints."""

from __future__ import annotations

import signal
import sys
import time

import psutil
import pytest
from mini_workspace import Mini
from watching import READY, watching

SEEDED = False


def save(mini: Mini, name: str, old: str, new: str) -> None:
    """Save at one moment, as editors do: half a text would be run, and again when it is whole."""
    path = mini.root / name
    text = path.read_text()
    assert text.count(old) == 1
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text.replace(old, new))
    temporary.replace(path)


@pytest.mark.ci
def test_a_save_runs_what_it_affects(mini: Mini) -> None:
    with watching(mini) as it:
        assert "19 tasks: 19 ran" in "\n".join(it.until(READY))
        save(mini, "scripts/scale.py", "* 3", "* 2")
        said = it.turn()
        assert "saved: scripts/scale.py" in said
        assert "failed scale: ToleranceExceeded" in said
        assert "relu" not in said and "total" not in said
        save(mini, "scripts/relu.py", "x = read()", "x = (read())")
        said = it.turn()
        assert "relu   float32  passed" in said
        assert "failed scale" in said, "what is not right yet stays in sight"
        save(mini, "scripts/scale.py", "* 2", "* 3")
        assert "passed   4 of 4" in it.turn()
        save(mini, "scripts/common.py", "return x.", "return  x.")
        said = it.turn()
        assert "scale" in said and "total" in said and "relu" not in said
        save(mini, "gpuemu.toml", "cases = 4", "cases = 5")
        assert said.count("5 of 5") == 0 and it.turn().count("5 of 5") == 4
        assert it.end() == 0
        assert it.errors() == ""
    assert not mini.run()["executed"]


def test_only_what_was_asked_for_is_watched(mini: Mini) -> None:
    with watching(mini, "scale", "--dtype", "float32") as it:
        assert "4 tasks: 4 ran" in "\n".join(it.until(READY))
        save(mini, "scripts/relu.py", "x = read()", "x = (read())")
        save(mini, "scripts/scale.py", "* 3", "* 2")
        said = it.turn()
        assert "saved: scripts/scale.py\n" in said
        assert "failed scale" in said


@pytest.mark.ci
def test_a_broken_configuration_is_shown_and_watching_goes_on(mini: Mini) -> None:
    with watching(mini, "relu") as it:
        it.until(READY)
        save(mini, "gpuemu.toml", "cases = 4", "cases =")
        it.turn()
        save(mini, "gpuemu.toml", "cases =\n", "cases = 4\n")
        it.turn()
        save(mini, "gpuemu.toml", '"scripts/relu.py"', '"scripts/relu_2.py"')
        it.turn()
        (mini.root / "scripts" / "relu.py").rename(mini.root / "scripts" / "relu_2.py")
        assert "relu  float32  passed" in it.turn()
        save(mini, "gpuemu.toml", '"scripts/relu_2.py"', '"scripts/relu"')
        it.turn()
        tool = mini.root / "scripts" / "relu"
        tool.write_text(f"#!{sys.executable}\n{(tool.parent / 'relu_2.py').read_text()}")
        it.turn()
        tool.chmod(0o755)
        assert "relu  float32  passed" in it.turn()
        config = mini.root / "gpuemu.toml"
        text = config.read_text()
        config.unlink()
        it.turn()
        config.write_text(text)
        it.turn()
        assert it.end() == 0
        errors = it.errors()
        assert "gpuemu.toml:6: config-syntax" in errors
        assert "config-path-missing" in errors
        assert "config-not-executable" in errors
        assert "config-not-found" in errors
        assert "Traceback" not in errors


def test_a_configuration_that_is_broken_from_the_start(mini: Mini) -> None:
    save(mini, "gpuemu.toml", "cases = 4", "cases =")
    with watching(mini, "relu") as it:
        assert len(it.until(READY)) == 1
        save(mini, "gpuemu.toml", "cases =\n", "cases = 4\n")
        assert "relu  float32  passed" in it.turn()


def test_its_own_output_in_the_workspace_sets_nothing_off(mini: Mini) -> None:
    log = mini.root / "watch.log"
    with log.open("w") as output:
        process = mini.popen("watch", "relu", stdout=output, stderr=output)

    def wait_for(sign: str, times: int) -> None:
        while log.read_text().count(sign) < times:
            assert process.poll() is None, log.read_text()
            time.sleep(0.01)

    try:
        wait_for(READY, 1)
        save(mini, "gpuemu.toml", "cases = 4", "cases =")
        wait_for("config-syntax", 1)
        save(mini, "scripts/relu.py", "x = read()", "x = (read())")
        wait_for("config-syntax", 2)
        save(mini, "gpuemu.toml", "cases =\n", "cases = 4\n")
        wait_for("relu  float32  passed", 2)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(600)
    said = log.read_text()
    assert "watch.log" not in said
    assert said.count(" saved: ") == 3


def test_a_save_during_a_run_is_run_after_it(mini: Mini) -> None:
    """Runs never overlap, and nothing saved meanwhile is missed."""
    mini.unfence()
    mini.write(
        "scripts/scale.py",
        """
        import os, time

        def scale(x):
            open("begun", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            return x * 3
        """,
    )
    with watching(mini, "scale") as it:
        it.until_there("begun", mini)
        save(mini, "scripts/scale.py", "x * 3", "x * 2")
        (mini.root / "go").touch()
        first = "\n".join(it.until(READY))
        assert " saved: " not in first and "5 tasks: 5 ran" in first
        second = it.turn()
        assert "saved: scripts/scale.py" in second
        assert "failed" in second


def test_files_that_programs_write_set_nothing_off(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import os

        def scale(x):
            open(f"scripts/trace-{os.getpid()}.txt", "w").close()
            return x * 3
        """,
    )
    mini.unfence()
    with watching(mini, "scale") as it:
        it.until(READY)
        assert list((mini.root / "scripts").glob("trace-*.txt"))
        save(mini, "scripts/scale.py", "* 3", "* 2")
        assert " saved: scripts/scale.py\n" in it.turn()


def test_a_new_match_of_depends_is_noticed(mini: Mini) -> None:
    save(mini, "gpuemu.toml", 'name = "scale"\n', 'name = "scale"\ndepends = ["tables/*.txt"]\n')
    mini.write("tables/a.txt", "1")
    with watching(mini, "scale") as it:
        it.until(READY)
        mini.write("tables/b.txt", "2")
        said = it.turn()
        assert "saved: tables/b.txt" in said
        assert "1 ran" in said or "ran, " in said
        assert "0 ran" not in said


@pytest.mark.ci
def test_workers_are_there_before_the_save_and_again_when_they_are_lost(mini: Mini) -> None:
    """The half second is kept by not starting them for each run."""
    mini.write(
        "scripts/scale.py",
        """
        import os

        def scale(x):
            open(f"by-{os.getppid()}", "w").close()
            return x * 3
        """,
    )

    def servers() -> set[int]:
        found = {int(path.name[3:]) for path in mini.root.glob("by-*")}
        for path in mini.root.glob("by-*"):
            path.unlink()
        return found

    mini.unfence()
    with watching(mini, "scale") as it:
        it.until(READY)
        (first,) = servers()
        save(mini, "scripts/scale.py", "* 3", "* 2")
        assert "failed" in it.turn()
        assert servers() == {first}
        psutil.Process(first).kill()
        save(mini, "scripts/scale.py", "* 2", "* 5")
        assert "failed" in it.turn()
        (second,) = servers()
        assert second != first
        save(mini, "gpuemu.toml", "[targets]", "[execution]\nparallel = 7\n\n[targets]")
        it.turn()
        save(mini, "scripts/scale.py", "* 5", "* 4")
        assert "failed" in it.turn()
        assert servers().isdisjoint({first, second})
        server = psutil.Process(it.process.pid).children()
        assert len(server) == 1, "those of before are gone"
        assert it.end() == 0
        assert psutil.wait_procs(server, timeout=600)[1] == []
        assert it.errors() == ""


@pytest.mark.ci
def test_another_numpy_makes_it_start_again(mini: Mini) -> None:
    """Or results of the one that it has loaded would be kept as results of the new one."""
    packages = mini.root.parent / "packages"
    packages.mkdir()
    mini.env["PYTHONPATH"] = str(packages)
    with watching(mini, "scale") as it:
        it.until(READY)
        mini.write("../packages/numpy-99.0.dist-info/METADATA", "Name: numpy\nVersion: 99.0\n")
        save(mini, "scripts/scale.py", "* 3", "* (3)")
        assert "another numpy is installed; starting again" in it.turn()
        save(mini, "scripts/scale.py", "* (3)", "* 2")
        said = it.turn()
        assert "failed" in said and "starting again" not in said
        assert it.end() == 0
        assert it.errors() == ""
    assert not mini.run("scale", code=1)["executed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_cleanly_while_waiting(mini: Mini, number: int) -> None:
    with watching(mini, "relu") as it:
        it.until(READY)
        assert it.end(number) == 0
        assert it.errors() == ""


def test_ending_it_in_a_run_leaves_no_process_behind(mini: Mini) -> None:
    mini.unfence()
    mini.write(
        "scripts/scale.py",
        """
        import time

        def scale(x):
            open("begun", "w").close()
            time.sleep(100)
        """,
    )
    with watching(mini, "scale") as it:
        it.until_there("begun", mini)
        children = psutil.Process(it.process.pid).children(recursive=True)
        assert children
        assert it.end() == 130
        assert psutil.wait_procs(children, timeout=600)[1] == []
        assert "Traceback" not in it.errors()


def test_a_wrong_word_ends_it(mini: Mini) -> None:
    done = mini.command("watch", "relo", code=2)
    assert "unknown-task" in done.stderr
    assert "relu" in done.stderr


def test_outside_of_a_workspace_there_is_nothing_to_watch(mini: Mini) -> None:
    (mini.root / "gpuemu.toml").unlink()
    assert "config-not-found" in mini.command("watch", code=2).stderr
