// Scores on the tile registers of AMX (Sapphire Rapids and later): NVFP4 queries against NVFP4
// keys, and bf16 queries against keys of NVFP4, e4m3 and bf16.
//
// TDPBF16PS adds up the products of the K dimension in two chains of fma from zero, over the first
// and over the second elements of its pairs, then the two, and adds that to the accumulator.
//
// NVFP4 queries. The byte dot product needs the scales afterwards, for every group of 16, row and
// key. Here they come first: code times scale has six significant bits, so bfloat16 holds it
// exactly, and all sums of a group's 16 products fit float32 exactly: one instruction with K = 16
// is one group, eight of them in order are the contract's sum, bit by bit. No vector instruction is
// left between the first group and the maximum.
//
// bf16 queries. K = 32, the pairs are elements n of two neighbouring groups, so one instruction is
// two steps of the documented order (score_float-inl.h).
//
// Key values are kept times 2^-112, query values times 2^112: a half-precision product shifted
// right by three bits is the bfloat16 of 2^-112 times it (the exponents' biases are 15 and 127),
// and zero stays zero. AMX ignores the rounding mode and flushes subnormals, which do not occur:
// keys are multiples of 2^-10, bf16 queries that `takes` lets through multiples of 2^-116, so
// everything that is added up is 0 or at least 2^-126, and with queries below 2^16 finite. Keys of
// bf16 stay as they are; there both sides are multiples of 2^-63.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/vnni/layout.h"

#define KVSCOUT_AMX                                                                               \
  __attribute__((target(                                                                          \
      "avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx512vbmi,avx512vbmi2,avx512fp16," \
      "amx-tile,"                                                                                 \
      "amx-bf16,avx2,fma,bmi,bmi2")))
#define KVSCOUT_AMX_INLINE KVSCOUT_AMX __attribute__((always_inline)) inline

namespace kvscout::cpu::amx {

inline constexpr int kRows = 16;    // query rows of a tile, keys of another
inline constexpr int kFewRows = 8;  // for which tiles of half the height take half the time
inline constexpr int kPage = 4096;
// Of 16 keys: 4c + r + 32q, r and q = 0 .. 3 (vnni/keys.cpp); masked blocks and those of plain.cpp
// in order.
inline constexpr int kChunks = 8;

// A product takes kDepth elements, pairs t of which lie side by side.
// A group of NVFP4 queries: pair 4d + s is elements 8d + s and 8d + 4 + s, nibble s of both words
// of dword d of the codes. Two groups of bf16 queries: pair n is element n of both.
inline constexpr int kGroupDepth = 16, kPairDepth = 32;
template <int kDepth>
struct alignas(64) QueryTiles {
  std::uint16_t data[kHeadDim / kDepth][kRows][kDepth];  // pair t of a tile's row at 2t
};
struct KeyTiles {
  std::uint16_t data[kHeadDim / 2][kRows][2];  // [pair][key]
};
struct Sums {
  float of[kRows][kRows];  // [row][key]
};

// A load whose address equals that of a store on its way but for the page waits for it, and the
// sums of a tile come late: they lie in the second half of their page, so that tiles of the first
// four groups, in the first half of theirs, are not held up. All start at pages (TileScorer).
struct alignas(kPage) KeyBlock {
  struct Vector {
    float maxima[kRows][kRows];  // so far: [row][key % 16]
    KeySource source;            // of the first vector
    alignas(kPage / 2) Sums sums[2];
  };
  KeyTiles chunk[kChunks];
  Vector vector[2];
  std::uint8_t rows[kBlock][kHeadDim / 2];  // where not all rows see all 128 keys: those that
  std::uint32_t scales[2][kBlock];          // exist, in an order of their own (keys.h)
  bool few;                                 // of the tile of queries: kFewRows at most
};
static_assert(sizeof(QueryTiles<kPairDepth>) == kPage && sizeof(KeyTiles) == kPage);
static_assert(sizeof(KeyBlock::Vector) == kPage);

// Nibble -> 256 times the value of its code, the high byte in half precision (the other is zero).
inline constexpr std::uint8_t kHalves[16] = {0x00, 0x58, 0x5C, 0x5E, 0x60, 0x62, 0x64, 0x66,
                                             0x80, 0xD8, 0xDC, 0xDE, 0xE0, 0xE2, 0xE4, 0xE6};

// What `scaled` needs, in registers: compilers would build it anew for every group, on the port of
// the shuffles.
struct Constants {
  __m512i table, factor, kept;
  __mmask64 high;
};
KVSCOUT_AMX_INLINE Constants constants() {
  Constants c{vnni::table_of(kHalves), _mm512_set1_epi16(1 << 13),
              _mm512_set1_epi16(static_cast<short>(0x8FFF)), 0xAAAAAAAAAAAAAAAA};
  asm("" : "+v"(c.table), "+v"(c.factor), "+v"(c.kept), "+Yk"(c.high));
  return c;
}

KVSCOUT_AMX_INLINE __m512i product_of_halves(__m512i x, __m512i y) {
  __m512i product;  // clang 14 has the instruction, but no header for it
  asm("vmulph %2, %1, %0" : "=v"(product) : "v"(x), "v"(y));
  return product;
}
// An arithmetic shift by three as a multiplication: two ports do it, shifts have one.
KVSCOUT_AMX_INLINE __m512i shifted(__m512i halves, const Constants& c) {
  return _mm512_and_si512(_mm512_mulhi_epi16(halves, c.factor), c.kept);
}

// Codes in the low nibbles of the high bytes of words, times scales: 2^-112 times the product in
// bfloat16. Scales are (byte & 0x7F) << 7, which is 1/256 of their value in half precision.
KVSCOUT_AMX_INLINE __m512i scaled(__m512i codes, __m512i scales, const Constants& c) {
  const __m512i x = _mm512_maskz_permutexvar_epi8(c.high, codes, c.table);
  return shifted(product_of_halves(x, scales), c);
}
inline constexpr short kNan = 0x7FC0;

// Which bf16 numbers products are safe with (above): 0, and magnitudes from 2^lowest to below
// 2^beyond; queries are multiplied by 2^factor.
struct Range {
  int lowest, beyond, factor;
};
inline constexpr Range kScaled{-109, 16, 112};  // queries for keys times 2^-112
inline constexpr Range kPlain{-56, 56, 0};      // queries and keys of bf16

// Of 128 numbers: those outside the range.
template <Range kRange>
KVSCOUT_AMX_INLINE __mmask32 outside(const std::uint8_t* row) {
  constexpr short kLeast = (127 + kRange.lowest) << 7, kBeyond = (127 + kRange.beyond) << 7;
  __mmask32 found = 0;
  for (int two = 0; two < kHeadDim / kPairDepth; ++two) {
    const __m512i x =
        _mm512_and_si512(_mm512_loadu_si512(row + 2 * kPairDepth * two), _mm512_set1_epi16(0x7FFF));
    found |= _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(x, x),
                                          _mm512_sub_epi16(x, _mm512_set1_epi16(kLeast)),
                                          _mm512_set1_epi16(kBeyond - kLeast));
  }
  return found;
}

// Elements of two groups in pairs.
KVSCOUT_AMX_INLINE __m512i pair_elements() {
  alignas(64) static constexpr std::uint16_t kElements[kPairDepth] = {
      0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_load_si512(kElements);
}

// pack.cpp
void pack(const QuerySource& source, void* vector);
template <Range kRange>
KVSCOUT_AMX void pack_bf16(const QuerySource& source, void* vector);
template <Range kRange>
KVSCOUT_AMX bool takes(const QuerySource& source);

// plain.cpp
void unpack_bf16(const KeySource& source, void* block);
void unpack_e4m3(const KeySource& source, void* block);
bool takes_keys(const KeySource& source);  // of bf16

// score.cpp
void unpack(const KeySource& source, void* block);
template <int kDepth>
KVSCOUT_AMX void score(const void* tiles, int vectors, const void* block,
                       const std::int32_t* visible, float* best);
template <int kDepth>
KVSCOUT_AMX void enter(int rows, void* block);
void score_unpacked(const void* tiles, int vectors, const void* block, const std::int32_t* visible,
                    float* best);  // of bf16 queries
void leave();

}  // namespace kvscout::cpu::amx
