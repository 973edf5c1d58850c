"""Files that a CUDA source includes, and files that would change what it includes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuemu_flow.build.compile_kernels import find_includes, with_outputs
from gpuemu_flow.workers.sandbox.spec import Sandbox


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_h", ".h").replace("_cu", ".cu")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_header_that_would_be_found_earlier_is_absent(tmp_path: Path) -> None:
    write(tmp_path, k_cu='#include "x.h"\n#include <y.h>\n', j__x_h="", j__y_h="", i__z_h="")
    found = find_includes(tmp_path / "k.cu", ["-Ii", "-Ij"], tmp_path)
    assert found.files == ["j/x.h", "j/y.h", "k.cu"]
    assert found.absent == ["i/x.h", "i/y.h", "x.h"]


@pytest.mark.parametrize("line", ['#if __has_include("opt.h")', "#if __has_include( <opt.h> )"])
def test_a_header_that_is_asked_for_counts_whether_it_is_there_or_not(
    tmp_path: Path, line: str
) -> None:
    write(tmp_path, k_cu=f"{line}\n#endif\n", i__other_h="")
    assert "i/opt.h" in find_includes(tmp_path / "k.cu", ["-Ii"], tmp_path).absent
    write(tmp_path, i__opt_h="")
    assert "i/opt.h" in find_includes(tmp_path / "k.cu", ["-Ii"], tmp_path).files


def test_the_next_header_of_a_name_counts(tmp_path: Path) -> None:
    write(tmp_path, k_cu="#include_next <x.h>\n", i__x_h="")
    assert "i/x.h" in find_includes(tmp_path / "k.cu", ["-Ii"], tmp_path).files


@pytest.mark.parametrize(
    "flags",
    [
        ["-optf", "o.txt"],
        ["--options-file", "o.txt"],
        ["--options-file=o.txt"],
        ["-optf=first.txt,o.txt"],
        ["-optf", "outer.txt"],
    ],
)
def test_a_file_of_options_counts_and_what_it_says(tmp_path: Path, flags: list[str]) -> None:
    write(tmp_path, k_cu='#include "x.h"\n', i__x_h="")
    (tmp_path / "o.txt").write_text("-DV=1\n-I i\n")
    (tmp_path / "first.txt").write_text("-O3")
    (tmp_path / "outer.txt").write_text("-optf o.txt -optf outer.txt")
    found = find_includes(tmp_path / "k.cu", flags, tmp_path)
    assert {"o.txt", "i/x.h", "k.cu"} <= set(found.files)


@pytest.mark.parametrize("flags", [["-Xcompiler", "@more.rsp"], ["-Xptxas=a,more.rsp"]])
def test_a_file_that_a_flag_names_counts(tmp_path: Path, flags: list[str]) -> None:
    write(tmp_path, k_cu="")
    (tmp_path / "more.rsp").write_text("")
    assert find_includes(tmp_path / "k.cu", flags, tmp_path).files == ["k.cu", "more.rsp"]


def test_folders_and_files_are_named_by_each_option(tmp_path: Path) -> None:
    write(tmp_path, k_cu='#include "x.h"\n', j__x_h="", a_h="", b_h="")
    for option in ("-I", "--include-path", "-isystem", "--system-include"):
        for flags in ([option, "i,j"], [f"{option}=i,j"], [option, "i", f"{option}=j"]):
            found = find_includes(tmp_path / "k.cu", flags, tmp_path)
            assert (found.files, found.absent) == (["j/x.h", "k.cu"], ["i/x.h", "x.h"]), flags
    for option in ("-include", "--pre-include"):
        for flags in ([option, "a.h,b.h"], [f"{option}=a.h,b.h"], [option, "a.h", option, "b.h"]):
            found = find_includes(tmp_path / "k.cu", [*flags, "-Ij"], tmp_path)
            assert found.files == ["a.h", "b.h", "j/x.h", "k.cu"], flags


def test_a_missing_file_of_options_is_left_to_the_compiler(tmp_path: Path) -> None:
    write(tmp_path, k_cu="")
    assert find_includes(tmp_path / "k.cu", ["-optf", "none", "-optf"], tmp_path).files == ["k.cu"]


def test_names_of_headers_below_include_folders(tmp_path: Path) -> None:
    """The toolkit's headers include each other by such names, and these folders come first."""
    write(tmp_path, k_cu="", i__a_h="", i__cub__b_h="", i__main_cu="", other__c_h="")
    (tmp_path / "i" / "algorithm").write_text("")
    (tmp_path / "i" / ".hidden").mkdir()
    (tmp_path / "i" / ".hidden" / "d.h").write_text("")
    found = find_includes(tmp_path / "k.cu", ["-Ii", "-I/nowhere"], tmp_path)
    assert found.headers == ["i/a.h", "i/algorithm", "i/cub/b.h"]
    assert found.folders == ["i", "i/cub"]


def test_a_command_may_write_its_outputs_and_in_a_folder_of_its_own_more() -> None:
    root, wall = Path("/w"), Sandbox("landlock 7, seccomp", "/w", hidden=("/w/ref/softmax.py",))
    for output, more in (("k.ptx", ()), ("out/k.ptx", ("/w/out",)), ("ref/k.ptx", ("/w/ref",))):
        path = root / output
        itself = () if output.startswith("out") else (str(path),)
        found = with_outputs(wall, [path], [Path("/w/ref/other.py")], root)
        assert set(found.writable) == {*itself, *more}, output
