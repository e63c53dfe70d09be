// Columns of set bits, for selections: an instruction that moves chosen bytes together (VBMI2,
// which all CPUs with this folder's instructions have) takes 64 bits at a time, without branches.
#if defined(__x86_64__)

#include <array>
#include <bit>
#include <cstring>

#include "cpu/vnni/layout.h"

#define KVSCOUT_VBMI2 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi2,popcnt")))

namespace kvscout::cpu::vnni {

KVSCOUT_VBMI2 int list_marks(const std::uint8_t* bits, int columns, std::int32_t* list) {
  alignas(64) static constexpr auto kBytes = [] {
    std::array<std::uint8_t, 64> x{};
    for (std::size_t i = 0; i < 64; ++i) x[i] = static_cast<std::uint8_t>(i);
    return x;
  }();
  const __m512i bytes = _mm512_load_si512(kBytes.data());
  std::int32_t* next = list;
  for (int c0 = 0; c0 < columns; c0 += 64) {
    std::uint64_t word;
    std::memcpy(&word, bits + c0 / 8, 8);
    const int marked = std::popcount(word);
    __m512i chosen = _mm512_maskz_compress_epi8(word, bytes);
    for (int i = 0; i < 8 || i < marked; i += 8) {
      const __m256i columns_of_eight = _mm256_cvtepu8_epi32(_mm512_castsi512_si128(chosen));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(next + i),
                          _mm256_add_epi32(columns_of_eight, _mm256_set1_epi32(c0)));
      chosen = _mm512_alignr_epi64(chosen, chosen, 1);
    }
    next += marked;
  }
  static_assert(kMoreListed == 16);
  _mm512_storeu_si512(next, _mm512_setzero_si512());
  return static_cast<int>(next - list);
}

}  // namespace kvscout::cpu::vnni

#endif
