// Tiles of 16 query rows against tiles of 16 keys. Keys are unpacked on the way, while the first
// rows are scored; further rows meet them in the cache, two by two tiles at a time. Keys of bf16
// and e4m3 come unpacked (plain.cpp).
//
// Bound: a tile instruction takes 16 cycles, which is 512 operations a cycle, 1024 with bf16
// queries (the byte dot product: 146). For few rows it is the unpacking, on the vector ports
// meanwhile: for 16 keys 64 operations that transpose them, and for 32 of their elements 4.75: 12.5
// cycles a key by count. A load waits for stores on their way to an address that differs by whole
// pages, and the stores of a chunk are one: so keys are read whole, at the beginning of each.
#if defined(__x86_64__)

#include "cpu/amx/keys.h"
#include "cpu/amx/layout.h"
#include "cpu/amx/maxima.h"
#include "cpu/amx/tiles.h"

namespace kvscout::cpu::amx {
namespace {

const std::int32_t* of_vector(const std::int32_t* visible, int v) {
  return visible ? visible + v * kRows : nullptr;
}

// Whether all rows see all keys of a block.
bool all_see_all(const std::int32_t* visible, int rows) {
  for (int r = 0; visible && r < rows; ++r)
    if (visible[r] < kBlock) return false;
  return true;
}

// Chunks that somebody sees.
int chunks_of(const std::int32_t* visible, int rows) {
  if (!visible) return kChunks;
  std::int32_t most = 1;
  for (int r = 0; r < rows; ++r) most = visible[r] > most ? visible[r] : most;
  return (most + 15) / 16;
}

// The first one or two vectors, chunk by chunk. If no others follow, two chunks take turns in
// memory, which leaves the first-level cache to the keys.
template <int kDepth, int kVectors, int kTileRows, bool kMasked, bool kNans>
KVSCOUT_AMX void unpack_and_score(const QueryTiles<kDepth>* q, bool others, KeyBlock& b, int chunks,
                                  const std::int32_t* visible, float* best) {
  const int kept = others ? kChunks - 1 : 1;
  const auto place = [&](int c) -> KeyTiles& { return b.chunk[c & kept]; };
  const KeySource source = b.vector[0].source;
  const Constants constant = constants();
  const __m512i seven_bits = _mm512_set1_epi8(0x7F);
  const std::uint8_t* rows = source.rows;
  const std::int64_t stride = source.stride;
  for (int v = 0; v < kVectors; ++v) start(b.vector[v], kTileRows);
  for (int c = 0; c <= chunks; ++c) {  // unpacks chunk c, multiplies c - 1
    const bool more = c < chunks;
    if (c > 0) zero_sums((c - 1) % 2);
    __m512i blocks[4][4], scales[2];  // [q][16 bytes]; of four groups
    KVSCOUT_UNROLL
    for (int i = 0; i < 4 && more; ++i)
      vnni::blocks_of_rows(rows + 32 * i * stride, stride, blocks[i]);
    KVSCOUT_UNROLL
    for (int i = 0; i < 2 && more; ++i)
      scales[i] =
          _mm512_and_si512(_mm512_loadu_si512(source.scales + i * 512 + c * 64), seven_bits);
    KVSCOUT_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (c > 0 && kDepth == kGroupDepth) multiply<kDepth, kVectors>(q, place(c - 1), c - 1, 2 * i);
      __m512i dwords[4];
      if (more) {
        vnni::prefetch_next(source, 4 * c + i);
        if (kDepth == kPairDepth)
          for (auto& of_rows : blocks) of_rows[i] = words_in_turn(of_rows[i]);
        vnni::dwords_of_block(blocks[0][i], blocks[1][i], blocks[2][i], blocks[3][i], dwords);
        store_half<kDepth, kNans>(dwords, scales[i / 2], i, 0, constant, place(c));
      }
      if (c > 0)
        multiply<kDepth, kVectors>(q, place(c - 1), c - 1, kDepth == kGroupDepth ? 2 * i + 1 : i);
      if (more) store_half<kDepth, kNans>(dwords + 2, scales[i / 2], i, 1, constant, place(c));
    }
    if (c > 1)
      for (int v = 0; v < kVectors; ++v)
        take<1, kMasked>(b.vector[v], 0, kTileRows, c - 2, of_vector(visible, v));
    if (c > 0) store_sums<kVectors>(b, c - 1);
    rows += 4 * stride;
  }
  for (int v = 0; v < kVectors; ++v) {
    take<1, kMasked>(b.vector[v], 0, kTileRows, chunks - 1, of_vector(visible, v));
    finish(b.vector[v], best + v * kRows);
  }
}

template <int kVectors, bool kMasked>
KVSCOUT_AMX_INLINE void take_two(KeyBlock& b, int first, int count, int c,
                                 const std::int32_t* visible) {
  for (int v = 0; v < kVectors; ++v)
    take<2, kMasked>(b.vector[v], first, count, c, of_vector(visible, v));
}

// `steps` times kVectors vectors against unpacked keys, two chunks at a time. So that the tile unit
// does not wait, each tile of sums is stored just before its register is needed for the next ones,
// and maxima are taken beside these, over the ends of steps, too.
template <int kDepth, int kVectors, bool kMasked>
KVSCOUT_AMX void score_some(const QueryTiles<kDepth>* q, int steps, KeyBlock& b,
                            const std::int32_t* visible, float* best) {
  constexpr int kTiles = kHeadDim / kDepth, kStep = kVectors * kRows;
  constexpr int kParts = kTiles / 2, kPart = kRows / kParts;  // of the maxima
  KeyBlock::Vector &first = b.vector[0], &second = b.vector[kVectors - 1];
  for (int v = 0; v < kVectors; ++v) start(b.vector[v], kRows);
  int before = -1;                     // chunk of the sums in the registers
  const std::int32_t* seen = visible;  // by their rows
  for (int step = 0; step < steps; ++step, q += kVectors) {
    const std::int32_t* now = of_vector(visible, step * kVectors);
    const int chunks = chunks_of(now, kStep);
    for (int c = 0; c < chunks; c += 2) {  // an odd chunk more holds keys nobody sees
      const bool full = before >= 0;
      KVSCOUT_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        TILE_LOAD(4, q[0].data[t], kQueryBytes<kDepth>);
        TILE_LOAD(6, b.chunk[c].data[t * kDepth / 2], kKeyBytes);
        if (t == 0) renew<0>(full, first.sums[0]);
        TILE_PRODUCT(0, 4, 6);
        TILE_LOAD(7, b.chunk[c + 1].data[t * kDepth / 2], kKeyBytes);
        if (t == 0) renew<1>(full, first.sums[1]);
        TILE_PRODUCT(1, 4, 7);
        if (kVectors > 1) {
          TILE_LOAD(5, q[kVectors - 1].data[t], kQueryBytes<kDepth>);
          if (t == 0) renew<2>(full, second.sums[0]);
          TILE_PRODUCT(2, 5, 6);
          if (t == 0) renew<3>(full, second.sums[1]);
          TILE_PRODUCT(3, 5, 7);
        }
        if (full && t >= kParts)
          take_two<kVectors, kMasked>(b, (t - kParts) * kPart, kPart, before, seen);
      }
      for (int v = 0; v < kVectors && c == 0 && step > 0; ++v) {
        finish(b.vector[v], best + (step - 1) * kStep + v * kRows);
        start(b.vector[v], kRows);
      }
      before = c, seen = now;
    }
  }
  store_sums<kVectors>(b, 0);
  store_sums<kVectors>(b, 1);
  take_two<kVectors, kMasked>(b, 0, kRows, before, seen);
  for (int v = 0; v < kVectors; ++v) finish(b.vector[v], best + (steps - 1) * kStep + v * kRows);
}

template <int kDepth, int kVectors, int kTileRows>
KVSCOUT_AMX void first_vectors(const QueryTiles<kDepth>* q, int vectors, KeyBlock& b,
                               const std::int32_t* visible, float* best) {
  const bool nans = vnni::any_nan(b.vector[0].source.scales), others = vectors > kVectors;
  const int chunks = chunks_of(visible, vectors * kRows);
  const bool all = all_see_all(visible, kVectors * kRows);
  (all && !nans ? unpack_and_score<kDepth, kVectors, kTileRows, false, false>
   : all        ? unpack_and_score<kDepth, kVectors, kTileRows, false, true>
   : !nans      ? unpack_and_score<kDepth, kVectors, kTileRows, true, false>
                : unpack_and_score<kDepth, kVectors, kTileRows, true, true>)(q, others, b, chunks,
                                                                        visible, best);
}

template <int kDepth, int kVectors>
KVSCOUT_AMX void next_vectors(const QueryTiles<kDepth>* q, int from, int steps, KeyBlock& b,
                              const std::int32_t* visible, float* best) {
  if (steps == 0) return;
  (visible ? score_some<kDepth, kVectors, true>
           : score_some<kDepth, kVectors, false>)(q + from, steps, b, of_vector(visible, from),
                                                  best + from * kRows);
}

}  // namespace

void unpack(const KeySource& source, void* block) {
  static_cast<KeyBlock*>(block)->vector[0].source = source;
}

template <int kDepth>
KVSCOUT_AMX void score(const void* tiles, int vectors, const void* block,
                       const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryTiles<kDepth>*>(tiles);
  auto& b = *static_cast<KeyBlock*>(const_cast<void*>(block));  // memory of the caller's task
  if (all_see_all(visible, vectors * kRows))
    visible = nullptr;
  else
    put_in_order(b);
  (vectors > 1 ? first_vectors<kDepth, 2, kRows>
   : b.few     ? first_vectors<kDepth, 1, kFewRows>
               : first_vectors<kDepth, 1, kRows>)(q, vectors, b, visible, best);
  if (vectors <= 2) return;
  next_vectors<kDepth, 2>(q, 2, vectors / 2 - 1, b, visible, best);
  next_vectors<kDepth, 1>(q, vectors - 1, vectors % 2, b, visible, best);
}

KVSCOUT_AMX void score_unpacked(const void* tiles, int vectors, const void* block,
                                const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryTiles<kPairDepth>*>(tiles);
  auto& b = *static_cast<KeyBlock*>(const_cast<void*>(block));
  if (all_see_all(visible, vectors * kRows)) visible = nullptr;
  next_vectors<kPairDepth, 2>(q, 0, vectors / 2, b, visible, best);
  next_vectors<kPairDepth, 1>(q, vectors - 1, vectors % 2, b, visible, best);
}

template <int kDepth>
KVSCOUT_AMX void enter(int rows, void* block) {
  auto& b = *static_cast<KeyBlock*>(block);
  b.few = rows <= kFewRows;
  asm volatile("ldtilecfg %0" ::"m"(b.few ? kConfiguration<kDepth, kFewRows>
                                          : kConfiguration<kDepth, kRows>));
}
KVSCOUT_AMX void leave() { asm volatile("tilerelease" ::); }

template void score<kGroupDepth>(const void*, int, const void*, const std::int32_t*, float*);
template void score<kPairDepth>(const void*, int, const void*, const std::int32_t*, float*);
template void enter<kGroupDepth>(int, void*);
template void enter<kPairDepth>(int, void*);

}  // namespace kvscout::cpu::amx

#endif
