// How the long schedules of the GPU cut their work (cuda/line.h): every column of every tile
// belongs to one worker, and the slowest worker has little more to do than the average.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/line.h"

namespace kvscout::cuda {
namespace {

struct Shape {
  std::string name;
  std::vector<int> q, k;
  int group = 4, key_heads = 1, tile_rows = 256;
  bool causal = true;
  int step = 1;
  double balance;  // the slowest worker's columns and set-ups, against the average of all
};

struct Laid {
  int columns_twice = 0;   // done by two workers
  int columns_undone = 0;  // by none
  double slowest = 0, average = 0;
};

Laid lay_out(const Shape& s, int workers) {
  struct Tile {
    int columns;
    std::vector<int> done;
  };
  std::vector<Tile> tiles;
  std::vector<std::int32_t> cu_q{0};
  for (const int n : s.q) cu_q.push_back(cu_q.back() + n);
  int most_columns = 0, most_tokens = 0;
  for (const int n : s.k) most_columns = std::max(most_columns, (n + kBlock - 1) / kBlock);
  for (const int n : s.q) most_tokens = std::max(most_tokens, n);
  Lengths lengths;
  lengths.cu_q = cu_q.data(), lengths.used_k = s.k.data();
  lengths.batch = static_cast<int>(s.q.size()), lengths.q_tokens = cu_q.back();
  lengths.k_room = most_columns * kBlock, lengths.max_tokens = most_tokens;
  lengths.causal = s.causal;
  const ColumnRange columns{(most_columns + s.step - 1) / s.step, 0, s.step};
  const int tile_tokens = std::min(s.tile_rows / std::min(s.group, s.tile_rows), most_tokens);
  std::int64_t total = 0;
  for (int b = 0; b < lengths.batch; ++b) {
    Rows r = rows_of(lengths, b);
    r.end = r.tokens;
    for (int unit = 0; unit < s.key_heads; ++unit)
      for (int t = 0; t < tiles_of(r, tile_tokens); ++t) {
        const int n = columns_of_tile(columns, r, t, tile_tokens, s.causal);
        if (n == 0) continue;
        tiles.push_back({n, std::vector<int>(n)});
        total += n + kSetup;
      }
  }
  Laid laid;
  for (int w = 0; w < workers; ++w) {
    const Run run = run_of(total, w, workers);
    std::int64_t begin = 0;  // of the tile in the line
    double cost = 0;
    std::int64_t at = run.begin;
    for (Tile& tile : tiles) {
      const int tile_cost = tile.columns + kSetup;
      if (at < run.end && at < begin + tile_cost) {
        const Stretch stretch = Stretch::of(tile_cost, kSetup, at - begin);
        const int end = stretch.end_of(run.end - at);
        for (int n = stretch.column; n < end; ++n) ++tile.done[n];
        if (stretch.column < end) cost += end - stretch.column + kSetup;
        at = begin + tile_cost;
      }
      begin += tile_cost;
    }
    laid.slowest = std::max(laid.slowest, cost), laid.average += cost / workers;
  }
  for (const Tile& tile : tiles)
    for (const int times : tile.done)
      laid.columns_twice += times > 1, laid.columns_undone += times == 0;
  return laid;
}

std::vector<Shape> shapes() {
  std::vector<Shape> list{
      {"causal 8192 x 8192", {8192}, {8192}, 4, 1, 256, true, 1, 1.06},
      {"causal 2048 x 32768", {2048}, {32768}, 4, 1, 256, true, 1, 1.02},
      {"causal 512 x 131072", {512}, {131072}, 4, 1, 256, true, 1, 1.02},
      {"8192 x 65536", {8192}, {65536}, 4, 1, 256, false, 1, 1.01},
      {"one head", {8192}, {65536}, 1, 1, 256, false, 1, 1.01},
      {"30 x 8 tokens, 64/4 heads", std::vector<int>(30, 8), std::vector<int>(30, 67584), 16, 4,
       128, true, 1, 1.01},
      {"group of 3, every third block",
       {900, 0, 77, 5000},
       {4000, 9, 60000, 700},
       3,
       2,
       256,
       true,
       3,
       1.30},
  };
  Shape ragged{"a request of 236k beside short ones", {64}, {236000}, 4, 1, 256, true, 1, 1.02};
  for (int i = 0; i < 31; ++i) ragged.q.push_back(64), ragged.k.push_back(11000 + 900 * i);
  list.push_back(ragged);
  return list;
}

TEST(CudaLine, ColumnsBelowALimitOfAnySize) {
  const ColumnRange all{1 << 25, 0, 1};
  for (const int limit : {0, 1, 128, 129, INT32_MAX - 127, INT32_MAX - 126, INT32_MAX})
    EXPECT_EQ(all.below(limit), (std::int64_t{limit} + 127) / 128) << limit;
}

TEST(CudaLine, EveryColumnBelongsToOneWorker) {
  for (const Shape& s : shapes())
    for (const int workers : {1, 7, 132, 1000}) {
      const Laid laid = lay_out(s, workers);
      EXPECT_EQ(laid.columns_twice, 0) << s.name << ", " << workers << " workers";
      EXPECT_EQ(laid.columns_undone, 0) << s.name << ", " << workers << " workers";
    }
}

TEST(CudaLine, RunsWithoutADivisionAreTheSame) {
  for (const unsigned workers : {1u, 2u, 3u, 108u, 132u, 1000u, 65535u})
    for (const unsigned total : {0u, 1u, 131u, 132u, 133u, 524288u, 16777215u, 0x7FFFFFFFu,
                                 0x80000000u, 0xFFFFFFFEu, 0xFFFFFFFFu})
      for (const unsigned w : {0u, 1u, workers / 2, workers - 1}) {
        const auto a = run_of(total, static_cast<int>(w), static_cast<int>(workers));
        const auto b = run_of(total, w, workers, inverse_of(workers));
        EXPECT_EQ(a.begin, b.begin) << total << " by " << workers << ", " << w;
        EXPECT_EQ(a.end, b.end) << total << " by " << workers << ", " << w;
      }
}

TEST(CudaLine, TheSlowestWorkerHasLittleMoreThanTheAverage) {
  for (const Shape& s : shapes()) {
    const Laid laid = lay_out(s, 132);
    EXPECT_LE(laid.slowest, s.balance * laid.average) << s.name;
    EXPECT_GE(laid.slowest, laid.average) << s.name;
  }
}

}  // namespace
}  // namespace kvscout::cuda
