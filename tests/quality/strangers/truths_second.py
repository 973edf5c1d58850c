"""True causes of the second set, and what may truly be said of each, as patterns."""

from __future__ import annotations

from stranger import Bug

SCHEMAS = {
    "second.rows": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M", "N"]""",
    "second.row": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M"]""",
    "second.column": """
dims = { M = { min = 1, max = 100 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["N"]""",
    "second.groups": """
dims = { B = [1, 2, 5], C = [2, 4, 6], L = { min = 1, max = 60 } }
inputs = { x = ["B", "C", "L"], w = ["C"] }
output = ["B", "C", "L"]""",
    "second.table": """
dims = { V = { min = 2, max = 300 }, D = [8, 32], N = { min = 1, max = 100 } }
inputs.table = ["V", "D"]
inputs.index = { dims = ["N"], dtype = "int64", range = [0, "V-1"] }
output = ["N", "D"]""",
    "second.bmm": """
dims.B = [1, 2, 5]
dims.I = { min = 1, max = 40 }
dims.J = { min = 1, max = 40 }
dims.K = { min = 1, max = 40 }
inputs = { a = ["B", "I", "K"], b = ["B", "J", "K"] }
output = ["B", "I", "J"]""",
    "second.outer": """
dims = { M = { min = 1, max = 200 }, N = { min = 1, max = 100 } }
inputs = { a = ["M"], b = ["N"] }
output = ["M", "N"]""",
    "second.pairs": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "2*N"] }
output = ["M", "N"]""",
    "second.double": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "N"] }
output = ["M", "2*N"]""",
    "second.lengths": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs.x = ["M", "N"]
inputs.lengths = { dims = ["M"], dtype = "int64", range = [0, "N"] }
output = ["M", "N"]""",
    "second.quantized": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs.q = { dims = ["M", "N"], dtype = "int8", range = [-128, 127] }
inputs.scale = { dims = ["M"], kind = "positive" }
output = ["M", "N"]""",
    "second.bias": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "N"], b = ["N"] }
output = ["M", "N"]""",
    "second.two": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], y = ["M", "N"] }
output = ["M"]""",
    "second.turned": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "N"] }
output = ["N", "M"]""",
    "second.lerp": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], y = ["M", "N"], t = ["M"] }
output = ["M", "N"]""",
}

BUGS = (
    Bug(
        "second",
        "log_softmax_missing_max",
        "log_softmax",
        "second.rows",
        "no maximum is subtracted: rows with x from about 88 on (or all below -87)",
        (r"≥ [6-9]\d", r"log\(sum"),
    ),
    Bug(
        "second",
        "log_softmax_tail_in_sum",
        "log_softmax",
        "second.rows",
        (
            "the sum has one exp(0) for each padding column up to a multiple of 16, relative to"
            " the maximum"
        ),
        (r"N is not a multiple of 16", r"multiple of 16"),
    ),
    Bug(
        "second",
        "groupnorm_layer_statistics",
        "groupnorm",
        "second.groups",
        "mean and variance are over all channels, not over those of the group",
        (),
    ),
    Bug(
        "second",
        "groupnorm_no_weight",
        "groupnorm",
        "second.groups",
        "the weight w is left out",
        (r"w is left out",),
    ),
    Bug(
        "second",
        "silu_clamped_low",
        "silu",
        "second.rows",
        "x is clamped to -6 from below: elements with x < -6",
        (r"x ≤ -6(\.0\d*)? ",),
    ),
    Bug(
        "second",
        "softplus_threshold",
        "softplus",
        "second.rows",
        "elements with x > 4 are given unchanged",
        (r"x ≥ (4|3\.9\d*|4\.0\d*) are", r"x between (4|3\.9\d*|4\.0\d*) and"),
    ),
    Bug(
        "second",
        "elu_alpha",
        "elu",
        "second.rows",
        "negative elements are halved: alpha 0.5 instead of 1",
        (r"x (<|≤) (0|-\d\S*e-\d+) ",),
    ),
    Bug(
        "second",
        "hardtanh_zero_low",
        "hardtanh",
        "second.rows",
        "the lower bound is 0: negative elements give 0",
        (r"negative elements of expected are 0", r"x (<|≤) (0|-\d\S*e-\d+) "),
    ),
    Bug(
        "second",
        "embedding_last_row",
        "embedding",
        "second.table",
        "the index is clamped to V-2: the last row is never read",
        (r"index clamped to V-2",),
    ),
    Bug(
        "second",
        "embedding_padding_index",
        "embedding",
        "second.table",
        "index 0 gives zeros",
        (r"index = 0",),
    ),
    Bug(
        "second",
        "bmm_nt_transposed",
        "bmm_nt",
        "second.bmm",
        "the output's last two axes are in each other's order",
        (r"axes 0, 2, 1", r"axes 1 and 2 swapped"),
    ),
    Bug(
        "second",
        "bmm_nt_k_twice",
        "bmm_nt",
        "second.bmm",
        "the last term of the sum over K is counted twice",
        (),
    ),
    Bug(
        "second",
        "outer_grid_rows",
        "outer",
        "second.outer",
        "rows from 64 on are 0",
        (r"from index 64 on along axis 0", r"M is above 64"),
    ),
    Bug(
        "second",
        "row_mean_rounded_count",
        "row_mean",
        "second.row",
        "divided by N rounded up to 8 instead of N",
        (r"N / \(N rounded up to 8\)", r"N, up to a multiple of 8"),
    ),
    Bug(
        "second",
        "row_var_sample",
        "row_var",
        "second.row",
        "divided by N-1 instead of N",
        (r"N/\(N-1\)",),
    ),
    Bug(
        "second",
        "col_sum_first_block",
        "col_sum",
        "second.column",
        "only the first 32 rows are summed: M > 32",
        (r"M cut to its first 32", r"first 32 along M", r"M is above 32"),
    ),
    Bug(
        "second",
        "diff_reversed",
        "diff",
        "second.rows",
        "the sign is wrong",
        (r"-1 × ",),
    ),
    Bug(
        "second",
        "diff_block_edge",
        "diff",
        "second.rows",
        "columns 32, 64, ... lack the element before them",
        (r"is 0 modulo 32", r"N is above 32"),
    ),
    Bug(
        "second",
        "pool2_absolute",
        "pool2",
        "second.pairs",
        "the larger magnitude is taken instead of the larger",
        (r"x holds a negative element", r"x holds an element ≤ -\d\S*e-\d+"),
    ),
    Bug(
        "second",
        "upsample_tiled",
        "upsample",
        "second.double",
        "the row is tiled instead of each element repeated: N > 1",
        (r"N is above 1", r"repeats", r"reshaped"),
    ),
    Bug(
        "second",
        "masked_fill_inclusive",
        "masked_fill",
        "second.lengths",
        "one element too many is kept: lengths is one more",
        (r"lengths one more",),
    ),
    Bug(
        "second",
        "dequantize_unsigned",
        "dequantize",
        "second.quantized",
        "negative q are read as unsigned",
        (r"q < 0", r"q ≤ -1", r"q holds a negative"),
    ),
    Bug(
        "second",
        "dequantize_scale_of_column",
        "dequantize",
        "second.quantized",
        "the scale of the column's number is used, not that of the row",
        (r"elements of a row of scale differ",),
    ),
    Bug(
        "second",
        "bias_gelu_bias_after",
        "bias_gelu",
        "second.bias",
        "the bias is added after the activation",
        (),
    ),
    Bug(
        "second",
        "mse_not_squared",
        "mse",
        "second.two",
        "the absolute difference is averaged instead of its square",
        (),
    ),
    Bug(
        "second",
        "rotate_other_way",
        "rotate",
        "second.turned",
        "rotated clockwise instead of anticlockwise (both axes reversed)",
        (r"reverse",),
    ),
    Bug(
        "second",
        "lerp_swapped",
        "lerp",
        "second.lerp",
        "x and y are swapped (or t taken for 1-t)",
        (r"x and y swapped",),
    ),
    Bug(
        "second",
        "lerp_half",
        "lerp",
        "second.lerp",
        "the result is rounded to float16",
        (r"float16",),
    ),
)
