// The fragments of the block-scaled instruction on tensor cores that exist: the manual draws one
// figure for A, B and C of m16n8k64, be the elements e2m1 or 4-bit integers. So integers that are
// packed by the maps of sm120 must give the plain product.
#include <gtest/gtest.h>

#include "cuda/sm120/maps.h"
#include "memory.h"

namespace kvscout::gpu {
namespace {

using namespace sm120;

// One warp: A 16 x 64 and B 64 x 8 of integers in [-8, 7], D 16 x 8. Writes D by the maps.
__global__ void multiply(const signed char* a, const signed char* b, int* d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
  const int lane = threadIdx.x;
  std::uint32_t x[4] = {}, y[2] = {};
  for (int reg = 0; reg < 4; ++reg)
    for (int nibble = 0; nibble < 8; ++nibble)
      x[reg] |= (a[map::a_row(lane, reg) * 64 + map::a_k(lane, reg, nibble)] & 15u) << (4 * nibble);
  for (int reg = 0; reg < 2; ++reg)
    for (int nibble = 0; nibble < 8; ++nibble)
      y[reg] |= (b[map::b_k(lane, reg, nibble) * 8 + map::b_column(lane)] & 15u) << (4 * nibble);
  int c[4] = {};
  asm volatile(
      "mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  for (int i = 0; i < 4; ++i) d[map::c_row(lane, i) * 8 + map::c_column(lane, i)] = c[i];
#endif
}

TEST(Sm120Fragments, IntegerTensorCoresAgree) {
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "device");
  cudaFuncAttributes attributes;
  if (properties.major < 8 || properties.major > 9 ||
      cudaFuncGetAttributes(&attributes, multiply) != cudaSuccess) {
    cudaGetLastError();
    GTEST_SKIP() << "4-bit integers: not on this GPU, or not built for it";
  }
  GpuMemory memory;
  auto* a = static_cast<signed char*>(memory.allocate(16 * 64));
  auto* b = static_cast<signed char*>(memory.allocate(64 * 8));
  auto* d = static_cast<int*>(memory.allocate(16 * 8 * sizeof(int)));
  std::uint64_t random = 64;
  for (int round = 0; round < 20; ++round) {
    signed char host_a[16 * 64], host_b[64 * 8];
    const auto next = [&] {
      random = random * 6364136223846793005ull + 1442695040888963407ull;
      return static_cast<signed char>(static_cast<int>(random >> 60) - 8);
    };
    for (signed char& x : host_a) x = next();
    for (signed char& x : host_b) x = next();
    memory.write(a, host_a, sizeof host_a);
    memory.write(b, host_b, sizeof host_b);
    require(cudaMemset(d, 0xEE, 16 * 8 * sizeof(int)), "memset");
    multiply<<<1, 32>>>(a, b, d);
    require(cudaGetLastError(), "launch");
    int found[16 * 8];
    memory.read(found, d, sizeof found);
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 8; ++n) {
        int plain = 0;
        for (int k = 0; k < 64; ++k) plain += host_a[m * 64 + k] * host_b[k * 8 + n];
        ASSERT_EQ(found[m * 8 + n], plain) << m << " " << n;
      }
  }
}

}  // namespace
}  // namespace kvscout::gpu
