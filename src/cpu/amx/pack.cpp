// Queries as tiles of bfloat16, once a call and tile of the plan.
#if defined(__x86_64__)

#include "cpu/amx/layout.h"

namespace kvscout::cpu::amx {
namespace {

// Word of a group's four, and how far to turn it to the left, for each place of a group in
// QueryTiles.
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

// Times 2^exponent, where bits of `magnitude` are set.
KVSCOUT_AMX_INLINE __m512i times_power(__m512i x, int magnitude, int exponent) {
  const __mmask32 nonzero =
      _mm512_test_epi16_mask(x, _mm512_set1_epi16(static_cast<short>(magnitude)));
  return _mm512_mask_add_epi16(x, nonzero, x, _mm512_set1_epi16(static_cast<short>(exponent << 7)));
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
      x = times_power(x, 0x0FFF, 2 * kScaled.factor);  // `scaled` put 2^-112 there
      x = _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(scale, seven_bits),
                                _mm512_set1_epi16(kNan));
      _mm256_store_si256(reinterpret_cast<__m256i*>(tiles.data[2 * two][row]),
                         _mm512_castsi512_si256(x));
      _mm256_store_si256(reinterpret_cast<__m256i*>(tiles.data[2 * two + 1][row]),
                         _mm512_extracti64x4_epi64(x, 1));
    }
  }
}

template <Range kRange>
KVSCOUT_AMX void pack_bf16(const QuerySource& source, void* vector) {
  auto& tiles = *static_cast<QueryTiles<kPairDepth>*>(vector);
  const __m512i elements = pair_elements();
  for (int row = 0; row < kRows; ++row)
    for (int two = 0; two < kHeadDim / kPairDepth; ++two) {
      const __m512i x = _mm512_loadu_si512(source.rows[row] + 2 * kPairDepth * two);
      _mm512_store_si512(tiles.data[two][row],
                         times_power(_mm512_permutexvar_epi16(elements, x), 0x7FFF, kRange.factor));
    }
}

template <Range kRange>
KVSCOUT_AMX bool takes(const QuerySource& source) {
  __mmask32 others = 0;
  for (int row = 0; row < kRows; ++row) others |= outside<kRange>(source.rows[row]);
  return others == 0;
}

template void pack_bf16<kScaled>(const QuerySource&, void*);
template void pack_bf16<kPlain>(const QuerySource&, void*);
template bool takes<kScaled>(const QuerySource&);
template bool takes<kPlain>(const QuerySource&);

}  // namespace kvscout::cpu::amx

#endif
