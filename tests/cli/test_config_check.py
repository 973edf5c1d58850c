"""`gpuemu-flow config check`: every problem at once, and whose file it is in."""

from __future__ import annotations

from mini_workspace import Mini

WRONG = """
[validation]
dtypes = ["float32", "floot16"]
tolerances = { float32 = nan, float16 = { atol = -1.0 } }

[[ops]]
name = "scale"
op = "scripts/scale.py:scale"
reference = "/etc/passwd"
schema = { dims = { N = [] }, inputs = { x = ["N"] }, output = ["N"] }

[[ops]]
name = "scale"
op = "scripts/scael.py"
reference = "scripts/scale_ref.py"
"""


def test_every_error_of_a_file_is_shown_at_once_with_its_line(mini: Mini) -> None:
    mini.write("gpuemu.toml", WRONG)
    done = mini.command("config", "check", code=2)
    places = [line.split(": ")[:2] for line in done.stderr.splitlines()[:-1]]
    assert places == [
        ["gpuemu.toml:2", "config-unknown-dtype"],
        ["gpuemu.toml:3", "config-tolerance"],
        ["gpuemu.toml:3", "config-tolerance"],
        ["gpuemu.toml:8", "config-path-outside"],
        ["gpuemu.toml:9", "schema-dim-empty"],
        ["gpuemu.toml:12", "config-duplicate-name"],
        ["gpuemu.toml:13", "config-path-missing"],
    ]
    assert "did you mean 'scripts/scale.py'?" in done.stderr
    assert done.stderr.splitlines()[-1] == "gpuemu.toml: 7 errors"
    # A run says the same and starts nothing.
    refused = mini.command("run", "--format", "json", code=2)
    assert refused.stdout == ""
    assert refused.stderr.splitlines() == done.stderr.splitlines()[:-1]
    assert not (mini.root / ".gpuemu-cache" / "tasks").exists()


def test_unknown_keys_are_warnings_and_errors_when_strict(mini: Mini) -> None:
    mini.edit("gpuemu.toml", "cases = 4", "caces = 4")
    done = mini.command("config", "check")
    assert "config-unknown-key" in done.stdout
    assert "did you mean 'cases'?" in done.stdout
    assert done.stdout.endswith("gpuemu.toml: ok\n")
    strict = mini.command("config", "check", "--strict", code=2)
    assert "config-unknown-key" in strict.stderr
    assert "ok" not in strict.stdout


def test_another_file_may_be_named(mini: Mini) -> None:
    mini.write("elsewhere/other.toml", "[project]\nname = 3\n")
    assert (
        "other.toml:2: config-type"
        in mini.command("config", "check", "elsewhere/other.toml", code=2).stderr
    )
    mini.command("config", "check", "no-such.toml", code=2)


def test_users_and_daemons_files_count_below_the_projects(mini: Mini) -> None:
    """Seen in what a run does, not only in what the loader says."""
    mini.edit("gpuemu.toml", "cases = 4\n", "")
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 3\ndtypes = ['int8']\n")
    mini.write("home/.gpuemu/daemon.toml", "[validation]\ncases = 2\nnan_policy = 'strict'\n")
    (result,) = mini.run("scale")["results"]
    assert (result["dtype"], result["cases"]) == ("float32", 3)
    mini.command("run")
    assert mini.command("run").stdout.startswith("up to date")
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 5\n")
    assert mini.run("scale")["results"][0]["cases"] == 5
    mini.write("home/.config/gpuemu/config.toml", "[validation]\ncases = 'five'\n")
    assert "config.toml:2: config-type" in mini.command("run", code=2).stderr


def test_a_misspelt_key_is_named_where_the_right_one_is_missing(mini: Mini) -> None:
    mini.edit(
        "gpuemu.toml", 'reference = "scripts/relu_ref.py"', 'refrence = "scripts/relu_ref.py"'
    )
    done = mini.command("run", code=2)
    assert "lacks the key 'reference'; 'refrence' is no key; rename it?" in done.stderr
