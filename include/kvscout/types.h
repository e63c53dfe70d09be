// The few names that every stage shares.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define KVSCOUT_HD __host__ __device__ __forceinline__
#else
#define KVSCOUT_HD inline
#endif

#if defined(_WIN32)
#define KVSCOUT_API
#else
#define KVSCOUT_API __attribute__((visibility("default")))
#endif

namespace kvscout {

inline constexpr int kHeadDim = 128;  // elements of a query or key
inline constexpr int kBlock = 128;    // keys of a block = tokens of a page
inline constexpr int kMaxTopk = 64;

enum class Element : std::uint8_t { e2m1, e4m3, f16, bf16, f32 };
enum class Reduce : std::uint8_t { none, all, kv_group };
enum class SfLayout : std::uint8_t { layout_128x4 = 0, layout_8x4 = 1, layout_linear = 2 };

constexpr int bits_per_element(Element e) {
  return e == Element::e2m1 ? 4 : e == Element::e4m3 ? 8 : e == Element::f32 ? 32 : 16;
}
constexpr std::int64_t row_bytes(Element e) { return kHeadDim / 8 * bits_per_element(e); }

}  // namespace kvscout
