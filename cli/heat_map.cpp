#include "heat_map.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text.h"

namespace kvscout {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

struct Rgb {
  int r, g, b;
};

// From dark blue over red to light yellow: brightness rises all the way, so that it also prints in
// grey.
Rgb color_of(float t) {
  constexpr Rgb kStops[] = {
      {13, 8, 65}, {98, 10, 105}, {187, 55, 84}, {243, 120, 25}, {252, 255, 164}};
  const float at = std::clamp(t, 0.0f, 1.0f) * 4.0f;
  const int i = std::min(static_cast<int>(at), 3);
  const float f = at - static_cast<float>(i);
  const auto mix = [f](int a, int b) { return static_cast<int>(std::lround((1 - f) * a + f * b)); };
  return {mix(kStops[i].r, kStops[i + 1].r), mix(kStops[i].g, kStops[i + 1].g),
          mix(kStops[i].b, kStops[i + 1].b)};
}

// The nearest entry of the 6x6x6 cube of the 256-colour palette.
int palette_index(const Rgb& c) {
  const auto level = [](int x) { return x < 48 ? 0 : x < 115 ? 1 : (x - 35) / 40; };
  return 16 + 36 * level(c.r) + 6 * level(c.g) + level(c.b);
}

float position(float value, const std::pair<float, float>& range) {
  return range.second > range.first ? (value - range.first) / (range.second - range.first) : 1.0f;
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

}  // namespace

HeatMap HeatMap::reduced(std::int64_t max_rows, std::int64_t max_columns) const {
  HeatMap map;
  map.rows = std::min(rows, std::max<std::int64_t>(max_rows, 1));
  map.columns = std::min(columns, std::max<std::int64_t>(max_columns, 1));
  map.values.assign(static_cast<std::size_t>(map.rows * map.columns), kNothing);
  map.marked.assign(marked.empty() ? 0 : map.values.size(), false);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto from = static_cast<std::size_t>(r * columns + c);
      const auto to =
          static_cast<std::size_t>(r * map.rows / rows * map.columns + c * map.columns / columns);
      map.values[to] = std::fmax(map.values[to], values[from]);  // NaN counts as nothing
      if (!marked.empty() && marked[from]) map.marked[to] = true;
    }
  }
  return map;
}

std::pair<float, float> HeatMap::range() const {
  std::pair<float, float> r{-kNothing, kNothing};
  for (const float v : values)
    if (std::isfinite(v)) r = {std::min(r.first, v), std::max(r.second, v)};
  return r.first <= r.second ? r : std::pair<float, float>{0, 0};
}

std::string terminal_text(const HeatMap& map, bool color) {
  constexpr const char* kShades[] = {"\u2591", "\u2592", "\u2593", "\u2588"};
  const auto range = map.range();
  std::string text;
  for (std::int64_t r = 0; r < map.rows; ++r) {
    for (std::int64_t c = 0; c < map.columns; ++c) {
      const auto i = static_cast<std::size_t>(r * map.columns + c);
      const bool dot = !map.marked.empty() && map.marked[i];
      const float t = position(map.values[i], range);
      if (!std::isfinite(map.values[i])) {
        text += color ? "\033[0m " : " ";
      } else if (color) {
        text += tool::formatted("\033[48;5;{}m\033[38;5;{}m{}", palette_index(color_of(t)),
                                t > 0.6f ? 16 : 231, dot ? "\u2022" : " ");
      } else {
        text += dot ? "\u2022" : kShades[std::clamp(static_cast<int>(t * 4.0f), 0, 3)];
      }
    }
    text += color ? "\033[0m\n" : "\n";
  }
  return text;
}

std::string svg_text(const HeatMap& map, const std::string& title, int cell) {
  const auto range = map.range();
  std::string text;
  const std::int64_t width = map.columns * cell + 20, height = map.rows * cell + 60;
  text += tool::formatted(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"10\" y=\"18\">{2}</text>\n"
      "<text x=\"10\" y=\"34\" fill=\"#666\">scores {3:.4g} (dark) to {4:.4g} (light); a row is a "
      "query, a column a block{5}</text>\n<g transform=\"translate(10,44)\" "
      "shape-rendering=\"crispEdges\">\n",
      std::max<std::int64_t>(width, 520), height, escaped(title), range.first, range.second,
      map.marked.empty() ? "" : "; framed: chosen");
  for (std::int64_t r = 0; r < map.rows; ++r) {
    for (std::int64_t c = 0; c < map.columns; ++c) {
      const auto i = static_cast<std::size_t>(r * map.columns + c);
      if (!std::isfinite(map.values[i])) continue;
      const Rgb rgb = color_of(position(map.values[i], range));
      text += tool::formatted(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#{:02x}{:02x}{:02x}\"/>\n",
          c * cell, r * cell, cell, cell, rgb.r, rgb.g, rgb.b);
      if (map.marked.empty() || !map.marked[i]) continue;
      // Inside the cell: a block between chosen ones must not look framed by their lines.
      text += tool::formatted(
          "<rect x=\"{}.5\" y=\"{}.5\" width=\"{}\" height=\"{}\" fill=\"none\" "
          "stroke=\"#0f9\"/>\n",
          c * cell + 1, r * cell + 1, cell - 3, cell - 3);
    }
  }
  return text + "</g>\n</svg>\n";
}

}  // namespace kvscout
