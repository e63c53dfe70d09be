#include "cpu/topk.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "order.h"

namespace kvscout::cpu {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();
constexpr int kMaxCandidates = 256;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Eight bytes, bit b of byte i -> bit i of byte b.
std::uint64_t transpose_bits(std::uint64_t x) {
  std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
  x = x ^ t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
  x = x ^ t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
  return x ^ t ^ (t << 28);
}

}  // namespace

RowRange row_range(const SelectRule& rule, std::int64_t n) {
  const std::int64_t begin = std::min<std::int64_t>(rule.force_begin, n);
  const std::int64_t end = std::min<std::int64_t>(rule.force_end, n - begin);
  return {begin, n - end, n, static_cast<std::int32_t>(rule.topk - begin - end)};
}

std::size_t RowTopk::bytes(int rows, int topk, int columns) {
  const auto r = static_cast<std::size_t>((rows + 7) / 8 * 8);
  return rounded(r * sizeof(RowRange)) + 3 * rounded(r * topk * 4) + 2 * rounded(r * 4) +
         rounded(static_cast<std::size_t>(columns + 8) * 8);
}

RowTopk::RowTopk(const Kernels& kernels, const SelectRule& rule, void* memory, int rows,
                 int columns)
    : kernels_(kernels), rule_(rule), kept_(rule.topk) {
  auto* next = static_cast<std::byte*>(memory);
  const auto take = [&](std::size_t size) { return std::exchange(next, next + rounded(size)); };
  const auto r = static_cast<std::size_t>((rows + 7) / 8 * 8);
  ranges_ = reinterpret_cast<RowRange*>(take(r * sizeof(RowRange)));
  scores_ = reinterpret_cast<float*>(take(r * kept_ * 4));
  ids_ = reinterpret_cast<std::int32_t*>(take(r * kept_ * 4));
  forced_scores_ = reinterpret_cast<float*>(take(r * kept_ * 4));
  counts_ = reinterpret_cast<std::int32_t*>(take(r * 4));
  floors_ = reinterpret_cast<float*>(take(r * 4));
  marks_ = reinterpret_cast<std::uint8_t*>(take(static_cast<std::size_t>(columns + 8) * 8));
}

void RowTopk::start(int rows) {
  rows_ = rows;
  std::fill(counts_, counts_ + rows, 0);
}

void RowTopk::set_forced_score(int row, std::int64_t id, float score) {
  const RowRange& range = ranges_[row];
  const std::int64_t place = id < range.begin ? id : range.begin + id - range.end;
  forced_scores_[static_cast<std::int64_t>(row) * kept_ + place] = score;
}

void RowTopk::offer(int row, float score, std::int64_t id) {
  const std::int32_t room = ranges_[row].room;
  if (room == 0 || (rule_.skip_masked && rank_of(score) <= kRankOfMasked)) return;
  float* scores = scores_ + static_cast<std::int64_t>(row) * kept_;
  std::int32_t* ids = ids_ + static_cast<std::int64_t>(row) * kept_;
  std::int32_t& count = counts_[row];
  if (count == room) {
    // The worst one leaves: lowest rank, of equals the last. The newcomer loses a tie, its id is
    // higher.
    int worst = 0;
    for (int i = 1; i < count; ++i)
      if (rank_of(scores[i]) <= rank_of(scores[worst])) worst = i;
    if (rank_of(score) <= rank_of(scores[worst])) return;
    std::copy(scores + worst + 1, scores + count, scores + worst);
    std::copy(ids + worst + 1, ids + count, ids + worst);
    --count;
  }
  scores[count] = score;
  ids[count++] = static_cast<std::int32_t>(id);
}

// Of the row's kept entries and the marked columns, the best; all scores above -inf, none NaN.
void RowTopk::add_marked(int row, const float* strip, std::int64_t stride, std::int64_t first,
                         int columns, const std::uint8_t* marks) {
  float* scores = scores_ + static_cast<std::int64_t>(row) * kept_;
  std::int32_t* ids = ids_ + static_cast<std::int64_t>(row) * kept_;
  float score[kMaxCandidates];
  std::int32_t id[kMaxCandidates];
  int count = counts_[row];
  std::copy(scores, scores + count, score);
  std::copy(ids, ids + count, id);
  for (int c = 0; c < columns; c += 64) {
    std::uint64_t bits = 0;  // of this row, one a column
    for (int i = 0; i < 64 && c + i < columns; i += 8)
      bits |= static_cast<std::uint64_t>(marks[c + i + row % 8]) << i;
    for (; bits; bits &= bits - 1) {
      if (count == kMaxCandidates) {  // many ties: the plain way, from the start
        for (int t = 0; t < columns; ++t) {
          const std::int64_t column = first + t;
          if (column >= ranges_[row].begin && column < ranges_[row].end)
            offer(row, strip[t * stride + row], column);
        }
        return;
      }
      const int t = c + std::countr_zero(bits);
      score[count] = strip[t * stride + row];
      id[count++] = static_cast<std::int32_t>(first + t);
    }
  }
  const std::int32_t room = ranges_[row].room;
  int kept = 0;
  for (int i = 0; i < count; ++i) {
    int better = 0;  // entries are in the order of ids, so earlier ones win ties
    for (int j = 0; j < i; ++j) better += score[j] >= score[i];
    for (int j = i + 1; j < count; ++j) better += score[j] > score[i];
    if (better >= room) continue;
    scores[kept] = score[i];
    ids[kept++] = id[i];
  }
  counts_[row] = kept;
}

void RowTopk::add(float* strip, std::int64_t stride, std::int64_t first, int columns) {
  const std::int64_t end = first + columns;
  for (int r0 = 0; r0 < rows_; r0 += 8) {
    const int rows = std::min(8, rows_ - r0);
    int room = 0;
    for (int r = r0; r < r0 + rows; ++r) {
      const RowRange& range = ranges_[r];
      room = std::max(room, range.room);
      for (std::int64_t t = first; t < std::min(range.begin, end); ++t) {
        set_forced_score(r, t, strip[(t - first) * stride + r]);
        strip[(t - first) * stride + r] = kLowest;
      }
      for (std::int64_t t = std::max(range.end, first); t < end; ++t) {
        if (t < range.n) set_forced_score(r, t, strip[(t - first) * stride + r]);
        strip[(t - first) * stride + r] = kLowest;
      }
    }
    if (room == 0) continue;
    kernels_.floor_of(strip + r0, stride, columns, 8, room, floors_ + r0);
    for (int r = r0; r < r0 + rows; ++r) {  // full rows: what is kept is a floor too
      if (counts_[r] < ranges_[r].room || counts_[r] == 0) continue;
      const float* kept = scores_ + static_cast<std::int64_t>(r) * kept_;
      float least = kept[0];
      for (int i = 1; i < counts_[r]; ++i) least = kept[i] < least ? kept[i] : least;
      if (least > floors_[r]) floors_[r] = least;
    }
    kernels_.mark(strip + r0, stride, columns, 8, floors_ + r0, marks_);
    for (int c = 0; c < columns; c += 8) {
      std::uint64_t x;
      std::memcpy(&x, marks_ + c, 8);
      x = transpose_bits(x);
      std::memcpy(marks_ + c, &x, 8);
    }
    // Marks of columns past the end are rubbish from here on: clear them.
    if (columns % 8)
      for (int b = 0; b < 8; ++b)
        marks_[columns / 8 * 8 + b] &= static_cast<std::uint8_t>((1 << columns % 8) - 1);

    for (int r = r0; r < r0 + rows; ++r) {
      const RowRange& range = ranges_[r];
      bool plain = !(floors_[r] > kLowest) || range.room == 0;
      // Kept entries at or below -inf, or NaN, are outside the fast way's order.
      const float* kept = scores_ + static_cast<std::int64_t>(r) * kept_;
      for (int i = 0; i < counts_[r] && !plain; ++i) plain = !(kept[i] > kLowest);
      if (!plain) {
        add_marked(r, strip, stride, first, columns, marks_);
        continue;
      }
      for (std::int64_t t = std::max(range.begin, first); t < std::min(range.end, end); ++t)
        offer(r, strip[(t - first) * stride + r], t);
    }
  }
}

void RowTopk::store(int row, std::int32_t* out, std::int64_t step, float* scores,
                    std::int64_t score_step) const {
  const RowRange& range = ranges_[row];
  const float* forced = forced_scores_ + static_cast<std::int64_t>(row) * kept_;
  int rank = 0;
  const auto put = [&](std::int64_t id, float score) {
    out[rank * step] = static_cast<std::int32_t>(id);
    if (scores) scores[rank * score_step] = score;
    ++rank;
  };
  for (std::int64_t t = 0; t < range.begin; ++t) put(t, forced[t]);
  const std::int64_t base = static_cast<std::int64_t>(row) * kept_;
  for (int i = 0; i < counts_[row]; ++i) put(ids_[base + i], scores_[base + i]);
  for (std::int64_t t = range.end; t < range.n; ++t) put(t, forced[range.begin + t - range.end]);
  while (rank < rule_.topk) put(-1, kLowest);
}

}  // namespace kvscout::cpu
