// What the demo prints: names of passages, excerpts, a heat map. Colour only on a terminal.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "demo_data.h"

namespace demo {

inline bool on_terminal() {
  static const bool answer = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  return answer;
}

inline std::string bold(const std::string& s) {
  return on_terminal() ? "\x1b[1m" + s + "\x1b[0m" : s;
}
inline std::string yes_no(bool yes) {
  const char* word = yes ? "yes" : "no ";
  return on_terminal() ? std::string(yes ? "\x1b[32m" : "\x1b[31m") + word + "\x1b[0m" : word;
}

// Lines of at most `width` characters, all but the first indented.
inline std::string wrapped(std::string s, std::size_t width, std::size_t indent) {
  for (std::size_t line = 0; s.size() - line > width;) {
    const std::size_t space = s.rfind(' ', line + width);
    if (space == std::string::npos || space <= line + indent) break;
    s.replace(space, 1, '\n' + std::string(indent, ' '));
    line = space + 1;
  }
  return s;
}

// "Ruth 1:1-3", "Ruth 1:22-2:3" or "Ruth 4:22 - Esther 1:1".
inline std::string range_of(const Block& b) {
  const auto book = [](const std::string& verse) { return verse.substr(0, verse.find(' ')); };
  const auto chapter = [](const std::string& verse) { return verse.substr(0, verse.find(':')); };
  if (b.first == b.last) return b.first;
  if (chapter(b.first) == chapter(b.last))
    return b.first + "-" + b.last.substr(b.last.find(':') + 1);
  if (book(b.first) == book(b.last)) return b.first + "-" + b.last.substr(b.last.find(' ') + 1);
  return b.first + " - " + b.last;
}

// About `width` characters of a block round the token at `share` (0 to 1) of its length, whole
// words.
inline std::string excerpt(const Block& b, double share, std::size_t width) {
  const std::string& s = b.text;
  const std::size_t room = width - 8;  // for "... " and " ..."
  if (s.size() <= room) return s;
  const std::size_t middle = static_cast<std::size_t>(share * static_cast<double>(s.size()));
  std::size_t begin = middle > room / 2 ? std::min(middle - room / 2, s.size() - room) : 0;
  std::size_t end = begin + room;
  if (begin > 0) begin = s.find(' ', begin) + 1;
  if (end < s.size()) end = s.rfind(' ', end);
  std::string out = begin ? "... " : "";
  out.append(s, begin, end - begin);
  return end < s.size() ? out + " ..." : out;
}

inline int columns_of_terminal() {
  winsize size{};
  if (isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 60)
    return size.ws_col;
  return 100;
}

// One line a question, one character for `per_cell` neighbouring blocks: their best score, from the
// question's median block (empty) to its best one. A marks the answer if it was chosen, a if not.
inline void heat_map(const Data& data, const std::vector<float>& scores,
                     const std::vector<bool>& found) {
  static constexpr char ramp[] = " .:-=+*%#@";
  static constexpr int colours[] = {233, 53, 54, 90, 126, 162, 198, 204, 209, 222};
  constexpr int levels = 10;
  const int blocks = static_cast<int>(data.blocks.size());
  const int per_cell = (blocks + columns_of_terminal() - 10) / (columns_of_terminal() - 9);
  const int cells = (blocks + per_cell - 1) / per_cell;

  std::string books(static_cast<std::size_t>(cells), ' '), previous;
  for (int n = 0; n < blocks; ++n) {
    const std::string& first = data.blocks[static_cast<std::size_t>(n)].first;
    const std::string book = first.substr(0, first.find(' '));
    if (book != previous) {
      const std::size_t at = static_cast<std::size_t>(n / per_cell), room = books.size() - at;
      books.replace(at, std::min(book.size() + 1, room), ('|' + book).substr(0, room));
    }
    previous = book;
  }
  std::printf("      %s\n", books.c_str());

  for (std::size_t row = 0; row < data.questions.size(); ++row) {
    const float* score = &scores[row * static_cast<std::size_t>(blocks)];
    std::vector<float> sorted(score, score + blocks);
    std::sort(sorted.begin(), sorted.end());
    const float median = sorted[sorted.size() / 2], best = sorted.back();
    std::printf("  %2zu  ", row + 1);
    for (int cell = 0; cell < cells; ++cell) {
      const int begin = cell * per_cell, end = std::min(blocks, begin + per_cell);
      const float top = *std::max_element(score + begin, score + end);
      const float share = best > median ? (top - median) / (best - median) : 0.0f;
      const int level = std::clamp(static_cast<int>(share * levels), 0, levels - 1);
      const auto& answer = data.questions[row].blocks;
      const bool marked =
          std::any_of(answer.begin(), answer.end(), [&](int n) { return n >= begin && n < end; });
      const char mark = marked ? (found[row] ? 'A' : 'a') : ramp[level];
      if (!on_terminal())
        std::putchar(mark);
      else
        std::printf("\x1b[%d;48;5;%dm%c", level < 6 ? 97 : 30, colours[level], marked ? mark : ' ');
    }
    std::printf("%s\n", on_terminal() ? "\x1b[0m" : "");
  }
}

}  // namespace demo
