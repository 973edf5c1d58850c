"""Input schemas of the third set's ops."""

SCHEMAS = {
    "third.softmax": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M", "N"]""",
    "third.layernorm": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], weight = ["N"], bias = ["N"] }
output = ["M", "N"]""",
    "third.rmsnorm": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"], weight = ["N"] }
output = ["M", "N"]""",
    "third.groupnorm": """
dims = { B = [1, 3], C = [4, 8, 24], L = { min = 1, max = 40 } }
inputs = { x = ["B", "C", "L"], weight = ["C"], bias = ["C"] }
scalars = { groups = [1, 2, 4] }
output = ["B", "C", "L"]""",
    "third.causal": """
dims = { H = [1, 3], Sq = { min = 1, max = 40 }, Sk = { min = 1, max = 70 }, D = [8, 32] }
inputs.q = { dims = ["H", "Sq", "D"], nonfinite = false }
inputs.k = { dims = ["H", "Sk", "D"], nonfinite = false }
inputs.v = { dims = ["H", "Sk", "D"], nonfinite = false }
constraints = ["Sq <= Sk"]
output = ["H", "Sq", "D"]""",
    "third.gqa": """
dims = { G = [1, 2, 4], Hk = [1, 2, 3], Hq = "G*Hk", S = { min = 1, max = 40 }, D = [8, 32] }
inputs.q = { dims = ["Hq", "S", "D"], nonfinite = false }
inputs.k = { dims = ["Hk", "S", "D"], nonfinite = false }
inputs.v = { dims = ["Hk", "S", "D"], nonfinite = false }
output = ["Hq", "S", "D"]""",
    "third.window": """
dims = { H = [1, 2], S = { min = 1, max = 70 }, D = [8, 32] }
inputs.q = { dims = ["H", "S", "D"], nonfinite = false }
inputs.k = { dims = ["H", "S", "D"], nonfinite = false }
inputs.v = { dims = ["H", "S", "D"], nonfinite = false }
scalars = { window = { range = [1, 32] } }
output = ["H", "S", "D"]""",
    "third.attention": """
dims = { H = [1, 2], S = { min = 1, max = 40 }, D = { min = 8, max = 80, multiple_of = 8 } }
inputs.q = { dims = ["H", "S", "D"], nonfinite = false }
inputs.k = { dims = ["H", "S", "D"], nonfinite = false }
inputs.v = { dims = ["H", "S", "D"], nonfinite = false }
output = ["H", "S", "D"]""",
    "third.attention2": """
dims = { H = [1, 2], S = { min = 1, max = 70 }, D = [8, 32] }
inputs.q = { dims = ["H", "S", "D"], nonfinite = false }
inputs.k = { dims = ["H", "S", "D"], nonfinite = false }
inputs.v = { dims = ["H", "S", "D"], nonfinite = false }
output = ["H", "S", "D"]""",
    "third.rope": """
dims = { S = { min = 1, max = 64 }, P = { min = 1, max = 32 }, D = "2*P" }
inputs.x = { dims = ["S", "D"], nonfinite = false }
output = ["S", "D"]""",
    "third.cross_entropy": """
dims = { N = { min = 1, max = 64 }, C = { min = 2, max = 130 } }
inputs.logits = { dims = ["N", "C"], nonfinite = false }
inputs.labels = { dims = ["N"], dtype = "int64", range = [0, "C-1"], values = [-100], share = 0.2 }
output = [1]""",
    "third.scatter_add": """
dims = { V = { min = 1, max = 60 }, N = { min = 1, max = 60 }, D = [1, 8, 33] }
inputs.base = ["V", "D"]
inputs.index = { dims = ["N"], dtype = "int64", kind = "indices", of = "base" }
inputs.x = ["N", "D"]
output = ["V", "D"]""",
    "third.embedding": """
dims = { V = { min = 1, max = 100 }, N = { min = 1, max = 60 }, D = [1, 8, 33] }
inputs.table = ["V", "D"]
inputs.index = { dims = ["N"], dtype = "int64", range = ["-V", "V-1"] }
output = ["N", "D"]""",
    "third.conv1d": """
dims = { C = [1, 4, 16], O = [1, 8], L = { min = 1, max = 130 }, K = [1, 3, 5] }
inputs.x = { dims = ["C", "L"], nonfinite = false }
inputs.w = { dims = ["O", "C", "K"], nonfinite = false }
output = ["O", "L"]""",
    "third.maxpool": """
dims = { C = [1, 4], H = { min = 1, max = 40 }, W = { min = 1, max = 40 } }
inputs.x = ["C", "H", "W"]
output = ["C", "H", "W"]""",
    "third.cumsum": """
dims = { M = { min = 1, max = 8 }, N = { min = 1, max = 600 } }
inputs = { x = ["M", "N"] }
output = ["M", "N"]""",
    "third.argmax": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = { dims = ["M"], dtype = "int64" }""",
    "third.topk": """
dims = { M = { min = 1, max = 40 }, N = { min = 4, max = 300 } }
inputs.x = { dims = ["M", "N"], nonfinite = false }
output = ["M", 4]""",
    "third.sort": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs.x = { dims = ["M", "N"], nonfinite = false }
output = ["M", "N"]""",
    "third.matmul": """
dims = { M = { min = 1, max = 64 }, K = { min = 1, max = 260 }, N = { min = 1, max = 64 } }
inputs = { a = ["M", "K"], b = ["K", "N"] }
output = ["M", "N"]""",
    "third.gemm": """
dims = { M = { min = 1, max = 64 }, K = { min = 1, max = 64 }, N = { min = 1, max = 64 } }
inputs = { a = ["M", "K"], b = ["K", "N"], c = ["M", "N"] }
scalars = { beta = [0.0, 0.5, 1.0] }
output = ["M", "N"]""",
    "third.dequant": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 130 } }
inputs.q = { dims = ["M", "N"], dtype = "int8" }
inputs.scale = { dims = ["M"], kind = "positive", range = [1e-3, 10.0] }
inputs.zero_point = { dims = ["M"], dtype = "int8" }
output = { dims = ["M", "N"], dtype = "same as scale" }""",
    "third.quantize": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 130 } }
inputs.x = { dims = ["M", "N"], nonfinite = false }
scalars = { scale = [0.125, 0.5, 2.0] }
output = { dims = ["M", "N"], dtype = "int8" }""",
    "third.quantize2": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 130 } }
inputs.x = { dims = ["M", "N"], range = [-1000.0, 1000.0] }
scalars = { scale = [0.125, 0.5, 2.0] }
output = { dims = ["M", "N"], dtype = "int8" }""",
    "third.transpose": """
dims = { M = { min = 1, max = 100 }, N = { min = 1, max = 100 } }
inputs = { x = ["M", "N"] }
output = ["N", "M"]""",
    "third.concat": """
dims = { M = { min = 1, max = 40 }, A = { min = 1, max = 70 }, B = { min = 1, max = 70 } }
inputs = { a = ["M", "A"], b = ["M", "B"] }
output = ["M", "A+B"]""",
    "third.row_bias": """
dims = { M = { min = 1, max = 64 }, N = { min = 1, max = 130 } }
inputs = { x = ["M", "N"], bias = ["M"] }
output = ["M", "N"]""",
    "third.upsample": """
dims = { C = [1, 5], L = { min = 1, max = 130 } }
inputs.x = { dims = ["C", "L"], nonfinite = false }
output = ["C", "2*L"]""",
    "third.residual": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 130 } }
inputs = { x = ["M", "N"], residual = ["M", "N"] }
output = ["M", "N"]""",
    "third.pad_reflect": """
dims = { M = { min = 1, max = 40 }, N = { min = 3, max = 130 } }
inputs = { x = ["M", "N"] }
output = ["M", "N+4"]""",
    "third.histogram": """
dims = { N = { min = 1, max = 600 } }
inputs.x = { dims = ["N"], range = [0.0, 1.0] }
output = { dims = [8], dtype = "int64" }""",
    "third.logsumexp": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 300 } }
inputs = { x = ["M", "N"] }
output = ["M"]""",
    "third.cdist": """
dims = { N = { min = 1, max = 40 }, D = { min = 1, max = 64 } }
inputs.x = { dims = ["N", "D"], nonfinite = false }
output = ["N", "N"]""",
    "third.shift": """
dims = { N = { min = 1, max = 300 } }
inputs.x = { dims = ["N"], dtype = "int32" }
inputs.amount = { dims = ["N"], dtype = "int32", range = [0, 31] }
output = { dims = ["N"], dtype = "int32" }""",
    "third.segment_sum": """
dims = { B = { min = 1, max = 20 }, T = { min = 0, max = 200 }, D = [1, 8] }
inputs.x = ["T", "D"]
inputs.offsets = { dims = ["B+1"], dtype = "int32", kind = "offsets", to = "T" }
output = ["B", "D"]""",
    "third.int_matmul": """
dims = { M = { min = 1, max = 40 }, K = { min = 1, max = 130 }, N = { min = 1, max = 40 } }
inputs.a = { dims = ["M", "K"], dtype = "int8" }
inputs.b = { dims = ["K", "N"], dtype = "int8" }
output = { dims = ["M", "N"], dtype = "int32" }""",
    "third.swiglu": """
dims = { M = { min = 1, max = 40 }, H = { min = 1, max = 130 } }
inputs = { x = ["M", "2*H"] }
output = ["M", "H"]""",
    "third.bincount": """
dims = { N = { min = 1, max = 300 } }
inputs.index = { dims = ["N"], dtype = "int32", range = [0, 15] }
output = { dims = [16], dtype = "int64" }""",
    "third.masked_softmax": """
dims = { M = { min = 1, max = 40 }, N = { min = 1, max = 130 } }
inputs.x = { dims = ["M", "N"], nonfinite = false }
inputs.mask = { dims = ["M", "N"], dtype = "bool", kind = "mask" }
output = ["M", "N"]""",
}
