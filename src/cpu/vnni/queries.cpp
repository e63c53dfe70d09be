// Lanes = query rows: a block of keys is unpacked once and met by all vectors of a tile.
//
// Bound: multiplications. On Zen 4 all of them share two 256-bit pipes: of a group of 16 four dot
// products, one fma, and the product of the two scales. That last one is replaced by a permutation
// and an addition where all scales are numbers: with qs = 2^E (1 + m/8), code = E<<23 | m, and a
// table of 16 words for each key scale, bits(ks/4 (1 + m/8)) - m, the word that m selects plus the
// code is the product's bit pattern. Zero scales are folded into the data, a block with a NaN takes
// the way with the multiplication. Measured (Zen 4): 352 against 305 GFLOP/s.
//
// Intel has two ports for all 512-bit arithmetic and one of them for permutations, so there the
// bound is the number of instructions: block.cpp has six a group, the table eight.
#if defined(__x86_64__)

#include <cstring>

#include "cpu/vnni/layout.h"
#include "kvscout/nvfp4.h"

namespace kvscout::cpu::vnni {

namespace {

// For each scale byte the words of the comment above.
struct alignas(64) Products {
  std::uint32_t word[128][16];
};
constexpr Products make_products() {
  Products p{};
  for (unsigned byte = 0; byte < nvfp4::kNanScale; ++byte)
    for (unsigned m = 0; m < 16; ++m) {
      // A zero scale has zero data; its product may be anything but an infinity or a NaN.
      const float value = byte ? nvfp4::e4m3_to_float(static_cast<std::uint8_t>(byte)) : 1.0f;
      p.word[byte][m] =
          nvfp4::bits_of(0.25f * value * (1.0f + static_cast<float>(m % 8) / 8.0f)) - m % 8;
    }
  return p;
}
constexpr Products kProducts = make_products();

// Scales stay in page form, so that a vector of them is stored as it was computed.
struct alignas(64) KeyBlock {
  std::uint8_t data[kBlock][kHeadDim];  // of each key 64 low nibbles, 64 high ones
  std::uint32_t scale[2][32][4][4];     // of group half*4 + i, key r + 32*q: [half][r][q][i]
  bool nan;                             // `scale` is a float, otherwise an offset into kProducts
};
static_assert(sizeof(Products::word[0]) == 64);

// Zero scales as zero data, which kProducts needs: eight bytes of codes are a group.
KVSCOUT_VNNI void fold_zero_scales(const KeySource& source, KeyBlock& b) {
  for (int j = 0; j < source.count; ++j)
    for (int g = 0; g < 8; ++g) {
      const std::uint8_t byte = source.scales[g / 4 * 512 + j % 32 * 16 + j / 32 * 4 + g % 4];
      if ((byte & 0x7F) != 0) continue;
      std::memset(b.data[j] + 8 * g, 12, 8);
      std::memset(b.data[j] + 64 + 8 * g, 12, 8);
    }
}

// Data of keys that do not exist is whatever was there: integers all the same, and nobody sees
// them.
KVSCOUT_VNNI void unpack(const KeySource& source, void* block) {
  auto& b = *static_cast<KeyBlock*>(block);
  const __m512i table = table_of(kDoubledPlus12);
  for (int j = 0; j < source.count; ++j) {
    const Nibbles n = look_up(_mm512_loadu_si512(source.rows + j * source.stride), table);
    _mm512_store_si512(b.data[j], n.low);
    _mm512_store_si512(b.data[j] + 64, n.high);
  }
  b.nan = any_nan(source.scales);
  __mmask16 zeros = 0;
  for (int i = 0; i < 64; ++i) {
    const __m512i bytes = _mm512_cvtepu8_epi32(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(source.scales + 16 * i)));
    const __m512i magnitude = _mm512_and_si512(bytes, _mm512_set1_epi32(0x7F));
    std::uint32_t* to = reinterpret_cast<std::uint32_t*>(b.scale) + 16 * i;
    if (!b.nan) {
      zeros = static_cast<__mmask16>(zeros | _mm512_testn_epi32_mask(magnitude, magnitude));
      _mm512_store_si512(to, _mm512_slli_epi32(magnitude, 6));
      continue;
    }
    const __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)),
                                       _mm512_set1_ps(0x1p120f));
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
    _mm512_store_ps(to, _mm512_mask_mov_ps(value, is_nan, _mm512_set1_ps(__builtin_nanf(""))));
  }
  if (__builtin_expect(zeros != 0, 0)) fold_zero_scales(source, b);
}

// kKeys keys against kVectors vectors, scales through the table or multiplied.
template <int kKeys, int kVectors, bool kTable, bool kMasked>
KVSCOUT_VNNI_INLINE void tile(const QueryVector* q, const KeyBlock& b, int first,
                              const std::int32_t* visible, __m512* best) {
  const std::uint32_t(*scales)[4] = b.scale[0][first % 32] + first / 32;  // the next key: + 4
  __m512 logit[kKeys][kVectors];
  KVSCOUT_UNROLL
  for (int i = 0; i < kKeys; ++i) {
    KVSCOUT_UNROLL
    for (int v = 0; v < kVectors; ++v) logit[i][v] = _mm512_setzero_ps();
  }
  for (int g = 0; g < 8; ++g) {
    __m512i sum[kKeys][kVectors];
    KVSCOUT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m512i correction = _mm512_load_si512(q[v].correction[g]);
      KVSCOUT_UNROLL
      for (int i = 0; i < kKeys; ++i) sum[i][v] = correction;
    }
    KVSCOUT_UNROLL
    for (int t = 0; t < 4; ++t) {
      __m512i rows[kVectors];
      KVSCOUT_UNROLL
      for (int v = 0; v < kVectors; ++v) rows[v] = _mm512_load_si512(q[v].data[4 * g + t]);
      KVSCOUT_UNROLL
      for (int i = 0; i < kKeys; ++i) {
        std::int32_t dword;
        std::memcpy(&dword, b.data[first + i] + 64 * (t % 2) + 8 * g + 4 * (t / 2), 4);
        const __m512i key = _mm512_set1_epi32(dword);
        KVSCOUT_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], key, rows[v]);
      }
    }
    const std::uint32_t* of_group = scales[g / 4 * 128] + g % 4;
    KVSCOUT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m512i code = _mm512_load_si512(q[v].code[g]);
      const __m512 qs = _mm512_load_ps(q[v].scale[g]);
      KVSCOUT_UNROLL
      for (int i = 0; i < kKeys; ++i) {
        __m512 scale;
        if (kTable) {
          const __m512i words =
              _mm512_load_si512(reinterpret_cast<const char*>(kProducts.word) + of_group[16 * i]);
          scale =
              _mm512_castsi512_ps(_mm512_add_epi32(_mm512_permutexvar_epi32(code, words), code));
        } else {
          scale = _mm512_mul_ps(qs, _mm512_set1_ps(nvfp4::float_of(of_group[16 * i])));
        }
        const __m512 value = _mm512_sub_ps(_mm512_castsi512_ps(sum[i][v]), _mm512_set1_ps(kBias));
        logit[i][v] = _mm512_fmadd_ps(value, scale, logit[i][v]);
      }
    }
  }
  KVSCOUT_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    KVSCOUT_UNROLL
    for (int i = 0; i < kKeys; ++i) {
      if (kMasked) {
        const __mmask16 seen = _mm512_cmpgt_epi32_mask(_mm512_loadu_si512(visible + v * kRows),
                                                       _mm512_set1_epi32(first + i));
        best[v] = _mm512_mask_max_ps(best[v], seen, logit[i][v], best[v]);
      } else {
        best[v] = _mm512_max_ps(logit[i][v], best[v]);  // a NaN logit leaves best
      }
    }
  }
}

template <int kKeys, int kVectors, bool kTable>
KVSCOUT_VNNI_INLINE void vectors_by_block(const QueryVector* q, const KeyBlock& b,
                                          const std::int32_t* visible, float* best) {
  static_assert(32 % kKeys == 0, "the scales of a step's keys are neighbours in page form");
  int least = kBlock, most = visible ? 0 : kBlock;
  for (int r = 0; visible && r < kVectors * kRows; ++r) {
    least = visible[r] < least ? visible[r] : least;
    most = visible[r] > most ? visible[r] : most;
  }
  __m512 maxima[kVectors];
  KVSCOUT_UNROLL
  for (int v = 0; v < kVectors; ++v) maxima[v] = _mm512_set1_ps(-__builtin_inff());
  if (least == kBlock) {
    for (int j = 0; j < kBlock; j += kKeys)
      tile<kKeys, kVectors, kTable, false>(q, b, j, visible, maxima);
  } else {
    for (int j = 0; j < most; j += kKeys)
      tile<kKeys, kVectors, kTable, true>(q, b, j, visible, maxima);
  }
  KVSCOUT_UNROLL
  for (int v = 0; v < kVectors; ++v) {  // a row with a NaN scale has nothing but NaN logits
    if (kTable)
      maxima[v] = _mm512_mask_mov_ps(maxima[v], q[v].nan_rows, _mm512_set1_ps(-__builtin_inff()));
    _mm512_storeu_ps(best + v * kRows, maxima[v]);
  }
}

KVSCOUT_VNNI void score(const void* tiles, int vectors, const void* block,
                        const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryVector*>(tiles);
  const auto& b = *static_cast<const KeyBlock*>(block);
  for (int v = 0; v < vectors;) {
    const std::int32_t* seen = visible ? visible + v * kRows : nullptr;
    const bool two = v + 2 <= vectors;
    if (!b.nan) {
      if (two)
        vectors_by_block<4, 2, true>(q + v, b, seen, best + v * kRows);
      else
        vectors_by_block<8, 1, true>(q + v, b, seen, best + v * kRows);
    } else if (two) {
      vectors_by_block<4, 2, false>(q + v, b, seen, best + v * kRows);
    } else {
      vectors_by_block<8, 1, false>(q + v, b, seen, best + v * kRows);
    }
    v += two ? 2 : 1;
  }
}

}  // namespace

Route table_route() {
  return {.vector_bytes = sizeof(QueryVector),
          .block_bytes = sizeof(KeyBlock),
          .pack = pack_vector,
          .unpack = unpack,
          .score = score};
}

}  // namespace kvscout::cpu::vnni

#endif
