// Programmatic dependent launch: a kernel may start while the one before it in the stream finishes.
//
// The rule that makes chains of such kernels safe: every thread block first waits, then releases.
// So whatever a kernel reads before it waits was finished before the kernel before it began.
#pragma once

namespace kvscout::cuda {

// Until everything that the kernel before wrote is there. No effect in an ordinary launch.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may start.
__device__ __forceinline__ void release_next() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace kvscout::cuda
