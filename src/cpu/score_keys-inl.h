// NVFP4 x NVFP4 for few query rows, lanes = keys, in exact integers (tile.h): keys are transposed
// in registers, nothing is unpacked to memory.
//
// A vector holds keys r, r+32, r+64, r+96 and, in wider vectors, the same of r+1, ...: the order in
// which the 128x4 layout holds scale bytes, so that scales need no gathering, and in which 4x4
// transposes of dwords inside 128-bit blocks leave the codes.
#include "cpu/kernels.h"
#include "cpu/tile.h"

#if defined(KVSCOUT_SCORE_KEYS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_SCORE_KEYS_INL
#undef KVSCOUT_SCORE_KEYS_INL
#else
#define KVSCOUT_SCORE_KEYS_INL
#endif

#include <hwy/highway.h>

#include <limits>

#include "cpu/common-inl.h"
#include "cpu/score_int-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// Sixteen bytes (chunk c) of key r+32*q in each block.
HWY_INLINE VU32 load_chunk(const std::uint8_t* rows, std::int64_t stride, int r, int q, int c) {
  const hn::FixedTag<std::uint8_t, 16> d8;
  const std::uint8_t* row = rows + (r + 32 * q) * stride + 16 * c;
#if HWY_TARGET == HWY_AVX3
  __m512i x = _mm512_castsi128_si512(hn::LoadU(d8, row).raw);
  x = _mm512_inserti32x4(x, hn::LoadU(d8, row + stride).raw, 1);
  x = _mm512_inserti32x4(x, hn::LoadU(d8, row + 2 * stride).raw, 2);
  return VU32{_mm512_inserti32x4(x, hn::LoadU(d8, row + 3 * stride).raw, 3)};
#elif HWY_TARGET == HWY_AVX2
  const __m256i x = _mm256_castsi128_si256(hn::LoadU(d8, row).raw);
  return VU32{_mm256_inserti128_si256(x, hn::LoadU(d8, row + stride).raw, 1)};
#else
  return hn::BitCast(DU32(), hn::LoadU(d8, row));
#endif
}

template <int kRows>
HWY_INLINE void score_some_keys(const IntQueryVector<kLanes>* q, const KeyPlace& keys,
                                std::int64_t stride, const std::int32_t* visible, float* best) {
  const DF df;
  const DI di;
  const DU32 du;
  const DU64 du64;
  const DU8 d8;
  const DI8 di8;
  const VU8 table = hn::LoadDup128(d8, kDoubledPlus12);
  const VU8 low_nibbles = hn::Set(d8, std::uint8_t{15});
  const VI key_in_step = hn::Load(di, kKeyOfLane);
  VF maxima[kRows];
  for (int r = 0; r < kRows; ++r) maxima[r] = hn::Set(df, -std::numeric_limits<float>::infinity());

  for (int first = 0; first < 32; first += kLanes / 4) {
    VF logit[kRows];
    for (int r = 0; r < kRows; ++r) logit[r] = hn::Zero(df);
    // Row addresses are hidden, lest the compiler keep (and spill) loop-invariant vectors of
    // queries.
    const IntQueryVector<kLanes>* rows = q;
    HWY_FENCE_POINTER(rows);
    VU32 scale_bytes = hn::Zero(du);
    for (int c = 0; c < 4; ++c) {
      const VU32 k0 = load_chunk(keys.rows, stride, first, 0, c),
                 k1 = load_chunk(keys.rows, stride, first, 1, c);
      const VU32 k2 = load_chunk(keys.rows, stride, first, 2, c),
                 k3 = load_chunk(keys.rows, stride, first, 3, c);
      const auto a0 = hn::BitCast(du64, hn::InterleaveLower(du, k0, k1));
      const auto a1 = hn::BitCast(du64, hn::InterleaveUpper(du, k0, k1));
      const auto b0 = hn::BitCast(du64, hn::InterleaveLower(du, k2, k3));
      const auto b1 = hn::BitCast(du64, hn::InterleaveUpper(du, k2, k3));
      const VU8 dwords[4] = {hn::BitCast(d8, hn::InterleaveLower(du64, a0, b0)),
                             hn::BitCast(d8, hn::InterleaveUpper(du64, a0, b0)),
                             hn::BitCast(d8, hn::InterleaveLower(du64, a1, b1)),
                             hn::BitCast(d8, hn::InterleaveUpper(du64, a1, b1))};
      if (c % 2 == 0)
        scale_bytes = hn::LoadU(
            du, reinterpret_cast<const std::uint32_t*>(keys.scales + first * 16 + c / 2 * 512));
      for (int half = 0; half < 2; ++half) {
        const int g = 2 * c + half;
        VU8 k[4];
        for (int n = 0; n < 2; ++n) {
          const VU8 x = dwords[2 * half + n];
          const VU8 high = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(du, x)));
          k[2 * n] = hn::TableLookupBytes(table, hn::And(x, low_nibbles));
          k[2 * n + 1] = hn::TableLookupBytes(table, hn::And(high, low_nibbles));
        }
        const VF ks = scales_of_low_bytes(scale_bytes);
        scale_bytes = hn::ShiftRight<8>(scale_bytes);
        for (int r = 0; r < kRows; ++r) {
          VI16 pairs = pair_products(k[0], hn::Load(di8, &rows[r].data[4 * g][0][0]));
          for (int t = 1; t < 4; ++t)
            pairs =
                hn::Add(pairs, pair_products(k[t], hn::Load(di8, &rows[r].data[4 * g + t][0][0])));
          logit[r] = add_group(logit[r], pairs, rows[r], g, ks);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      VF x = logit[r];
      if (visible) x = hide(x, hn::Set(di, visible[r]), hn::Add(key_in_step, hn::Set(di, first)));
      maxima[r] = larger(maxima[r], x);
    }
  }
  for (int r = 0; r < kRows; ++r) best[r] = hn::GetLane(hn::MaxOfLanes(df, maxima[r]));
}

void score_keys_int(const void* tile, int rows, const KeyPlace* keys, int blocks,
                    std::int64_t stride, const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const IntQueryVector<kLanes>*>(tile);
  for (const KeyPlace* end = keys + blocks; keys < end; ++keys, best += rows) {
    int r = 0;
    const auto seen = [&] { return visible ? visible + r : nullptr; };
    for (; r + 4 <= rows; r += 4) score_some_keys<4>(q + r, *keys, stride, seen(), best + r);
    if (rows - r == 3) score_some_keys<3>(q + r, *keys, stride, seen(), best + r);
    if (rows - r == 2) score_some_keys<2>(q + r, *keys, stride, seen(), best + r);
    if (rows - r == 1) score_some_keys<1>(q + r, *keys, stride, seen(), best + r);
  }
}
}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
