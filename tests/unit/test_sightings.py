"""Records of what a program used: torn ones are left out, junk is said to be damage."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from gpuemu_flow.observed import ALL_VARIABLES
from gpuemu_flow.runners import anonfile
from gpuemu_flow.runners.sightings import Sightings, framed


@pytest.fixture
def report() -> Iterator[int]:
    fd = anonfile.append_only(anonfile.create("report"))
    yield fd
    os.close(fd)


@pytest.fixture
def sightings(report: int) -> Sightings:
    made = Sightings()
    made.follow(report)
    return made


WHOLE = framed(b"r/place/table of a name.npy")


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_record_of_which_a_part_is_there_is_taken_when_the_rest_is(
    report: int, sightings: Sightings, length: int
) -> None:
    os.write(report, framed(b"r/place/a") + WHOLE[:length])
    first = sightings.observation()
    os.write(report, WHOLE[length:] + framed(b"m/place/b"))
    seen = sightings.observation()
    assert "/place/a" in first.files
    assert first.untracked == set()
    assert seen.files == {"/place/a", "/place/table of a name.npy"}
    assert seen.missed == {"/place/b"}
    assert seen.untracked == set()


@pytest.mark.parametrize(
    "record",
    [b"r/place/one.npy", b"b" + b"r/lib/a.so\nvPATH", b"vNAME", b"uthe reason", b"m/place/x"],
)
@pytest.mark.parametrize("read_between", [False, True])
def test_the_record_of_a_killed_writer_spoils_no_other_one(
    report: int, sightings: Sightings, record: bytes, *, read_between: bool
) -> None:
    """Neither is what follows lost, nor does a piece of a path count as a path."""
    whole = framed(record)
    for length in range(1, len(whole) - 2):
        os.write(report, whole[:length])
        if read_between:
            sightings.observation()
        os.write(report, framed(b"r/place/after%d" % length))
    os.write(report, framed(b"v*"))
    seen = sightings.observation()
    assert seen.files == {f"/place/after{n}" for n in range(1, len(whole) - 2)}
    assert seen.missed == set()
    assert seen.variables == {ALL_VARIABLES}
    assert seen.untracked == set()


@pytest.mark.parametrize(
    "junk", [b"junk\0", b"\0?/place/x\x01\0", b"\0rrelative\x01\0", b"\0r\x01\0", b"\xff\0"]
)
def test_junk_is_damage(report: int, sightings: Sightings, junk: bytes) -> None:
    os.write(report, framed(b"r/place/a") + junk + framed(b"r/place/b"))
    seen = sightings.observation()
    assert seen.files == {"/place/a", "/place/b"}
    assert [text for text in seen.untracked if "damaged" in text]


def test_a_record_that_is_cut_is_damage(report: int, sightings: Sightings) -> None:
    os.write(report, framed(b"r/place/a"))
    assert sightings.observation().untracked == set()
    os.ftruncate(report, 0)
    seen = sightings.observation()
    assert seen.files == {"/place/a"}
    assert [text for text in seen.untracked if "damaged" in text]


def test_a_name_may_end_like_a_record(report: int, sightings: Sightings) -> None:
    os.write(report, framed(b"r/place/a\x01"))
    assert sightings.observation().files == {"/place/a\x01"}
