// Tiles of 16 query rows against tiles of 16 keys. Keys are unpacked on the way, while the first
// rows are scored; further rows meet them in the cache, two by two tiles at a time.
//
// Bound: a tile instruction takes 16 cycles, which is 512 operations a cycle (the byte dot product:
// 146). For few rows it is the unpacking, on the vector ports meanwhile: for 16 keys 64 operations
// that transpose them, and for 32 of their elements 4.75: 12.5 cycles a key by count. A load waits
// for stores on their way to an address that differs by whole pages, and the stores of a chunk are
// one: so keys are read whole, at the beginning of each.
#if defined(__x86_64__)

#include <cstddef>
#include <cstring>

#include "cpu/amx/layout.h"
#include "cpu/amx/maxima.h"

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
namespace {

// Tiles 0 to 3 sums (rows x keys), 4 and 5 queries, 6 and 7 keys.
struct alignas(64) Configuration {
  std::uint8_t palette = 1, start = 0, unused[14] = {};
  std::uint16_t bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
  std::uint8_t rows[16];
};
constexpr Configuration kAllRows{.rows = {16, 16, 16, 16, 16, 16, 8, 8}};
constexpr Configuration kFew{
    .rows = {kFewRows, kFewRows, kFewRows, kFewRows, kFewRows, kFewRows, 8, 8}};

constexpr int kSumBytes = 64, kQueryBytes = 32, kKeyBytes = 64;  // of a tile's row

const std::int32_t* of_vector(const std::int32_t* visible, int v) {
  return visible ? visible + v * kRows : nullptr;
}

// Whether all rows see all keys of a block.
bool all_see_all(const std::int32_t* visible, int rows) {
  for (int r = 0; visible && r < rows; ++r)
    if (visible[r] < kBlock) return false;
  return true;
}

// Where they do not, keys are put in order first, so that chunk c holds keys 16c .. 16c + 15: what
// nobody sees is left out by chunks, half of the causal diagonal for one.
void put_in_order(KeyBlock& b) {
  KeySource& s = b.vector[0].source;
  for (int j = 0; j < s.count; ++j)
    std::memcpy(b.rows[j / 4 + 32 * (j % 4)], s.rows + j * s.stride, sizeof b.rows[j]);
  for (int half = 0; half < 2; ++half)
    for (int j = 0; j < kBlock; ++j)
      std::memcpy(&b.scales[half][j], s.scales + half * 512 + (j % 32 * 4 + j / 32) * 4, 4);
  s.rows = b.rows[0];
  s.stride = sizeof b.rows[0];
  s.scales = reinterpret_cast<const std::uint8_t*>(b.scales);
  s.next_rows = nullptr;  // it lies otherwise
}
// Chunks that somebody sees.
int chunks_of(const std::int32_t* visible, int rows) {
  if (!visible) return kChunks;
  std::int32_t most = 1;
  for (int r = 0; r < rows; ++r) most = visible[r] > most ? visible[r] : most;
  return (most + 15) / 16;
}

// Eight pairs of a group from its two dwords.
template <bool kNans>
KVSCOUT_AMX_INLINE void store_group(const __m512i* dwords, __m512i scale_bytes, int g,
                                    const Constants& constant, KeyTile& tile) {
  // The group's byte of each dword, in both of its words.
  const char b = static_cast<char>(g % 4);
  const __m512i spread = _mm512_broadcast_i32x4(
      _mm_setr_epi8(b, -1, b, -1, static_cast<char>(b + 4), -1, static_cast<char>(b + 4), -1,
                    static_cast<char>(b + 8), -1, static_cast<char>(b + 8), -1,
                    static_cast<char>(b + 12), -1, static_cast<char>(b + 12), -1));
  const __m512i bytes = _mm512_shuffle_epi8(scale_bytes, spread);
  const __m512i scale = _mm512_slli_epi16(bytes, 7);
  __mmask32 nans = 0;
  if (kNans) nans = _mm512_cmpeq_epi16_mask(bytes, _mm512_set1_epi16(0x7F));
  KVSCOUT_UNROLL
  for (int d = 0; d < 2; ++d) {
    KVSCOUT_UNROLL
    for (int s = 0; s < 4; ++s) {
      const __m512i codes = s == 0   ? _mm512_slli_epi16(dwords[d], 8)
                            : s == 1 ? _mm512_slli_epi16(dwords[d], 4)
                            : s == 2 ? dwords[d]
                                     : _mm512_srli_epi16(dwords[d], 4);
      __m512i x = scaled(codes, scale, constant);
      if (kNans) x = _mm512_mask_mov_epi16(x, nans, _mm512_set1_epi16(kNan));
      _mm512_store_si512(tile.data[g][4 * d + s], x);
    }
  }
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

// Tiles of group g of chunk c against one or two vectors. A tile load that meets stores of the same
// bytes on their way waits for them, some 60 cycles: hence a chunk behind the unpacking.
template <int kVectors>
KVSCOUT_AMX_INLINE void multiply(const QueryTile* q, const KeyTile& keys, int c, int g) {
  TILE_LOAD(6, keys.data[g], kKeyBytes);
  TILE_LOAD(4, q[0].data[g], kQueryBytes);
  if (kVectors > 1) TILE_LOAD(5, q[kVectors - 1].data[g], kQueryBytes);
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

// The first one or two vectors, chunk by chunk. If no others follow, two chunks take turns in
// memory, which leaves the first-level cache to the keys.
template <int kVectors, int kTileRows, bool kMasked, bool kNans>
KVSCOUT_AMX void unpack_and_score(const QueryTile* q, bool others, KeyBlock& b, int chunks,
                                  const std::int32_t* visible, float* best) {
  const int kept = others ? kChunks - 1 : 1;
  const auto place = [&](int c) -> KeyTile& { return b.chunk[c & kept]; };
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
      if (c > 0) multiply<kVectors>(q, place(c - 1), c - 1, 2 * i);
      __m512i dwords[4];
      if (more) {
        vnni::prefetch_next(source, 4 * c, i);
        vnni::dwords_of_block(blocks[0][i], blocks[1][i], blocks[2][i], blocks[3][i], dwords);
        store_group<kNans>(dwords, scales[i / 2], 2 * i, constant, place(c));
      }
      if (c > 0) multiply<kVectors>(q, place(c - 1), c - 1, 2 * i + 1);
      if (more) store_group<kNans>(dwords + 2, scales[i / 2], 2 * i + 1, constant, place(c));
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

// Two vectors (or one) against unpacked keys, two chunks at a time.
template <int kVectors, bool kMasked>
KVSCOUT_AMX void score_some(const QueryTile* q, KeyBlock& b, const std::int32_t* visible,
                            float* best) {
  const int chunks = chunks_of(visible, kVectors * kRows);
  for (int v = 0; v < kVectors; ++v) start(b.vector[v], kRows);
  int c = 0;
  for (; c < chunks; c += 2) {  // an odd chunk more holds keys nobody sees
    zero_sums(0);
    zero_sums(1);
    for (int g = 0; g < kGroups; ++g) {
      TILE_LOAD(4, q[0].data[g], kQueryBytes);
      TILE_LOAD(6, b.chunk[c].data[g], kKeyBytes);
      TILE_PRODUCT(0, 4, 6);
      TILE_LOAD(7, b.chunk[c + 1].data[g], kKeyBytes);
      TILE_PRODUCT(1, 4, 7);
      if (kVectors > 1) {
        TILE_LOAD(5, q[kVectors - 1].data[g], kQueryBytes);
        TILE_PRODUCT(2, 5, 6);
        TILE_PRODUCT(3, 5, 7);
      }
      // Meanwhile, the sums before.
      for (int v = 0; v < kVectors && c > 0; ++v)
        take<2, kMasked>(b.vector[v], 2 * g, 2, c - 2, of_vector(visible, v));
    }
    store_sums<kVectors>(b, 0);
    store_sums<kVectors>(b, 1);
  }
  for (int v = 0; v < kVectors; ++v) {
    take<2, kMasked>(b.vector[v], 0, kRows, c - 2, of_vector(visible, v));
    finish(b.vector[v], best + v * kRows);
  }
}

template <int kVectors, int kTileRows>
KVSCOUT_AMX void first_vectors(const QueryTile* q, int vectors, KeyBlock& b,
                               const std::int32_t* visible, float* best) {
  const bool nans = vnni::any_nan(b.vector[0].source.scales), others = vectors > kVectors;
  const int chunks = chunks_of(visible, vectors * kRows);
  if (all_see_all(visible, kVectors * kRows))
    (nans ? unpack_and_score<kVectors, kTileRows, false, true>
          : unpack_and_score<kVectors, kTileRows, false, false>)(q, others, b, chunks, visible,
                                                                 best);
  else
    (nans
         ? unpack_and_score<kVectors, kTileRows, true, true>
         : unpack_and_score<kVectors, kTileRows, true, false>)(q, others, b, chunks, visible, best);
}

template <int kVectors>
KVSCOUT_AMX void next_vectors(const QueryTile* q, KeyBlock& b, const std::int32_t* visible,
                              float* best) {
  if (all_see_all(visible, kVectors * kRows))
    score_some<kVectors, false>(q, b, visible, best);
  else
    score_some<kVectors, true>(q, b, visible, best);
}

}  // namespace

void unpack(const KeySource& source, void* block) {
  static_cast<KeyBlock*>(block)->vector[0].source = source;
}

KVSCOUT_AMX void score(const void* tiles, int vectors, const void* block,
                       const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryTile*>(tiles);
  auto& b = *static_cast<KeyBlock*>(const_cast<void*>(block));  // memory of the caller's task
  if (all_see_all(visible, vectors * kRows))
    visible = nullptr;
  else
    put_in_order(b);
  for (int v = 0; v < vectors; v += 2) {
    const std::int32_t* seen = of_vector(visible, v);
    const bool two = v + 2 <= vectors;
    if (v == 0)
      (two     ? first_vectors<2, kRows>
       : b.few ? first_vectors<1, kFewRows>
               : first_vectors<1, kRows>)(q, vectors, b, seen, best);
    else
      (two ? next_vectors<2> : next_vectors<1>)(q + v, b, seen, best + v * kRows);
  }
}

KVSCOUT_AMX void enter(int rows, void* block) {
  auto& b = *static_cast<KeyBlock*>(block);
  b.few = rows <= kFewRows;
  asm volatile("ldtilecfg %0" ::"m"(b.few ? kFew : kAllRows));
}
KVSCOUT_AMX void leave() { asm volatile("tilerelease" ::); }

}  // namespace kvscout::cpu::amx

#endif
