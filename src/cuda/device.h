// The CUDA run time behind a few plain functions, so that nothing but kernels needs nvcc.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "backend.h"
#include "cuda/plan.h"

namespace kvscout::cuda {

// Facts about device `index`, read once.
const DeviceInfo& device_info(int index);

// Throws Error(device_failure) "<operation>: <what CUDA says>" unless `error` (a cudaError_t) is 0.
void check(int error, const char* operation);

// Makes `index` the current device until the end of the scope.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_;
};

// One kernel launch. `overlaps`: the kernel may be started while the kernel before it in the stream
// still runs (programmatic dependent launch); it must wait_for_previous() (dependent.cuh) before it
// touches memory.
struct KernelLaunch {
  std::int64_t blocks = 1, blocks_y = 1, blocks_z = 1;
  int threads = 256;
  int shared_bytes = 0;
  bool overlaps = false;
};
void launch(const char* operation, const void* kernel, const KernelLaunch&, void** arguments,
            const Launch&);

// What the registry asks: can the code that holds `probe`, built for `built_for`, run on device
// `index`? The answer is that of the CUDA run time. If not, *why ends a sentence that begins with
// the back end's name. `known` remembers devices that can, one bit each: every call asks.
bool runs_on(int index, const void* probe, const char* built_for, std::atomic<std::uint64_t>& known,
             std::string* why);
std::string describe(int index);

// Device memory to host memory; waits for the stream. Error(invalid_argument) during capture.
void read(void* host, const void* device, std::size_t bytes, const Launch&);

}  // namespace kvscout::cuda
