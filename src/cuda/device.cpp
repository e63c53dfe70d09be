#include "cuda/device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>

namespace kvscout::cuda {
namespace {

constexpr int kMaxDevices = 64;

std::string version_text(int version) {  // 13000 -> "13.0"
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

// Why there is no device `index`; empty if there is one. Must not throw: asked on every machine.
std::string missing(int index) {
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    return "needs an NVIDIA driver, and none is installed here";
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    return "needs a driver for CUDA " + version_text(CUDART_VERSION) +
           " or later; the one here is for CUDA " + version_text(driver);
  if (error != cudaSuccess && error != cudaErrorNoDevice)
    return std::string("cannot reach a GPU: ") + cudaGetErrorString(error);
  if (count == 0) return "finds no NVIDIA GPU here";
  if (index < 0 || index >= count)
    return "finds no GPU " + std::to_string(index) + ", only " + std::to_string(count) + " here";
  return "";
}

DeviceInfo query(int index) {
  DeviceInfo d;
  const auto ask = [&](int* value, cudaDeviceAttr attribute) {
    check(cudaDeviceGetAttribute(value, attribute, index), "device query");
  };
  ask(&d.major, cudaDevAttrComputeCapabilityMajor);
  ask(&d.minor, cudaDevAttrComputeCapabilityMinor);
  ask(&d.sms, cudaDevAttrMultiProcessorCount);
  int kilohertz = 0, bits = 0;
  if (cudaDeviceGetAttribute(&kilohertz, cudaDevAttrMemoryClockRate, index) == cudaSuccess &&
      cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, index) == cudaSuccess)
    d.memory_bytes_per_us = std::int64_t{2} * kilohertz * (bits / 8) / 1000;  // two a clock
  else
    cudaGetLastError();
  return d;
}

}  // namespace

void check(int error, const char* operation) {
  if (error == cudaSuccess) return;
  const auto e = static_cast<cudaError_t>(error);
  cudaGetLastError();  // the run time's copy of it; the caller is told here
  throw Error(Error::device_failure, std::string(operation) + ": CUDA: " + cudaGetErrorString(e) +
                                         " (" + cudaGetErrorName(e) + ")");
}

const DeviceInfo& device_info(int index) {
  static std::array<DeviceInfo, kMaxDevices> infos;
  static std::array<std::once_flag, kMaxDevices> once;
  if (index < 0 || index >= kMaxDevices)
    throw Error(Error::unsupported, "device " + std::to_string(index) + ": at most " +
                                        std::to_string(kMaxDevices) + " devices are known");
  std::call_once(once[index], [&] { infos[index] = query(index); });
  return infos[index];
}

DeviceGuard::DeviceGuard(int index) : previous_(-1) {
  int current = 0;
  check(cudaGetDevice(&current), "device");
  if (current == index) return;
  check(cudaSetDevice(index), "device");
  previous_ = current;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0) cudaSetDevice(previous_);
}

void launch(const char* operation, const void* kernel, const KernelLaunch& k, void** arguments,
            const Launch& to) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(k.blocks), static_cast<unsigned>(k.blocks_y),
                        static_cast<unsigned>(k.blocks_z));
  config.blockDim = dim3(static_cast<unsigned>(k.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(k.shared_bytes);
  config.stream = static_cast<cudaStream_t>(to.stream);
  config.attrs = &attribute;
  config.numAttrs = k.overlaps ? 1 : 0;
  if (k.shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k.shared_bytes),
          operation);
  check(cudaLaunchKernelExC(&config, kernel, arguments), operation);
}

bool runs_on(int index, const void* probe, const char* built_for, std::atomic<std::uint64_t>& known,
             std::string* why) {
  const std::uint64_t bit = index >= 0 && index < kMaxDevices ? std::uint64_t{1} << index : 0;
  if (known.load(std::memory_order_relaxed) & bit) return true;
  const std::string reason = missing(index);
  if (!reason.empty()) {
    if (why) *why = reason;
    return false;
  }
  // The first call may load code, which a stream under capture must not notice.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  cudaError_t error = cudaSuccess;
  std::string found;
  try {
    const DeviceGuard guard(index);
    const DeviceInfo& d = device_info(index);
    found = "compute capability " + std::to_string(d.major) + "." + std::to_string(d.minor);
    cudaFuncAttributes attributes;
    error = cudaFuncGetAttributes(&attributes, probe);
  } catch (const Error& e) {
    found = e.what();
    error = cudaErrorUnknown;
  }
  cudaThreadExchangeStreamCaptureMode(&mode);
  if (error == cudaSuccess) {
    known.fetch_or(bit, std::memory_order_relaxed);
    return true;
  }
  cudaGetLastError();
  if (why)
    *why = "cannot run on device " + std::to_string(index) + " (" + found + "): built for " +
           built_for;
  return false;
}

std::string describe(int index) {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "device query");
  return std::string(properties.name) + ", compute capability " + std::to_string(properties.major) +
         "." + std::to_string(properties.minor) + ", " +
         std::to_string(properties.multiProcessorCount) + " SMs";
}

void read(void* host, const void* device, std::size_t bytes, const Launch& launch) {
  const DeviceGuard guard(launch.device.index);
  const auto stream = static_cast<cudaStream_t>(launch.stream);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream, &status), "checked mode");
  if (status != cudaStreamCaptureStatusNone)
    throw Error(Error::invalid_argument,
                "checked mode: reads lengths back, which a stream under capture does not allow");
  check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "checked mode");
  check(cudaStreamSynchronize(stream), "checked mode");
}

}  // namespace kvscout::cuda
