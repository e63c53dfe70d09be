// Where a scale byte lies: the three layouts of block scales, as pure functions of (row, group).
//
//   linear   row*C + group
//   128x4    the tiling of cuBLAS and of the Blackwell tensor cores, and the default: a tile of
//            512 bytes holds 128 rows x 4 groups; 16 neighbours hold rows r, r+32, r+64, r+96.
//   8x4      a tile of 32 bytes holds 8 rows x 4 groups.
//
// C = scale bytes of a row. Padding rows and groups belong to the buffer, are written as 0 and are
// never read as data. A paged (page, key head) owns 128 rows, hence 1024 contiguous bytes at C = 8.
#pragma once

#include <cstdint>

#include "kvscout/types.h"

namespace kvscout::scale_layout {

inline constexpr std::int64_t kPageBytes = 1024;  // scale bytes of 128 rows of 128 elements

KVSCOUT_HD constexpr std::int64_t round_up(std::int64_t n, std::int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

KVSCOUT_HD constexpr std::int64_t linear(std::int64_t row, std::int64_t group,
                                         std::int64_t groups) {
  return row * groups + group;
}

// `Row`: rows of 32 bits are taken apart in 32 bits, which GPUs do faster.
template <class Row>
KVSCOUT_HD constexpr std::int64_t tiled_128x4(Row row, std::int64_t group, std::int64_t groups) {
  const std::int64_t tiles = (groups + 3) / 4;
  return ((row / 128) * tiles + group / 4) * 512 + (row % 32) * 16 + ((row % 128) / 32) * 4 +
         group % 4;
}

KVSCOUT_HD constexpr std::int64_t tiled_8x4(std::int64_t row, std::int64_t group,
                                            std::int64_t groups) {
  const std::int64_t tiles = (groups + 3) / 4;
  return (row / 8) * tiles * 32 + (group / 4) * 32 + (row % 8) * 4 + group % 4;
}

KVSCOUT_HD constexpr std::int64_t offset(SfLayout layout, std::int64_t row, std::int64_t group,
                                         std::int64_t groups) {
  return layout == SfLayout::layout_128x4 ? tiled_128x4(row, group, groups)
         : layout == SfLayout::layout_8x4 ? tiled_8x4(row, group, groups)
                                          : linear(row, group, groups);
}

// Rows that lie equally far apart, from a multiple of so many on; not asked of linear ones, which
// all do.
KVSCOUT_HD constexpr std::int64_t even_rows(SfLayout layout) {
  return layout == SfLayout::layout_128x4 ? 32 : 8;
}

// Rows and groups of the buffer, padding included.
KVSCOUT_HD constexpr std::int64_t padded_rows(SfLayout layout, std::int64_t rows) {
  return layout == SfLayout::layout_128x4 ? round_up(rows, 128)
         : layout == SfLayout::layout_8x4 ? round_up(rows, 8)
                                          : rows;
}

KVSCOUT_HD constexpr std::int64_t padded_groups(SfLayout layout, std::int64_t groups) {
  return layout == SfLayout::layout_linear ? groups : round_up(groups, 4);
}

KVSCOUT_HD constexpr std::int64_t bytes(SfLayout layout, std::int64_t rows, std::int64_t groups) {
  return padded_rows(layout, rows) * padded_groups(layout, groups);
}

// The eight scale bytes of a 128-element row, where one address serves groups 0..3 and a
// second 4..7.
template <class Row>
KVSCOUT_HD constexpr std::int64_t row_128x4(Row row) {
  return tiled_128x4(row, 0, 8);
}
inline constexpr std::int64_t kSecondHalf = 512;  // from groups 0..3 to groups 4..7 of a row

}  // namespace kvscout::scale_layout
