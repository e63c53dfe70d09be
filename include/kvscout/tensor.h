// A view of somebody's memory: address, type, shape, strides, device. Owns nothing.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "kvscout/types.h"

namespace kvscout {

enum class DType : std::uint8_t { u8, e2m1x2, e4m3, f16, bf16, f32, i32, i64 };

constexpr int bytes_of(DType t) {
  switch (t) {
    case DType::u8:
    case DType::e2m1x2:
    case DType::e4m3:
      return 1;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::i64:
      return 8;
  }
  return 0;
}
KVSCOUT_API const char* name_of(DType t);

struct Device {
  enum Type : std::uint8_t { cpu, cuda } type = cpu;
  int index = 0;  // of a GPU; the host is one place
  bool operator==(const Device& other) const {
    return type == other.type && (type == cpu || index == other.index);
  }
};

struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::u8;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};  // in elements
  Device device;
  bool defined = false;  // false: the argument was not given

  Tensor() = default;

  // A dense row-major view. Constness is the operation's promise, not the view's: inputs are not
  // written. More than kMaxRank sizes are counted, not kept: every call refuses such a view.
  Tensor(const void* address, DType type, std::initializer_list<std::int64_t> sizes,
         Device where = {})
      : data(const_cast<void*>(address)), dtype(type), device(where), defined(true) {
    for (std::int64_t size : sizes)
      if (rank++ < kMaxRank) shape[rank - 1] = size;
    std::int64_t step = 1;
    for (int i = (rank < kMaxRank ? rank : kMaxRank) - 1; i >= 0; --i) {
      stride[i] = step;
      step *= shape[i] > 0 ? shape[i] : 1;
    }
  }

  // The same memory with other strides (in elements).
  Tensor strided(std::initializer_list<std::int64_t> steps) const {
    Tensor t = *this;
    int i = 0;
    for (std::int64_t step : steps)
      if (i < rank) t.stride[i++] = step;
    return t;
  }

  std::int64_t size(int i) const { return shape[i < 0 ? i + rank : i]; }
  std::int64_t count() const {
    std::int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  bool is_dense() const {
    std::int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] == 0) return true;
      if (shape[i] != 1 && stride[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }
};

}  // namespace kvscout
