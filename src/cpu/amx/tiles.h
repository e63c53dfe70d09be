// Tile registers: what they hold, and the instructions on them.
#pragma once

#include <cstddef>

#include "cpu/amx/layout.h"

// The compilers' own macros do not say that a tile load reads memory.
#define TILE_LOAD(N, FROM, STRIDE)                      \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #N          \
               :                                        \
               : "r"(FROM), "r"(std::ptrdiff_t{STRIDE}) \
               : "memory")
#define TILE_STORE(N, TO, STRIDE)                     \
  asm volatile("tilestored %%tmm" #N ", (%0,%1,1)"    \
               :                                      \
               : "r"(TO), "r"(std::ptrdiff_t{STRIDE}) \
               : "memory")
#define TILE_ZERO(N) asm volatile("tilezero %%tmm" #N ::)
#define TILE_PRODUCT(C, A, B) asm volatile("tdpbf16ps %%tmm" #B ", %%tmm" #A ", %%tmm" #C ::)

namespace kvscout::cpu::amx {

// Of a tile's row.
inline constexpr int kSumBytes = 64, kKeyBytes = 64;
template <int kDepth>
inline constexpr int kQueryBytes = 2 * kDepth;

// Tiles 0 to 3 are sums (rows x keys), 4 and 5 queries, 6 and 7 keys.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start = 0, unused[14] = {};
  std::uint16_t bytes[16];
  std::uint8_t rows[16];
};
template <int kDepth, int kTileRows>
inline constexpr Configuration kConfiguration{
    .bytes = {kSumBytes, kSumBytes, kSumBytes, kSumBytes, kQueryBytes<kDepth>, kQueryBytes<kDepth>,
              kKeyBytes, kKeyBytes},
    .rows = {kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kDepth / 2,
             kDepth / 2}};

// Stores a tile of sums, if there are any, and begins others.
template <int kTile>
KVSCOUT_AMX_INLINE void renew(bool full, Sums& sums) {
  if (full)
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(sums.of), "r"(std::ptrdiff_t{kSumBytes}), "i"(kTile)
                 : "memory");
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

KVSCOUT_AMX_INLINE void zero_sums(int first) {
  if (first == 0) {
    TILE_ZERO(0);
    TILE_ZERO(2);
  } else {
    TILE_ZERO(1);
    TILE_ZERO(3);
  }
}

// Tiles t of chunk c against one or two vectors. A tile load that meets stores of the same
// bytes on their way waits for them, some 60 cycles: hence a chunk behind the unpacking.
template <int kDepth, int kVectors>
KVSCOUT_AMX_INLINE void multiply(const QueryTiles<kDepth>* q, const KeyTiles& keys, int c, int t) {
  TILE_LOAD(6, keys.data[t * kDepth / 2], kKeyBytes);
  TILE_LOAD(4, q[0].data[t], kQueryBytes<kDepth>);
  if (kVectors > 1) TILE_LOAD(5, q[kVectors - 1].data[t], kQueryBytes<kDepth>);
  if (c % 2 == 0) {
    TILE_PRODUCT(0, 4, 6);
    if (kVectors > 1) TILE_PRODUCT(2, 5, 6);
  } else {
    TILE_PRODUCT(1, 4, 6);
    if (kVectors > 1) TILE_PRODUCT(3, 5, 6);
  }
}
template <int kVectors>
KVSCOUT_AMX_INLINE void store_sums(KeyBlock& b, int c) {
  if (c % 2 == 0) {
    TILE_STORE(0, b.vector[0].sums[0].of, kSumBytes);
    if (kVectors > 1) TILE_STORE(2, b.vector[1].sums[0].of, kSumBytes);
  } else {
    TILE_STORE(1, b.vector[0].sums[1].of, kSumBytes);
    if (kVectors > 1) TILE_STORE(3, b.vector[1].sums[1].of, kSumBytes);
  }
}

}  // namespace kvscout::cpu::amx
