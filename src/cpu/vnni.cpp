// NVFP4 x NVFP4 with the byte dot product of AVX-512 (VNNI) and its byte permutation (VBMI): Ice
// Lake and later, Zen 4 and later. Arithmetic and layouts as in tile.h; everything else comes from
// the AVX-512 code.
//
// On Zen 4 every multiplication shares two 256-bit pipes, so the number of multiplications is the
// bound: of a group of 16 four dot products, one fma, and the product of the two scales. That last
// one is replaced by a permutation and an addition where all scales are numbers: with qs = 2^E (1 +
// m/8), code = E<<23 | m, and a table of 16 words for each key scale, bits(ks/4 (1 + m/8)) - m, the
// word that m selects plus the code is the product's bit pattern. Zero scales are folded into the
// data, a NaN takes the way with the multiplication. Measured (Zen 4): 352 against 305 GFLOP/s.
#include "cpu/kernels.h"
#include "cpu/tile.h"
#include "kvscout/nvfp4.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#define KVSCOUT_VNNI                                                                       \
  __attribute__((                                                                          \
      target("avx512f,avx512bw,avx512dq,avx512vl,avx512cd,avx512vnni,avx512vbmi,avx2,fma," \
             "bmi,bmi2")))
#define KVSCOUT_VNNI_INLINE KVSCOUT_VNNI __attribute__((always_inline)) inline
#define KVSCOUT_UNROLL _Pragma("GCC unroll 16")

namespace kvscout::cpu {
namespace {

constexpr int kRows = 16;  // lanes

struct alignas(64) VnniQueryVector {
  std::int8_t data[32][kRows][4];
  std::int32_t correction[8][kRows];
  float scale[8][kRows];  // a quarter of the scale
  std::uint32_t code[8][kRows];
  alignas(64) bool has_nan;  // of a scale: `code` cannot express it
};

// Where lanes are keys, a row's numbers are broadcast from memory: one row, packed densely.
struct alignas(64) VnniQueryRow {
  std::int8_t data[32][4];
  std::int32_t correction[8];
  float scale[8];
};
static_assert(sizeof(VnniQueryRow) <= sizeof(VnniQueryVector));

struct alignas(64) VnniKeyBlock {
  std::uint8_t data[kBlock][kHeadDim];
  float scale[kBlock][8];
  std::uint32_t entry[kBlock][8];  // byte offset of the scale's words in kProducts
  bool has_nan;
};

// For each scale byte the words of the comment above.
struct alignas(64) Products {
  std::uint32_t word[128][16];
};
constexpr Products make_products() {
  Products p{};
  for (unsigned byte = 1; byte < nvfp4::kNanScale; ++byte)
    for (unsigned m = 0; m < 16; ++m) {
      const float value = nvfp4::e4m3_to_float(static_cast<std::uint8_t>(byte));
      p.word[byte][m] =
          nvfp4::bits_of(0.25f * value * (1.0f + static_cast<float>(m % 8) / 8.0f)) - m % 8;
    }
  return p;
}
constexpr Products kProducts = make_products();

// E<<23 | m of a scale byte that is neither zero nor NaN.
constexpr std::uint32_t code_of(std::uint8_t byte) {
  const std::uint32_t bits = nvfp4::bits_of(nvfp4::e4m3_to_float(byte));
  return ((bits & 0x7F800000u) - (127u << 23)) | ((bits >> 20) & 7u);
}

KVSCOUT_VNNI_INLINE __m512i table_of(const void* sixteen_bytes) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(sixteen_bytes)));
}

// 64 bytes of codes through a table: low and high nibbles. (vpermb looks at six bits of its index;
// the table repeats every sixteen bytes.)
struct Nibbles {
  __m512i low, high;
};
KVSCOUT_VNNI_INLINE Nibbles look_up(__m512i codes, __m512i table) {
  return {_mm512_permutexvar_epi8(codes, table),
          _mm512_permutexvar_epi8(_mm512_srli_epi16(codes, 4), table)};
}

KVSCOUT_VNNI_INLINE void store_row(Nibbles n, void* out) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  _mm512_storeu_si512(out, _mm512_permutex2var_epi32(n.low, first, n.high));
  _mm512_storeu_si512(static_cast<char*>(out) + 64,
                      _mm512_permutex2var_epi32(n.low, second, n.high));
}

// One row of queries; groups with a zero scale become zeros.
KVSCOUT_VNNI_INLINE void unpack_query(const std::uint8_t* codes, std::uint64_t scales,
                                      VnniQueryRow& row) {
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
      _mm256_mullo_epi32(_mm512_cvtepi64_epi32(sums), _mm256_set1_epi32(-12));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.correction), correction);
  for (int g = 0; g < 8; ++g)
    row.scale[g] = 0.25f * nvfp4::e4m3_to_float(static_cast<std::uint8_t>(scales >> (8 * g)));
}

KVSCOUT_VNNI void pack(const QuerySource& source, void* vector) {
  if (source.repeated) {
    unpack_query(source.rows[0], source.scales[0], *static_cast<VnniQueryRow*>(vector));
    return;
  }
  auto& v = *static_cast<VnniQueryVector*>(vector);
  v.has_nan = false;
  for (int lane = 0; lane < kRows; ++lane) {
    VnniQueryRow row;
    unpack_query(source.rows[lane], source.scales[lane], row);
    for (int i = 0; i < 32; ++i) std::memcpy(v.data[i][lane], row.data[i], 4);
    for (int g = 0; g < 8; ++g) {
      const std::uint8_t byte = (source.scales[lane] >> (8 * g)) & 0x7F;
      v.correction[g][lane] = row.correction[g];
      v.scale[g][lane] = row.scale[g];
      v.code[g][lane] = byte ? code_of(byte) : 0;
      v.has_nan |= byte == nvfp4::kNanScale;
    }
  }
}

KVSCOUT_VNNI void unpack(const KeySource& source, void* block) {
  auto& b = *static_cast<VnniKeyBlock*>(block);
  std::uint8_t zeros[kBlock] = {};  // of each key, the groups with a zero scale
  bool any_zero = false;
  b.has_nan = false;
  for (int half = 0; half < 2; ++half)
    for (int r = 0; r < 32; ++r) {  // lane = group half*4 + lane%4 of key r + 32*(lane/4)
      const __m128i bytes =
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(source.scales + half * 512 + r * 16));
      const __m512i magnitude =
          _mm512_and_si512(_mm512_cvtepu8_epi32(bytes), _mm512_set1_epi32(0x7F));
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F));
      const __mmask16 zero = _mm512_testn_epi32_mask(magnitude, magnitude);
      __m512 value = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(magnitude, 20)),
                                   _mm512_set1_ps(0x1p120f));
      value = _mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf("")));
      const __m512i entry = _mm512_slli_epi32(magnitude, 6);
      _mm_storeu_ps(&b.scale[r][half * 4], _mm512_castps512_ps128(value));
      _mm_storeu_ps(&b.scale[r + 32][half * 4], _mm512_extractf32x4_ps(value, 1));
      _mm_storeu_ps(&b.scale[r + 64][half * 4], _mm512_extractf32x4_ps(value, 2));
      _mm_storeu_ps(&b.scale[r + 96][half * 4], _mm512_extractf32x4_ps(value, 3));
      const auto store = [&](int key) {
        return reinterpret_cast<__m128i*>(&b.entry[key][half * 4]);
      };
      _mm_storeu_si128(store(r), _mm512_castsi512_si128(entry));
      _mm_storeu_si128(store(r + 32), _mm512_extracti32x4_epi32(entry, 1));
      _mm_storeu_si128(store(r + 64), _mm512_extracti32x4_epi32(entry, 2));
      _mm_storeu_si128(store(r + 96), _mm512_extracti32x4_epi32(entry, 3));
      b.has_nan |= nan != 0;
      if (__builtin_expect(zero != 0, 0)) {
        any_zero = true;
        for (int q = 0; q < 4; ++q)
          zeros[r + 32 * q] =
              static_cast<std::uint8_t>(zeros[r + 32 * q] | ((zero >> (4 * q)) & 15) << (4 * half));
      }
    }
  const __m512i table = table_of(kDoubledPlus12), twelve = _mm512_set1_epi8(12);
  for (int j = 0; j < source.count; ++j) {
    Nibbles n = look_up(_mm512_loadu_si512(source.rows + j * source.stride), table);
    if (__builtin_expect(any_zero, 0)) {  // eight bytes of codes are a group
      n.low = _mm512_mask_mov_epi64(n.low, zeros[j], twelve);
      n.high = _mm512_mask_mov_epi64(n.high, zeros[j], twelve);
    }
    store_row(n, b.data[j]);
  }
  for (int j = source.count; j < kBlock && j < source.count + 4; ++j)
    std::memset(b.data[j], 12, kHeadDim);
}

// kKeys keys against kVectors vectors, scales through the table or multiplied.
template <int kKeys, int kVectors, bool kTable, bool kMasked>
KVSCOUT_VNNI_INLINE void tile(const VnniQueryVector* q, const VnniKeyBlock& b, int first,
                              const std::int32_t* visible, __m512* best) {
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
        std::memcpy(&dword, b.data[first + i] + 16 * g + 4 * t, 4);
        const __m512i key = _mm512_set1_epi32(dword);
        KVSCOUT_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[i][v] = _mm512_dpbusd_epi32(sum[i][v], key, rows[v]);
      }
    }
    KVSCOUT_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const __m512i code = _mm512_load_si512(q[v].code[g]);
      const __m512 qs = _mm512_load_ps(q[v].scale[g]);
      KVSCOUT_UNROLL
      for (int i = 0; i < kKeys; ++i) {
        __m512 scale;
        if (kTable) {
          const __m512i words = _mm512_load_si512(reinterpret_cast<const char*>(kProducts.word) +
                                                  b.entry[first + i][g]);
          scale =
              _mm512_castsi512_ps(_mm512_add_epi32(_mm512_permutexvar_epi32(code, words), code));
        } else {
          scale = _mm512_mul_ps(qs, _mm512_set1_ps(b.scale[first + i][g]));
        }
        logit[i][v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i][v]), scale, logit[i][v]);
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
KVSCOUT_VNNI_INLINE void vectors_by_block(const VnniQueryVector* q, const VnniKeyBlock& b,
                                          const std::int32_t* visible, float* best) {
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
  for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(best + v * kRows, maxima[v]);
}

// Intel has two ports for multiplications of 512 bits and one for permutations, so the table loses
// there (measured, Emerald Rapids: 315 against 372 GFLOP/s for the bare instruction mixes).
bool table_is_faster() {
  static const bool answer = [] {
    __builtin_cpu_init();
    return !__builtin_cpu_is("intel");
  }();
  return answer;
}

KVSCOUT_VNNI void score(const void* tiles, int vectors, const void* block,
                        const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const VnniQueryVector*>(tiles);
  const auto& b = *static_cast<const VnniKeyBlock*>(block);
  for (int v = 0; v < vectors;) {
    const std::int32_t* seen = visible ? visible + v * kRows : nullptr;
    const bool two = v + 2 <= vectors;
    const bool table =
        table_is_faster() && !b.has_nan && !q[v].has_nan && !(two && q[v + 1].has_nan);
    if (two && table) vectors_by_block<4, 2, true>(q + v, b, seen, best + v * kRows);
    if (two && !table) vectors_by_block<4, 2, false>(q + v, b, seen, best + v * kRows);
    if (!two && table) vectors_by_block<8, 1, true>(q + v, b, seen, best + v * kRows);
    if (!two && !table) vectors_by_block<8, 1, false>(q + v, b, seen, best + v * kRows);
    v += two ? 2 : 1;
  }
}

// ---- lanes = keys: sixteen keys r+32q, r = first..first+3, in the order of the 128x4 layout
// -----------

// Four vectors of four 128-bit blocks -> their blocks transposed.
KVSCOUT_VNNI_INLINE void transpose_blocks(__m512i a, __m512i b, __m512i c, __m512i d,
                                          __m512i* out) {
  const __m512i x = _mm512_shuffle_i32x4(a, b, 0x88), y = _mm512_shuffle_i32x4(a, b, 0xDD);
  const __m512i z = _mm512_shuffle_i32x4(c, d, 0x88), w = _mm512_shuffle_i32x4(c, d, 0xDD);
  out[0] = _mm512_shuffle_i32x4(x, z, 0x88);
  out[1] = _mm512_shuffle_i32x4(y, w, 0x88);
  out[2] = _mm512_shuffle_i32x4(x, z, 0xDD);
  out[3] = _mm512_shuffle_i32x4(y, w, 0xDD);
}

template <int kQueries>
KVSCOUT_VNNI_INLINE void score_some(const VnniQueryRow* const* rows, const KeySource& source,
                                    const std::int32_t* const* visible, float* const* best,
                                    bool masked) {
  const __m512i table = table_of(kDoubledPlus12);
  const __m512i key_of_lane =
      _mm512_setr_epi32(0, 32, 64, 96, 1, 33, 65, 97, 2, 34, 66, 98, 3, 35, 67, 99);
  __m512 maxima[kQueries];
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) maxima[r] = _mm512_set1_ps(-__builtin_inff());
  for (int first = 0; first < 32; first += 4) {
    __m512i dwords[4][4];  // [block = dword/4][dword%4] after the second step
    KVSCOUT_UNROLL
    for (int r = 0; r < 4; ++r) {
      const std::uint8_t* k = source.rows + (first + r) * source.stride;
      const __m512i a = _mm512_loadu_si512(k), b = _mm512_loadu_si512(k + 32 * source.stride);
      const __m512i c = _mm512_loadu_si512(k + 64 * source.stride);
      const __m512i d = _mm512_loadu_si512(k + 96 * source.stride);
      const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b);
      const __m512i cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
      dwords[r][0] = _mm512_unpacklo_epi64(ab0, cd0);
      dwords[r][1] = _mm512_unpackhi_epi64(ab0, cd0);
      dwords[r][2] = _mm512_unpacklo_epi64(ab1, cd1);
      dwords[r][3] = _mm512_unpackhi_epi64(ab1, cd1);
    }
    // Row addresses are hidden, or the compiler hoists (and spills) their broadcasts.
    const VnniQueryRow* q[kQueries];
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) {
      q[r] = rows[r];
      asm volatile("" : "+r"(q[r]));
    }
    const __m512i scales[2] = {_mm512_loadu_si512(source.scales + first * 16),
                               _mm512_loadu_si512(source.scales + 512 + first * 16)};
    // Groups have to be added in order; pairs of dwords are available in the order 0 2 4 6, 1 3
    // 5 7.
    __m512i even[2][4], odd[2][4];
    KVSCOUT_UNROLL
    for (int parity = 0; parity < 2; ++parity) {
      __m512i* lows = parity ? odd[0] : even[0];
      __m512i* highs = parity ? odd[1] : even[1];
      transpose_blocks(dwords[0][2 * parity], dwords[1][2 * parity], dwords[2][2 * parity],
                       dwords[3][2 * parity], lows);
      transpose_blocks(dwords[0][2 * parity + 1], dwords[1][2 * parity + 1],
                       dwords[2][2 * parity + 1], dwords[3][2 * parity + 1], highs);
    }
    __m512 logit[kQueries];
    KVSCOUT_UNROLL
    for (int g = 0; g < 8; ++g) {
      const __m512i x = g % 2 ? odd[0][g / 2] : even[0][g / 2],
                    y = g % 2 ? odd[1][g / 2] : even[1][g / 2];
      const Nibbles nx = look_up(x, table), ny = look_up(y, table);
      const __m512i bytes = scales[g / 4];
      const __m512i moved = g % 4 == 0   ? _mm512_slli_epi32(bytes, 20)
                            : g % 4 == 1 ? _mm512_slli_epi32(bytes, 12)
                            : g % 4 == 2 ? _mm512_slli_epi32(bytes, 4)
                                         : _mm512_srli_epi32(bytes, 4);
      const __m512i magnitude = _mm512_and_si512(moved, _mm512_set1_epi32(0x7F << 20));
      const __mmask16 nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7F << 20));
      __m512 ks = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
      ks = _mm512_mask_mov_ps(ks, nan, _mm512_set1_ps(__builtin_nanf("")));
      KVSCOUT_UNROLL
      for (int r = 0; r < kQueries; ++r) {
        // Dword by dword: each becomes a broadcast memory operand; a wider load would be taken
        // apart in integer registers and broadcast on the shuffle port.
        const auto query = [&](int t) KVSCOUT_VNNI {
          std::int32_t dword;
          std::memcpy(&dword, q[r]->data[4 * g + t], 4);
          return _mm512_set1_epi32(dword);
        };
        __m512i sum = _mm512_dpbusd_epi32(_mm512_set1_epi32(q[r]->correction[g]), nx.low, query(0));
        sum = _mm512_dpbusd_epi32(sum, nx.high, query(1));
        sum = _mm512_dpbusd_epi32(sum, ny.low, query(2));
        sum = _mm512_dpbusd_epi32(sum, ny.high, query(3));
        const __m512 scale = _mm512_mul_ps(ks, _mm512_set1_ps(q[r]->scale[g]));
        const __m512 value = _mm512_cvtepi32_ps(sum);
        logit[r] = g == 0 ? _mm512_mul_ps(value, scale) : _mm512_fmadd_ps(value, scale, logit[r]);
      }
    }
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) {
      __mmask16 seen = 0xFFFF;
      if (masked)
        seen = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(*visible[r] - first), key_of_lane);
      maxima[r] = _mm512_mask_max_ps(maxima[r], seen, logit[r], maxima[r]);
    }
  }
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) *best[r] = _mm512_reduce_max_ps(maxima[r]);
}

template <int kQueries>
KVSCOUT_VNNI void score_rows_by_keys(const VnniQueryVector* tile, int rows, const KeySource& source,
                                     const std::int32_t* visible, float* best) {
  const VnniQueryRow* q[kQueries];
  const std::int32_t* seen[kQueries];
  float* out[kQueries];
  for (int r = 0; r < kQueries; ++r) {  // rows that do not exist repeat the last one
    const int row = r < rows ? r : rows - 1;
    q[r] = reinterpret_cast<const VnniQueryRow*>(tile + row);
    seen[r] = visible + (visible ? row * kRows : 0);
    out[r] = best + row * kRows;
  }
  score_some<kQueries>(q, source, seen, out, visible != nullptr);
}

void score_keys(const void* tile, int rows, const KeySource& source, const std::int32_t* visible,
                float* best) {
  const auto* q = static_cast<const VnniQueryVector*>(tile);
  while (rows > 0) {
    const int step = rows < 12 ? rows : 12;
    if (step <= 1)
      score_rows_by_keys<1>(q, step, source, visible, best);
    else if (step == 2)
      score_rows_by_keys<2>(q, step, source, visible, best);
    else if (step <= 4)
      score_rows_by_keys<4>(q, step, source, visible, best);
    else if (step <= 8)
      score_rows_by_keys<8>(q, step, source, visible, best);
    else
      score_rows_by_keys<12>(q, step, source, visible, best);
    q += step;
    if (visible) visible += step * kRows;
    best += step * kRows;
    rows -= step;
  }
}

}  // namespace

const Kernels* vnni_kernels(const Kernels& avx512) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi"))
    return nullptr;
  static const Kernels kernels = [&] {
    Kernels k = avx512;
    k.name = "vnni";
    k.nvfp4 = {sizeof(VnniQueryVector), sizeof(VnniKeyBlock), pack, unpack, score};
    k.score_keys = score_keys;
    k.max_rows_of_score_keys = 12;
    return k;
  }();
  return &kernels;
}

}  // namespace kvscout::cpu

#else

namespace kvscout::cpu {
const Kernels* vnni_kernels(const Kernels&) { return nullptr; }
}  // namespace kvscout::cpu

#endif
