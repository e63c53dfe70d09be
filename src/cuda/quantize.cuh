// nvfp4_quantize: rows of f32, f16 or bf16 to e2m1 codes and e4m3 block scales.
//
// Bound: memory, (2 + 0.5 + 1/16) bytes an element for 16-bit input, if the arithmetic stays below
// about 13 instructions an element. So a thread takes whole groups of 16, which spreads the scale
// and its reciprocal over 16 elements, and rounding to e2m1 is three additions and three minima. A
// thread's rows are 32 apart: in the 128x4 layout their scale bytes lie side by side and leave as
// 16 bytes.
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "kvscout/float_types.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace kvscout::cuda {

// The magnitude code of x: nvfp4::float_to_e2m1 without the sign. Adding 1.5 * 2^23 steps leaves
// the nearest multiple of a step, ties to even, in the last bits of the sum. e2m1 has steps of 1/2
// up to 2, of 1 up to 4, of 2 from there, and each of the three roundings gives the smallest code
// where it is the right one. NaN and infinity end up in the 7.
__device__ __forceinline__ std::int32_t round_to_e2m1(float x) {
  const float a = fabsf(x);
  const auto steps = [](float sum, std::int32_t zero, std::int32_t most) {
    return __viaddmin_s32(static_cast<std::int32_t>(nvfp4::bits_of(sum)), -zero, most);
  };
  const std::int32_t twos = steps(a + 0x1.8p24f, 0x4BC00000 - 4, 7);
  const std::int32_t ones = steps(a + 0x1.8p23f, 0x4B400000 - 2, twos);
  return steps(a + 0x1.8p22f, 0x4AC00000, ones);
}

// Eight codes of x * factor. The product of a NaN is the canonical NaN, whose sign is clear.
__device__ __forceinline__ std::uint32_t pack_e2m1(const float* x, float factor) {
  std::uint32_t magnitudes = 0, signs = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) {
    const float y = __fmul_rn(x[i], factor);
    magnitudes = magnitudes * 16 + round_to_e2m1(y);
    signs = __funnelshift_l(nvfp4::bits_of(y), signs, 1);
  }
  signs = (signs | signs << 12) & 0x000F000Fu;  // bit i to bit 4i
  signs = (signs | signs << 6) & 0x03030303u;
  signs = (signs | signs << 3) & 0x11111111u;
  return magnitudes + signs * 8;
}

__device__ __forceinline__ std::uint8_t encode_scale(float amax, float global) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  const float scale = __fmul_rn(global, __fmul_rn(nvfp4::float_of(0x3E2AAAABu), amax));
  std::uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(scale));
  return static_cast<std::uint8_t>(pair);
#else
  return nvfp4::scale_of(amax, global);
#endif
}

struct Quantized {
  uint2 codes = {0, 0};
  std::uint8_t scale = 0;
};

// A group of 16 whose largest magnitude is `amax`. `inverse` is 1 / global.
__device__ __forceinline__ Quantized quantize_group(const float (&x)[16], float amax, float global,
                                                    float inverse) {
  Quantized q;
  if (!nvfp4::is_legal_global(global)) return q;
  q.scale = encode_scale(amax, global);
  const float factor = nvfp4::multiplier_of_inverse(q.scale, amax, inverse);
  q.codes = make_uint2(pack_e2m1(x, factor), pack_e2m1(x + 8, factor));
  return q;
}

__device__ __forceinline__ float value_of(const GlobalScale& s) {
  return s.pointer ? __ldg(s.pointer) : s.value;
}

__device__ __forceinline__ void store_bytes(std::uint8_t* to, uint2 codes) {
#pragma unroll
  for (int b = 0; b < 8; ++b)
    to[b] = static_cast<std::uint8_t>((b < 4 ? codes.x : codes.y) >> (b % 4 * 8));
}

// 16 elements at `from`; Aligned: with 16-byte loads.
template <Element E>
struct GroupLoad {
  static constexpr int kBytes = bits_per_element(E) / 8;
  static constexpr int kLoads = kBytes;  // 16-byte loads of a group
  union Raw {
    uint4 words[kLoads];
    std::uint32_t word[kLoads * 4];
  };

  template <bool Aligned>
  static __device__ __forceinline__ void load(const std::uint8_t* from, Raw& raw) {
    if constexpr (Aligned) {
#pragma unroll
      for (int i = 0; i < kLoads; ++i)
        raw.words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    } else {
#pragma unroll
      for (int i = 0; i < kLoads * 4; ++i)
        raw.word[i] = __ldg(from + 4 * i) | __ldg(from + 4 * i + 1) << 8 |
                      __ldg(from + 4 * i + 2) << 16 |
                      static_cast<std::uint32_t>(__ldg(from + 4 * i + 3)) << 24;
    }
  }

  // Drops NaN, unless all are.
  static __device__ __forceinline__ float largest_magnitude(const Raw& raw) {
    if constexpr (E == Element::f32) {
      float m = fabsf(nvfp4::float_of(raw.word[0]));
#pragma unroll
      for (int i = 1; i < 16; ++i) m = fmaxf(m, fabsf(nvfp4::float_of(raw.word[i])));
      return m;
    } else {  // two at a time
      std::uint32_t m = raw.word[0] & 0x7FFF7FFFu;
#pragma unroll
      for (int i = 1; i < 8; ++i) {
        const std::uint32_t x = raw.word[i] & 0x7FFF7FFFu;
        if constexpr (E == Element::bf16)
          asm("max.bf16x2 %0, %0, %1;" : "+r"(m) : "r"(x));
        else
          asm("max.f16x2 %0, %0, %1;" : "+r"(m) : "r"(x));
      }
      return fmaxf(element(m, 0), element(m, 1));
    }
  }

  static __device__ __forceinline__ float element(std::uint32_t w, int i) {
    if constexpr (E == Element::f32) {
      return nvfp4::float_of(w);
    } else if constexpr (E == Element::bf16) {
      return nvfp4::float_of(i % 2 ? w & 0xFFFF0000u : w << 16);
    } else {
      float x;
      asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<std::uint16_t>(i % 2 ? w >> 16 : w)));
      return x;
    }
  }

  static __device__ __forceinline__ Quantized quantize(const Raw& raw, float global,
                                                       float inverse) {
    float x[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) x[i] = element(raw.word[i * kBytes / 4], i);
    return quantize_group(x, largest_magnitude(raw), global, inverse);
  }
};

// The scale bytes of four neighbouring lanes as a word, for the first of them.
__device__ __forceinline__ std::uint32_t four_scales(std::uint32_t scale) {
  scale |= __shfl_down_sync(0xFFFFFFFFu, scale, 1) << 8;
  return scale | __shfl_down_sync(0xFFFFFFFFu, scale, 2) << 16;
}

inline constexpr int kQuantizeThreads = 256;
inline constexpr int kTileGroups = 8;  // of a row: two words of scales

// A thread block takes kTileGroups groups of 32 * Each rows.
template <class Arch, Element E, int Each, bool Aligned>
__global__ void __launch_bounds__(kQuantizeThreads)
    quantize_tiles(const __grid_constant__ QuantizeProblem p) {
  using Load = GroupLoad<E>;
  constexpr int kStep = kQuantizeThreads / kTileGroups;
  const std::int64_t groups = p.columns / nvfp4::kGroup;
  // No more than blocks of threads.
  const auto column_tiles = static_cast<unsigned>((groups + kTileGroups - 1) / kTileGroups);
  const unsigned row_tile = blockIdx.x / column_tiles,
                 column_tile = blockIdx.x - row_tile * column_tiles;
  const std::int64_t group = std::int64_t{column_tile} * kTileGroups + threadIdx.x % kTileGroups;
  const std::int64_t first_row =
      std::int64_t{row_tile} * (kStep * Each) + threadIdx.x / kTileGroups;
  const std::uint8_t* from = static_cast<const std::uint8_t*>(p.data) +
                             group * (nvfp4::kGroup * Load::kBytes) + first_row * p.row_stride;
  Ready ready;
  ready.add(group < groups), ready.add(from);
  ready.wait_for_previous();
  release_next();

  typename Load::Raw raw[Each];
#pragma unroll
  for (int i = 0; i < Each; ++i)
    if (first_row + i * kStep < p.rows && group < groups)
      Load::template load<Aligned>(from + i * kStep * p.row_stride, raw[i]);

  const float global = value_of(p.global), inverse = __frcp_rn(global);
  std::uint32_t scales[Each];
#pragma unroll
  for (int i = 0; i < Each; ++i) {
    const std::int64_t row = first_row + i * kStep;
    Quantized q;  // padding has scales of 0
    if (row < p.rows && group < groups) {
      q = Load::quantize(raw[i], global, inverse);
      std::uint8_t* to = p.codes + row * (p.columns / 2) + group * 8;
      if constexpr (Aligned)
        *reinterpret_cast<uint2*>(to) = q.codes;
      else
        store_bytes(to, q.codes);
    }
    scales[i] = four_scales(q.scale);
  }

  const std::int64_t count = scale_layout::padded_groups(p.layout, groups) - group;
  if (threadIdx.x % 4 != 0 || count <= 0) return;
  if (Each == 4 && p.layout == SfLayout::layout_128x4 &&
      reinterpret_cast<std::uintptr_t>(p.scales) % 16 == 0) {
    const std::int64_t at = scale_layout::tiled_128x4(first_row, group, groups);
    *reinterpret_cast<uint4*>(p.scales + at) =
        make_uint4(scales[0], scales[1 % Each], scales[2 % Each], scales[3 % Each]);
    return;
  }
#pragma unroll
  for (int i = 0; i < Each; ++i) {
    const std::int64_t row = first_row + i * kStep;
    if (row >= scale_layout::padded_rows(p.layout, p.rows)) return;
    std::uint8_t* to = p.scales + scale_layout::offset(p.layout, row, group, groups);
    if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
      *reinterpret_cast<std::uint32_t*>(to) = scales[i];
    } else {
      for (int j = 0; j < 4 && j < count; ++j)
        to[j] = static_cast<std::uint8_t>(scales[i] >> (8 * j));
    }
  }
}

template <class Arch, Element E, int Each>
const void* quantize_kernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(quantize_tiles<Arch, E, Each, true>)
                 : reinterpret_cast<const void*>(quantize_tiles<Arch, E, Each, false>);
}

template <class Arch>
void quantize(const QuantizeProblem& p, const Launch& to) {
  const DeviceGuard guard(to.device.index);
  const std::int64_t column_tiles = (p.columns / nvfp4::kGroup + kTileGroups - 1) / kTileGroups;
  const std::int64_t rows = scale_layout::padded_rows(p.layout, p.rows);
  const auto tiles = [&](std::int64_t size) { return (rows + size - 1) / size * column_tiles; };
  if (rows == 0 || column_tiles == 0) return;
  // Few rows: tiles of 32 for more thread blocks.
  const bool small = tiles(128) < 2 * device_info(to.device.index).sms;
  const bool aligned =
      (reinterpret_cast<std::uintptr_t>(p.data) | static_cast<std::uint64_t>(p.row_stride)) % 16 ==
          0 &&
      reinterpret_cast<std::uintptr_t>(p.codes) % 8 == 0;
  const auto kernel_of = [&]<Element E>() {
    return small ? quantize_kernel<Arch, E, 1>(aligned) : quantize_kernel<Arch, E, 4>(aligned);
  };
  const void* kernel = p.type == Element::bf16  ? kernel_of.template operator()<Element::bf16>()
                       : p.type == Element::f16 ? kernel_of.template operator()<Element::f16>()
                                                : kernel_of.template operator()<Element::f32>();
  void* arguments[] = {const_cast<QuantizeProblem*>(&p)};
  launch(
      "nvfp4_quantize", kernel,
      {.blocks = tiles(small ? 32 : 128), .threads = kQuantizeThreads, .overlaps = Arch::kOverlaps},
      arguments, to);
}

}  // namespace kvscout::cuda
