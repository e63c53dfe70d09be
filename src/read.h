// Pieces of a problem, read from arguments that several operations share. Each checks what it
// reads.
#pragma once

#include "checks.h"

namespace kvscout::read {

using checks::Argument;

Element element_of(DType);
std::int64_t stride_bytes(const Tensor&, int dimension);
inline const std::uint8_t* bytes(const Tensor& t) {
  return static_cast<const std::uint8_t*>(t.data);
}
inline const std::int32_t* ints(const Tensor& t) {
  return static_cast<const std::int32_t*>(t.data);
}

// Data rows of 128 elements: the shape, and strides that keep each row in one piece.
void require_rows(Argument, const Tensor&, int rank, const char* shape, std::int64_t last);
void require_forward_scale(Argument, const GlobalScale&);

void queries(Argument, const Tensor&, Queries&);
void keys(Argument, const Tensor&, bool paged, std::int64_t last, Keys&);

// Bytes between the scales of consecutive pages: dense bytes of any shape, or pages with a stride,
// each holding its heads' 1024 bytes side by side.
std::int64_t page_scales(Argument, const Tensor&, std::int64_t pages, std::int64_t heads, Device);

void rule(const char* operation, int topk, int force_begin, int force_end, bool skip_masked,
          SelectRule&);

// (tokens, heads, topk) of ids, and of scores if they are wanted.
void selected(const char* operation, const Tensor& ids, const Tensor& scores, std::int64_t tokens,
              std::int64_t heads, int topk, Device, SelectOutput&);

}  // namespace kvscout::read
