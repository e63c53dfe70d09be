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
constexpr int kFewMarks = 48;

std::size_t rounded(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

// Of the row with most of them.
int most_marks(const std::uint8_t (&bits)[8][kMarkColumns / 8], int columns) {
  int most = 0;
  for (const auto& row : bits) {
    int marks = 0;
    for (int c = 0; c < columns; c += 64) {
      std::uint64_t word;
      std::memcpy(&word, row + c / 8, 8);
      marks += std::popcount(word);
    }
    most = std::max(most, marks);
  }
  return most;
}

}  // namespace

RowRange row_range(const SelectRule& rule, std::int64_t n) {
  const std::int64_t begin = std::min<std::int64_t>(rule.force_begin, n);
  const std::int64_t end = std::min<std::int64_t>(rule.force_end, n - begin);
  return {begin, n - end, n, static_cast<std::int32_t>(rule.topk - begin - end)};
}

std::size_t RowTopk::bytes(int rows, int topk) {
  const auto r = static_cast<std::size_t>(rows + 7) / 8 * 8;
  return rounded(r * sizeof(RowRange)) + 3 * rounded(r * topk * 4) + rounded(r * 4);
}

RowTopk::RowTopk(const Kernels& kernels, const SelectRule& rule, void* memory, int rows)
    : kernels_(kernels), rule_(rule), kept_(rule.topk) {
  auto* next = static_cast<std::byte*>(memory);
  const auto take = [&](std::size_t size) { return std::exchange(next, next + rounded(size)); };
  const auto r = static_cast<std::size_t>(rows + 7) / 8 * 8;
  ranges_ = reinterpret_cast<RowRange*>(take(r * sizeof(RowRange)));
  scores_ = reinterpret_cast<float*>(take(r * kept_ * 4));
  ids_ = reinterpret_cast<std::int32_t*>(take(r * kept_ * 4));
  forced_scores_ = reinterpret_cast<float*>(take(r * kept_ * 4));
  counts_ = reinterpret_cast<std::int32_t*>(take(r * 4));
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

void RowTopk::add_plainly(int row, const float* scores_of_row, std::int64_t first, int columns) {
  const RowRange& range = ranges_[row];
  const std::int64_t end = std::min(range.end, first + columns);
  for (std::int64_t t = std::max(range.begin, first); t < end; ++t)
    offer(row, scores_of_row[8 * (t - first)], t);
}

void RowTopk::add(float* strip, std::int64_t octet_stride, std::int64_t first, int columns,
                  ColumnCopy& copy) {
  const std::int64_t end = first + columns;
  for (int r0 = 0; r0 < rows_; r0 += 8) {
    float* octet = strip + r0 / 8 * octet_stride;
    const int rows = std::min(8, rows_ - r0);
    int room = 0;
    for (int i = 0; i < rows; ++i) {
      const RowRange& range = ranges_[r0 + i];
      room = std::max(room, range.room);
      for (std::int64_t t = first; t < std::min(range.begin, end); ++t) {
        float& score = octet[8 * (t - first) + i];
        set_forced_score(r0 + i, t, std::exchange(score, kLowest));
      }
      for (std::int64_t t = std::max(range.end, first); t < end; ++t) {
        const float score = std::exchange(octet[8 * (t - first) + i], kLowest);
        if (t < range.n) set_forced_score(r0 + i, t, score);
      }
    }
    if (room == 0) continue;
    // What a full row has kept is a floor; where all rows are full, it is the only one that is
    // needed, unless scores rise and too many reach it.
    float kept_floor[8], floors[8];
    bool plain[8], full = true;
    for (int i = 0; i < 8; ++i) {
      plain[i] = i >= rows || ranges_[r0 + i].room == 0;
      kept_floor[i] = plain[i] ? -kLowest : kLowest;
      if (plain[i]) continue;
      const float* kept = scores_ + static_cast<std::int64_t>(r0 + i) * kept_;
      const std::int32_t count = counts_[r0 + i];
      float least = count ? kept[0] : kLowest;
      for (int k = 0; k < count; ++k) {
        if (!(kept[k] > kLowest)) plain[i] = true;  // -inf and NaN are outside the fast way's order
        least = kept[k] < least ? kept[k] : least;
      }
      if (count == ranges_[r0 + i].room && !plain[i]) kept_floor[i] = least;
      full &= kept_floor[i] > kLowest;
    }
    alignas(64) std::uint8_t bits[8][kMarkColumns / 8];
    std::copy(kept_floor, kept_floor + 8, floors);
    if (full) kernels_.mark(octet, columns, floors, bits[0], copy);
    if (!full || most_marks(bits, columns) > kFewMarks) {
      kernels_.floor_of(octet, columns, room, floors, copy);
      for (int i = 0; i < 8; ++i) floors[i] = std::max(floors[i], kept_floor[i]);
      kernels_.mark(octet, columns, floors, bits[0], copy);
    }
    std::int32_t rooms[8] = {};
    unsigned marked = 0;
    for (int i = 0; i < rows; ++i) {
      rooms[i] = ranges_[r0 + i].room;
      plain[i] |= !(floors[i] > kLowest);
      marked |= static_cast<unsigned>(!plain[i]) << i;
    }
    const std::int64_t at = static_cast<std::int64_t>(r0) * kept_;
    const OctetChoice choice = {
        octet, bits[0],      kernels_.list_marks, columns,      static_cast<std::int32_t>(first),
        rooms, scores_ + at, ids_ + at,           counts_ + r0, kept_,
        &copy};
    const unsigned left = kernels_.choose(choice, room, marked);
    for (int i = 0; i < rows; ++i)
      if (plain[i] || left >> i & 1) add_plainly(r0 + i, octet + i, first, columns);
  }
}

void RowTopk::store(int row, std::int32_t* out, std::int64_t step, float* scores,
                    std::int64_t score_step) const {
  const RowRange& range = ranges_[row];
  const std::int64_t base = static_cast<std::int64_t>(row) * kept_;
  if (step == 1 && !scores) {  // most calls
    std::int32_t* next = out;
    for (std::int64_t t = 0; t < range.begin; ++t) *next++ = static_cast<std::int32_t>(t);
    next = std::copy_n(ids_ + base, counts_[row], next);
    for (std::int64_t t = range.end; t < range.n; ++t) *next++ = static_cast<std::int32_t>(t);
    std::fill(next, out + rule_.topk, -1);
    return;
  }
  const float* forced = forced_scores_ + base;
  int rank = 0;
  const auto put = [&](std::int64_t id, float score) {
    out[rank * step] = static_cast<std::int32_t>(id);
    if (scores) scores[rank * score_step] = score;
    ++rank;
  };
  for (std::int64_t t = 0; t < range.begin; ++t) put(t, forced[t]);
  for (int i = 0; i < counts_[row]; ++i) put(ids_[base + i], scores_[base + i]);
  for (std::int64_t t = range.end; t < range.n; ++t) put(t, forced[range.begin + t - range.end]);
  while (rank < rule_.topk) put(-1, kLowest);
}

}  // namespace kvscout::cpu
