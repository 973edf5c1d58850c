"""Every reader gives a result or a known error for right inputs and for those that fuzzing found.

`tests/fuzz_parsers.py` writes the corpus. ``GPUEMU_PARSER_SECONDS=300`` fuzzes each here.
"""

from __future__ import annotations

import os

import pytest
from fuzz_parsers import fuzz_here
from parser_targets import TARGETS, corpus

SECONDS = float(os.environ.get("GPUEMU_PARSER_SECONDS", "0"))


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_surprises_no_reader(name: str) -> None:
    target = TARGETS[name]
    for data in (*target.seeds, *(path.read_bytes() for path in corpus(name))):
        target.try_on(data)


@pytest.mark.parametrize("name", TARGETS)
def test_right_bytes_are_read(name: str) -> None:
    """A target that refuses its own seeds would look at nothing."""
    for data in TARGETS[name].seeds:
        if name != "frames":  # which end
            TARGETS[name].read(data)


@pytest.mark.parametrize("name", TARGETS)
def test_cut_and_doubled_bytes_surprise_no_reader(name: str) -> None:
    for data in TARGETS[name].seeds:
        for end in range(0, len(data), max(1, len(data) // 40)):
            TARGETS[name].try_on(data[:end])
            TARGETS[name].try_on(data[:end] + data[end:] * 2)


@pytest.mark.skipif(not SECONDS, reason="GPUEMU_PARSER_SECONDS says how long")
@pytest.mark.parametrize("name", TARGETS)
def test_fuzzed_bytes_surprise_no_reader(name: str) -> None:
    _, crashers, _ = fuzz_here(name, SECONDS, 0)
    assert crashers == {}
