// Lanes = keys, for few query rows (decoding): keys go from where they lie to the last maximum in
// registers.
//
// Bound: for sixteen keys 64 operations that transpose them, 48 that look their codes up, 22 for
// their scales, and of each row 49 (six a group). An Intel core does two of them a cycle, 10.3
// cycles a key for four rows and 16.4 for eight, if the port of all shuffles (80 of them) is not
// the longer one.
//
// Scales that are subnormal, negative or NaN take a longer way, block by block: seven operations a
// row and group, and the same bits.
#if defined(__x86_64__)

#include "cpu/vnni/keys.h"

namespace kvscout::cpu::vnni {
namespace {

template <int kQueries, bool kPlain>
KVSCOUT_VNNI void score_rows(const QueryRow* tile, const KeySource& source,
                             const std::int32_t* visible, float* best) {
  __m512 maxima[kQueries];
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) maxima[r] = _mm512_set1_ps(-__builtin_inff());
  StepRows ahead;
  load_rows(source, 0, ahead);
  for (int step = 0; step < kSteps; ++step) {
    // Hidden, or the compiler hoists (and spills) broadcasts of all that rows hold.
    const QueryRow* rows = tile;
    asm volatile("" : "+r"(rows));
    __m512 logit[kQueries];
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) logit[r] = _mm512_setzero_ps();
    each_group<kPlain>(source, step, ahead, [&](int g, const KeyGroup& k) KVSCOUT_VNNI_LAMBDA {
      add_group<kQueries, !kPlain>(rows, g, k, logit);
    });
    if (visible) {
      KVSCOUT_UNROLL
      for (int r = 0; r < kQueries; ++r) {
        const __m512i count = _mm512_set1_epi32(visible[r * kRows] - kStepRows * step);
        maxima[r] = _mm512_mask_max_ps(maxima[r], _mm512_cmpgt_epi32_mask(count, key_of_lane()),
                                       logit[r], maxima[r]);
      }
    } else {
      KVSCOUT_UNROLL
      for (int r = 0; r < kQueries; ++r) maxima[r] = _mm512_max_ps(logit[r], maxima[r]);
    }
  }
  KVSCOUT_UNROLL
  for (int r = 0; r < kQueries; ++r) best[r * kRows] = _mm512_reduce_max_ps(maxima[r]);
}

// Rows that do not exist repeat the last one.
template <int kQueries, bool kPlain>
KVSCOUT_VNNI void score_fewer(const QueryRow* tile, int rows, const KeySource& source,
                              const std::int32_t* visible, float* best) {
  QueryRow all[kQueries];
  std::int32_t seen[kQueries * kRows];
  float found[kQueries * kRows];
  for (int r = 0; r < kQueries; ++r) {
    const int row = r < rows ? r : rows - 1;
    all[r] = tile[row];
    if (visible) seen[r * kRows] = visible[row * kRows];
  }
  score_rows<kQueries, kPlain>(all, source, visible ? seen : nullptr, found);
  for (int r = 0; r < rows; ++r) best[r * kRows] = found[r * kRows];
}

template <int kQueries, bool kPlain>
KVSCOUT_VNNI void score_up_to(const QueryRow* tile, int rows, const KeySource& source,
                              const std::int32_t* visible, float* best) {
  if (rows == kQueries)
    score_rows<kQueries, kPlain>(tile, source, visible, best);
  else
    score_fewer<kQueries, kPlain>(tile, rows, source, visible, best);
}

using Score = void (*)(const QueryRow*, int, const KeySource&, const std::int32_t*, float*);
template <bool kPlain>
constexpr Score kScore[] = {score_up_to<1, kPlain>, score_up_to<2, kPlain>, score_up_to<4, kPlain>,
                            score_up_to<8, kPlain>, score_up_to<kMostFewRows, kPlain>};

}  // namespace

KVSCOUT_VNNI void score_keys(const void* tile, int rows, const KeySource& source,
                             const std::int32_t* visible, float* best) {
  const Score* score = all_plain(source.scales) ? kScore<true> : kScore<false>;
  score[rows <= 2   ? rows - 1
        : rows <= 4 ? 2
        : rows <= 8 ? 3
                    : 4](static_cast<const QueryRow*>(tile), rows, source, visible, best);
}

}  // namespace kvscout::cpu::vnni

#endif
