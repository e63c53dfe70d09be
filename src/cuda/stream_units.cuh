// How the streaming schedule brings keys into shared memory: what is copied at once, where it lies
// there, and the two ways of copying it.
#pragma once

#include "cuda/mma.cuh"

namespace kvscout::cuda {

inline constexpr int kStreamWarps = kStreamThreads / 32;
inline constexpr int kParts = 4, kPartRows = kBlock / kParts;

// What is copied at once: a block of e2m1, half of e4m3, a quarter of 16-bit keys. In a slot:
//   e2m1    as in memory: rows of 64 bytes
//   others  load n of a lane (group, half, 64 bytes of the row) at 512n: what it copied it reads
//   scales  as in a page: 16 bytes hold rows r, r + 32, r + 64, r + 96
template <class Ops>
struct Unit {
  static constexpr int kOf = Ops::kKeyLoads;  // units of a block
  static constexpr int kPartsOf = kParts / kOf;
  static constexpr int kRowBytes = 64 * Ops::kKeyLoads;
  static constexpr int kKeyBytes = 16 * 512;
  static constexpr int kBytes = kKeyBytes + (Ops::kKeyScales ? scale_layout::kPageBytes : 0);
  static constexpr bool kBulk = Ops::kKeyLoads == 1 && Ops::kBulkCopies;
};

// A block of keys that is being loaded.
struct OpenBlock {
  const std::uint8_t *keys, *scales;
  unsigned todo;              // parts
  bool any_rows, any_scales;  // not whole with dense rows; not the scales of a page
};

// A unit of a block by the copy engine; called by one lane.
__device__ __forceinline__ void load_bulk(const OpenBlock& from, std::uint32_t to,
                                          std::uint32_t barrier) {
  const int first = __ffs(from.todo) - 1, rows = __popc(from.todo) * kPartRows;
  const std::uint32_t scale_bytes = from.any_scales ? 0 : scale_layout::kPageBytes;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(rows * 64 + scale_bytes)
               : "memory");
  const auto copy = [&](std::uint32_t at, const std::uint8_t* source, std::uint32_t bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(at),
        "l"(source), "r"(bytes), "r"(barrier)
        : "memory");
  };
  copy(to + first * kPartRows * 64, from.keys + first * kPartRows * 64, rows * 64);
  if (scale_bytes) copy(to + 16 * 512, from.scales, scale_bytes);
}

// The same by all lanes, `keys` and `scales` as asked; any rows.
template <class Ops>
__device__ __forceinline__ void load_unit(const ScoreParams& p, const Segment& s, int key_head,
                                          int block, int unit, const OpenBlock& from, bool keys,
                                          int lane, std::uint32_t to) {
  using U = Unit<Ops>;
  constexpr int kEach = 4 * Ops::kKeyLoads;  // loads of a part
  const int row0 = unit * U::kPartsOf * kPartRows + lane / 4;
  const bool whole = p.paged || s.rows.k_count >= (block + 1) * kBlock;
  const int last = whole ? kBlock - 1 : s.rows.k_count - block * kBlock - 1;
  if (keys) {
    const std::int64_t stride = static_cast<int>(p.k_token_stride);
    const std::uint8_t* a = from.keys + lane % 4 * 16;
#pragma unroll
    for (int part = 0; part < U::kPartsOf; ++part)
      if (from.todo >> (unit * U::kPartsOf + part) & 1)
#pragma unroll
        for (int n = 0; n < kEach; ++n)
          copy_async<16>(
              to + lane * 16 + (part * kEach + n) * 512,
              a + least(row0 + part * kPartRows + n / Ops::kKeyLoads * 8, last) * stride +
                  n % Ops::kKeyLoads * 64);
  }
  if constexpr (Ops::kKeyScales) {
    if (!from.any_scales) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        copy_async<16>(to + U::kKeyBytes + h * 512 + lane * 16, from.scales + h * 512 + lane * 16);
    } else {
      const unsigned first =
          (static_cast<unsigned>(s.rows.k_begin + block * kBlock) * p.k_heads + key_head) % kBlock;
#pragma unroll
      for (int n = 0; n < 8; ++n) {  // word n%4, half n/4 of the lane's 16 bytes
        const unsigned row = first + least(lane + n % 4 * 32, last) * p.k_heads;
        copy_async<4>(to + U::kKeyBytes + n / 4 * 512 + lane * 16 + n % 4 * 4,
                      from.scales + row / kBlock * scale_layout::kPageBytes + row % 32 * 16 +
                          row / 32 % 4 * 4 + n / 4 * scale_layout::kSecondHalf);
      }
    }
  }
}

// The barrier of a slot, for the copy engine.
__device__ __forceinline__ void init_barrier(std::uint32_t barrier) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1; fence.mbarrier_init.release.cluster;" ::"r"(barrier)
      : "memory");
}
__device__ __forceinline__ void wait_for_barrier(std::uint32_t barrier, unsigned phase) {
  asm volatile(
      "{ .reg .pred p; again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @!p bra "
      "again%=; }" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

}  // namespace kvscout::cuda
