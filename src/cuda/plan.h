// How a score call is cut up: host bounds and the device's size in, launch numbers out. Pure
// integers, no CUDA, no state; nothing here looks at a length, so a captured launch stays right for
// other lengths.
//
// A *tile* is `rows` query rows of one request that meet the same keys: up to `tokens` tokens times
// `heads` of the G query heads of one key head; row n = g*tokens + token. Tiles and the blocks of
// keys that they see are numbered one after the other over the whole call (work_list.cuh,
// level_line.cuh, lone_line.cuh), and every worker takes an equal run of that line. So ragged
// batches are balanced by construction.
#pragma once

#include <cstdint>
#include <string>

#include "kvscout/problem.h"

namespace kvscout::cuda {

// What a plan needs to know of a GPU. Filled once a device by device_info (device.h).
struct DeviceInfo {
  int major = 0, minor = 0;
  int sms = 1;
  std::int64_t memory_bytes_per_us = 0;  // by its clock and width; 0: the driver does not say
};

// How the rows of a tile are made of tokens and heads, and which passes fold into one output.
struct TileShape {
  int rows = 8;
  int heads = 1;   // query heads of one pass
  int chunks = 1;  // passes that the G heads of a key head need
  int tokens = 1;
  int passes = 1;  // passes that fold into one output: 1 unless heads are reduced
  int group = 1;   // query heads of a key head
  int units = 1;   // independent (key head, chunk) groups: units * passes = key heads * chunks
};

enum class Schedule : std::uint8_t {
  stream,          // mma.sync; queries stay in registers, warps take equal runs of parts of blocks
  cells,           // the same, a block of threads for each result block that the bounds allow
  singles,         // cells of one token a request, NVFP4 keys in dense pages
  columns,         // the same, a warp a cell, and then another one
  unaligned,       // mma.sync; queries stay in registers, a warp takes a block, byte by byte; of
                   // what is not aligned, and of lines that a stream cannot count
  rows_in_shared,  // mma.sync; a warp takes a block, queries lie in shared memory
  warpgroup,       // wgmma; queries stay in registers, keys lie in shared memory
  row_parts,       // sm120: a warp keeps a part of the rows, warps of a block share pages
};

constexpr bool are_cells(Schedule s) { return s == Schedule::cells || s == Schedule::singles; }

// Threads of a block, of most schedules.
inline constexpr int kThreads = 256;
// Of Schedule::stream, one block a multiprocessor: 128 or 255 registers a thread.
constexpr int stream_threads(int rows) { return rows <= 16 ? 512 : 256; }
// Of Schedule::warpgroup: two warpgroups multiply, one prepares 256 rows, two prepare 128.
constexpr int warpgroup_threads(int rows) { return (rows == 256 ? 3 : 4) * 128; }

// Of Schedule::columns: blocks that a multiprocessor holds at once, and columns of a warp at most.
// (With three, 8 x 96k takes 18.7 instead of 19.2 us on an H200, but 14 instead of 9.5 if seven of
// the eight are short.)
inline constexpr int kColumnsBlocksPerSm = 2, kColumnsOfWarp = 2;

// What a kernel is compiled for: any call, or those that decoding makes again and again, without
// the code of other cases amid theirs. (An instruction that runs once waits to be fetched: 8 x 131k
// 22.7 to 21.8 us on an H200.)
enum class Call : std::uint8_t {
  any,
  decode,  // all heads and tokens, in one pass, against all blocks of dense pages
  single   // the same of at most 32 requests of one token, causal, on one key head, no offsets
};

struct ScoreKernel {
  Schedule schedule = Schedule::stream;
  Call call = Call::any;  // as found when it is launched
  TileShape tile;
  int blocks = 1, threads = kThreads;
  // Cells and singles: `blocks` counts columns; the grid's y = units * cell_tiles, z = batch.
  // `fill_blocks` more along x write -inf into the columns beyond, which no key of the call
  // reaches.
  int cell_tiles = 1, cell_batch = 1, fill_blocks = 0;
  int columns = 0;  // of cells, singles and columns: those that keys of the call can reach
  // Requests with a number of tokens in [min_tokens, max_tokens] are this kernel's.
  std::int64_t min_tokens = 0, max_tokens = 0;
  bool short_line = false;  // fewer than 2^29 columns, whatever the lengths say
  bool fills = true;        // writes the -inf tails
  int fill_lanes = 1;       // lanes of a warp that lie side by side along tokens there
  int fill_columns = 32;    // columns a warp fills between two looks at the lengths
};

struct ScorePlan {
  int kernels = 0;
  ScoreKernel kernel[2];
  bool aligned = true;    // 16-byte loads; otherwise bytes
  bool overlaps = false;  // may start while the kernel before it ends
};

// What the folders choose.
struct ScoreTuning {
  int stream_blocks_per_sm = 1, shared_blocks_per_sm = 1;
  int stream_threads = 0;       // 0: what stream_threads(rows) says
  int cell_rows = 16;           // most rows of a tile that cells take
  bool cells_fold_all = false;  // cells take several passes, too
  bool has_singles = true;
  bool has_warpgroup = false;
  bool overlaps = false;  // programmatic dependent launch
};

ScorePlan plan_score(const ScoreProblem&, const ScoreTuning&, const DeviceInfo&);
TileShape tile_shape(const ScoreProblem&, int rows);
bool is_aligned(const ScoreProblem&);
std::string to_string(const ScorePlan&);

}  // namespace kvscout::cuda
