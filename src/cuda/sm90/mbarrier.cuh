// Barriers in shared memory that some threads arrive at and others wait for. Each completion flips
// the parity.
#pragma once

#include <cstdint>

namespace kvscout::sm90 {

using Barrier = std::uint64_t;

__device__ __forceinline__ std::uint32_t address_of(const void* shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
}
__device__ __forceinline__ void barrier_init(Barrier& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address_of(&b)), "r"(arrivals)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address_of(&b)) : "memory");
}
// Arrives when all that the thread copies (copy_async) so far is there.
__device__ __forceinline__ void barrier_arrive_copied(Barrier& b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(address_of(&b))
               : "memory");
}
// Until the phase of that parity is over.
__device__ __forceinline__ void barrier_wait(Barrier& b, int parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(address_of(&b)),
      "r"(parity)
      : "memory");
}

}  // namespace kvscout::sm90
