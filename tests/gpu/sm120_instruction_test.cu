// The block-scaled instruction itself, for the first machine that has one: every selector, on
// random registers, against exact sums and, bit by bit, against the arithmetic that MMA-Sim (arXiv
// 2511.10909) publishes for it. Elsewhere the instruction is computed in software
// (software_mma.cuh), and this looks at that.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "cuda/sm120/atom.cuh"
#include "kvscout/nvfp4.h"
#include "memory.h"
#include "registry.h"

namespace kvscout::gpu {
namespace {

using namespace sm120;

// One output's inputs: sums of the 16 products of a slot, in quarters, and the slot's scale bytes.
struct Slot {
  int quarters = 0, magnitude = 0;  // sums of products, and of their absolute values
  std::uint32_t a = 0, b = 0;
};

// Each slot's sum is exact; slots and addend are cut towards zero 35 bits below the largest
// exponent, added, and cut towards zero to 24 bits.
__device__ float published(const Slot (&slots)[4], float addend) {
  int significand[4], exponent[4], top = -1000;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t a = slots[i].a & 127, b = slots[i].b & 127;
    if (a == 127 || b == 127) return __uint_as_float(0x7FFFFFFFu);
    const auto parts = [](std::uint32_t x, int& e) {
      e = x >> 3 ? static_cast<int>(x >> 3) - 7 : -6;
      return static_cast<int>(x & 7) + (x >> 3 ? 8 : 0);
    };
    int ea, eb;
    significand[i] = parts(a, ea) * parts(b, eb);
    exponent[i] = ea + eb;
    if (significand[i] && slots[i].magnitude) top = max(top, exponent[i]);
  }
  const std::uint32_t bits = __float_as_uint(addend);
  const int addend_exponent = bits >> 23 & 255 ? static_cast<int>(bits >> 23 & 255) - 127 : -126;
  if (addend != 0) top = max(top, addend_exponent);
  if (top == -1000) return 0;
  const auto shifted = [](long long x, int left) {
    return left >= 0 ? x << left : left > -63 ? x >> -left : 0ll;
  };
  long long sum = 0;  // in units of 2^(top - 35)
  for (int i = 0; i < 4; ++i) {
    const long long v = static_cast<long long>(slots[i].quarters) * significand[i];
    const long long m = shifted(v < 0 ? -v : v, 27 - (top - exponent[i]));
    sum += v < 0 ? -m : m;
  }
  if (addend != 0) {
    const long long m = shifted((bits & 0x7FFFFFu) | (bits >> 23 & 255 ? 0x800000u : 0u),
                                12 - (top - addend_exponent));
    sum += bits >> 31 ? -m : m;
  }
  long long m = sum < 0 ? -sum : sum;
  int drop = 0;
  while (m >> drop >= 1 << 24) ++drop;
  m = m >> drop << drop;
  return static_cast<float>(ldexp(static_cast<double>(sum < 0 ? -m : m), top - 35));
}

struct Tally {
  unsigned long long results, other_bits, wrong_nan;
  unsigned worst_bits;  // largest error by the magnitude of the sum, a float
};

__device__ std::uint32_t random_word(std::uint64_t& state) {
  state = state * 6364136223846793005ull + 1442695040888963407ull;
  return static_cast<std::uint32_t>(state >> 33) ^ static_cast<std::uint32_t>(state >> 20);
}

template <int A, int B>
__device__ void try_selectors(std::uint64_t& random, int mode, Tally& tally) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int lane = threadIdx.x % 32;
  std::uint32_t a[4], b[2], scale_a = 0, scale_b = 0;
  for (std::uint32_t& x : a) x = random_word(random);
  for (std::uint32_t& x : b) x = random_word(random);
  for (int s = 0; s < 4; ++s)  // any scale, scales as data have them, extremes, NaN and bit 7
    for (std::uint32_t* word : {&scale_a, &scale_b}) {
      const std::uint32_t r = random_word(random);
      const std::uint32_t byte = mode == 0   ? r % 0x7F
                                 : mode == 1 ? 0x30 + r % 16
                                 : mode == 2 ? (r & 1 ? r / 2 % 10 : 0x70 + r / 2 % 15)
                                             : r & 255;
      *word |= byte << (8 * s);
    }
  float d[4], c[4];
  for (int i = 0; i < 4; ++i) {
    const int value = static_cast<int>(random_word(random)) - (1 << 30);
    const int down = static_cast<int>(random_word(random) % 50);
    d[i] = c[i] = mode & 1 ? 0.0f : ldexpf(static_cast<float>(value), -down);
  }
  mma_fp4<A, B>(d, a, b, scale_a, scale_b);
  for (int i = 0; i < 4; ++i) {
    const int row = map::c_row(lane, i), column = map::c_column(lane, i);
    Slot slots[4];
    for (int quad = 0; quad < 4; ++quad)
      for (int upper = 0; upper < 2; ++upper) {
        const int lane_a = row % 8 * 4 + quad;
        const std::uint32_t first = __shfl_sync(kAll, a[2 * upper], lane_a),
                            second = __shfl_sync(kAll, a[2 * upper + 1], lane_a),
                            y = __shfl_sync(kAll, b[upper], column * 4 + quad);
        Slot& slot = slots[map::slot_of(map::a_k(quad, 2 * upper, 0))];
        for (int n = 0; n < 8; ++n) {
          const int product = nvfp4::e2m1_doubled((row < 8 ? first : second) >> (4 * n)) *
                              nvfp4::e2m1_doubled(y >> (4 * n));
          slot.quarters += product, slot.magnitude += product < 0 ? -product : product;
        }
      }
    const std::uint32_t of_row = __shfl_sync(kAll, scale_a, map::scale_a_lane(row, A)),
                        of_column = __shfl_sync(kAll, scale_b, map::scale_b_lane(column, B));
    double exact = c[i], magnitude = fabs(exact);
    for (int s = 0; s < 4; ++s) {
      slots[s].a = of_row >> (8 * s) & 255, slots[s].b = of_column >> (8 * s) & 255;
      const double scale =
          0.25 * nvfp4::e4m3_to_float(slots[s].a) * nvfp4::e4m3_to_float(slots[s].b);
      exact += scale * slots[s].quarters, magnitude += scale * slots[s].magnitude;
    }
    atomicAdd(&tally.results, 1ull);
    if (__float_as_uint(d[i]) != __float_as_uint(published(slots, c[i])))
      atomicAdd(&tally.other_bits, 1ull);
    if (isnan(d[i]) != isnan(exact)) atomicAdd(&tally.wrong_nan, 1ull);
    if (!isnan(exact) && magnitude > 0)
      atomicMax(&tally.worst_bits,
                __float_as_uint(static_cast<float>(fabs(d[i] - exact) / magnitude)));
  }
}

__global__ void try_instruction(int rounds, Tally* tallies) {
  std::uint64_t random = (blockIdx.x * 1024ull + threadIdx.x + 1) * 0x9E3779B97F4A7C15ull;
  for (int round = 0; round < rounds; ++round)
    for (int mode = 0; mode < 4; ++mode) {
      try_selectors<0, 0>(random, mode, tallies[0]);
      try_selectors<0, 1>(random, mode, tallies[1]);
      try_selectors<0, 2>(random, mode, tallies[2]);
      try_selectors<0, 3>(random, mode, tallies[3]);
      try_selectors<1, 0>(random, mode, tallies[4]);
      try_selectors<1, 1>(random, mode, tallies[5]);
      try_selectors<1, 2>(random, mode, tallies[6]);
      try_selectors<1, 3>(random, mode, tallies[7]);
    }
}

TEST(Sm120Instruction, IsWhatTheManualAndThePublishedModelSay) {
  for (const Backend* b : all_backends()) {
    std::string why;
    if (std::string(b->name) != "sm120") continue;
    if (!b->runs_on(0, &why)) GTEST_SKIP() << "sm120 " << why;
    GpuMemory memory;
    auto* tallies = static_cast<Tally*>(memory.allocate(8 * sizeof(Tally)));
    require(cudaMemset(tallies, 0, 8 * sizeof(Tally)), "memset");
    try_instruction<<<16, 128>>>(8, tallies);
    require(cudaGetLastError(), "launch");
    Tally found[8];
    memory.read(found, tallies, sizeof found);
    for (int i = 0; i < 8; ++i) {
      const Tally& t = found[i];
      float worst;
      std::memcpy(&worst, &t.worst_bits, sizeof worst);
      std::printf(
          "thread-id-a %d, thread-id-b %d: %llu results, %llu with other bits than the "
          "published model, largest error %.2g of the magnitude\n",
          i / 4, i % 4, t.results, t.other_bits, static_cast<double>(worst));
      EXPECT_EQ(t.results, 16ull * 128 * 8 * 4 * 4);
      EXPECT_EQ(t.wrong_nan, 0u);
      EXPECT_LE(worst, 1.6e-7f);  // one cut to 24 bits, five of the 35 below the largest
    }
    return;
  }
  GTEST_SKIP() << "sm120 is not built in";
}

}  // namespace
}  // namespace kvscout::gpu
