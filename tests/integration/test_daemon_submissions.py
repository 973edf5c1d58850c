"""What clients submitted is what a run knows of an op that only clients can run."""

from __future__ import annotations

import pytest
from daemon_workspace import Served, softmax

from gpuemu_flow.engine.submissions import submitted_results
from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.reports.model import OpResult
from gpuemu_flow.types import Verdict


def results(served: Served) -> dict[tuple[str, str], OpResult]:
    workspace = Workspace(served.root, environ=served.environ)
    return submitted_results(workspace, workspace.graph.skips)


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


def test_another_tolerance_makes_them_old(submitted: Served) -> None:
    path = submitted.root / "gpuemu.toml"
    text = path.read_text()
    path.write_text(text.replace("[validation]\n", '[validation]\ntolerance = "auto"\n', 1))
    assert results(submitted)["softmax", "float32"].verdict is Verdict.SKIPPED


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
