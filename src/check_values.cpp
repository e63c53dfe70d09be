// Checked mode: what validate cannot know without reading, and the bounds that follow from host
// lengths.
//
// This is the one place that may allocate and wait for the device: checked mode says so.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "checks.h"
#include "message.h"
#include "span.h"
#include "validate.h"

namespace kvscout {
namespace {

using checks::Argument;
using checks::fail;

template <class T>
std::vector<T> fetch(const T* address, std::int64_t count, const Backend& backend,
                     const Launch& launch) {
  std::vector<T> host(static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
  if (host.empty()) return host;
  if (backend.read)
    backend.read(host.data(), address, host.size() * sizeof(T), launch);
  else
    std::memcpy(host.data(), address, host.size() * sizeof(T));
  return host;
}

// Prefix sums: from 0 to `total`, never falling.
void check_prefix(Argument a, const std::vector<std::int32_t>& sums, std::int64_t total) {
  for (std::size_t b = 0; b < sums.size(); ++b) {
    if (sums[b] < 0 || sums[b] > total)
      fail(a, message("{} at position {}", sums[b], b), message("0 to {}", total));
    if (b > 0 && sums[b] < sums[b - 1])
      fail(a, message("{} after {} (request {})", sums[b], sums[b - 1], b - 1),
           "sums that never fall");
  }
}

// The pages that the call reads: in a block subset the other columns may hold anything.
void check_pages(const char* op, const ScoreProblem& p, std::int64_t b, std::int64_t length,
                 const Backend& backend, const Launch& launch) {
  const Requests& r = p.requests;
  const std::int64_t seen = std::min(length, r.table_width * kBlock);
  const std::int64_t tiles = columns_below(seen, p.block_start, p.block_step, p.max_k_tiles);
  if (tiles == 0) return;
  const std::int64_t step = tiles > 1 ? p.block_step * r.table_column_stride : 0;
  const std::int64_t reach = (tiles - 1) * step;  // negative strides read from the other end
  const std::int32_t* ids =
      r.page_table + b * r.table_row_stride + p.block_start * r.table_column_stride;
  std::vector<std::int32_t> copy;  // of device memory; on the host nothing between columns is read
  if (backend.read) {
    copy = fetch(ids + std::min<std::int64_t>(reach, 0), std::abs(reach) + 1, backend, launch);
    ids = copy.data() + std::max<std::int64_t>(-reach, 0);
  }
  for (std::int64_t t = 0; t < tiles; ++t) {
    const std::int32_t id = ids[t * step];
    if (id < 0 || id >= p.k.count)
      fail({op, "page_table"},
           message("page {} in column {} of request {}", id, p.block_start + t * p.block_step, b),
           message("0 to {}", p.k.count - 1));
  }
}

template <class Args>
Bounds bounds(Args args) {
  args.max_seqlen_q = std::numeric_limits<std::int64_t>::max();
  args.max_k_tiles = 0;
  ScoreProblem p;
  const Accepted a = validate_inputs(args, p);
  if (a.device.type != Device::cpu)
    fail({a.operation, "cu_seqlens_q"}, "lengths on " + checks::describe(a.device),
         "lengths on the host");
  Bounds result;
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t b = 0; b < p.requests.batch; ++b) {
    const Span s = span_of(p.requests, p.q.tokens, p.k.paged, p.k.count, b);
    result.max_seqlen_q = std::max(result.max_seqlen_q, s.q_count);
    result.max_k_tiles =
        std::max(result.max_k_tiles, columns_below(s.k_count, p.block_start, p.block_step, kAll));
  }
  return result;
}

}  // namespace

void check_values(const char* op, const ScoreProblem& p, const Backend& backend,
                  const Launch& launch) {
  const Requests& r = p.requests;
  const auto cu_q = fetch(r.cu_q, r.batch + 1, backend, launch);
  check_prefix({op, "cu_seqlens_q"}, cu_q, p.q.tokens);
  for (std::size_t b = 0; b + 1 < cu_q.size(); ++b)
    if (cu_q[b + 1] - cu_q[b] > r.max_seqlen_q)
      fail({op, "max_seqlen_q"}, message("{}", r.max_seqlen_q),
           message("at least {}, the queries of request {}", cu_q[b + 1] - cu_q[b], b));
  if (!p.k.paged) {
    check_prefix({op, "cu_seqlens_k"}, fetch(r.cu_k, r.batch + 1, backend, launch), p.k.count);
    return;
  }
  const auto used = fetch(r.used_k, r.batch, backend, launch);
  for (std::int64_t b = 0; b < r.batch; ++b) {
    const std::int32_t length = used[static_cast<std::size_t>(b)];
    if (length < 0 || length > r.table_width * kBlock)
      fail({op, "seqused_k"}, message("{} for request {}", length, b),
           message("0 to {}, what its row of the page table can hold", r.table_width * kBlock));
    check_pages(op, p, b, length, backend, launch);
  }
}

void check_values(const char* op, const AppendProblem& p, const Backend& backend,
                  const Launch& launch) {
  const auto slots = fetch(p.slots, p.count, backend, launch);
  std::vector<std::pair<std::int64_t, std::size_t>> used;
  for (std::size_t n = 0; n < slots.size(); ++n) {
    if (slots[n] >= p.pages * kBlock)
      fail({op, "slot_mapping"}, message("slot {} for row {}", slots[n], n),
           message("below {}, or negative to skip the row", p.pages * kBlock));
    if (slots[n] >= 0) used.emplace_back(slots[n], n);
  }
  std::sort(used.begin(), used.end());
  for (std::size_t n = 1; n < used.size(); ++n)
    if (used[n].first == used[n - 1].first)
      fail({op, "slot_mapping"},
           message("slot {} for rows {} and {}", used[n].first, used[n - 1].second, used[n].second),
           "each slot at most once");
}

Bounds bounds_of(const ScoreFp4Args& args) { return bounds(args); }
Bounds bounds_of(const ScoreArgs& args) { return bounds(args); }

}  // namespace kvscout
