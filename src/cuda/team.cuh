// How the threads of a block share rows of scores, and what a team needs to agree on.
//
// A row is one (token, head). A block of 256 threads takes `Rows` of them; the `kMembers` threads
// of a row are a team. Where tokens lie side by side in memory (TokensInside) neighbouring lanes
// take neighbouring tokens, otherwise neighbouring columns; either way loads are coalesced.
#pragma once

namespace kvscout::cuda {

inline constexpr int kSelectThreads = 256;

template <int Rows, bool TokensInside>
struct Team {
  static constexpr int kRows = Rows;
  static constexpr int kMembers = kSelectThreads / Rows;
  static constexpr int kLaneStep =
      TokensInside ? Rows : 1;  // from a member to the next in its warp
  static constexpr int kInWarp = TokensInside ? 32 / Rows : 32;  // members in a warp
  static constexpr int kWarps = kMembers / kInWarp;              // warps that a team spans
  static_assert(Rows <= 32 && kMembers % kInWarp == 0);

  int row, member;

  __device__ Team()
      : row(TokensInside ? threadIdx.x % Rows : threadIdx.x / kMembers),
        member(TokensInside ? threadIdx.x / Rows : threadIdx.x % kMembers) {}

  // Where entry n of this row lies in a shared array of `size` entries a row: no bank conflicts
  // while members of a row, or rows, run over it side by side.
  __device__ int at(int n, int size) const {
    return TokensInside ? n * Rows + row : row * size + n;
  }

  struct Count {
    int before, total;  // of the members before this one; of the team
  };

  // Sums over the team. `sums` holds 8 * Rows numbers. Collective over the block.
  __device__ Count count(int mine, int* sums) const {
    const int lane = threadIdx.x % 32, place = lane / kLaneStep % kInWarp;
    int inclusive = mine;
#pragma unroll
    for (int d = 1; d < kInWarp; d *= 2) {
      const int y = __shfl_up_sync(0xFFFFFFFFu, inclusive, d * kLaneStep);
      if (place >= d) inclusive += y;
    }
    if constexpr (kWarps == 1) {
      return {inclusive - mine, __shfl_sync(0xFFFFFFFFu, inclusive, 31)};
    } else {
      const int warp = member / kInWarp;
      __syncthreads();
      if (place == kInWarp - 1) sums[warp * Rows + row] = inclusive;
      __syncthreads();
      int before = 0, total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const int s = sums[w * Rows + row];
        if (w < warp) before += s;
        total += s;
      }
      return {before + inclusive - mine, total};
    }
  }
};

}  // namespace kvscout::cuda
