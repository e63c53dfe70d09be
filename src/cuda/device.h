// The CUDA run time behind a few plain functions.
#pragma once

#include <string>

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

}  // namespace kvscout::cuda
