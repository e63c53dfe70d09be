#include "data.h"

#include <limits>

namespace kvscout::cases {

double code_value(unsigned code) {
  static constexpr double kMagnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kMagnitudes[code & 7] : kMagnitudes[code & 7];
}

double scale_value(unsigned byte) {
  const unsigned exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return exponent == 0 ? std::ldexp(mantissa, -9)
                       : std::ldexp(8 + mantissa, static_cast<int>(exponent) - 10);
}

double value_of(Element type, std::uint32_t bits) {
  if (type == Element::e4m3) return bits & 0x80 ? -scale_value(bits) : scale_value(bits);
  if (type == Element::f16) {
    const double sign = bits & 0x8000 ? -1 : 1;
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    if (exponent == 31) {
      return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
    }
    return sign *
           (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
  }
  if (type == Element::bf16) bits <<= 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

std::uint16_t half_bits(Element type, double x) {
  if (type == Element::bf16) {
    const float f = static_cast<float>(x);
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    return static_cast<std::uint16_t>(u >> 16);
  }
  const unsigned sign = std::signbit(x) ? 0x8000 : 0;
  const double a = std::fabs(x);
  if (a == 0) return static_cast<std::uint16_t>(sign);
  if (a >= 65504) return static_cast<std::uint16_t>(sign | 0x7BFF);
  int exponent = std::ilogb(a);
  if (exponent < -14) exponent = -15;  // subnormal: multiples of 2^-24
  const int step = exponent < -14 ? -24 : exponent - 10;
  const int mantissa = static_cast<int>(std::ldexp(a, -step));  // towards zero
  return static_cast<std::uint16_t>(
      sign | (exponent < -14 ? mantissa : (exponent + 15) * 1024 + (mantissa - 1024)));
}

namespace {

void fill_e2m1(Random& random, Values values, std::uint8_t* data, std::uint8_t* scales,
               std::int64_t scale_row) {
  const bool nan_poison = values == Values::poison && random.one_in(2);
  for (int i = 0; i < 64; i += 8) {
    std::uint64_t bits = random.next();
    if (nan_poison)
      bits = ~std::uint64_t{0};
    else if (values == Values::poison)
      bits |= 0x7777777777777777u;  // +-6
    std::memcpy(data + i, &bits, 8);
  }
  std::uint64_t bits = random.next();
  for (int g = 0; g < 8; ++g, bits >>= 8) {
    std::uint8_t byte = bits & 0xFF;
    if (values == Values::plain)
      byte = static_cast<std::uint8_t>(0x28 + byte % 0x20);  // 0.25 .. 3.75
    if (values == Values::poison) byte = nan_poison ? 0x7F : 0x7E;
    // A NaN makes a whole logit vanish: keep one in four of those that fall.
    if (values == Values::raw && (byte & 0x7F) == 0x7F && !random.one_in(4)) byte ^= 0x41;
    scales[scale_place(scale_row, g)] = byte;
  }
}

void fill_e4m3(Random& random, Values values, std::uint8_t* data) {
  const bool nan_poison = values == Values::poison && random.one_in(2);
  for (int i = 0; i < 128; i += 8) {
    std::uint64_t bits = random.next();
    for (int j = 0; j < 8; ++j, bits >>= 8) {
      std::uint8_t byte = bits & 0xFF;
      if (values == Values::plain)
        byte = static_cast<std::uint8_t>((byte & 0x80) | (0x20 + byte % 0x20));
      if (values == Values::poison) byte |= nan_poison ? 0x7F : 0x7E;
      if (values == Values::raw && (byte & 0x7F) == 0x7F && !random.one_in(16)) byte ^= 0x41;
      if (values == Values::poison && !nan_poison) byte &= 0xFE;
      data[i + j] = byte;
    }
  }
}

void fill_half(Random& random, Values values, Element type, std::uint8_t* data) {
  const bool nan_poison = values == Values::poison && random.one_in(2);
  for (int i = 0; i < 128; ++i) {
    std::uint16_t bits;
    if (values == Values::plain) {
      bits = half_bits(type, random.normal());
    } else if (values == Values::poison) {
      bits = nan_poison ? 0xFFFF : half_bits(type, random.one_in(2) ? 60000.0 : -60000.0);
    } else if (random.one_in(16)) {  // zeros of both signs, subnormals, seldom a NaN
      const unsigned sign = random.one_in(2) ? 0x8000 : 0;
      bits = random.one_in(64)
                 ? 0x7FC1
                 : static_cast<std::uint16_t>(sign | (random.one_in(2) ? 0 : random.below(128)));
    } else {
      bits = half_bits(type, std::ldexp(random.normal(), static_cast<int>(random.between(-14, 8))));
    }
    std::memcpy(data + 2 * i, &bits, 2);
  }
}

}  // namespace

void fill_row(Random& random, Values values, Element type, std::uint8_t* data, std::uint8_t* scales,
              std::int64_t scale_row) {
  switch (type) {
    case Element::e2m1:
      return fill_e2m1(random, values, data, scales, scale_row);
    case Element::e4m3:
      return fill_e4m3(random, values, data);
    case Element::f16:
    case Element::bf16:
      return fill_half(random, values, type, data);
    case Element::f32:
      for (int i = 0; i < 128; ++i) {
        const float x = static_cast<float>(
            values == Values::raw
                ? std::ldexp(random.normal(), static_cast<int>(random.between(-40, 20)))
            : values == Values::plain ? random.normal()
                                      : 1e30);
        std::memcpy(data + 4 * i, &x, 4);
      }
  }
}

}  // namespace kvscout::cases
