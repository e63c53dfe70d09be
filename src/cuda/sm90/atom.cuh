// SM90: mma.sync m16n8k16 in fp16 or bf16, with the e4m3 conversion instruction.
#pragma once

#include "cuda/dequant.cuh"

namespace kvscout::sm90 {

struct Atom {
  static constexpr bool kBulkCopies = true;
  static __device__ __forceinline__ std::uint32_t e4m3x2(std::uint32_t bytes) {
    return cuda::e4m3x2_to_f16x2<true>(bytes);
  }
};

// The same for the streaming schedule, which waits for arithmetic.
struct StreamAtom : Atom {
  static constexpr bool kShifts = true;
  static __device__ __forceinline__ void e4m3x4(std::uint32_t bytes, std::uint32_t& low,
                                                std::uint32_t& high) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l;"
        "  cvt.rn.f16x2.e4m3x2 %1, h; }"
        : "=r"(low), "=r"(high)
        : "r"(bytes));
  }
};

}  // namespace kvscout::sm90
