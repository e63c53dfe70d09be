// Exact top-k of many rows at once, fed strip by strip.
//
// A strip holds scores of `columns` neighbouring columns for `rows` rows, strip[column*stride +
// row]. For each row a vector pass finds a floor below which nothing can be chosen (the k-th
// largest of the maxima of 2k groups of columns), a second one marks what reaches it, and of the
// few that do the best k are kept: a sorting network whose lanes are rows finds the k-th largest.
// Rows without a floor (few columns, mostly -inf or NaN) take the plain way. Both give the order of
// order.h exactly.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/kernels.h"
#include "kvscout/problem.h"

namespace kvscout::cpu {

// What one row may choose from: columns [begin, end) less forced ones, `room` of them.
struct RowRange {
  std::int64_t begin = 0, end = 0;  // columns offered, forced ones excepted
  std::int64_t n = 0;               // all columns of the row
  std::int32_t room = 0;            // at most so many
};
RowRange row_range(const SelectRule& rule, std::int64_t n);

// State of `rows` rows, in memory of the caller.
class RowTopk {
 public:
  static std::size_t bytes(int rows, int topk);
  RowTopk(const Kernels& kernels, const SelectRule& rule, void* memory, int rows);

  // Rows [0, rows) start over; ranges()[r] must be filled in.
  void start(int rows);
  RowRange* ranges() { return ranges_; }

  // Adds columns [first, first + columns), at most kMarkColumns, of all rows. Entries outside a
  // row's range may be overwritten: the strip is scratch. Its last octet must be filled up with
  // numbers. Takes some of `copy` along, into another strip.
  void add(float* strip, std::int64_t octet_stride, std::int64_t first, int columns,
           ColumnCopy& copy);

  // The ids of row r, ascending, then -1; scores, if asked for, with -inf beside -1.
  void store(int row, std::int32_t* ids, std::int64_t step, float* scores,
             std::int64_t score_step) const;

  // For results that are merged later: the chosen ones of a row without the forced ones (returns
  // how many), and the scores of forced columns, which lie in the order of their ids.
  int chosen(int row, const std::int32_t** ids, const float** scores) const {
    *ids = ids_ + static_cast<std::int64_t>(row) * kept_;
    *scores = scores_ + static_cast<std::int64_t>(row) * kept_;
    return counts_[row];
  }
  template <class Take>  // take(place, score) for forced columns in [first, end)
  void for_forced(int row, std::int64_t first, std::int64_t end, const Take& take) const {
    const RowRange& range = ranges_[row];
    for (std::int64_t t = first; t < end; ++t) {
      if (t >= range.begin && t < range.end) t = range.end;
      if (t >= end || t >= range.n) return;
      const std::int64_t place = t < range.begin ? t : range.begin + t - range.end;
      take(place, forced_scores_[static_cast<std::int64_t>(row) * kept_ + place]);
    }
  }
  void set_forced_scores(int row, const float* scores) {
    const RowRange& range = ranges_[row];
    const std::int64_t forced = range.begin + range.n - range.end;
    for (std::int64_t i = 0; i < forced; ++i)
      forced_scores_[static_cast<std::int64_t>(row) * kept_ + i] = scores[i];
  }
  // Columns stood for ids, in their order: what row r has kept is called by these now.
  template <class IdOf>
  void rename(int row, const IdOf& id_of) {
    std::int32_t* ids = ids_ + static_cast<std::int64_t>(row) * kept_;
    for (int i = 0; i < counts_[row]; ++i) ids[i] = id_of(ids[i]);
  }

 private:
  void offer(int row, float score, std::int64_t id);  // ids come in ascending order
  void set_forced_score(int row, std::int64_t id, float score);
  void add_plainly(int row, const float* scores_of_row, std::int64_t first, int columns);

  const Kernels& kernels_;
  const SelectRule& rule_;
  int rows_ = 0, kept_;
  RowRange* ranges_;
  float* scores_;  // [row][kept], ids ascending
  std::int32_t* ids_;
  std::int32_t* counts_;
  float* forced_scores_;  // [row][force_begin + force_end]
};

}  // namespace kvscout::cpu
