// One packed tile of queries against one block of keys after another: the inside of score and of
// index.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "cpu/plan.h"
#include "kvscout/problem.h"
#include "span.h"

namespace kvscout::cpu {

// Queries [first, first + count) of a request against heads [head, head + heads) of key head kv.
// Row r of the tile is head r/count, query r%count.
struct Tile {
  std::int64_t request = 0, first = 0;
  int count = 0;
  std::int64_t kv = 0, head = 0;
  int heads = 0;
  int rows() const { return heads * count; }
};

class TileScorer {
 public:
  // Enough for every instruction set, so that a size holds whichever is chosen later.
  static std::size_t scratch_bytes(const ScoreProblem&, int rows);
  TileScorer(const ScoreProblem&, const Kernels&, void* scratch, int rows);
  ~TileScorer();
  TileScorer(const TileScorer&) = delete;
  TileScorer& operator=(const TileScorer&) = delete;

  // Packs the queries of a tile. `span` is that of the tile's request.
  void begin(const Tile& tile, const Span& span);
  // The largest logit of each row in `block`; null if the page does not exist or nobody sees a key.
  const float* score(std::int64_t block);
  // Entry of row r in the result of `score`.
  int place(int r) const { return by_keys_ ? r * kernels_.lanes : r; }
  int place_step() const { return by_keys_ ? kernels_.lanes : 1; }

 private:
  bool pack();
  void take_floats();
  // Where a block of keys lies. No rows: there is no such page, or no such block; no scales: they
  // do not lie together.
  struct Place {
    std::int64_t block = -1;
    const std::uint8_t *rows = nullptr, *scales = nullptr;
  };
  Place place_of(std::int64_t block) const;
  bool find_keys(std::int64_t block, KeySource* source);
  void copy_keys(std::int64_t first, KeySource* source);
  const std::int32_t* visible_keys(std::int64_t first_key);

  const ScoreProblem& p_;
  const Kernels& kernels_;
  const Route& first_;  // which the types ask for; rows of a tile may ask for another
  const Route* route_;  // of this tile
  const Route* entered_ = nullptr;
  Tile tile_;
  Span span_;
  std::int64_t least_seen_ = 0, most_seen_ = 0;  // keys that the first and the last query see
  bool by_keys_ = false;
  int vectors_ = 0;
  Place next_;  // of the block after the last one
  std::byte *queries_, *block_;
  std::uint8_t *codes_, *scales_;  // copies of keys that do not lie as the kernels need them
  std::int32_t* visible_;
  float* best_;
};

}  // namespace kvscout::cpu
