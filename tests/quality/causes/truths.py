"""Planted bugs and the one condition that may be stated of each; without one, nothing may be.

The conditions are those under which the code of `scripts/bugs.py` is wrong.
"""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """A function of `scripts/bugs.py`, the op that it should be, and the condition if any."""

    bug: str
    op: str
    condition: str = ""


PLANTED = (
    Planted("softmax_no_max", "softmax"),
    Planted("softmax_zero_padding", "softmax", "N is not a multiple of 32"),
    Planted("softmax_pairs", "softmax", "N is odd"),
    Planted("log_softmax_of_softmax", "log_softmax"),
    Planted("log_softmax_base_two", "log_softmax"),
    Planted("logsumexp_first_tile", "logsumexp", "N is above 64"),
    Planted("logsumexp_without_max", "logsumexp"),
    Planted("layernorm_eps_outside", "layernorm"),
    Planted("layernorm_unbiased", "layernorm"),
    Planted("layernorm_no_bias", "layernorm"),
    Planted("layernorm_one_pass", "layernorm"),
    Planted("rmsnorm_no_weight", "rmsnorm"),
    Planted("rmsnorm_sum", "rmsnorm"),
    Planted("rmsnorm_no_eps", "rmsnorm"),
    Planted("l2norm_overflow", "l2norm"),
    Planted("l2norm_no_root", "l2norm"),
    Planted("matmul_k_tail", "matmul", "K is not a multiple of 16"),
    Planted("matmul_square_transposed", "matmul", "K and N are equal"),
    Planted("matmul_half", "matmul"),
    Planted("matmul_strides", "matmul", "a is not contiguous"),
    Planted("matvec_stale", "matvec", "M is odd"),
    Planted("matvec_rows", "matvec", "M is above 128"),
    Planted("linear_bias_shifted", "linear"),
    Planted("linear_relu", "linear"),
    Planted("attention_no_scale", "attention"),
    Planted("attention_no_max", "attention"),
    Planted("attention_key_tail", "attention", "T is not a multiple of 4"),
    Planted("attention_scale_d", "attention"),
    Planted("causal_attention_mask_late", "causal_attention"),
    Planted("causal_attention_small_mask", "causal_attention"),
    Planted("causal_attention_second_tile", "causal_attention", "S is above 32"),
    Planted("cumsum_no_carry", "cumsum", "N is above 32"),
    Planted("cumsum_exclusive", "cumsum"),
    Planted("argmax_last", "argmax"),
    Planted("argmax_nan_ignored", "argmax", "x holds NaN"),
    Planted("argmax_from_zero", "argmax"),
    Planted("transpose_edge_rows", "transpose", "M is not a multiple of 8"),
    Planted("transpose_square", "transpose", "M and N are equal"),
    Planted("gelu_tanh", "gelu"),
    Planted("gelu_low", "gelu"),
    Planted("swiglu_swapped", "swiglu"),
    Planted("swiglu_overflow", "swiglu"),
    Planted("cross_entropy_negative_labels", "cross_entropy", "labels holds a negative element"),
    Planted("cross_entropy_no_max", "cross_entropy"),
    Planted("gather_off_by_one", "gather"),
    Planted("gather_vectors_of_four", "gather", "D is not a multiple of 4"),
    Planted("axpy_strides", "axpy", "y is not contiguous"),
    Planted("axpy_grid", "axpy", "N is above 256"),
    Planted("variance_unbiased", "variance"),
    Planted("variance_root", "variance"),
    Planted("mean_padded", "mean", "N is not a multiple of 32"),
    Planted("mean_block", "mean", "N is above 256"),
    Planted("rowmax_nan_lost", "rowmax", "x holds NaN"),
    Planted("rowmax_zero_padding", "rowmax"),
    Planted("conv1d_flipped", "conv1d"),
    Planted("conv1d_no_halo", "conv1d", "N is above 64"),
    Planted("rope_sign", "rope"),
    Planted("rope_first_position", "rope"),
    Planted("bias_relu_late", "bias_relu", "x holds a negative element"),
    Planted("bias_relu_wrapped", "bias_relu", "N is above 64"),
    Planted("gelu_scaled", "gelu"),
    Planted("rowmax_first_rows", "rowmax", "M is above 16"),
    Planted("mean_wrong_axis", "mean", "M and N are equal"),
    Planted("softmax_wrong_axis", "softmax"),
    Planted("rmsnorm_half", "rmsnorm"),
)
