#include "checks.h"

#include <algorithm>
#include <cstdlib>

#include "message.h"

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
  for (int i = 0; i < t.rank; ++i) text += message("{}{}", i ? ", " : "", t.shape[i]);
  return "(" + text + ")";
}

std::string strides_of(const Tensor& t) {
  std::string text;
  for (int i = 0; i < t.rank; ++i) text += message("{}{}", i ? ", " : "", t.stride[i]);
  return "(" + text + ")";
}

// Elements that a view may have or reach over, far beyond any memory: times 128 keys or 8 bytes it
// still fits 64 bits.
constexpr std::int64_t kMostElements = std::int64_t{1} << 48;

bool fits(const Tensor& t) {
  std::int64_t count = 1, reach = 0;
  for (int i = 0; i < t.rank; ++i) {
    if (t.shape[i] > kMostElements / count) return false;
    count *= t.shape[i] > 0 ? t.shape[i] : 1;
    if (t.shape[i] <= 1) continue;  // such a stride is never used
    const std::int64_t most = (kMostElements - reach) / (t.shape[i] - 1);
    if (t.stride[i] > most || t.stride[i] < -most) return false;
    reach += std::abs(t.stride[i]) * (t.shape[i] - 1);
  }
  return true;
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
  // Two elements coincide if some differences of indices, not all zero, times the strides add up to
  // zero. All differences a >= 0 and b of the two shorter axes are tried, the longest closes the
  // gap.
  std::sort(axes, axes + n, [](const Axis& x, const Axis& y) { return x.size < y.size; });
  const Axis one{1, 0}, &first = n == 3 ? axes[0] : one, &second = axes[n - 2],
                        &longest = axes[n - 1];
  for (std::int64_t a = 0; a < first.size; ++a)
    for (std::int64_t b = a == 0 ? 1 : 1 - second.size; b < second.size; ++b) {
      const std::int64_t gap = a * first.stride + b * second.stride;
      if (gap % longest.stride == 0 && std::abs(gap / longest.stride) < longest.size) return true;
    }
  return false;
}

}  // namespace

void fail(Argument a, const std::string& got, const std::string& expected) {
  throw Error(Error::invalid_argument,
              message("{}: {}: got {}, expected {}", a.operation, a.name, got, expected));
}

std::string describe(Device d) {
  return d.type == Device::cuda ? message("CUDA device {}", d.index) : "the host";
}

std::string describe(const Tensor& t) {
  if (!t.defined) return "nothing";
  return message("{} {} on {}", name_of(t.dtype), shape_of(t), describe(t.device));
}

std::string describe_strides(const Tensor& t) {
  return message("{} with strides {}", describe(t), strides_of(t));
}

void require_given(Argument a, const Tensor& t, const char* expected) {
  if (!t.defined) fail(a, "nothing", expected);
  if (t.rank < 0 || t.rank > Tensor::kMaxRank)
    fail(a, message("{} dimensions", t.rank), message("at most {}", Tensor::kMaxRank));
  for (int i = 0; i < t.rank; ++i)
    if (t.shape[i] < 0) fail(a, describe(t), "sizes of at least 0");
  if (!fits(t))
    fail(a, describe_strides(t), "at most 2^48 elements, also from the first to the last");
}

void require_dtype(Argument a, const Tensor& t, std::initializer_list<DType> allowed) {
  std::string names;
  for (DType d : allowed) {
    if (t.dtype == d) return;
    names += message("{}{}", names.empty() ? "" : " or ", name_of(d));
  }
  fail(a, describe(t), names);
}

void require_rank(Argument a, const Tensor& t, int rank, const char* shape_in_words) {
  if (t.rank != rank) fail(a, describe(t), shape_in_words);
}

void require_size(Argument a, const Tensor& t, int dimension, std::int64_t size,
                  const char* meaning) {
  if (t.shape[dimension] != size)
    fail(a, describe(t), message("{} in dimension {} ({})", size, dimension, meaning));
}

void require_device(Argument a, const Tensor& t, Device device) {
  if (!(t.device == device)) fail(a, describe(t), "data on " + describe(device));
}

void require_address(Argument a, const Tensor& t) {
  if (!t.data && t.count() > 0) fail(a, "a null address", "the address of " + describe(t));
}

void require_dense(Argument a, const Tensor& t) {
  if (!t.is_dense()) fail(a, describe_strides(t), "a contiguous tensor");
}

void require_dense_rows(Argument a, const Tensor& t) {
  if (t.rank > 0 && t.size(-1) > 1 && t.stride[t.rank - 1] != 1)
    fail(a, describe_strides(t), "the elements of a row side by side (last stride 1)");
}

void require_no_overlap(Argument a, const Tensor& t) {
  if (overlaps(t)) fail(a, describe_strides(t), "no two elements at one address");
}

void require_at_least(Argument a, std::int64_t got, std::int64_t least) {
  if (got < least) fail(a, message("{}", got), message("at least {}", least));
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
    fail(a, message("{} = {} bytes", describe(t), t.count()),
         message("at least {} bytes in the 128x4 layout", bytes));
  require_address(a, t);
}

}  // namespace checks
}  // namespace kvscout
