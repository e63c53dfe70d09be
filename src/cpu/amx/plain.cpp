// Keys of bf16 and e4m3 as tiles, for bf16 queries: all 128 of a block at once, in order.
#if defined(__x86_64__)

#include "cpu/amx/layout.h"

namespace kvscout::cpu::amx {
namespace {

// Dwords of sixteen rows -> rows of their dwords.
KVSCOUT_AMX_INLINE void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  KVSCOUT_UNROLL
  for (int i = 0; i < 16; i += 2) {  // [pair of rows][dwords 0 1, 2 3 of each block]
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  KVSCOUT_UNROLL
  for (int i = 0; i < 16; i += 4) {  // [four rows][dword of each block]
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  KVSCOUT_UNROLL
  for (int d = 0; d < 4; ++d) {  // blocks 0 2 and 1 3 of rows 0 to 7, of rows 8 to 15
    y[d] = _mm512_shuffle_i32x4(x[d], x[4 + d], 0x88);
    y[4 + d] = _mm512_shuffle_i32x4(x[d], x[4 + d], 0xDD);
    y[8 + d] = _mm512_shuffle_i32x4(x[8 + d], x[12 + d], 0x88);
    y[12 + d] = _mm512_shuffle_i32x4(x[8 + d], x[12 + d], 0xDD);
  }
  KVSCOUT_UNROLL
  for (int d = 0; d < 4; ++d) {
    x[d] = _mm512_shuffle_i32x4(y[d], y[8 + d], 0x88);
    x[4 + d] = _mm512_shuffle_i32x4(y[4 + d], y[12 + d], 0x88);
    x[8 + d] = _mm512_shuffle_i32x4(y[d], y[8 + d], 0xDD);
    x[12 + d] = _mm512_shuffle_i32x4(y[4 + d], y[12 + d], 0xDD);
  }
}

struct Bf16 {
  KVSCOUT_AMX_INLINE __m512i load(const std::uint8_t* row, int two) const {
    return _mm512_loadu_si512(row + 2 * kPairDepth * two);
  }
};

// 2^-112 times the value, as of NVFP4 keys (layout.h): a byte shifted left by seven is 1/256 of its
// value in half precision.
struct E4m3 {
  Constants constant;
  KVSCOUT_AMX_INLINE __m512i load(const std::uint8_t* row, int two) const {
    const __m512i bytes = _mm512_cvtepu8_epi16(
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + kPairDepth * two)));
    const __m512i magnitude = _mm512_and_si512(bytes, _mm512_set1_epi16(0x7F));
    const __m512i sign = _mm512_slli_epi16(_mm512_xor_si512(bytes, magnitude), 8);
    const __m512i half = _mm512_or_si512(_mm512_slli_epi16(magnitude, 7), sign);
    return _mm512_mask_mov_epi16(
        shifted(product_of_halves(half, _mm512_set1_epi16(0x5C00)), constant),
        _mm512_cmpeq_epi16_mask(magnitude, _mm512_set1_epi16(0x7F)), _mm512_set1_epi16(kNan));
  }
};

template <class Type>
KVSCOUT_AMX void unpack_rows(const KeySource& source, KeyBlock& b, const Type& type) {
  const __m512i elements = pair_elements();
  for (int first = 0; first < source.count; first += kRows)
    for (int two = 0; two < kHeadDim / kPairDepth; ++two) {
      __m512i rows[kRows];
      KVSCOUT_UNROLL
      for (int r = 0; r < kRows; ++r) {  // beyond the last one: nobody sees it
        const int key = first + r < source.count ? first + r : source.count - 1;
        rows[r] =
            _mm512_permutexvar_epi16(elements, type.load(source.rows + key * source.stride, two));
      }
      transpose(rows);
      KVSCOUT_UNROLL
      for (int t = 0; t < kRows; ++t)
        _mm512_store_si512(b.chunk[first / kRows].data[two * kRows + t], rows[t]);
    }
}

}  // namespace

KVSCOUT_AMX void unpack_bf16(const KeySource& source, void* block) {
  unpack_rows(source, *static_cast<KeyBlock*>(block), Bf16());
}
KVSCOUT_AMX void unpack_e4m3(const KeySource& source, void* block) {
  unpack_rows(source, *static_cast<KeyBlock*>(block), E4m3{constants()});
}

KVSCOUT_AMX bool takes_keys(const KeySource& source) {
  __mmask32 others = 0;
  for (int j = 0; j < source.count; ++j) others |= outside<kPlain>(source.rows + j * source.stride);
  return others == 0;
}

}  // namespace kvscout::cpu::amx

#endif
