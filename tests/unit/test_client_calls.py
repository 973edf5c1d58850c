"""Arguments of client calls that the page and the code of gpuemu spell in different orders."""

from __future__ import annotations

import pytest

from gpuemu_flow.client import Client
from gpuemu_flow.client.calls import named_by_position
from gpuemu_flow.client.results import ClientError

LARGE = 2**40


@pytest.mark.parametrize("given", [(100, 42), (42,), (42, 100), (LARGE, LARGE)])
def test_numbers_that_could_be_either_are_refused_with_both_spellings(
    given: tuple[int, ...],
) -> None:
    with pytest.raises(ClientError) as raised:
        Client.fuzz_op(Client.__new__(Client), "double", *given)
    hint = raised.value.problems[0].hint
    assert f"seed={given[0]}, iterations=" in hint
    assert f"iterations={given[0]})" in hint


@pytest.mark.parametrize("given", [(LARGE, 7), (7, LARGE), (LARGE, 7, True)])
def test_a_seed_that_is_no_number_of_cases_may_come_first_or_last(
    given: tuple[int, ...],
) -> None:
    named = named_by_position("double", given)
    assert (named["seed"], named["iterations"]) == (LARGE, 7)
    assert named.get("fail_fast", True)
