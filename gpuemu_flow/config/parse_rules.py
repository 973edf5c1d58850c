"""Parse ``[[rules]]`` and the ``build`` of ops: check them, and order them by dependency."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import takewhile
from os.path import exists, isdir, isfile
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from gpuemu_flow.config.check import values_of
from gpuemu_flow.config.model import RuleConfig
from gpuemu_flow.config.paths import WorkspacePaths, matches, plain_glob
from gpuemu_flow.config.report import KeyPath, Reporter, dotted, shown
from gpuemu_flow.config.tables_ops import OpBuild
from gpuemu_flow.model.types import Json

OWN_FOLDERS = (".gpuemu-cache", ".git")
MAX_SHOWN = 8
_WILDCARDS = frozenset("*?[")

Table = Mapping[str, Json]


class _Parsed(Struct):
    """A rule, and where to report its problems."""

    rule: RuleConfig
    where: KeyPath
    out: Reporter
    wanted: tuple[str, ...]


class RuleParser(Struct):
    """Parses the rules of all files of a configuration."""

    workspace: WorkspacePaths
    # Files that no rule may make.
    config_files: Collection[Path]
    # All rules that could be parsed.
    rules: dict[str, _Parsed] = {}
    # Maps an output to the name of its rule.
    producers: dict[str, str] = {}
    # Map the real path of each output, and of each folder above an output, to the name of its
    # rule.
    places: dict[str, str] = {}
    above: dict[str, str] = {}

    @property
    def made(self) -> frozenset[Path]:
        return frozenset(self.workspace.root / name for name in self.producers)

    def add(self, name: str, table: Table, where: KeyPath, out: Reporter) -> None:
        """Parse one rule, report its problems, and add it to `rules`."""
        values = values_of(OpBuild, table)
        if name in self.rules:
            if where[0] != "rules":  # names in [[rules]] are checked with all others
                first = self.rules[name].rule
                text = f"there is a rule named {shown(name)} already, in {_at(first)}"
                out.add("config-duplicate-name", where, text, "rename one of them")
            return
        command = self._command(values["command"], shell=values["shell"], where=where, out=out)
        outputs = self._outputs(name, values["outputs"] or (), where, out)
        rule = RuleConfig(
            name=name,
            file=out.file,
            line=out.line(where),
            command=command,
            shell=values["shell"],
            inputs=self._inputs(values["inputs"], where, out),
            outputs=outputs,
            needs=(),
            timeout=values["timeout"],
            only_inputs=values["only_inputs"],
        )
        self.rules[name] = _Parsed(rule, where, out, tuple(values["needs"]))

    def finish(self) -> tuple[RuleConfig, ...]:
        for name, parsed in self.rules.items():
            self._check_inputs(parsed)
            needs = self.named(parsed.wanted, (*parsed.where, "needs"), parsed.out)
            needs += self._implied(parsed.rule)
            found = tuple(dict.fromkeys(need for need in needs if need != name))
            if name in parsed.wanted:
                self._circle([name, name], parsed)
            parsed.rule = replace(parsed.rule, needs=found)
        return tuple(self.rules[name].rule for name in self._ordered())

    def refuse_names(self, kernels: Collection[str]) -> None:
        """Report each rule that has the same name as a kernel. A rule and a kernel are both built
        by a task called ``build:NAME``."""
        for name, parsed in self.rules.items():
            if name in kernels:
                text = f"a kernel is named {shown(name)}, too, and build:{name} makes it"
                place = (*parsed.where, "name")
                parsed.out.add("config-duplicate-name", place, text, "rename one of them")

    def named(self, needs: Iterable[str], where: KeyPath, out: Reporter) -> list[str]:
        """Return the names in ``needs`` that are rules; report the others."""
        found = []
        for place, need in enumerate(needs):
            if need in self.rules:
                found.append(need)
            else:
                here = (*where, place)
                hint = out.nearest(need, tuple(self.rules), or_all=True)
                text = f"{dotted(here)} = {shown(need)} is no rule"
                out.add("config-rule-unknown", here, text, hint or "add it as [[rules]]")
        return found

    def _command(
        self, given: Json, *, shell: bool, where: KeyPath, out: Reporter
    ) -> tuple[str, ...]:
        here = (*where, "command")
        if given is None:
            return ()
        if isinstance(given, str) and not shell:
            try:
                words = shlex.split(given)
            except ValueError:
                words = given.split()
            listed = "[" + ", ".join(f'"{word}"' for word in words) + "]"
            text = f"{dotted(here)} is one string, which only a shell takes apart"
            out.add("config-rule-command", here, text, f"write {listed}, or ask for shell = true")
        elif not isinstance(given, str) and shell:
            text = f"{dotted(here)} is a list, and shell = true wants one string"
            out.add("config-rule-command", here, text, "take shell = true out")
        elif not isinstance(given, str) and not given[0].strip():
            out.add("config-rule-command", here, f"{dotted(here)} names an empty program")
        return (given,) if isinstance(given, str) else tuple(given)

    def _outputs(
        self, name: str, given: Sequence[str], where: KeyPath, out: Reporter
    ) -> tuple[str, ...]:
        found = []
        for place, written in enumerate(given):
            here = (*where, "outputs", place)
            path = self._inside(written, here, out)
            if path is None:
                continue
            if self._is_free(name, path, written, here, out):
                self.producers[path] = name
                found.append(path)
        return tuple(found)

    def _is_free(self, name: str, path: str, written: str, here: KeyPath, out: Reporter) -> bool:
        root = self.workspace.root
        parent, _, last = path.rpartition("/")
        real = f"{os.path.realpath(root / parent)}/{last}"  # two folders may be one, by a link
        if real in self.places:
            producer, relation = self.places[real], "is an output of {} already"
        elif real in self.above:
            producer, relation = self.above[real], "is a folder: an output of {} lies below it"
        else:
            folders = [str(folder) for folder in Path(real).parents if folder != root]
            taken = next((folder for folder in folders if folder in self.places), "")
            if not taken:
                self.places[real] = name
                self.above.update({folder: name for folder in folders if folder not in self.above})
                return True
            producer, relation = self.places[taken], "lies below an output of {}"
        if producer == name and real in self.places:
            return False  # named twice by one rule
        other = self.rules[producer].rule if producer in self.rules else None
        whose = f"the rule {shown(producer)}" + (f" in {_at(other)}" if other else "")
        text = f"{dotted(here)} = {shown(written)} {relation.format(whose)}"
        out.add("config-rule-output", here, text, "let one rule make it, and each file another")
        return False

    def _inside(self, written: str, here: KeyPath, out: Reporter) -> str | None:
        """Return the path of an output relative to the workspace; None if a problem was reported.
        `written` is the output's path in the configuration, and `here` the position to report."""
        root, fault = self.workspace.root, ""
        path = Path(os.path.normpath(root / written))
        if not path.is_relative_to(root) or path == root:
            fault = "leads out of the workspace"
        elif not Path(os.path.realpath(path.parent)).is_relative_to(root):
            fault = "leads out of the workspace through a link"
        elif _WILDCARDS & set(written):
            fault = "is a pattern: each output has to be named"
        elif path.relative_to(root).parts[0] in OWN_FOLDERS:
            fault = "lies in a folder that is none of a rule's"
        elif path in self.config_files:
            fault = "is the configuration"
        elif written.endswith("/") or path.is_dir():
            fault = "is a folder: outputs are files"
        if fault:
            text = f"{dotted(here)} = {shown(written)} {fault}"
            out.add("config-rule-output", here, text, "name a file of the workspace")
            return None
        return path.relative_to(root).as_posix()

    def _inputs(self, given: Sequence[str], where: KeyPath, out: Reporter) -> tuple[str, ...]:
        found = []
        for place, written in enumerate(given):
            here = (*where, "inputs", place)
            path, fault = plain_glob(written)
            if not fault and path.parts[:1] and path.parts[0] in OWN_FOLDERS:
                fault = "lies in a folder that is none of a rule's"
            if fault:
                text = f"{dotted(here)} = {shown(written)} {fault}"
                out.add("config-rule-input", here, text, "name files of the workspace")
            else:
                found.append(path.as_posix())
        return tuple(dict.fromkeys(found))

    def _check_inputs(self, parsed: _Parsed) -> None:
        rule, root = parsed.rule, self.workspace.root
        own = set(rule.outputs)
        for pattern in rule.inputs:
            here = (*parsed.where, "inputs")
            if pattern in own:
                text = f"{shown(pattern)} is an input of {shown(rule.name)} and its output"
                parsed.out.add("config-rule-input", here, text, "remove it from one of them")
                continue
            made = any(matches(pattern, name) for name in self.producers if name not in own)
            if not made and not _any_file(root, pattern, own):
                text = f"{dotted(here)}: {shown(pattern)} matches no file"
                if any(matches(pattern, name) for name in own):
                    text += " but the rule's own output"
                hint = "correct it, or remove it"
                if not _WILDCARDS & set(pattern):
                    hint = self.workspace.beside(root / pattern) or hint
                parsed.out.add("config-rule-input", here, text, hint)

    def _implied(self, rule: RuleConfig) -> list[str]:
        """Return the names of the other rules whose outputs this rule uses. The rule uses an output
        if one of its ``inputs`` matches the output, or if a word of its command is the output's
        path. The words of a shell command are not examined."""
        words = () if rule.shell else rule.command
        named = {os.path.normpath(word) for word in words if word}
        return [
            producer
            for made, producer in self.producers.items()
            if producer != rule.name
            and (made in named or any(matches(pattern, made) for pattern in rule.inputs))
        ]

    def _ordered(self) -> list[str]:
        try:
            needs = {name: parsed.rule.needs for name, parsed in self.rules.items()}
            return [*TopologicalSorter(needs).static_order()]
        except CycleError as error:
            names = error.args[1][::-1]
            self._circle(names, self.rules[names[-2]])
            return list(self.rules)

    @staticmethod
    def _circle(names: list[str], last: _Parsed) -> None:
        if len(names) > MAX_SHOWN:
            names = [*names[: MAX_SHOWN // 2], "…", *names[-MAX_SHOWN // 2 :]]
        text = f"rules need each other in a circle: {' → '.join(names)}"
        place = (*last.where, "needs") if last.wanted else last.where
        last.out.add("config-rule-cycle", place, text, "remove one of them from `needs`")


def _any_file(root: Path, pattern: str, own: Collection[str]) -> bool:
    if not _WILDCARDS & set(pattern):
        return (root / pattern).is_file()
    try:
        return any(
            path.is_file()
            and path.relative_to(root).parts[0] not in OWN_FOLDERS
            and path.relative_to(root).as_posix() not in own
            for path in root.glob(pattern)
        )
    except (OSError, ValueError, NotImplementedError):  # errors of pathlib for an unusual pattern
        return False


def _at(rule: RuleConfig) -> str:
    return f"line {rule.line} of {rule.file}"


# Report globs and paths that match nothing, since misspelt ones would weaken the sandbox.

# ruff: noqa: PTH110, PTH112, PTH113 - pathlib's functions raise OSError for long names


SLUG = "config-no-match"


class ExpectedFiles(Struct):
    """Looks up the files that a configuration expects, and records where it looked."""

    # The workspace.
    root: Path
    # True if this is a copy of the workspace that may lack files. All problems are then
    # warnings.
    mild: bool = False
    # Globs of the files that the configuration includes, and of the files whose names give
    # templates their values. Files and folders that match these globs may be created later.
    listings: tuple[str, ...] = ()
    # Files that rules and builds will make.
    made: frozenset[Path] = frozenset()
    # Files of the ops' programs.
    programs: set[Path] = set()
    # Paths whose appearance or disappearance may change the problems.
    looked_at: set[Path] = set()
    # Patterns that match nothing yet. As soon as one matches, a warning or error of
    # `check_apart` may be obsolete. Each pattern ends with a slash, so that it matches files
    # and folders.
    awaited: set[str] = set()
    _found: dict[str, bool] = {}

    def warn_of_none(self, pattern: str, where: KeyPath, out: Reporter) -> None:
        """Warn of a glob of ``depends``, ``shared`` or ``build.inputs`` that matches no file."""
        if pattern not in self._found:
            base = self._base(pattern)
            self._found[pattern] = any(
                isfile(path) and path.relative_to(base).parts[0] not in OWN_FOLDERS
                for path in self._matched(pattern)
            )
        if self._found[pattern] or self._comes(pattern):
            return
        folder = self._base(pattern) / pattern
        hint = self._nearest(pattern)
        if not _WILDCARDS & {*pattern} and isdir(folder):
            hint = f"it is a folder: write {f'{pattern}/**/*'!r}"
        text = f"{dotted(where)}: {shown(pattern)} matches no file"
        out.add(SLUG, where, text, hint, warning=True)

    def tell_of_none(self, pattern: str, where: KeyPath, out: Reporter) -> None:
        """Report a glob of ``include`` that matches no file. If a part of the glob seems
        misspelt, an error is reported, else a warning. Nothing is reported if the folder exists
        and is empty."""
        plain = takewhile(lambda part: not _WILDCARDS & {*part}, PurePosixPath(pattern).parts)
        folder = self._base(pattern).joinpath(*plain)
        if isdir(folder) and all(name.startswith(".") for name in _names(folder)):
            return
        hint = self._nearest(pattern)
        text = f"{dotted(where)} = {shown(pattern)} matches no file"
        out.add(SLUG, where, text, hint or "correct it, or remove it", warning=not hint)

    def check_apart(
        self, pattern: str, where: KeyPath, out: Reporter, *, mild: bool = False
    ) -> None:
        """Report a glob of ``apart`` that matches nothing, which is probably a mistake; only warn
        if its folder is there and holds no program, since files may come."""
        first = next(self._matched(pattern), None)
        if first is not None:
            self.looked_at.add(first)
        if first is not None or self._comes(pattern):
            return
        self.awaited.add(f"{pattern}/")
        plain = takewhile(lambda part: not _WILDCARDS & {*part}, PurePosixPath(pattern).parts)
        folder = self._base(pattern).joinpath(*plain)
        found = any(path.is_relative_to(folder) for path in self.programs)
        may_come = _WILDCARDS & {*pattern} and isdir(folder) and not found
        text = f"{dotted(where)}: {shown(pattern)} matches nothing, so that nothing is kept apart"
        hint = self._nearest(pattern) or "correct it, or make the folder"
        out.add(SLUG, where, text, hint, warning=mild or self.mild or bool(may_come))

    def check_hidden(
        self,
        paths: Iterable[tuple[str, Path]],
        writable: Iterable[Path],
        out: Reporter,
        *,
        mild: bool = False,
    ) -> None:
        """Report paths of ``hidden`` that do not exist; only warn if their folders outside of the
        workspace do not exist either, since these may be folders of another machine."""
        where = ("sandbox", "hidden")
        later = (self.root / ".gpuemu-cache", *writable)
        for written, path in paths:
            self.looked_at.add(path)
            made = any(each.is_relative_to(path) for each in self.made)
            if exists(path) or made or any(path.is_relative_to(folder) for folder in later):
                continue
            elsewhere = not (path.is_relative_to(self.root) or exists(path.parent))
            hint = "these are paths, not globs: name the folder"
            if not _WILDCARDS & {*written}:
                hint = self._nearest(str(path)) or "correct it, or remove it"
            text = f"{dotted(where)}: {shown(written)} does not exist, so that nothing is hidden"
            out.add(SLUG, where, text, hint, warning=mild or self.mild or elsewhere)

    def _base(self, pattern: str) -> Path:
        return Path("/") if pattern.startswith("/") else self.root

    def _matched(self, pattern: str) -> Iterator[Path]:
        if not pattern.strip("/"):
            yield self._base(pattern)
            return
        try:
            yield from self._base(pattern).glob(pattern.strip("/"))
        except (OSError, ValueError, NotImplementedError):  # errors of pathlib for odd patterns
            return

    def _comes(self, pattern: str) -> bool:
        """Tell whether a glob matches files or folders that will be made later."""
        later = [os.path.relpath(path, self.root) for path in self.made]
        later += [listing.rstrip("/") for listing in self.listings]
        return any(
            matches(pattern, str(part))
            for name in later
            for part in (PurePosixPath(name), *PurePosixPath(name).parents)
        )

    def _nearest(self, pattern: str) -> str:
        """Return a hint for a glob of which a part may be misspelt; empty if there is none. The
        first part that does not exist is compared with the names in its folder, and the hint gives
        the most similar name. Parts from the first wildcard on are not compared."""
        path = self._base(pattern)
        for part in PurePosixPath(pattern.strip("/")).parts:
            if _WILDCARDS & {*part}:
                return ""
            if not exists(path / part):
                return self._nearest_in([path], part)
            path /= part
        return ""

    def _nearest_in(self, folders: Iterable[Path], name: str) -> str:
        out = Reporter("")
        names = {name: None for folder in folders for name in _names(folder)}
        return out.nearest(name, tuple(names))


def _names(folder: Path, most: int = 2000) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(most), strict=False)]
    except OSError:
        return []
