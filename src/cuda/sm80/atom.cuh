// SM80: mma.sync m16n8k16 in fp16 or bf16, no e4m3 conversion: bit arithmetic.
#pragma once

#include "cuda/dequant.cuh"

namespace kvscout::sm80 {

struct Atom {
  static __device__ __forceinline__ std::uint32_t e4m3x2(std::uint32_t bytes) {
    return cuda::e4m3x2_to_f16x2<false>(bytes);
  }
};

}  // namespace kvscout::sm80
