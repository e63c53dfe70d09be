#include "cuda/plan.h"

#include <algorithm>

namespace kvscout::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxRegisterRows = 32;
constexpr int kSharedRows = 128;
constexpr std::int64_t kMaxCells = 4096;
// Cells a multiprocessor up to which each has a block of threads.
constexpr int kCellsOfBlocks = 10;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Rows that one token's heads and the bound on tokens can fill, saturated.
std::int64_t rows_bound(const ScoreProblem& p) {
  const std::int64_t tokens = std::min(p.requests.max_seqlen_q, p.q.tokens);
  return std::min<std::int64_t>(tokens, 1 << 20) * std::min<std::int64_t>(p.group(), 1 << 20);
}

// The -inf tails as `parts` parts, about: a lane a token where tokens lie side by side, else a lane
// a column. Returns how many parts.
std::int64_t share_tails(const ScoreProblem& p, std::int64_t parts, ScoreKernel& k) {
  const bool columns_inside =
      p.out.tile_stride != 0 && std::abs(p.out.tile_stride) < std::abs(p.out.token_stride);
  k.fill_lanes = 1;
  while (!columns_inside && k.fill_lanes < kWarp && k.fill_lanes < p.q.tokens) k.fill_lanes *= 2;
  const std::int64_t step = kWarp / k.fill_lanes;
  const std::int64_t rows = ceil_div(p.q.tokens, k.fill_lanes) * p.out_heads();
  const std::int64_t stores = rows * ceil_div(p.max_k_tiles, step);
  const std::int64_t about = step * std::clamp<std::int64_t>(ceil_div(stores, parts), 16, 1 << 20);
  // Parts of a row that are alike.
  const std::int64_t of_row = std::max<std::int64_t>((p.max_k_tiles + about / 2) / about, 1);
  k.fill_columns = static_cast<int>(step * ceil_div(ceil_div(p.max_k_tiles, of_row), step));
  return rows * ceil_div(p.max_k_tiles, k.fill_columns);
}

// Columns whose block begins within the page table, or within all keys.
std::int64_t columns_of_keys(const ScoreProblem& p) {
  const std::int64_t blocks =
      (p.k.paged ? p.requests.table_width : ceil_div(p.k.count, kBlock)) - p.block_start;
  return blocks <= 0 ? 0 : std::min((blocks - 1) / p.block_step + 1, p.max_k_tiles);
}

// Whether the columns of all tiles are fewer than 2^29, whatever the lengths say: streams count
// their quarters in 32 bits.
bool is_short_line(const ScoreProblem& p, const TileShape& tile) {
  const std::int64_t tokens = std::min(p.requests.max_seqlen_q, p.q.tokens);
  const std::int64_t tiles = ceil_div(std::max<std::int64_t>(tokens, 1), tile.tokens);
  return static_cast<double>(columns_of_keys(p)) * static_cast<double>(p.requests.batch) *
             static_cast<double>(tiles) * tile.units <
         0x1p29;
}

ScoreKernel kernel_of(const ScoreProblem& p, Schedule schedule, int rows, int blocks,
                      int threads = kThreads) {
  ScoreKernel k;
  k.schedule = schedule;
  k.tile = tile_shape(p, rows);
  k.max_tokens = p.requests.max_seqlen_q;
  k.short_line = is_short_line(p, k.tile);
  k.blocks = blocks;
  k.threads = threads;
  // Two for each warp; wgmma: for each that multiplies, which writes one of them before it has
  // something to multiply.
  share_tails(p, blocks * (schedule == Schedule::warpgroup ? kThreads : threads) * 2 / kWarp, k);
  return k;
}

ScoreKernel unaligned_kernel(const ScoreProblem& p, const DeviceInfo& device) {
  return kernel_of(p, Schedule::unaligned, kMaxRegisterRows, device.sms);
}

ScoreKernel stream_kernel(const ScoreProblem& p, int rows, const ScoreTuning& tuning,
                          const DeviceInfo& device) {
  const int threads = tuning.stream_threads ? tuning.stream_threads : stream_threads(rows);
  const ScoreKernel k =
      kernel_of(p, Schedule::stream, rows, device.sms * tuning.stream_blocks_per_sm, threads);
  return k.short_line ? k : unaligned_kernel(p, device);
}

// One token a request, NVFP4 keys in pages whose rows lie side by side.
bool is_single(const ScoreProblem& p, const TileShape& tile) {
  return tile.rows == 8 && tile.tokens == 1 && tile.chunks == 1 && p.reduce == Reduce::none &&
         p.k.paged && p.k.type == Element::e2m1 && p.k.token_stride == row_bytes(p.k.type) &&
         reinterpret_cast<std::uintptr_t>(p.q.scale) % 2 == 0;
}

// `of_column` cells a column: a warp each, or two columns. False: that takes more warps than are
// resident at once.
bool use_columns(std::int64_t columns, std::int64_t of_column, const DeviceInfo& device,
                 ScoreKernel& k) {
  for (int each = 1; each <= kColumnsOfWarp; ++each) {
    const std::int64_t blocks = ceil_div(ceil_div(columns, each) * of_column, kThreads / kWarp);
    if (blocks > device.sms * kColumnsBlocksPerSm) continue;
    k.schedule = Schedule::columns;
    k.columns = static_cast<int>(columns);
    k.blocks = static_cast<int>(blocks);
    k.threads = kThreads;
    return true;
  }
  return false;
}

// Where the bounds allow few result blocks, each gets a block of threads, and the fewer, the more
// warps. A max_k_tiles beyond what the keys reach only adds blocks of threads that write -inf.
void use_cells(const ScoreProblem& p, const ScoreTuning& tuning, const DeviceInfo& device,
               ScoreKernel& k) {
  const std::int64_t tokens = std::min(p.requests.max_seqlen_q, p.q.tokens);
  const std::int64_t columns = std::max<std::int64_t>(columns_of_keys(p), 1),
                     batch = p.requests.batch;
  // A bound of no tokens leaves a tile that writes -inf.
  const std::int64_t tiles = std::max<std::int64_t>(ceil_div(tokens, k.tile.tokens), 1);
  if (k.tile.rows > tuning.cell_rows || (k.tile.passes > 1 && !tuning.cells_fold_all) ||
      batch == 0 || batch > kMaxCells || columns > kMaxCells || tiles * k.tile.units > kMaxCells)
    return;
  // Cells take a block's first key as 32 bits.
  constexpr std::int64_t kReach = 1 << 24;
  if (p.block_start >= kReach || p.block_step >= kReach ||
      p.block_start + columns * p.block_step >= kReach)
    return;
  const std::int64_t cells = columns * batch * tiles * k.tile.units;
  const bool single = tuning.has_singles && is_single(p, k.tile);
  const std::int64_t most_warps = device.sms * 8;  // that write -inf
  if (single && cells > device.sms * kCellsOfBlocks &&
      use_columns(columns, batch * k.tile.units, device, k)) {
    share_tails(p, most_warps * 2, k);
    return;
  }
  if (cells > device.sms * 20) return;
  k.schedule = single ? Schedule::singles : Schedule::cells;
  k.blocks = k.columns = static_cast<int>(columns);
  k.cell_tiles = static_cast<int>(tiles);
  k.cell_batch = static_cast<int>(batch);
  if (single)  // 1 x 8k on an H200: 2.1, 2.1 us with 8, 4 warps; 8 x 8k: 4.1, 3.5
    k.threads = kWarp * (cells <= device.sms ? 8 : 4);
  else  // All cells run at once: a multiprocessor holds some 20 warps of this kernel.
    k.threads = kWarp * (cells <= device.sms * 2    ? 8
                         : cells <= device.sms * 5  ? 4
                         : cells <= device.sms * 10 ? 2
                                                    : 1);
  if (columns < p.max_k_tiles) {
    const std::int64_t parts = share_tails(p, most_warps * 2, k), of_block = k.threads / kWarp;
    k.fill_blocks = static_cast<int>(
        ceil_div(std::min(most_warps, parts), of_block * batch * tiles * k.tile.units));
  }
}

}  // namespace

TileShape tile_shape(const ScoreProblem& p, int rows) {
  const std::int64_t group = std::max<std::int64_t>(p.group(), 1);
  TileShape t;
  t.rows = rows;
  t.group = static_cast<int>(group);
  t.heads = static_cast<int>(std::min<std::int64_t>(group, rows));
  t.chunks = static_cast<int>(ceil_div(group, t.heads));
  const std::int64_t tokens =
      std::max<std::int64_t>(std::min(p.requests.max_seqlen_q, p.q.tokens), 1);
  t.tokens = static_cast<int>(std::min<std::int64_t>(rows / t.heads, tokens));
  const int all = static_cast<int>(p.k.heads) * t.chunks;
  t.passes = p.reduce == Reduce::none ? 1 : p.reduce == Reduce::kv_group ? t.chunks : all;
  t.units = all / std::max(t.passes, 1);
  return t;
}

bool is_aligned(const ScoreProblem& p) {
  std::uint64_t bits =
      reinterpret_cast<std::uintptr_t>(p.q.data) | reinterpret_cast<std::uintptr_t>(p.k.data) |
      static_cast<std::uint64_t>(p.q.token_stride) | static_cast<std::uint64_t>(p.q.head_stride) |
      static_cast<std::uint64_t>(p.k.token_stride) | static_cast<std::uint64_t>(p.k.head_stride);
  if (p.k.paged) bits |= static_cast<std::uint64_t>(p.k.page_stride);
  if (p.k.scale) {
    bits |= reinterpret_cast<std::uintptr_t>(p.k.scale);
    if (p.k.paged) bits |= static_cast<std::uint64_t>(p.k.scale_page_stride);
  }
  // Pages, and rows within a page, are addressed by 32-bit products.
  const bool near =
      (!p.k.paged || (p.k.page_stride >> 32 == 0 && p.k.scale_page_stride >> 32 == 0)) &&
      p.q.tokens * p.q.heads >> 32 == 0 && (p.k.paged || p.k.count * p.k.heads >> 32 == 0);
  return bits % 16 == 0 && near && std::abs(p.k.token_stride) < (std::int64_t{1} << 24);
}

ScorePlan plan_score(const ScoreProblem& p, const ScoreTuning& tuning, const DeviceInfo& device) {
  ScorePlan plan;
  plan.aligned = is_aligned(p);
  plan.overlaps = tuning.overlaps;
  if (p.q.tokens == 0 || p.max_k_tiles == 0 || p.out_heads() == 0) return plan;  // an empty result

  const std::int64_t rows = rows_bound(p);
  const bool is_short = rows <= kMaxRegisterRows || !plan.aligned;
  if (is_short) {
    plan.kernels = 1;
    ScoreKernel& k = plan.kernel[0];
    if (!plan.aligned) {
      k = unaligned_kernel(p, device);
    } else {
      const bool is_nvfp4 = p.k.type == Element::e2m1;
      const int tile_rows = rows <= 8 ? 8 : rows <= 16 && is_nvfp4 ? 16 : kMaxRegisterRows;
      k = stream_kernel(p, tile_rows, tuning, device);
      use_cells(p, tuning, device, k);
    }
    return plan;
  }

  ScoreKernel& long_kernel = plan.kernel[0];
  if (tuning.has_warpgroup) {
    const int tile_rows = rows <= 128 ? 128 : 256;
    long_kernel =
        kernel_of(p, Schedule::warpgroup, tile_rows, device.sms, warpgroup_threads(tile_rows));
  } else {
    long_kernel = kernel_of(p, Schedule::rows_in_shared, kSharedRows,
                            device.sms * tuning.shared_blocks_per_sm);
  }
  plan.kernels = 1;
  // A batch of several requests that cannot all be as long as the bound may hold single tokens,
  // too.
  const std::int64_t short_tokens = kMaxRegisterRows / std::max<std::int64_t>(p.group(), 1);
  if (p.requests.batch > 1 && short_tokens > 0 &&
      p.q.tokens < p.requests.batch * std::min(p.requests.max_seqlen_q, p.q.tokens)) {
    long_kernel.min_tokens = short_tokens + 1;
    long_kernel.fills = false;
    ScoreProblem bounded = p;
    bounded.requests.max_seqlen_q = short_tokens;
    const int short_rows = p.k.type == Element::e2m1 ? 16 : kMaxRegisterRows;
    plan.kernel[1] = stream_kernel(bounded, short_rows, tuning, device);
    plan.kernels = 2;
  }
  return plan;
}

std::string to_string(const ScorePlan& plan) {
  std::string text;
  for (int i = 0; i < plan.kernels; ++i) {
    const ScoreKernel& k = plan.kernel[i];
    const TileShape& t = k.tile;
    if (i) text += "; ";
    text += k.schedule == Schedule::warpgroup        ? "wgmma"
            : k.schedule == Schedule::cells          ? "mma, a block of threads a cell"
            : k.schedule == Schedule::singles        ? "mma, a block of threads a cell of one token"
            : k.schedule == Schedule::columns        ? "mma, a warp a cell of one token"
            : k.schedule == Schedule::rows_in_shared ? "mma, queries in shared memory"
            : k.schedule == Schedule::row_parts      ? "mma, 64 rows a warp in registers"
            : k.schedule == Schedule::unaligned      ? "mma, byte by byte"
                                                     : "mma, queries in registers";
    text += ": " + std::to_string(k.blocks) + " x " + std::to_string(k.threads) +
            " threads, tiles of " + std::to_string(t.rows) + " rows (" + std::to_string(t.tokens) +
            " tokens x " + std::to_string(t.heads) + " heads), " + std::to_string(t.units) +
            " units of " + std::to_string(t.passes) + " passes";
    if (plan.kernels > 1)
      text += ", requests of " + std::to_string(k.min_tokens) + " to " +
              std::to_string(k.max_tokens) + " tokens";
    text += k.schedule == Schedule::unaligned ? ", byte loads" : ", 16-byte loads";
  }
  return plan.kernels == 0 ? "nothing to do" : text;
}

}  // namespace kvscout::cuda
