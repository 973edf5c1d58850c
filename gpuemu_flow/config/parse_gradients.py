"""Parse ``gradients`` of an op: the inputs with respect to which gradients are compared."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from gpuemu_flow.cases.grouped import LIST, ArgumentGroup
from gpuemu_flow.cases.op_schema import OpSchema, TensorDef
from gpuemu_flow.config.model_ops import ProgramRef
from gpuemu_flow.config.positions import KeyPath
from gpuemu_flow.config.programs import is_module
from gpuemu_flow.config.report import Reporter, dotted, shown
from gpuemu_flow.numerics.contract import (
    GRADIENT_PREFIX,
    PARAMETERS,
    OutputContract,
    names_parameter,
)
from gpuemu_flow.types import DTYPES, Json
from gpuemu_flow.value_rules import SCALAR

KINDS = ("torch", "jax")
"""Kinds of programs whose framework can differentiate them."""
OP_KINDS = (*KINDS, "triton")
_HINT = (
    '{ kind = "torch", file = "x.py", function = "f" }, or "jax"; `framework = "pytorch"` of the '
    "op makes plain functions so"
)


class GradientsParser(Struct, frozen=True):
    """Parses ``gradients`` of one op.

    Attributes
    ----------
    out : Reporter
    where : KeyPath
        The path of the op's table.
    schema : OpSchema
    groups : mapping of str to ArgumentGroup
    """

    out: Reporter
    where: KeyPath
    schema: OpSchema
    groups: Mapping[str, ArgumentGroup]

    def parse(
        self,
        wanted: Json,
        op: ProgramRef | None,
        reference: ProgramRef,
        outputs: tuple[OutputContract, ...],
    ) -> tuple[str, ...]:
        """Return the inputs with respect to which gradients are wanted; empty if none are.

        `wanted` is the configured value: True for all possible inputs, or a list of names. An
        error is reported to `out` if a name is wrong, or if gradients are impossible with the
        programs `op` and `reference` or with the `outputs`.
        """
        if not wanted:
            return ()
        self._check_programs(op, reference)
        self._check_outputs(outputs)
        known = self._differentiable()
        if is_module(op) and is_module(reference):
            known.setdefault(PARAMETERS, (PARAMETERS,))
            named = [] if wanted is True else wanted
            known |= {name: (name,) for name in named if names_parameter(name)}
        if wanted is True:
            if not known:
                self._impossible(
                    "needs an input of a float dtype", "name one in `schema`, or remove it"
                )
            return tuple(dict.fromkeys(member for names in known.values() for member in names))
        for name in wanted:
            if name not in known:
                hint = self.out.nearest(name, list(known), or_all=True)
                text = f"gradients names {shown(name)}, which is no input of floats"
                if names_parameter(name):
                    text += "; parameters need an op and a reference that are modules of PyTorch"
                self.out.add("config-value", (*self.where, "gradients"), text, hint)
        return tuple(dict.fromkeys(m for name in wanted for m in known.get(name, ())))

    def _impossible(self, text: str, hint: str) -> None:
        place = (*self.where, "gradients")
        self.out.add("config-no-gradient", place, f"{dotted(place)} {text}", hint)

    def _check_programs(self, op: ProgramRef | None, reference: ProgramRef) -> None:
        for what, ref, kinds in (("op", op, OP_KINDS), ("reference", reference, KINDS)):
            if ref is not None and ref.kind not in kinds:
                kind = f"kind {ref.kind}, which nothing differentiates"
                self._impossible(f"needs another {what}: {shown(ref.text)} is of {kind}", _HINT)

    def _check_outputs(self, outputs: tuple[OutputContract, ...]) -> None:
        place = (*self.where, "gradients")
        for tensor in self.schema.outputs:
            if tensor.name.startswith(GRADIENT_PREFIX):
                text = (
                    f"gradients are outputs such as {GRADIENT_PREFIX}x; {shown(tensor.name)} is one"
                )
                self.out.add("config-conflict", place, text, "rename that output")
        left_out = {contract.name for contract in outputs if not contract.in_place}
        if self.schema.outputs and all(tensor.name in left_out for tensor in self.schema.outputs):
            text = "needs an output that is compared element by element with the reference's"
            self._impossible(text, "remove `gradients`")

    def _differentiable(self) -> dict[str, tuple[str, ...]]:
        """Map each argument made of floats to the names that the runner uses for its tensors.

        A list has one name for each member. Any other argument has only its own name.
        """
        tensors = {tensor.name: tensor for tensor in self.schema.inputs}
        found: dict[str, tuple[str, ...]] = {}
        inside = {member for group in self.groups.values() for member in group.members}
        for name, group in self.groups.items():
            if group.kind != LIST:
                found[name] = (name,)
            elif all(_is_float(tensors[member]) for member in group.members if member in tensors):
                found[name] = group.members
        for name, tensor in tensors.items():
            if name not in inside and _is_float(tensor):
                found[name] = (name,)
        return found


def _is_float(tensor: TensorDef) -> bool:
    if tensor.rule is not None and tensor.rule.kind == SCALAR:
        return False
    return tensor.dtype is None or DTYPES[tensor.dtype].kind == "float"
