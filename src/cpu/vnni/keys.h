// Lanes = keys: what kernels for few rows and for many have in common. A vector holds sixteen keys
// r + 32q, r = first .. first + 3, q = 0 .. 3, in the order of the 128x4 layout, so that scale
// bytes need no gathering.
#pragma once

#include "cpu/vnni/layout.h"

namespace kvscout::cpu::vnni {

inline constexpr int kSteps = 8, kStepRows = 4;  // vectors of keys in a block, rows r of each

KVSCOUT_VNNI_INLINE __m512i key_of_lane() {
  return _mm512_setr_epi32(0, 32, 64, 96, 1, 33, 65, 97, 2, 34, 66, 98, 3, 35, 67, 99);
}

// Whether all of a block's 1024 scale bytes are positive, normal numbers, or, with kZeros, zero.
template <bool kZeros>
KVSCOUT_VNNI_INLINE bool all_normal(const std::uint8_t* scales) {
  __m512i least = _mm512_set1_epi8(-1), most = _mm512_setzero_si512();
  for (int i = 0; i < 1024; i += 64) {
    const __m512i bytes = _mm512_loadu_si512(scales + i);
    // With kZeros one less, so that zero is 255.
    const __m512i counted = kZeros ? _mm512_add_epi8(bytes, _mm512_set1_epi8(-1)) : bytes;
    least = _mm512_min_epu8(least, counted);
    most = _mm512_max_epu8(most, bytes);
  }
  return (_mm512_cmplt_epu8_mask(least, _mm512_set1_epi8(kZeros ? 0x07 : 0x08)) |
          _mm512_cmpge_epu8_mask(most, _mm512_set1_epi8(0x7F))) == 0;
}
// Whether they are `plain`. Zeros (padding) take a second look, 48 operations instead of 32.
KVSCOUT_VNNI_INLINE bool all_plain(const std::uint8_t* scales) {
  return all_normal<false>(scales) || all_normal<true>(scales);
}

// Scale bytes of four groups in each lane, without signs; the same, halves of lanes exchanged.
struct ScaleBytes {
  __m512i bytes, turned;
};
template <bool kPlain>
KVSCOUT_VNNI_INLINE ScaleBytes load_scales(const std::uint8_t* scales) {
  __m512i bytes = _mm512_loadu_si512(scales);
  if (!kPlain) bytes = _mm512_and_si512(bytes, _mm512_set1_epi8(0x7F));
  return {bytes, _mm512_rol_epi32(bytes, 16)};
}

// The scales of group g, kPlainDown times as large where all are plain. Products of bytes keep one
// of four, where floats have their exponents.
template <bool kPlain>
KVSCOUT_VNNI_INLINE __m512 scales_of(const ScaleBytes& s, int g) {
  const __m512i magnitude = _mm512_maddubs_epi16(
      g % 4 < 2 ? s.turned : s.bytes, _mm512_set1_epi32(g % 2 == 0 ? 16 << 16 : 16 << 24));
  const __m512 bits = _mm512_castsi512_ps(magnitude);
  if (kPlain) return bits;
  const __m512 value = _mm512_mul_ps(bits, _mm512_set1_ps(kPlainUp));
  const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F << 20));
  return _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")));
}

// Dot products with four bytes in all lanes, broadcast by the instruction itself: compilers load
// them apart, and then a seventh of all instructions is that and the processor runs short of them.
KVSCOUT_VNNI_INLINE __m512i add_products(__m512i sum, __m512i codes, const std::int8_t (&four)[4]) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(codes), "m"(four));
  return sum;
}

// A group of sixteen keys: its four dwords (low and high nibbles of both of codes), its scales, and
// those times -kBias.
struct KeyGroup {
  __m512i dwords[4];
  __m512 scale, offset;
};

// They are computed here and not further down.
KVSCOUT_VNNI_INLINE void keep_here(__m512i (&x)[4]) {
  asm volatile("" : "+v"(x[0]), "+v"(x[1]), "+v"(x[2]), "+v"(x[3]));
}

// Blocks of 16 bytes of a step's keys: [q][block], of keys r + 32q. `first` is the first of them.
struct StepRows {
  __m512i block[4][4];
};
KVSCOUT_VNNI_INLINE void load_rows(const std::uint8_t* first, std::int64_t row_stride, int q,
                                   StepRows& rows) {
  const std::int64_t stride = hidden(row_stride);
  blocks_of_rows(first + 32 * q * stride, stride, rows.block[q]);
}
KVSCOUT_VNNI_INLINE void load_rows(const std::uint8_t* first, std::int64_t stride, StepRows& rows) {
  KVSCOUT_UNROLL
  for (int q = 0; q < 4; ++q) load_rows(first, stride, q, rows);
}

// Calls take(g, group) for the groups of the keys of a step, in order, each when the next one is
// ready: a processor does not look far enough ahead for that (3% of 8 rows). `rows` are the step's,
// and become the next one's (another 3% of 4 rows), of which the first lies at `next`;
// after the last step any that can be read.
template <bool kPlain, class Take>
KVSCOUT_VNNI_INLINE void each_group(const KeySource& source, int step, StepRows& rows,
                                    const std::uint8_t* next, const Take& take) {
  const __m512i table = table_of(kDoubledPlus12);
  const StepRows now = rows;
  ScaleBytes scales;
  KeyGroup ready;
  const auto take_ready = [&](int g) KVSCOUT_VNNI_LAMBDA {
    ready.scale = scales_of<kPlain>(scales, g);
    ready.offset = _mm512_mul_ps(ready.scale, _mm512_set1_ps(-kBias));
    take(g, ready);
  };
  KVSCOUT_UNROLL
  for (int c = 0; c < 4; ++c) {
    prefetch_next(source, 4 * step + c);
    __m512i dwords[4];
    dwords_of_block(now.block[0][c], now.block[1][c], now.block[2][c], now.block[3][c], dwords);
    KVSCOUT_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Nibbles x = look_up(dwords[2 * half], table);
      const Nibbles y = look_up(dwords[2 * half + 1], table);
      __m512i next_dwords[4] = {x.low, x.high, y.low, y.high};
      keep_here(next_dwords);
      if (2 * c + half > 0) take_ready(2 * c + half - 1);
      if (c % 2 == 0 && half == 0)
        scales = load_scales<kPlain>(source.scales + c / 2 * 512 + 64 * step);
      KVSCOUT_UNROLL
      for (int i = 0; i < 4; ++i) ready.dwords[i] = next_dwords[i];
    }
    load_rows(next, source.stride, c, rows);
  }
  take_ready(7);
}

// Adds group g to the logits of rows: of each four dot products and two fma. All rows take one step
// before any takes the next, or the processor finds too few that do not wait for the one before (by
// 10 to 15%). kDown: the rows' scales are taken times kPlainDown.
template <int kQueries, bool kDown = false>
KVSCOUT_VNNI_INLINE void add_group(const QueryRow* q, int g, const KeyGroup& k,
                                   __m512 (&logit)[kQueries]) {
  __m512i sum[kQueries];
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) sum[r] = _mm512_set1_epi32(q[r].correction[g]);
  KVSCOUT_UNROLL
  for (int t = 0; t < 4; ++t) {
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r)
      sum[r] = add_products(sum[r], k.dwords[t], q[r].data[4 * g + t]);
  }
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) {
    const __m512 scaled = _mm512_fmadd_ps(_mm512_castsi512_ps(sum[r]), k.scale, k.offset);
    __m512 scale = _mm512_set1_ps(q[r].scale[g]);
    if (kDown) scale = _mm512_mul_ps(scale, _mm512_set1_ps(kPlainDown));
    logit[r] = _mm512_fmadd_ps(scaled, scale, logit[r]);
  }
}

KVSCOUT_VNNI_INLINE __m512 larger_of_pairs(__m512 a, __m512 b) {
  return _mm512_max_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}
KVSCOUT_VNNI_INLINE __m512 larger_of_fours(__m512 a, __m512 b) {
  const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
  return _mm512_max_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}
KVSCOUT_VNNI_INLINE __m512 larger_of_blocks(__m512 a, __m512 b) {  // of 128 bits
  return _mm512_max_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

// The largest lane of each vector: lane r is that of x[r]. (Of eight 24 instructions, where one
// after the other takes 64.)
template <int kVectors>
KVSCOUT_VNNI_INLINE __m512 largest_of(const __m512 (&x)[kVectors]) {
  const auto at = [&](int r) KVSCOUT_VNNI_LAMBDA { return x[r < kVectors ? r : kVectors - 1]; };
  __m512 four[4];
  KVSCOUT_UNROLL
  for (int i = 0; i < 4; ++i)
    four[i] = larger_of_fours(larger_of_pairs(at(4 * i), at(4 * i + 1)),
                              larger_of_pairs(at(4 * i + 2), at(4 * i + 3)));
  return larger_of_blocks(larger_of_blocks(four[0], four[1]), larger_of_blocks(four[2], four[3]));
}

}  // namespace kvscout::cpu::vnni
