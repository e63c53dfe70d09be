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

}  // namespace kvscout::sm90
