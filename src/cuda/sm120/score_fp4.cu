// SM120: the instances of the native NVFP4 score.
#include "cuda/sm120/fp4_entry.h"
#include "cuda/sm120/score_cells.cuh"
#include "cuda/sm120/score_pages.cuh"
#include "cuda/sm120/score_rows.cuh"
#include "cuda/sm120/score_tiles.cuh"

namespace kvscout::sm120 {

cuda::ScoreEntry fp4_entry(const cuda::ScoreKernel& k, bool aligned) {
  const auto by_rows = [&](auto one, auto two, auto four) -> cuda::ScoreFunction {
    return k.tile.rows == 8 ? one : k.tile.rows == 16 ? two : four;
  };
  if (!aligned) return {score_rows<4, false>};
  if (k.schedule == cuda::Schedule::row_parts)
    return {k.tile.rows == cuda::kWarps * kPartRows ? score_pages<kPartRows / 8>
                                                    : score_tiles<kPartRows / 8>};
  if (k.schedule == cuda::Schedule::cells)
    return {by_rows(score_cells<1>, score_cells<2>, score_cells<4>)};
  return {by_rows(score_rows<1, true>, score_rows<2, true>, score_rows<4, true>)};
}

}  // namespace kvscout::sm120
