#include "placed.h"

#if defined(KVSCOUT_HAVE_CUDA)
#include "gpu/memory.h"
#endif

namespace kvscout::tool {

Device::Type device_of(const char* backend) {
  if (!backend) return Device::cpu;
  for (const BackendInfo& b : backends())
    if (b.name == backend) return b.device;
  return Device::cpu;  // the call names the back ends that there are
}

#if defined(KVSCOUT_HAVE_CUDA)
std::unique_ptr<cases::Memory> device_memory(Device::Type type) {
  return type == Device::cpu ? nullptr : std::make_unique<gpu::GpuMemory>();
}
void copy_in_device(void* to, const void* from, std::size_t bytes) {
  gpu::require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), "copy on the GPU");
  gpu::require(cudaDeviceSynchronize(), "copy on the GPU");
}
#else
std::unique_ptr<cases::Memory> device_memory(Device::Type type) {
  if (type == Device::cpu) return nullptr;
  throw Error(Error::unsupported, "this build has no back end for GPU memory");
}
void copy_in_device(void*, const void*, std::size_t) {}
#endif

}  // namespace kvscout::tool
