// The block-scaled instruction in software, for tests on GPUs that lack it. It reads every operand
// from the register and lane where the instruction would (maps.h), and its result is the exact sum,
// rounded once. So what a test on another GPU leaves open is the instruction alone.
#pragma once

#include <cstdint>

#include "cuda/sm120/maps.h"
#include "kvscout/nvfp4.h"

namespace kvscout::sm120 {

// Products are multiples of 2^-20 below 2^28: their sum and the addend fit a double.
__device__ __noinline__ inline void software_mma(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2], std::uint32_t scale_a,
                                                 std::uint32_t scale_b, int selector_a,
                                                 int selector_b) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const int row = map::c_row(lane, i), column = map::c_column(lane, i);
    int group[4] = {};  // sums of a slot's 16 products, in quarters
#pragma unroll
    for (int c = 0; c < 4; ++c)  // the lanes that hold the row, and the column
#pragma unroll
      for (int upper = 0; upper < 2; ++upper) {
        const int lane_a = row % 8 * 4 + c, lane_b = column * 4 + c;
        const std::uint32_t first = __shfl_sync(kAll, a[2 * upper], lane_a),
                            second = __shfl_sync(kAll, a[2 * upper + 1], lane_a),
                            y = __shfl_sync(kAll, b[upper], lane_b);
        const std::uint32_t x = row < 8 ? first : second;
        int sum = 0;
        for (int n = 0; n < 8; ++n)
          sum += nvfp4::e2m1_doubled(x >> (4 * n)) * nvfp4::e2m1_doubled(y >> (4 * n));
        group[map::slot_of(map::a_k(c, 2 * upper, 0))] += sum;
      }
    const std::uint32_t of_row = __shfl_sync(kAll, scale_a, map::scale_a_lane(row, selector_a)),
                        of_column =
                            __shfl_sync(kAll, scale_b, map::scale_b_lane(column, selector_b));
    const auto scale = [](std::uint32_t word, int s) {
      return static_cast<double>(nvfp4::e4m3_to_float(static_cast<std::uint8_t>(word >> (8 * s))));
    };
    double sum = d[i];
    for (int s = 0; s < 4; ++s) sum += 0.25 * group[s] * scale(of_row, s) * scale(of_column, s);
    d[i] = static_cast<float>(sum);
  }
}

}  // namespace kvscout::sm120
