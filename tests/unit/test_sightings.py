"""Records of what a program used: torn ones are left out, junk is said to be damage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuemu_flow.model.types import Observation
from gpuemu_flow.workers import channel
from gpuemu_flow.workers.sightings import Sightings, framed


@pytest.fixture
def report() -> Iterator[int]:
    fd = channel.append_only(channel.create("report"))
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
    [b"r/place/one.npy", b"b" + b"r/lib/a.so\nm/lib/b.so", b"uthe reason", b"m/place/x"],
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
    seen = sightings.observation()
    assert seen.files == {f"/place/after{n}" for n in range(1, len(whole) - 2)}
    assert seen.missed == set()
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


def told(report: int, sightings: Sightings, *records: bytes) -> Observation:
    for record in records:
        os.write(report, framed(record))
    return sightings.observation()


ORDERS: dict[str, tuple[list[bytes], set[str], set[str]]] = {
    "written and read": ([b"w/f/n", b"r/f/n"], set(), set()),
    "looked for, written and read": ([b"m/f/n", b"w/f/n", b"r/f/n"], set(), {"/f/n"}),
    "read and written": ([b"r/f/n", b"w/f/n"], {"/f/n"}, set()),
    "touched and read": ([b"t/f/n", b"r/f/n"], {"/f/n"}, set()),
    "touched": ([b"t/f/n"], set(), set()),
    "looked at and touched": ([b"e/f/n", b"t/f/n"], set(), set()),
    "created": ([b"c/f/n"], set(), set()),
    "created and read": ([b"c/f/n", b"r/f/n"], set(), {"/f/n"}),
    "created, written over and read": ([b"c/f/n", b"w/f/n", b"r/f/n"], set(), set()),
    "in a folder that is gone": ([b"d/f/o", b"m/f/o/n", b"l/f/o"], set(), set()),
    "in a folder that stays": ([b"d/usr", b"m/usr/bin", b"l/usr"], set(), {"/usr", "/usr/bin"}),
    "moved and read": ([b"a/f/n//f/t", b"r/f/t"], {"/f/n"}, set()),
    "moved and looked for": ([b"a/f/n//f/t", b"m/f/n"], set(), set()),
    "moved, read, moved back and read": (
        [b"a/f/n//f/t", b"r/f/t", b"a/f/t//f/n", b"r/f/n"], {"/f/n"}, set()
    ),
    "moved twice": ([b"a/f/n//f/t", b"a/f/t//f/u", b"r/f/u"], {"/f/n"}, set()),
    "moved, told twice": ([b"a/f/n//f/t", b"a/f/n//f/t", b"r/f/t"], {"/f/n"}, set()),
    "written, moved and read": ([b"w/f/t", b"a/f/t//f/n", b"r/f/n"], set(), set()),
    "looked for, moved into place": (
        [b"m/f/n", b"w/f/t", b"a/f/t//f/n", b"r/f/n"], set(), {"/f/n"}
    ),
    "folder moved": ([b"a/f//g", b"r/g/n"], {"/f/n"}, set()),
    "own folder moved": ([b"d/f", b"w/f/n", b"a/f//g", b"r/g/n"], set(), set()),
    "linked and read": ([b"k/f/n//f/t", b"r/f/t"], {"/f/n"}, set()),
    "linked to one after another": (
        [b"k/f/n//f/t", b"r/f/t", b"x/f/t", b"k/f/o//f/t", b"r/f/t"], {"/f/n", "/f/o"}, set()
    ),
    "link removed": ([b"k/f/n//f/t", b"x/f/t", b"r/f/n"], {"/f/n"}, set()),
    "removed and looked for": ([b"x/f/n", b"m/f/n"], set(), set()),
    "linked to its own": ([b"w/f/n", b"k/f/n//f/t", b"r/f/t"], set(), set()),
    "bytecode written": ([b"w/f/__pycache__/n.cpython-311.pyc", b"r/f/n.py"], {"/f/n.py"}, set()),
}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_written_first_is_the_programs_own(
    report: int, sightings: Sightings, order: str
) -> None:
    records, files, missed = ORDERS[order]
    seen = told(report, sightings, *records)
    assert (seen.files, seen.missed) == (files, missed)
    assert seen.untracked == set()


def test_what_is_looked_at_counts_by_its_kind_even_when_it_is_written_to(
    report: int, sightings: Sightings
) -> None:
    seen = told(report, sightings, b"e/f/log", b"t/f/log", b"f/f", b"l/h")
    assert seen.looked == {"/f/log", "/f"}
    assert seen.listed == {"/h"}
    assert seen.files == set()


def test_a_package_changes_as_a_whole(report: int, sightings: Sightings) -> None:
    """Where names come and go beside packages counts, not what is sought in one that is there."""
    package = str(Path(np.__file__).parent)
    site = str(Path(package).parent)
    stdlib = str(Path(os.__file__).parent)
    inside = [b"m%b/none.py", b"m%b/none/x.py", b"l%b", b"l%b/linalg"]
    kept = [f"{site}/none.py", f"{site}/no_package/x.py", f"{site}/numpy"]
    seen = told(
        report,
        sightings,
        *(record % package.encode() for record in inside),
        *(f"m{path}".encode() for path in kept),
        *(f"{kind}{stdlib}/json{name}".encode() for kind, name in (("m", "/none.py"), ("l", ""))),
        f"l{site}".encode(),
        b"m/f/none.py",
        b"l/f/a-packages/b",
    )
    assert seen.missed == {*kept, "/f/none.py"}
    assert seen.listed == {site, "/f/a-packages/b"}


@pytest.mark.parametrize("folder", ["/tmp/gpuemu-scratch-ab/w1", "/elsewhere/w1"])
def test_a_workers_own_folder_is_no_input(report: int, folder: str) -> None:
    made = Sightings()
    made.follow(report, folder)
    around = str(Path(folder).parent)
    os.write(report, framed(f"r{folder}/x".encode()) + framed(f"m{folder}".encode()))
    os.write(report, framed(f"m{around}".encode()) + framed(b"r/tmp/gpuemu-scratch-other"))
    seen = made.observation()
    shared = "gpuemu-scratch-" in folder
    assert seen.missed == (set() if shared else {around})
    assert seen.files == {"/tmp/gpuemu-scratch-other"}
