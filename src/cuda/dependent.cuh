// Programmatic dependent launch: a kernel may start while the one before it in the stream finishes.
//
// The rule that makes chains of such kernels safe: every thread block first waits, then releases.
// So whatever a kernel reads before it waits was finished before the kernel before it began.
// An index's selection may release at once all the same: nothing reads before its wait but such a
// selection, and before that one in the stream comes the score of its own call.
#pragma once

#include <cstdint>

namespace kvscout::cuda {

// Until everything that the kernel before wrote is there. No effect in an ordinary launch.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Values that are to be there before a wait: the compiler sinks whatever it can below one, into the
// time that is not hidden.
class Ready {
 public:
  __device__ __forceinline__ void add(unsigned x) { mix_ ^= x; }
  __device__ __forceinline__ void add(const void* x) {
    const auto bits = reinterpret_cast<std::uintptr_t>(x);
    mix_ ^= static_cast<unsigned>(bits) ^ static_cast<unsigned>(bits >> 32);
  }
  // wait_for_previous() on a condition that the values decide as far as the compiler knows, and
  // that is true, since thread blocks have no third dimension.
  __device__ __forceinline__ void wait_for_previous() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; .reg .b32 n; mov.u32 n, %%ntid.z; mul.hi.u32 n, n, %0;"
        " setp.eq.u32 p, n, 0; @p griddepcontrol.wait; }" ::"r"(mix_)
        : "memory");
#endif
  }

 private:
  unsigned mix_ = 0;
};

// A load that stays behind the wait and in its place among others: the assembler moves loads of
// read-only data (__ldg) above it where the address is known there.
template <class T>
__device__ __forceinline__ T load_behind(const T* a) {
  static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 16);
  union {
    T value;
    std::uint16_t half;
    std::uint32_t word[4];
  } x;
  if constexpr (sizeof(T) == 2)
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(x.half) : "l"(a) : "memory");
  else if constexpr (sizeof(T) == 4)
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(x.word[0]) : "l"(a) : "memory");
  else
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                 : "l"(a)
                 : "memory");
  return x.value;
}

// The next kernel may start.
__device__ __forceinline__ void release_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvscout::cuda
