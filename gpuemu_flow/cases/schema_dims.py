"""Dims of a schema that follow from other dims: expressions, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuemu_flow.cases.op_schema import DerivedDim, Dim, OpSchema
from gpuemu_flow.cases.schema_rules import KeyPath, Report
from gpuemu_flow.cases.sizes_allowed import allowed_sizes
from gpuemu_flow.errors import did_you_mean
from gpuemu_flow.expressions import OPERATORS, ExpressionError, names_in
from gpuemu_flow.value_rules import ValueRule


def is_expression(text: str) -> bool:
    """Tell whether an axis is an expression rather than a name."""
    return not OPERATORS.isdisjoint(text)


class Expressions:
    """Collects the dims of one schema that are expressions."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.found: dict[str, tuple[KeyPath, str]] = {}

    def add(self, path: KeyPath, name: str, text: str) -> None:
        """Add an expression, or report that the text is no expression."""
        try:
            names_in(text)
        except ExpressionError as error:
            hint = 'such as "2*D", "(H-1)//2+1", "cdiv(N, 16)"'
            self._report(path, "schema-expression", f"{name!r}: {error}", hint)
            text = "1"  # one mistake, one message
        self.found.setdefault(name, (path, text))

    def ordered(self, dims: Mapping[str, Dim]) -> tuple[DerivedDim, ...]:
        """Return the derived dims, each after the dims that it needs; report cycles."""
        done: dict[str, DerivedDim] = {}
        rest = dict(self.found)
        while rest:
            ready = [
                name
                for name, (_, text) in rest.items()
                if all(used in dims or used in done for used in names_in(text))
            ]
            for name in ready:
                done[name] = DerivedDim(name, rest.pop(name)[1])
            if not ready:
                break
        for path, text in rest.values():
            for used in sorted(names_in(text) - set(dims) - set(done)):
                if used in rest:
                    message = f"{text!r} needs {used!r}, which needs it: there is no end to it"
                    self._report(path, "schema-expression", message, "give one of them sizes")
                else:
                    hint = did_you_mean(used, tuple(dims)) or "add it to dims"
                    message = f"{text!r} has an unknown dim {used!r}"
                    self._report(path, "schema-unknown-dim", message, hint)
        return tuple(done.values())


def used_names(texts: Iterable[object], derived: Iterable[DerivedDim]) -> set[str]:
    """Return the names that expressions use, also indirectly through the derived dims they name."""
    found: set[str] = set()
    behind = {dim.name: dim.expression for dim in derived}
    todo = [text for text in texts if isinstance(text, str)]
    while todo:
        text = todo.pop()
        names = {text} if text in behind else _names(text)
        for name in names - found:
            found.add(name)
            if name in behind:
                todo += sorted(_names(behind[name]))
    return found


def _names(text: str) -> frozenset[str]:
    try:
        return names_in(text)
    except ExpressionError:
        return frozenset((text,))  # a name that expressions cannot have


def rule_texts(rule: ValueRule | None) -> list[object]:
    """List the expressions of a rule."""
    return [] if rule is None else [rule.low, rule.high, rule.to, rule.total]


def demand_sizes(schema: OpSchema, report: Report) -> bool:
    """Tell whether sizes that satisfy the schema were found; report an error if not."""
    if not (schema.derived or schema.limits) or allowed_sizes(schema) is not None:
        return True
    said = [
        dim.expression if dim.name == dim.expression else f"{dim.name} = {dim.expression}"
        for dim in schema.derived
    ]
    said += [f"{left} {sign} {right}" for left, sign, right in schema.limits]
    message = f"no sizes of the dims were found that allow {', '.join(said[:4])}"
    key = "constraints" if schema.limits else "dims"
    hint = "widen the dims, or fix the expressions: none may be negative or divide by 0"
    report((key,), "schema-unsatisfiable", message, hint)
    return False
