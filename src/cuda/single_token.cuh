// What kernels for one token a request share: the token's query is asked for together with the
// lengths, and all that is known of the request comes from a lane's own loads.
#pragma once

#include "cuda/score_cells.cuh"

namespace kvscout::cuda {

// base + page * stride
__device__ __forceinline__ const std::uint8_t* at_page(const std::uint8_t* base, unsigned page,
                                                       unsigned stride) {
  const std::uint8_t* a;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(a) : "r"(page), "r"(stride), "l"(base));
  return a;
}

// A lane's part of a token's query, of one head.
template <class Ops>
struct TokenQuery {
  const std::uint8_t *row, *scales;

  static __device__ __forceinline__ TokenQuery of(const ScoreParams& p, int token, int head,
                                                  int c) {
    TokenQuery q;
    q.row = p.q + head * p.q_head_stride + token * p.q_token_stride + Ops::query_offset(0, c);
    q.scales = nullptr;
    if constexpr (Ops::kQueryScales)
      q.scales = p.q_scale +
                 scale_layout::row_128x4(static_cast<unsigned>(token) * p.q_heads + head) +
                 Ops::query_scale_offset(c);
    return q;
  }

  __device__ __forceinline__ typename Ops::RawQuery fetch() const {
    typename Ops::RawQuery raw;
#pragma unroll
    for (int i = 0; i < Ops::kQueryLoads; ++i)
      raw.v[i] = load_behind(reinterpret_cast<const uint4*>(row + Ops::query_offset(i, 0)));
    raw.scales = 0;
    if constexpr (Ops::kQueryScales)
      raw.scales = load_behind(reinterpret_cast<const std::uint16_t*>(scales));
    return raw;
  }
};

// Request b, from what its lengths say. (Through RawRows, as streams do it, the assembler orders
// score_single otherwise: 1 x 32k 3.05 instead of 2.79 us, 8 x 8k 4.07 instead of 3.58.)
__device__ __forceinline__ Rows rows_alone(const ScoreParams& p, int b, const int (&q_ends)[2],
                                           const int& used, const int& offset) {
  Lengths lengths = p.lengths;  // as if of this request alone
  lengths.cu_q = q_ends, lengths.used_k = &used;
  if (lengths.offsets) lengths.offsets = &offset;
  Rows rows = rows_of(lengths, 0);
  rows.b = b;
  return rows;
}

}  // namespace kvscout::cuda
