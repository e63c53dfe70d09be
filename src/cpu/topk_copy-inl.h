// Columns of scores on their way to a strip (kernels.h: ColumnCopy), for selections.
#include "cpu/kernels.h"

#if defined(KVSCOUT_TOPK_COPY_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_TOPK_COPY_INL
#undef KVSCOUT_TOPK_COPY_INL
#else
#define KVSCOUT_TOPK_COPY_INL
#endif

#include <hwy/highway.h>

#include "cpu/common-inl.h"
#include "cpu/topk_sort-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

// So many octets of one column.
HWY_INLINE void copy_octets(const float* from, int octets, float* to) {
  const D8Rows d;
  HWY_UNROLL(8)
  for (int o = 0; o < octets; ++o)
    for (int r = 0; r < 8; r += kTopkLanes)
      hn::StoreU(hn::LoadU(d, from + 8 * o + r), d, to + o * ColumnCopy::kOctet + r);
}
// Eight octets of two columns, a whole line each where vectors are that wide.
HWY_INLINE void copy_two(const float* from, const float* second, float* to) {
#if HWY_MAX_BYTES >= 64
  const DF df;
  const D8Rows d;
  HWY_UNROLL(8)
  for (int o = 0; o < 8; ++o)
    hn::StoreU(hn::Combine(df, hn::LoadU(d, second + 8 * o), hn::LoadU(d, from + 8 * o)), df,
               to + o * ColumnCopy::kOctet);
#else
  copy_octets(from, 8, to);
  copy_octets(second, 8, to + 8);
#endif
}
HWY_INLINE void prefetch_column(const ColumnCopy& copy, const float* from) {
  // Columns to ask for ahead, since no hardware prefetcher follows them: of memory, and of the
  // second-level cache. (Columns a page apart share few sets of the first-level one.)
  constexpr int kFar = 24, kNear = 4;
  const float* far = from + (copy.columns > kFar ? kFar * copy.stride : 0);
  const float* near = from + (copy.columns > kNear ? kNear * copy.stride : 0);
  for (int o = 0; o < copy.octets; o += 2) __builtin_prefetch(near + 8 * o);
  for (int o = 0; o < copy.octets; o += 2) __builtin_prefetch(far + 8 * o, 0, 2);
}
// The next columns. Two at a time, at 32 places of what an octet takes, are all of a strip's 512.
constexpr int kTakenAlong = 2;
HWY_INLINE void copy_some(ColumnCopy& copy, int columns = kTakenAlong) {
  for (; columns > 1 && copy.columns > 1 && copy.octets == 8; columns -= 2, copy.columns -= 2) {
    const float* second = copy.from + copy.stride;
    prefetch_column(copy, copy.from);
    prefetch_column(copy, second);
    copy_two(copy.from, second, copy.strip);
    copy.from = second + copy.stride;
    copy.strip += 16;
  }
  for (; columns > 0 && copy.columns > 0; --columns, --copy.columns) {
    prefetch_column(copy, copy.from);
    copy_octets(copy.from, copy.octets, copy.strip);
    copy.from += copy.stride;
    copy.strip += 8;
  }
}
void copy_columns(ColumnCopy& copy) { copy_some(copy, copy.columns); }

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();
#endif
