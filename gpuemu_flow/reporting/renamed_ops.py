"""Find ops and kernels that were renamed since a baseline was stored."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from gpuemu_flow.config.model_ops import OpConfig, ProgramRef
from gpuemu_flow.store.keys import digest_json
from gpuemu_flow.types import Json

IDENTITY = "identity"
"""Key under which a stored summary has its op's identity; see `identity_of`."""


def identity_of(op: OpConfig) -> str:
    """Return a digest of an op's programs and input names; it is equal in every checkout."""
    return digest_json([_shown(op.op), _shown(op.reference), list(op.input_names)])


def _shown(program: ProgramRef | None) -> Json:
    if program is None:
        return None
    argv = list(program.portable_argv)
    place = program.relative, program.module, program.function, program.kernel
    return [program.kind, *place, argv]


def renamed_ops(
    before: Mapping[str, Mapping[str, Mapping[str, Json]]], now: Mapping[str, OpConfig]
) -> dict[str, str]:
    """Map the present names of renamed ops to their names in the baseline."""
    gone = {
        op: str(summary[IDENTITY])
        for op, dtypes in before.items()
        for summary in dtypes.values()
        if op not in now and IDENTITY in summary
    }
    return pairs(gone, {op: identity_of(now[op]) for op in now if op not in before})


def renamed_kernels(
    before: Mapping[str, list[Json]], now: Mapping[str, list[Json]]
) -> dict[str, str]:
    """Map the present names of renamed kernels to their names in the baseline.

    A kernel is recognised by the names and architectures of its entries.
    """

    def entries(kernels: Mapping[str, list[Json]], others: Mapping[str, object]) -> dict[str, str]:
        return {
            name: digest_json(sorted([entry["name"], entry["arch"]] for entry in found))
            for name, found in kernels.items()
            if name not in others and found
        }

    return pairs(entries(before, now), entries(now, before))


def pairs(gone: Mapping[str, Hashable], new: Mapping[str, Hashable]) -> dict[str, str]:
    """Map new names to former names with the same identity.

    Both arguments map names to identities. A name is left out if another name of the same argument
    has the same identity, too.
    """
    found = {}
    for name, what in new.items():
        former = [old for old, other in gone.items() if other == what]
        if len(former) == 1 and list(new.values()).count(what) == 1:
            found[name] = former[0]
    return found
