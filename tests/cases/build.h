// Problems from short descriptions: what a case varies is a field here, everything else follows
// from `seed`.
#pragma once

#include "data.h"
#include "problem.h"

namespace kvscout::cases {

// q and k of a score. The first three are msa_proxy_score_fp4, the others msa_proxy_score.
enum class Types : std::uint8_t {
  fp4_fp4,
  f16_fp4,
  bf16_fp4,
  bf16_bf16,
  f16_f16,
  bf16_e4m3,
  f16_e4m3,
  e4m3_e4m3
};
constexpr bool is_fp4(Types t) { return t <= Types::bf16_fp4; }
Element query_type(Types);
Element key_type(Types);

enum class Offset : std::uint8_t { none, number, tensor };
// Of data: dense, or pages of 9216 bytes that hold codes and scales (other types: padded strides).
enum class Strides : std::uint8_t { dense, interleaved };
// Of the scores: tokens innermost (dense), tiles innermost, or gaps everywhere.
enum class OutputStrides : std::uint8_t { dense, tiles_innermost, padded };
// max_k_tiles against the longest request.
enum class Tiles : std::uint8_t { exact, too_small, too_large };
enum class Pages : std::uint8_t { ascending, permuted, out_of_range };

struct ScoreSpec {
  Types types = Types::fp4_fp4;
  std::int64_t q_heads = 4, k_heads = 1;
  std::vector<std::int32_t> q_lengths{1}, k_lengths{128};  // one entry a request
  std::int64_t rows_before = 0, rows_after = 0;            // query rows that no request owns
  bool paged = true, causal = true;
  Offset offset = Offset::none;
  Reduce reduce = Reduce::none;
  Strides strides = Strides::dense;
  OutputStrides output = OutputStrides::dense;
  Tiles tiles = Tiles::exact;
  std::int64_t max_k_tiles = -1;  // >= 0: wins over `tiles`
  std::int64_t table_width = 0;   // columns of the page table, at least
  std::int64_t block_start = 0, block_step = 1;
  Pages pages = Pages::permuted;
  bool misaligned = false;      // bases and strides off by one element
  bool scale_pointers = false;  // global scales as floats in memory
  Values values = Values::plain;
  std::uint64_t seed = 1;
};
Problem build_score(const ScoreSpec&);
std::int64_t max_blocks(const ScoreSpec&);
// Whether the result has a column for this block (and how many pages the call reads, all told).
bool has_column(const ScoreSpec&, std::int64_t block);
std::int64_t pages_read(const ScoreSpec&);
// Products of rows: what a back end has to compute.
std::int64_t row_products(const ScoreSpec&);

struct IndexSpec {
  ScoreSpec score;  // types: fp4 keys
  int topk = 16, force_begin = 0, force_end = 0;
  bool with_scores = true;
  bool strided_output = false;
};
Problem build_index(const IndexSpec&);

struct SelectSpec {
  std::int64_t heads = 1, tiles = 32, tokens = 4;
  int topk = 16, force_begin = 0, force_end = 0;
  bool skip_masked = false;
  Offset valid = Offset::none;  // num_valid_pages: none, number or tensor (some beyond the tiles,
                                // some negative)
  std::int64_t valid_number = 0;
  OutputStrides strides = OutputStrides::dense;  // of the scores
  bool heads_first = false;                      // output (H, T, topk) in memory
  // Scores: distinct normals; few values (ties); all equal; one row of every special value.
  enum Scores : std::uint8_t { normals, ties, equal, specials, ascending, masked } scores = normals;
  std::uint64_t seed = 1;
};
Problem build_select(const SelectSpec&);

struct QuantizeSpec {
  Element type = Element::bf16;
  std::int64_t rows = 128, columns = 128;
  std::int64_t row_gap = 0;  // elements between rows
  SfLayout layout = SfLayout::layout_128x4;
  float global_scale = 448.0f;
  bool scale_pointer = false;
  // normals; every 16-bit pattern in turn; zeros; one zero group in ten; -5 everywhere; rounding
  // ties.
  enum Input : std::uint8_t {
    normals,
    patterns,
    zeros,
    some_zero,
    minus_five,
    ties,
    specials
  } input = normals;
  std::int64_t first_pattern = 0;
  std::uint64_t seed = 1;
};
Problem build_quantize(const QuantizeSpec&);

struct AppendSpec {
  Element type = Element::bf16;
  std::int64_t heads = 1, pages = 4, tokens = 9;
  std::vector<std::int64_t> slots{0, 1, 130, -1, 511, 37, 300, 128, 2};  // at most `tokens`
  Strides strides = Strides::dense;
  bool misaligned = false;
  float global_scale = 448.0f;
  bool scale_pointer = false;
  std::uint64_t seed = 1;
};
Problem build_append(const AppendSpec&);

}  // namespace kvscout::cases
