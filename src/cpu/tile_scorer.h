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
  static constexpr int kMostTogether = 8;
  // Enough for every instruction set, so that a size holds whichever is chosen later.
  static std::size_t scratch_bytes(const ScoreProblem&, int rows);
  TileScorer(const ScoreProblem&, const Kernels&, void* scratch, int rows);
  ~TileScorer();
  TileScorer(const TileScorer&) = delete;
  TileScorer& operator=(const TileScorer&) = delete;

  // Packs the queries of a tile. `span` is that of the tile's request.
  void begin(const Tile& tile, const Span& span);
  // Blocks that `score` takes at once, at most: several where rows are few, so that nothing lies
  // between two of them that no vector operation overlaps.
  int together() const { return by_keys_ ? kMostTogether : 1; }
  // How many blocks were scored, and the largest logits of the i-th of them, row by row; null:
  // there is no such page, or nobody sees a key.
  struct Scored {
    int blocks = 1;
    const float* best = nullptr;
    int rows = 0;
    const float* of(int i) const { return best ? best + i * rows : nullptr; }
  };
  // Scores `block` and those after it, block_step apart, up to `most` (of together()).
  Scored score(std::int64_t block, int most);

 private:
  bool pack();
  void take_floats();
  // Where a block of keys lies. No rows: there is no such page, or no such block; no scales: they
  // do not lie together.
  struct Place : KeyPlace {
    std::int64_t block = -1;
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
