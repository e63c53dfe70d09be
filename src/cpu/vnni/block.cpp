// Lanes = keys, for many query rows: a block of keys is turned and looked up once, and met by eight
// rows at a time, whose numbers are broadcast from memory by the instructions that use them.
//
// Bound: of each row and sixteen keys, six operations a group, on the two ports of 512-bit
// arithmetic. Nothing else needs these ports: a broadcast is a load, of which an Intel core does
// three a cycle (of whole vectors two), as long as the instruction itself asks for it.
#if defined(__x86_64__)

#include <cstring>

#include "cpu/vnni/keys.h"
#include "kvscout/nvfp4.h"

namespace kvscout::cpu::vnni {

namespace {

struct KeyBlock {
  struct {
    KeyGroup group[8];
  } step[kSteps];
};

template <bool kNan>
KVSCOUT_VNNI void unpack_all(const KeySource& source, KeyBlock& b) {
  for (int step = 0; step < kSteps; ++step) {
    KeyGroup* out = b.step[step].group;
    each_group<kNan>(source, step,
                     [&](int g, const KeyGroup& k) KVSCOUT_VNNI_LAMBDA { out[g] = k; });
  }
}

// The same keys, with 128 rows to read.
KVSCOUT_VNNI void unpack(const KeySource& source, void* block) {
  KeySource all = source;
  alignas(64) std::uint8_t rows[kBlock][nvfp4::kRowBytes];
  if (source.count < kBlock) {  // those that do not exist may be anything: nobody sees them
    for (int j = 0; j < kBlock; ++j)
      std::memcpy(rows[j], source.rows + (j < source.count ? j : 0) * source.stride,
                  sizeof rows[j]);
    all.rows = rows[0];
    all.stride = sizeof rows[0];
    all.next_rows = nullptr;
  }
  auto& b = *static_cast<KeyBlock*>(block);
  any_nan(source.scales) ? unpack_all<true>(all, b) : unpack_all<false>(all, b);
}

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
    _Pragma("GCC unroll 1")  // 500 bytes of code, and no broadcast is worth a register
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
  store_largest(maxima, best);
}

KVSCOUT_VNNI void score(const void* tiles, int vectors, const void* block,
                        const std::int32_t* visible, float* best) {
  const auto* q = static_cast<const QueryRow*>(tiles);
  const auto& b = *static_cast<const KeyBlock*>(block);
  for (int first = 0; first < vectors * kRows; first += kTogether) {
    bool all = true;
    for (int r = first; visible && r < first + kTogether; ++r) all &= visible[r] == kBlock;
    if (all)
      score_rows<false>(q + first, b, nullptr, best + first);
    else
      score_rows<true>(q + first, b, visible + first, best + first);
  }
}

}  // namespace

Route block_route() {
  return {.vector_bytes = kRows * sizeof(QueryRow),
          .block_bytes = sizeof(KeyBlock),
          .pack = pack_rows,
          .unpack = unpack,
          .score = score};
}

}  // namespace kvscout::cpu::vnni

#endif
