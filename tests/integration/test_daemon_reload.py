"""Edits while the daemon runs: what counts is what the files say now, or said last if wrong."""

from __future__ import annotations

import numpy as np
import pytest
from daemon_workspace import Served, normal

from gpuemu_flow.client import ClientError

pytestmark = pytest.mark.ci


@pytest.fixture
def edited(unserved: Served) -> Served:
    unserved.start()
    return unserved


def edit(served: Served, name: str, old: str, new: str) -> None:
    path = served.root / name
    text = path.read_text()
    assert text.count(old) >= 1
    path.write_text(text.replace(old, new))


def test_a_changed_reference(edited: Served) -> None:
    """A warm one must not answer with the old code."""
    x = normal(3)
    with edited.client() as client:
        assert client.validate_op("double", {"x": x}, x * 2).passed
        edit(edited, "scripts/double.py", "return (x * 2).astype", "return (x * 5).astype")
        assert not client.validate_op("double", {"x": x}, x * 2).passed
        assert client.validate_op("double", {"x": x}, x * 5).passed


def test_a_changed_import_of_the_reference(edited: Served) -> None:
    edited.write("scripts/factor.py", "FACTOR = 2\n")
    edited.write(
        "scripts/double.py",
        "from factor import FACTOR\n\ndef reference(x):\n    return (x * FACTOR).astype(x.dtype)\n",
    )
    x = normal(3)
    with edited.client() as client:
        assert client.validate_op("double", {"x": x}, x * 2).passed
        edited.write("scripts/factor.py", "FACTOR = 7\n")
        assert client.validate_op("double", {"x": x}, x * 7).passed


def test_a_changed_op_is_fuzzed_anew(edited: Served) -> None:
    """Kept verdicts are those of the code that they were made with."""
    small = {"batch_sizes": [1], "seq_lengths": [2], "hidden_dims": [3]}
    with edited.client() as client:
        assert client.fuzz_op("double", seed=1, iterations=4, **small).passed == 4
        edit(edited, "scripts/twice.py", "return (x + x).astype", "return (x + 1).astype")
        assert client.fuzz_op("double", seed=1, iterations=4, **small).failed == 4


LOADS = """
import numpy as np

{at_import}

def {name}(x):
    return (x * {table}).astype(x.dtype)
"""
TABLES = {
    "at import": ("T = np.load('table.npy')", "T"),
    "in each call": ("", "np.load('table.npy')"),
}


@pytest.mark.parametrize("when", TABLES)
def test_a_data_file_of_the_reference(edited: Served, when: str) -> None:
    """A submission after the change is judged by what the file holds now."""
    at_import, table = TABLES[when]
    np.save(edited.root / "table.npy", np.float32(2))
    edited.write(
        "scripts/double.py", LOADS.format(at_import=at_import, name="reference", table=table)
    )
    x = normal(3)
    with edited.client() as client:
        assert client.validate_op("double", {"x": x}, x * 2).passed
        np.save(edited.root / "table.npy", np.float32(5))
        assert not client.validate_op("double", {"x": x}, x * 2).passed
        assert client.validate_op("double", {"x": x}, x * 5).passed
        np.save(edited.root / "table.npy", np.float32(2))
        assert client.validate_op("double", {"x": x}, x * 2).passed


@pytest.mark.parametrize("when", TABLES)
def test_a_data_file_of_an_op(edited: Served, when: str) -> None:
    """Neither a warm program nor a kept verdict answers for the file as it was."""
    at_import, table = TABLES[when]
    np.save(edited.root / "table.npy", np.float32(2))
    edited.write("scripts/twice.py", LOADS.format(at_import=at_import, name="double", table=table))
    small = {"batch_sizes": [1], "seq_lengths": [2], "hidden_dims": [3]}
    with edited.client() as client:
        assert client.fuzz_op("double", seed=1, iterations=4, **small).passed == 4
        np.save(edited.root / "table.npy", np.float32(5))
        assert client.fuzz_op("double", seed=1, iterations=4, **small).failed == 4
        np.save(edited.root / "table.npy", np.float32(2))
        assert client.fuzz_op("double", seed=1, iterations=4, **small).passed == 4


def test_a_new_op_and_a_tolerance(edited: Served) -> None:
    x = normal(3)
    with edited.client() as client:
        with pytest.raises(ClientError) as caught:
            client.validate_op("triple", {"x": x}, x * 3)
        assert caught.value.code == "OpNotFound"
        edited.write("scripts/triple.py", "def reference(x):\n    return x * 3\n")
        config = edited.root / "gpuemu.toml"
        added = (
            '\n[[ops]]\nname = "triple"\nreference = "scripts/triple.py:reference"\n'
            'input_names = ["x"]\nexecution_mode = "client_side"\n'
        )
        config.write_text(config.read_text() + added)
        assert client.validate_op("triple", {"x": x}, x * 3).passed
        assert not client.validate_op("triple", {"x": x}, x * 3 + 0.5).passed
        config.write_text(
            config.read_text() + "tolerances = { float32 = { atol = 0.6, rtol = 0 } }\n"
        )
        assert client.validate_op("triple", {"x": x}, (x * 3 + 0.5).astype("float32")).passed


def test_a_wrong_edit_keeps_the_last_good_one(edited: Served) -> None:
    x = normal(3)
    config = edited.root / "gpuemu.toml"
    good = config.read_text()
    with edited.client() as client:
        config.write_text(good + "\n[[ops]\n")
        assert client.validate_op("double", {"x": x}, x * 2).passed
        with pytest.raises(ClientError) as caught:
            client.validate_op("triple", {"x": x}, x * 3)
        assert caught.value.code == "ConfigError"
        assert "gpuemu.toml" in str(caught.value)
        assert "gpuemu.toml" in client.ping()["config_error"]
        config.write_text(good)
        assert client.validate_op("double", {"x": x}, x * 2).passed
        assert "config_error" not in client.ping()
        config.unlink()
        assert client.validate_op("double", {"x": x}, x * 2).passed
        config.write_text(good)
        assert client.validate_op("double", {"x": x}, x * 2).passed


def test_the_workspace_says_table(edited: Served) -> None:
    """Requests get the tolerance of the reference unless the file asks for the table."""
    x = normal(64)
    off = (x * 2).astype("float64")
    off[3] *= 1 + 5e-6  # within the table's 1e-5, far beyond what an exact op may be off
    output = off.astype("float32")
    with edited.client() as client:
        assert not client.validate_op("double", {"x": x}, output).passed
        assert client.validate_op("double", {"x": x}, x * 2).passed
        edit(edited, "gpuemu.toml", "[validation]\n", '[validation]\ntolerance = "table"\n')
        assert client.validate_op("double", {"x": x}, output).passed


def test_a_folder_that_is_kept_apart_goes_and_returns(edited: Served) -> None:
    """No file of the configuration changes, and yet it means something else."""
    folder = edited.root / "submissions"
    folder.mkdir()
    edit(edited, "gpuemu.toml", "[sandbox]\n", '[sandbox]\napart = ["submissions"]\n')
    x = normal(3)
    with edited.client() as client:
        assert client.validate_op("double", {"x": x}, x * 2).passed
        assert "config_error" not in client.ping()
        folder.rename(edited.root / "submisions")
        client.validate_op("double", {"x": x}, x * 2)
        assert "did you mean 'submisions'" in client.ping()["config_error"]
        (edited.root / "submisions").rename(folder)
        client.validate_op("double", {"x": x}, x * 2)
        assert "config_error" not in client.ping()
