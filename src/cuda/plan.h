// How a score call is cut up: host bounds and the device's size in, launch numbers out. Pure integers, no
// CUDA, no state; nothing here looks at a length, so a captured launch stays right for other lengths.
#pragma once

#include <cstdint>
#include <string>

#include "kvscout/problem.h"

namespace kvscout::cuda {

// What a plan needs to know of a GPU. Filled once a device by device_info (device.h).
struct DeviceInfo {
  int index = 0;
  int major = 0, minor = 0;
  int sms = 1;
  std::int64_t l2_bytes = 0;
  std::int64_t shared_bytes_per_block = 48 * 1024;  // the opt-in limit
};

}  // namespace kvscout::cuda
