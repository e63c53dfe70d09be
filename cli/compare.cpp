#include "compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "text.h"

namespace kvscout::tool {
namespace {

std::string place_of(std::int64_t flat, const Tensor& t) {
  std::string text;
  for (int i = t.rank - 1; i >= 0; --i) {
    text = formatted("{}{}{}", flat % t.shape[i], text.empty() ? "" : ", ", text);
    flat /= t.shape[i];
  }
  return "(" + text + ")";
}

bool same_shape(const Tensor& a, const Tensor& b, Comparison& c) {
  const bool same =
      a.rank == b.rank && std::equal(a.shape.begin(), a.shape.begin() + a.rank, b.shape.begin());
  // Scale bytes may be written as one dimension or as rows: bytes are compared in order.
  if (same || (bytes_of(a.dtype) == 1 && bytes_of(b.dtype) == 1 && a.count() == b.count()))
    return true;
  c.detail = formatted("shape {} against {}", shape_text(a), shape_text(b));
  return false;
}

std::string integer_at(const Tensor& t, std::int64_t i) {
  switch (bytes_of(t.dtype)) {
    case 1:
      return formatted("0x{:02x}", static_cast<const std::uint8_t*>(t.data)[i]);
    case 4:
      return formatted("{}", static_cast<const std::int32_t*>(t.data)[i]);
    default:
      return formatted("{}", static_cast<const std::int64_t*>(t.data)[i]);
  }
}

}  // namespace

std::string shape_text(const Tensor& t) {
  std::string text;
  for (int i = 0; i < t.rank; ++i) text += formatted("{}{}", i ? ", " : "", t.shape[i]);
  return "(" + text + ")";
}

Comparison compare_exact(const Tensor& ours, const Tensor& theirs) {
  Comparison c;
  if (!same_shape(ours, theirs, c)) return c;
  // Bytes are bytes, whether a file calls them codes, scales or integers; wider types mean numbers.
  if (ours.dtype != theirs.dtype && (bytes_of(ours.dtype) != 1 || bytes_of(theirs.dtype) != 1)) {
    c.detail = formatted("type {} against {}", name_of(ours.dtype), name_of(theirs.dtype));
    return c;
  }
  c.values = ours.count();
  std::int64_t first = -1;
  for (std::int64_t i = 0; i < c.values; ++i) {
    const auto size = static_cast<std::size_t>(bytes_of(ours.dtype));
    if (std::memcmp(static_cast<const char*>(ours.data) + i * size,
                    static_cast<const char*>(theirs.data) + i * size, size) == 0)
      continue;
    if (c.differing++ == 0) first = i;
  }
  c.equal = c.differing == 0;
  c.detail = c.equal ? formatted("{} values equal", c.values)
                     : formatted("{} of {} values differ, first at {}: got {}, expected {}",
                                 c.differing, c.values, place_of(first, ours),
                                 integer_at(ours, first), integer_at(theirs, first));
  return c;
}

Comparison compare_scores(const Tensor& ours, const Tensor& theirs, const float* magnitudes,
                          double tolerance) {
  Comparison c;
  if (!same_shape(ours, theirs, c)) return c;
  const auto* a = static_cast<const float*>(ours.data);
  const auto* b = static_cast<const float*>(theirs.data);
  c.values = ours.count();
  std::int64_t first = -1, masked = 0;
  for (std::int64_t i = 0; i < c.values; ++i) {
    bool same = a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]));
    masked += same && std::isinf(a[i]);
    if (!same && std::isfinite(a[i]) && std::isfinite(b[i])) {
      const double error = std::abs(double{a[i]} - double{b[i]});
      const double rounding = 0x1p-23 * std::abs(double{b[i]}) + 0x1p-149;
      same = error <= tolerance * double{magnitudes[i]} + rounding;
      if (magnitudes[i] > 0) c.worst = std::max(c.worst, error / double{magnitudes[i]});
    }
    if (!same && c.differing++ == 0) first = i;
  }
  c.equal = c.differing == 0;
  c.detail = c.equal
                 ? formatted(
                       "{} values equal ({} of them -inf), largest error {:.1e} of the products' "
                       "magnitude, "
                       "allowed {:.1e}",
                       c.values, masked, c.worst, tolerance)
                 : formatted("{} of {} values differ, first at {}: got {}, expected {}",
                             c.differing, c.values, place_of(first, ours), a[first], b[first]);
  return c;
}

}  // namespace kvscout::tool
