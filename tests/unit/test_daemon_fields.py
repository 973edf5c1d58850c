"""Test how the fields of a request are read."""

from __future__ import annotations

from gpuemu_flow.daemon.fields import Fields
from gpuemu_flow.wire.envelope import parse


def test_objects_of_an_array_leave_the_request() -> None:
    envelope = parse(b'{"type": "SubmitOutputs", "cases": [{"seed": 1}, {"seed": 2}]}')
    cases = Fields(envelope).take_objects("cases", 2)
    assert envelope.fields["cases"] == []
    assert [case.u64("seed") for case in cases] == [1, 2]
