// Lanes = keys, for many query rows: a block of keys is turned and looked up once, and met by eight
// rows at a time, whose numbers are broadcast from memory by the instructions that use them.
//
// Bound: of each row and sixteen keys, six operations a group, on the two ports of 512-bit
// arithmetic. Nothing else needs these ports: a broadcast is a load, of which an Intel core does
// three a cycle (of whole vectors two), as long as the instruction itself asks for it.
#if defined(__x86_64__)

#include "cpu/vnni/keys.h"

namespace kvscout::cpu::vnni {

namespace {

struct KeyBlock {
  struct {
    KeyGroup group[8];
  } step[kSteps];
};

template <bool kPlain>
KVSCOUT_VNNI void unpack_all(const KeySource& source, KeyBlock& b) {
  StepRows ahead;
  load_rows(source.rows, source.stride, ahead);
  for (int step = 0; step < kSteps; ++step) {
    KeyGroup* out = b.step[step].group;
    const std::uint8_t* next =
        source.rows + (step + 1 < kSteps ? kStepRows * (step + 1) * source.stride : 0);
    each_group<kPlain>(source, step, ahead, next,
                       [&](int g, const KeyGroup& k) KVSCOUT_VNNI_LAMBDA {
                         out[g] = k;
                         if (!kPlain) return;
                         out[g].scale = _mm512_mul_ps(k.scale, _mm512_set1_ps(kPlainUp));
                         out[g].offset = _mm512_mul_ps(k.offset, _mm512_set1_ps(kPlainUp));
                       });
  }
}

KVSCOUT_VNNI void unpack(const KeySource& source, void* block) {
  auto& b = *static_cast<KeyBlock*>(block);
  all_plain(source.scales) ? unpack_all<true>(source, b) : unpack_all<false>(source, b);
}

// Rows whose sums, logits and maxima stay in registers.
inline constexpr int kTogether = 8;

template <bool kMasked>
KVSCOUT_VNNI void score_rows(const QueryRow* q, const KeyBlock& b, const std::int32_t* visible,
                             float* best) {
  __m512 maxima[kTogether];
  KVSCOUT_UNROLL
  for (int r = 0; r < kTogether; ++r) maxima[r] = _mm512_set1_ps(-__builtin_inff());
  for (int step = 0; step < kSteps; ++step) {
    __m512 logit[kTogether];
    KVSCOUT_UNROLL
    for (int r = 0; r < kTogether; ++r) logit[r] = _mm512_setzero_ps();
    for (int g = 0; g < 8; ++g) add_group(q, g, b.step[step].group[g], logit);
    KVSCOUT_UNROLL
    for (int r = 0; r < kTogether; ++r) {
      if (kMasked) {
        const __m512i count = _mm512_set1_epi32(visible[r] - kStepRows * step);
        maxima[r] = _mm512_mask_max_ps(maxima[r], _mm512_cmpgt_epi32_mask(count, key_of_lane()),
                                       logit[r], maxima[r]);
      } else {
        maxima[r] = _mm512_max_ps(logit[r], maxima[r]);  // a NaN logit leaves the maximum
      }
    }
  }
  _mm256_storeu_ps(best, _mm512_castps512_ps256(largest_of(maxima)));
}

KVSCOUT_VNNI void score(const void* tiles, int vectors, const void* block,
                        const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryRow*>(tiles);
  const auto& b = *static_cast<const KeyBlock*>(block);
  for (int first = 0; first < vectors * kRows; first += kTogether) {
    const std::int32_t* seen = visible ? visible + first : nullptr;
    bool all = true, none = visible != nullptr;
    for (int r = 0; seen && r < kTogether; ++r) all &= seen[r] == kBlock, none &= seen[r] == 0;
    if (all)
      score_rows<false>(q + first, b, nullptr, best + first);
    else if (none)
      for (int r = 0; r < kTogether; ++r) best[first + r] = -__builtin_inff();
    else
      score_rows<true>(q + first, b, seen, best + first);
  }
}

}  // namespace

Route block_route() {
  return {.vector_bytes = kRows * sizeof(QueryRow),
          .block_bytes = sizeof(KeyBlock),
          .pack = pack_rows,
          .unpack = unpack,
          .reads_all_rows = true,
          .score = score};
}

}  // namespace kvscout::cpu::vnni

#endif
