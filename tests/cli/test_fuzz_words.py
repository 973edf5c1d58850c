"""What an op says on standard error is shown once, with paths relative to the workspace."""

from __future__ import annotations

from mini_workspace import Mini


def test_the_judged_calls_words_alone_are_shown(mini: Mini) -> None:
    mini.write(
        "scripts/scale.py",
        """
        import sys

        def scale(x):
            print("about to fail", file=sys.stderr)
            raise ValueError("no")
        """,
    )
    shown = mini.command("fuzz", "scale", "-n", "1", code=3).stdout
    assert shown.count("about to fail") == 1
    assert 'File "scripts/scale.py", line 5' in shown
    assert str(mini.root) not in shown


def test_the_place_of_a_failure_to_load_is_relative(mini: Mini) -> None:
    mini.write("scripts/scale.py", "import nothing_of_this_name\n")
    shown = mini.command("fuzz", "scale", "-n", "1", code=3).stdout
    assert "op-not-loadable" in shown
    assert 'File "scripts/scale.py", line 1' in shown
    assert str(mini.root) not in shown
