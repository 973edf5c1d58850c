"""Documents of the cache, of baselines and of the user's own, damaged: an answer or a plain error.

``GPUEMU_FUZZ_EXAMPLES=100000`` makes a long run of it.
"""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from report_samples import passed, recorded, report_of, sample

from gpuemu_flow.build.session import remembered
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.errors import UsageError
from gpuemu_flow.model.types import Case, CheckResult
from gpuemu_flow.store.baselines import read_file
from gpuemu_flow.store.failures import FailureRecord

EXAMPLES = int(os.environ.get("GPUEMU_FUZZ_EXAMPLES", "150"))
REFUSALS = (KeyError, TypeError, ValueError, AttributeError)
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1 << 70, 1.5, "", "\x00", "../..", "nan", [], [[]], {}, {"": None},
    [1] * 100, "1" * 5000,
)  # fmt: skip


def spoilt(value: Any, rng: random.Random) -> Any:
    """Return a document with some of its parts removed, doubled or replaced."""
    value = copy.deepcopy(value)
    for _ in range(rng.randint(1, 4)):
        part = value
        while isinstance(part, (dict, list)) and part:
            key: Any = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
            inner = part[key]
            if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
                part = inner
                continue
            if rng.random() < 0.3:
                del part[key]
            else:
                part[key] = copy.deepcopy(rng.choice(ODD))
            break
    return value


def _documents() -> dict[str, tuple[Any, Any]]:
    report = sample()
    failure = report.run.failures[0]
    return {
        "case": (plain(failure.case), Case),
        "result": (plain(failure.result), CheckResult),
        "record": (plain(recorded("one")), FailureRecord),
        "passed": (plain(report_of([passed("op", 1)]).cases[0].result), CheckResult),
    }


DOCUMENTS = {name: (json.loads(json.dumps(d)), r) for name, (d, r) in _documents().items()}


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(sorted(DOCUMENTS)), st.integers(0, 1 << 64).map(random.Random))
def test_a_damaged_record_is_read_or_refused(name: str, rng: random.Random) -> None:
    document, kind = DOCUMENTS[name]
    try:
        convert(spoilt(document, rng), kind, strict=False)
    except REFUSALS:
        return


BASELINE = {
    "schema_version": 1, "tag": "v1", "created": "2026-01-02T03:04:05Z", "kernels": [],
    "results": [], "environment": {}, "version": 1, "submitted": [],
}  # fmt: skip


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, 1 << 64)
        .map(random.Random)
        .map(lambda rng: json.dumps(spoilt(BASELINE, rng)).encode()),
        st.integers(1, 100_000).map(lambda depth: b"[" * depth),
    )
)
def test_any_file_is_a_baseline_or_a_usage_error(tmp_path_factory: Any, data: bytes) -> None:
    path = Path(tmp_path_factory.getbasetemp()) / "baseline.json"
    path.write_bytes(data)
    try:
        read_file(path)
    except UsageError as error:
        assert error.slug == "baseline-bad-file"


TRUSTED = {"trusted": [{"path": "/a", "owners": [1], "device": 2}]}


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.integers(0, 1 << 64)
        .map(random.Random)
        .map(lambda rng: json.dumps(spoilt(TRUSTED, rng)).encode()),
        st.integers(1, 100_000).map(lambda depth: b"[" * depth),
    )
)
def test_a_damaged_list_of_trusted_workspaces_trusts_none_or_some(
    tmp_path_factory: Any, data: bytes
) -> None:
    folder = Path(tmp_path_factory.getbasetemp()) / "gpuemu"
    folder.mkdir(exist_ok=True)
    (folder / "trusted.json").write_bytes(data)
    found = remembered({"XDG_CONFIG_HOME": str(folder.parent)})
    assert all(isinstance(one.path, str) and isinstance(one.device, int) for one in found)


def test_what_was_found_before(tmp_path: Path) -> None:
    for path in (Path(__file__).resolve().parents[1] / "corpus" / "trusted").iterdir():
        (tmp_path / "gpuemu").mkdir()
        (tmp_path / "gpuemu" / "trusted.json").write_bytes(path.read_bytes())
        assert remembered({"XDG_CONFIG_HOME": str(tmp_path)}) == []
