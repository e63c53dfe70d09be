// What one instruction set offers: plain functions over packed tiles. Tables of them are filled in
// by simd.cpp (Highway: SSSE3 to AVX-512, NEON) and by the folders vnni (AVX-512 VNNI) and amx
// (tile registers); the drivers above never see a vector type.
//
// A *query tile* is a row of vectors, each of `lanes` query rows side by side, every one of
// `Route::vector_bytes`. A *key block* is one unpacked block of 128 keys. Both are opaque to the
// drivers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kvscout/types.h"

namespace kvscout::cpu {

// Where a block of keys lies. Scales (only of e2m1) are in page form: 1024 bytes, 128x4, row = key.
struct KeyPlace {
  const std::uint8_t *rows = nullptr, *scales = nullptr;
};

struct KeySource : KeyPlace {
  std::int64_t stride = 0;  // bytes between keys
  Element type = Element::e2m1;
  int count = 0;  // keys that exist, 1 to 128; nothing past them is read
  KeyPlace next;  // of the block after this one, if it lies alike: worth a prefetch
};

// The rows of one query vector; unused lanes repeat a used one.
inline constexpr int kMaxLanes = 16;
struct QuerySource {
  const std::uint8_t* rows[kMaxLanes];
  std::uint64_t scales[kMaxLanes];  // the eight scale bytes of each row, group 0 lowest
  Element type = Element::e2m1;
  bool repeated = false;  // all lanes are the first row (lanes = keys)
};

// Lanes = query rows. `visible[r]` keys of the block count for row r (null: all 128); `best[r]`
// becomes the largest logit, -inf if there is none. Both have vectors*lanes entries.
struct Route {
  std::size_t vector_bytes = 0, block_bytes = 0;
  // Whether these rows can be packed, these keys unpacked (null: any can). Otherwise the route
  // `floats` serves.
  bool (*takes)(const QuerySource&) = nullptr;
  bool (*takes_keys)(const KeySource&) = nullptr;
  void (*pack)(const QuerySource&, void* vector) = nullptr;
  void (*unpack)(const KeySource&, void* block) = nullptr;
  bool reads_all_rows = false;  // unpack wants 128 readable rows, even if fewer keys exist
  void (*score)(const void* tile, int vectors, const void* block, const std::int32_t* visible,
                float* best) = nullptr;
  // Before the blocks of a tile of so many rows, and after those of a task's last tile, on its
  // thread: state that a CPU keeps for them.
  void (*enter)(int rows, void* block) = nullptr;
  void (*leave)() = nullptr;
};

// Lanes = keys, for few rows: `tile` holds one vector a row, the row repeated in all lanes. Blocks
// are scored one behind the other, best[block*rows + r]; `keys` has one place more, of what comes
// after them, as KeySource::next. `visible` only with a single block.
using ScoreKeys = void (*)(const void* tile, int rows, const KeyPlace* keys, int blocks,
                           std::int64_t stride, const std::int32_t* visible, float* best);

inline constexpr int kMarkColumns = 512;  // columns of a strip, at most

// Columns of 8*octets neighbouring scores, `stride` apart, on their way to strip[octet*kOctet +
// column*8 + row]: what is left of them. Passes over another strip take some along, since a core
// has few lines of memory on their way at a time, and would wait for a copy of all.
struct ColumnCopy {
  static constexpr int kOctet = kMarkColumns * 8 + 16;  // not a multiple of the cache's period
  const float* from = nullptr;
  std::int64_t stride = 0;
  int octets = 0, columns = 0;
  float* strip = nullptr;
};

// The columns whose bits are set in one row's of `mark`, ascending, then kMoreListed zeros; returns
// how many they are. The list has room for 2*kMoreListed more.
using ListMarks = int (*)(const std::uint8_t* bits, int columns, std::int32_t* list);
inline constexpr int kMoreListed = 16;

// Eight rows, each of which has kept some entries, ids ascending, and is offered the marked columns
// of a strip: the best room[row] of both remain, equal scores in favour of lower ids. No NaN or
// -inf.
struct OctetChoice {
  const float* strip;        // [column*8 + row]
  const std::uint8_t* bits;  // as `mark` leaves them
  ListMarks list_marks;
  int columns;
  std::int32_t first;  // id of column 0
  const std::int32_t* room;
  float* scores;  // [row*stride + entry]
  std::int32_t* ids;
  std::int32_t* counts;
  int stride;
  ColumnCopy* copy;  // taken along
};

inline constexpr int kMostKept = 64;         // room of a row, at most
inline constexpr int kMostCandidates = 256;  // that `choose` deals with

struct Kernels {
  const char* name;
  int lanes;
  Route nvfp4;   // e2m1 x e2m1: exact integers
  Route floats;  // all other types: float32
  // bf16 queries, by the keys' type, where something is faster than `floats`.
  Route bf16_e2m1 = {}, bf16_e4m3 = {}, bf16_bf16 = {};
  ScoreKeys score_keys = nullptr;  // e2m1 x e2m1, keys with 128 readable rows
  std::size_t row_bytes = 0;       // of a row that it takes
  int max_rows_of_score_keys = 0;  // `score` is faster beyond

  // Stores `value` n times, around the cache; visible to others after hwy::FlushStream.
  void (*fill_around)(float* to, std::int64_t n, float value) = nullptr;

  // Codes and linear scale bytes of `groups` groups of 16 elements. `global`: forward, legal.
  void (*quantize)(const void* row, Element type, std::int64_t groups, float global,
                   std::uint8_t* codes, std::uint8_t* scales) = nullptr;

  // All that is left.
  void (*copy_columns)(ColumnCopy&) = nullptr;
  // Scores of eight rows, strip[column*8 + row]: a floor of the k-th largest of each row (k <=
  // kMostKept; NaN ignored; -inf if there is no better one).
  void (*floor_of)(const float* strip, int columns, int k, float* floors, ColumnCopy&) = nullptr;
  // Bit c%8 of bits[row*kMarkColumns/8 + c/8] says that strip[c*8 + row] >= floors[row]; bits past
  // `columns`, to a multiple of 64, are 0.
  void (*mark)(const float* strip, int columns, const float* floors, std::uint8_t* bits,
               ColumnCopy&) = nullptr;
  ListMarks list_marks = nullptr;
  // Chooses in those of the eight rows whose bit of `rows` is set; k is the largest room. Returns
  // the rows that have more than kMostCandidates candidates, untouched.
  unsigned (*choose)(const OctetChoice&, int k, unsigned rows) = nullptr;
};

// Everything that was built and runs on this CPU, fastest first.
std::span<const Kernels* const> available_kernels();

// Filled in by simd.cpp, vnni/table.cpp and amx/table.cpp: how many, fastest first.
inline constexpr int kMostHighwayKernels = 8, kMostVnniKernels = 2, kMostAmxKernels = 1;
int highway_kernels(const Kernels** list);
int vnni_kernels(const Kernels& avx512, const Kernels** list);
int amx_kernels(const Kernels& vnni, const Kernels** list);

// The first of them, or the one that the environment variable KVSCOUT_CPU_TARGET names; null if
// there is none of that name.
const Kernels* find_kernels();
// The same, once a call of `operation`; an unknown name is an Error.
const Kernels& chosen_kernels(const char* operation);

}  // namespace kvscout::cpu
