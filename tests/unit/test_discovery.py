"""Test the parts of a key made from what a program used: every change shows, and nothing else
does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from for_each import for_each
from import_graph import read_imports, source_files

from gpuemu_flow.build import stamps
from gpuemu_flow.build.discovery import (
    Discovery,
    Distributions,
    ObservedSets,
    StoredSets,
    grouped,
)
from gpuemu_flow.build.files import FileTable, own_code_digest, own_code_paths
from gpuemu_flow.model.decoding import convert, plain
from gpuemu_flow.model.types import ConfiguredEnv, Observation
from gpuemu_flow.report.workspace_text import observed_line
from gpuemu_flow.store.cache import JsonStore
from gpuemu_flow.store.keys import MAX_SETS, Discovered, KnownInputs, SeenInputs, digest_bytes
from gpuemu_flow.workers.process import THREAD_VARIABLES

SECRET = "hunter2"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    for name, text in {
        "op.py": "1",
        "v1/op.py": "one",
        "v2/op.py": "two",
        "site/foo/__init__.py": "F = 1",
        "site/foo/hand_made.py": "",
        "site/Foo_Bar-1.0.dist-info/RECORD": "foo/__init__.py,sha256=x,5\n",
        "names/a": "",
        ".gpuemu-cache/blob": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "current").symlink_to("v1")
    return folder


def discovery(root: Path, **environ: str) -> Discovery:
    return Discovery(FileTable(root), environ, ignored=[root / ".gpuemu-cache"],
                     staging=root / ".gpuemu-cache/staging")  # fmt: skip


def seen(root: Path, *files: str, **more: frozenset[str]) -> Observation:
    return Observation(files=frozenset(str(root / name) for name in files), **more)


def test_files_links_packages_and_interpreters_are_told_apart(root: Path) -> None:
    look = discovery(root, SCALE=SECRET)
    names = look.discover(
        seen(root, "op.py", "current/op.py", "site/foo/__init__.py", "site/foo/hand_made.py",
             ".gpuemu-cache/blob", "/dev/null", os.__file__, stamps.__file__),
        ConfiguredEnv({"GIVEN": "by the configuration"}, ("GIVEN", "SCALE", "NONE")),
    )  # fmt: skip
    assert names.files == {"op.py", "current/op.py", "site/foo/hand_made.py"}
    assert names.links == {"current"}
    assert names.packages == {"site|foo-bar"}
    assert len(names.pythons) == 1
    parts = look.parts(names)
    assert parts["link current"] == "v1"
    assert parts["package foo-bar"].startswith("1.0 ")
    assert parts["variable NONE"] == "unset"
    assert "variable GIVEN" not in parts
    assert SECRET not in str(parts)
    assert convert(names.stored, Discovered) == names


@for_each("data", [None, [], {"files": "op.py"}, {"files": [1]}, {"files": {}}, {"others": []}])
def test_what_is_no_set_of_inputs_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        convert(data, Discovered)


CHANGES: dict[str, Callable[[Path], object]] = {
    "file op.py": lambda r: (r / "op.py").write_text("2"),
    "link current": lambda r: [(r / "current").unlink(), (r / "current").symlink_to("v2")],
    "missing new.py": lambda r: (r / "new.py").touch(),
    "folder names": lambda r: (r / "names/b").touch(),
    "package foo-bar": lambda r: (r / "site/Foo_Bar-1.0.dist-info").rename(
        r / "site/foo_bar-1.1.dist-info"
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_each_change_shows_in_its_part(what: str, root: Path) -> None:
    look = discovery(root)
    names = look.discover(
        seen(root, "op.py", "current/op.py", "site/foo/__init__.py",
             missed=frozenset({str(root / "new.py")}), listed=frozenset({str(root / "names")})),
        ConfiguredEnv(),
    )  # fmt: skip
    (root / "names/__pycache__").mkdir()
    before = look.parts(names)
    assert look.parts(names) == before
    begun = look.now()
    assert look.moved(names, begun + 1) == [] or what == "missing new.py"
    CHANGES[what](root)
    after = look.parts(names)
    differ = {name for name in before if before[name] != after[name]}
    assert what in differ
    assert differ <= {what, "file current/op.py"}
    assert observed_line(what, before[what], after[what])


def test_a_file_that_was_put_back_has_moved_all_the_same(root: Path) -> None:
    look = discovery(root)
    names = look.discover(seen(root, "op.py"), ConfiguredEnv())
    begun = look.now()
    before = (root / "op.py").stat()
    (root / "op.py").write_text("2")
    (root / "op.py").write_text("1")
    os.utime(root / "op.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert look.parts(names) == look.parts(names)
    assert look.moved(names, begun) == ["op.py"]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(root: Path) -> None:
    look = discovery(root)
    names = look.discover(seen(root, "op.py"), ConfiguredEnv())
    (root / "op.py").unlink()
    os.mkfifo(root / "op.py")
    assert look.parts(names)["file op.py"] == ""


def test_variables_count_by_their_values_and_the_environment_as_a_whole(root: Path) -> None:
    one, all_of_them = Discovered(variables=frozenset({"A"})), Discovered(variables=frozenset("*"))
    parts = [discovery(root, A=value).parts(one) for value in ("1", "2", "1")]
    assert parts[0] == parts[2] != parts[1]
    parts = [discovery(root, A="1", SHLVL=level).parts(all_of_them) for level in "12"]
    assert parts[0] == parts[1], "which shell it is says nothing"
    assert discovery(root, A="2", SHLVL="1").parts(all_of_them) == parts[0], "it reaches nobody"
    assert discovery(root, TZ="2", SHLVL="1").parts(all_of_them) != parts[0]


def test_only_variables_that_reach_a_program_are_inputs_of_it(root: Path) -> None:
    look = discovery(root)
    assert look.discover(Observation(), ConfiguredEnv()).variables == {"*"}
    named = look.discover(Observation(), ConfiguredEnv({"SET": "1"}, ("A", "MY_*", "SET")))
    assert named.variables == {"*", "A", "MY_**"}
    assert look.discover(Observation(), ConfiguredEnv(names=("*",))).variables == {"*", "**"}


def test_the_folders_around_the_workspace_are_no_inputs(root: Path) -> None:
    """A program that resolves its own path looks at each of them; a clone has others."""
    paths = frozenset(map(str, (root, *root.parents, root / "names", "/usr")))
    found = discovery(root).discover(Observation(looked=paths), ConfiguredEnv())
    assert found.looked == {"names", "/usr"}


def test_results_are_found_under_each_set_that_holds_now(root: Path, tmp_path: Path) -> None:
    actions = JsonStore(tmp_path / "actions", lambda *_: None)
    look = discovery(root)

    def use(*files: str) -> SeenInputs:
        inputs = SeenInputs(actions, "static", look)
        inputs.learn("op", seen(root, *files), ConfiguredEnv())
        return inputs

    def found() -> str | None:
        inputs = SeenInputs(actions, "static", look)
        return next((str(actions.get(key)) for _, key in inputs.earlier if actions.get(key)), None)

    look.moved = lambda *_: []  # type: ignore[method-assign]
    for text, file in (("one", "v1/op.py"), ("two", "v2/op.py")):
        key = use("op.py", file).key()
        assert key is not None
        actions.put(key, text)
    assert found() == "two", "the newest comes first"
    (root / "v2/op.py").write_text("edited")
    assert found() == "one"
    (root / "op.py").write_text("edited")
    assert found() is None
    (root / "op.py").write_text("1")
    (root / "v2/op.py").write_text("two")
    assert found() == "two"
    known = KnownInputs(actions, "static", look)
    for number in range(2 * MAX_SETS):
        known.add(Discovered(files=frozenset({f"f{number}"})))
    assert len(KnownInputs(actions, "static", look).sets()) == MAX_SETS
    actions.close()


def test_a_distribution_is_found_by_what_it_lists(root: Path) -> None:
    installed = Distributions()
    assert installed.owner(str(root / "site/foo/__init__.py")) == (str(root / "site"), "foo-bar")
    assert installed.owner(str(root / "site/foo/hand_made.py")) is None
    assert installed.owner(str(root / "op.py")) is None
    record = root / "site/Foo_Bar-1.0.dist-info/RECORD"
    record.write_text("foo/__init__.py,,\nfoo/hand_made.py,,\n")
    assert installed.owner(str(root / "site/foo/hand_made.py")) is not None, "installed since"


def test_a_set_whose_states_are_not_those_of_its_names_counts_as_changed(root: Path) -> None:
    look = discovery(root)
    names = look.discover(seen(root, "op.py", "current/op.py"), ConfiguredEnv())
    parts = look.parts(names)
    sound = ObservedSets()
    sound.record("op:a", names, parts)
    assert sound.changed(look) == set()
    (name, *_) = parts
    for others in (
        {},
        {**parts, "file beside": "1"},
        {n: s for n, s in parts.items() if n != name},
    ):
        sets = ObservedSets()
        sets.record("op:a", names, parts)
        sets.record("op:b", names, others)
        assert sets.changed(look) == {"op:b"}
        assert ObservedSets.of_stored(sets.stored).changed(look) == {"op:b"}


def test_sets_share_inputs_and_not_their_states(root: Path) -> None:
    look = discovery(root)
    names = look.discover(seen(root, "op.py", "current/op.py"), ConfiguredEnv())
    sets = ObservedSets()
    sets.record("op:before", names, look.parts(names))
    (root / "op.py").write_text("another\n")
    sets.record("op:after", names, look.parts(names))
    again = ObservedSets.of_stored(sets.stored)
    assert again.changed(look) == {"op:before"}
    assert again.of(["op:before"]).task_sets.keys() == {"op:before"}
    assert again.of(["op:before"]).sets == {
        key: found for key, found in sets.sets.items() if key == sets.task_sets["op:before"]
    }


def test_an_untracked_input_stays_with_its_task(root: Path) -> None:
    sets = ObservedSets()
    sets.record("op:blind", Discovered(untracked=frozenset({"who knows"})), {})
    sets.record("op:a", Discovered(), {})
    again = ObservedSets.of_stored(sets.stored)
    assert (again.untracked("op:blind"), again.untracked("op:a")) == ({"who knows"}, frozenset())
    assert again.of(["op:blind"]).untracked("op:blind") == {"who knows"}
    assert again.untracked("op:unknown") == frozenset()
    assert again.names(["op:blind"]).untracked == {"who knows"}


def test_a_table_that_was_just_refreshed_is_not_looked_up_again(root: Path) -> None:
    files = FileTable(root)
    before = files.digest("op.py")
    with files.as_refreshed():
        (root / "op.py").write_text("another\n")
        (root / "new.py").write_text("new\n")
        assert files.digest("op.py") == before
        assert files.digest("new.py") == digest_bytes(b"new\n")
    assert files.digest("op.py") == digest_bytes(b"another\n")
    (root / "op.py").write_text("once more\n")
    (root / "new.py").unlink()
    assert files.refresh() == {"op.py", "new.py"}


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_a_file_of_no_distribution_may_become_one_of_a_new_one(
    looks: int, root: Path, tmp_path: Path
) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    names = [str(library / f"part_{n}.so") for n in range(40)]
    for name in names:
        Path(name).touch()
    look, all_of_them = discovery(root), Observation(files=frozenset(names))
    for _ in range(looks):
        assert look.discover(all_of_them, ConfiguredEnv()).files == all_of_them.files
    (library / "part-1.dist-info").mkdir()
    (library / "part-1.dist-info/RECORD").write_text("part_7.so,,\n")
    found = look.discover(all_of_them, ConfiguredEnv())
    assert found.packages == {f"{library}|part"}
    assert found.files == all_of_them.files - {names[7]}
    Path(names[8]).rename(library / "other.so")
    Path(names[8]).symlink_to("other.so")
    assert names[8] in look.discover(all_of_them, ConfiguredEnv()).links
    (library / "part-1.dist-info/RECORD").write_text("part_7.so,,\npart_9.so,,\n")
    assert names[9] not in look.discover(all_of_them, ConfiguredEnv()).files


def test_damaged_sets_are_refused(root: Path) -> None:
    look, sets = discovery(root), ObservedSets()
    names = look.discover(seen(root, "op.py", "current/op.py"), ConfiguredEnv())
    sets.record("op:a", names, look.parts(names))
    data = plain(sets.stored)
    again = ObservedSets.of_stored(convert(data, StoredSets))
    assert again.sets == sets.sets
    assert again.task_sets == sets.task_sets
    for damage in ({"facts": []}, {"facts": [1]}, {"sets": {}}, {"tasks": {"op:a": "none"}}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            ObservedSets.of_stored(convert({**data, **damage}, StoredSets))


@pytest.mark.ci
def test_our_own_code_holds_all_that_stages_and_runners_import() -> None:
    """A module that is forgotten would let a mended judge answer with its old verdicts."""
    files = source_files()
    edges: dict[str, set[str]] = {}
    for found in read_imports(files):
        if not found.type_checking:
            edges.setdefault(found.module, set()).add(found.target)
    starts = ("gpuemu_flow.tasks.", "gpuemu_flow.workers.", "gpuemu_flow.build.compile")
    pending = [module for module in files if module.startswith(starts)]
    reached: set[str] = set()
    while pending:
        module = pending.pop()
        if module in files and module not in reached:
            reached.add(module)
            pending += edges.get(module, ())
    known = set(own_code_paths())
    forgotten = {module for module in reached if str(files[module]) not in known}
    assert len(reached) > 100
    assert forgotten <= {"gpuemu_flow"}  # names and the version, no code


def test_our_own_code_is_one_value_that_each_module_changes(tmp_path: Path) -> None:
    paths = own_code_paths()
    for name in ("judge/judge.py", "numerics/compare.py", "cases/plan.py", "workers/worker.py",
                 "gpuemu_flow/model/types.py", "build/discovery.py"):  # fmt: skip
        assert any(path.endswith(name) for path in paths)
    first = own_code_digest(FileTable(tmp_path))
    table = FileTable(tmp_path)
    own_code_digest(table)
    stamp, _ = table.entries[paths[0]]
    changed = FileTable(tmp_path, {**table.entries, paths[0]: (stamp, "another")})
    assert own_code_digest(changed) != first


def test_the_interpreter_counts_by_its_executable(root: Path) -> None:
    look = discovery(root)
    names = look.discover(seen(root, os.__file__), ConfiguredEnv())
    (folder,) = names.pythons
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    assert any(path.endswith(f"bin/{version}") for path in look.interpreters(folder))


def test_what_workers_are_given_by_default_is_no_change(root: Path) -> None:
    names = Discovered(variables=frozenset({*stamps.WORKER_DEFAULTS, "*"}))
    assert discovery(root).parts(names) == discovery(root, **stamps.WORKER_DEFAULTS).parts(names)
    given = {"PYTHONHASHSEED", *THREAD_VARIABLES}
    assert set(stamps.WORKER_DEFAULTS) == given


def test_inputs_are_shown_by_their_kind_and_name() -> None:
    """A package that lies in several places is one; a bar in a file's name means nothing."""
    names = Discovered(
        files=frozenset({"b|x", "a|x"}),
        packages=frozenset({"lib|numpy", "venv|numpy", "venv|torch"}),
        variables=frozenset({"HOME"}),
    )
    assert [*grouped(names)] == [
        ("file", "a|x", ("a|x",)), ("file", "b|x", ("b|x",)),
        ("package", "numpy", ("lib|numpy", "venv|numpy")), ("package", "torch", ("venv|torch",)),
        ("variable", "HOME", ("HOME",)),
    ]  # fmt: skip


def test_names_that_begin_alike_count_as_one(root: Path) -> None:
    """Set, unset or changed; what workers are given by default is no change."""
    states = [
        stamps.variable_digest(environ, "OMP_*")
        for environ in (
            {}, {"OMP_NUM_THREADS": "1"}, {"OMP_NUM_THREADS": "2"}, {"OMP_NESTED": "1"},
            {"OMP": "1"},
        )
    ]  # fmt: skip
    assert states[0] == states[1] == states[4]
    assert len(set(states)) == 3
    assert stamps.variable_digest({"TORCH": "1"}, "TORCH_*") == stamps.UNSET
    look = discovery(root, TORCH_X="1")
    names = look.discover(Observation(), ConfiguredEnv())
    assert look.parts(names) != discovery(root).parts(names)


LOOKS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a mode": ("looked", lambda r: (r / "names/a").chmod(0o700)),
    "a folder that is gone": ("looked", lambda r: (r / "names").rename(r / "other")),
    "a kind": ("listed", lambda r: ((r / "names/a").unlink(), (r / "names/a").mkdir())),
    "a backup": ("listed", lambda r: (r / "names/a~").touch()),
}


@pytest.mark.parametrize("what", LOOKS)
def test_what_is_looked_at_shows_in_the_parts_and_in_what_is_needed(what: str, root: Path) -> None:
    part, change = LOOKS[what]
    look = discovery(root)
    paths = [root / "names", root / "names/a"] if part == "looked" else [root / "names"]
    (root / "names/a").touch()
    names = look.discover(Observation(**{part: frozenset(map(str, paths))}), ConfiguredEnv())
    before = look.parts(names)
    sets = ObservedSets()
    sets.record("task", names, before)
    assert sets.changed(look) == set()
    change(root)
    assert sets.changed(look) == {"task"}
