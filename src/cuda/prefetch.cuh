// What the streaming schedule asks the L2 cache for before it is time: what its warps multiply
// first, while they still find out the rest of what they need, and the blocks that they end with,
// so that the last loads do not wait for memory one after the other.
//
// In between that loses, and so does asking for more at the beginning: memory gives in the order in
// which it is asked (docs/numbers.md). Only keys whose rows lie one after the other are asked for.
#pragma once

#include "cuda/stream_units.cuh"

namespace kvscout::cuda {

// Blocks of a warp's share that it asks for ahead of time when it comes to them, the last ones. Of
// all warps these should about fit the L2 cache: two blocks of bf16 keys lose (docs/numbers.md).
template <int RowBytes>
inline constexpr unsigned kLastBlocks = RowBytes == 64 ? 2 : 1;

inline constexpr int kCacheLine = 128;  // bytes

__device__ __forceinline__ void prefetch_cache_line(const std::uint8_t* a) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(a));
}

// A warp asks for the first half of unit u of a block, and for the block's scales.
template <class Ops, int Tiles>
__device__ __forceinline__ void prefetch_unit(const ScoreParams& p, const KeyBlock& k, int u,
                                              int lane) {
  using U = Unit<Ops, Tiles>;
  if (!k.exists || p.k_token_stride != U::kRowBytes) return;
  constexpr int kOfGroup = 16 * U::kRowBytes / kCacheLine, kLines = U::kGroupsOf / 2 * kOfGroup;
#pragma unroll
  for (int i = 0; i < kLines; i += 32) {
    const int n = i + lane, row = U::row(u, n / kOfGroup);
    const int byte = row * U::kRowBytes + n % kOfGroup * kCacheLine;
    if (n < kLines && byte < (k.last + 1) * U::kRowBytes) prefetch_cache_line(k.rows + byte);
  }
  if (Ops::kKeyScales && p.paged && lane < scale_layout::kPageBytes / kCacheLine)
    prefetch_cache_line(k.scales + lane * kCacheLine);
}

// A warp asks for a block. What its lanes read begins where `from` says: lane / 4 rows and
// 16 * (lane % 4) bytes behind the block; of scales, in either half of the page's, 16 * (lane / 4)
// behind that.
template <class Ops, int Tiles>
__device__ __forceinline__ void prefetch_block(const Source& from, bool paged, int lane) {
  constexpr int kRowBytes = Unit<Ops, Tiles>::kRowBytes;
  const int behind = lane / 4 * (kRowBytes - 64) + lane * 16;
  const std::uint8_t* keys = from.keys + (lane * kCacheLine - behind);
#pragma unroll
  for (int i = 0; i < kBlock * kRowBytes; i += 32 * kCacheLine) prefetch_cache_line(keys + i);
  if (Ops::kKeyScales && paged) prefetch_cache_line(from.scales + lane / 4 % 4 * kCacheLine);
}

}  // namespace kvscout::cuda
