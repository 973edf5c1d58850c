"""True causes of the first set, and what may truly be said of each, as patterns."""

from __future__ import annotations

from stranger import Bug

SCHEMAS = {
    "first.rows": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M", "N"]""",
    "first.row": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M"]""",
    "first.norm": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], w = ["N"], b = ["N"] }
output = ["M", "N"]""",
    "first.rms": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], w = ["N"] }
output = ["M", "N"]""",
    "first.matmul": """
dims = { M = { min = 1, max = 80 }, N = { min = 1, max = 160 }, K = { min = 1, max = 130 } }
inputs = { a = ["M", "K"], b = ["K", "N"] }
output = ["M", "N"]""",
    "first.gemv": """
dims = { M = { min = 1, max = 130 }, K = { min = 1, max = 130 } }
inputs = { a = ["M", "K"], x = ["K"] }
output = ["M"]""",
    "first.conv": """
dims = { C = [1, 3, 8], O = [1, 4, 6], L = { min = 1, max = 100 } }
inputs = { x = ["C", "L"], w = ["O", "C", 3] }
output = ["O", "L"]""",
    "first.attention": """
dims = { T = { min = 1, max = 80 }, D = [8, 16, 64] }
inputs = { q = ["T", "D"], k = ["T", "D"], v = ["T", "D"] }
output = ["T", "D"]""",
    "first.grouped": """
dims = { G = [1, 2, 4], Hk = [1, 2, 3], Hq = "G*Hk", T = { min = 1, max = 30 }, D = [8, 16] }
inputs = { q = ["Hq", "T", "D"], k = ["Hk", "T", "D"], v = ["Hk", "T", "D"] }
output = ["Hq", "T", "D"]""",
    "first.gather": """
dims = { V = { min = 1, max = 300 }, D = [8, 32], N = { min = 1, max = 100 } }
inputs.table = ["V", "D"]
inputs.index = { dims = ["N"], dtype = "int64", range = [0, "V-1"] }
output = ["N", "D"]""",
    "first.scatter": """
dims = { V = { min = 1, max = 300 }, D = [8, 32], N = { min = 1, max = 100 } }
inputs.x = ["N", "D"]
inputs.index = { dims = ["N"], dtype = "int64", range = [0, "V-1"] }
inputs.out = ["V", "D"]
output = ["V", "D"]""",
    "first.topk": """
dims = { M = { min = 1, max = 40 }, N = { min = 4, max = 200 } }
inputs = { x = ["M", "N"] }
output = ["M", 4]""",
    "first.loss": """
dims = { N = { min = 1, max = 64 }, C = { min = 1, max = 200 } }
inputs.logits = ["N", "C"]
inputs.labels = { dims = ["N"], dtype = "int64", range = [0, "C-1"], values = [-100], share = 0.2 }
output = ["N"]""",
    "first.loss_mean": """
dims = { N = { min = 1, max = 64 }, C = { min = 1, max = 200 } }
inputs.logits = ["N", "C"]
inputs.labels = { dims = ["N"], dtype = "int64", range = [0, "C-1"], values = [-100], share = 0.2 }
output = []""",
    "first.transpose": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "N"] }
output = ["N", "M"]""",
    "first.rope": """
dims = { T = { min = 1, max = 40 }, H = [1, 2, 5], D = [4, 8, 32] }
inputs = { x = ["T", "H", "2*D"], cos = ["T", "D"], sin = ["T", "D"] }
output = ["T", "H", "2*D"]""",
    "first.histogram": """
dims = { N = { min = 1, max = 500 } }
inputs.index = { dims = ["N"], dtype = "int64", range = [0, 63] }
output = [64]""",
    "first.batched": """
dims.B = [1, 2, 5]
dims.I = { min = 1, max = 40 }
dims.J = { min = 1, max = 40 }
dims.K = { min = 1, max = 40 }
inputs = { a = ["B", "I", "J"], b = ["B", "J", "K"] }
output = ["B", "I", "K"]""",
    "first.swiglu": """
dims = { M = { min = 1, max = 40 }, D = { min = 1, max = 100 } }
inputs = { x = ["M", "2*D"] }
output = ["M", "D"]""",
}

BUGS = (
    Bug(
        "first",
        "softmax_scale",
        "softmax_eighth",
        "first.rows",
        "logits are scaled by 0.12 instead of 0.125",
        (r"0\.96 × x",),
    ),
    Bug(
        "first",
        "softmax_no_max",
        "softmax",
        "first.rows",
        "no maximum is subtracted: exp overflows from x of about 88 on (or all underflow)",
        (
            r"largest (magnitude|element) is ≥ 8\d",
            r"x ≥ 8\d",
            r"x holds an element (of a magnitude )?≥ [6-9]\d",
        ),
    ),
    Bug(
        "first",
        "softmax_max_of_first_tile",
        "softmax",
        "first.rows",
        (
            "the maximum is that of the first 128 columns: wrong where larger values stand "
            "later (N > 128)"
        ),
        (r"N is above 128",),
    ),
    Bug(
        "first",
        "layernorm_eps_outside",
        "layernorm",
        "first.norm",
        "eps is added outside the root: wrong where the variance of the row is small",
        (r"eps .* outside",),
    ),
    Bug(
        "first",
        "layernorm_unbiased",
        "layernorm",
        "first.norm",
        "the variance is divided by N-1 instead of N",
        (r"divided by n-1",),
    ),
    Bug(
        "first",
        "layernorm_mean_of_columns",
        "layernorm",
        "first.norm",
        "the mean is over axis 0 (M) instead of the row",
        (r"M is above 1", r"axis 0 of x"),
    ),
    Bug(
        "first",
        "rmsnorm_padded_count",
        "rmsnorm",
        "first.rms",
        ("the mean square is divided by N rounded up to 64: wrong where N is no multiple of 64"),
        (r"N, up to a multiple of 64", r"N rounded up to 64"),
    ),
    Bug(
        "first",
        "rmsnorm_weight_shifted",
        "rmsnorm",
        "first.rms",
        "the weight is read one place too early (w rotated by one)",
        (r"element of w 1 before",),
    ),
    Bug(
        "first",
        "matmul_k_tail",
        "matmul",
        "first.matmul",
        "the last K % 32 terms of the sum are left out: K is no multiple of 32",
        (r"whole tiles of 32",),
    ),
    Bug(
        "first",
        "matmul_stale_accumulator",
        "matmul",
        "first.matmul",
        "column tiles of 64 after the first add what the tile before held: N > 64",
        (r"from index 64 on along axis 1", r"N is above 64"),
    ),
    Bug(
        "first",
        "matmul_half_sum",
        "matmul",
        "first.matmul",
        "the sum is accumulated in float16",
        (r"float16",),
    ),
    Bug(
        "first",
        "matmul_square_transposed",
        "matmul",
        "first.matmul",
        "b is read transposed where K = N",
        (r"K and N are equal",),
    ),
    Bug(
        "first",
        "gemv_last_row",
        "gemv",
        "first.gemv",
        "the last row is 0 where M % 4 = 1",
        (r"M .*1 modulo 4",),
    ),
    Bug(
        "first",
        "conv1d_flipped",
        "conv1d",
        "first.conv",
        "the filter's taps are reversed",
        (r"w in reverse order along axis 2",),
    ),
    Bug(
        "first",
        "conv1d_shifted",
        "conv1d",
        "first.conv",
        "the padding is all on the left: output is shifted by one along L",
        (r"element 1 before along axis 1", r"x 1 before along axis 1"),
    ),
    Bug(
        "first",
        "attention_no_scale",
        "attention",
        "first.attention",
        "the scale 1/sqrt(D) is missing",
        (r"√D × [qk]",),
    ),
    Bug(
        "first",
        "causal_without_diagonal",
        "causal",
        "first.attention",
        "the causal mask hides the diagonal",
        (r"q along T meets the previous",),
    ),
    Bug(
        "first",
        "causal_one_ahead",
        "causal",
        "first.attention",
        "the causal mask lets one future key through",
        (r"q along T meets the next",),
    ),
    Bug(
        "first",
        "grouped_heads_modulo",
        "grouped",
        "first.grouped",
        "head h reads key head h % Hk instead of h // G: Hk > 1 and G > 1",
        (r"Hk is above 1 and G is above 1", r"G is above 1 and Hk is above 1"),
    ),
    Bug(
        "first",
        "gelu_constant",
        "gelu",
        "first.rows",
        "the cubic constant is 0.44715 instead of 0.044715",
        (),
    ),
    Bug(
        "first",
        "gelu_cut_below",
        "gelu",
        "first.rows",
        "elements with x < -2 give 0",
        (r"x ≤ -2(\.\d+)? are",),
    ),
    Bug(
        "first",
        "row_sum_tail",
        "row_sum",
        "first.row",
        "the last N % 32 elements are left out where N > 32 and no multiple of 32",
        (r"whole tiles of 32 along N",),
    ),
    Bug(
        "first",
        "row_max_from_zero",
        "row_max",
        "first.row",
        "the maximum starts at 0: rows of negatives only give 0",
        (
            r"largest element is (<|≤) ",
            r"counts a 0 beside the elements along N",
            r"row of negative elements only",
        ),
    ),
    Bug(
        "first",
        "cumsum_no_carry",
        "cumsum",
        "first.rows",
        "the sum starts anew each 128 columns: N > 128, columns from 128",
        (r"from index 128 on along axis 1", r"N is above 128"),
    ),
    Bug(
        "first",
        "gather_seven_bits",
        "gather",
        "first.gather",
        "only the low 7 bits of an index are used: index >= 128",
        (r"index ≥ 128", r"V is above 128"),
    ),
    Bug(
        "first",
        "scatter_add_lost_duplicates",
        "scatter_add",
        "first.scatter",
        "of equal indices only the last is added",
        (r"index holds equal",),
    ),
    Bug(
        "first",
        "topk_by_magnitude",
        "topk",
        "first.topk",
        "ordered by |x| instead of x: rows with negatives among the largest magnitudes",
        (r"x holds a negative element",),
    ),
    Bug(
        "first",
        "cross_entropy_ignores_nothing",
        "cross_entropy",
        "first.loss",
        "rows with label -100 get the loss of class 0 instead of 0",
        (r"labels = -100", r"labels < 0"),
    ),
    Bug(
        "first",
        "cross_entropy_mean_of_all",
        "cross_entropy_mean",
        "first.loss_mean",
        "the mean divides by all rows, ignored ones too: a label of -100 is among them",
        (r"labels holds a negative element",),
    ),
    Bug(
        "first",
        "transpose_whole_tiles",
        "transpose",
        "first.transpose",
        "tiles of 16 at the edges are not written (0): M or N no multiple of 16",
        (r"tiles? of 16",),
    ),
    Bug(
        "first",
        "transpose_swapped_strides",
        "transpose",
        "first.transpose",
        "strides are not swapped: the data come untransposed (reshape), M > 1 and N > 1",
        (r"reshaped, not transposed",),
    ),
    Bug(
        "first",
        "quantize_truncates",
        "quantize",
        "first.rows",
        "values are truncated instead of rounded",
        (),
    ),
    Bug(
        "first",
        "quantize_wraps",
        "quantize",
        "first.rows",
        "values out of range wrap instead of saturating: |x| >= 8",
        (r"\|x\| ≥ (8|7\.9\d+) ",),
    ),
    Bug(
        "first",
        "rope_interleaved",
        "rope",
        "first.rope",
        "pairs are neighbours instead of halves",
        (),
    ),
    Bug(
        "first",
        "rope_sign",
        "rope",
        "first.rope",
        "the sign of sin is wrong",
        (r"-1 × sin",),
    ),
    Bug(
        "first",
        "maxpool_zero_padding",
        "maxpool",
        "first.rows",
        ("the padding is 0 instead of -inf: negative values at the edges (first and last column)"),
        (r"x holds a negative element", r"row of negative elements"),
    ),
    Bug(
        "first",
        "avgpool_always_three",
        "avgpool",
        "first.rows",
        "the first and the last column divide by 3 instead of 2",
        (r"first|last",),
    ),
    Bug(
        "first",
        "histogram_last_bin",
        "histogram",
        "first.histogram",
        "the last bin (index 63) is 0",
        (r"last index of axis 0",),
    ),
    Bug(
        "first",
        "batched_first_batch",
        "batched",
        "first.batched",
        "b of batch 0 is used for all batches: B > 1",
        (r"first index of b along axis 0", r"B is above 1"),
    ),
    Bug(
        "first",
        "relu_drops_nan",
        "relu",
        "first.rows",
        "NaN gives 0",
        (r"x holds NaN",),
    ),
    Bug(
        "first",
        "leaky_slope",
        "leaky",
        "first.rows",
        "the slope of negative elements is 0.1 instead of 0.01",
        (r"x (<|≤) (0|-\d\S*e-\d+) ",),
    ),
    Bug(
        "first",
        "sigmoid_through_half",
        "sigmoid",
        "first.rows",
        "the input is rounded to float16 first",
        (r"rounded to float16",),
    ),
    Bug(
        "first",
        "swiglu_halves_swapped",
        "swiglu",
        "first.swiglu",
        "gate and value halves are swapped",
        (),
    ),
)
