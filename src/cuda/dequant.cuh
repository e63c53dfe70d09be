// Rows of 128 elements as operands of a 16-bit matrix instruction, without shared memory or
// shuffles.
//
// A lane with c = lane % 4 owns a quarter of a row: `fragment` turns the bytes that it loads with
// 16-byte loads into 16 registers of two 16-bit values, register 2s and 2s+1 for k-step s (k = 2c,
// 2c+1 and 2c+8, 2c+9 of m16n8k16). Which element gets which k is free as long as queries and keys
// agree, so it is chosen such that a lane's bytes are contiguous and unpacking is cheapest; the key
// type decides it. This order of k is the same in every schedule, which is why all of them give the
// same bits.
//
//   e2m1   bytes 16c..16c+15, elements 32c..32c+31, groups 2c and 2c+1; eight as in unpack.cuh
//   e4m3   bytes 64i + 16c.., i = 0, 1, in order
//   16 bit bytes 64i + 16c.., i = 0..3, in order
#pragma once

#include "cuda/unpack.cuh"
#include "kvscout/scale_layout.h"
#include "kvscout/types.h"

namespace kvscout::cuda {

__device__ __forceinline__ std::uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// fp16x2 to bf16x2, for values that bf16 holds.
__device__ __forceinline__ std::uint32_t f16x2_to_bf16x2(std::uint32_t h) {
  const float2 f = __half22float2(*reinterpret_cast<const __half2*>(&h));
  const __nv_bfloat162 b = __floats2bfloat162_rn(f.x, f.y);
  return *reinterpret_cast<const std::uint32_t*>(&b);
}

// Two e4m3 bytes (bits 0..15) as fp16x2 by bit arithmetic.
__device__ __forceinline__ std::uint32_t e4m3x2_to_f16x2(std::uint32_t bytes) {
  const std::uint32_t wide = permute_bytes(bytes, 0, 0x1404);  // a byte to the top of each half
  const std::uint32_t magnitude = (wide & 0x7F007F00u) >> 1;   // reads 2^-8 too small
  const std::uint32_t nan = (magnitude + 0x00800080u) & 0x40004000u;  // only 0x7F carries this far
  return multiply2<false>(magnitude, 0x5C005C00u) | nan | (nan - (nan >> 5)) | (wide & 0x80008000u);
}

// Four e4m3 bytes as two fp16x2; NaN stays NaN.
template <bool HasConversion>
__device__ __forceinline__ void e4m3x4_to_f16x4(std::uint32_t bytes, std::uint32_t& low,
                                                std::uint32_t& high) {
  if constexpr (HasConversion)
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l;"
        "  cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
  else
    low = e4m3x2_to_f16x2(bytes), high = e4m3x2_to_f16x2(bytes >> 16);
}

// The operands of one pair of element types. `A` is the folder's atom.
template <class A, Element Q, Element K>
struct Operands {
  static constexpr Element kQuery = Q, kKey = K;
  static constexpr bool kBf16 = Q == Element::bf16;  // else fp16
  static constexpr int kKeyLoads =
      static_cast<int>(bits_per_element(K)) / 4;     // 16-byte loads: 1, 2, 4
  static constexpr int kRowBytes = 64 * kKeyLoads;   // of a key, where rows lie side by side
  static constexpr bool kHalfLines = kKeyLoads > 1;  // a load takes 64 bytes of longer rows
  static constexpr bool kKeyScales = K == Element::e2m1, kQueryScales = Q == Element::e2m1;
  static constexpr bool kLooksUp =
      A::kLooksUp && kKeyScales;  // where there is time to fill a table
  // Units of keys whose steps overlap, without a branch around loads. Elsewhere that takes
  // registers which are not there (sm120 kept up to 40 bytes on the stack), and an H200's memory is
  // not what they wait for.
  static constexpr bool kStraight = A::kLooksUp;
  // Kernels of their own for the calls of plan.h, of which streams of these keys are the ones that
  // cannot wait.
  static constexpr bool kKnowsCalls = kLooksUp;
  static constexpr float kRepairOne = kBf16 ? 256.0f : 16384.0f;
  static constexpr float kRepair =
      (kKeyScales ? kRepairOne : 1.0f) * (kQueryScales ? kRepairOne : 1.0f);

  struct Raw {
    uint4 v[kKeyLoads];
  };

  // Where load i of a lane begins in a key row.
  static __device__ __forceinline__ int key_offset(int i, int c) { return 64 * i + 16 * c; }

  // A row's scales as a lane needs them: a pair of 16-bit values, for groups 2c and 2c + 1.
  using Scale = std::uint32_t;
  // From the words that hold groups 4(c/2)..4(c/2)+3 of two rows.
  static __device__ __forceinline__ void scales(const std::uint32_t (&word)[2], int c,
                                                Scale (&s)[2]) {
    if constexpr (kKeyScales) {
      // The format is unsigned: bit 7 goes.
      const std::uint32_t four =
          permute_bytes(word[0], word[1], c & 1 ? 0x7632 : 0x5410) & 0x7F7F7F7Fu;
      e4m3x4_to_f16x4<A::kConvertsE4m3>(four, s[0], s[1]);
      if constexpr (kBf16)
        for (Scale& x : s) x = multiply2<true>(f16x2_to_bf16x2(x), 0x7A807A80u);
    }
  }

  // Registers 4i..4i+3 (k-steps 2i and 2i+1) of a key row.
  template <class Unpack>
  static __device__ __forceinline__ void quarter(const Unpack& by, const Raw& raw, Scale s, int i,
                                                 std::uint32_t* h) {
    if constexpr (K == Element::e2m1) {
      by.template unpack<kBf16>(word_of(raw.v[0], i), s, i, h);
    } else if constexpr (K == Element::e4m3) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const std::uint32_t w = word_of(raw.v[i / 2], i % 2 * 2 + j);
        e4m3x4_to_f16x4<A::kConvertsE4m3>(w, h[2 * j], h[2 * j + 1]);
        if constexpr (kBf16)
          h[2 * j] = f16x2_to_bf16x2(h[2 * j]), h[2 * j + 1] = f16x2_to_bf16x2(h[2 * j + 1]);
      }
    } else {
      h[0] = raw.v[i].x, h[1] = raw.v[i].y, h[2] = raw.v[i].z, h[3] = raw.v[i].w;
    }
  }
  template <class Unpack = ByArithmetic<false>>
  static __device__ __forceinline__ void fragment(const Raw& raw, Scale s, std::uint32_t (&h)[16],
                                                  const Unpack& by = {}) {
#pragma unroll
    for (int i = 0; i < 4; ++i) quarter(by, raw, s, i, h + 4 * i);
  }

  // What a lane loads of a query row, and what it makes of that: apart, so that a kernel can have
  // all its loads under way before it waits for the first.
  static constexpr int kQueryLoads = Q == K ? kKeyLoads : 4;
  struct RawQuery {
    uint4 v[kQueryLoads];
    std::uint32_t scales;  // bytes of groups 2c and 2c + 1
  };
  // Where load i of a lane begins in a query row: a part of i and a part of c. Where its scales
  // begin.
  static __device__ __forceinline__ int query_offset(int i, int c) {
    return Q == K               ? key_offset(i, c)
           : K == Element::e2m1 ? 64 * c + 16 * i  // elements 32c..32c+31
                                : 128 * (i / 2) + 32 * c + 16 * (i % 2);
  }
  static __device__ __forceinline__ int query_scale_offset(int c) {
    return (c / 2) * scale_layout::kSecondHalf + (c % 2) * 2;
  }
  template <class Load>
  static __device__ __forceinline__ RawQuery fetch_query(const std::uint8_t* row,
                                                         const std::uint8_t* scale_row, int c,
                                                         Load load) {
    RawQuery raw;
#pragma unroll
    for (int i = 0; i < kQueryLoads; ++i) raw.v[i] = load(row + query_offset(i, c));
    raw.scales = 0;
    if constexpr (kQueryScales) {
      const std::uint8_t* at = scale_row + query_scale_offset(c);
      raw.scales = __ldg(at) | std::uint32_t{__ldg(at + 1)} << 8;
    }
    return raw;
  }
  template <class Unpack = ByArithmetic<false>>
  static __device__ __forceinline__ void unpack_query(const RawQuery& raw, int c,
                                                      std::uint32_t (&h)[16],
                                                      const Unpack& by = {}) {
    if constexpr (Q == K) {
      Raw same;
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) same.v[i] = raw.v[i];
      Scale s[2] = {};
      if constexpr (kQueryScales) {
        const std::uint32_t word = raw.scales << ((c & 1) * 16);
        const std::uint32_t words[2] = {word, word};
        scales(words, c, s);
      }
      fragment(same, s[0], h, by);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint4 v = raw.v[i];
        if constexpr (K != Element::e2m1) {
          h[4 * i] = v.x, h[4 * i + 1] = v.y, h[4 * i + 2] = v.z, h[4 * i + 3] = v.w;
        } else {
          by.place(v, i, h + 4 * i);
        }
      }
    }
  }
};

}  // namespace kvscout::cuda
