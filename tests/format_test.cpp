// What the bits mean and where they lie: nvfp4.h, float_types.h, scale_layout.h and order.h over
// all their inputs, against second spellings.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "cases/cover.h"
#include "cases/data.h"
#include "kvscout/float_types.h"
#include "kvscout/nvfp4.h"
#include "kvscout/scale_layout.h"
#include "order.h"

namespace kvscout {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

void expect_same(double expected, float got, unsigned bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(got)) << bits;
  } else {
    EXPECT_EQ(expected, got) << bits;
    EXPECT_EQ(std::signbit(expected), std::signbit(got)) << bits;
  }
}

TEST(Format, EveryCode) {
  for (unsigned code = 0; code < 16; ++code) {
    EXPECT_EQ(nvfp4::e2m1_to_float(code), cases::code_value(code));
    EXPECT_EQ(std::signbit(nvfp4::e2m1_to_float(code)), code >= 8);
    EXPECT_EQ(nvfp4::e2m1_doubled(code), 2 * cases::code_value(code));
    EXPECT_EQ(nvfp4::float_to_e2m1(nvfp4::e2m1_to_float(code)), code);
  }
}

TEST(Format, EveryScaleByte) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto b = static_cast<std::uint8_t>(byte);
    expect_same(cases::scale_value(byte & 0x7F), nvfp4::e4m3_to_float(b), byte);
    expect_same(cases::value_of(Element::e4m3, byte), nvfp4::e4m3_element_to_float(b), byte);
    EXPECT_EQ(nvfp4::float_to_e4m3(nvfp4::e4m3_to_float(b)), byte & 0x7F);
  }
  EXPECT_EQ(nvfp4::e4m3_to_float(0x01), 0x1p-9f);
  EXPECT_EQ(nvfp4::e4m3_to_float(0x38), 1.0f);
  EXPECT_EQ(nvfp4::e4m3_to_float(0x7E), 448.0f);
}

// Every product of a code and a scale is exact in fp16 and in bf16.
TEST(Format, ProductsAreExactInSixteenBits) {
  for (unsigned code = 0; code < 16; ++code)
    for (unsigned byte = 0; byte < 0x7F; ++byte) {
      const float product =
          nvfp4::e2m1_to_float(code) * nvfp4::e4m3_to_float(static_cast<std::uint8_t>(byte));
      EXPECT_EQ(f16_to_float(float_to_f16(product)), product);
      EXPECT_EQ(bf16_to_float(float_to_bf16(product)), product);
    }
}

TEST(Format, EveryHalfPattern) {
  for (unsigned bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    expect_same(cases::value_of(Element::f16, bits), f16_to_float(b), bits);
    expect_same(cases::value_of(Element::bf16, bits), bf16_to_float(b), bits);
    if (std::isnan(f16_to_float(b)) || std::isnan(bf16_to_float(b))) continue;
    EXPECT_EQ(float_to_f16(f16_to_float(b)), b);
    EXPECT_EQ(float_to_bf16(bf16_to_float(b)), b);
  }
}

// Between two neighbours of a format: the middle goes to the even one, its neighbours to the
// nearer.
template <class Decode, class Encode>
void check_rounding(Decode decode, Encode encode, unsigned last) {
  for (unsigned low = 0; low < last; ++low) {
    const float a = decode(low), b = decode(low + 1), middle = a + (b - a) / 2;
    EXPECT_EQ(encode(middle), low % 2 ? low + 1 : low) << low;
    EXPECT_EQ(encode(std::nextafter(middle, -kInf)), low) << low;
    EXPECT_EQ(encode(std::nextafter(middle, kInf)), low + 1) << low;
  }
}

TEST(Format, Rounding) {
  check_rounding([](unsigned c) { return nvfp4::e2m1_to_float(c); },
                 [](float x) { return nvfp4::float_to_e2m1(x); }, 7);
  check_rounding([](unsigned c) { return nvfp4::e4m3_to_float(static_cast<std::uint8_t>(c)); },
                 [](float x) { return static_cast<unsigned>(nvfp4::float_to_e4m3(x)); }, 0x7E);
  check_rounding([](unsigned c) { return f16_to_float(static_cast<std::uint16_t>(c)); },
                 [](float x) { return static_cast<unsigned>(float_to_f16(x)); }, 0x7BFF);
  check_rounding([](unsigned c) { return bf16_to_float(static_cast<std::uint16_t>(c)); },
                 [](float x) { return static_cast<unsigned>(float_to_bf16(x)); }, 0x7F7F);
  for (float tie : {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f}) {
    EXPECT_EQ(nvfp4::float_to_e2m1(tie) % 2, 0u) << tie;
    EXPECT_EQ(nvfp4::float_to_e2m1(-tie), nvfp4::float_to_e2m1(tie) | 8u) << tie;
  }
  EXPECT_EQ(nvfp4::float_to_e2m1(kInf), 7u);
  EXPECT_EQ(nvfp4::float_to_e2m1(-kInf), 15u);
  EXPECT_EQ(nvfp4::float_to_e2m1(-0.0f), 8u);
  EXPECT_EQ(nvfp4::float_to_e2m1(-std::numeric_limits<float>::quiet_NaN()), 7u);
  EXPECT_EQ(nvfp4::float_to_e4m3(1e30f), 0x7E);
  EXPECT_EQ(nvfp4::float_to_e4m3(kInf), 0x7E);
  EXPECT_EQ(nvfp4::float_to_e4m3(std::numeric_limits<float>::quiet_NaN()), 0x7F);
  EXPECT_EQ(nvfp4::bits_of(1.0f / 6.0f), 0x3E2AAAABu);
}

TEST(ScaleLayout, KnownOffsets) {
  using scale_layout::tiled_128x4;
  EXPECT_EQ(tiled_128x4(0, 0, 8), 0);
  EXPECT_EQ(tiled_128x4(0, 4, 8), 512);
  EXPECT_EQ(tiled_128x4(31, 0, 8), 496);
  EXPECT_EQ(tiled_128x4(32, 0, 8), 4);
  EXPECT_EQ(tiled_128x4(33, 5, 8), 533);
  EXPECT_EQ(tiled_128x4(127, 7, 8), 1023);
  EXPECT_EQ(tiled_128x4(128, 0, 8), 1024);
  EXPECT_EQ(scale_layout::bytes(SfLayout::layout_128x4, 130, 8), 2048);
}

// Every byte of a buffer belongs to exactly one (row, group), padding included.
TEST(ScaleLayout, EveryByteOnce) {
  for (SfLayout layout : {SfLayout::layout_128x4, SfLayout::layout_8x4, SfLayout::layout_linear})
    for (std::int64_t rows : {1, 8, 9, 127, 128, 129, 300})
      for (std::int64_t groups : {1, 3, 4, 5, 8, 9}) {
        std::set<std::int64_t> seen;
        const std::int64_t all_rows = scale_layout::padded_rows(layout, rows);
        const std::int64_t all_groups = scale_layout::padded_groups(layout, groups);
        for (std::int64_t r = 0; r < all_rows; ++r)
          for (std::int64_t g = 0; g < all_groups; ++g)
            seen.insert(scale_layout::offset(layout, r, g, groups));
        ASSERT_EQ(static_cast<std::int64_t>(seen.size()),
                  scale_layout::bytes(layout, rows, groups));
        ASSERT_EQ(*seen.begin(), 0);
        ASSERT_EQ(*seen.rbegin(), scale_layout::bytes(layout, rows, groups) - 1);
      }
  for (std::int64_t r = 0; r < 1000; ++r)
    for (std::int64_t g = 0; g < 8; ++g) {
      ASSERT_EQ(scale_layout::tiled_128x4(r, g, 8), cases::scale_place(r, g));
      ASSERT_EQ(scale_layout::row_128x4(r) + g % 4 + g / 4 * scale_layout::kSecondHalf,
                cases::scale_place(r, g));
    }
  // 64-bit: rows beyond 2^31 bytes.
  EXPECT_EQ(scale_layout::tiled_128x4(std::int64_t{1} << 34, 0, 8), std::int64_t{1} << 37);
}

TEST(Order, LargerFirstThenLowerIdNanLast) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float ascending[] = {-kInf, -3.4e38f, -1.0f, -1e-45f, 0.0f, 1e-45f, 1.0f, 3.4e38f, kInf};
  for (std::size_t i = 0; i + 1 < std::size(ascending); ++i) {
    EXPECT_LT(rank_of(ascending[i]), rank_of(ascending[i + 1]));
    EXPECT_LT(priority_of(ascending[i], 0), priority_of(ascending[i + 1], 0xFFFFFFFEu));
  }
  EXPECT_EQ(rank_of(-0.0f), rank_of(0.0f));
  EXPECT_LT(rank_of(nan), rank_of(-kInf));
  EXPECT_EQ(rank_of(nan), rank_of(-nan));
  EXPECT_EQ(rank_of(-kInf), kRankOfMasked);
  EXPECT_GT(priority_of(1.0f, 3), priority_of(1.0f, 4));
}

// The covering list does what it says.
TEST(CaseList, EveryPairOfValuesOccursTogether) {
  using namespace cases;
  std::set<std::array<int, 4>> seen;
  for (const Row& row : covering_rows())
    for (int a = 0; a < kParameters; ++a)
      for (int b = a + 1; b < kParameters; ++b) seen.insert({a, row[a], b, row[b]});
  std::size_t pairs = 0;
  for (int a = 0; a < kParameters; ++a)
    for (int b = a + 1; b < kParameters; ++b)
      pairs += static_cast<std::size_t>(kLevels[a] * kLevels[b]);
  EXPECT_EQ(seen.size(), pairs);
}

}  // namespace
}  // namespace kvscout
