// A picture of scores: a row for each query, a column for each block, the brighter the better.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvscout {

struct HeatMap {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;  // rows x columns; -inf: nothing to see
  std::vector<bool> marked;   // rows x columns, or empty: chosen blocks

  // At most that many rows and columns: a cell shows the largest value of those it stands for.
  HeatMap reduced(std::int64_t max_rows, std::int64_t max_columns) const;

  // Least and greatest finite value.
  std::pair<float, float> range() const;
};

// Lines for a terminal: shades of grey as characters, or 24 colours of the 256-colour palette.
// Marked cells carry a dot.
std::string terminal_text(const HeatMap& map, bool color);

// An SVG file; a cell is `cell` pixels wide, marked cells have a frame.
std::string svg_text(const HeatMap& map, const std::string& title, int cell);

}  // namespace kvscout
