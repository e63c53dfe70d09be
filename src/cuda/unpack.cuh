// e2m1 codes times their block scale as 16-bit operands: eight codes, a word, at a time.
//
// Powers of two: a code's pattern moved into an fp16 (bf16) word reads 2^-14 (2^-126) too small,
// subnormals included, and is multiplied by its block scale (bf16: times 2^118) in one exact
// instruction. What is left, 2^-14 (2^-8) an operand, is repaired after the maximum.
//
// There are two ways. Both put elements 0, 1, 4 and 5 of the eight into the first k-step and 2, 3,
// 6 and 7 into the second; which two share a register is theirs, and queries follow it. On SM90 the
// sum of a k-step is one addition whatever the order within it, so both give the same bits there.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kvscout::cuda {

__device__ __forceinline__ std::uint32_t permute_bytes(std::uint32_t a, std::uint32_t b,
                                                       std::uint32_t select) {
  std::uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(select));
  return d;
}

template <bool Bf16>
__device__ __forceinline__ std::uint32_t multiply2(std::uint32_t a, std::uint32_t b) {
  std::uint32_t d;
  if constexpr (Bf16)  // a*b - 0: sm_80 has no bf16 multiplication of its own
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  else {
    const __half2 product =
        __hmul2_rn(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
    d = *reinterpret_cast<const std::uint32_t*>(&product);
  }
  return d;
}

template <bool Bf16>
__device__ __forceinline__ std::uint32_t broadcast_half(std::uint32_t pair, int half) {
  if constexpr (Bf16) {
    return permute_bytes(pair, pair, half ? 0x3232 : 0x1010);
  } else {
    const __half2 p = *reinterpret_cast<const __half2*>(&pair);
    const __half2 b = half ? __high2half2(p) : __low2half2(p);
    return *reinterpret_cast<const std::uint32_t*>(&b);
  }
}

// Factors that the compiler must not turn into shifts and additions: those share a pipe with the
// masks, and that pipe is the one that streaming keys would wait for (7 instead of 11 instructions
// there for 8 elements).
static __constant__ std::uint32_t kUp[5] = {512, 2, 32, 64, 4};

// Eight e2m1 codes times one half of a pair of scales. (An operand of a half multiplication is
// either half of a register at no cost.) `Short`: 14 instead of 15 instructions (bf16: 17 instead
// of 19) for registers of constants; kernels on wgmma have those for bf16 only.
template <bool Bf16, bool Short>
__device__ __forceinline__ void unpack_e2m1(std::uint32_t w, std::uint32_t pair, int half,
                                            std::uint32_t* h) {
  const std::uint32_t scale = broadcast_half<Bf16>(pair, half);
  if constexpr (Bf16 && !Short) {
    h[0] = multiply2<true>(((w << 12) & 0x80008000u) | ((w << 6) & 0x01C001C0u), scale);
    h[1] = multiply2<true>(((w << 8) & 0x80008000u) | ((w << 2) & 0x01C001C0u), scale);
    h[2] = multiply2<true>(((w << 4) & 0x80008000u) | ((w >> 2) & 0x01C001C0u), scale);
    h[3] = multiply2<true>((w & 0x80008000u) | ((w >> 6) & 0x01C001C0u), scale);
  } else if constexpr (Bf16) {
    // As below, with s to bit 15 and mmm to bits 8..6 of a half.
    const std::uint32_t v = w >> 8;
    const auto place = [](std::uint32_t codes, std::uint32_t up) {
      return (codes * up + 0x7E007E00u) & 0x81C081C0u;
    };
    h[0] = multiply2<true>(place(w & 0x000F000Fu, kUp[3]), scale);  // elements 0, 4
    h[1] = multiply2<true>(place(w & 0x00F000F0u, kUp[4]), scale);  // 1, 5
    h[2] = multiply2<true>(place(v & 0x000F000Fu, kUp[3]), scale);  // 2, 6
    h[3] = multiply2<true>(place(v & 0x00F000F0u, kUp[4]), scale);  // 3, 7
  } else {
    // A code n = smmm at bits 4..1 of a byte: adding 0x70 carries s from bit 4 to bit 7 and leaves
    // rubbish in bits 6..4 only, which the mask drops. As multiplications and additions, that is,
    // not on the pipe that logic uses.
    const std::uint32_t even = w & 0x0F0F0F0Fu;
    std::uint32_t low, high;
    if constexpr (Short) {
      // Odd codes, already in the upper halves of their bytes: to the right with an addition is one
      // instruction (LEA.HI). Both directions by one product of 64 bits would be an instruction
      // less, and slower: it keeps the multiplier for four cycles or more.
      const std::uint32_t odd = w & 0xF0F0F0F0u;
      low = odd * kUp[2] + 0x70007000u;
      high = (odd >> 3) + 0x70007000u;
    } else {
      const std::uint32_t odd = (w >> 4) & 0x0F0F0F0Fu;
      low = odd * kUp[0] + 0x70707000u, high = odd * kUp[1] + 0x70707070u;
    }
    h[0] = multiply2<false>((even * kUp[0] + 0x70707000u) & 0x8E008E00u, scale);  // elements 0, 4
    h[1] = multiply2<false>(low & 0x8E008E00u, scale);                            // 1, 5
    h[2] = multiply2<false>((even * kUp[1] + 0x70707070u) & 0x8E008E00u, scale);  // 2, 6
    h[3] = multiply2<false>(high & 0x8E008E00u, scale);                           // 3, 7
  }
}

// In registers: for kernels without the time or the shared memory for a table.
template <bool Short>
struct ByArithmetic {  // (0,4)(1,5) (2,6)(3,7)
  // Word i of a lane's four, which two groups share: `pair` holds their scales.
  template <bool Bf16>
  __device__ __forceinline__ void unpack(std::uint32_t w, std::uint32_t pair, int i,
                                         std::uint32_t* h) const {
    unpack_e2m1<Bf16, Short>(w, pair, i / 2, h);
  }
  // Registers of the 16-bit query elements 8i..8i+7.
  static __device__ __forceinline__ void place(const uint4& v, int, std::uint32_t* h) {
    h[0] = permute_bytes(v.x, v.z, 0x5410), h[1] = permute_bytes(v.x, v.z, 0x7632);
    h[2] = permute_bytes(v.y, v.w, 0x5410), h[3] = permute_bytes(v.y, v.w, 0x7632);
  }
};

// By a table in shared memory: for each byte the two values of its codes, once a lane, so that the
// lanes of a warp never meet in a bank. An address is one permutation, the byte above four times
// the lane; the table's own address is a constant of the load. 12 instructions for 8 codes on three
// pipes instead of 14 (bf16: 17) on two.
class ByTable {  // (0,1)(4,5) (2,3)(6,7)
 public:
  // In shared memory; what lies before it is the kernel's.
  static constexpr std::uint32_t kAt = 24576;
  static constexpr int kBytes = kAt + 256 * 256;  // dynamic shared memory that a launch asks for

  // By all threads of the block, before a barrier.
  template <bool Bf16>
  static __device__ __forceinline__ void fill() {
    for (auto i = threadIdx.x; i < 256 * 8; i += blockDim.x) {
      const std::uint32_t code = i / 8, two = (code & 15) | code >> 4 << 16;
      const std::uint32_t v = (two & 0x00080008u) << 12 | (two & 0x00070007u) << (Bf16 ? 6 : 9);
      asm volatile("st.shared.v4.b32 [%0 + %2], {%1, %1, %1, %1};" ::"r"(code * 256 + i % 8 * 16),
                   "r"(v), "n"(kAt)
                   : "memory");
    }
  }

  // After that barrier, and volatile to stay there: the look-ups need the lane.
  __device__ __forceinline__ ByTable() {
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane_));
    lane_ *= 4;
  }

  template <bool Bf16>
  __device__ __forceinline__ void unpack(std::uint32_t w, std::uint32_t pair, int i,
                                         std::uint32_t* h) const {
    const std::uint32_t scale = broadcast_half<Bf16>(pair, i / 2);
    h[0] = multiply2<Bf16>(look_up<0x6504>(w), scale);
    h[1] = multiply2<Bf16>(look_up<0x6524>(w), scale);
    h[2] = multiply2<Bf16>(look_up<0x6514>(w), scale);
    h[3] = multiply2<Bf16>(look_up<0x6534>(w), scale);
  }
  static __device__ __forceinline__ void place(const uint4& v, int, std::uint32_t* h) {
    h[0] = v.x, h[1] = v.z, h[2] = v.y, h[3] = v.w;
  }

 private:
  template <std::uint32_t Select>
  __device__ __forceinline__ std::uint32_t look_up(std::uint32_t w) const {
    std::uint32_t v;
    asm("ld.shared.b32 %0, [%1 + %2];" : "=r"(v) : "r"(permute_bytes(w, lane_, Select)), "n"(kAt));
    return v;
  }
  std::uint32_t lane_;
};

// One word of four in registers, the others by the table, which alone takes half of what shared
// memory gives in streams of 8 rows (from L2 64 x 131k 119 instead of 122 us; with 16 rows, or two
// words, no gain).
class ByBoth : public ByTable {
 public:
  template <bool Bf16>
  __device__ __forceinline__ void unpack(std::uint32_t w, std::uint32_t pair, int i,
                                         std::uint32_t* h) const {
    if (i == kInRegisters)
      ByArithmetic<true>{}.template unpack<Bf16>(w, pair, i, h);
    else
      ByTable::unpack<Bf16>(w, pair, i, h);
  }
  static __device__ __forceinline__ void place(const uint4& v, int i, std::uint32_t* h) {
    i == kInRegisters ? ByArithmetic<true>::place(v, i, h) : ByTable::place(v, i, h);
  }

 private:
  static constexpr int kInRegisters = 2;
};

}  // namespace kvscout::cuda
