// Everything that is not NVFP4 x NVFP4, in float32: bf16/f16 queries against NVFP4 keys, and the
// plain bf16/f16/e4m3 score. Eight chains of fma over groups of 16 elements, added in pairs, then
// the pairs in order: an order that tile registers can follow (amx/layout.h).
//
// Bound: one fma per (vector of rows, key, element).
#include "cpu/kernels.h"
#include "cpu/tile.h"

#if defined(KVSCOUT_SCORE_FLOAT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_SCORE_FLOAT_INL
#undef KVSCOUT_SCORE_FLOAT_INL
#else
#define KVSCOUT_SCORE_FLOAT_INL
#endif

#include <hwy/highway.h>

#include <cstring>
#include <limits>

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Bit patterns of fp16, bf16 and signed e4m3 as floats, exactly; the same steps as float_types.h.
HWY_INLINE VF floats_of_f16(VU32 bits) {
  const DF df;
  const DU32 du;
  const VU32 moved = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7FFFu)));
  const VF value = hn::Mul(hn::BitCast(df, moved), hn::Set(df, 0x1p112f));
  const VU32 special = hn::Or(moved, hn::Set(du, 0x7F800000u));
  const auto is_special = hn::Gt(hn::BitCast(DI(), moved), hn::Set(DI(), (0x7C00 << 13) - 1));
  const VU32 magnitude =
      hn::IfThenElse(hn::RebindMask(du, is_special), special, hn::BitCast(du, value));
  return hn::BitCast(df, hn::Or(magnitude, hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)))));
}

HWY_INLINE VF floats_of_e4m3(VU32 bits) {
  const DU32 du;
  const VU32 sign = hn::ShiftLeft<24>(hn::And(bits, hn::Set(du, 0x80u)));
  return hn::Or(scales_of_low_bytes(bits), hn::BitCast(DF(), sign));
}

HWY_INLINE void floats_of_row(const std::uint8_t* row, Element type, float* out) {
  const DF df;
  const DU32 du;
  const hn::Rebind<std::uint16_t, DF> d16;
  const hn::Rebind<std::uint8_t, DF> d8;
  if (type == Element::e4m3) {
    for (int d = 0; d < kHeadDim; d += kLanes)
      hn::StoreU(floats_of_e4m3(hn::PromoteTo(du, hn::LoadU(d8, row + d))), df, out + d);
    return;
  }
  for (int d = 0; d < kHeadDim; d += kLanes) {
    std::uint16_t half[kLanes];
    std::memcpy(half, row + 2 * d, sizeof half);
    const VU32 bits = hn::PromoteTo(du, hn::LoadU(d16, half));
    const VF x =
        type == Element::bf16 ? hn::BitCast(df, hn::ShiftLeft<16>(bits)) : floats_of_f16(bits);
    hn::StoreU(x, df, out + d);
  }
}

void pack_float(const QuerySource& source, void* vector) {
  auto& v = *static_cast<FloatQueryVector<kLanes>*>(vector);
  for (int lane = 0; lane < kLanes; ++lane) {
    float row[kHeadDim];
    floats_of_row(source.rows[lane], source.type, row);
    for (int d = 0; d < kHeadDim; ++d) v.data[d][lane] = row[d];
  }
}

void unpack_float(const KeySource& source, void* block) {
  auto& b = *static_cast<FloatKeyBlock*>(block);
  if (source.type != Element::e2m1) {
    for (int j = 0; j < source.count; ++j)
      floats_of_row(source.rows + j * source.stride, source.type, b.data[j]);
  } else {
    // Nibbles in the order of the row: bytes of low and of high nibbles interleaved.
    const hn::FixedTag<std::uint8_t, 16> d8;
    const hn::FixedTag<std::int8_t, 16> di8;
    const hn::FixedTag<std::uint16_t, 8> d16;
    const DF df;
    const DI di;
    const auto table = hn::LoadU(d8, reinterpret_cast<const std::uint8_t*>(kDoubled));
    const auto low_nibbles = hn::Set(d8, std::uint8_t{15});
    float scales[kBlock][8];
    unpack_scales(source.scales, scales);
    for (int j = 0; j < source.count; ++j) {
      alignas(16) std::int8_t doubled[kHeadDim];
      for (int c = 0; c < 4; ++c) {
        const auto x = hn::LoadU(d8, source.rows + j * source.stride + 16 * c);
        const auto low = hn::And(x, low_nibbles);
        const auto high =
            hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, x))), low_nibbles);
        const auto first = hn::TableLookupBytes(table, hn::InterleaveLower(d8, low, high));
        const auto second = hn::TableLookupBytes(table, hn::InterleaveUpper(d8, low, high));
        hn::Store(hn::BitCast(di8, first), di8, doubled + 32 * c);
        hn::Store(hn::BitCast(di8, second), di8, doubled + 32 * c + 16);
      }
      const hn::Rebind<std::int8_t, DF> few;
      for (int d = 0; d < kHeadDim; d += kLanes) {
        const VF x = hn::ConvertTo(df, hn::PromoteTo(di, hn::LoadU(few, doubled + d)));
        hn::Store(hn::Mul(x, hn::Set(df, 0.5f * scales[j][d / 16])), df, b.data[j] + d);
      }
    }
  }
  for (int j = source.count; j < kBlock && j < source.count + 4; ++j)
    std::memset(b.data[j], 0, sizeof b.data[j]);
}

template <int kKeys, int kVectors, bool kMasked>
HWY_INLINE void float_tile(const FloatQueryVector<kLanes>* q, const FloatKeyBlock& block,
                           int first_key, const std::int32_t* visible, VF* best) {
  const DF df;
  const DI di;
  VF logit[kKeys][kVectors], even[kKeys][kVectors];
  for (int g = 0; g < 8; ++g) {
    VF sum[kKeys][kVectors];
    for (int i = 0; i < kKeys; ++i)
      for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::Zero(df);
    const float* k = block.data[first_key] + g * 16;
    HWY_UNROLL(4)
    for (int n = 0; n < 16; ++n) {
      VF rows[kVectors];
      for (int v = 0; v < kVectors; ++v) rows[v] = hn::Load(df, q[v].data[g * 16 + n]);
      for (int i = 0; i < kKeys; ++i) {
        const VF key = hn::Set(df, k[i * kHeadDim + n]);
        for (int v = 0; v < kVectors; ++v) sum[i][v] = hn::MulAdd(rows[v], key, sum[i][v]);
      }
    }
    for (int i = 0; i < kKeys; ++i)
      for (int v = 0; v < kVectors; ++v) {
        if (g % 2 == 0) {
          even[i][v] = sum[i][v];
        } else {
          const VF pair = hn::Add(even[i][v], sum[i][v]);
          logit[i][v] = g == 1 ? pair : hn::Add(logit[i][v], pair);
        }
      }
  }
  for (int v = 0; v < kVectors; ++v)
    for (int i = 0; i < kKeys; ++i) {
      VF x = logit[i][v];
      if (kMasked) x = hide(x, hn::Load(di, visible + v * kLanes), hn::Set(di, first_key + i));
      best[v] = larger(best[v], x);
    }
}

// Keys [first, first + count) against kVectors vectors; `best` holds the maxima so far.
template <int kKeys, int kVectors>
HWY_INLINE void float_vectors(const FloatQueryVector<kLanes>* q, const FloatKeyBlock& block,
                              int first, int count, const std::int32_t* visible, float* best) {
  const DF df;
  const Sight sight = sight_of(visible, kVectors * kLanes);
  VF maxima[kVectors];
  for (int v = 0; v < kVectors; ++v) maxima[v] = hn::LoadU(df, best + v * kLanes);
  if (sight.least == kBlock) {
    for (int j = first; j < first + count; j += kKeys)
      float_tile<kKeys, kVectors, false>(q, block, j, visible, maxima);
  } else {
    for (int j = first; j < first + count && j < sight.most; j += kKeys)
      float_tile<kKeys, kVectors, true>(q, block, j, visible, maxima);
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(maxima[v], df, best + v * kLanes);
}

void score_float(const void* tile, int vectors, const void* block, const std::int32_t* visible,
                 float* best) {
  const auto* q = static_cast<const FloatQueryVector<kLanes>*>(tile);
  const auto& b = *static_cast<const FloatKeyBlock*>(block);
  for (int r = 0; r < vectors * kLanes; ++r) best[r] = -std::numeric_limits<float>::infinity();
  // 32 keys are 16 KB and stay in the first-level cache while all rows pass.
  for (int first = 0; first < kBlock; first += 32) {
    int v = 0;
    const auto seen = [&] { return visible ? visible + v * kLanes : nullptr; };
    if constexpr (kLanes == 16) {  // 32 registers; fewer sums and loads would be the bound
      for (; v + 4 <= vectors; v += 4)
        float_vectors<4, 4>(q + v, b, first, 32, seen(), best + v * kLanes);
    }
    for (; v + 2 <= vectors; v += 2)
      float_vectors<4, 2>(q + v, b, first, 32, seen(), best + v * kLanes);
    for (; v < vectors; ++v) float_vectors<4, 1>(q + v, b, first, 32, seen(), best + v * kLanes);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
