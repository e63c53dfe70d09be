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

// Blocks whose scales are kPlain, until one's are not: returns how many. Nothing lies between two
// of them but the look at the next one's scales: its first keys are loaded beside this one's last.
template <int kQueries, bool kPlain>
KVSCOUT_VNNI int score_rows(const QueryRow* tile, int rows, const KeyPlace* keys, int blocks,
                            std::int64_t stride, const std::int32_t* visible, float* best) {
  KeySource source;
  source.stride = stride;
  StepRows ahead;
  load_rows(keys->rows, stride, ahead);
  for (int b = 1;; ++b, ++keys, best += rows) {
    source.scales = keys->scales;
    source.next = keys[1];
    __m512 maxima[kQueries];
    KVSCOUT_UNROLL
    for (int r = 0; r < kQueries; ++r) maxima[r] = _mm512_set1_ps(-__builtin_inff());
    const std::uint8_t* next = keys->rows;
    for (int step = 0; step < kSteps; ++step) {
      next += kStepRows * stride;
      if (step + 1 == kSteps) next = keys[b < blocks].rows;
      // Hidden, or the compiler hoists (and spills) broadcasts of all that rows hold.
      const QueryRow* queries = tile;
      asm volatile("" : "+r"(queries));
      __m512 logit[kQueries];
      KVSCOUT_UNROLL
      for (int r = 0; r < kQueries; ++r) logit[r] = _mm512_setzero_ps();
      each_group<kPlain>(source, step, ahead, next,
                         [&](int g, const KeyGroup& k) KVSCOUT_VNNI_LAMBDA {
                           add_group<kQueries, !kPlain>(queries, g, k, logit);
                         });
      KVSCOUT_UNROLL
      for (int r = 0; r < kQueries; ++r) {
        if (visible) {
          const __m512i count = _mm512_set1_epi32(visible[r] - kStepRows * step);
          maxima[r] = _mm512_mask_max_ps(maxima[r], _mm512_cmpgt_epi32_mask(count, key_of_lane()),
                                         logit[r], maxima[r]);
        } else {
          maxima[r] = _mm512_max_ps(logit[r], maxima[r]);
        }
      }
    }
    _mm512_mask_storeu_ps(best, static_cast<__mmask16>((1u << rows) - 1), largest_of(maxima));
    if (b == blocks || all_plain(keys[1].scales) != kPlain) return b;
  }
}

// Rows that do not exist repeat the last one.
template <int kQueries, bool kPlain>
KVSCOUT_VNNI int score_up_to(const QueryRow* tile, int rows, const KeyPlace* keys, int blocks,
                             std::int64_t stride, const std::int32_t* visible, float* best) {
  if (rows == kQueries)
    return score_rows<kQueries, kPlain>(tile, rows, keys, blocks, stride, visible, best);
  QueryRow all[kQueries];
  std::int32_t seen[kQueries];
  for (int r = 0; r < kQueries; ++r) {
    const int row = r < rows ? r : rows - 1;
    all[r] = tile[row];
    if (visible) seen[r] = visible[row];
  }
  return score_rows<kQueries, kPlain>(all, rows, keys, blocks, stride, visible ? seen : nullptr,
                                      best);
}

using Score = int (*)(const QueryRow*, int, const KeyPlace*, int, std::int64_t, const std::int32_t*,
                      float*);
template <bool kPlain>
constexpr Score kScore[] = {score_up_to<1, kPlain>, score_up_to<2, kPlain>, score_up_to<4, kPlain>,
                            score_up_to<8, kPlain>, score_up_to<kMostFewRows, kPlain>};

}  // namespace

KVSCOUT_VNNI void score_keys(const void* tile, int rows, const KeyPlace* keys, int blocks,
                             std::int64_t stride, const std::int32_t* visible, float* best) {
  const int kernel = rows <= 2 ? rows - 1 : rows <= 4 ? 2 : rows <= 8 ? 3 : 4;
  bool plain = all_plain(keys->scales);
  for (int b = 0; b < blocks; plain = !plain) {  // one kind ends where the other begins
    const Score* score = plain ? kScore<true> : kScore<false>;
    b += score[kernel](static_cast<const QueryRow*>(tile), rows, keys + b, blocks - b, stride,
                       visible, best + b * rows);
  }
}

}  // namespace kvscout::cpu::vnni

#endif
