// Attention with an online softmax: one warp per query, head size 64, keys streamed in order.

constexpr int kHead = 64;
constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

extern "C" __global__ void __launch_bounds__(128)
attention_kernel(const float* __restrict__ q, const float* __restrict__ k,
                 const float* __restrict__ v, float* __restrict__ out, int length, float scale) {
  const int lane = threadIdx.x % kWarp;
  const int query = blockIdx.x * (blockDim.x / kWarp) + threadIdx.x / kWarp;
  if (query >= length) return;
  const float2 mine = reinterpret_cast<const float2*>(q + query * kHead)[lane];

  float largest = -INFINITY, denominator = 0.0f;
  float2 weighted = make_float2(0.0f, 0.0f);
  for (int key = 0; key <= query; ++key) {
    const float2 other = reinterpret_cast<const float2*>(k + key * kHead)[lane];
    float score = mine.x * other.x + mine.y * other.y;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2)
      score += __shfl_xor_sync(kAllLanes, score, offset);
    score *= scale;
    const float next = fmaxf(largest, score);
    const float keep = __expf(largest - next), weight = __expf(score - next);
    const float2 value = reinterpret_cast<const float2*>(v + key * kHead)[lane];
    weighted.x = weighted.x * keep + weight * value.x;
    weighted.y = weighted.y * keep + weight * value.y;
    denominator = denominator * keep + weight;
    largest = next;
  }
  const float inverse = __fdividef(1.0f, denominator);
  reinterpret_cast<float2*>(out + query * kHead)[lane] =
      make_float2(weighted.x * inverse, weighted.y * inverse);
}
