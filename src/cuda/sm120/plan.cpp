#include "cuda/sm120/plan.h"

#include <algorithm>

namespace kvscout::sm120 {
namespace {

constexpr int kWarps = cuda::kThreads / 32;     // of a block
constexpr std::int64_t kBytesOfWarp = 9 * 512;  // under way: half a page with its scales
constexpr std::int64_t kLatency = 700;          // ns, of memory under load

constexpr cuda::ScoreTuning k16Bit{.overlaps = true};  // 16-bit operands

// Parts of 64 rows for the warps of a block, as many as the bound on tokens can fill.
void use_parts(const ScoreProblem& p, cuda::ScoreKernel& k) {
  k.schedule = cuda::Schedule::row_parts;
  k.tile = cuda::tile_shape(p, kPartRows);
  const std::int64_t tokens = std::min(p.requests.max_seqlen_q, p.q.tokens);
  int parts = 1;
  while (parts < kWarps && std::int64_t{parts} * k.tile.tokens < tokens) parts *= 2;
  k.tile.rows *= parts, k.tile.tokens *= parts;
}

}  // namespace

// Eight times what memory needs under way, so that keys in the L2 cache, some five times as fast,
// are served as well; an unknown bandwidth gets what registers allow.
int blocks_per_sm(const cuda::DeviceInfo& d) {
  if (d.memory_bytes_per_us <= 0) return 2;
  const std::int64_t wanted = 8 * d.memory_bytes_per_us * kLatency / 1000 / std::max(d.sms, 1);
  return wanted > kWarps * kBytesOfWarp ? 2 : 1;
}

cuda::ScorePlan plan_score(const ScoreProblem& p, const cuda::DeviceInfo& device) {
  if (!is_native(p)) return cuda::plan_score(p, k16Bit, device);
  const int blocks = blocks_per_sm(device);
  const cuda::ScoreTuning tuning{.stream_blocks_per_sm = blocks,
                                 .shared_blocks_per_sm = 2,
                                 .stream_threads = cuda::kThreads,
                                 .cell_rows = 32,
                                 .cells_fold_all = true,
                                 .has_singles = false,
                                 .overlaps = true};
  cuda::ScorePlan plan = cuda::plan_score(p, tuning, device);
  for (int i = 0; i < plan.kernels; ++i)
    if (plan.kernel[i].schedule == cuda::Schedule::rows_in_shared) use_parts(p, plan.kernel[i]);
  return plan;
}

}  // namespace kvscout::sm120
