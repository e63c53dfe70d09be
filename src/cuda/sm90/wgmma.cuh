// The warpgroup matrix instruction: D (64 x N, registers) = A (64 x 16, registers) * B (16 x N,
// shared memory) + D.
#pragma once

#include <cstdint>

namespace kvscout::sm90 {

// B operand: rows of 64 16-bit values, 128 bytes apart, 16-byte chunks exchanged by row % 8
// (128-byte swizzle); 8 rows make 1024 bytes. Adding 2 to the descriptor moves 16 values along k.
__device__ __forceinline__ std::uint64_t operand_descriptor(const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  return std::uint64_t{1} << 62 | std::uint64_t{64} << 32 | std::uint64_t{1} << 16 |
         (address & 0x3FFFF) >> 4;
}
// Byte of value k (0..63) of row n.
__device__ __forceinline__ int operand_offset(int n, int k) {
  return n * 128 + ((k / 8 ^ n % 8) * 16) + k % 8 * 2;
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define KVSCOUT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KVSCOUT_D16(i) KVSCOUT_D4(i), KVSCOUT_D4(i + 4), KVSCOUT_D4(i + 8), KVSCOUT_D4(i + 12)
#define KVSCOUT_WGMMA_128(TYPE)                                                          \
  asm volatile(                                                                          \
      "{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"                                         \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
      " {"                                                                               \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "  \
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0; }"                                      \
      : KVSCOUT_D16(0), KVSCOUT_D16(16), KVSCOUT_D16(32), KVSCOUT_D16(48)                \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulates))
#define KVSCOUT_WGMMA_256(TYPE)                                                                    \
  asm volatile(                                                                                    \
      "{ .reg .pred p; setp.ne.b32 p, %133, 0;\n"                                                  \
      "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE                                 \
      " {"                                                                                         \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                     \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "           \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "           \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "           \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "           \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "           \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, "     \
      "%111, "                                                                                     \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
      "%127 "                                                                                      \
      "}, {%128, %129, %130, %131}, %132, p, 1, 1, 0; }"                                           \
      : KVSCOUT_D16(0), KVSCOUT_D16(16), KVSCOUT_D16(32), KVSCOUT_D16(48), KVSCOUT_D16(64),        \
        KVSCOUT_D16(80), KVSCOUT_D16(96), KVSCOUT_D16(112)                                         \
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(accumulates))

// One k-step. `accumulates` is 0 in the first.
template <int N, bool Bf16>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t a2, std::uint32_t a3, std::uint64_t b,
                                      int accumulates) {
  if constexpr (N == 256 && Bf16) KVSCOUT_WGMMA_256("bf16");
  if constexpr (N == 256 && !Bf16) KVSCOUT_WGMMA_256("f16");
  if constexpr (N == 128 && Bf16) KVSCOUT_WGMMA_128("bf16");
  if constexpr (N == 128 && !Bf16) KVSCOUT_WGMMA_128("f16");
}

#undef KVSCOUT_WGMMA_256
#undef KVSCOUT_WGMMA_128
#undef KVSCOUT_D16
#undef KVSCOUT_D4

}  // namespace kvscout::sm90
