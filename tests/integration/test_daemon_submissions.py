"""Test that a run takes the results of an op that only clients can run from their submissions."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from daemon_workspace import Served, softmax
from submissions import ONLY_CLIENTS, command, results, run, submit

from gpuemu_flow import validate_op
from gpuemu_flow.client import ClientError
from gpuemu_flow.model.types import Verdict


@pytest.fixture
def submitted(unserved: Served) -> Served:
    assert results(unserved) == {}
    unserved.start()
    with unserved.client() as client:
        for case in client.get_test_batch("softmax", 4, seed=1, dtypes=["float32"]):
            client.submit_output("softmax", case.inputs, softmax(case.inputs["x"]), case.seed)
    return unserved


def test_they_pass(submitted: Served) -> None:
    found = results(submitted)
    assert list(found) == [("softmax", "float32")]
    result = found["softmax", "float32"]
    assert (result.verdict, result.cases, result.passed) == (Verdict.PASSED, 4, 4)


def test_the_newest_of_a_case_counts(submitted: Served) -> None:
    with submitted.client() as client:
        case = client.get_test_case("softmax", seed=1, dtypes=["float32"])
        client.submit_output("softmax", case.inputs, case.inputs["x"], case.seed)
        result = results(submitted)["softmax", "float32"]
        assert (result.verdict, result.passed, result.failed) == (Verdict.FAILED, 3, 1)
        client.submit_output("softmax", case.inputs, softmax(case.inputs["x"]), case.seed)
    assert results(submitted)["softmax", "float32"].verdict is Verdict.PASSED


def test_a_failure_in_a_dtype_that_the_op_does_not_declare_counts(unserved: Served) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    submit(unserved)
    x = np.linspace(-1.0, 1.0, 51).reshape(3, 17)
    with unserved.client() as client:
        client.validate_op("softmax", {"x": x}, softmax(x))
    done = command(unserved, "ci", "--require-all")
    assert done.returncode == 0 and "float64  passed" in done.stdout, done.stdout
    assert command(unserved, "baseline", "store", "good").returncode == 0
    with unserved.client() as client:
        assert client.validate_op("softmax", {"x": x}, 2 * softmax(x)).verdict == "failed"
    done = command(unserved, "run", "--format", "json")
    assert done.returncode == 1, done.stdout
    document = json.loads(done.stdout)
    assert [each["verdict"] for each in document["results"]] == ["passed", "failed"]
    assert document["tasks"]["skipped"] == 0
    diff = command(unserved, "diff", "good").stdout
    assert "regression  softmax float64: case verdict passed -> failed" in diff
    command(unserved, "clean", "--submissions")
    with unserved.client() as client:
        for output in (2 * softmax(x), softmax(x)):
            client.validate_op("softmax", {"x": x}, output)
    diff = command(unserved, "diff", "good").stdout
    assert "regression  softmax float64: case verdict passed -> failed" in diff, "the worse counts"


def test_a_tolerance_of_the_clients_own_does_not_count(unserved: Served) -> None:
    unserved.start()
    with unserved.client() as client:
        case = client.get_test_case("softmax", seed=1, dtypes=["float32"])
        client.submit_output("softmax", case.inputs, case.inputs["x"], case.seed, atol=1e9)
    assert results(unserved)["softmax", "float32"].verdict is Verdict.SKIPPED


def test_a_changed_reference_makes_them_old(submitted: Served) -> None:
    path = submitted.root / "scripts" / "softmax.py"
    path.write_text(path.read_text() + "\n# another reference\n")
    result = results(submitted)["softmax", "float32"]
    assert result.verdict is Verdict.SKIPPED
    assert "4 submissions" in result.reason


@pytest.mark.ci
def test_another_tolerance_makes_them_old(submitted: Served) -> None:
    path = submitted.root / "gpuemu.toml"
    text = path.read_text()
    path.write_text(text.replace("[validation]\n", '[validation]\ntolerance = "table"\n', 1))
    assert results(submitted)["softmax", "float32"].verdict is Verdict.SKIPPED


@pytest.mark.ci
def test_results_where_the_file_says(unserved: Served) -> None:
    path = unserved.root / "gpuemu.toml"
    path.write_text(path.read_text() + '\n[storage]\ndb_path = "db"\n')
    unserved.start()
    with unserved.client() as client:
        case = client.get_test_case("softmax", seed=1, dtypes=["float32"])
        client.submit_output("softmax", case.inputs, softmax(case.inputs["x"]), case.seed)
    assert results(unserved)["softmax", "float32"].passed == 1
    assert not (unserved.root / ".gpuemu-cache" / "results").exists()
    assert (unserved.root / "db").exists()


def test_the_command_reports_baselines_and_remembers_them(unserved: Served) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    assert run(unserved, 4)["verdict"] == "skipped"
    unserved.start()
    submit(unserved)
    result = run(unserved, 0)
    assert (result["verdict"], result["cases"], result["passed"]) == ("passed", 1, 1)
    assert "up to date" in command(unserved, "run").stdout, "nothing changed since"

    submit(unserved, seed=2)
    again = command(unserved, "run").stdout
    assert "up to date" not in again
    assert "2 submitted by clients" in again
    assert "up to date" in command(unserved, "run").stdout

    stored = command(unserved, "baseline", "store", "good")
    assert stored.returncode == 0, stored.stderr
    submit(unserved, wrong=True)
    failed = command(unserved, "run")
    assert failed.returncode == 1, "a plan that knows nothing of submissions would say 0"
    assert "ToleranceExceeded" in failed.stdout
    diff = command(unserved, "diff", "--baseline", "good", "--format", "json")
    (change,) = json.loads(diff.stdout)["results"]
    assert (change["op"], change["status"], change["new"]) == ("softmax", "regression", "failed")
    assert diff.returncode == 1

    submit(unserved)
    assert run(unserved, 0)["passed"] == 2
    assert "up to date" in command(unserved, "run").stdout
    script = unserved.root / "scripts" / "softmax.py"
    script.write_text(script.read_text() + "\n# another reference\n")
    late = command(unserved, "run")
    assert late.returncode == 4, "no task reads the file, yet it decides"
    assert "submit again" in late.stdout


def test_commands_and_clients_share_their_baselines(unserved: Served) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    submit(unserved)
    with unserved.client() as client:
        client.store_artifact_baseline("figures")
        client.store_baseline("v1")
        assert client.compare_baseline("v1").comparisons
        for tag in ("ä tag / of a client", "../evil", "list", "x" * 150):
            for store in (client.store_baseline, client.store_artifact_baseline):
                with pytest.raises(ClientError, match="cannot name a baseline"):
                    store(tag)
        with pytest.raises(ClientError) as caught:
            client.compare_baseline("figures")
        assert caught.value.code == "BaselineNotFound"
        with pytest.raises(ClientError):
            client.diff_artifact_baseline("v1")
    listed = json.loads(command(unserved, "baseline", "list", "--format", "json").stdout)
    assert {found["tag"] for found in listed["baselines"]} == {"figures", "v1"}
    assert command(unserved, "diff", "v1").returncode == 0
    submit(unserved, wrong=True)
    worse = command(unserved, "diff", "v1", "--format", "json")
    (change,) = json.loads(worse.stdout)["results"]
    assert (change["op"], change["status"], worse.returncode) == ("softmax", "regression", 1)
    empty = command(unserved, "diff", "figures")
    assert (empty.returncode, "nothing-to-compare" in empty.stderr) == (2, True)

    assert command(unserved, "baseline", "store", "v2").returncode == 0
    with unserved.client() as client:
        assert not client.compare_baseline("v2").has_regressions
        assert not client.diff_artifact_baseline("v2")["has_regressions"]
        assert client.compare_baseline("v1").has_regressions
        client.store_artifact_baseline("v1")
        assert client.compare_baseline("v1").has_regressions, "one part leaves the other alone"
        assert not client.diff_artifact_baseline("v1")["has_regressions"]
    command(unserved, "baseline", "delete", "v1")
    with unserved.client() as client, pytest.raises(ClientError):
        client.compare_baseline("v1")


def test_a_failure_whose_op_lives_in_a_client_is_not_run_here(submitted: Served) -> None:
    submit(submitted, wrong=True)
    (failure,) = json.loads(command(submitted, "failures", "--format", "json").stdout)["failures"]
    for word in ("reproduce", "minimize"):
        done = command(submitted, word, failure["id"])
        assert done.returncode == 2
        assert done.stderr.startswith("failure-not-runnable: ")
        assert "came from a client" in done.stderr
        assert f"reproduce({failure['seed']})" in done.stderr
    assert command(submitted, "failures", "show", failure["id"]).returncode == 0
    told = json.loads(command(submitted, "run", "softmax", "--format", "json").stdout)
    (shown,) = told["failures"]
    assert shown["reproduce"] == shown["minimal"]["command"] == failure["reproduce"]
    line = shown["reproduce"].replace("python", sys.executable, 1)
    printed = subprocess.run(
        line, shell=True, check=True, cwd=submitted.root, env=submitted.environ,
        capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert printed.startswith("{'x': array(")


def wrong_beyond_64(i: dict[str, Any]) -> Any:
    y = softmax(i["x"])
    y[..., 64:] = 0
    return y


def changing_its_input(i: dict[str, Any]) -> Any:
    y = softmax(i["x"])
    i["x"][..., :1] = 0
    return y


def raising_beyond_32(i: dict[str, Any]) -> Any:
    if i["x"].shape[-1] > 32:
        raise ValueError("too long")
    return softmax(i["x"])


@pytest.mark.ci
@pytest.mark.parametrize(
    ("op", "dtype", "size", "kind"),
    [
        (wrong_beyond_64, "bfloat16", 65, "ToleranceExceeded"),
        (changing_its_input, "float32", 2, "InputModified"),
        (raising_beyond_32, "float32", 33, "ExecutionError"),
    ],
)
def test_a_client_shrinks_what_its_own_op_fails_on(
    unserved: Served, op: Any, dtype: str, size: int, kind: str
) -> None:
    unserved.start()
    with unserved.client() as client:
        case = client.get_test_case("softmax", seed=1, dtypes=[dtype])
        (failure,) = client.fuzz_op_client_side("softmax", op, 1, 1, dtypes=[dtype]).failures
        small = client.minimize(failure.failure_id, "all", 300, run_op=op)
        assert small.still_fails and small.minimized_shape[-1] == size < case.shape[-1]
        assert small.result.failures[0].kind == kind
        again = client.reproduce(small.result.failure_id)
        assert list(again.inputs["x"].shape) == small.minimized_shape
        mended = client.minimize(failure.failure_id, run_op=lambda i: softmax(i["x"]))
        assert not mended.still_fails


@pytest.mark.ci
def test_a_tolerance_is_suggested_from_submissions(unserved: Served) -> None:
    assert "run your client" in command(unserved, "calibrate", "softmax").stderr
    unserved.start()
    for error, code in ((1e-6, 0), (0.5, 3)):
        with unserved.client() as client:
            for case in client.get_test_batch("softmax", 20, seed=1, dtypes=["float32"]):
                output = softmax(case.inputs["x"]) * np.float32(1 + error)
                client.submit_output("softmax", case.inputs, output, case.seed)
        done = command(unserved, "calibrate", "softmax", "--format", "json")
        assert done.returncode == code, done.stderr
        if code == 0:
            (found,) = json.loads(done.stdout)["calibrations"]
            assert found["cases"] == 20 and 1e-6 < found["rtol"] < 2e-6
    assert "is wrong in all 20 cases" in done.stderr


def test_a_request_is_reproduced_as_it_was_made(unserved: Served) -> None:
    """The documented table judged it; the default allows what such a sum must lose."""
    unserved.write("gpuemu.toml", ONLY_CLIENTS + SUMS)
    unserved.write(
        "scripts/sums.py",
        """
        import numpy as np

        def reference(x):
            return x.astype(np.float64).sum(-1).astype(x.dtype)
        """,
    )
    unserved.write(
        "scripts/in_turn.py",
        """
        import numpy as np

        def one_by_one(x):
            return np.add.accumulate(x, axis=-1)[..., -1]
        """,
    )
    unserved.start()
    with unserved.client() as client:
        found = client.fuzz_op("sums", 3, 1, False, [1], [8], [32768], dtypes=["float32"])
        assert found.failed == 1
        again = client.reproduce(found.failures[0].seed, rerun=True)
        assert again.still_fails
        small = client.minimize(found.failures[0].seed, max_iters=20)
        assert small.still_fails
    for failure in (found.failures[0].failure_id, small.result.failure_id):
        done = command(unserved, "reproduce", failure)
        assert done.returncode == 1, done.stdout + done.stderr


SUMS = """
[[ops]]
name = "sums"
op = "scripts/in_turn.py:one_by_one"
reference = "scripts/sums.py:reference"
input_names = ["x"]
tolerance = "table"
schema = { dims = { N = 32768 }, inputs = { x = ["N"] }, output = ["N"] }
"""


@pytest.mark.ci
def test_clean_forgets_them(unserved: Served) -> None:
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    for arguments in (["clean", "--submissions"], ["clean", "softmax"]):
        submit(unserved, wrong=True)
        assert run(unserved, 1)["verdict"] == "failed"
        done = command(unserved, *arguments)
        assert done.returncode == 0, done.stderr
        assert "1 submissions" in done.stdout
        with unserved.client() as client:
            assert client.list_results() == [], "the daemon that runs has forgotten them, too"
        assert run(unserved, 4)["verdict"] == "skipped"
    assert command(unserved, "clean", "--submissions", "sofmax").returncode == 2


@pytest.mark.parametrize(
    ("names", "slug"),
    [(["x", "y"], "request-unknown-input"), ([], "request-missing-input"), (["X"], "both")],
)
def test_input_names_that_are_not_the_ops(daemon: Served, names: list[str], slug: str) -> None:
    tensor = {"shape": [2], "strides": [1], "dtype": "float32", "data": "AAAAAAAAgD8="}
    request = {"type": "ValidateOp", "op_name": "double", "output": tensor, "kwargs": {}}
    inputs = dict.fromkeys(names, tensor)
    reply = daemon.ask({**request, "inputs": inputs})
    assert (reply["type"], reply["code"]) == ("Error", "InvalidRequest")
    assert reply["slug"] == ("request-unknown-input" if slug == "both" else slug)
    assert "double" in reply["message"] and "x" in reply["message"]
    assert daemon.ask({**request, "inputs": {"x": tensor}})["type"] == "ValidationResult"


@pytest.mark.parametrize("tolerance", ["auto", pytest.param("explicit", marks=pytest.mark.ci)])
def test_zeros_are_no_pass(unserved: Served, tolerance: str) -> None:
    """Whatever an op does with zeros, a test of anything else is missing."""
    explicit = "tolerances = { float32 = { atol = 1e-6, rtol = 1e-6 } }\n"
    line = 'reference = "scripts/double.py:reference"\n'
    config = ONLY_CLIENTS.replace('reference = "scripts/softmax.py:reference"\n', line)
    more = explicit if tolerance == "explicit" else ""
    unserved.write("gpuemu.toml", config + more)
    unserved.start()
    with unserved.client() as client:
        nan = np.full((2, 3), np.nan, np.float32)
        assert client.validate_op("softmax", {"x": nan}, nan).passed
        assert run(unserved, 4)["verdict"] == "inconclusive"
        some = np.where(np.arange(6).reshape(2, 3) % 2, nan, 0)
        assert client.validate_op("softmax", {"x": some}, some).passed
        for size in (3, 40):
            zeros = np.zeros((2, size), np.float32)
            client.validate_op("softmax", {"x": zeros}, zeros)
        found = run(unserved, 4)
        assert (found["verdict"], found["passed"]) == ("inconclusive", 4)
        assert found["reason"].startswith("all inputs on which outputs were compared are zeros")
        for command_ in ("report", "ci"):
            (said,) = json.loads(command(unserved, command_, "--format", "json").stdout)["results"]
            assert said["verdict"] == "inconclusive", command_
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        client.validate_op("softmax", {"x": x}, x * 2)
    assert run(unserved, 0)["verdict"] == "passed"


@pytest.mark.parametrize("whose", ["the call's", pytest.param("the file's", marks=pytest.mark.ci)])
def test_a_case_that_zeros_pass_is_no_pass_alone(unserved: Served, whose: str) -> None:
    """The op's cases are judged together: a tolerance may be too large for some of them."""
    explicit = "tolerances = { float32 = { atol = 0.3, rtol = 0 } }\n"
    unserved.write("gpuemu.toml", ONLY_CLIENTS + (explicit if whose == "the file's" else ""))
    unserved.start()
    more: dict[str, Any] = {"atol": 0.3} if whose == "the call's" else {}
    even, steep = np.tile(np.float32([0, 0.1]), (2, 20)), np.float32([[9, 0, 0], [0, 9, 0]])
    with unserved.client() as client:
        weak = client.validate_op("softmax", {"x": even}, even * 0, **more)
        assert (weak.passed, weak.verdict) == (False, "inconclusive")
        assert "zeros for 'output' would pass" in weak.failures[0].message
        assert weak.notes[0].startswith("loose-tolerance: ")
        kept = client.get_result(weak.seed)
        assert kept is not None and kept.verdict == "inconclusive"
        with validate_op(client, "softmax", {"x": even}, raise_on_failure=False, **more) as context:
            context.set_output(even * 0)
        assert context.result is not None and context.result.verdict == "inconclusive"
        wrong = client.validate_op("softmax", {"x": even}, even + 9, **more)
        assert wrong.verdict == "failed" and "loose-tolerance" not in " ".join(wrong.notes)
        assert len(client.list_failures(9)) == 1, "the weak one is not recorded"

        (case,) = client.get_test_batch("softmax", 1, seed=1, dtypes=["float32"])
        right = softmax(case.inputs["x"])
        for given in (
            client.submit_output("softmax", case.inputs, right, case.seed, atol=2),
            *client.submit_outputs("softmax", [case], [right], atol=2),
        ):
            assert given.passed and given.notes[0].startswith("loose-tolerance: ")
        command(unserved, "clean", "--submissions")
        client.validate_op("softmax", {"x": even}, softmax(even), **more)
        clear = client.validate_op("softmax", {"x": steep}, softmax(steep), **more)
        assert clear.passed and not clear.notes
    if whose == "the file's":
        assert run(unserved, 0)["passed"] == 2, "one of them is judged"


@pytest.mark.ci
def test_chosen_inputs_that_give_one_value_are_no_pass(unserved: Served) -> None:
    """Those that are drawn are warned of only: there the reference is such."""
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    with unserved.client() as client:
        same = np.full((2, 4), 3, np.float32)
        client.validate_op("softmax", {"x": same}, np.full((2, 4), 0.25, np.float32))
        found = run(unserved, 4)
        assert found["verdict"] == "inconclusive"
        assert "give nothing but 0.25" in found["reason"]
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        client.validate_op("softmax", {"x": x}, softmax(x))
    assert run(unserved, 0)["verdict"] == "passed"


def rename(served: Served, old: str, new: str) -> None:
    path = served.root / "gpuemu.toml"
    path.write_text(path.read_text().replace(f'name = "{old}"', f'name = "{new}"'))


@pytest.mark.parametrize("kind", ["changed", pytest.param("two", marks=pytest.mark.ci)])
def test_submissions_of_an_op_that_is_gone_are_not_another_s(unserved: Served, kind: str) -> None:
    """Another reference, or two ops that either of them may be."""
    unserved.write("gpuemu.toml", ONLY_CLIENTS)
    unserved.start()
    submit(unserved)
    run(unserved, 0)
    rename(unserved, "softmax", "renamed")
    path = unserved.root / "gpuemu.toml"
    text = path.read_text()
    if kind == "changed":
        path.write_text(text.replace("softmax.py:reference", "double.py:reference"))
    else:
        table = text.split("[[ops]]")[1].replace("renamed", "other")
        path.write_text(f"{text}\n[[ops]]{table}")
    report = json.loads(command(unserved, "run", "--format", "json").stdout)
    assert {result["verdict"] for result in report["results"]} == {"skipped"}
    for result in report["results"]:
        assert "1 submission of softmax, which is no op here (any more)" in result["reason"]
