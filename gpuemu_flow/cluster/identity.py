"""Compare the facts on which two machines must agree to use each other's verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuemu_flow.engine.workspace import Workspace
from gpuemu_flow.fuzz.subjects import OpSubject, tasks_of
from gpuemu_flow.fuzz.verdict_cache import verdict_key
from gpuemu_flow.store.keys import digest_json


def facts(workspace: Workspace, op: str, subjects: Iterable[OpSubject]) -> dict[str, str]:
    """Return, by name, the facts that decide an op's verdicts and are known before it runs.

    The last entries are the action keys, which also cover facts that have no entry here.
    """
    states = workspace.states()
    sandbox = workspace.snapshot.basis.sandbox
    found = {"the sandbox": str(sandbox)}
    keys = {}
    for subject in subjects:
        dtype = subject.subject.dtype
        tasks = tasks_of(workspace.graph, op, dtype)
        for spec in (tasks.generate, tasks.op, tasks.reference, tasks.compare):
            parts = states.static_parts(spec)
            found["the code of gpuemu-flow"] = spec.version
            found |= {f"file {path}": digest for path, digest in parts.code.items()}
            found |= dict(parts.env)
            found[f"the configuration of {spec.name}"] = digest_json(parts.params)
        keys[f"the key of {op} in {dtype}"] = verdict_key(subject)
    return {**found, **keys}


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return the names of the facts that differ.

    Action keys are facts, too, but they differ whenever any other fact does. So their names are
    returned only if nothing else differs.
    """
    names = [name for name in {**other, **own} if own.get(name) != other.get(name)]
    keys = [name for name in names if name.startswith("the key of ")]
    return [name for name in names if name not in keys] or keys
