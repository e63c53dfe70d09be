// SM120: the 16-bit instructions as on SM89, and the block-scaled NVFP4 instruction.
#pragma once

#include "cuda/dequant.cuh"
#include "cuda/sm120/maps.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1200
#include "cuda/sm120/software_mma.cuh"
#elif defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && \
    !defined(__CUDA_ARCH_SPECIFIC__) && !defined(__CUDA_ARCH_FEAT_SM120_ALL)
#error "the back end sm120 needs a target with the block-scaled instruction: 120f, or 120a and 121a"
#endif

namespace kvscout::sm120 {

struct Atom {
  static constexpr bool kConvertsE4m3 = true;
  static constexpr bool kLooksUp = false;
};

// d += A * B for 16 keys, 8 query rows and 64 elements, operands as in maps.h. A GPU before SM120,
// which only tests ask, computes it in software from the same registers.
template <int SelectorA, int SelectorB>
__device__ __forceinline__ void mma_fp4(float (&d)[4], const std::uint32_t (&a)[4],
                                        const std::uint32_t (&b)[2], std::uint32_t scale_a,
                                        std::uint32_t scale_b) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200
#ifdef __CUDA_ARCH__
  software_mma(d, a, b, scale_a, scale_b, SelectorA, SelectorB);
#endif
#else
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1."
      "f32.ue4m3 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3}, %10, {0,%12}, %11, {0,%13};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a),
        "r"(scale_b), "n"(SelectorA), "n"(SelectorB));
#endif
}

}  // namespace kvscout::sm120
