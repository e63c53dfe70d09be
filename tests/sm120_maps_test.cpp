// The back end sm120 cannot be run by its authors, so its maps are proved: the fragments of the
// block-scaled instruction, written a second time from the PTX manual and a third time as the
// strides of CUTLASS, and the kernels' way from 16-byte loads into them, element by element.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstring>

#include "cases/build.h"
#include "cuda/sm120/maps.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"

namespace kvscout {
namespace {

using namespace sm120;
using namespace nvfp4;

constexpr int kLanes = 32;

// ---- the instruction, by the manual: element i of a lane's operand, i counted over its registers
struct Place {
  int row, column;
};

// "Matrix fragments for mma.m16n8k64": A, 32 elements a lane.
Place manual_a(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  const bool upper_row = (0 <= i && i < 8) || (16 <= i && i < 24);
  return {upper_row ? group : group + 8,
          i < 16 ? in_group * 8 + (i & 7) : in_group * 8 + (i & 7) + 32};
}
// B, 16 elements a lane: row is k, column is n.
Place manual_b(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 8 ? in_group * 8 + (i & 7) : in_group * 8 + (i & 7) + 32, group};
}
// C and D, 4 elements a lane.
Place manual_c(int lane, int i) {
  const int group = lane >> 2, in_group = lane % 4;
  return {i < 2 ? group : group + 8, in_group * 2 + (i & 1)};
}
// "Block scaling", scale_vec::4X: thread-id-a 0 takes lanes 0 and 1 of each four, 1 takes lanes 2
// and 3; the even one has the row of the group, the odd one the row 8 below. thread-id-b is the
// lane.
int manual_scale_a_lane(int row, int thread_id) {
  for (int lane = 0; lane < kLanes; ++lane)
    if (lane % 4 / 2 == thread_id && lane / 4 == row % 8 && (lane % 2 == 1) == (row >= 8))
      return lane;
  return -1;
}
int manual_scale_b_lane(int column, int thread_id) {
  for (int lane = 0; lane < kLanes; ++lane)
    if (lane / 4 == column && lane % 4 == thread_id) return lane;
  return -1;
}

TEST(Sm120Maps, FragmentsAreThoseOfTheManual) {
  for (int lane = 0; lane < kLanes; ++lane) {
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(map::a_row(lane, i / 8), manual_a(lane, i).row) << lane << " " << i;
      EXPECT_EQ(map::a_k(lane, i / 8, i % 8), manual_a(lane, i).column) << lane << " " << i;
    }
    for (int i = 0; i < 16; ++i) {
      EXPECT_EQ(map::b_k(lane, i / 8, i % 8), manual_b(lane, i).row) << lane << " " << i;
      EXPECT_EQ(map::b_column(lane), manual_b(lane, i).column) << lane << " " << i;
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(map::c_row(lane, i), manual_c(lane, i).row) << lane << " " << i;
      EXPECT_EQ(map::c_column(lane, i), manual_c(lane, i).column) << lane << " " << i;
    }
  }
  for (int row = 0; row < 16; ++row)
    for (int selector = 0; selector < 2; ++selector)
      EXPECT_EQ(map::scale_a_lane(row, selector), manual_scale_a_lane(row, selector));
  for (int column = 0; column < 8; ++column)
    for (int selector = 0; selector < 4; ++selector)
      EXPECT_EQ(map::scale_b_lane(column, selector), manual_scale_b_lane(column, selector));
}

// The strides that CUTLASS 4.2 gives the same instruction (SM120_16x8x64_TN_VS): where an element
// of a thread lies in a column-major matrix of 16 (8) rows.
TEST(Sm120Maps, FragmentsAreThoseOfCutlass) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const int t0 = lane % 4, t1 = lane / 4;
    for (int i = 0; i < 32; ++i) {
      const int at = 128 * t0 + t1 + 16 * (i % 8) + 8 * (i / 8 % 2) + 512 * (i / 16);
      EXPECT_EQ(map::a_row(lane, i / 8) + 16 * map::a_k(lane, i / 8, i % 8), at);
    }
    for (int i = 0; i < 16; ++i) {
      const int at = 64 * t0 + t1 + 8 * (i % 8) + 256 * (i / 8);
      EXPECT_EQ(map::b_column(lane) + 8 * map::b_k(lane, i / 8, i % 8), at);
    }
    // Scales of A: 2 x 2 x 8 threads of strides 8, 0, 1; either pair of lanes may have them.
    EXPECT_EQ(map::scale_a_lane(8 * (lane % 2) + lane / 4, lane / 2 % 2), lane);
    // Of B: 4 x 8 threads of strides 0, 1.
    EXPECT_EQ(map::scale_b_lane(lane / 4, lane % 4), lane);
  }
}

// ---- what the kernels make of it ----

constexpr map::Order kOrders[] = {map::Order::paired, map::Order::natural};

TEST(Sm120Maps, EveryElementMeetsItsOwnScaleOnce) {
  for (const map::Order order : kOrders) {
    std::array<int, 128 * 128> uses{};
    for (int group = 0; group < 8; ++group)
      for (int half = 0; half < map::kHalves; ++half)
        for (int lane = 0; lane < kLanes; ++lane)
          for (int i = 0; i < 32; ++i) {
            const int m = manual_a(lane, i).row, k = manual_a(lane, i).column;
            const int key = map::key_row(group, m),
                      element = map::element_of(order, lane, half, i / 16, i % 8);
            ++uses[static_cast<std::size_t>(key * 128 + element)];
            // Half rows in order: the same sums in every schedule.
            ASSERT_EQ(element / 64, half);
            // The queries have the same element at this k.
            for (int b = 0; b < kLanes; ++b)
              for (int n = 0; n < 16; ++n) {
                if (manual_b(b, n).row != k) continue;
                ASSERT_EQ(map::element_of(order, b, half, n / 8, n % 8), element);
              }
            // The scale that the instruction takes is that of the key's group.
            const int owner = manual_scale_a_lane(m, map::scale_a_selector(half));
            ASSERT_EQ(map::key_row(group, map::scale_a_row(owner)), key);
            ASSERT_EQ(map::scale_a_half(owner), half);
            const int slot = k / 16;
            ASSERT_EQ(half * 4 + (order == map::Order::natural ? slot : map::kGroupOfSlot[slot]),
                      element / 16);
          }
    for (const int n : uses) ASSERT_EQ(n, 1);
  }
  for (int tile = 0; tile < 8; ++tile)
    for (int half = 0; half < map::kHalves; ++half)
      for (int column = 0; column < 8; ++column) {
        const int owner = manual_scale_b_lane(column, map::scale_b_selector(half, tile));
        EXPECT_EQ(map::scale_b_row(owner, tile / 2), 8 * tile + column);
        EXPECT_EQ(map::scale_b_half(owner), half);
      }
  for (int slot = 0; slot < 4; ++slot)
    EXPECT_EQ(static_cast<int>(map::kSlotOrder >> (4 * slot) & 15), map::kGroupOfSlot[slot]);
}

// A block of keys and 16 query rows through registers, as a warp moves them (operands.cuh), and
// through the instruction, as the manual has it: every score equals the plain product.
struct Row {
  std::uint8_t codes[64], scales[8];
  int code(int d) const { return codes[d / 2] >> d % 2 * 4 & 15; }
};

Row random_row(cases::Random& random) {
  Row row;
  for (std::uint8_t& x : row.codes) x = static_cast<std::uint8_t>(random.next());
  for (std::uint8_t& x : row.scales) x = static_cast<std::uint8_t>(random.below(0x7F));
  return row;
}

using Words = std::array<std::array<std::uint32_t, 4>, kLanes>;  // [lane][2*half + upper]

std::uint32_t word_of(const Row& row, int word) {
  std::uint32_t w;
  std::memcpy(&w, row.codes + 4 * word, 4);
  return w;
}

// A lane's registers. paired: of the 16 bytes that it loads and those of its neighbour. natural: 16
// bytes of a row over four lanes, as ldmatrix leaves them.
Words registers(map::Order order, const Row* const (&rows)[kLanes]) {
  Words words;
  for (int lane = 0; lane < kLanes; ++lane)
    for (int half = 0; half < 2; ++half)
      for (int upper = 0; upper < 2; ++upper) {
        const int c = lane % 4;
        const bool own = lane % 2 == half;
        const int word = order == map::Order::natural ? 8 * half + 4 * upper + c
                         : own                        ? 4 * map::chunk_of_lane(c) + 2 * upper
                               : 4 * map::chunk_of_lane(c ^ 1) + 2 * upper + 1;
        words[static_cast<std::size_t>(lane)][static_cast<std::size_t>(2 * half + upper)] =
            word_of(*rows[lane], word);
      }
  return words;
}

std::uint32_t scale_word(map::Order order, const Row& row, int half) {
  std::uint32_t slots = 0;
  for (int s = 0; s < 4; ++s) {
    const int g =
        order == map::Order::natural ? s : static_cast<int>(map::kSlotOrder >> 4 * s & 15);
    slots |= std::uint32_t{row.scales[4 * half + g]} << 8 * s;
  }
  return slots;
}

TEST(Sm120Maps, RegistersGiveThePlainProduct) {
  cases::Random random(120);
  for (const map::Order order : kOrders) {
    std::array<Row, 128> keys;
    std::array<Row, 16> queries;
    for (Row& row : keys) row = random_row(random);
    for (Row& row : queries) row = random_row(random);
    for (int group = 0; group < 8; ++group)
      for (int tile = 0; tile < 2; ++tile) {
        const Row* rows[3][kLanes];  // key rows r and r + 8, query row
        std::uint32_t scale_a[kLanes], scale_b[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
          const auto key = [&](int m) {
            return &keys[static_cast<std::size_t>(map::key_row(group, m))];
          };
          rows[0][lane] = key(lane / 4), rows[1][lane] = key(lane / 4 + 8);
          rows[2][lane] = &queries[static_cast<std::size_t>(8 * tile + lane / 4)];
          scale_a[lane] = scale_word(order, *key(map::scale_a_row(lane)), map::scale_a_half(lane));
          scale_b[lane] =
              scale_word(order, queries[static_cast<std::size_t>(map::scale_b_row(lane, 0))],
                         map::scale_b_half(lane));
        }
        const Words a[2] = {registers(order, rows[0]), registers(order, rows[1])},
                    b = registers(order, rows[2]);
        double product[16][8] = {};
        for (int half = 0; half < map::kHalves; ++half) {
          int of_a[16][64], of_b[64][8];
          const auto word = [](const Words& w, int lane, int h, int upper) {
            return w[static_cast<std::size_t>(lane)][static_cast<std::size_t>(2 * h + upper)];
          };
          for (int lane = 0; lane < kLanes; ++lane) {
            for (int i = 0; i < 32; ++i) {
              const Place at = manual_a(lane, i);
              of_a[at.row][at.column] =
                  word(a[i / 8 % 2], lane, half, i / 16) >> (4 * (i % 8)) & 15;
            }
            for (int i = 0; i < 16; ++i) {
              const Place at = manual_b(lane, i);
              of_b[at.row][at.column] = word(b, lane, half, i / 8) >> (4 * (i % 8)) & 15;
            }
          }
          for (int m = 0; m < 16; ++m)
            for (int n = 0; n < 8; ++n)
              for (int k = 0; k < 64; ++k) {
                const auto scale = [&](std::uint32_t bytes) {
                  return static_cast<double>(
                      e4m3_to_float(static_cast<std::uint8_t>(bytes >> (8 * (k / 16)))));
                };
                product[m][n] +=
                    static_cast<double>(e2m1_to_float(static_cast<unsigned>(of_a[m][k]))) *
                    static_cast<double>(e2m1_to_float(static_cast<unsigned>(of_b[k][n]))) *
                    scale(scale_a[manual_scale_a_lane(m, map::scale_a_selector(half))]) *
                    scale(scale_b[manual_scale_b_lane(n, map::scale_b_selector(half, tile))]);
              }
        }
        for (int lane = 0; lane < kLanes; ++lane)
          for (int i = 0; i < 4; ++i) {
            const Place at = manual_c(lane, i);
            const Row& key = keys[static_cast<std::size_t>(map::key_row(group, at.row))];
            const Row& query = queries[static_cast<std::size_t>(8 * tile + at.column)];
            double plain = 0;  // exact: 47 bits hold every partial sum
            for (int d = 0; d < 128; ++d)
              plain += static_cast<double>(e2m1_to_float(static_cast<unsigned>(key.code(d)))) *
                       static_cast<double>(e2m1_to_float(static_cast<unsigned>(query.code(d)))) *
                       static_cast<double>(e4m3_to_float(key.scales[d / 16])) *
                       static_cast<double>(e4m3_to_float(query.scales[d / 16]));
            ASSERT_EQ(product[at.row][at.column], plain) << group << " " << lane << " " << i;
          }
      }
  }
}

// The kernel's one 16-byte load of scales: rows r, r+32, r+64, r+96 of a page are four groups of
// keys.
TEST(Sm120Maps, ScalesOfAPageAreRegisters) {
  for (int lane = 0; lane < kLanes; ++lane)
    for (int group = 0; group < 8; ++group) {
      const int base = (16 * (group / 4) + map::scale_a_row(lane)) * 16 +
                       map::scale_a_half(lane) * 512 + group % 4 * 4;
      EXPECT_EQ(base, scale_layout::tiled_128x4(map::key_row(group, map::scale_a_row(lane)),
                                                4 * map::scale_a_half(lane), 8));
    }
}

}  // namespace
}  // namespace kvscout
