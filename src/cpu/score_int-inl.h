// NVFP4 x NVFP4 in exact integers, on any vector width, lanes = query rows. tile.h has the
// arithmetic and the layouts.
//
// Bound: per (vector of rows, key, group) four u8 x s8 pair products, three 16-bit additions, one
// widening multiplication, the correction, a conversion, the product of the scales and one fma: 12
// operations, eight of them on multipliers; of AVX2 11 and eight (tile.h).
#include "cpu/kernels.h"
#include "cpu/tile.h"

#if defined(KVSCOUT_SCORE_INT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_SCORE_INT_INL
#undef KVSCOUT_SCORE_INT_INL
#else
#define KVSCOUT_SCORE_INT_INL
#endif

#include <hwy/highway.h>

#include <cstring>
#include <limits>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Whether a sum is read as a float (tile.h). Where 512 bits are at hand that gains nothing without
// the byte dot product, since it takes one more load of queries (199 instead of 215 GFLOP/s).
inline constexpr bool kBiased = HWY_TARGET == HWY_AVX2;

// At most 32 bytes at a time: codes of two 16-byte chunks.
using DCodes = hn::CappedTag<std::uint8_t, 32>;
using VCodes = hn::Vec<DCodes>;

// 64 bytes of codes -> 128 bytes in the order of tile.h, through a table of 16 bytes in each block.
HWY_INLINE void unpack_codes(const std::uint8_t* codes, VCodes table, std::uint8_t* out) {
  const DCodes d8;
  const hn::Repartition<std::uint32_t, DCodes> d32;
  constexpr int kBytes = static_cast<int>(hn::MaxLanes(DCodes()));
  const VCodes low_nibbles = hn::Set(d8, std::uint8_t{15});
  for (int c = 0; c < 64; c += kBytes) {
    const VCodes x = hn::LoadU(d8, codes + c);
    const VCodes shifted = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d32, x)));
    const auto low = hn::BitCast(d32, hn::TableLookupBytes(table, hn::And(x, low_nibbles)));
    const auto high = hn::BitCast(d32, hn::TableLookupBytes(table, hn::And(shifted, low_nibbles)));
    const VCodes even = hn::BitCast(d8, hn::InterleaveLower(d32, low, high));  // groups 0 (and 2)
    const VCodes odd = hn::BitCast(d8, hn::InterleaveUpper(d32, low, high));   // groups 1 (and 3)
    if constexpr (kBytes == 32) {
      hn::StoreU(hn::ConcatLowerLower(d8, odd, even), d8, out + 2 * c);
      hn::StoreU(hn::ConcatUpperUpper(d8, odd, even), d8, out + 2 * c + kBytes);
    } else {
      hn::StoreU(even, d8, out + 2 * c);
      hn::StoreU(odd, d8, out + 2 * c + kBytes);
    }
  }
}

void pack_int(const QuerySource& source, void* vector) {
  using Vector = IntQueryVector<kLanes>;
  Vector& v = *static_cast<Vector*>(vector);
  const hn::FixedTag<std::uint8_t, 16> d8;
  const hn::FixedTag<std::uint64_t, 2> d64;
  const VCodes table = hn::LoadDup128(DCodes(), reinterpret_cast<const std::uint8_t*>(kDoubled));
  const auto offset = hn::Set(d8, std::uint8_t{12});
  for (int lane = 0; lane < (source.repeated ? 1 : kLanes); ++lane) {
    alignas(16) std::uint8_t row[kHeadDim];
    unpack_codes(source.rows[lane], table, row);
    for (int i = 0; i < 32; ++i) std::memcpy(v.data[i][lane], row + 4 * i, 4);
    for (int g = 0; g < 8; ++g) {
      alignas(16) std::uint64_t sums[2];
      hn::Store(hn::SumsOf8(hn::Add(hn::Load(d8, row + 16 * g), offset)), d64, sums);
      v.correction[g][lane] =
          -12 * (static_cast<int>(sums[0] + sums[1]) - 12 * 16) + (kBiased ? kBiasBits : 0);
      v.scale[g][lane] =
          0.25f * nvfp4::e4m3_to_float(static_cast<std::uint8_t>(source.scales[lane] >> (8 * g)));
      v.offset[g][lane] = -kBias * v.scale[g][lane];
    }
  }
  if (!source.repeated) return;
  const DI di;
  auto* words = reinterpret_cast<std::int32_t*>(&v);  // vectors all of them
  for (std::size_t i = 0; i < sizeof v / (4 * kLanes); ++i, words += kLanes)
    hn::Store(hn::Set(di, words[0]), di, words);
}

void unpack_int(const KeySource& source, void* block) {
  IntKeyBlock& b = *static_cast<IntKeyBlock*>(block);
  const VCodes table = hn::LoadDup128(DCodes(), kDoubledPlus12);
  for (int j = 0; j < source.count; ++j)
    unpack_codes(source.rows + j * source.stride, table, b.data[j]);
  // Keys are visited in small steps: the rest of the last one must be numbers, whatever they are.
  for (int j = source.count; j < kBlock && j < source.count + 4; ++j)
    std::memset(b.data[j], 12, kHeadDim);
  unpack_scales(source.scales, b.scale);
}

// A pair of 16-bit sums for every 32-bit lane: k0*q0 + k1*q1, k2*q2 + k3*q3 (no saturation:
// tile.h).
HWY_INLINE VI16 pair_products(VU8 k, VI8 q) {
#if HWY_TARGET == HWY_AVX3
  return VI16{_mm512_maddubs_epi16(k.raw, q.raw)};
#elif HWY_TARGET == HWY_AVX2
  return VI16{_mm256_maddubs_epi16(k.raw, q.raw)};
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return VI16{_mm_maddubs_epi16(k.raw, q.raw)};
#else
  const DI16 d;
  const DU16 du;
  const VI16 k16 = hn::BitCast(d, k), q16 = hn::BitCast(d, q);
  const VI16 k_even = hn::And(k16, hn::Set(d, 0xFF));
  const VI16 k_odd = hn::BitCast(d, hn::ShiftRight<8>(hn::BitCast(du, k16)));
  const VI16 q_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(q16));
  return hn::Add(hn::Mul(k_even, q_even), hn::Mul(k_odd, hn::ShiftRight<8>(q16)));
#endif
}

// The group's integer sum, from pairs; `correction` is added.
HWY_INLINE VI sum_of(VI16 pairs, VI correction) {
  const DI16 d16;
  const DI d;
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4 || \
    HWY_TARGET == HWY_SSSE3
  auto unused = hn::Zero(d);
  return hn::ReorderWidenMulAccumulate(d, pairs, hn::Set(d16, 1), correction, unused);
#else  // there the accumulator's halves are not those of a 32-bit lane
  const VI x = hn::BitCast(d, pairs);
  (void)d16;
  return hn::Add(hn::Add(hn::ShiftRight<16>(x), hn::ShiftRight<16>(hn::ShiftLeft<16>(x))),
                 correction);
#endif
}

// Group g of queries and of keys with these scales, added to a logit.
HWY_INLINE VF add_group(VF logit, VI16 pairs, const IntQueryVector<kLanes>& q, int g,
                        VF key_scale) {
  const DF df;
  const VI sum = sum_of(pairs, hn::Load(DI(), q.correction[g]));
  const VF scale = hn::Load(df, q.scale[g]);
  if (!kBiased) return hn::MulAdd(hn::ConvertTo(df, sum), hn::Mul(scale, key_scale), logit);
  const VF scaled = hn::MulAdd(hn::BitCast(df, sum), scale, hn::Load(df, q.offset[g]));
  return hn::MulAdd(scaled, key_scale, logit);
}

#if HWY_TARGET == HWY_AVX2
// One group of one key against four vectors, scheduled for sixteen registers: queries and scales
// are memory operands, sums are added as a tree. GCC alone keeps sums in memory (126 instead of 165
// GFLOP/s).
HWY_INLINE void int_group_of_four(const IntQueryVector<8>* q, int g, const std::uint8_t* key,
                                  const float* ks, VF (&logit)[4]) {
  static_assert(sizeof(IntQueryVector<8>) == 1792);
  const auto* rows = q->data[4 * g];
  const auto* correction = q->correction[g];  // scales lie 256 bytes on, offsets 512
  __m256i p0, p1, p2, p3, a0, a1, a2, a3, k, m;
#define KVSCOUT_KEY(T) "vpbroadcastd 4*" #T "(%[key]), %[k]\n"
#define KVSCOUT_PAIRS(T, V, TO) "vpmaddubsw 1792*" #V "+32*" #T "(%[rows]), %[k], " TO "\n"
#define KVSCOUT_ADD(A, TO) "vpaddw " A ", " TO ", " TO "\n"
#define KVSCOUT_FIRST(T, X, V) KVSCOUT_PAIRS(T, V, "%[" #X #V "]")
#define KVSCOUT_SECOND(T, X, V) KVSCOUT_PAIRS(T, V, "%[m]") KVSCOUT_ADD("%[m]", "%[" #X #V "]")
#define KVSCOUT_LAST(V) KVSCOUT_SECOND(3, a, V) KVSCOUT_ADD("%[a" #V "]", "%[p" #V "]")
#define KVSCOUT_FINISH(V)                                    \
  "vpmaddwd %[ones], %[p" #V "], %[p" #V                     \
  "]\n"                                                      \
  "vmovups 1792*" #V                                         \
  "+256(%[correction]), %[m]\n"                              \
  "vpaddd 1792*" #V "(%[correction]), %[p" #V "], %[p" #V    \
  "]\n"                                                      \
  "vfmadd213ps 1792*" #V "+512(%[correction]), %[m], %[p" #V \
  "]\n"                                                      \
  "vfmadd231ps %[k], %[p" #V "], %[f" #V "]\n"
  asm(KVSCOUT_KEY(0) KVSCOUT_FIRST(0, p, 0) KVSCOUT_FIRST(0, p, 1) KVSCOUT_FIRST(0, p, 2)
          KVSCOUT_FIRST(0, p, 3) KVSCOUT_KEY(1) KVSCOUT_SECOND(1, p, 0) KVSCOUT_SECOND(1, p, 1)
              KVSCOUT_SECOND(1, p, 2) KVSCOUT_SECOND(1, p, 3) KVSCOUT_KEY(2) KVSCOUT_FIRST(2, a, 0)
                  KVSCOUT_FIRST(2, a, 1) KVSCOUT_FIRST(2, a, 2) KVSCOUT_FIRST(2, a, 3)
                      KVSCOUT_KEY(3) KVSCOUT_LAST(0) KVSCOUT_LAST(1) KVSCOUT_LAST(2)
                          KVSCOUT_LAST(3) "vbroadcastss (%[ks]), %[k]\n" KVSCOUT_FINISH(0)
                              KVSCOUT_FINISH(1) KVSCOUT_FINISH(2) KVSCOUT_FINISH(3)
      : [f0] "+x"(logit[0].raw), [f1] "+x"(logit[1].raw), [f2] "+x"(logit[2].raw),
        [f3] "+x"(logit[3].raw), [p0] "=&x"(p0), [p1] "=&x"(p1), [p2] "=&x"(p2), [p3] "=&x"(p3),
        [a0] "=&x"(a0), [a1] "=&x"(a1), [a2] "=&x"(a2), [a3] "=&x"(a3), [k] "=&x"(k), [m] "=&x"(m)
      : [rows] "r"(rows), [correction] "r"(correction), [key] "r"(key), [ks] "r"(ks),
        [ones] "x"(_mm256_set1_epi16(1)), "m"(*reinterpret_cast<const IntQueryVector<8>(*)[4]>(q)),
        "m"(*reinterpret_cast<const std::uint8_t(*)[16]>(key)), "m"(*ks));
#undef KVSCOUT_KEY
#undef KVSCOUT_PAIRS
#undef KVSCOUT_ADD
#undef KVSCOUT_FIRST
#undef KVSCOUT_SECOND
#undef KVSCOUT_LAST
#undef KVSCOUT_FINISH
}
#endif

// kKeys keys against kVectors vectors: their logits, masked where the row does not see the key.
template <int kKeys, int kVectors, bool kMasked>
HWY_INLINE void int_tile(const IntQueryVector<kLanes>* q, const IntKeyBlock& block, int first_key,
                         const std::int32_t* visible, VF* best) {
  const DF df;
  const DI di;
  const DI8 d8;
  VF logit[kKeys][kVectors];
  for (int i = 0; i < kKeys; ++i)
    for (int v = 0; v < kVectors; ++v) logit[i][v] = hn::Zero(df);
  HWY_UNROLL(1)
  for (int g = 0; g < 8; ++g) {
    // Addresses are hidden in every step, lest the compiler hoist the queries out of the loop over
    // keys and spill them all.
    HWY_FENCE_POINTER(q);
#if HWY_TARGET == HWY_AVX2
    if constexpr (kKeys == 1 && kVectors == 4) {
      int_group_of_four(q, g, block.data[first_key] + 16 * g, &block.scale[first_key][g], logit[0]);
      continue;
    }
#endif
    VI16 pairs[kKeys][kVectors];
    const std::uint8_t* k = block.data[first_key] + 16 * g;
    for (int t = 0; t < 4; ++t) {
      VI8 rows[kVectors];
      for (int v = 0; v < kVectors; ++v) rows[v] = hn::Load(d8, &q[v].data[4 * g + t][0][0]);
      for (int i = 0; i < kKeys; ++i) {
        std::int32_t dword;
        std::memcpy(&dword, k + i * kHeadDim + 4 * t, 4);
        const VU8 key = hn::BitCast(DU8(), hn::Set(di, dword));
        for (int v = 0; v < kVectors; ++v) {
          const VI16 p = pair_products(key, rows[v]);
          pairs[i][v] = t == 0 ? p : hn::Add(pairs[i][v], p);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v)
      for (int i = 0; i < kKeys; ++i)
        logit[i][v] = add_group(logit[i][v], pairs[i][v], q[v], g,
                                hn::Set(df, block.scale[first_key + i][g]));
  }
  for (int v = 0; v < kVectors; ++v)
    for (int i = 0; i < kKeys; ++i) {
      VF x = logit[i][v];
      if (kMasked) x = hide(x, hn::Load(di, visible + v * kLanes), hn::Set(di, first_key + i));
      best[v] = larger(best[v], x);
    }
}

// Rows of one step of `score_int`: kVectors vectors over all keys that one of them sees.
template <int kKeys, int kVectors>
HWY_INLINE void int_vectors(const IntQueryVector<kLanes>* q, const IntKeyBlock& block,
                            const std::int32_t* visible, float* best) {
  const DF df;
  const Sight sight = sight_of(visible, kVectors * kLanes);
  VF maxima[kVectors];
  for (int v = 0; v < kVectors; ++v)
    maxima[v] = hn::Set(df, -std::numeric_limits<float>::infinity());
  if (sight.least == kBlock) {
    for (int j = 0; j < kBlock; j += kKeys)
      int_tile<kKeys, kVectors, false>(q, block, j, visible, maxima);
  } else {
    for (int j = 0; j < sight.most; j += kKeys)
      int_tile<kKeys, kVectors, true>(q, block, j, visible, maxima);
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(maxima[v], df, best + v * kLanes);
}

void score_int(const void* tile, int vectors, const void* block, const std::int32_t* visible,
               float* best) {
  const auto* q = static_cast<const IntQueryVector<kLanes>*>(tile);
  const auto& b = *static_cast<const IntKeyBlock*>(block);
  constexpr int kStep = 4;
  int v = 0;
  for (; v + kStep <= vectors; v += kStep)
    int_vectors<1, kStep>(q + v, b, visible ? visible + v * kLanes : nullptr, best + v * kLanes);
  for (; v < vectors; ++v)
    int_vectors<4, 1>(q + v, b, visible ? visible + v * kLanes : nullptr, best + v * kLanes);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
