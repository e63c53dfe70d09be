// IEEE float32 for the length of a scope: round to nearest even, subnormals kept.
//
// A caller's thread may flush subnormals (torch.set_flush_denormal, or any library in the process
// that was linked with -ffast-math). Scale bytes and bf16 values pass through subnormals, so scores
// and codes would silently become others.
#pragma once

#include <cstdint>

#if defined(__x86_64__) || defined(_M_X64)
#include <xmmintrin.h>
#endif

namespace kvscout {

class IeeeFloats {
 public:
  IeeeFloats(const IeeeFloats&) = delete;
  IeeeFloats& operator=(const IeeeFloats&) = delete;

#if defined(__x86_64__) || defined(_M_X64)
  IeeeFloats() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }  // exceptions masked, nothing flushed
  ~IeeeFloats() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeFloats() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}));
  }
  ~IeeeFloats() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  std::uint64_t saved_ = 0;
#else
  IeeeFloats() {}
#endif
};

}  // namespace kvscout
