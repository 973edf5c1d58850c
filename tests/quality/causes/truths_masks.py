"""True causes of the planted masks that are off by one and of the planted lost edges."""

from __future__ import annotations

from truths import Planted, Relation, Truth, ragged


def masked(bug: str, op: str, *truths: Truth) -> Planted:
    """One of the bugs of `mask_bugs.py`."""
    return Planted(bug, op, truths, module="mask_bugs")


MASKED = (
    masked("softmax_last_column", "softmax", Relation(("short",), ("N", "last"))),
    masked("softmax_last_row", "softmax", Relation(("unwritten",), ("last", "axis 0"))),
    masked("layernorm_last_as_zero", "layernorm", Relation(("masked",), ("N", "last"))),
    masked("mean_one_short", "mean", Relation(("masked",), ("N", "last"))),
    masked("logsumexp_one_short", "logsumexp", Relation(("cut",), ("N", "last"))),
    masked("logsumexp_from_one", "logsumexp", Relation(("short",), ("N", "first"))),
    masked("axpy_one_short", "axpy", Relation(("unwritten",), ("last", "memory"))),
    masked("gelu_last_column", "gelu", Relation(("unwritten",), ("last", "axis 1"))),
    masked("mean_one_more", "mean", Relation(("overread",), ("N",))),
    masked("cumsum_tile_edge", "cumsum", Relation(("unwritten-tiles",), ("edge", "32", "axis 1"))),
    masked("matmul_tile_edge", "matmul", Relation(("tile-edge",), ("K", "16", "left out"))),
    masked("attention_one_key_less", "attention", Relation(("cut",), ("T", "last"))),
    masked("causal_attention_strict", "causal_attention", Relation(("mask-shift",), ("S",))),
    masked(
        "bias_relu_tail",
        "bias_relu",
        Relation(("unwritten-tiles",), ("tail", "16", "axis 1")),
        ragged("N", 16),
    ),
    masked("conv1d_last", "conv1d", Relation(("unwritten",), ("last", "axis 0"))),
    masked(
        "mean_tail_tile", "mean", Relation(("masked-tiles",), ("N", "whole", "32")), ragged("N", 32)
    ),
    masked("matvec_last_stale", "matvec", Relation(("place",), ("last", "axis 0"))),
    masked(
        "softmax_eight_of_each", "softmax", Relation(("unwritten-tiles",), ("edge", "8", "axis 1"))
    ),
)
