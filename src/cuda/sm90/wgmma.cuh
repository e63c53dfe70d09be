// The warpgroup matrix instruction: D (64 x 128, registers) = A (64 x 16, registers) * B (16 x 128,
// shared memory) + D. It goes on while the warpgroup works; groups of them complete in order.
#pragma once

#include <cstdint>

namespace kvscout::sm90 {

// B operand: rows of 64 16-bit values, 128 bytes apart, 16-byte chunks exchanged by row % 8
// (128-byte swizzle); 8 rows make 1024 bytes. The descriptor's lower half holds the address in
// units of 16 bytes (adding 2 moves 16 values along k), the upper half is the same for all.
__device__ __forceinline__ std::uint32_t operand_descriptor(const void* shared) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  return 1u << 16 | (address & 0x3FFFF) >> 4;
}
inline constexpr std::uint32_t kDescriptorUpper = 1u << 30 | 64;
// Four matrices of 8 x 8 values: register m of lane (r, c) = (lane/4, lane%4) is values 2c and 2c +
// 1 of row r of matrix m; lane i says where row i%8 of matrix i/8 lies.
__device__ __forceinline__ void store_matrices(std::uint32_t address, const std::uint32_t* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
// What the thread wrote into an operand is seen by matrix instructions after the next barrier.
__device__ __forceinline__ void operand_written() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps reads of accumulators behind the wait.
__device__ __forceinline__ void wgmma_arrived(float (&d)[64]) {
#pragma unroll
  for (float& x : d) asm volatile("" : "+f"(x)::"memory");
}

#define KVSCOUT_D4(M, i) M(d[i]), M(d[i + 1]), M(d[i + 2]), M(d[i + 3])
#define KVSCOUT_D16(M, i) \
  KVSCOUT_D4(M, i), KVSCOUT_D4(M, i + 4), KVSCOUT_D4(M, i + 8), KVSCOUT_D4(M, i + 12)
#define KVSCOUT_D64(M) KVSCOUT_D16(M, 0), KVSCOUT_D16(M, 16), KVSCOUT_D16(M, 32), KVSCOUT_D16(M, 48)
#define KVSCOUT_OUT(x) "=f"(x)
#define KVSCOUT_INOUT(x) "+f"(x)
#define KVSCOUT_WGMMA(TYPE, ACCUMULATES, ACCESS)                                                  \
  asm volatile("{ .reg .pred p; .reg .b64 keys; setp.ne.b32 p, " ACCUMULATES                      \
               ", 0; mov.b64 keys, {%68, %69};\n"                                                 \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                       \
               " {"                                                                               \
               "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "  \
               "}, {%64, %65, %66, %67}, keys, p, 1, 1, 0; }"                                     \
               : KVSCOUT_D64(ACCESS)                                                              \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "n"(kDescriptorUpper))

// One k-step. The first does not accumulate: it does not depend on what the registers held.
template <bool Bf16, bool First>
__device__ __forceinline__ void wgmma(float (&d)[64], std::uint32_t a0, std::uint32_t a1,
                                      std::uint32_t a2, std::uint32_t a3, std::uint32_t b) {
  if constexpr (Bf16 && First) KVSCOUT_WGMMA("bf16", "0", KVSCOUT_OUT);
  if constexpr (Bf16 && !First) KVSCOUT_WGMMA("bf16", "1", KVSCOUT_INOUT);
  if constexpr (!Bf16 && First) KVSCOUT_WGMMA("f16", "0", KVSCOUT_OUT);
  if constexpr (!Bf16 && !First) KVSCOUT_WGMMA("f16", "1", KVSCOUT_INOUT);
}

#undef KVSCOUT_WGMMA
#undef KVSCOUT_INOUT
#undef KVSCOUT_OUT
#undef KVSCOUT_D64
#undef KVSCOUT_D16
#undef KVSCOUT_D4

}  // namespace kvscout::sm90
