// Queries as tiles of bfloat16, once a call and tile of the plan.
#if defined(__x86_64__)

#include "cpu/amx/layout.h"

namespace kvscout::cpu::amx {
namespace {

// Word of a group's four, and how far to turn it to the left, for each place of a group in
// QueryTile.
struct Places {
  alignas(64) std::uint16_t word[4][32];  // [two groups]
  alignas(64) std::uint16_t turn[32];
  alignas(64) std::uint16_t group[4][32];
};
constexpr Places make_places() {
  Places p{};
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned place = i % 16, t = place / 2, half = place % 2;
    for (unsigned two = 0; two < 4; ++two) {
      const unsigned g = 2 * two + i / 16;
      p.word[two][i] = static_cast<std::uint16_t>(4 * g + 2 * (t / 4) + half);
      p.group[two][i] = static_cast<std::uint16_t>(g);
    }
    p.turn[i] = static_cast<std::uint16_t>((24 - t % 4 * 4) % 16);
  }
  return p;
}
constexpr Places kPlaces = make_places();

// Element of two groups for each place of them in QueryTiles.
struct Elements {
  alignas(64) std::uint16_t of[kPairDepth];
};
constexpr Elements make_elements() {
  Elements e{};
  for (unsigned i = 0; i < kPairDepth; ++i)
    e.of[i] = static_cast<std::uint16_t>(i / 2 + i % 2 * 16);
  return e;
}
constexpr Elements kElements = make_elements();

// Where exponents are in bfloat16, and what the factor 2^112 adds to them.
constexpr int kExponent = 7, kFactor = 112;

KVSCOUT_AMX_INLINE __m512i times_factor(__m512i x, int magnitude, int exponent) {
  const __mmask32 nonzero =
      _mm512_test_epi16_mask(x, _mm512_set1_epi16(static_cast<short>(magnitude)));
  return _mm512_mask_add_epi16(x, nonzero, x,
                               _mm512_set1_epi16(static_cast<short>(exponent << kExponent)));
}

}  // namespace

KVSCOUT_AMX void pack(const QuerySource& source, void* vector) {
  auto& tiles = *static_cast<QueryTiles<kGroupDepth>*>(vector);
  const Constants constant = constants();
  const __m512i seven_bits = _mm512_set1_epi16(0x7F);
  for (int row = 0; row < kRows; ++row) {
    const __m512i codes = _mm512_loadu_si512(source.rows[row]);
    const __m512i bytes = _mm512_and_si512(
        _mm512_castsi128_si512(
            _mm_cvtepu8_epi16(_mm_cvtsi64_si128(static_cast<long long>(source.scales[row])))),
        seven_bits);
    for (int two = 0; two < 4; ++two) {
      const __m512i words = _mm512_permutexvar_epi16(_mm512_load_si512(kPlaces.word[two]), codes);
      const __m512i turned = _mm512_shldv_epi16(words, words, _mm512_load_si512(kPlaces.turn));
      const __m512i scale = _mm512_permutexvar_epi16(_mm512_load_si512(kPlaces.group[two]), bytes);
      __m512i x = scaled(turned, _mm512_slli_epi16(scale, 7), constant);
      x = times_factor(x, 0x0FFF, 2 * kFactor);  // `scaled` put 2^-112 there
      x = _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(scale, seven_bits),
                                _mm512_set1_epi16(kNan));
      _mm256_store_si256(reinterpret_cast<__m256i*>(tiles.data[2 * two][row]),
                         _mm512_castsi512_si256(x));
      _mm256_store_si256(reinterpret_cast<__m256i*>(tiles.data[2 * two + 1][row]),
                         _mm512_extracti64x4_epi64(x, 1));
    }
  }
}

KVSCOUT_AMX void pack_bf16(const QuerySource& source, void* vector) {
  auto& tiles = *static_cast<QueryTiles<kPairDepth>*>(vector);
  const __m512i elements = _mm512_load_si512(kElements.of);
  for (int row = 0; row < kRows; ++row)
    for (int two = 0; two < kHeadDim / kPairDepth; ++two) {
      const __m512i x = _mm512_loadu_si512(source.rows[row] + 2 * kPairDepth * two);
      _mm512_store_si512(tiles.data[two][row],
                         times_factor(_mm512_permutexvar_epi16(elements, x), 0x7FFF, kFactor));
    }
}

// Zeros, and magnitudes from 2^-109 to below 2^16.
KVSCOUT_AMX bool takes(const QuerySource& source) {
  constexpr short kLeast = (127 - 109) << kExponent, kBeyond = (127 + 16) << kExponent;
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF), least = _mm512_set1_epi16(kLeast),
                range = _mm512_set1_epi16(kBeyond - kLeast);
  __mmask32 others = 0;
  for (int row = 0; row < kRows; ++row)
    for (int two = 0; two < kHeadDim / kPairDepth; ++two) {
      const __m512i x =
          _mm512_and_si512(_mm512_loadu_si512(source.rows[row] + 2 * kPairDepth * two), magnitude);
      others |= _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(x, x),
                                             _mm512_sub_epi16(x, least), range);
    }
  return others == 0;
}

}  // namespace kvscout::cpu::amx

#endif
