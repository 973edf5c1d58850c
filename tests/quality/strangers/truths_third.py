"""True causes of the third set, and what may truly be said of each, as patterns."""

from __future__ import annotations

from stranger import Bug

BUGS = (
    Bug(
        "third",
        "softmax_nomax",
        "softmax",
        "third.softmax",
        (
            "Rows with an element above ln(max of float32) = 88.7 (exp overflows: inf/inf or 0) "
            "or with all elements below about -87..-103 (exp underflows: 0/0) give NaN/0; exp "
            "without subtracting the row's maximum."
        ),
        (r"magnitude is ≥ (8|9)", r"x holds an element .*(8\d|9\d)"),
        ("float32", "float16"),
    ),
    Bug(
        "third",
        "softmax_tail",
        "softmax",
        "third.softmax",
        (
            "Rows whose length is not a multiple of 32 have denominators larger by "
            "pad*exp(0-max), as the tail lanes of the last tile of 32 hold 0; outputs too small "
            "by one factor per row."
        ),
        (r"N is not a multiple of 32", r"up to a multiple of 32"),
        ("float32", "bfloat16"),
    ),
    Bug(
        "third",
        "layernorm_eps",
        "layernorm",
        "third.layernorm",
        (
            "Rows with small variance (var not >> eps=1e-5) are wrong: eps is added to the std, "
            "not to the variance; there the output (less bias) is too large by "
            "sqrt(var+eps)/(sqrt(var)+eps)."
        ),
        (r"eps \(1e-05\) is added outside",),
    ),
    Bug(
        "third",
        "layernorm_e2",
        "layernorm",
        "third.layernorm",
        (
            "Rows whose |mean| is large beside their std (E[x^2]-E[x]^2 cancels in float32; or "
            "x^2 overflows) have a wrong variance, sometimes NaN."
        ),
        (r"mean of .* times its standard deviation", r"strategy negative or offset"),
    ),
    Bug(
        "third",
        "rmsnorm_half",
        "rmsnorm",
        "third.rmsnorm",
        (
            "Rows whose sum of squares exceeds 65504 (float16 accumulation overflows) give 0; "
            "(squares of tiny elements underflow; long rows lose digits)."
        ),
        (),
        ("float16",),
    ),
    Bug(
        "third",
        "groupnorm_interleave",
        "groupnorm",
        "third.groupnorm",
        (
            "With 1 < groups < C, channels are assigned to groups by c % groups and not c // "
            "(C/groups); all elements then are normalised with statistics of the wrong group."
        ),
        (r"groups holds an element of a magnitude ≥ 2", r"groups .* C is above"),
    ),
    Bug(
        "third",
        "attn_causal_align",
        "causal",
        "third.causal",
        (
            "Where Sk > Sq: the causal mask is aligned at the top left, so each row sees Sk-Sq "
            "keys too few (the last ones)."
        ),
        (r"Sk is larger than Sq",),
    ),
    Bug(
        "third",
        "attn_gqa",
        "gqa",
        "third.gqa",
        (
            "With 1 < Hk < Hq: query head h uses KV head h % Hk and not h // (Hq/Hk); heads for "
            "which these differ are wrong."
        ),
        (r"(Hq|G) is above [13] and Hk is above 1", r"Hk is above 1 and (Hq|G) is above [13]"),
    ),
    Bug(
        "third",
        "attn_window",
        "window",
        "third.window",
        "Rows i >= window see one key too many (i-window).",
        (),
    ),
    Bug(
        "third",
        "attn_padscale",
        "attention",
        "third.attention",
        ("Where D is not a power of two the scale is 1/sqrt(next power of two) and not 1/sqrt(D)."),
        (r"D is not a power of two",),
    ),
    Bug(
        "third",
        "flash_norescale",
        "attention",
        "third.attention2",
        (
            "With more than 16 keys: rows whose running maximum grows in a later block of 16 keys "
            "are wrong, as the accumulator of earlier blocks is not rescaled (too large "
            "contribution of earlier blocks)."
        ),
        (r"S is above 16",),
        ("float32", "float16"),
    ),
    Bug(
        "third",
        "rope_freq",
        "rope",
        "third.rope",
        (
            "All rows but position 0, and all pairs but the first (i=0): frequency is base^(-i/D) "
            "and not base^(-2i/D)."
        ),
        (r"D is above 2", r"index 1 on along axis 0 and from index 1 on along axis 1"),
    ),
    Bug(
        "third",
        "gelu_const",
        "gelu",
        "third.softmax",
        (
            "The tanh constant is 0.047715 and not 0.044715: wrong where |x| is middling (about "
            "0.3..4); x near 0 and large |x| are right."
        ),
        (),
    ),
    Bug(
        "third",
        "silu_ovf",
        "silu",
        "third.softmax",
        "Elements above ln(max float32)=88.72 give NaN (exp overflows, inf/inf).",
        (r"x ≥ 8[48]",),
    ),
    Bug(
        "third",
        "ce_ignore_mean",
        "cross_entropy",
        "third.cross_entropy",
        (
            "Where some label is -100, the loss is divided by N and not by the number of labels "
            "kept: out = right * kept/N."
        ),
        (r"labels holds a negative", r"labels holds an element ≤ -"),
    ),
    Bug(
        "third",
        "scatter_add_race",
        "scatter_add",
        "third.scatter_add",
        "Rows whose index occurs more than once have only the last of these contributions.",
        (r"index holds a value more than once",),
    ),
    Bug(
        "third",
        "embedding_neg",
        "embedding",
        "third.embedding",
        "Negative indices give row 0 of the table and not row index+V.",
        (r"index holds a negative", r"labels holds an element ≤ -1"),
    ),
    Bug(
        "third",
        "conv1d_edge",
        "conv1d",
        "third.conv1d",
        (
            "First and last K//2 positions along L with K>1: the border is padded with the edge "
            "value and not with 0."
        ),
        (r"K is above 1",),
    ),
    Bug(
        "third",
        "maxpool_zero",
        "maxpool",
        "third.maxpool",
        (
            "Border elements (first/last row or column) whose window has only negative values "
            "give 0 (padding with 0 and not -inf)."
        ),
        (r"masked|below 0",),
    ),
    Bug(
        "third",
        "cumsum_carry",
        "cumsum",
        "third.cumsum",
        (
            "Columns from 256 on: the carry is the sum of the previous block of 128 only, and not "
            "of all blocks before; out lacks the sum of earlier blocks."
        ),
        (r"index 256 on along axis 1",),
    ),
    Bug(
        "third",
        "argmax_nan",
        "argmax",
        "third.argmax",
        (
            "Rows with a NaN: NaN is never taken as the maximum (index of the largest other "
            "element instead of the first NaN)."
        ),
        (r"x holds NaN",),
    ),
    Bug(
        "third",
        "topk_dups",
        "topk",
        "third.topk",
        (
            "Rows in which one of the values of the top 4 occurs more than once: duplicates are "
            "removed together, so that smaller values (or -inf) move up."
        ),
        (r"x holds equal elements in a row", r"largest element occurs twice"),
        ("float32", "float16"),
    ),
    Bug(
        "third",
        "sort_radix",
        "sort",
        "third.sort",
        "Rows with at least two (different) negative values: these come in descending order.",
        (r"x holds a negative element and N is above 1",),
    ),
    Bug(
        "third",
        "matmul_ktail",
        "matmul",
        "third.matmul",
        "K not a multiple of 16: the last K % 16 products are dropped.",
        (r"whole tiles of 16",),
        ("float32", "float16"),
    ),
    Bug(
        "third",
        "matmul_half_acc",
        "matmul",
        "third.matmul",
        (
            "Sums are accumulated in the input's half dtype: rounding error grows with K / "
            "partial sums overflow the range of float16 though the result does not (and products "
            "too)."
        ),
        (r"float16|in half",),
        ("float16", "bfloat16"),
    ),
    Bug(
        "third",
        "gemm_beta",
        "gemm",
        "third.gemm",
        "beta = 0 and C has NaN or Inf there: output NaN, since 0*C is added.",
        (r"c holds (Inf|NaN|NaN or Inf)",),
    ),
    Bug(
        "third",
        "dequant_zp",
        "dequant",
        "third.dequant",
        "q - zero_point beyond [-128, 127] wraps in int8: value off by 256*scale.",
        (),
    ),
    Bug(
        "third",
        "quant_round",
        "quantize",
        "third.quantize",
        (
            "x/scale exactly half-way (n+0.5) with n even is rounded up (floor(x+0.5)) and not to "
            "even: one too large."
        ),
        (r"strategy ties",),
    ),
    Bug(
        "third",
        "quant_sat",
        "quantize",
        "third.quantize2",
        "x/scale rounded beyond [-128, 127] wraps modulo 256, not saturated.",
        (r"int8 holds it",),
    ),
    Bug(
        "third",
        "transpose_bound",
        "transpose",
        "third.transpose",
        "N > M: rows j >= M of the output (columns j >= M of x) stay 0.",
        (r"N is larger than M",),
        ("float32", "float16"),
    ),
    Bug(
        "third",
        "concat_stride",
        "concat",
        "third.concat",
        (
            "Where A != B: b's rows from the second on are read with a's row stride (flat i*A+j, "
            "clamped), columns >= A of output are wrong for row > 0."
        ),
        (r"A and B differ",),
    ),
    Bug(
        "third",
        "rowbias",
        "row_bias",
        "third.row_bias",
        (
            "The bias of column j % M is added and not the one of the row: wrong where i != j % M "
            "and the biases differ."
        ),
        (r"M is above 1",),
    ),
    Bug(
        "third",
        "clamp_nan",
        "clamp",
        "third.softmax",
        "NaN elements give -1 (the lower bound) and not NaN.",
        (r"x holds NaN",),
    ),
    Bug(
        "third",
        "interp_edge",
        "upsample",
        "third.upsample",
        (
            "The first output column (L > 1): source coordinate -0.25 isn't clamped to 0: x0 - "
            "0.25*(x1-x0), extrapolated."
        ),
        (r"at index 0 along axis 1",),
    ),
    Bug(
        "third",
        "residual_stride",
        "residual",
        "third.residual",
        "Where residual isn't contiguous (strided or transposed), it is read as if it were.",
        (r"residual is not contiguous",),
    ),
    Bug(
        "third",
        "pad_symmetric",
        "pad_reflect",
        "third.pad_reflect",
        (
            "The two padded columns at each end reflect including the edge: out has x[1],x[0] and "
            "not x[2],x[1]."
        ),
        (),
    ),
    Bug(
        "third",
        "histogram_edge",
        "histogram",
        "third.histogram",
        (
            "x == 1.0 (upper edge) is not counted in the last bin: last bin too small by their "
            "number."
        ),
        (r"x holds an element (≥|of a magnitude ≥) (1\b|0\.99)",),
    ),
    Bug(
        "third",
        "logsumexp_empty",
        "logsumexp",
        "third.logsumexp",
        "Rows whose maximum is -inf (all -inf) or +inf give NaN and not -inf/+inf.",
        (r"x holds a row of nothing but -Inf", r"x holds Inf"),
    ),
    Bug(
        "third",
        "cdist_gram",
        "cdist",
        "third.cdist",
        (
            "Pairs whose distance is small beside their norms (diagonal i==j, near points): "
            "cancellation, NaN of a negative root or noise in place of a small number/0."
        ),
        (),
    ),
    Bug(
        "third",
        "shift_arith",
        "shift",
        "third.shift",
        (
            "Negative x with amount > 0: arithmetic shift (sign bits shifted in) in place of "
            "logical."
        ),
        (r"x holds a negative", r"x < 0", r"amount > 0"),
        ("int32",),
    ),
    Bug(
        "third",
        "segment_stale",
        "segment_sum",
        "third.segment_sum",
        "Empty segments give the sum of the last nonempty segment before them and not 0.",
        (r"offsets holds a value more than once",),
    ),
    Bug(
        "third",
        "int8_dot",
        "int_matmul",
        "third.int_matmul",
        "Dot products whose (partial) sum exceeds int16 range wrap modulo 65536.",
        (r"int16 holds it",),
        ("int8",),
    ),
    Bug(
        "third",
        "swiglu_order",
        "swiglu",
        "third.swiglu",
        (
            "Gate and value halves are exchanged: silu applied to the second half; wrong wherever "
            "the halves differ."
        ),
        (r"halves of x along axis 1 exchanged",),
    ),
    Bug(
        "third",
        "sum_stale",
        "row_sum",
        "third.logsumexp",
        (
            "N > 64 and N % 64 != 0: the last tile's unwritten lanes have values of the previous "
            "tile, columns [N-64 .. 64*(N//64)) counted twice."
        ),
        (r"N is above 64 and N is not a multiple of 64",),
    ),
    Bug(
        "third",
        "bincount_warp",
        "bincount",
        "third.bincount",
        (
            "A value that occurs more than once within a block of 32 consecutive elements is "
            "counted once per block."
        ),
        (r"index holds a value more than once",),
        ("int32",),
    ),
    Bug(
        "third",
        "softmax_maskfill",
        "masked_softmax",
        "third.masked_softmax",
        (
            "Rows with masked elements whose all unmasked elements are near or below -1e4: masked "
            "elements get weight, as the fill is -1e4 and not -inf."
        ),
        (),
    ),
)
