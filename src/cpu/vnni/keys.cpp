// Lanes = keys, for few query rows (decoding): sixteen keys r + 32q, r = first .. first+3, q = 0 ..
// 3, in the order of the 128x4 layout, so that scale bytes need no gathering.
//
// Bound: for sixteen keys 64 operations that transpose them, 48 that look their codes up, 20 for
// their scales, and of each row 56 (seven a group). An Intel core does two of them a cycle, 11.3
// cycles a key for four rows, if the port of all shuffles (80 of them) is not the longer one.
#if defined(__x86_64__)

#include <cstring>

#include "cpu/vnni/layout.h"

namespace kvscout::cpu::vnni {
namespace {

// Scale bytes of four groups in each lane, without signs; the same, halves of lanes exchanged.
struct ScaleBytes {
  __m512i bytes, turned;
};
KVSCOUT_VNNI_INLINE ScaleBytes load_scales(const std::uint8_t* scales) {
  const __m512i bytes = _mm512_and_si512(_mm512_loadu_si512(scales), _mm512_set1_epi8(0x7F));
  return {bytes, _mm512_rol_epi32(bytes, 16)};
}

// The scales of group g: products of bytes keep one of four, where floats have their exponents.
template <bool kNan>
KVSCOUT_VNNI_INLINE __m512 scales_of(const ScaleBytes& s, int g) {
  const __m512i magnitude = _mm512_maddubs_epi16(
      g % 4 < 2 ? s.turned : s.bytes, _mm512_set1_epi32(g % 2 == 0 ? 16 << 16 : 16 << 24));
  const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
  if (!kNan) return value;
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F << 20));
  return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")));
}

// Dot products with four bytes in all lanes, broadcast by the instruction itself: compilers load
// them apart, and then a seventh of all instructions is that and the processor runs short of them.
KVSCOUT_VNNI_INLINE __m512i add_products(__m512i sum, __m512i codes, const std::int8_t (&four)[4]) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(four));
  return sum;
}

template <int kQueries, bool kNan>
KVSCOUT_VNNI void score_rows(const QueryRow* tile, int rows, const KeySource& source,
                             const std::int32_t* visible, float* best) {
  const __m512i table = table_of(kDoubledPlus12);
  const __m512i key_of_lane =
      _mm512_setr_epi32(0, 32, 64, 96, 1, 33, 65, 97, 2, 34, 66, 98, 3, 35, 67, 99);
  __m512 maxima[kQueries];
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) maxima[r] = _mm512_set1_ps(-__builtin_inff());
  for (int first = 0; first < 32; first += 4) {
    __m512i blocks[4][4];  // [q][block]
    KVSCOUT_UNROLL
    for (int q = 0; q < 4; ++q)
      blocks_of_rows(source.rows + (first + 32 * q) * source.stride, source.stride, blocks[q]);
    // Row addresses are hidden, or the compiler hoists (and spills) their broadcasts.
    const QueryRow* q[kQueries];
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) {  // rows that do not exist repeat the last one
      q[r] = tile + (r < rows ? r : rows - 1);
      asm volatile("" : "+r"(q[r]));
    }
    __m512 logit[kQueries];
    ScaleBytes scales;
    KVSCOUT_UNROLL
    for (int c = 0; c < 4; ++c) {
      prefetch_next(source, first, c);
      __m512i dwords[4];
      dwords_of_block(blocks[0][c], blocks[1][c], blocks[2][c], blocks[3][c], dwords);
      if (c % 2 == 0) scales = load_scales(source.scales + c / 2 * 512 + first * 16);
      KVSCOUT_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int g = 2 * c + half;
        const Nibbles x = look_up(dwords[2 * half], table);
        const Nibbles y = look_up(dwords[2 * half + 1], table);
        const __m512 ks = scales_of<kNan>(scales, g);
        KVSCOUT_UNROLL
        for (int r = 0; r < kQueries; ++r) {
          const auto add = [&](__m512i sum, __m512i codes, int t) KVSCOUT_VNNI {
            return add_products(sum, codes, q[r]->data[4 * g + t]);
          };
          __m512i sum = add(_mm512_set1_epi32(q[r]->correction[g]), x.low, 0);
          sum = add(sum, x.high, 1);
          sum = add(sum, y.low, 2);
          sum = add(sum, y.high, 3);
          const __m512 scale = _mm512_mul_ps(ks, _mm512_set1_ps(q[r]->scale[g]));
          const __m512 value = _mm512_cvtepi32_ps(sum);
          logit[r] = g == 0 ? _mm512_mul_ps(value, scale) : _mm512_fmadd_ps(value, scale, logit[r]);
        }
      }
    }
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) {
      __mmask16 seen = 0xFFFF;
      if (visible)
        seen = _mm512_cmpgt_epi32_mask(
            _mm512_set1_epi32(visible[(r < rows ? r : rows - 1) * kRows] - first), key_of_lane);
      maxima[r] = _mm512_mask_max_ps(maxima[r], seen, logit[r], maxima[r]);
    }
  }
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r)
    if (r < rows) best[r * kRows] = _mm512_reduce_max_ps(maxima[r]);
}

using Score = void (*)(const QueryRow*, int, const KeySource&, const std::int32_t*, float*);
template <bool kNan>
constexpr Score kScore[] = {score_rows<1, kNan>, score_rows<2, kNan>, score_rows<4, kNan>,
                            score_rows<8, kNan>, score_rows<12, kNan>};

}  // namespace

KVSCOUT_VNNI void score_keys(const void* tile, int rows, const KeySource& source,
                             const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryRow*>(tile);
  const Score* score = any_nan(source.scales) ? kScore<true> : kScore<false>;
  while (rows > 0) {
    const int step = rows < 12 ? rows : 12;
    score[step <= 2 ? step - 1 : step <= 4 ? 2 : step <= 8 ? 3 : 4](q, step, source, visible, best);
    q += step;
    if (visible) visible += step * kRows;
    best += step * kRows;
    rows -= step;
  }
}

}  // namespace kvscout::cpu::vnni

#endif
