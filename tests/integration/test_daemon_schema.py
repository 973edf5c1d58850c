"""Test that messages in both directions satisfy ``schemas/protocol.schema.json``."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jsonschema
import pytest
from daemon_workspace import Served
from test_daemon_hostile import FUZZ, METRICS, REQUESTS, TENSOR

from gpuemu_flow.services.daemon.lifecycle import REQUESTS as HANDLED

pytestmark = pytest.mark.ci


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    text = resources.files("gpuemu_flow.schemas").joinpath("protocol.schema.json").read_text()
    return dict(json.loads(text))


def validator(schema: dict[str, Any], side: str) -> jsonschema.Draft7Validator:
    whole = {**schema, "oneOf": [{"$ref": f"#/definitions/{side}"}]}
    jsonschema.Draft7Validator.check_schema(whole)
    return jsonschema.Draft7Validator(whole)


def kinds(schema: dict[str, Any], side: str) -> set[str]:
    return {one["properties"]["type"]["const"] for one in schema["definitions"][side]["oneOf"]}


def test_it_knows_every_request(schema: dict[str, Any]) -> None:
    assert kinds(schema, "request") == {*HANDLED, "Ping", "Progress", "Cancel"}
    assert len(HANDLED) == 22  # those of protocol v1 without pings, and `SubmitOutputs`


@pytest.mark.parametrize("message", REQUESTS, ids=lambda m: str(m["type"]))
def test_requests_of_the_tests_hold(schema: dict[str, Any], message: dict[str, Any]) -> None:
    validator(schema, "request").validate(message)
    broken = {**message, "type": "NoSuch"}
    with pytest.raises(jsonschema.ValidationError):
        validator(schema, "request").validate(broken)


@pytest.mark.ci
def test_replies_hold(schema: dict[str, Any], daemon: Served) -> None:
    """One of every type."""
    daemon.open_gate()
    small = {**FUZZ, "shape_options": {**FUZZ["shape_options"], "hidden_dims": [8]}}  # type: ignore[dict-item]
    fuzz = {"type": "FuzzOp", "op_name": "wrong", "fuzz_config": small, "iterations": 3,
            "fail_fast": False}  # fmt: skip
    infinite = json.loads(json.dumps(TENSOR))
    infinite["data"] = "AACAfwAAgH8="
    validate = {"type": "ValidateOp", "op_name": "double", "inputs": {"x": TENSOR},
                "output": infinite, "kwargs": {}}  # fmt: skip
    found = daemon.ask(fuzz)
    seed = found["failures"][0]["seed"]
    asked = [
        fuzz,
        validate,
        {"type": "Reproduce", "seed": seed, "rerun": True},
        {"type": "Minimize", "seed": seed, "strategy": "All", "max_iters": 50},
        {"type": "StoreArtifact", "kernel_name": "k", "metrics": METRICS},
        {"type": "StoreArtifactBaseline", "tag": "t"},
        {"type": "StoreBaseline", "tag": "t"},
        {"type": "RunCi", "quick": True},
        *REQUESTS,
    ]
    seen = set()
    checker = validator(schema, "reply")
    for request in asked:
        reply = daemon.ask(request, timeout_ms=600_000)
        checker.validate(reply)
        seen.add(reply["type"])
    assert seen >= kinds(schema, "reply") - {"Progress"}


def test_a_wrong_reply_would_be_noticed(schema: dict[str, Any], daemon: Served) -> None:
    reply = daemon.ask({"type": "GetTestCase", "op_name": "double", "fuzz_config": FUZZ})
    checker = validator(schema, "reply")
    checker.validate(reply)
    for change in ({"layout": "Contiguous"}, {"seed": 0.5}):
        with pytest.raises(jsonschema.ValidationError):
            checker.validate({**reply, **change})
