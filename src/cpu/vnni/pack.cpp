// Queries as the kernels of this folder want them: once a call and tile.
#if defined(__x86_64__)

#include <cstring>

#include "cpu/vnni/layout.h"
#include "kvscout/nvfp4.h"

namespace kvscout::cpu::vnni {
namespace {

KVSCOUT_VNNI_INLINE void store_row(Nibbles n, void* out) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(n.low, first, n.high));
  _mm512_storeu_si512(static_cast<char*>(out) + 64,
                      _mm512_permutex2var_epi32(n.low, second, n.high));
}

// One row of queries, its scales times `up`; groups with a zero scale become zeros.
KVSCOUT_VNNI_INLINE void unpack_query(const std::uint8_t* codes, std::uint64_t scales, float up,
                                      QueryRow& row) {
  Nibbles n = look_up(_mm512_loadu_si512(codes), table_of(kDoubled));
  const __m512i scale =
      _mm512_and_si512(_mm512_cvtepu8_epi64(_mm_cvtsi64_si128(static_cast<long long>(scales))),
                       _mm512_set1_epi64(0x7F));
  const __mmask8 nonzero = _mm512_test_epi64_mask(scale, scale);
  n.low = _mm512_maskz_mov_epi64(nonzero, n.low);
  n.high = _mm512_maskz_mov_epi64(nonzero, n.high);
  store_row(n, row.data);
  const __m512i ones = _mm512_set1_epi8(1);
  __m512i sums = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, n.low);
  sums = _mm512_dpbusd_epi32(sums, ones, n.high);
  sums = _mm512_add_epi32(sums, _mm512_srli_epi64(sums, 32));  // the two dwords of a group
  const __m256i correction =
      _mm256_add_epi32(_mm256_mullo_epi32(_mm512_cvtepi64_epi32(sums), _mm256_set1_epi32(-12)),
                       _mm256_set1_epi32(kBiasBits));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.correction), correction);
  const __m256i magnitude = _mm512_cvtepi64_epi32(scale);
  __m256 value = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(magnitude, 20)),
                               _mm256_set1_ps(0x1p118f));
  value = _mm256_mul_ps(value, _mm256_set1_ps(up));
  const __mmask8 nan = _mm256_cmpeq_epi32_mask(magnitude, _mm256_set1_epi32(nvfp4::kNanScale));
  _mm256_storeu_ps(row.scale, _mm256_mask_mov_ps(value, nan, _mm256_set1_ps(__builtin_nanf(""))));
}

// The dwords of sixteen rows, lanes = rows: those of a vector, in its order.
KVSCOUT_VNNI_INLINE void turn(const QueryRow* rows, QueryVector& v) {
  static_assert(sizeof(QueryRow) == 3 * 64 && offsetof(QueryVector, code) == 48 * 64);
  const auto* from = reinterpret_cast<const std::uint8_t*>(rows);
  auto* to = reinterpret_cast<std::uint8_t*>(&v);
  for (int part = 0; part < 3; ++part) {
    __m512i blocks[4][4];  // [q][block], of rows q + 4r
    KVSCOUT_UNROLL
    for (int q = 0; q < 4; ++q)
      blocks_of_rows(from + 64 * part + q * sizeof(QueryRow), 4 * sizeof(QueryRow), blocks[q]);
    KVSCOUT_UNROLL
    for (int c = 0; c < 4; ++c) {
      __m512i dwords[4];
      dwords_of_block(blocks[0][c], blocks[1][c], blocks[2][c], blocks[3][c], dwords);
      KVSCOUT_UNROLL
      for (int d = 0; d < 4; ++d) _mm512_store_si512(to + (16 * part + 4 * c + d) * 64, dwords[d]);
    }
  }
}

// E<<23 | m of a scale byte that is neither zero nor NaN.
constexpr std::uint32_t code_of(std::uint8_t byte) {
  const std::uint32_t bits = nvfp4::bits_of(nvfp4::e4m3_to_float(byte));
  return ((bits & 0x7F800000u) - (127u << 23)) | ((bits >> 20) & 7u);
}

}  // namespace

KVSCOUT_VNNI void pack_rows(const QuerySource& source, void* rows) {
  auto* row = static_cast<QueryRow*>(rows);
  if (source.repeated) return unpack_query(source.rows[0], source.scales[0], kPlainUp, *row);
  for (int lane = 0; lane < kRows; ++lane)
    unpack_query(source.rows[lane], source.scales[lane], 1, row[lane]);
}

KVSCOUT_VNNI void pack_vector(const QuerySource& source, void* vector) {
  if (source.repeated) return pack_rows(source, vector);
  auto& v = *static_cast<QueryVector*>(vector);
  v.nan_rows = 0;
  QueryRow rows[kRows];
  pack_rows(source, rows);
  turn(rows, v);
  for (int lane = 0; lane < kRows; ++lane) {
    for (int g = 0; g < 8; ++g) {
      const std::uint8_t byte = (source.scales[lane] >> (8 * g)) & 0x7F;
      v.code[g][lane] = byte ? code_of(byte) : 0;
      if (byte == nvfp4::kNanScale) v.nan_rows = static_cast<std::uint16_t>(v.nan_rows | 1 << lane);
    }
  }
}

}  // namespace kvscout::cpu::vnni

#endif
