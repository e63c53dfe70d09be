// From codes and scales of a block's keys to pairs of bfloat16 (layout.h).
#pragma once

#include <cstring>

#include "cpu/amx/layout.h"

namespace kvscout::cpu::amx {

// Where not all rows see all keys, keys are put in order first, so that chunk c holds keys 16c ..
// 16c + 15: what nobody sees is left out by chunks, half of the causal diagonal for one.
inline void put_in_order(KeyBlock& b) {
  KeySource& s = b.vector[0].source;
  for (int j = 0; j < s.count; ++j)
    std::memcpy(b.rows[j / 4 + 32 * (j % 4)], s.rows + j * s.stride, sizeof b.rows[j]);
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < kBlock; ++j)
      std::memcpy(&b.scales[half][j], s.scales + half * 512 + (j % 32 * 4 + j / 32) * 4, 4);
  s.rows = b.rows[0];
  s.stride = sizeof b.rows[0];
  s.scales = reinterpret_cast<const std::uint8_t*>(b.scales);
  s.next = {};  // it lies otherwise
}

// 16 bytes of a row are two groups: their words in turn, for pairs of both.
KVSCOUT_AMX_INLINE __m512i words_in_turn(__m512i blocks) {
  return _mm512_shuffle_epi8(blocks, _mm512_broadcast_i32x4(_mm_setr_epi8(
                                         0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15)));
}

// Half of the pairs of groups 2i and 2i + 1, from two dwords.
template <int kDepth, bool kNans>
KVSCOUT_AMX_INLINE void store_half(const __m512i* dwords, __m512i scale_bytes, int i, int half,
                                   const Constants& constant, KeyTiles& tiles) {
  // The bytes of the groups of low and high words.
  const char low = static_cast<char>(2 * i % 4 + (kDepth == kGroupDepth ? half : 0));
  const char high = static_cast<char>(2 * i % 4 + (kDepth == kGroupDepth ? half : 1));
  const auto of_key = [](char byte, int key) { return static_cast<char>(byte + 4 * key); };
  const __m512i spread = _mm512_broadcast_i32x4(
      _mm_setr_epi8(low, -1, high, -1, of_key(low, 1), -1, of_key(high, 1), -1, of_key(low, 2), -1,
                    of_key(high, 2), -1, of_key(low, 3), -1, of_key(high, 3), -1));
  const __m512i bytes = _mm512_shuffle_epi8(scale_bytes, spread);
  const __m512i scale = _mm512_slli_epi16(bytes, 7);
  __mmask32 nans = 0;
  if (kNans) nans = _mm512_cmpeq_epi16_mask(bytes, _mm512_set1_epi16(0x7F));
  KVSCOUT_UNROLL
  for (int n = 0; n < 2; ++n) {
    KVSCOUT_UNROLL
    for (int s = 0; s < 4; ++s) {
      const __m512i codes = s == 0   ? _mm512_slli_epi16(dwords[n], 8)
                            : s == 1 ? _mm512_slli_epi16(dwords[n], 4)
                            : s == 2 ? dwords[n]
                                     : _mm512_srli_epi16(dwords[n], 4);
      __m512i x = scaled(codes, scale, constant);
      if (kNans) x = _mm512_mask_mov_epi16(x, nans, _mm512_set1_epi16(kNan));
      _mm512_store_si512(tiles.data[16 * i + 8 * half + 4 * n + s], x);
    }
  }
}

}  // namespace kvscout::cpu::amx
