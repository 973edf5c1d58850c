"""The true cause of each bug of `element_bugs.py`, written before any was looked at.

The first eight are of the kind that a stranger planted; the values and indices are exact, so that a
statement has to name the threshold, too.
"""

from __future__ import annotations

from typing import Any

from truths import Dim, Dims, Dtype, Element, Layout, Place, Planted, Relation, Truth, Value, above


def element(bug: str, op: str, *truths: Truth, **more: Any) -> Planted:
    """One of the bugs of `element_bugs.py`."""
    return Planted(bug, op, truths, module="element_bugs", **more)


HALF = ("float32", "float16")

ELEMENTS = (
    element("scale_clamped", "scale", Element(("x",), ("magnitude_above",), 1000)),
    element("silu_clamped_above", "silu3", Element(("x",), ("above",), 100)),
    element("gelu_identity_from_three", "gelu", Element(("x",), ("above",), 3)),
    element("swiglu_open_gate", "swiglu", Element(("g",), ("above",), 5)),
    element("bias_relu_bias_clamped", "bias_relu", Element(("b",), ("magnitude_above",), 4)),
    element("axpy_flushed", "axpy", Element(("x",), ("magnitude_below",), 0.01)),
    element("gelu_zero", "gelu", Element(("x",), ("equal",), 0), Value(("x",), ("zeros",))),
    element("threshold_inclusive", "threshold", Element(("x",), ("equal",), 2)),
    element(
        "floor_eighth_truncated",
        "floor_eighth",
        Element(("x",), ("below",), 0),
        Value(("x",), ("negative",)),
    ),
    element("log_softmax_clamped", "log_softmax", Element(("x",), ("above",), 80)),
    element("cross_entropy_ignores_zero", "cross_entropy", Element(("labels",), ("equal",), 0)),
    element(
        "gather_wraps",
        "gather",
        Element(("rows",), ("above", "magnitude_above"), 16),
    ),
    element("gather_pairs", "gather", Element(("rows",), ("odd",))),
    element("scale_finite", "scale", Element(("x",), ("infinite",)), Value(("x",), ("inf",))),
    element("conv1d_negative_input", "conv1d", Element(("x",), ("below",), -8)),
    element(
        "rmsnorm_weight_sign",
        "rmsnorm",
        Element(("w",), ("below",), 0),
        Value(("w",), ("negative",)),
        Relation(("magnitude-input",), ("w",)),
    ),
    element(
        "leaky_wrong_slope",
        "leaky",
        Element(("x",), ("below",), 0),
        Value(("x",), ("negative",)),
    ),
    element("rowmax_from_low", "rowmax", Element(("x",), ("row_top_below",), -50)),
    element(
        "argmax_tie_after_first_tile",
        "argmax",
        together=(above("N", 64), Value(("x",), ("ties", "zeros", "constant"))),
    ),
    element("silu_first_512", "silu3", Place("flat", "from", (512,))),
    element("axpy_first_1024", "axpy", Place("flat", "from", (1024,))),
    element(
        "scale_whole_blocks",
        "scale",
        Place("flat", "tail", (128,)),
        Place("axis 0", "tail", (128,)),
    ),
    element("silu_partial_block", "silu3", Place("flat", "tail", (256,))),
    element("transpose_first_columns", "transpose", above("M", 64), Place("axis 1", "from", (64,))),
    element(
        "softmax_second_block",
        "softmax",
        above("N", 128),
        Place("axis 1", "range", (128, 256)),
    ),
    element("bias_relu_later_rows", "bias_relu", above("M", 24), Place("axis 0", "from", (24,))),
    element("axpy_odd", "axpy", Place("flat", "residue", (2, 1))),
    element("silu_fourth_lane", "silu3", Place("flat", "residue", (4, 3))),
    element(
        "matmul_far_tile",
        "matmul",
        Place("both", "from", (32, 32)),
        together=(above("M", 32), above("N", 32)),
    ),
    element(
        "matmul_second_rows",
        "matmul",
        above("M", 16),
        Place("axis 0", "range", (16, 32)),
    ),
    element("bmm_later_batches", "bmm", above("B", 2), Place("axis 0", "from", (2,))),
    element("scale_first_element", "scale", Relation(("unwritten",), ("first", "N"))),
    element(
        "mean_odd_rows",
        "mean",
        above("M", 1),
        Place("axis 0", "residue", (2, 1)),
        Place("flat", "residue", (2, 1)),
    ),
    element(
        "variance_later_rows",
        "variance",
        above("M", 64),
        Place("axis 0", "from", (64,)),
        Place("flat", "from", (64,)),
    ),
    element("cumsum_from_100", "cumsum", above("N", 100), Place("axis 1", "from", (100,))),
    element("l2norm_even_width", "l2norm", Dim("N", lambda n: n % 2 == 0)),
    element("silu_wide_inner", "silu3", above("C", 96), Place("axis 2", "from", (96,))),
    element("transpose_reshaped", "transpose", Relation(("reshaped",))),
    element("bmm_transposed", "bmm", Dims("K", "N")),
    element("silu_strides", "silu3", Layout("x")),
    element("cumsum_other_axis", "cumsum", Relation(("wrong-axis",), ("0",))),
    element("rmsnorm_half_sum", "rmsnorm", Dtype("float16"), dtypes=HALF),
    element("scale_half", "scale", Relation(("factor",), ("0.967",)), dtypes=HALF),
)
"""In the order of `element_bugs.py`. Of these 43 bugs 29 had a stated cause, and 20 of the causes
were right, before the search looked at elements."""

BLIND = (
    element("silu_middle_axis", "silu3", above("R", 8), Place("axis 1", "from", (8,))),
    element("axpy_low_y", "axpy", Element(("y",), ("below",), -20)),
    element("scale_whole_512", "scale", Place("flat", "tail", (512,))),
    element("leaky_dead_zone", "leaky", Element(("x",), ("magnitude_below",), 0.05)),
    element("floor_eighth_saturates", "floor_eighth", Element(("x",), ("above",), 408)),
    element("threshold_even_rows", "threshold", Place("axis 0", "residue", (2, 0))),
    element("bmm_later_rows", "bmm", above("M", 24), Place("axis 1", "from", (24,))),
    element("rowmax_saturates", "rowmax", Element(("x",), ("row_top_above", "above"), 60)),
    element("cross_entropy_small_labels", "cross_entropy", Element(("labels",), ("above",), 10)),
    element(
        "transpose_far_corner",
        "transpose",
        Place("both", "from", (64, 64)),
        together=(above("M", 64), above("N", 64)),
    ),
    element("cumsum_every_third", "cumsum", Place("axis 1", "residue", (3, 2))),
    element("swiglu_x_clamped", "swiglu", Element(("x",), ("magnitude_above",), 30)),
    element("l2norm_first_rows", "l2norm", above("M", 32), Place("axis 0", "from", (32,))),
    element("gelu_second_block", "gelu", Place("flat", "range", (512, 1024))),
)
"""Written after the search was mended, and held against it once."""
