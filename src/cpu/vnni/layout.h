// NVFP4 x NVFP4 with the byte dot product of AVX-512 (VNNI) and its byte permutation (VBMI): Ice
// Lake and later, Zen 4 and later. Arithmetic as in tile.h; everything that is not here comes from
// the AVX-512 code. queries.cpp has lanes = query rows and scales through a table, for AMD;
// block.cpp has lanes = keys, for Intel; keys.cpp has lanes = keys for few rows, for both.
//
// Order of a row's dwords, for queries: group by group, of each group's two dwords of codes the low
// nibbles of the first, its high ones, then those of the second. An unpacked key keeps the low
// nibbles of all dwords, then the high ones, so that nothing has to be interleaved.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/tile.h"

#define KVSCOUT_VNNI                                                                       \
  __attribute__((                                                                          \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx512vbmi,avx2,fma," \
             "bmi,bmi2")))
#define KVSCOUT_VNNI_LAMBDA KVSCOUT_VNNI __attribute__((always_inline))
#define KVSCOUT_VNNI_INLINE KVSCOUT_VNNI_LAMBDA inline
// Sanitized, a check at every access sixteen times over would cost clang minutes.
#ifdef KVSCOUT_SANITIZED
#define KVSCOUT_UNROLL
#else
#define KVSCOUT_UNROLL _Pragma("GCC unroll 16")
#endif

namespace kvscout::cpu::vnni {

inline constexpr int kRows = 16;         // lanes
inline constexpr int kMostFewRows = 12;  // of score_keys: more are faster in a block

struct alignas(64) QueryVector {
  std::int8_t data[32][kRows][4];
  std::int32_t correction[8][kRows];   // and kBiasBits
  float scale[8][kRows];               // a quarter of the scale
  std::uint32_t code[8][kRows];        // where scales go through a table
  alignas(64) std::uint16_t nan_rows;  // rows with a scale that `code` cannot express
};

// Where lanes are keys, a row's numbers are broadcast from memory: one row, packed densely.
struct alignas(64) QueryRow {
  std::int8_t data[32][4];
  std::int32_t correction[8];  // and kBiasBits
  float scale[8];              // of a row for score_keys times kPlainUp
};
static_assert(sizeof(QueryRow) == 192 && sizeof(QueryRow) <= sizeof(QueryVector));

// Scale bytes that are zero or positive, normal numbers, shifted to where floats have their
// exponents and highest fraction bits, are floats already, kPlainDown times as large.
inline constexpr float kPlainUp = 0x1p120f, kPlainDown = 0x1p-120f;

// 64 bytes of codes through a table: low and high nibbles. (vpermb looks at six bits of its index;
// the table repeats every sixteen bytes.)
struct Nibbles {
  __m512i low, high;
};
KVSCOUT_VNNI_INLINE Nibbles look_up(__m512i codes, __m512i table) {
  return {_mm512_permutexvar_epi8(codes, table),
          _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table)};
}
KVSCOUT_VNNI_INLINE __m512i table_of(const void* sixteen_bytes) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(sixteen_bytes)));
}

// The same number, hidden from the compiler: it would compute all addresses of a block beforehand,
// keep them in memory, and 150 more instructions would lie between a block and the next.
KVSCOUT_VNNI_INLINE std::int64_t hidden(std::int64_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Fetches the n-th four keys of the next block (n = 0 to 31), and with every other four a line of
// scales. Called all along: many lines at once would wait for each other. In the order in which
// they lie, so that the hardware fetches some itself (5% of 8 rows from the third-level cache).
KVSCOUT_VNNI_INLINE void prefetch_next(const KeySource& source, int n) {
  if (!source.next.rows) return;
  const std::int64_t stride = hidden(source.stride);
  const std::uint8_t* rows = source.next.rows + 4 * n * stride;
  KVSCOUT_UNROLL
  for (int r = 0; r < 4; ++r) __builtin_prefetch(rows + r * stride);
  if (n % 2 == 0) __builtin_prefetch(source.next.scales + 32 * n);
}

// Whether one of a block's 1024 scale bytes is NaN.
KVSCOUT_VNNI_INLINE bool any_nan(const std::uint8_t* scales) {
  const __m512i seven_bits = _mm512_set1_epi8(0x7F);
  __m512i most = _mm512_setzero_si512();
  for (int i = 0; i < 1024; i += 64)
    most = _mm512_max_epu8(most, _mm512_and_si512(_mm512_loadu_si512(scales + i), seven_bits));
  return _mm512_cmpeq_epi8_mask(most, seven_bits) != 0;
}

// pack.cpp: rows side by side (one, if it is repeated), and turned, with QueryVector::code.
void pack_rows(const QuerySource& source, void* rows);
void pack_vector(const QuerySource& source, void* vector);

// queries.cpp, block.cpp
Route table_route();
Route block_route();

// keys.cpp
void score_keys(const void* tile, int rows, const KeyPlace* keys, int blocks, std::int64_t stride,
                const std::int32_t* visible, float* best);

// marks.cpp
int list_marks(const std::uint8_t* bits, int columns, std::int32_t* list);

// 32 bytes each of a row and the next one.
KVSCOUT_VNNI_INLINE __m512i halves_of_rows(const std::uint8_t* row, std::int64_t stride) {
  const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + stride));
  const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), next, 1);
}

// Block c (16 bytes) of four rows, side by side, for c = 0 .. 3. The first step is done by loads:
// shuffles have one port only, insertions from memory two.
KVSCOUT_VNNI_INLINE void blocks_of_rows(const std::uint8_t* row, std::int64_t stride,
                                        __m512i* out) {
  const std::uint8_t* third = row + 2 * stride;
  const __m512i x = halves_of_rows(row, stride), y = halves_of_rows(row + 32, stride);
  const __m512i z = halves_of_rows(third, stride), w = halves_of_rows(third + 32, stride);
  out[0] = _mm512_shuffle_i32x4(x, z, 0x88);
  out[1] = _mm512_shuffle_i32x4(x, z, 0xDD);
  out[2] = _mm512_shuffle_i32x4(y, w, 0x88);
  out[3] = _mm512_shuffle_i32x4(y, w, 0xDD);
}

// Sixteen bytes each of keys r + 32q, q = 0 .. 3, side by side, for four r -> their four dwords,
// lanes in the order of the scales.
KVSCOUT_VNNI_INLINE void dwords_of_block(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* out) {
  const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
  const __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab0, cd0);
  out[1] = _mm512_unpackhi_epi64(ab0, cd0);
  out[2] = _mm512_unpacklo_epi64(ab1, cd1);
  out[3] = _mm512_unpackhi_epi64(ab1, cd1);
}

}  // namespace kvscout::cpu::vnni
