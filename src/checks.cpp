#include "checks.h"

#include <fmt/format.h>

#include <cstdlib>

namespace kvscout {

const char* name_of(DType t) {
  switch (t) {
    case DType::u8:
      return "u8";
    case DType::e2m1x2:
      return "e2m1x2";
    case DType::e4m3:
      return "e4m3";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
  }
  return "unknown";
}

namespace checks {
namespace {

std::string shape_of(const Tensor& t) {
  std::string text;
  for (int i = 0; i < t.rank; ++i) text += fmt::format("{}{}", i ? ", " : "", t.shape[i]);
  return "(" + text + ")";
}

std::string strides_of(const Tensor& t) {
  std::string text;
  for (int i = 0; i < t.rank; ++i) text += fmt::format("{}{}", i ? ", " : "", t.stride[i]);
  return "(" + text + ")";
}

// True if two different elements share an address. Exact for up to three dimensions larger than
// one; for more, only layouts whose dimensions nest are taken to be free of overlap.
bool overlaps(const Tensor& t) {
  struct Axis {
    std::int64_t size, stride;
  };
  Axis axes[Tensor::kMaxRank];
  int n = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] <= 0) return false;
    if (t.shape[i] == 1) continue;
    const Axis axis{t.shape[i], std::abs(t.stride[i])};
    int place = n++;  // sorted by stride
    for (; place > 0 && axes[place - 1].stride > axis.stride; --place)
      axes[place] = axes[place - 1];
    axes[place] = axis;
  }
  std::int64_t reach = 0;
  bool nested = true;
  for (int i = 0; i < n; ++i) {
    if (axes[i].stride == 0) return true;
    nested = nested && axes[i].stride > reach;
    reach += axes[i].stride * (axes[i].size - 1);
  }
  if (nested) return false;
  if (n > 3) return true;
  // Two elements coincide if some difference of indices, not all zero, has the sum of strides zero.
  // The largest stride moves by a >= 0; the smallest closes the gap.
  for (std::int64_t a = 0; a < axes[n - 1].size; ++a) {
    const std::int64_t middle = n == 3 ? axes[1].size : 1;
    for (std::int64_t b = 1 - middle; b < middle; ++b) {
      if (a == 0 && b <= 0) continue;
      const std::int64_t gap = a * axes[n - 1].stride + (n == 3 ? b * axes[1].stride : 0);
      if (gap % axes[0].stride == 0 && std::abs(gap / axes[0].stride) < axes[0].size) return true;
    }
  }
  return false;
}

}  // namespace

void fail(Argument a, const std::string& got, const std::string& expected) {
  throw Error(Error::invalid_argument,
              fmt::format("{}: {}: got {}, expected {}", a.operation, a.name, got, expected));
}

std::string describe(Device d) {
  return d.type == Device::cuda ? fmt::format("CUDA device {}", d.index) : "the host";
}

std::string describe(const Tensor& t) {
  if (!t.defined) return "nothing";
  return fmt::format("{} {} on {}", name_of(t.dtype), shape_of(t), describe(t.device));
}

void require_given(Argument a, const Tensor& t, const char* expected) {
  if (!t.defined) fail(a, "nothing", expected);
}

void require_dtype(Argument a, const Tensor& t, std::initializer_list<DType> allowed) {
  std::string names;
  for (DType d : allowed) {
    if (t.dtype == d) return;
    names += fmt::format("{}{}", names.empty() ? "" : " or ", name_of(d));
  }
  fail(a, describe(t), names);
}

void require_rank(Argument a, const Tensor& t, int rank, const char* shape_in_words) {
  if (t.rank != rank) fail(a, describe(t), shape_in_words);
  for (int i = 0; i < rank; ++i)
    if (t.shape[i] < 0) fail(a, describe(t), "sizes of at least 0");
}

void require_size(Argument a, const Tensor& t, int dimension, std::int64_t size,
                  const char* meaning) {
  if (t.shape[dimension] != size)
    fail(a, describe(t), fmt::format("{} in dimension {} ({})", size, dimension, meaning));
}

void require_device(Argument a, const Tensor& t, Device device) {
  if (!(t.device == device)) fail(a, describe(t), "data on " + describe(device));
}

void require_address(Argument a, const Tensor& t) {
  if (!t.data && t.count() > 0) fail(a, "a null address", "the address of " + describe(t));
}

void require_dense(Argument a, const Tensor& t) {
  if (!t.is_dense())
    fail(a, fmt::format("{} with strides {}", describe(t), strides_of(t)), "a contiguous tensor");
}

void require_dense_rows(Argument a, const Tensor& t) {
  if (t.rank > 0 && t.size(-1) > 1 && t.stride[t.rank - 1] != 1)
    fail(a, fmt::format("{} with strides {}", describe(t), strides_of(t)),
         "the elements of a row side by side (last stride 1)");
}

void require_no_overlap(Argument a, const Tensor& t) {
  if (overlaps(t))
    fail(a, fmt::format("{} with strides {}", describe(t), strides_of(t)),
         "no two elements at one address");
}

void require_at_least(Argument a, std::int64_t got, std::int64_t least) {
  if (got < least) fail(a, fmt::format("{}", got), fmt::format("at least {}", least));
}

void require_lengths(Argument a, const Tensor& t, std::int64_t size, const char* meaning,
                     Device device) {
  require_given(a, t, "i32 lengths");
  require_dtype(a, t, {DType::i32});
  require_rank(a, t, 1, "one dimension");
  require_size(a, t, 0, size, meaning);
  require_device(a, t, device);
  require_dense(a, t);
  require_address(a, t);
}

void require_scales(Argument a, const Tensor& t, std::int64_t bytes, Device device) {
  require_dtype(a, t, {DType::u8, DType::e4m3});
  require_device(a, t, device);
  require_dense(a, t);
  if (t.count() < bytes)
    fail(a, fmt::format("{} = {} bytes", describe(t), t.count()),
         fmt::format("at least {} bytes in the 128x4 layout", bytes));
  require_address(a, t);
}

}  // namespace checks
}  // namespace kvscout
