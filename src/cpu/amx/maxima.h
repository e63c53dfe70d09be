// The largest of a vector's sums, chunk by chunk, beside the tile unit's work on the next ones.
#pragma once

#include "cpu/amx/layout.h"

namespace kvscout::cpu::amx {

// The sixteen largest numbers of sixteen vectors, in order.
KVSCOUT_AMX_INLINE __m512 maxima_of(const __m512* v) {
  __m512 a[8], b[4], c[2];
  KVSCOUT_UNROLL
  for (int i = 0; i < 8; ++i)
    a[i] = _mm512_max_ps(_mm512_unpacklo_ps(v[2 * i], v[2 * i + 1]),
                         _mm512_unpackhi_ps(v[2 * i], v[2 * i + 1]));  // rows 2i, 2i+1 in turn
  KVSCOUT_UNROLL
  for (int i = 0; i < 4; ++i) {
    const __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
    b[i] = _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));  // rows 4i .. 4i+3 a block
  }
  KVSCOUT_UNROLL
  for (int i = 0; i < 2; ++i)
    c[i] = _mm512_max_ps(_mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(b[2 * i], b[2 * i + 1], 0xDD));
  return _mm512_max_ps(_mm512_shuffle_f32x4(c[0], c[1], 0x88),
                       _mm512_shuffle_f32x4(c[0], c[1], 0xDD));
}

// The maxima so far of rows [first, first + count) and their sums against kCount chunks from c on.
// A NaN is never larger. Masked blocks are in order (keys.h, plain.cpp): key 16c + lane.
template <int kCount, bool kMasked>
KVSCOUT_AMX_INLINE void take(KeyBlock::Vector& v, int first, int count, int c,
                             const std::int32_t* visible) {
  const __m512i key =
      _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                       _mm512_set1_epi32(16 * c));
  KVSCOUT_UNROLL
  for (int r = first; r < first + count; ++r) {
    __m512 best = _mm512_load_ps(v.maxima[r]);
    const int from = kCount == 1 ? c % 2 : 0;
    KVSCOUT_UNROLL
    for (int n = 0; n < kCount; ++n) {
      const __m512 x = _mm512_load_ps(v.sums[from + n].of[r]);
      if (kMasked) {
        const __m512i of_row = _mm512_set1_epi32(visible[r] - 16 * n);
        best = _mm512_mask_max_ps(best, _mm512_cmpgt_epi32_mask(of_row, key), x, best);
      } else {
        best = _mm512_max_ps(x, best);
      }
    }
    _mm512_store_ps(v.maxima[r], best);
  }
}

KVSCOUT_AMX_INLINE void start(KeyBlock::Vector& v, int rows) {
  for (int r = 0; r < rows; ++r) _mm512_store_ps(v.maxima[r], _mm512_set1_ps(-__builtin_inff()));
}
KVSCOUT_AMX_INLINE void finish(const KeyBlock::Vector& v, float* best) {
  __m512 rows[kRows];
  KVSCOUT_UNROLL
  for (int r = 0; r < kRows; ++r) rows[r] = _mm512_load_ps(v.maxima[r]);
  _mm512_storeu_ps(best, maxima_of(rows));
}

}  // namespace kvscout::cpu::amx
