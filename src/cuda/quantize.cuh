// nvfp4_quantize: rows of f32, f16 or bf16 to e2m1 codes and e4m3 block scales.
//
// Bound: memory, (2 + 0.5 + 1/16) bytes an element for 16-bit input. A thread takes a whole group of
// 16, so that the scale and its reciprocal cost a sixteenth; a thread block takes a tile of 128 rows
// by 8 groups, the unit of all scale layouts, whose scale bytes meet in shared memory and leave as
// words. What is left to the arithmetic units is about 10 instructions an element, because rounding
// to e2m1 is one addition (round_to_e2m1).
#pragma once

#include "cuda/dependent.cuh"
#include "cuda/device.h"
#include "kvscout/float_types.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace kvscout::cuda {

// The code of x in bits 0..2 and its sign in bit 3, other bits undefined: nvfp4::float_to_e2m1 in
// seven instructions. e2m1 has steps of 1/2 below 2, of 1 below 4, of 2 from there. Adding 1.5 *
// 2^23 steps leaves the rounded multiple, ties to even, in the last bits of the sum; the addend also
// carries 0, 2 or 4, which makes the code of it. The minimum saturates and turns NaN into 6, the
// code of NaN, whose sign is clear: the multiplication before made it the canonical one.
KVSCOUT_HD std::uint32_t round_to_e2m1(float x) {
  const float magnitude = fminf(fabsf(x), nvfp4::kMaxCode);
  const float addend = magnitude < 2.0f   ? nvfp4::float_of(0x4AC00000u)   // 1.5 * 2^22
                       : magnitude < 4.0f ? nvfp4::float_of(0x4B400002u)   // 1.5 * 2^23 + 2
                                          : nvfp4::float_of(0x4BC00004u);  // 1.5 * 2^24 + 8
  const std::uint32_t code = nvfp4::bits_of(magnitude + addend);
  return (code & 7u) | ((nvfp4::bits_of(x) >> 28) & 8u);
}

// Eight codes of x * factor.
__device__ __forceinline__ std::uint32_t pack_e2m1(const float* x, float factor) {
  std::uint32_t word = 0;
#pragma unroll
  for (int i = 7; i >= 0; --i) word = word << 4 | round_to_e2m1(__fmul_rn(x[i], factor));
  return word;
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

// A group of 16. `inverse` is 1 / global.
__device__ __forceinline__ Quantized quantize_group(const float (&x)[16], float global, float inverse) {
  float amax = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < 16; ++i) amax = fmaxf(amax, fabsf(x[i]));  // drops NaN unless all are
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
      for (int i = 0; i < kLoads; ++i) raw.words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    } else {
#pragma unroll
      for (int i = 0; i < kLoads * 4; ++i)
        raw.word[i] = __ldg(from + 4 * i) | __ldg(from + 4 * i + 1) << 8 | __ldg(from + 4 * i + 2) << 16 |
                      static_cast<std::uint32_t>(__ldg(from + 4 * i + 3)) << 24;
    }
  }

  static __device__ __forceinline__ void convert(const Raw& raw, float (&x)[16]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if constexpr (E == Element::f32) {
        x[i] = nvfp4::float_of(raw.word[i]);
      } else {
        const std::uint32_t w = raw.word[i / 2];
        if constexpr (E == Element::bf16) {
          x[i] = nvfp4::float_of(i % 2 ? w & 0xFFFF0000u : w << 16);
        } else {
          asm("{ .reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, %2; }"
              : "=f"(x[i])
              : "r"(w), "h"(static_cast<std::uint16_t>(i % 2 ? w >> 16 : w)));
        }
      }
    }
  }
};

inline constexpr int kTileRows = 128, kTileGroups = 8;
inline constexpr int kQuantizeThreads = 256;

template <class Arch, Element E, bool Aligned>
__global__ void __launch_bounds__(kQuantizeThreads) quantize_tiles(const __grid_constant__ QuantizeProblem p) {
  constexpr int kEach = kTileRows * kTileGroups / kQuantizeThreads;
  using Load = GroupLoad<E>;
  __shared__ __align__(16) std::uint8_t scales[kTileRows][kTileGroups];
  wait_for_previous();
  release_next();
  const std::int64_t groups = p.columns / nvfp4::kGroup;
  const std::int64_t column_tiles = (groups + kTileGroups - 1) / kTileGroups;
  const std::int64_t row_tile = blockIdx.x / column_tiles, column_tile = blockIdx.x - row_tile * column_tiles;
  const int g = threadIdx.x % kTileGroups, first_row = threadIdx.x / kTileGroups;
  const std::int64_t group = column_tile * kTileGroups + g;
  const auto row_of = [&](int i) {
    return row_tile * kTileRows + first_row + i * (kQuantizeThreads / kTileGroups);
  };

  typename Load::Raw raw[kEach];
  const std::uint8_t* from = static_cast<const std::uint8_t*>(p.data) + group * (nvfp4::kGroup * Load::kBytes);
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    if (row_of(i) < p.rows && group < groups) Load::template load<Aligned>(from + row_of(i) * p.row_stride, raw[i]);

  const float global = value_of(p.global), inverse = __frcp_rn(global);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    Quantized q;
    if (row_of(i) < p.rows && group < groups) {
      float x[16];
      Load::convert(raw[i], x);
      q = quantize_group(x, global, inverse);
      std::uint8_t* to = p.codes + row_of(i) * (p.columns / 2) + group * 8;
      if constexpr (Aligned) {
        *reinterpret_cast<uint2*>(to) = q.codes;
      } else {
#pragma unroll
        for (int b = 0; b < 8; ++b) to[b] = static_cast<std::uint8_t>((b < 4 ? q.codes.x : q.codes.y) >> (b % 4 * 8));
      }
    }
    scales[first_row + i * (kQuantizeThreads / kTileGroups)][g] = q.scale;  // padding: 0
  }
  __syncthreads();

  // A thread writes four groups of a row; the order of rows follows the addresses of 128x4.
  const int half = threadIdx.x / kTileRows, n = threadIdx.x % kTileRows;
  const int local = p.layout == SfLayout::layout_128x4 ? n % 4 * 32 + n / 4 : n;
  const std::int64_t row = row_tile * kTileRows + local, first = column_tile * kTileGroups + half * 4;
  if (row >= scale_layout::padded_rows(p.layout, p.rows)) return;
  std::uint8_t* to = p.scales + scale_layout::offset(p.layout, row, first, groups);
  const std::uint8_t* bytes = &scales[local][half * 4];
  const std::int64_t count = scale_layout::padded_groups(p.layout, groups) - first;
  if (count >= 4 && reinterpret_cast<std::uintptr_t>(to) % 4 == 0) {
    *reinterpret_cast<std::uint32_t*>(to) = *reinterpret_cast<const std::uint32_t*>(bytes);
  } else {
    for (int i = 0; i < 4 && i < count; ++i) to[i] = bytes[i];
  }
}

template <class Arch, Element E>
const void* quantize_kernel(bool aligned) {
  return aligned ? reinterpret_cast<const void*>(quantize_tiles<Arch, E, true>)
                 : reinterpret_cast<const void*>(quantize_tiles<Arch, E, false>);
}

template <class Arch>
void quantize(const QuantizeProblem& p, const Launch& to) {
  const DeviceGuard guard(to.device.index);
  const std::int64_t groups = p.columns / nvfp4::kGroup;
  const std::int64_t tiles = (p.rows + kTileRows - 1) / kTileRows * ((groups + kTileGroups - 1) / kTileGroups);
  if (tiles == 0) return;
  const bool aligned = (reinterpret_cast<std::uintptr_t>(p.data) | static_cast<std::uint64_t>(p.row_stride)) % 16 == 0 &&
                       reinterpret_cast<std::uintptr_t>(p.codes) % 8 == 0;
  const void* kernel = p.type == Element::bf16  ? quantize_kernel<Arch, Element::bf16>(aligned)
                       : p.type == Element::f16 ? quantize_kernel<Arch, Element::f16>(aligned)
                                                : quantize_kernel<Arch, Element::f32>(aligned);
  void* arguments[] = {const_cast<QuantizeProblem*>(&p)};
  launch("nvfp4_quantize", kernel, {.blocks = tiles, .threads = kQuantizeThreads, .overlaps = Arch::kOverlaps},
         arguments, to);
}

}  // namespace kvscout::cuda
