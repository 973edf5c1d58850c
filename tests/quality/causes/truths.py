"""True cause of each planted bug, written down before any diagnosed cause was looked at.

What relations of masks (`relations_masks`) say of four bugs was added when these came to be; it is
what the bugs' own lines do.

A statement is right when it names one of the causes that a bug's truth allows: the same subject,
and for sizes the same set of them (at least nine tenths of those inside and of those outside).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Dim:
    """It fails exactly for these sizes of a dim."""

    name: str
    fails: Callable[[int], bool]


@dataclass(frozen=True)
class Dims:
    """It fails where two dims stand in this relation (``equal``, ``different``)."""

    first: str
    second: str
    relation: str = "equal"


@dataclass(frozen=True)
class Value:
    """It fails for what an input holds.

    Attributes
    ----------
    inputs : tuple of str
        Any of them may be named.
    holds : tuple of str
        Any of: ``large``, ``negative``, ``small``, ``nan``, ``inf``, ``ties``, ``zeros``,
        ``constant``, ``cancel``.
    strategies : tuple of str
        A statement on strategies is right when it names none but these, and ...
    needed : tuple of str
        ... all of these.
    """

    inputs: tuple[str, ...]
    holds: tuple[str, ...]
    strategies: tuple[str, ...] = ()
    needed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """It fails where an input is not contiguous."""

    name: str


@dataclass(frozen=True)
class Relation:
    """The outputs themselves stand in a relation to the reference.

    Attributes
    ----------
    kinds : tuple of str
        Any of them may be named.
    words : tuple of str
        All of these stand in the sentence.
    """

    kinds: tuple[str, ...]
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Element:
    """It fails at elements for which an input's value is so.

    Attributes
    ----------
    inputs : tuple of str
        Any of them may be named.
    kinds : tuple of str
        ``above``, ``below``, ``magnitude_above``, ``magnitude_below``, ``equal``, ``odd``,
        ``infinite``; any may be named.
    value : float
        The true threshold; one that is stated may be off by a fifth of it.
    """

    inputs: tuple[str, ...]
    kinds: tuple[str, ...]
    value: float = 0.0


@dataclass(frozen=True)
class Place:
    """It fails at elements whose index is so.

    Attributes
    ----------
    where : str
        ``flat`` (the index among all elements of the output), or ``axis 1``.
    kind : str
        ``from``, ``first``, ``residue``, ``range``, ``tail`` (the last, partial tile).
    numbers : tuple of int
        The index; modulus and remainder; first and end of a range; size of a tile.
    """

    where: str
    kind: str
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Dtype:
    """It fails in this dtype only."""

    name: str


Truth = Dim | Dims | Value | Layout | Relation | Element | Place | Dtype


@dataclass(frozen=True)
class Planted:
    """One bug: a function of `bugs.py`, its op, and what may be said of it."""

    bug: str
    op: str
    truths: tuple[Truth, ...]
    together: tuple[Truth, ...] = field(default=())
    """All of these have to be named where a condition is (a bug that needs two things)."""
    module: str = "bugs"
    """The script that it is in."""
    dtypes: tuple[str, ...] = ("float32",)
    """The dtypes that the op is run in."""


LARGE = ("wide", "offset", "extremes", "negative", "special")


def ragged(name: str, tile: int) -> Dim:
    """Fails where a dim is not a multiple of a tile."""
    return Dim(name, lambda n: n % tile != 0)


def above(name: str, most: int) -> Dim:
    """Fails where a dim is above a size."""
    return Dim(name, lambda n: n > most)


def large(*names: str) -> Value:
    """Fails for values too large for an exponential."""
    return Value(names, ("large", "negative"), LARGE, ("wide",))


PLANTED = (
    Planted("softmax_no_max", "softmax", (large("x"),)),
    Planted("softmax_zero_padding", "softmax", (ragged("N", 32), Relation(("padded",)))),
    Planted("softmax_pairs", "softmax", (Dim("N", lambda n: n % 2 == 1),)),
    Planted("log_softmax_of_softmax", "log_softmax", (large("x"),)),
    Planted("log_softmax_base_two", "log_softmax", (Relation(("factor",), ("log2",)),)),
    Planted("logsumexp_first_tile", "logsumexp", (above("N", 64), Relation(("cut",), ("64",)))),
    Planted("logsumexp_without_max", "logsumexp", (Relation(("row-term",), ("max",)),)),
    Planted(
        "layernorm_eps_outside",
        "layernorm",
        (
            Relation(("eps",), ("outside",)),
            Value(
                ("x",),
                ("small", "constant", "cancel"),
                ("small", "offset", "sparse", "extremes", "ties"),
                ("small",),
            ),
        ),
    ),
    Planted(
        "layernorm_unbiased",
        "layernorm",
        (Relation(("row-factor", "factor", "eps"), ("1",)), Relation(("row-stat",), ("n-1",))),
    ),
    Planted("layernorm_no_bias", "layernorm", (Relation(("ignored",), ("b",)),)),
    Planted(
        "layernorm_one_pass",
        "layernorm",
        (
            Value(
                ("x",),
                ("cancel", "constant", "large"),
                ("offset", "wide", "extremes", "negative"),
                ("offset",),
            ),
        ),
    ),
    Planted("rmsnorm_no_weight", "rmsnorm", (Relation(("ignored",), ("w",)),)),
    Planted("rmsnorm_sum", "rmsnorm", (Relation(("factor",), ("1/√N",)),)),
    Planted(
        "rmsnorm_no_eps",
        "rmsnorm",
        (
            Relation(("eps",), ("no eps",)),
            Value(("x",), ("small", "zeros"), ("small", "sparse", "ties", "extremes"), ()),
        ),
    ),
    Planted(
        "l2norm_overflow",
        "l2norm",
        (Value(("x",), ("large", "small"), ("extremes",), ("extremes",)),),
    ),
    Planted("l2norm_no_root", "l2norm", (Relation(("row-term", "row-stat"), ("norm",)),)),
    Planted("matmul_k_tail", "matmul", (ragged("K", 16), Relation(("cut",), ("16", "K")))),
    Planted(
        "matmul_square_transposed", "matmul", (Dims("K", "N"), Relation(("swapped-input",), ("b",)))
    ),
    Planted("matmul_half", "matmul", (Relation(("half", "narrower", "rounding", "accumulated")),)),
    Planted("matmul_strides", "matmul", (Layout("a"),)),
    Planted(
        "matvec_stale",
        "matvec",
        (Dim("M", lambda n: n % 2 == 1 and n > 1), Dim("M", lambda n: n % 2 == 1)),
    ),
    Planted("matvec_rows", "matvec", (above("M", 128),)),
    Planted("linear_bias_shifted", "linear", (Relation(("rolled",), ("bias",)),)),
    Planted("linear_relu", "linear", (Relation(("clamped",), ("0",)),)),
    Planted("attention_no_scale", "attention", (Relation(("scaled-input",), ("√D",)),)),
    Planted("attention_no_max", "attention", (large("q", "k"),)),
    Planted("attention_key_tail", "attention", (ragged("T", 4), Relation(("cut",), ("T", "4")))),
    Planted("attention_scale_d", "attention", (Relation(("scaled-input",), ("1/√D",)),)),
    Planted(
        "causal_attention_mask_late",
        "causal_attention",
        (Relation(("mask", "mask-shift"), ("S",)), Dim("S", lambda n: n > 1)),
    ),
    Planted(
        "causal_attention_small_mask", "causal_attention", (large("q", "k"), Relation(("mask",)))
    ),
    Planted("causal_attention_second_tile", "causal_attention", (above("S", 32), above("S", 33))),
    Planted("cumsum_no_carry", "cumsum", (above("N", 32),)),
    Planted("cumsum_exclusive", "cumsum", (Relation(("shifted",), ("1",)),)),
    Planted(
        "argmax_last",
        "argmax",
        (
            Value(
                ("x",),
                ("ties", "zeros", "constant"),
                ("ties", "integers", "sparse", "special", "extremes"),
                ("ties",),
            ),
        ),
    ),
    Planted("argmax_nan_ignored", "argmax", (Value(("x",), ("nan",), ("special",), ("special",)),)),
    Planted(
        "argmax_from_zero",
        "argmax",
        (Value(("x",), ("negative",), ("negative", "special", "sparse", "offset"), ("negative",)),),
    ),
    Planted(
        "transpose_edge_rows",
        "transpose",
        (ragged("M", 8), Relation(("unwritten-tiles",), ("tail", "8", "axis 1"))),
    ),
    Planted("transpose_square", "transpose", (Dims("M", "N"), Relation(("transposed",)))),
    Planted("gelu_tanh", "gelu", (Value(("x",), ("mid",)),)),
    Planted("gelu_low", "gelu", (Value(("x",), ("negative", "large"), LARGE, ("wide",)),)),
    Planted("swiglu_swapped", "swiglu", (Relation(("swapped-inputs",), ("x", "g")),)),
    Planted("swiglu_overflow", "swiglu", (large("g"),)),
    Planted("cross_entropy_negative_labels", "cross_entropy", (Value(("labels",), ("negative",)),)),
    Planted("cross_entropy_no_max", "cross_entropy", (large("logits"),)),
    Planted(
        "gather_off_by_one",
        "gather",
        (Relation(("rolled", "shifted"), ("1",)), Relation(("off-by-one",), ("rows",))),
    ),
    Planted(
        "gather_vectors_of_four",
        "gather",
        (ragged("D", 4), Relation(("unwritten-tiles",), ("tail", "4", "axis 1"))),
    ),
    Planted("axpy_strides", "axpy", (Layout("y"),)),
    Planted("axpy_grid", "axpy", (above("N", 256),)),
    Planted("variance_unbiased", "variance", (Relation(("factor",), ("N/(N-1)",)),)),
    Planted("variance_root", "variance", (Relation(("power",), ("root",)),)),
    Planted("mean_padded", "mean", (ragged("N", 32), Relation(("factor",), ("32",)))),
    Planted(
        "mean_block", "mean", (above("N", 256), Relation(("masked-tiles",), ("N", "first 256")))
    ),
    Planted("rowmax_nan_lost", "rowmax", (Value(("x",), ("nan",), ("special",), ("special",)),)),
    Planted(
        "rowmax_zero_padding",
        "rowmax",
        (Relation(("padded",), ("32",)),),
        together=(
            ragged("N", 32),
            Value(
                ("x",), ("negative",), ("negative", "offset", "sparse", "special"), ("negative",)
            ),
        ),
    ),
    Planted("conv1d_flipped", "conv1d", (Relation(("reversed-input",), ("w",)),)),
    Planted("conv1d_no_halo", "conv1d", (above("N", 64), above("N", 65))),
    Planted("rope_sign", "rope", (Relation(("scaled-input",), ("sin", "-1")),)),
    Planted("rope_first_position", "rope", (Relation(("repeated-input",), ("sin",)),)),
    Planted("bias_relu_late", "bias_relu", (Value(("x", "b"), ("negative",), ("normal",)),)),
    Planted("bias_relu_wrapped", "bias_relu", (above("N", 64),)),
    Planted("gelu_scaled", "gelu", (Relation(("factor",), ("1.001",)),)),
    Planted("rowmax_first_rows", "rowmax", (above("M", 16), Relation(("repeated",), ("16",)))),
    Planted("mean_wrong_axis", "mean", (Dims("M", "N"),)),
    Planted("softmax_wrong_axis", "softmax", (Relation(("wrong-axis",)),)),
    Planted("rmsnorm_half", "rmsnorm", (Relation(("rounded-input", "half"), ("float16",)),)),
)
"""In the order of `bugs.py`; every third is held out: no code was changed after a look at it."""
