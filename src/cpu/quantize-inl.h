// nvfp4_quantize of a run of groups: the scales and multipliers of many (quantize_scales-inl.h),
// then their codes (quantize_codes-inl.h). Groups with NaN elements take the scalar way.
//
// Bound: vector instructions; memory beyond, 41 bytes a group of bf16.
#include "cpu/kernels.h"

#if defined(KVSCOUT_QUANTIZE_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_QUANTIZE_INL
#undef KVSCOUT_QUANTIZE_INL
#else
#define KVSCOUT_QUANTIZE_INL
#endif

#include <hwy/highway.h>

#include <cstring>

#include "cpu/common-inl.h"
#include "cpu/quantize_codes-inl.h"
#include "cpu/quantize_scales-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

template <Element kType>
HWY_NOINLINE void floats_of_group(const std::uint8_t* row, float* out) {
  for (int i = 0; i < 16; ++i) {
    if constexpr (kType == Element::f32) {
      std::memcpy(out + i, row + 4 * i, 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, row + 2 * i, 2);
      out[i] = kType == Element::bf16 ? bf16_to_float(bits) : f16_to_float(bits);
    }
  }
}

// One group by the scalar definition: where there is a NaN, and at the end of odd rows.
HWY_NOINLINE std::uint8_t quantize_plain(const float* x, float global, std::uint8_t* codes) {
  float amax = 0;
  bool any = false;
  for (int i = 0; i < 16; ++i) {
    if (nvfp4::is_nan(x[i])) continue;
    const float a = nvfp4::float_of(nvfp4::bits_of(x[i]) & 0x7FFFFFFFu);
    amax = a > amax ? a : amax;
    any = true;
  }
  const std::uint8_t scale = any ? nvfp4::scale_of(amax, global) : nvfp4::kNanScale;
  const float multiplier = any ? nvfp4::multiplier_of(scale, amax, global) : 0.0f;
  for (int i = 0; i < 16; i += 2)
    codes[i / 2] = static_cast<std::uint8_t>(nvfp4::float_to_e2m1(x[i] * multiplier) |
                                             nvfp4::float_to_e2m1(x[i + 1] * multiplier) << 4);
  return scale;
}

// What is known of several eights before their codes: the way to a multiplier is long, and a single
// one would leave the processor waiting for it.
inline constexpr int kMostGroups = 128;
struct Scales {
  alignas(64) std::int32_t largest[kMostGroups];
  alignas(64) float multiplier[kMostGroups];
};

template <Element kType, bool kClamp>
HWY_INLINE void codes_of_groups(const std::uint8_t* row, int groups, const Scales& s,
                                std::uint8_t* codes) {
  constexpr std::int64_t kBytes = kGroupBytes<kType>;
  int g = 0;
  for (; g + kScaleGroups <= groups; g += kScaleGroups)
    for (int e = 0; e < kScaleGroups; e += 8)
      codes_of_eight<kType, kClamp>(row + (g + e) * kBytes, s.multiplier + g, e,
                                    codes + (g + e) * 8);
  if (g < groups)
    codes_of_eight<kType, kClamp>(row + g * kBytes, s.multiplier + g, 0, codes + g * 8);
}

// Where a scaled magnitude reaches 7 (subnormal scales, infinities), and NaN.
template <Element kType>
HWY_NOINLINE void large_codes_of_groups(const std::uint8_t* row, int groups, float global,
                                        const Scales& s, std::uint8_t* codes,
                                        std::uint8_t* scales) {
  codes_of_groups<kType, true>(row, groups, s, codes);
  for (int g = 0; g < groups; ++g) {
    if (s.largest[g] <= 0x7F800000) continue;
    float x[16];
    floats_of_group<kType>(row + g * kGroupBytes<kType>, x);
    scales[g] = quantize_plain(x, global, codes + g * 8);
  }
}

template <Element kType>
HWY_INLINE void quantize_groups(const std::uint8_t* row, std::int64_t groups, float global,
                                std::uint8_t* codes, std::uint8_t* scales) {
  constexpr std::int64_t kBytes = kGroupBytes<kType>;
  const float inverse_global = 1.0f / global;
  while (groups >= 8) {
    const int count = groups < kMostGroups ? static_cast<int>(groups / 8 * 8) : kMostGroups;
    Scales s;
    std::uint8_t bytes[kMostGroups];
    bool small = true;
    for (int g = 0; g < count; g += kScaleGroups) {
      const std::uint8_t* first = row + g * kBytes;
      const std::uint8_t* next = g + 8 < count ? first + 8 * kBytes : first;
      for (int b = 0; b < kScaleGroups * kBytes; b += 8 * kBytes)
        __builtin_prefetch(first + kBytesAhead + b);
      small &= scales_of_groups<kType>(first, next, global, inverse_global, s.largest + g,
                                       s.multiplier + g, bytes + g);
    }
    std::memcpy(scales, bytes, static_cast<std::size_t>(count));
    if (small)
      codes_of_groups<kType, false>(row, count, s, codes);
    else
      large_codes_of_groups<kType>(row, count, global, s, codes, scales);
    groups -= count, row += count * kBytes, codes += count * 8, scales += count;
  }
  for (; groups > 0; --groups, row += kBytes, codes += 8, ++scales) {
    float x[16];
    floats_of_group<kType>(row, x);
    *scales = quantize_plain(x, global, codes);
  }
}

void quantize(const void* row, Element type, std::int64_t groups, float global, std::uint8_t* codes,
              std::uint8_t* scales) {
  const auto* x = static_cast<const std::uint8_t*>(row);
  if (type == Element::f32) quantize_groups<Element::f32>(x, groups, global, codes, scales);
  if (type == Element::f16) quantize_groups<Element::f16>(x, groups, global, codes, scales);
  if (type == Element::bf16) quantize_groups<Element::bf16>(x, groups, global, codes, scales);
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
