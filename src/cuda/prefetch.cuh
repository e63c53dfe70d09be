// What the streaming schedule asks the L2 cache for before it is time: the blocks that its warps
// begin with, while they still find out the rest of what they need, and those that they end with,
// so that the last loads do not wait for memory one after the other.
//
// In between that loses (docs/numbers.md).
#pragma once

#include "cuda/stream_units.cuh"

namespace kvscout::cuda {

// Of e2m1 keys whose rows lie one after the other.
inline constexpr int kRowBytes = static_cast<int>(row_bytes(Element::e2m1)),
                     kBlockBytes = kBlock * kRowBytes;
// Blocks of a warp's share that it asks for ahead of time when it comes to them, the last ones.
inline constexpr unsigned kLastBlocks = 2;

// Requests up to which a lane finds its place in little time.
inline constexpr int kFewRequests = 128;

// Before SM90 there is no instruction for more than a line.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
inline constexpr bool kPrefetchesFirst = false;
__device__ __forceinline__ void prefetch_bulk(const std::uint8_t*, unsigned) {}
#else
inline constexpr bool kPrefetchesFirst = true;
__device__ __forceinline__ void prefetch_bulk(const std::uint8_t* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
#endif

// Each lane asks for the block at its position x of the line.
template <class List>
__device__ __forceinline__ void prefetch_first(const ScoreParams& p, const List& list,
                                               std::int64_t x) {
  const Segment s = list.place(x);
  const int block = block_of(p, s.column);
  const KeyBlock k =
      key_block(p, s.rows, block, page_id(p, s.rows.b, block), head_chunk(p, s.unit, 0).key_head);
  if (!k.exists || p.k_token_stride != kRowBytes) return;
  prefetch_bulk(k.rows, (k.last + 1) * kRowBytes);
  if (p.paged) prefetch_bulk(k.scales, scale_layout::kPageBytes);
}

// A warp asks for a block, each lane for two lines of keys and one of scales.
__device__ __forceinline__ void prefetch_block(const Source& from, bool paged, int lane) {
  const auto line = [](const std::uint8_t* a) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(a));
  };
  // What the lane reads of keys begins 16 * lane behind the block; of scales, in one half of the
  // page's or the other, 16 * (lane / 4) behind that.
  line(from.keys + lane * 112), line(from.keys + lane * 112 + kBlockBytes / 2);
  if (paged) line(from.scales + lane / 4 % 4 * 128);
}

}  // namespace kvscout::cuda
