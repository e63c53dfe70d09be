// A constant stored around the cache, for results that nobody reads soon: a line that is stored as
// a whole need not be read first.
#if defined(KVSCOUT_FILL_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef KVSCOUT_FILL_INL
#undef KVSCOUT_FILL_INL
#else
#define KVSCOUT_FILL_INL
#endif

#include "cpu/common-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvscout::cpu {
namespace HWY_NAMESPACE {

void fill_around(float* to, std::int64_t n, float value) {
  constexpr int kLine = 16;  // floats
  const DF d;
  const VF v = hn::Set(d, value);
  std::int64_t i = 0;
  for (; i < n && reinterpret_cast<std::uintptr_t>(to + i) % (4 * kLine) != 0; ++i) to[i] = value;
  for (; i + kLine <= n; i += kLine)
    for (int lane = 0; lane < kLine; lane += kLanes) hn::Stream(v, d, to + i + lane);
  for (; i < n; ++i) to[i] = value;
}

}  // namespace HWY_NAMESPACE
}  // namespace kvscout::cpu
HWY_AFTER_NAMESPACE();

#endif
